//! The smoke test of a real cluster: it starts, a Deployment is updated while requests are served, the manager is
//! replaced, volumes are provisioned, used and deleted, and no resource is leaked, even if the command is killed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use real_cluster::load::Load;
use real_cluster::programs::Programs;
use real_cluster::requirements::{self, Demand};
use real_cluster::{Footprint, RealCluster, Setup, images};
use tokio::time::Instant;

use super::web::{PATH, Web};
use super::{served, volumes};
use crate::root;

/// The variable that enables the smoke test even if the nodes' programs still have to be built, which takes about
/// fifteen minutes.
pub const ALWAYS: &str = "KCM_REAL_CLUSTER";

/// The number of nodes.
const NODES: u8 = 2;

/// The number of replicas of the Deployment.
const SERVERS: u32 = 4;

/// A program that exits, as a broken build of a manager does.
const BROKEN: &str = "#!/bin/sh\nexit 1\n";

/// The number of clients, each of which sends ten requests per second.
const CLIENTS: u32 = 4;

/// The number of consecutive successful requests after which all nodes count as serving: requests are spread over the
/// nodes at random.
const SUCCESSES: usize = 40;

/// Maximum duration of a request; one that takes longer counts as failed. A busy machine may pause programs for seconds.
const REQUEST_DEADLINE: Duration = Duration::from_secs(10);

/// Maximum duration of a step, on a machine that is busy with other programs.
const DEADLINE: Duration = Duration::from_secs(180);

/// The decision about the smoke test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The test runs.
    Run,
    /// The test is left out, for this reason.
    Skip(String),
    /// The user requires the test, and it cannot run.
    Fail(String),
}

/// Facts about this machine and the command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Facts {
    /// The command line or [`ALWAYS`] requires the smoke test.
    is_required: bool,
    /// [`ALWAYS`] permits builds.
    may_build: bool,
    /// Everything is built.
    is_built: bool,
    /// The missing requirements of this machine.
    missing: Vec<String>,
}

/// Decides whether the smoke test runs on this machine. `is_selected`: the command line selects it.
pub fn decide(is_selected: bool) -> Result<Decision> {
    let programs = Programs::locate()?;
    let demand = Demand::of_cluster(NODES, true);
    let is_set = std::env::var_os(ALWAYS).is_some_and(|value| value != "0" && !value.is_empty());
    let is_built = demand.is_built(&programs)?;
    // The check of requirements needs root rights, so it is made only if the test may run.
    let missing = if is_built || is_set { missing(&programs, &demand)? } else { Vec::new() };
    Ok(decision(&Facts { is_required: is_selected || is_set, may_build: is_set, is_built, missing }))
}

/// Returns the missing requirements of this machine. For a user other than root, the steps that need root rights are
/// tried with sudo, which must not ask for a password: tests often run unattended.
fn missing(programs: &Programs, demand: &Demand) -> Result<Vec<String>> {
    if root::is_root() {
        return requirements::missing(programs, demand);
    }
    if !root::is_available_silently() {
        let rights = "root rights: start it as root, or let sudo give them without a password".to_owned();
        return Ok([vec![rights], requirements::missing_for_all(programs, demand)?].concat());
    }
    let missing_for_root = root::try_out(demand.nodes, true).unwrap_or_else(|error| vec![format!("{error:#}")]);
    Ok([missing_for_root, requirements::missing_for_all(programs, demand)?].concat())
}

fn decision(facts: &Facts) -> Decision {
    let reason = if !facts.missing.is_empty() {
        format!("this machine cannot run a real cluster: {}", facts.missing.join("; "))
    } else if !facts.is_built && !facts.may_build {
        format!("the cluster's programs are not built: cargo xtask cluster builds them once, or set {ALWAYS}=1")
    } else {
        return Decision::Run;
    };
    if facts.is_required { Decision::Fail(reason) } else { Decision::Skip(reason) }
}

