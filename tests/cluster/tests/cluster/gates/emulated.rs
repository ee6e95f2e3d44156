//! Gates that are locked to true, unless an older version is emulated.

use anyhow::{Context as _, Result, ensure};
use cluster_tests::certificates::inline_pair;
use cluster_tests::metrics::Metrics;
use cluster_tests::objects::{pod, with};
use cluster_tests::programs::KCM;
use cluster_tests::{Faults, Manager, QUIET, Space, during, eventually, variants};
use control_plane::Identity;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, HorizontalPodAutoscalerStatus};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimTemplate};
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use super::{flag, refusal};
use crate::process::serving::{Credentials, ManagerProcess, bare_control_plane};
use crate::workloads::deployment::rolled_out;
use crate::workloads::horizontal_pod_autoscaler::{QUICK, autoscaler, busy};

/// Returns flags that set a gate which is locked today, with the emulation of a minor version in which it was not
/// locked.
fn emulated(gate: &str, minor: u16, is_on: bool) -> Vec<String> {
    // When all gates are on, EventedPLEG is on too; it depends on a gate that version 1.35 does not have.
    let unrelated = flag(&["EventedPLEG"], false);
    vec![format!("--emulated-version=1.{minor}"), unrelated, flag(&[gate], is_on)]
}

/// Templates whose claims need a gate: the gate, the last version in which it was not locked, a request, and the
/// message of the event without the gate.
fn optional_requests() -> [(&'static str, u16, Value, &'static str); 2] {
    let class = "gpu.example.com";
    let admin = json!({"name": "one", "exactly": {"deviceClassName": class, "adminAccess": true}});
    let choice = json!([{"name": "large", "deviceClassName": class}, {"name": "small", "deviceClassName": class}]);
    [
        ("DRAAdminAccess", 35, admin, "admin access is requested, but the feature is disabled"),
        (
            "DRAPrioritizedList",
            36,
            json!({"name": "one", "firstAvailable": choice}),
            "template includes a prioritized list of subrequests, but the feature is disabled",
        ),
    ]
}

/// Creates a pod with a claim from a template, and starts the controller with flags. Waits until the claim exists, or
/// until an event reports why it does not.
async fn claim_or_event(space: Space, (request, flags, message): (Value, Vec<String>, Option<&str>)) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(space.bed.client.clone());
    let label = Patch::Merge(json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}));
    namespaces.patch(&space.namespace, &PatchParams::default(), &label).await?;
    let spec = json!({"spec": {"devices": {"requests": [request]}}});
    space.create::<ResourceClaimTemplate>(json!({"metadata": {"name": "devices"}, "spec": spec})).await?;
    let entry = json!([{"name": "all", "resourceClaimTemplateName": "devices"}]);
    let spec = json!({"schedulerName": "none", "resourceClaims": entry});
    space.create::<Pod>(with(pod("web", "web"), json!({"spec": spec}))).await?;
    let flags: Vec<&str> =
        ["--controllers=resourceclaim-controller"].into_iter().chain(flags.iter().map(|flag| &**flag)).collect();
    let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
    let expected = match message {
        Some(message) => (0, vec![format!("Warning FailedResourceClaimCreation PodResourceClaim all: {message}")]),
        None => (1, Vec::new()),
    };
    eventually(format!("claims and events are {expected:?}"), || async {
        let claims = space.list::<ResourceClaim>("").await?.len();
        let events = space.events("web").await?.into_keys().filter(|event| event.contains("FailedResourceClaim"));
        let found = (claims, events.collect::<Vec<_>>());
        ensure!(found == expected, "{found:?}");
        Ok(())
    })
    .await
}

