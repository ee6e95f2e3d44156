//! Observable behaviour of HorizontalPodAutoscalers: targets scaled by metrics of every API, conditions and events.

use anyhow::{Context, Result, ensure};
use cluster_tests::metrics::Metrics;
use cluster_tests::objects::{deployment, with};
use cluster_tests::{Call, CustomObjects, Effect, Faults, Manager, Rule, Space, Verb, eventually};
use control_plane::CustomKind;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::robustness::scenario::Scenario;
use crate::workloads::deployment::rolled_out;

/// Flags for short sync periods, without a delay for starting pods.
pub const QUICK: &[&str] = &[
    "--controllers=horizontal-pod-autoscaler-controller,deployment-controller,replicaset-controller",
    "--horizontal-pod-autoscaler-sync-period=200ms",
    "--horizontal-pod-autoscaler-downscale-stabilization=2s",
    "--horizontal-pod-autoscaler-cpu-initialization-period=0s",
    "--horizontal-pod-autoscaler-initial-readiness-delay=0s",
];

/// Returns a Deployment whose pods request CPU.
pub fn busy(name: &str, replicas: i32) -> Value {
    let containers = json!([
        {"name": "main", "image": "example.com/image:1", "resources": {"requests": {"cpu": "100m"}}},
    ]);
    with(deployment(name, replicas), json!({"spec": {"template": {"spec": {"containers": containers}}}}))
}

pub fn autoscaler(name: &str, spec: Value) -> Value {
    let usual = json!({
        "metadata": {"name": name},
        "spec": {"maxReplicas": 5, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}},
    });
    with(usual, json!({"spec": spec}))
}

async fn status(space: &Space, name: &str) -> Result<HorizontalPodAutoscalerStatus> {
    space.get::<HorizontalPodAutoscaler>(name).await?.status.context("no status")
}

/// Returns `<status> <reason>` of a condition.
fn condition_text(status: &HorizontalPodAutoscalerStatus, kind: &str) -> String {
    let conditions = status.conditions.iter().flatten();
    let found = conditions.into_iter().find(|condition| condition.type_ == kind);
    found.map_or_else(String::new, |found| format!("{} {}", found.status, found.reason.as_deref().unwrap_or_default()))
}

pub async fn scaled_to(
    space: &Space,
    name: &str,
    replicas: i32,
    limited: &str,
) -> Result<HorizontalPodAutoscalerStatus> {
    eventually(format!("{name} is at {replicas}, {limited}"), || async {
        let status = status(space, name).await?;
        ensure!(status.desired_replicas == replicas && status.current_replicas == Some(replicas), "{status:?}");
        ensure!(condition_text(&status, "ScalingLimited") == limited, "{status:?}");
        Ok(status)
    })
    .await
}

/// Returns true for writes of the autoscaler controller.
fn is_ours(call: &Call) -> bool {
    call.is_object_write() && call.account == "horizontal-pod-autoscaler"
}

pub async fn kubectl_autoscale_scales_up_and_down(space: Space) -> Result<()> {
    let metrics = Metrics::serve(&space).await?;
    metrics.set(&space, "cpu", "200m");
    space.create::<Deployment>(busy("web", 1)).await?;
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, QUICK).await?;
    space.kubectl(&["autoscale", "deployment", "web", "--cpu=50%", "--min=1", "--max=5"]).await?;
    let status = scaled_to(&space, "web", 5, "True TooManyReplicas").await?;
    ensure!(condition_text(&status, "ScalingActive") == "True ValidMetricFound", "{status:?}");
    ensure!(condition_text(&status, "AbleToScale") == "True ReadyForNewScale", "{status:?}");
    ensure!(status.observed_generation.is_some() && status.last_scale_time.is_some(), "{status:?}");
    let measured = serde_json::to_value(&status.current_metrics)?;
    let resource = json!([{"type": "Resource", "resource": {
        "name": "cpu", "current": {"averageUtilization": 200, "averageValue": "200m"}}}]);
    ensure!(measured == resource, "{measured}");
    let web: Deployment = space.get("web").await?;
    ensure!(web.spec.replicas == Some(5));

    // Without changes nothing is written, and only metrics are read.
    rolled_out(&space, "web", 5).await?;
    let ten_more_syncs = async || {
        let is_measure = |call: &Call| call.group == "metrics.k8s.io";
        let measures = faults.count(is_measure);
        eventually("ten more syncs", || async {
            ensure!(faults.count(is_measure) >= measures + 10);
            Ok(())
        })
        .await
    };
    ten_more_syncs().await?;
    let is_scale_read = |call: &Call| call.verb == Verb::Get && call.resource == "deployments/scale";
    let [written, reads] = [faults.count(is_ours), faults.count(is_scale_read)];
    ten_more_syncs().await?;
    ensure!(faults.count(is_ours) == written, "{} writes without a change", faults.count(is_ours) - written);
    ensure!(
        faults.count(is_scale_read) == reads,
        "{} reads of an unchanged scale",
        faults.count(is_scale_read) - reads
    );

    metrics.set(&space, "cpu", "5m");
    let status = scaled_to(&space, "web", 1, "False DesiredWithinRange").await?;
    ensure!(condition_text(&status, "AbleToScale") == "True ReadyForNewScale", "{status:?}");
    let events = eventually("all events are recorded", || async {
        let events = space.events("web").await?;
        ensure!(
            events.keys().any(|event| event.ends_with("New size: 1; reason: All metrics below target")),
            "{events:?}"
        );
        Ok(events)
    })
    .await?;
    let above =
        "Normal SuccessfulRescale New size: 4; reason: cpu resource utilization (percentage of request) above target";
    ensure!(events.contains_key(above), "{events:?}");
    let refused: Vec<_> =
        faults.requests().into_iter().filter(|request| matches!(request.status, Some(401 | 403))).collect();
    ensure!(refused.is_empty(), "{refused:?}");
    Ok(())
}

