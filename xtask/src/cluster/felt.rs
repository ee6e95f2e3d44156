//! Effects of a controller manager on users: real servers under constant load, during changes and failures.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use real_cluster::load::Load;
use real_cluster::{RealCluster, images};
use tokio::time::{Instant, sleep};

use super::programs::{self, Manager};
use super::web::{PATH, Web};

/// The number of servers in all scenarios but that of scaling.
const SERVERS: u32 = 20;

/// The number of servers that are scaled to.
const SCALE: u32 = 50;

/// The number of clients, each of which sends a request every [`PERIOD`].
const CLIENTS: u32 = 10;
const PERIOD: Duration = Duration::from_millis(50);

/// Maximum duration of any step.
const DEADLINE: Duration = Duration::from_secs(600);

/// Time from the start of a rolling update to its disturbance.
const HALFWAY: Duration = Duration::from_secs(5);

/// The node that fails.
const VICTIM: u8 = 2;

/// The results of one manager, by scenario.
type Results = BTreeMap<&'static str, Felt>;

/// Effects of one change on users.
#[derive(Clone, Copy, Debug)]
struct Felt {
    took: Duration,
    requests: usize,
    failed: usize,
    /// From the change to the last request that failed.
    failures_lasted: Duration,
}

/// A cluster with servers under load, and the managers' programs.
struct Bed<'a> {
    cluster: &'a RealCluster,
    web: &'a Web,
    load: Load,
    own: &'a Path,
    other: &'a Path,
}

/// An event in the middle of a rolling update that affects the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disturbance {
    None,
    Kill,
    Replace,
}

/// Measures both managers, each on a cluster of its own, and writes a report to the folder.
pub fn bench(ours: &Manager, release: bool, folder: &Path) -> Result<()> {
    programs::check_machine()?;
    let upstream = Manager::Upstream.program(false)?;
    let setup = programs::setup(2, ours, None, release)?;
    let ours = setup.manager.clone();
    let runtime = tokio::runtime::Runtime::new()?;
    let measure = |manager: &Path, other: &Path| {
        let setup = real_cluster::Setup { manager: manager.to_owned(), ..setup.clone() };
        runtime.block_on(measure(setup, other))
    };
    println!("==> upstream");
    let theirs = measure(&upstream, &ours)?;
    println!("==> ours");
    let results = measure(&ours, &upstream)?;
    let report = report(&results, &theirs);
    print!("\n{report}");
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let path: PathBuf = folder.join("real.md");
    std::fs::write(&path, report).with_context(|| format!("write {}", path.display()))?;
    println!("\nThe report is {}", path.display());
    Ok(())
}

async fn measure(setup: real_cluster::Setup, other: &Path) -> Result<Results> {
    let own = setup.manager.clone();
    let cluster = RealCluster::start(setup, |step| println!("{step}")).await?;
    let mut results = Results::new();
    let mut record = |name, felt: Felt| {
        println!("{name}: {:.1} s, {} of {} requests failed", felt.took.as_secs_f64(), felt.failed, felt.requests);
        results.insert(name, felt);
    };
    let web = Web::create(cluster.control_plane(), 0).await?;
    record("1 scale 0 to 50", scale(&web).await?);
    web.scale(SERVERS).await?;
    web.wait_for_rollout(DEADLINE).await?;
    let server = web.wait_for_response(DEADLINE).await?;
    let load = Load::start(server, PATH, CLIENTS, PERIOD);
    let bed = Bed { cluster: &cluster, web: &web, load, own: &own, other };
    let disturbances = [
        ("2 rolling update", Disturbance::None),
        ("3 rolling update, manager killed", Disturbance::Kill),
        ("4 rolling update, manager replaced by the other", Disturbance::Replace),
    ];
    let mut image = [images::AGNHOST, images::AGNHOST_OLD].into_iter().cycle();
    for (name, disturbance) in disturbances {
        let image = image.next().unwrap_or(images::AGNHOST);
        record(name, update(&bed, image, disturbance).await?);
    }
    cluster.replace_manager(&own).await?;
    record("5 node dies", lose_node(&bed).await?);
    Ok(results)
}

async fn scale(web: &Web) -> Result<Felt> {
    web.scale(SCALE).await?;
    let took = web.wait_for_rollout(DEADLINE).await?;
    Ok(Felt { took, requests: 0, failed: 0, failures_lasted: Duration::ZERO })
}

/// Rolls the servers to an image, and disturbs the manager on the way.
async fn update(bed: &Bed<'_>, image: &str, disturbance: Disturbance) -> Result<Felt> {
    let start = Instant::now();
    bed.web.update(image).await?;
    if disturbance != Disturbance::None {
        sleep(HALFWAY).await;
    }
    match disturbance {
        Disturbance::None => {}
        Disturbance::Kill => bed.cluster.kill_manager(bed.own)?,
        Disturbance::Replace => bed.cluster.replace_manager(bed.other).await?,
    }
    bed.web.wait_for_rollout(DEADLINE).await?;
    Ok(felt(&bed.load, start, start.elapsed()))
}

/// Kills a node, and waits until no request has failed for a while: the endpoints on it get none then.
/// Its time is that of the last failure.
async fn lose_node(bed: &Bed<'_>) -> Result<Felt> {
    const QUIET: Duration = Duration::from_secs(15);
    let start = Instant::now();
    bed.cluster.kill_node(VICTIM)?;
    loop {
        sleep(Duration::from_millis(500)).await;
        let last = bed.load.last_failure_since(start).unwrap_or(start);
        if last.elapsed() > QUIET && start.elapsed() > 2 * QUIET {
            break;
        }
        anyhow::ensure!(start.elapsed() < DEADLINE, "requests still fail {} s after the node died", DEADLINE.as_secs());
    }
    let lasted = bed.load.last_failure_since(start).map_or(Duration::ZERO, |last| last.duration_since(start));
    bed.web.wait_for_response(DEADLINE).await?;
    Ok(felt(&bed.load, start, lasted))
}

fn felt(load: &Load, start: Instant, took: Duration) -> Felt {
    let (requests, failed) = load.count_since(start);
    let last = load.last_failure_since(start);
    Felt { took, requests, failed, failures_lasted: last.map_or(Duration::ZERO, |last| last.duration_since(start)) }
}

fn report(ours: &Results, upstream: &Results) -> String {
    let mut text = String::from(
        "| scenario | ours, s | upstream, s | ours, failed requests | upstream, failed requests | ours, failures until s | upstream, failures until s |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (name, own) in ours {
        let Some(their) = upstream.get(name) else { continue };
        let _ = writeln!(
            text,
            "| {name} | {:.1} | {:.1} | {} of {} | {} of {} | {:.1} | {:.1} |",
            own.took.as_secs_f64(),
            their.took.as_secs_f64(),
            own.failed,
            own.requests,
            their.failed,
            their.requests,
            own.failures_lasted.as_secs_f64(),
            their.failures_lasted.as_secs_f64(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_compares_scenarios_that_both_have() {
        let felt = |seconds| Felt {
            took: Duration::from_secs(seconds),
            requests: 100,
            failed: 1,
            failures_lasted: Duration::from_secs(2),
        };
        let ours = Results::from([("a", felt(3)), ("b", felt(4))]);
        let text = report(&ours, &Results::from([("a", felt(5))]));
        assert!(text.ends_with("| a | 3.0 | 5.0 | 1 of 100 | 1 of 100 | 2.0 | 2.0 |\n"), "{text}");
    }
}
