//! Observable behaviour when devices get taints: evicted pods, pods that tolerate the taint, and the status of rules.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_active, is_ready, pod, with};
use cluster_tests::{Bed, Call, Faults, Manager, QUIET, Space, during, eventually};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceSlice};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::robustness::invariants::only_declared;
use crate::robustness::scenario::Scenario;
use crate::upstream::manager::{UPSTREAM, start_upstream};

const CONTROLLER: &str = "device-taint-eviction-controller";
const ALONE: &str = "--controllers=device-taint-eviction-controller";

/// Keeps a pod for inspection after it was deleted.
const HOLD: &str = "example.com/hold";

/// Returns the name of the test's driver.
fn driver(space: &Space) -> String {
    format!("{}.example.com", space.namespace)
}

/// Returns the devices of a slice, with their taints.
fn devices_with_taints(devices: &[(&str, Value)]) -> Value {
    devices.iter().map(|(name, taints)| json!({"name": name, "taints": taints})).collect()
}

async fn create_slice(space: &Space, devices: &[(&str, Value)]) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(space.bed.client.clone());
    let object = json!({
        "metadata": {"name": space.namespace},
        "spec": {
            "driver": driver(space), "allNodes": true, "devices": devices_with_taints(devices),
            "pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1},
        },
    });
    slices.create(&PostParams::default(), &serde_json::from_value(object)?).await.context("create a slice")?;
    Ok(())
}

/// Publishes these devices, with their taints, instead of those of the slice.
pub async fn publish(space: &Space, devices: &[(&str, Value)]) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(space.bed.client.clone());
    let patch = Patch::Merge(json!({"spec": {"devices": devices_with_taints(devices)}}));
    slices.patch(&space.namespace, &PatchParams::default(), &patch).await.context("patch the slice")?;
    Ok(())
}

pub fn no_execute() -> Value {
    json!([{"key": "example.com/broken", "effect": "NoExecute"}])
}

/// Creates a pod whose claim has a device, in the state that the scheduler and the driver produce; waits until it runs.
async fn create_pod_with_device(space: &Space, name: &str, device: &str, tolerations: Value) -> Result<Pod> {
    let requests = json!([{"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com"}}]);
    space
        .create::<ResourceClaim>(json!({"metadata": {"name": name}, "spec": {"devices": {"requests": requests}}}))
        .await?;
    let bound = json!({
        "metadata": {"finalizers": [HOLD]},
        "spec": {"nodeName": "node-0", "resourceClaims": [{"name": "gpu", "resourceClaimName": name}]},
    });
    let created: Pod = space.create(with(pod(name, "web"), bound)).await?;
    let result = json!({
        "request": "gpu", "driver": driver(space), "pool": "pool", "device": device, "tolerations": tolerations,
    });
    let consumer = json!({"resource": "pods", "name": name, "uid": created.uid()});
    let status = json!({"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": [consumer]}});
    space.patch_status::<ResourceClaim>(name, status).await?;
    eventually(format!("{name} runs"), || async {
        let pod: Pod = space.get(name).await?;
        ensure!(is_ready(&pod), "{:?}", pod.status);
        Ok(pod)
    })
    .await
}

fn tolerating(seconds: Option<i64>) -> Value {
    let mut toleration = json!({"operator": "Exists", "effect": "NoExecute"});
    if let Some(seconds) = seconds {
        toleration["tolerationSeconds"] = seconds.into();
    }
    json!([toleration])
}

/// Waits until a pod is being deleted; its finalizer keeps it.
async fn until_evicted(space: &Space, name: &str) -> Result<Pod> {
    eventually(format!("{name} is evicted"), || async {
        let pod: Pod = space.get(name).await?;
        ensure!(pod.metadata.deletion_timestamp.is_some(), "it is not being deleted");
        Ok(pod)
    })
    .await
}

async fn until_event(space: &Space, name: &str, event: &str) -> Result<()> {
    eventually(format!("{name}: {event}"), || async {
        let events = space.events(name).await?;
        ensure!(events.contains_key(event), "{events:?}");
        Ok(())
    })
    .await
}

async fn release(space: &Space, names: &[&str]) -> Result<()> {
    for name in names {
        space.patch::<Pod>(name, json!({"metadata": {"finalizers": null}})).await?;
    }
    Ok(())
}

