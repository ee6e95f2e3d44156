//! Gates of quotas and autoscalers.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::objects::{pod, with};
use cluster_tests::{Bed, Faults, Manager, QUIET, Space, during, eventually};
use control_plane::Options;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::{Gate, on_and_off};
use crate::workloads::horizontal_pod_autoscaler::{QUICK, autoscaler, busy};

/// Creates a pod that no scheduler places, with `resources` of the pod and `of_container` of its container.
async fn create_pod(space: &Space, resources: &Value, of_container: &Value) -> Result<()> {
    let containers = json!([{"name": "main", "image": "example.com/image:1", "resources": of_container}]);
    let spec = json!({"schedulerName": "none", "resources": resources, "containers": containers});
    space.create::<Pod>(with(pod("counted", "web"), json!({"spec": spec}))).await?;
    Ok(())
}

/// Creates a quota, starts its controller and waits until the quota's usage is as expected.
async fn check_quota_use(space: &Space, gate: &Gate, spec: Value, resource: &str, expected: &str) -> Result<()> {
    space.create::<ResourceQuota>(json!({"metadata": {"name": "quota"}, "spec": spec})).await?;
    let flags = ["--controllers=resourcequota-controller", &gate.flag];
    let _manager = Manager::start_with(space, &Faults::default(), &flags).await?;
    eventually(format!("{resource} is {expected}"), || async {
        let status = space.get::<ResourceQuota>("quota").await?.status.unwrap_or_default();
        let used: BTreeMap<String, Quantity> = status.used.unwrap_or_default();
        ensure!(used.get(resource).is_some_and(|used| used.0 == expected), "{used:?}");
        Ok(())
    })
    .await
}

/// All gates that depend on PodLevelResources are switched on and off together with it.
pub async fn resources_of_a_pod_itself_are_counted_in_quotas(space: Space) -> Result<()> {
    let gates = [
        "PodLevelResources",
        "PodLevelResourcesFixDefaulting",
        "PodLevelResourcesFixKubeletQOSClass",
        "InPlacePodLevelResourcesVerticalScaling",
        "PodLevelResourceManagers",
    ];
    on_and_off(&space, &gates, |space, gate| async move {
        let requests = |cpu: &str| json!({"requests": {"cpu": cpu}});
        create_pod(&space, &requests("2"), &requests("100m")).await?;
        let expected = if gate.is_on { "2" } else { "100m" };
        check_quota_use(&space, &gate, json!({"hard": {"requests.cpu": "10"}}), "requests.cpu", expected).await
    })
    .await
}

/// A pod without a QoS class in its status cannot be created by requests. It is written to etcd, as an old API server
/// would have stored it.
pub async fn missing_class_of_a_pod_follows_its_resources(_: Space) -> Result<()> {
    let flags = ["--storage-media-type=application/json", "--disable-admission-plugins=ServiceAccount"];
    let extra_apiserver_flags = flags.map(str::to_owned).to_vec();
    let options = Options { kwok: false, scheduler: false, extra_apiserver_flags, ..Options::default() };
    let bed = Arc::new(Bed::without_accounts(options).await?);
    let space = bed.space("classes").await?;
    on_and_off(&space, &["PodLevelResourcesFixKubeletQOSClass"], |space, gate| async move {
        create_pod(&space, &Value::Null, &json!({"requests": {"cpu": "100m"}})).await?;
        let key = format!("/registry/pods/{}/counted", space.namespace);
        let edit = |pod: &mut Value| {
            pod["spec"]["resources"] = json!({});
            pod["status"]["qosClass"] = Value::Null;
        };
        space.bed.cluster.edit_stored(&key, edit).await?;
        eventually("the pod has no class", || async {
            let pod = space.get::<Pod>("counted").await?;
            let has_resources = pod.spec.is_some_and(|spec| spec.resources.is_some());
            let class = pod.status.and_then(|status| status.qos_class);
            ensure!(has_resources && class.is_none(), "{class:?}, pod-level resources: {has_resources}");
            Ok(())
        })
        .await?;
        // With the gate, the empty resources of the pod are ignored, and those of its container make it Burstable.
        // Without the gate, it is BestEffort.
        let spec = json!({"hard": {"pods": "10"}, "scopes": ["BestEffort"]});
        check_quota_use(&space, &gate, spec, "pods", if gate.is_on { "0" } else { "1" }).await
    })
    .await
}

