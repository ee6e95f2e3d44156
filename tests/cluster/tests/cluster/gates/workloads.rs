//! Gates of the controllers of pods.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::objects::{deployment, is_ready, names, pod, replica_set, template, with};
use cluster_tests::{Bed, Faults, Manager, Space, eventually};
use control_plane::Options;
use control_plane::behaviour::{BEHAVIOUR, TERMINATING};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use serde_json::json;

use super::on_and_off;
use crate::nodes::lifecycle::patch_node;

/// Without the cost, one of the two pods on the same node would be deleted.
pub async fn pod_with_the_lowest_deletion_cost_is_deleted_first(space: Space) -> Result<()> {
    on_and_off(&space, &["PodDeletionCost"], |space, gate| async move {
        let cost = json!({"metadata": {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-100"}}});
        for (name, node, more) in
            [("crowded-a", "node-0", json!({})), ("crowded-b", "node-0", json!({})), ("cheap", "node-1", cost)]
        {
            let placed = with(pod(name, "web"), json!({"spec": {"nodeName": node}}));
            space.create::<Pod>(with(placed, more)).await?;
        }
        let flags = ["--controllers=replicaset-controller", &gate.flag];
        let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
        // Pods on crowded nodes are deleted first only if the ReplicaSet has a controller.
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "web", "controller": true});
        let owned = with(replica_set("web", 3), json!({"metadata": {"ownerReferences": [owner]}}));
        space.create::<ReplicaSet>(owned).await?;
        eventually("the pods are adopted and ready", || async {
            let status = space.get::<ReplicaSet>("web").await?.status.unwrap_or_default();
            ensure!(status.ready_replicas == Some(3), "{status:?}");
            Ok(())
        })
        .await?;
        space.scale::<ReplicaSet>("web", 2).await?;
        let left = eventually("one pod is deleted", || async {
            let left = names(&space.pods("web").await?);
            ensure!(left.len() == 2, "{left:?}");
            Ok(left)
        })
        .await?;
        ensure!(left.iter().any(|name| name == "cheap") != gate.is_on, "{left:?}");
        Ok(())
    })
    .await
}

pub async fn terminating_pods_are_counted_in_statuses(space: Space) -> Result<()> {
    on_and_off(&space, &["DeploymentReplicaSetTerminatingReplicas"], |space, gate| async move {
        let flags = ["--controllers=deployment-controller,replicaset-controller", &gate.flag];
        let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
        let lingering = json!({"spec": {"template": {"metadata": {"annotations": {BEHAVIOUR: TERMINATING}}}}});
        space.create::<Deployment>(with(deployment("web", 1), lingering)).await?;
        let ready = || async {
            let pods = space.pods("web").await?;
            ensure!(pods.len() == 1 && is_ready(&pods[0]), "{pods:?}");
            let status = space.get::<Deployment>("web").await?.status.unwrap_or_default();
            ensure!(status.available_replicas == Some(1), "{status:?}");
            Ok(names(&pods).remove(0))
        };
        let first = eventually("the pod is ready", ready).await?;
        space.delete::<Pod>(&first).await?;
        eventually("its successor is ready", || async {
            let second = ready().await?;
            ensure!(second != first, "it is the same pod");
            Ok(())
        })
        .await?;
        let expected = gate.is_on.then_some(1);
        eventually(format!("terminating pods: {expected:?}"), || async {
            let deployment = space.get::<Deployment>("web").await?.status.unwrap_or_default();
            let sets = space.list::<ReplicaSet>("web").await?;
            let set = sets.first().and_then(|set| set.status.clone()).unwrap_or_default();
            ensure!(set.terminating_replicas == expected, "{set:?}");
            ensure!(deployment.terminating_replicas == expected, "{deployment:?}");
            Ok(())
        })
        .await?;
        space.kubectl(&["delete", "pod", &first, "--force", "--grace-period=0"]).await?;
        Ok(())
    })
    .await
}

pub async fn suspended_job_loses_its_start_time(space: Space) -> Result<()> {
    on_and_off(&space, &["MutableSchedulingDirectivesForSuspendedJobs"], |space, gate| async move {
        let flags = ["--controllers=job-controller", &gate.flag];
        let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
        let containers = json!([{"name": "main", "image": "example.com/image:1"}]);
        let spec = json!({"restartPolicy": "Never", "schedulerName": "none", "containers": containers});
        let job = json!({"metadata": {"name": "work"}, "spec": {"template": {"spec": spec}}});
        space.create::<Job>(job).await?;
        eventually("the Job starts", || async {
            let status = space.get::<Job>("work").await?.status.unwrap_or_default();
            ensure!(status.start_time.is_some() && status.active == Some(1), "{status:?}");
            Ok(())
        })
        .await?;
        space.patch::<Job>("work", json!({"spec": {"suspend": true}})).await?;
        eventually("the Job is suspended", || async {
            let status = space.get::<Job>("work").await?.status.unwrap_or_default();
            let is_suspended = status.conditions.iter().flatten().any(|condition| condition.type_ == "Suspended");
            ensure!(is_suspended && status.active.unwrap_or(0) == 0, "{status:?}");
            ensure!(status.start_time.is_none() == gate.is_on, "{status:?}");
            Ok(())
        })
        .await
    })
    .await
}

pub async fn tolerations_compare_numbers(_: Space) -> Result<()> {
    let gates = ["TaintTolerationComparisonOperators"];
    let flags = vec![super::flag(&gates, true)];
    let bed = Bed::without_accounts(Options { nodes: 1, extra_apiserver_flags: flags, ..Options::default() }).await?;
    let space = Arc::new(bed).space("tolerations").await?;
    let taint = json!({"key": "level", "value": "5", "effect": "NoSchedule"});
    patch_node(&space, "node-0", json!({"spec": {"taints": [taint]}})).await?;
    on_and_off(&space, &gates, |space, gate| async move {
        space.create::<ServiceAccount>(json!({"metadata": {"name": "default"}})).await?;
        let flags = ["--controllers=daemonset-controller", &gate.flag];
        let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
        for (name, limit) in [("above", "3"), ("below", "7")] {
            let toleration = json!({"key": "level", "operator": "Gt", "value": limit, "effect": "NoSchedule"});
            let template =
                with(template(name, "example.com/image:1", &json!({})), json!({"spec": {"tolerations": [toleration]}}));
            let selector = json!({"matchLabels": {"app": name}});
            let spec = json!({"selector": selector, "template": template});
            space.create::<DaemonSet>(json!({"metadata": {"name": name}, "spec": spec})).await?;
            let expected = i32::from(gate.is_on && name == "above");
            eventually(format!("{name} is wanted on {expected} nodes"), || async {
                let status = space.get::<DaemonSet>(name).await?.status.context("it has no status")?;
                ensure!(status.observed_generation == Some(1), "{status:?}");
                ensure!(status.desired_number_scheduled == expected, "{status:?}");
                Ok(())
            })
            .await?;
        }
        Ok(())
    })
    .await
}
