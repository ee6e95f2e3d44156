//! One run of the suite on a cluster, in the network namespace of the control plane.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use control_plane::Identity;
use control_plane::assets::Program;
use real_cluster::RealCluster;

use super::report::Results;

/// Time for the suite to end after its own deadline.
const GRACE: Duration = Duration::from_secs(120);

/// The name of the suite's process and log.
const SUITE: &str = "suite";

/// Flags of the suite for a cluster without a cloud provider.
const SUITE_FLAGS: [&str; 6] = [
    "--",
    "--provider=skeleton",
    "--disable-log-dump",
    "--dump-logs-on-failure=false",
    "--allowed-not-ready-nodes=-1",
    "--node-os-distro=custom",
];

/// Specs to run.
pub struct Choice<'a> {
    /// A regular expression: specs whose names match run.
    pub focus: &'a str,
    /// A regular expression: specs whose names match do not run.
    pub skip: &'a str,
    /// The number of specs that run at the same time.
    pub procs: u32,
    /// Minutes after which the suite is ended.
    pub minutes: u32,
}

/// Runs the suite; its log and its JSON are written to the folder. Failed specs are a result, not an error.
///
/// The suite is one of the cluster's processes, so that none of its processes is left, even if this command is killed.
pub async fn run(cluster: &RealCluster, choice: &Choice<'_>, folder: &Path) -> Result<Results> {
    let json = folder.join("report.json");
    if json.exists() {
        fs::remove_file(&json).with_context(|| format!("remove {}", json.display()))?;
    }
    let control_plane = cluster.control_plane();
    control_plane.run(SUITE, &cluster.programs().path("ginkgo"), &arguments(cluster, choice, folder)?)?;
    let time = Duration::from_secs(u64::from(choice.minutes) * 60) + GRACE;
    let ended = control_plane.wait(SUITE, time).await;
    let log = folder.join("suite.log");
    fs::copy(control_plane.log(SUITE), &log).with_context(|| format!("copy the suite's log to {}", log.display()))?;
    let status = ended?;
    let report =
        fs::read(&json).with_context(|| format!("read {}; the suite's log is {}", json.display(), log.display()))?;
    let mut results = Results::read(&report)?;
    if !status.success() && results.is_perfect() {
        results.faults.push(format!("the suite ended with {status}, and its report has no reason"));
    }
    Ok(results)
}

fn arguments(cluster: &RealCluster, choice: &Choice, folder: &Path) -> Result<Vec<String>> {
    let control_plane = cluster.control_plane();
    let mut arguments = vec![
        format!("--procs={}", choice.procs),
        format!("--timeout={}m", choice.minutes),
        format!("--focus={}", choice.focus),
        "--no-color".into(),
        "--json-report=report.json".into(),
        format!("--output-dir={}", folder.display()),
    ];
    arguments.extend((!choice.skip.is_empty()).then(|| format!("--skip={}", choice.skip)));
    arguments.push(cluster.programs().path("e2e.test").display().to_string());
    arguments.extend(SUITE_FLAGS.map(String::from));
    arguments.push(format!("--kubectl-path={}", control_plane.assets().path(Program::Kubectl)?.display()));
    arguments.push(format!("--kubeconfig={}", control_plane.kubeconfig(Identity::Admin)?.display()));
    Ok(arguments)
}
