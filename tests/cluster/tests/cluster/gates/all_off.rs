//! Rollouts with all alpha and beta gates off, and the metric of gates with all of them on.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::certificates::inline_pair;
use cluster_tests::objects::deployment;
use cluster_tests::programs::KCM;
use cluster_tests::{Bed, Space};
use control_plane::{ControlPlane, Identity, Options};
use k8s_openapi::api::apps::v1::Deployment;
use serde_json::json;

use super::flag;
use crate::process::serving::{Credentials, ManagerProcess, bare_control_plane};
use crate::workloads::deployment::rolled_out;

const ALL: &[&str] = &["AllAlpha", "AllBeta"];

/// Alpha and beta gates that are on regardless of the flags.
const ALWAYS_ON: &[&str] = &[
    "AtomicFIFO",
    "ClientsAllowCARotation",
    "ClientsAllowTLSCacheGC",
    "ContextualLogging",
    "ControllerManagerReleaseLeaderElectionLockOnExit",
    "InOrderInformersBatchProcess",
    "StaleControllerConsistencyDaemonSet",
    "StaleControllerConsistencyHPA",
    "StaleControllerConsistencyJob",
    "StaleControllerConsistencyReplicaSet",
    "StaleControllerConsistencyStatefulSet",
    "UnlockWhileProcessingFIFO",
];

/// Alpha and beta gates that are off regardless of the flags.
const ALWAYS_OFF: &[&str] = &["CBORServingAndStorage", "ClientsAllowCBOR", "ClientsPreferCBOR"];

/// Starts kcm with these controllers, and with all alpha and beta gates at one value.
async fn start(cluster: &ControlPlane, controllers: &str, is_on: bool) -> Result<ManagerProcess> {
    let flags = [flag(ALL, is_on), format!("--controllers={controllers}"), "--leader-elect=false".to_owned()];
    ManagerProcess::start(cluster, KCM, &flags).await
}

/// Returns the alpha and beta gates with this value in the manager's metrics.
async fn reported(kcm: &ManagerProcess, cluster: &ControlPlane, is_on: bool) -> Result<BTreeSet<String>> {
    let admin = Credentials::certificate(inline_pair(&cluster.kubeconfig(Identity::Admin)?)?);
    let metrics = kcm.request(&admin, "GET", "/metrics", "").await?.body;
    let mut gates = BTreeSet::new();
    for line in metrics.lines().filter(|line| line.starts_with("kubernetes_feature_enabled{")) {
        let (name, rest) = line.split_once("name=\"").and_then(|(_, rest)| rest.split_once('"')).context("no name")?;
        let is_of_stage = rest.contains("\"ALPHA\"") || rest.contains("\"BETA\"");
        let value: f64 = line.rsplit(' ').next().unwrap_or_default().parse().with_context(|| line.to_owned())?;
        if is_of_stage && (value == 1.0) == is_on {
            gates.insert(name.to_owned());
        }
    }
    Ok(gates)
}

fn owned(gates: &[&str]) -> BTreeSet<String> {
    gates.iter().map(|gate| (*gate).to_owned()).collect()
}

pub async fn deployment_is_rolled_out_without_alpha_and_beta_gates(_: Space) -> Result<()> {
    let bed = Arc::new(Bed::without_accounts(Options { nodes: 1, ..Options::default() }).await?);
    let space = bed.space("off").await?;
    let controllers = "deployment-controller,replicaset-controller,serviceaccount-controller";
    let kcm = start(&bed.cluster, controllers, false).await?;
    space.create::<Deployment>(deployment("web", 2)).await?;
    rolled_out(&space, "web", 2).await?;
    let template = json!({"metadata": {"annotations": {"example.com/change": "1"}}});
    space.patch::<Deployment>("web", json!({"spec": {"template": template}})).await?;
    let rolled_out = rolled_out(&space, "web", 2).await?;
    ensure!(rolled_out.metadata.generation == Some(2), "{rolled_out:?}");
    // This field is written only with a beta gate.
    ensure!(rolled_out.status.is_some_and(|status| status.terminating_replicas.is_none()));
    let on = reported(&kcm, &bed.cluster, true).await?;
    ensure!(on == owned(ALWAYS_ON), "{on:?}");
    kcm.terminate().await
}

pub async fn metric_reports_the_effect_of_all_gates_when_they_are_on(_: Space) -> Result<()> {
    let cluster = bare_control_plane().await?;
    let kcm = start(&cluster, "serviceaccount-controller", true).await?;
    let off = reported(&kcm, &cluster, false).await?;
    ensure!(off == owned(ALWAYS_OFF), "{off:?}");
    kcm.terminate().await
}
