//! Observable behaviour of a ReplicationController: the same as of a ReplicaSet, under its own kind and names.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_ready, names, owner, pod, template, uids};
use cluster_tests::{Faults, Manager, Space, eventually};
use k8s_openapi::api::core::v1::{Pod, ReplicationController, ResourceQuota};
use serde_json::{Value, json};

use crate::robustness::invariants::{only_declared, until_quiet};
use crate::robustness::scenario::Scenario;

pub fn controller(name: &str, replicas: i32) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "selector": {"app": name},
            "template": template(name, "example.com/image:1", &json!({})),
        },
    })
}

/// Waits for a ReplicationController with `replicas` pods, all ready and available, and a status with these numbers.
pub async fn settled(space: &Space, name: &str, replicas: i32) -> Result<ReplicationController> {
    eventually(format!("{name} has {replicas} pods"), || async {
        let controller: ReplicationController = space.get(name).await?;
        let status = controller.status.clone().unwrap_or_default();
        let counts = [
            status.fully_labeled_replicas.unwrap_or(0),
            status.ready_replicas.unwrap_or(0),
            status.available_replicas.unwrap_or(0),
        ];
        ensure!(status.replicas == replicas && counts == [replicas; 3], "status {status:?}");
        ensure!(status.observed_generation == controller.metadata.generation);
        let pods = space.pods(name).await?;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        ensure!([pods.len(), ready] == [usize::try_from(replicas)?; 2], "{ready} ready of {:?}", names(&pods));
        Ok(controller)
    })
    .await
}

pub async fn pods_are_created_deleted_and_reported(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    let made: ReplicationController = space.create(controller("web", 3)).await?;
    settled(&space, "web", 3).await?;
    let pods = space.pods("web").await?;
    for pod in &pods {
        ensure!(
            serde_json::to_value(&pod.metadata.owner_references)?
                == json!([{
                    "apiVersion": "v1", "kind": "ReplicationController", "name": "web", "uid": made.metadata.uid,
                    "controller": true, "blockOwnerDeletion": true,
                }]),
            "owners {:?}",
            pod.metadata.owner_references
        );
    }
    space.kubectl(&["scale", "rc", "web", "--replicas=1"]).await?;
    settled(&space, "web", 1).await?;
    let kept = uids(&space.pods("web").await?);
    ensure!(kept.iter().all(|uid| uids(&pods).contains(uid)), "the remaining pod is a new one");
    eventually("an event is recorded for each pod", || async {
        let events = space.events("web").await?;
        let count = |reason: &str| events.keys().filter(|event| event.starts_with(reason)).count();
        ensure!(count("Normal SuccessfulCreate Created pod: web-") == 3, "{events:?}");
        ensure!(count("Normal SuccessfulDelete Deleted pod: web-") == 2, "{events:?}");
        Ok(())
    })
    .await?;
    until_quiet(&faults).await?;
    manager.stop().await?;
    only_declared(&faults, &["replicationcontroller-controller"])
}

pub async fn orphans_are_adopted_and_unselected_pods_released(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Pod>(pod("orphan", "web")).await?;
    space.create::<ReplicationController>(controller("web", 2)).await?;
    settled(&space, "web", 2).await?;
    ensure!(owner(&space.get::<Pod>("orphan").await?) == "web");
    space.kubectl(&["label", "pod", "orphan", "app=other", "--overwrite"]).await?;
    eventually("the relabelled pod is released and replaced", || async {
        ensure!(owner(&space.get::<Pod>("orphan").await?).is_empty());
        ensure!(space.pods("web").await?.len() == 2);
        Ok(())
    })
    .await?;
    settled(&space, "web", 2).await?;
    Ok(())
}

pub async fn quota_is_reported_until_the_scale_fits(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ResourceQuota>(json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}})).await?;
    // The quota controller does not run: the test writes the status.
    space
        .patch_status::<ResourceQuota>("few", json!({"status": {"hard": {"pods": "2"}, "used": {"pods": "0"}}}))
        .await?;
    space.create::<ReplicationController>(controller("web", 3)).await?;
    eventually("the quota's refusal is in the conditions", || async {
        let controller: ReplicationController = space.get("web").await?;
        let conditions = controller.status.and_then(|status| status.conditions).unwrap_or_default();
        let [failure] = &conditions[..] else { anyhow::bail!("conditions {conditions:?}") };
        ensure!((&*failure.type_, &*failure.status) == ("ReplicaFailure", "True"), "{failure:?}");
        ensure!(failure.reason.as_deref() == Some("FailedCreate"), "{failure:?}");
        let message = failure.message.as_deref().context("no message")?;
        ensure!(message.contains("exceeded quota: few"), "{message}");
        Ok(())
    })
    .await?;
    space.scale::<ReplicationController>("web", 2).await?;
    let fits = settled(&space, "web", 2).await?;
    ensure!(fits.status.and_then(|status| status.conditions).is_none(), "the condition was not removed");
    Ok(())
}

/// Creates 2 pods, scales to 4, and scales to 1.
async fn scenario(space: Space) -> Result<()> {
    space.create::<ReplicationController>(controller("web", 2)).await?;
    settled(&space, "web", 2).await?;
    space.scale::<ReplicationController>("web", 4).await?;
    settled(&space, "web", 4).await?;
    space.scale::<ReplicationController>("web", 1).await?;
    settled(&space, "web", 1).await?;
    Ok(())
}

/// Writes: four creations, three deletions, a status for each of three sizes.
pub const SCENARIO: Scenario = Scenario {
    name: "replicationcontroller",
    flags: &["--controllers=replicationcontroller-controller"],
    kind: "replicationcontrollers",
    run: |space| Box::pin(scenario(space)),
    pods: 4,
    writes: 4 + 3 + 3,
    fails: &[("create pods ", 3), ("update replicationcontrollers/status ", 2), ("delete pods ", 1)],
    ..Scenario::EMPTY
};
