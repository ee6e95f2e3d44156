//! Feature gates, each on and off. The table of all gates and their tests is in `xtask/src/test/feature_gates`.

pub mod all_off;
pub mod clients;
pub mod controllers;
pub mod counting;
pub mod emulated;
pub mod http2;
pub mod logging;
pub mod native_histograms;
pub mod statefulset;
pub mod workloads;

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::programs::{KCM, command};
use cluster_tests::{Space, variants};
use control_plane::{ControlPlane, Identity};
use tokio::process::Command;

/// Time for a manager to refuse its flags.
const REFUSED_WITHIN: Duration = cluster_tests::DEADLINE;

/// Switches off the gate GenericWorkload and all gates that depend on it, even when all others are on.
pub const NO_GROUPS: &str = "--feature-gates=GenericWorkload=false,CompositePodGroup=false,\
                             DRAWorkloadResourceClaims=false,PodGroupPreemptionPolicy=false,\
                             TopologyAwareWorkloadScheduling=false,WorkloadWithJob=false";

/// A value of a gate.
#[derive(Clone)]
pub struct Gate {
    /// The value.
    pub is_on: bool,
    /// The flag that sets the gate to the value.
    pub flag: String,
}

/// Returns the flag that sets all these gates to one value.
pub fn flag(gates: &[&str], is_on: bool) -> String {
    let gates: Vec<String> = gates.iter().map(|gate| format!("{gate}={is_on}")).collect();
    format!("--feature-gates={}", gates.join(","))
}

/// Runs a test with all these gates on, and with all of them off, each in a separate namespace.
pub async fn on_and_off<F: Future<Output = Result<()>>>(
    space: &Space,
    gates: &[&str],
    check: impl Fn(Space, Gate) -> F,
) -> Result<()> {
    let values = [true, false].map(|is_on| Gate { is_on, flag: flag(gates, is_on) });
    let named = values.map(|gate| (gate.flag.clone(), gate)).to_vec();
    variants(space, named, check).await
}

/// Starts kcm with flags that it refuses. Returns its message.
pub async fn refusal(cluster: &ControlPlane, flags: &[String]) -> Result<String> {
    let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?;
    let mut kcm = Command::new(command(cluster, KCM)?);
    kcm.arg(format!("--kubeconfig={}", kubeconfig.display())).args(["--secure-port=0", "--leader-elect=false"]);
    kcm.args(flags).stdin(Stdio::null()).kill_on_drop(true);
    let ended = tokio::time::timeout(REFUSED_WITHIN, kcm.output()).await;
    let ended = ended.with_context(|| format!("kcm runs with {flags:?}"))??;
    ensure!(!ended.status.success(), "kcm ended without an error with {flags:?}");
    Ok(String::from_utf8(ended.stderr)?)
}