pub async fn pods_that_do_not_tolerate_a_device_taint_are_evicted(space: Space) -> Result<()> {
    create_slice(&space, &[("a", json!([])), ("b", json!([])), ("c", json!([]))]).await?;
    create_pod_with_device(&space, "tolerates-nothing", "a", json!([])).await?;
    create_pod_with_device(&space, "tolerates-all", "a", tolerating(None)).await?;
    create_pod_with_device(&space, "elsewhere", "b", json!([])).await?;
    create_pod_with_device(&space, "tolerates-long", "c", tolerating(Some(600))).await?;
    let faults = Faults::default();
    let manager = Manager::start_with(&space, &faults, &[ALONE]).await?;
    publish(&space, &[("a", no_execute()), ("b", json!([])), ("c", no_execute())]).await?;
    let evicted_pod = until_evicted(&space, "tolerates-nothing").await?;
    let conditions = evicted_pod.status.and_then(|status| status.conditions).unwrap_or_default();
    let target =
        conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").context("no DisruptionTarget")?;
    let types: Vec<&str> = conditions.iter().map(|condition| &*condition.type_).collect();
    ensure!(types.len() > 1 && types.last() == Some(&"DisruptionTarget"), "a new condition is the last one: {types:?}");
    ensure!(target.reason.as_deref() == Some("DeletionByDeviceTaintManager"), "{target:?}");
    ensure!(target.message.as_deref() == Some("Device Taint manager: deleting due to NoExecute taint"), "{target:?}");
    until_event(&space, "tolerates-nothing", "Normal DeviceTaintManagerEviction Marking for deletion").await?;

    publish(&space, &[("a", no_execute()), ("b", json!([])), ("c", json!([]))]).await?;
    until_event(&space, "tolerates-long", "Normal DeviceTaintManagerEviction Cancelling deletion").await?;
    during(QUIET, "the other pods stay", || async {
        for name in ["tolerates-all", "elsewhere", "tolerates-long"] {
            ensure!(is_active(&space.get(name).await?), "{name} was evicted");
        }
        Ok(())
    })
    .await?;
    ensure!(faults.count(Call::is_object_write) == 2, "a condition and a deletion: {:?}", faults.requests());
    manager.stop().await?;
    release(&space, &["tolerates-nothing", "tolerates-all", "elsewhere", "tolerates-long"]).await?;
    only_declared(&faults, &[CONTROLLER])
}

pub async fn eviction_delay_continues_after_a_restart(space: Space) -> Result<()> {
    create_slice(&space, &[("a", json!([]))]).await?;
    create_pod_with_device(&space, "web", "a", tolerating(Some(20))).await?;
    let first = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    let tainted = Timestamp::now();
    publish(&space, &[("a", no_execute())]).await?;
    during(QUIET, "the pod is not evicted before its toleration expires", || async {
        ensure!(is_active(&space.get("web").await?), "it was evicted too early");
        Ok(())
    })
    .await?;
    first.crash().await;
    let _second = Manager::start_with(&space, &Faults::default(), &[ALONE]).await?;
    let evicted_pod = until_evicted(&space, "web").await?;
    // The deletion timestamp is the time of the request plus a grace period of thirty seconds.
    let grace = evicted_pod.metadata.deletion_grace_period_seconds.unwrap_or_default();
    let requested_at = evicted_pod.metadata.deletion_timestamp.context("not deleted")?.0.as_second() - grace;
    let after = requested_at - tainted.as_second();
    ensure!(after >= 19, "the pod was evicted after {after} s");
    release(&space, &["web"]).await
}

/// Creates two pods, taints their device, and waits until both are evicted.
async fn evict_two_pods(space: Space) -> Result<()> {
    create_slice(&space, &[("a", json!([]))]).await?;
    for name in ["one", "two"] {
        create_pod_with_device(&space, name, "a", json!([])).await?;
    }
    publish(&space, &[("a", no_execute())]).await?;
    for name in ["one", "two"] {
        until_evicted(&space, name).await?;
    }
    Ok(())
}

/// Deletes cluster-wide objects, and finalizers that would block the deletion of the namespace.
async fn clear(space: Space) -> Result<()> {
    let slices: Api<ResourceSlice> = Api::all(space.bed.client.clone());
    slices.delete(&space.namespace, &DeleteParams::default()).await.context("delete the slice")?;
    release(&space, &["one", "two"]).await
}

/// Writes: two conditions and two deletions.
pub const SCENARIO: Scenario = Scenario {
    name: "devices",
    flags: &[ALONE],
    kind: "resourceslices",
    run: |space| Box::pin(evict_two_pods(space)),
    clear: |space| Box::pin(clear(space)),
    pods: 2,
    writes: 4,
    fails: &[("patch pods/status ", 1), ("delete pods ", 2)],
    ..Scenario::EMPTY
};