async fn status(space: &Space, name: &str) -> Result<HorizontalPodAutoscalerStatus> {
    space.get::<HorizontalPodAutoscaler>(name).await?.status.context("no status")
}

/// Returns the reason and the message of the condition ScalingActive.
fn scaling_active(status: &HorizontalPodAutoscalerStatus) -> Result<(String, String)> {
    let conditions = status.conditions.iter().flatten();
    let found = conditions.into_iter().find(|condition| condition.type_ == "ScalingActive");
    let found = found.with_context(|| format!("no condition: {status:?}"))?;
    Ok((found.reason.clone().unwrap_or_default(), found.message.clone().unwrap_or_default()))
}

pub async fn observed_generation_of_an_autoscaler_is_written(space: Space) -> Result<()> {
    on_and_off(&space, &["HPAGeneration"], |space, gate| async move {
        let flags = [QUICK, &[&gate.flag]].concat();
        let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
        space.create::<Deployment>(busy("web", 1)).await?;
        space.create::<HorizontalPodAutoscaler>(autoscaler("web", json!({}))).await?;
        eventually("the metrics were requested", || async {
            let status = status(&space, "web").await?;
            scaling_active(&status)?;
            ensure!(status.observed_generation == gate.is_on.then_some(1), "{status:?}");
            Ok(())
        })
        .await
    })
    .await
}

pub async fn autoscalers_of_the_same_pods_are_named(space: Space) -> Result<()> {
    on_and_off(&space, &["HPAOptimizedSelectorStore"], |space, gate| async move {
        space.create::<Deployment>(busy("web", 1)).await?;
        let all = ["first", "second", "third"];
        for name in all {
            space.create::<HorizontalPodAutoscaler>(autoscaler(name, json!({}))).await?;
        }
        let flags = [QUICK, &[&gate.flag]].concat();
        let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
        let expected = if gate.is_on { 2 } else { 3 };
        let named = || async {
            let (reason, message) = scaling_active(&status(&space, "first").await?)?;
            let count = all.iter().filter(|name| message.contains(&format!("{{{name} "))).count();
            ensure!(reason == "AmbiguousSelector" && count == expected, "{reason}: {message}");
            Ok(())
        };
        eventually(format!("{expected} of them are named"), named).await?;
        during(QUIET, format!("{expected} of them are named"), named).await
    })
    .await
}

/// The condition reports that the autoscaler itself has scaled to zero.
pub async fn autoscaler_scales_back_from_zero(space: Space) -> Result<()> {
    on_and_off(&space, &["HPAScaleToZero"], |space, gate| async move {
        space.create::<Deployment>(busy("web", 0)).await?;
        let target = json!({"type": "AverageValue", "averageValue": "1"});
        let external = json!({"metric": {"name": "queue-length"}, "target": target});
        let metrics = json!([{"type": "External", "external": external}]);
        let spec = json!({"minReplicas": 0, "metrics": metrics});
        space.create::<HorizontalPodAutoscaler>(autoscaler("web", spec)).await?;
        let scaled = json!([{"type": "ScaledToZero", "status": "True", "reason": "ScaledToZero"}]);
        let zero = json!({"status": {"conditions": scaled, "desiredReplicas": 0, "currentMetrics": null}});
        space.patch_status::<HorizontalPodAutoscaler>("web", zero).await?;
        let flags = [QUICK, &[&gate.flag]].concat();
        let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
        eventually("its status is written", || async {
            let (reason, message) = scaling_active(&status(&space, "web").await?)?;
            ensure!((reason == "ScalingDisabled") != gate.is_on, "{reason}: {message}");
            Ok(())
        })
        .await
    })
    .await
}
