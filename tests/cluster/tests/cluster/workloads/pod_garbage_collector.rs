//! Pods that no kubelet terminates: finished pods beyond the threshold, pods of a deleted node, and pods that were
//! never bound.

use anyhow::{Result, ensure};
use cluster_tests::objects::{names, phase, pod, with};
use cluster_tests::{Call, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::robustness::invariants::only_declared;
use crate::robustness::scenario::Scenario;

const ALONE: &str = "--controllers=pod-garbage-collector-controller";
const NAME: &str = "pod-garbage-collector-controller";
const FINALIZER: &str = "example.com/keep";

/// Returns a pod with a finalizer.
pub fn kept(name: &str, spec: Value) -> Value {
    with(pod(name, "web"), json!({"metadata": {"finalizers": [FINALIZER]}, "spec": spec}))
}

fn deletions(faults: &Faults) -> usize {
    faults.count(|call| call.verb == Verb::Delete && call.resource == "pods")
}

pub async fn evicted_pods_are_deleted_first_when_too_many_are_finished(space: Space) -> Result<()> {
    for (name, status) in [
        ("a", json!({"phase": "Succeeded"})),
        ("b", json!({"phase": "Failed"})),
        ("c", json!({"phase": "Failed"})),
        ("evicted", json!({"phase": "Failed", "reason": "Evicted"})),
    ] {
        space.create::<Pod>(with(pod(name, "web"), json!({"spec": {"schedulerName": "none"}}))).await?;
        space.patch_status::<Pod>(name, json!({"status": status})).await?;
    }
    space.create::<Pod>(with(pod("pending", "web"), json!({"spec": {"schedulerName": "none"}}))).await?;
    let faults = Faults::default();
    let manager = Manager::start_with(&space, &faults, &[ALONE, "--terminated-pod-gc-threshold=2"]).await?;
    eventually("two finished pods and the pending one are left", || async {
        let left = names(&space.list::<Pod>("web").await?);
        ensure!(left == ["b", "c", "pending"], "left {left:?}");
        Ok(())
    })
    .await?;
    ensure!(faults.writes() == 2, "other writes than one deletion for each: {:?}", faults.requests());
    manager.stop().await?;
    only_declared(&faults, &[NAME])
}

/// Waits until a pod that finalizers keep is marked as failed, and is being deleted without a grace period.
pub async fn ended(space: &Space, name: &str) -> Result<Pod> {
    eventually(format!("{name} is marked as failed and being deleted"), || async {
        let pod: Pod = space.get(name).await?;
        ensure!(phase(&pod) == "Failed", "status {:?}", pod.status);
        ensure!(pod.metadata.deletion_grace_period_seconds == Some(0), "{:?}", pod.metadata);
        Ok(pod)
    })
    .await
}

pub async fn pods_of_a_deleted_node_are_deleted_after_a_delay(space: Space) -> Result<()> {
    space.create::<Pod>(kept("kept", json!({"nodeName": "never-was"}))).await?;
    space.create::<Pod>(with(pod("free", "web"), json!({"spec": {"nodeName": "never-was"}}))).await?;
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    during(QUIET, "no pod is deleted before the delay for missing nodes has passed", || async {
        ensure!(faults.writes() == 0, "{:?}", faults.requests());
        Ok(())
    })
    .await?;
    let orphan = ended(&space, "kept").await?;
    let conditions = orphan.status.and_then(|status| status.conditions).unwrap_or_default();
    let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget");
    ensure!(
        target.is_some_and(|target| target.status == "True"
            && target.reason.as_deref() == Some("DeletionByPodGC")
            && target.message.as_deref() == Some("PodGC: node no longer exists")
            && target.last_transition_time.is_some()),
        "conditions {conditions:?}"
    );
    eventually("the other pod is deleted", || async {
        let left = names(&space.list::<Pod>("web").await?);
        ensure!(left == ["kept"], "left {left:?}");
        Ok(())
    })
    .await?;
    let reads = faults.count(|call| call.verb == Verb::Get && call.resource == "nodes");
    ensure!(reads >= 1, "the node was not read from the API server");
    Ok(())
}

/// A crash between the two writes leaves a pod that is marked as failed; the next manager deletes it, once.
pub async fn unbound_pod_is_deleted_even_after_a_crash(space: Space) -> Result<()> {
    space.create::<Pod>(kept("kept", json!({"schedulerName": "none"}))).await?;
    space.delete::<Pod>("kept").await?;
    let faults = Faults::script([Rule::new(Call::is_object_write, Effect::CrashAfter)]);
    let manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    faults.crashes().await;
    manager.crash().await;
    ensure!(deletions(&faults) == 0 && phase(&space.get::<Pod>("kept").await?) == "Failed");
    let _manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    eventually("the manager deletes the pod", || async {
        ensure!(deletions(&faults) == 1, "{:?}", faults.requests());
        Ok(())
    })
    .await?;
    ended(&space, "kept").await?;
    during(QUIET, "the pod is deleted only once", || async {
        ensure!(faults.writes() == 2, "{:?}", faults.requests());
        Ok(())
    })
    .await?;
    space.patch::<Pod>("kept", json!({"metadata": {"finalizers": null}})).await?;
    eventually("the pod no longer exists", || async {
        ensure!(space.list::<Pod>("web").await?.is_empty());
        Ok(())
    })
    .await
}

/// An unbound pod is deleted when its finalizer is removed; of five finished pods, two are kept.
async fn scenario(space: Space) -> Result<()> {
    space.create::<Pod>(kept("kept", json!({"schedulerName": "none"}))).await?;
    space.delete::<Pod>("kept").await?;
    ended(&space, "kept").await?;
    space.patch::<Pod>("kept", json!({"metadata": {"finalizers": null}})).await?;
    eventually("the pod no longer exists", || async {
        ensure!(space.list::<Pod>("web").await?.is_empty());
        Ok(())
    })
    .await?;
    for name in ["a", "b", "c", "d", "e"] {
        space.create::<Pod>(with(pod(name, "web"), json!({"spec": {"schedulerName": "none"}}))).await?;
        space.patch_status::<Pod>(name, json!({"status": {"phase": "Succeeded"}})).await?;
    }
    eventually("two finished pods are left", || async {
        let left = space.list::<Pod>("web").await?;
        ensure!(left.len() == 2, "left {:?}", names(&left));
        Ok(())
    })
    .await
}

/// Writes: three deletions of pods, all created by the test, and the failed status and the deletion of a fourth one.
pub const SCENARIO: Scenario = Scenario {
    name: "podgc",
    flags: &[ALONE, "--terminated-pod-gc-threshold=2"],
    kind: "pods",
    run: |space| Box::pin(scenario(space)),
    pods: 6,
    writes: 3 + 2,
    fails: &[("delete pods ", 1), ("delete pods ", 3), ("patch pods/status ", 1)],
    ..Scenario::EMPTY
};