pub async fn unmeasurable_target_is_reported(space: Space) -> Result<()> {
    Metrics::serve(&space).await?;
    let _manager = Manager::start_with(&space, &Faults::default(), QUICK).await?;
    space.create::<HorizontalPodAutoscaler>(autoscaler("one", json!({}))).await?;
    eventually("the missing target is reported", || async {
        let status = status(&space, "one").await?;
        ensure!(condition_text(&status, "AbleToScale") == "False FailedGetScale", "{status:?}");
        let events = space.events("one").await?;
        ensure!(events.contains_key("Warning FailedGetScale deployments.apps \"web\" not found"), "{events:?}");
        Ok(())
    })
    .await?;
    // DaemonSets cannot be scaled: the error is the same as upstream's.
    let daemons = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "web"}});
    space.create::<HorizontalPodAutoscaler>(autoscaler("daemons", daemons)).await?;
    eventually("the missing scale is reported", || async {
        let events = space.events("daemons").await?;
        let expected = "Warning FailedGetScale the server could not find the requested resource";
        ensure!(events.contains_key(expected), "{events:?}");
        Ok(())
    })
    .await?;
    space.create::<Deployment>(busy("web", 2)).await?;
    eventually("the missing metric is reported", || async {
        let status = status(&space, "one").await?;
        ensure!(condition_text(&status, "AbleToScale") == "True SucceededGetScale", "{status:?}");
        ensure!(condition_text(&status, "ScalingActive") == "False FailedGetResourceMetric", "{status:?}");
        let conditions = status.conditions.unwrap_or_default();
        let active = conditions
            .iter()
            .find(|condition| condition.type_ == "ScalingActive")
            .context("no condition ScalingActive")?;
        let expected = "the HPA was unable to compute the replica count: failed to get cpu utilization: unable to get \
                        metrics for resource cpu: unable to fetch metrics from resource metrics API: the server could \
                        not find the requested resource (get pods.metrics.k8s.io)";
        ensure!(active.message.as_deref() == Some(expected), "{active:?}");
        Ok(())
    })
    .await?;
    space.create::<HorizontalPodAutoscaler>(autoscaler("two", json!({}))).await?;
    eventually("both autoscalers report that they select the same pods", || async {
        for name in ["one", "two"] {
            let status = status(&space, name).await?;
            ensure!(condition_text(&status, "ScalingActive") == "False AmbiguousSelector", "{status:?}");
        }
        Ok(())
    })
    .await?;
    space.scale::<Deployment>("web", 0).await?;
    eventually("a target at zero is left alone", || async {
        let status = status(&space, "one").await?;
        ensure!(condition_text(&status, "ScalingActive") == "False ScalingDisabled", "{status:?}");
        Ok(())
    })
    .await
}

/// Creates a kind with the scale subresource, and the object `web` with a selector of its pods.
async fn create_fleet(space: &Space) -> Result<CustomObjects> {
    let scale = json!({"scale": {
        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }});
    let fleets = space.define(CustomKind::new(space.api_group(), "Fleet").with_subresources(scale)).await?;
    let status = json!({"replicas": 3, "selector": "app=fleet"});
    fleets.create(json!({"metadata": {"name": "web"}, "spec": {"replicas": 3}, "status": status})).await?;
    Ok(fleets)
}

