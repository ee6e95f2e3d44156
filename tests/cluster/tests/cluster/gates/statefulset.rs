//! Gates of StatefulSets.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::objects::with;
use cluster_tests::{Bed, Faults, Manager, QUIET, Space, during, eventually};
use control_plane::Options;
use control_plane::behaviour::{BEHAVIOUR, UNREADY};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{Gate, on_and_off};
use crate::workloads::statefulset::{settled, stateful_set};

async fn start(space: &Space, gate: &Gate) -> Result<Manager> {
    Manager::start_with(space, &Faults::default(), &["--controllers=statefulset-controller", &gate.flag]).await
}

/// Gives a StatefulSet a template whose pods never become ready.
async fn break_template(space: &Space) -> Result<()> {
    let annotations = json!({BEHAVIOUR: UNREADY});
    let template = json!({"metadata": {"annotations": annotations}});
    space.patch::<StatefulSet>("web", json!({"spec": {"template": template}})).await?;
    Ok(())
}

/// Returns the number of pods with the broken template.
async fn broken_pods(space: &Space) -> Result<usize> {
    let is_broken = |pod: &&Pod| pod.annotations().contains_key(BEHAVIOUR);
    Ok(space.pods("web").await?.iter().filter(is_broken).count())
}

/// Waits until this number of pods has the broken template, and checks that the number stays the same.
async fn stops_at(space: &Space, expected: usize) -> Result<()> {
    let reached = || async {
        let count = broken_pods(space).await?;
        ensure!(count == expected, "{count} pods are updated");
        Ok(())
    };
    eventually(format!("{expected} pods are updated"), reached).await?;
    during(QUIET, format!("{expected} pods are updated"), reached).await
}

pub async fn update_takes_as_many_pods_as_may_be_unavailable(space: Space) -> Result<()> {
    on_and_off(&space, &["MaxUnavailableStatefulSet"], |space, gate| async move {
        let _manager = start(&space, &gate).await?;
        let strategy = json!({"rollingUpdate": {"maxUnavailable": 2}});
        // Otherwise the second pod would be created only when the first one is ready.
        let spec = json!({"updateStrategy": strategy, "podManagementPolicy": "Parallel"});
        let set = with(stateful_set("web", 3), json!({"spec": spec}));
        space.create::<StatefulSet>(set).await?;
        settled(&space, "web", 3, 1).await?;
        break_template(&space).await?;
        stops_at(&space, if gate.is_on { 2 } else { 1 }).await
    })
    .await
}

/// Without the gate, nothing is done for a StatefulSet with that strategy.
pub async fn recreation_updates_all_pods_together(_: Space) -> Result<()> {
    let gates = ["StatefulSetRecreateStrategy"];
    let flags = vec![super::flag(&gates, true)];
    let bed = Bed::without_accounts(Options { nodes: 1, extra_apiserver_flags: flags, ..Options::default() }).await?;
    let space = Arc::new(bed).space("recreate").await?;
    on_and_off(&space, &gates, |space, gate| async move {
        space.create::<ServiceAccount>(json!({"metadata": {"name": "default"}})).await?;
        let _manager = start(&space, &gate).await?;
        let spec = json!({"podManagementPolicy": "Parallel"});
        space.create::<StatefulSet>(with(stateful_set("web", 2), json!({"spec": spec}))).await?;
        settled(&space, "web", 2, 1).await?;
        let strategy = json!({"type": "Recreate", "rollingUpdate": null});
        space.patch::<StatefulSet>("web", json!({"spec": {"updateStrategy": strategy}})).await?;
        break_template(&space).await?;
        stops_at(&space, if gate.is_on { 2 } else { 0 }).await
    })
    .await
}

/// A revision with another serialization, from an older version of Kubernetes without one of the defaults.
pub async fn revision_in_another_form_is_used(space: Space) -> Result<()> {
    on_and_off(&space, &["StatefulSetSemanticRevisionComparison"], |space, gate| async move {
        let manager = start(&space, &gate).await?;
        space.create::<StatefulSet>(stateful_set("web", 0)).await?;
        let own = settled(&space, "web", 0, 1).await?.status.and_then(|status| status.update_revision);
        let own = own.context("no update revision")?;
        manager.stop().await?;
        let revision: ControllerRevision = space.get(&own).await?;
        let mut older = serde_json::to_value(&revision)?;
        older["metadata"] = json!({
            "name": "older", "labels": revision.labels(), "ownerReferences": revision.owner_references(),
        });
        let default = older["data"]["spec"]["template"]["spec"].as_object_mut().context("no pod spec")?;
        ensure!(default.remove("dnsPolicy") == Some(Value::from("ClusterFirst")), "{default:?}");
        space.create::<ControllerRevision>(older).await?;
        space.delete::<ControllerRevision>(&own).await?;
        let _manager = start(&space, &gate).await?;
        let scaled = space.patch::<StatefulSet>("web", json!({"spec": {"replicas": 1}})).await?;
        eventually("the update revision is found", || async {
            let status = space.get::<StatefulSet>("web").await?.status.unwrap_or_default();
            ensure!(status.observed_generation == scaled.metadata.generation, "{status:?}");
            let revision = status.update_revision.clone().unwrap_or_default();
            ensure!((revision == "older") == gate.is_on, "{status:?}");
            Ok(())
        })
        .await
    })
    .await
}
