//! One run of the suite on a cluster, in the network namespace of the control plane.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use control_plane::Identity;
use control_plane::assets::Program;
use real_cluster::RealCluster;
use tokio::process::Command;
use tokio::time::timeout;

use super::report::Results;

/// Time for the suite to end after its own deadline.
const GRACE: Duration = Duration::from_secs(120);

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
pub async fn run(cluster: &RealCluster, choice: &Choice<'_>, folder: &Path) -> Result<Results> {
    let control_plane = cluster.control_plane();
    let programs = cluster.programs();
    let log = File::create(folder.join("suite.log")).context("create the log of the suite")?;
    let mut suite = Command::new("nsenter")
        .arg(format!("--net={}", cluster.router().display()))
        .arg("--")
        .arg(programs.path("ginkgo"))
        .arg(format!("--procs={}", choice.procs))
        .arg(format!("--timeout={}m", choice.minutes))
        .arg(format!("--focus={}", choice.focus))
        .args((!choice.skip.is_empty()).then(|| format!("--skip={}", choice.skip)))
        .args(["--no-color", "--json-report=report.json"])
        .arg(format!("--output-dir={}", folder.display()))
        .arg(programs.path("e2e.test"))
        .args(["--", "--provider=skeleton", "--disable-log-dump", "--dump-logs-on-failure=false"])
        .args(["--allowed-not-ready-nodes=-1", "--node-os-distro=custom"])
        .arg(format!("--kubectl-path={}", control_plane.assets().path(Program::Kubectl)?.display()))
        .arg(format!("--kubeconfig={}", control_plane.kubeconfig(Identity::Admin)?.display()))
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("share the log of the suite")?)
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .context("run the suite")?;
    let deadline = Duration::from_secs(u64::from(choice.minutes) * 60) + GRACE;
    timeout(deadline, suite.wait()).await.context("the suite did not end")?.context("wait for the suite")?;
    control_plane.check()?;
    let json = folder.join("report.json");
    Results::read(&fs::read(&json).with_context(|| {
        format!("read {}; the suite's log is {}", json.display(), folder.join("suite.log").display())
    })?)
}