pub async fn target_of_any_kind_scales_to_zero_and_up_again(space: Space) -> Result<()> {
    let metrics = Metrics::serve(&space).await?;
    metrics.set(&space, "length", "0");
    metrics.set(&space, "depth", "0");
    let fleets = create_fleet(&space).await?;
    let target = json!({"apiVersion": fleets.kind.api_version(), "kind": "Fleet", "name": "web"});
    let spec = json!({
        "minReplicas": 0, "scaleTargetRef": target,
        "metrics": [
            {"type": "External", "external": {
                "metric": {"name": "length", "selector": {"matchLabels": {
                    "scaledobject.keda.sh/name": "web", "scaledobject.keda.sh/queue": "orders"}}},
                "target": {"type": "AverageValue", "averageValue": "10"}}},
            {"type": "Object", "object": {
                "describedObject": target,
                "metric": {"name": "depth"}, "target": {"type": "AverageValue", "averageValue": "1"}}},
        ],
    });
    let _manager = Manager::start_with(&space, &Faults::default(), QUICK).await?;
    space.create::<HorizontalPodAutoscaler>(autoscaler("web", spec)).await?;
    let at = |replicas: i32, zero: &'static str| {
        let (space, fleets) = (space.clone(), fleets.api.clone());
        eventually(format!("the fleet is at {replicas}"), move || {
            let (space, fleets) = (space.clone(), fleets.clone());
            async move {
                let fleet = fleets.get("web").await?;
                ensure!(fleet.data["spec"]["replicas"] == replicas, "{:?}", fleet.data);
                // The test sets the status, as a controller of the custom kind would.
                let scaled = json!({"status": {"replicas": replicas}});
                fleets.patch("web", &PatchParams::default(), &Patch::Merge(&scaled)).await?;
                let status = status(&space, "web").await?;
                ensure!(condition_text(&status, "ScaledToZero") == zero, "{status:?}");
                Ok(())
            }
        })
    };
    at(0, "True ScaledToZero").await?;
    metrics.set(&space, "length", "35");
    at(4, "False NotScaledToZero").await?;
    metrics.set(&space, "depth", "5");
    at(5, "False NotScaledToZero").await
}

/// A missing or invalid selector in a target's scale is reported; then writes of the scale are repeated after conflicts
/// and a refusal.
pub async fn unusable_scales_are_reported_and_conflicts_retried(space: Space) -> Result<()> {
    let metrics = Metrics::serve(&space).await?;
    metrics.set(&space, "length", "35");
    let fleets = create_fleet(&space).await?;
    let target = json!({"apiVersion": fleets.kind.api_version(), "kind": "Fleet", "name": "web"});
    let spec = json!({
        "scaleTargetRef": target,
        "metrics": [{"type": "External", "external": {
            "metric": {"name": "length"}, "target": {"type": "AverageValue", "averageValue": "10"}}}],
    });
    let select = async |selector: &str| {
        let status = json!({"status": {"selector": selector}});
        fleets.api.patch("web", &PatchParams::default(), &Patch::Merge(&status)).await
    };
    select("").await?;
    let is_scale = |call: &Call| call.verb == Verb::Update && call.resource.ends_with("/scale");
    let conflicts = Rule::new(is_scale, Effect::Refuse(409, None)).times(2);
    let faults = Faults::script([conflicts, Rule::new(is_scale, Effect::Refuse(403, None)).nth(3)]);
    let _manager = Manager::start_with(&space, &faults, QUICK).await?;
    space.create::<HorizontalPodAutoscaler>(autoscaler("web", spec)).await?;
    for (selector, event) in [("", "Warning SelectorRequired"), ("a in (", "Warning InvalidSelector")] {
        select(selector).await?;
        eventually(format!("the selector {selector:?} is reported"), || async {
            let status = status(&space, "web").await?;
            ensure!(condition_text(&status, "ScalingActive") == "False InvalidSelector", "{status:?}");
            let events = space.events("web").await?;
            ensure!(events.keys().any(|found| found.starts_with(event)), "{events:?}");
            Ok(())
        })
        .await?;
    }
    ensure!(faults.count(is_scale) == 0, "the target was scaled without a selector");
    select("app=fleet").await?;
    eventually("the fleet is scaled in spite of conflicts", || async {
        let fleet = fleets.api.get("web").await?;
        ensure!(fleet.data["spec"]["replicas"] == 4, "{:?}", fleet.data);
        let events = space.events("web").await?;
        ensure!(events.keys().any(|found| found.starts_with("Warning FailedRescale")), "{events:?}");
        Ok(())
    })
    .await?;
    eventually("the last write has its response", || async {
        let writes = faults.requests().into_iter().filter(|request| is_scale(&request.call));
        let codes: Vec<_> = writes.map(|request| request.status).collect();
        ensure!(codes == [Some(409), Some(409), Some(403), Some(200)], "{codes:?}");
        Ok(())
    })
    .await
}

/// Scales up and down.
async fn scenario(space: Space) -> Result<()> {
    let metrics = Metrics::serve(&space).await?;
    metrics.set(&space, "cpu", "200m");
    space.create::<Deployment>(busy("web", 1)).await?;
    space.kubectl(&["autoscale", "deployment", "web", "--cpu=50%", "--min=1", "--max=4"]).await?;
    scaled_to(&space, "web", 4, "True TooManyReplicas").await?;
    rolled_out(&space, "web", 4).await?;
    metrics.set(&space, "cpu", "5m");
    scaled_to(&space, "web", 1, "False DesiredWithinRange").await?;
    rolled_out(&space, "web", 1).await?;
    Ok(())
}

/// Scaling up and scaling down each take a write of the scale and one of the status; Deployment and ReplicaSet follow
/// with four pods.
pub const SCENARIO: Scenario = Scenario {
    name: "podautoscaler",
    flags: QUICK,
    kind: "horizontalpodautoscalers",
    run: |space| Box::pin(scenario(space)),
    pods: 4,
    writes: 4 + 4 + 3 + 4,
    fails: &[
        ("update deployments/scale ", 1),
        ("update deployments/scale ", 2),
        ("update horizontalpodautoscalers/status ", 1),
    ],
    ..Scenario::EMPTY
};
