//! The smoke test of a real cluster: it starts, a Deployment is updated while requests are served, volumes go through
//! their whole life, and no resource is leaked.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use real_cluster::load::Load;
use real_cluster::programs::Programs;
use real_cluster::{Footprint, RealCluster, Setup, images, requirements};
use tokio::time::Instant;

use super::volumes;
use super::web::{PATH, Web};

/// The variable that enables the smoke test although the nodes' programs have to be built, which takes some fifteen
/// minutes.
pub const ALWAYS: &str = "KCM_REAL_CLUSTER";

/// The number of replicas of the Deployment.
const SERVERS: u32 = 4;

/// The number of clients, each of which sends ten requests per second.
const CLIENTS: u32 = 4;

/// Maximum duration of a step, on a machine that is busy with other programs.
const DEADLINE: Duration = Duration::from_secs(180);

/// Returns the reason why the smoke test does not run on this machine, or `None`.
pub fn obstacle() -> Result<Option<String>> {
    let programs = Programs::locate()?;
    let missing = requirements::missing(&programs);
    if !missing.is_empty() {
        return Ok(Some(format!("this machine cannot run a real cluster: {}", missing.join("; "))));
    }
    let is_wanted = std::env::var_os(ALWAYS).is_some_and(|value| value != "0" && !value.is_empty());
    Ok((!programs.are_built() && !is_wanted)
        .then(|| format!("the nodes' programs are not built: cargo xtask cluster builds them once, or set {ALWAYS}=1")))
}

/// Runs the smoke test, up to the first failure.
pub fn run(setup: Setup) -> Result<()> {
    let footprint = tokio::runtime::Runtime::new()?.block_on(run_test(setup))?;
    let leaks = footprint.leaks();
    ensure!(leaks.is_empty(), "the cluster left behind: {}", leaks.join(", "));
    println!("the cluster left nothing behind");
    Ok(())
}

/// Runs the test and removes the cluster; returns its footprint.
async fn run_test(setup: Setup) -> Result<Footprint> {
    let start = Instant::now();
    let report = |step: &str| println!("{:6.1} s  {step}", start.elapsed().as_secs_f64());
    let cluster = RealCluster::start(setup, report).await?;
    let web = Web::create(cluster.control_plane(), SERVERS).await?;
    web.wait_for_rollout(DEADLINE).await?;
    let server = web.wait_for_response(DEADLINE).await?;
    report(&format!("{SERVERS} servers respond at {server}, the load balancer of their Service"));
    let load = Load::start(server, PATH, CLIENTS, Duration::from_millis(100));
    let update = Instant::now();
    web.update(images::AGNHOST).await?;
    web.wait_for_rollout(DEADLINE).await.context("roll the Deployment")?;
    let (requests, failed) = load.count_since(update);
    report(&format!("the Deployment was updated; {failed} of {requests} requests failed"));
    ensure!(requests > 0 && failed == 0, "{failed} of {requests} requests failed during the update");
    web.wait_for_response(DEADLINE).await?;
    web.delete().await?;
    report("Deployment and Service are deleted");
    volumes::run(&cluster, DEADLINE, report).await.context("use volumes")?;
    cluster.control_plane().check()?;
    cluster.footprint()
}