pub async fn claims_with_optional_fields_are_created_unless_an_older_version_is_emulated(space: Space) -> Result<()> {
    let mut cases = Vec::new();
    for (gate, minor, request, message) in optional_requests() {
        cases.push((format!("{gate} on"), (request.clone(), Vec::new(), None)));
        cases.push((format!("{gate} on in 1.{minor}"), (request.clone(), emulated(gate, minor, true), None)));
        cases.push((format!("{gate} off in 1.{minor}"), (request, emulated(gate, minor, false), Some(message))));
    }
    variants(&space, cases, claim_or_event).await
}

async fn status(space: &Space) -> Result<HorizontalPodAutoscalerStatus> {
    space.get::<HorizontalPodAutoscaler>("web").await?.status.context("no status")
}

/// The pods use 54 % of their CPU and the target is 50 %: the difference of 8 % is within the default tolerance of 10
/// %, but not within the autoscaler's own tolerance of 1 %.
async fn scaled_with_tolerance(space: Space, (flags, replicas): (Vec<String>, i32)) -> Result<()> {
    let metrics = Metrics::serve(&space).await?;
    metrics.set(&space, "cpu", "54m");
    space.create::<Deployment>(busy("web", 1)).await?;
    let flags: Vec<&str> = QUICK.iter().copied().chain(flags.iter().map(|flag| &**flag)).collect();
    let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
    rolled_out(&space, "web", 1).await?;
    let target = json!({"type": "Utilization", "averageUtilization": 50});
    let metrics = json!([{"type": "Resource", "resource": {"name": "cpu", "target": target}}]);
    let behavior = json!({"scaleUp": {"tolerance": "0.01"}});
    let spec = json!({"metrics": metrics, "behavior": behavior});
    space.create::<HorizontalPodAutoscaler>(autoscaler("web", spec)).await?;
    let reached = || async {
        let status = status(&space).await?;
        ensure!(status.current_metrics.is_some() && status.desired_replicas == replicas, "{status:?}");
        Ok(())
    };
    eventually(format!("{replicas} pods are desired"), reached).await?;
    if replicas == 1 {
        during(QUIET, "one pod is desired", reached).await?;
    }
    Ok(())
}

pub async fn tolerance_of_an_autoscaler_is_applied_unless_an_older_version_is_emulated(space: Space) -> Result<()> {
    let gate = "HPAConfigurableTolerance";
    let cases = vec![
        ("on".to_owned(), (Vec::new(), 2)),
        ("on in 1.36".to_owned(), (emulated(gate, 36, true), 2)),
        ("off in 1.36".to_owned(), (emulated(gate, 36, false), 1)),
    ];
    variants(&space, cases, scaled_with_tolerance).await
}

pub async fn controllers_of_locked_gates_run_unless_an_older_version_is_emulated(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let admin = Credentials::certificate(inline_pair(&cluster.kubeconfig(Identity::Admin)?)?);
    for (flags, runs) in [(Vec::new(), true), (emulated("SELinuxChangePolicy", 35, false), false)] {
        let others = ["--controllers=selinux-warning-controller,serviceaccount-controller", "--leader-elect=false"];
        let flags = [flags, others.map(str::to_owned).to_vec()].concat();
        let kcm = ManagerProcess::start(&cluster, KCM, &flags).await?;
        let health = kcm.request(&admin, "GET", "/healthz?verbose", "").await?.body;
        ensure!(health.contains("]selinux-warning-controller ok") == runs, "{flags:?}: {health}");
        kcm.terminate().await?;
    }
    for (gate, minor, reason) in [
        ("SELinuxChangePolicy", 37, "feature is locked to true"),
        // Locked in all versions that can be emulated.
        ("MultiCIDRServiceAllocator", 34, "feature is locked to true"),
        ("SeparateTaintEvictionController", 34, "feature is locked to true"),
        // This gate is locked only in a later version, but kcm cannot switch it off in any version.
        ("VolumeAttributesClass", 35, "volumes are always bound and counted by their class"),
    ] {
        let refused = refusal(&cluster, &emulated(gate, minor, false)).await?;
        ensure!(refused.contains(reason), "{gate}: {refused}");
    }
    Ok(())
}
