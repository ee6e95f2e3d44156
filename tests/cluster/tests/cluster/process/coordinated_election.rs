//! An election that the API server coordinates: the candidate with the oldest emulation version leads.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cluster_tests::{Bed, Faults, Manager, Space, eventually};
use control_plane::Options;
use runtime::election::Lost;
use runtime::manager::ExitReason;
use serde_json::Value;

const GATE: &str = "--feature-gates=CoordinatedLeaderElection=true";

fn read(bed: &Bed, what: &[&str]) -> Result<Value> {
    let arguments = [&["get", "-n", "kube-system", "-o", "json"], what].concat();
    Ok(serde_json::from_str(&bed.cluster.kubectl(&arguments)?)?)
}

/// Waits until a candidate of this version leads, and returns its identity.
async fn leader(bed: &Bed, version: &str) -> Result<String> {
    eventually(format!("a candidate of version {version} leads"), || async {
        let lease = read(bed, &["lease", "kube-controller-manager"])?;
        let spec = &lease["spec"];
        let holder = spec["holderIdentity"].as_str().unwrap_or_default().to_owned();
        // The API server assigns the Lease for five seconds; the candidate leads once it has renewed the Lease.
        let is_renewed = spec["leaseDurationSeconds"] == 15;
        ensure!(is_renewed && !holder.is_empty() && spec["strategy"] == "OldestEmulationVersion", "{lease}");
        let candidate = read(bed, &["leasecandidate", &holder])?;
        ensure!(candidate["spec"]["emulationVersion"] == version, "{candidate}");
        Ok(holder)
    })
    .await
}

pub async fn candidate_with_the_oldest_emulation_version_leads(_: Space) -> Result<()> {
    let flags = [GATE, "--runtime-config=coordination.k8s.io/v1beta1=true"].map(str::to_owned).to_vec();
    let options = Options { kwok: false, scheduler: false, extra_apiserver_flags: flags, ..Options::default() };
    let bed = Arc::new(Bed::without_accounts(options).await?);
    let space = bed.space("election").await?;
    let flags = |version: &'static str| {
        let namespace = "--leader-elect-resource-namespace=kube-system";
        [GATE, version, namespace, "--leader-elect=true", "--controllers=ttl-controller"]
    };
    let newer = Manager::start_cluster_wide(&space, &Faults::default(), &flags("--emulated-version=1.37")).await?;
    let first = leader(&bed, "1.37.0").await?;
    // The API server ends the term of a leader when a candidate with an older version appears.
    let older = Manager::start_cluster_wide(&space, &Faults::default(), &flags("--emulated-version=1.36")).await?;
    let ended = newer.until_ended().await?;
    ensure!(matches!(ended, ExitReason::LeaseLost(Lost::EndOfTerm { .. })), "{ended:?}");
    let second = leader(&bed, "1.36.0").await?;
    ensure!(first != second, "{first}");
    ensure!(older.stop().await? == ExitReason::Shutdown);
    Ok(())
}