/// Runs the smoke test, up to the first failure.
pub fn run(setup: Setup) -> Result<()> {
    let start = Instant::now();
    let report = |step: &str| println!("{:6.1} s  {step}", start.elapsed().as_secs_f64());
    let footprint = tokio::runtime::Runtime::new()?.block_on(run_test(setup.clone(), report))?;
    let leaks = footprint.leaks();
    ensure!(leaks.is_empty(), "the cluster left behind: {}", leaks.join(", "));
    report("the cluster left nothing behind");
    served::run(&setup, report)
}

/// Runs the test and removes the cluster; returns its footprint.
async fn run_test(setup: Setup, report: impl Fn(&str)) -> Result<Footprint> {
    let program = setup.manager.clone();
    let cluster = RealCluster::start(setup, &report).await?;
    let web = Web::create(cluster.control_plane(), SERVERS).await?;
    web.wait_for_rollout(DEADLINE).await?;
    let server = web.wait_for_response(DEADLINE).await?;
    report(&format!("{SERVERS} servers respond at {server}, the load balancer of their Service"));
    let load = Load::start(server, PATH, CLIENTS, Duration::from_millis(100), REQUEST_DEADLINE);
    load.wait_for_successes(SUCCESSES, DEADLINE).await.context("wait until all nodes serve")?;
    let update = Instant::now();
    web.update(images::AGNHOST).await?;
    web.wait_for_rollout(DEADLINE).await.context("roll the Deployment")?;
    let (requests, failed) = load.count_since(update);
    report(&format!("the Deployment was updated; {failed} of {requests} requests failed"));
    for failure in load.failures_since(update) {
        println!("          {failure}");
    }
    ensure!(requests > 0 && failed == 0, "{failed} of {requests} requests failed during the update");
    cluster.check_route_to_balancer(server.ip())?;
    web.wait_for_response(DEADLINE).await?;
    swap_manager(&cluster, &program, &web).await.context("swap the manager")?;
    report("the manager was replaced by another copy; a broken rebuild of that copy was refused");
    web.delete().await?;
    report("Deployment and Service are deleted");
    volumes::run(&cluster, DEADLINE, &report).await.context("use volumes")?;
    cluster.control_plane().check()?;
    cluster.footprint()
}

/// Replaces the manager by another program. Then that program is broken by a rebuild: the next replacement fails, and
/// the previous manager works again.
async fn swap_manager(cluster: &RealCluster, program: &Path, web: &Web) -> Result<()> {
    let build = cluster.control_plane().folder().join("smoke-manager");
    fs::copy(program, &build).with_context(|| format!("copy {}", program.display()))?;
    cluster.swap_manager(&build).await?;
    fs::remove_file(&build).and_then(|()| fs::write(&build, BROKEN)).context("break the manager")?;
    fs::set_permissions(&build, fs::Permissions::from_mode(0o755)).context("break the manager")?;
    let refused = cluster.swap_manager(&build).await;
    ensure!(refused.is_err(), "a manager that exits became the leader");
    web.scale(SERVERS / 2).await?;
    web.wait_for_rollout(DEADLINE).await.context("scale with the previous manager")?;
    cluster.check()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smoke_test_fails_when_it_is_required_and_cannot_run() {
        let built = Facts { is_built: true, ..Facts::default() };
        let lacking = Facts { missing: vec!["root rights".into()], ..built.clone() };
        for (name, facts, expected) in [
            ("a usable machine", built.clone(), "run"),
            ("a machine that lacks something", lacking.clone(), "skip"),
            ("a machine that lacks something, by selector", Facts { is_required: true, ..lacking.clone() }, "fail"),
            ("not built", Facts { is_built: false, ..built.clone() }, "skip"),
            ("not built, by selector", Facts { is_built: false, is_required: true, ..built.clone() }, "fail"),
            ("not built, by variable", Facts { is_built: false, is_required: true, may_build: true, ..built }, "run"),
            ("lacking, by variable", Facts { is_required: true, may_build: true, ..lacking }, "fail"),
        ] {
            let decided = match decision(&facts) {
                Decision::Run => "run",
                Decision::Skip(_) => "skip",
                Decision::Fail(_) => "fail",
            };
            assert_eq!(decided, expected, "{name}");
        }
    }
}
