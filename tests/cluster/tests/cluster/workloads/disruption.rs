//! Observable behaviour of PodDisruptionBudgets: their status, and what may be evicted.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{names, pod, replica_set, with};
use cluster_tests::{Faults, Manager, Space, eventually};
use control_plane::CustomKind;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::EvictParams;
use serde_json::{Value, json};

use crate::robustness::invariants::{only_declared, until_quiet};
use crate::robustness::scenario::Scenario;
use crate::workloads::replicaset::settled;

pub fn budget(app: &str, spec: Value) -> Value {
    with(
        json!({"metadata": {"name": "budget"}, "spec": {"selector": {"matchLabels": {"app": app}}}}),
        json!({"spec": spec}),
    )
}

/// Waits for a status: expected, healthy, desired, allowed pods, and the condition's status and reason.
pub async fn counted(space: &Space, numbers: [i32; 4], condition: (&str, &str)) -> Result<PodDisruptionBudget> {
    eventually(format!("the budget has {numbers:?} {condition:?}"), || async {
        let budget: PodDisruptionBudget = space.get("budget").await?;
        let status = budget.status.clone().context("no status")?;
        let found = [status.expected_pods, status.current_healthy, status.desired_healthy, status.disruptions_allowed];
        ensure!(found == numbers.map(Some), "status {status:?}");
        let conditions = status.conditions.unwrap_or_default();
        let allowed =
            conditions.iter().find(|condition| condition.type_ == "DisruptionAllowed").context("no condition")?;
        ensure!((&*allowed.status, &*allowed.reason) == condition, "{allowed:?}");
        Ok(budget)
    })
    .await
}

pub const SUFFICIENT: (&str, &str) = ("True", "SufficientPods");
pub const INSUFFICIENT: (&str, &str) = ("False", "InsufficientPods");

/// Requests the eviction of a pod; returns whether it was granted.
pub async fn evict(space: &Space, name: &str) -> Result<bool> {
    match space.api::<Pod>().evict(name, &EvictParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 429 => Ok(false),
        Err(error) => Err(error).context("evict"),
    }
}

pub async fn evictions_and_drains_respect_the_budget(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    // The nodes are shared with other tests: only this test's pods may be drained.
    let app = &space.namespace;
    let deployment = with(replica_set(app, 4), json!({"metadata": {"name": "web"}}));
    space.create::<Deployment>(deployment).await?;
    space.create::<PodDisruptionBudget>(budget(app, json!({"maxUnavailable": 0}))).await?;
    counted(&space, [4, 4, 4, 0], INSUFFICIENT).await?;
    let before = space.pods(app).await?;
    let first = &names(&before)[0];
    ensure!(!evict(&space, first).await?, "an eviction that the budget forbids was granted");

    space.patch::<PodDisruptionBudget>("budget", json!({"spec": {"maxUnavailable": "25%"}})).await?;
    counted(&space, [4, 4, 3, 1], SUFFICIENT).await?;
    ensure!(evict(&space, first).await?, "an eviction that the budget allows was refused");
    eventually("the evicted pod is replaced, and no longer in disruptedPods", || async {
        ensure!(!names(&space.pods(app).await?).contains(first));
        let status = space.get::<PodDisruptionBudget>("budget").await?.status.context("no status")?;
        ensure!(status.disrupted_pods.unwrap_or_default().is_empty());
        Ok(())
    })
    .await?;
    counted(&space, [4, 4, 3, 1], SUFFICIENT).await?;

    let busiest = space.pods(app).await?.first().and_then(|pod| pod.spec.clone()?.node_name).context("no node")?;
    let selector = format!("--pod-selector=app={app}");
    let drained = space.kubectl(&["drain", &busiest, &selector, "--ignore-daemonsets", "--timeout=180s"]).await;
    space.kubectl(&["uncordon", &busiest]).await?;
    drained?;
    counted(&space, [4, 4, 3, 1], SUFFICIENT).await?;
    until_quiet(&faults).await?;
    manager.stop().await?;
    only_declared(&faults, &["disruption-controller"])
}