fn rules(space: &Space) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("resource.k8s.io", "v1", "DeviceTaintRule"));
    Api::all_with(space.bed.client.clone(), &kind)
}

/// Creates a rule for one device of the driver, or for all.
async fn create_rule(space: &Space, name: &str, device: Option<&str>, effect: &str) -> Result<()> {
    let rule = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceTaintRule", "metadata": {"name": name},
        "spec": {
            "deviceSelector": {"driver": driver(space), "device": device},
            "taint": {"key": "example.com/broken", "effect": effect},
        },
    });
    rules(space).create(&PostParams::default(), &serde_json::from_value(rule)?).await.context("create a rule")?;
    Ok(())
}

/// Waits until a rule's status for its current generation has this condition.
async fn until_condition(space: &Space, rule: &str, status: &str, reason: &str, message: &str) -> Result<()> {
    eventually(format!("the rule has the condition {reason} {message}"), || async {
        let rule = rules(space).get(rule).await?;
        let condition = &rule.data["status"]["conditions"][0];
        ensure!(condition["type"] == "EvictionInProgress" && condition["status"] == status, "{condition}");
        ensure!(condition["reason"] == reason && condition["message"] == message, "{condition}");
        ensure!(condition["observedGeneration"] == json!(rule.metadata.generation), "{condition}");
        Ok(())
    })
    .await
}

/// Rules are cluster-wide, so this needs a separate control plane.
pub async fn taint_rule_reports_planned_and_executed_evictions(_: Space) -> Result<()> {
    let space = Bed::start().await?.space("rules").await?;
    create_slice(&space, &[("a", json!([])), ("b", json!([]))]).await?;
    create_pod_with_device(&space, "web", "a", json!([])).await?;
    create_pod_with_device(&space, "tolerates-all", "b", tolerating(None)).await?;
    let faults = Faults::default();
    let manager = Manager::start_cluster_wide(&space, &faults, &[ALONE]).await?;
    create_rule(&space, "broken", None, "None").await?;
    let would = "2 published devices selected. 2 allocated devices selected. 1 pod would be evicted in 1 namespace if the \
                 effect was NoExecute. This information will not be updated again. Recreate the DeviceTaintRule to trigger \
                 an update.";
    until_condition(&space, "broken", "False", "NoEffect", would).await?;
    during(QUIET, "no pod is evicted", || async {
        ensure!(is_active(&space.get("web").await?), "it was evicted");
        Ok(())
    })
    .await?;
    let patch = Patch::Merge(json!({"spec": {"taint": {"effect": "NoExecute"}}}));
    rules(&space).patch("broken", &PatchParams::default(), &patch).await.context("patch the rule")?;
    until_evicted(&space, "web").await?;
    until_condition(&space, "broken", "False", "Completed", "1 pod evicted since starting the controller.").await?;
    ensure!(is_active(&space.get("tolerates-all").await?), "a pod that tolerates the taint was evicted");
    manager.stop().await?;
    release(&space, &["web", "tolerates-all"]).await?;
    only_declared(&faults, &[CONTROLLER])
}

/// An eviction delay that begins under one manager ends under the other, in both directions.
pub async fn evictions_continue_under_the_other_manager(_: Space) -> Result<()> {
    let space = Bed::start().await?.space("takeover").await?;
    create_slice(&space, &[("a", json!([])), ("b", json!([]))]).await?;
    for (name, device) in [("one", "a"), ("two", "b")] {
        create_pod_with_device(&space, name, device, tolerating(Some(20))).await?;
    }
    let (begun, one) = ("PodsPendingEviction", "1 pod needs to be evicted in 1 namespace.");
    start_upstream(&space.bed.cluster, CONTROLLER, &[])?;
    create_rule(&space, "first", Some("a"), "NoExecute").await?;
    until_condition(&space, "first", "True", begun, one).await?;
    space.bed.cluster.kill(UPSTREAM)?;
    let manager = Manager::start_cluster_wide(&space, &Faults::default(), &[ALONE]).await?;
    until_evicted(&space, "one").await.context("from upstream to ours")?;
    until_condition(&space, "first", "False", "Completed", "1 pod evicted since starting the controller.").await?;
    create_rule(&space, "second", Some("b"), "NoExecute").await?;
    until_condition(&space, "second", "True", begun, one).await?;
    manager.crash().await;
    start_upstream(&space.bed.cluster, CONTROLLER, &[])?;
    until_evicted(&space, "two").await.context("from ours to upstream")?;
    release(&space, &["one", "two"]).await
}