pub async fn uncountable_pods_are_reported_and_cannot_be_evicted(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<PodDisruptionBudget>(budget("web", json!({"maxUnavailable": 1}))).await?;
    counted(&space, [0, 0, 0, 0], INSUFFICIENT).await?;
    space.create::<Pod>(pod("bare", "web")).await?;
    counted(&space, [0, 1, 0, 0], INSUFFICIENT).await?;
    let owned = json!({"metadata": {"ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": "settings", "uid": "6f1e6bd0-5d5c-4a35-9a57-0d1b9e6b3f10",
        "controller": true,
    }]}});
    space.create::<Pod>(with(pod("owned", "web"), owned)).await?;
    counted(&space, [0, 1, 0, 0], ("False", "SyncFailed")).await?;
    eventually("all problems are reported", || async {
        let events = space.events("budget").await?;
        for expected in [
            "Normal NoPods No matching pods found",
            "Warning UnmanagedPods Pods selected by this PodDisruptionBudget (selector: &LabelSelector{MatchLabels:map\
             [string]string{app: web,},MatchExpressions:[]LabelSelectorRequirement{},}) were found to be unmanaged.",
            "Warning CalculateExpectedPodCountFailed Failed to calculate the number of expected pods: configmaps does \
             not implement the scale subresource",
        ] {
            ensure!(events.keys().any(|event| event.starts_with(expected)), "no {expected:?} in {events:?}");
        }
        Ok(())
    })
    .await?;
    // A budget with an absolute number needs no owners and counts all pods.
    space.patch::<PodDisruptionBudget>("budget", json!({"spec": {"maxUnavailable": null, "minAvailable": 1}})).await?;
    counted(&space, [2, 2, 1, 1], SUFFICIENT).await?;
    Ok(())
}

pub async fn custom_resources_with_a_scale_are_counted(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let scale = json!({"scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}});
    let fleets = space.define(CustomKind::new(space.api_group(), "Fleet").with_subresources(scale)).await?;
    let fleet = fleets.create(json!({"metadata": {"name": "fleet"}, "spec": {"replicas": 5}})).await?;
    let controller = with(fleets.reference(&fleet), json!({"controller": true}));
    for name in ["one", "two", "three"] {
        let owner = json!({"metadata": {"ownerReferences": [controller]}});
        space.create::<Pod>(with(pod(name, "web"), owner)).await?;
    }
    space.create::<PodDisruptionBudget>(budget("web", json!({"minAvailable": "40%"}))).await?;
    counted(&space, [5, 3, 2, 1], SUFFICIENT).await?;
    Ok(())
}

pub async fn outdated_disruption_target_is_removed(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<Pod>(with(pod("web", "web"), json!({"spec": {"schedulerName": "none"}}))).await?;
    space
        .patch_status::<Pod>(
            "web",
            json!({"status": {"conditions": [{
                "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m",
                "lastTransitionTime": "2020-01-01T00:00:00Z",
            }]}}),
        )
        .await?;
    eventually("the condition is False", || async {
        let status = space.get::<Pod>("web").await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let target = conditions
            .iter()
            .find(|condition| condition.type_ == "DisruptionTarget")
            .context("no condition DisruptionTarget")?;
        ensure!(target.status == "False" && target.reason.is_none() && target.message.is_none(), "{target:?}");
        Ok(())
    })
    .await?;
    until_quiet(&faults).await
}

/// Creates a budget and its pods, evicts one of them, and changes the budget's number.
async fn scenario(space: Space) -> Result<()> {
    space.create::<PodDisruptionBudget>(budget("web", json!({"minAvailable": "50%"}))).await?;
    counted(&space, [0, 0, 0, 0], INSUFFICIENT).await?;
    space.create::<ReplicaSet>(replica_set("web", 4)).await?;
    counted(&space, [4, 4, 2, 2], SUFFICIENT).await?;
    let first = names(&space.pods("web").await?)[0].clone();
    ensure!(evict(&space, &first).await?, "an eviction that the budget allows was refused");
    eventually("the evicted pod is replaced, and no longer in disruptedPods", || async {
        ensure!(!names(&space.list::<Pod>("web").await?).contains(&first));
        let status = space.get::<PodDisruptionBudget>("budget").await?.status.context("no status")?;
        ensure!(status.disrupted_pods.unwrap_or_default().is_empty());
        Ok(())
    })
    .await?;
    settled(&space, "web", 4).await?;
    counted(&space, [4, 4, 2, 2], SUFFICIENT).await?;
    space.patch::<PodDisruptionBudget>("budget", json!({"spec": {"minAvailable": 4}})).await?;
    counted(&space, [4, 4, 4, 0], INSUFFICIENT).await?;
    Ok(())
}

/// Writes: five pods, a status of the budget for each of four states, and one of the ReplicaSet for each of two.
pub const SCENARIO: Scenario = Scenario {
    name: "disruption",
    flags: &["--controllers=disruption-controller,replicaset-controller"],
    kind: "poddisruptionbudgets",
    run: |space| Box::pin(scenario(space)),
    pods: 5,
    writes: 5 + 4 + 2,
    fails: &[("update poddisruptionbudgets/status ", 1), ("update poddisruptionbudgets/status ", 2)],
    ..Scenario::EMPTY
};
