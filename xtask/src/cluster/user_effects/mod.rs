//! Effects of a controller manager on users: real servers under constant load, during changes and failures.

mod change;
mod report;
mod stage;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use real_cluster::{Footprint, RealCluster, Setup};

use super::programs::{self, Manager};
use crate::root;
use change::{Change, Disturbance};
use stage::Stage;

/// The results of one manager.
type Results = BTreeMap<(Change, Disturbance), UserEffects>;

/// Effects of one change on users.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct UserEffects {
    /// From the change until the desired state was reached.
    took: Duration,
    /// The longest of several times minus the shortest.
    spread: Duration,
    /// Requests sent during the change.
    requests: usize,
    /// Those of them that failed.
    failed: usize,
    /// From the change to the last request that failed.
    failures_lasted: Duration,
    /// Load average of the machine over the last minute, at the end; the highest of several runs.
    load: f64,
}

impl UserEffects {
    /// The part of requests that failed.
    fn failure_rate(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.failed as f64 / self.requests as f64 }
    }
}

/// Returns the effects of several runs: the median of the times, the sums of the requests, and the longest failure.
fn summary(runs: &mut [UserEffects]) -> UserEffects {
    runs.sort_by_key(|run| run.took);
    UserEffects {
        took: runs.get(runs.len() / 2).map_or(Duration::ZERO, |run| run.took),
        spread: match (runs.first(), runs.last()) {
            (Some(first), Some(last)) => last.took.saturating_sub(first.took),
            _ => Duration::ZERO,
        },
        requests: runs.iter().map(|run| run.requests).sum(),
        failed: runs.iter().map(|run| run.failed).sum(),
        failures_lasted: runs.iter().map(|run| run.failures_lasted).max().unwrap_or_default(),
        load: runs.iter().map(|run| run.load).fold(0.0, f64::max),
    }
}

/// The managers and scenarios of a measurement.
pub struct Options<'a> {
    /// Our manager.
    pub ours: &'a Manager,
    /// ccm, instead of building it.
    pub cloud_manager: Option<&'a Path>,
    /// Our managers are built for release.
    pub release: bool,
    /// Disturb the manager in rolling updates only.
    pub quick: bool,
    /// Fail if a goal is missed.
    pub assert: bool,
}

/// Measures both managers, each on a cluster of its own, and writes a report to the folder.
pub fn bench(options: &Options, folder: &Path) -> Result<()> {
    if root::is_root() {
        programs::check_machine(Vec::new())?;
    } else {
        programs::build_as_user(Vec::new())?;
    }
    let upstream = Manager::Upstream.program(false)?;
    let setup = programs::setup(2, options.ours, options.cloud_manager, options.release)?;
    if !root::is_root() {
        return programs::continue_as_root(&setup, options.ours);
    }
    let ours = setup.manager.clone();
    let scenarios = change::scenarios(options.quick);
    println!("==> upstream");
    let theirs = run(Setup { manager: upstream.clone(), ..setup.clone() }, &ours, &scenarios)?;
    println!("==> ours");
    let results = run(setup, &upstream, &scenarios)?;
    let report = report::markdown(&results, &theirs);
    print!("\n{report}");
    std::fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    let path = folder.join("real.md");
    std::fs::write(&path, report).with_context(|| format!("write {}", path.display()))?;
    root::give_to_user(folder)?;
    println!("\nThe report is {}", path.display());
    let missed = report::missed_goals(&results, &theirs);
    for goal in &missed {
        println!("missed: {goal}");
    }
    ensure!(!options.assert || missed.is_empty(), "{} goals are missed", missed.len());
    Ok(())
}

/// Measures one manager. Fails if its cluster leaves resources behind.
fn run(setup: Setup, other: &Path, scenarios: &[(Change, Disturbance)]) -> Result<Results> {
    let (results, footprint) = tokio::runtime::Runtime::new()?.block_on(measure(setup, other, scenarios))?;
    let leaks = footprint.leaks();
    ensure!(leaks.is_empty(), "the cluster left behind: {}", leaks.join(", "));
    Ok(results)
}

/// Plays the scenarios on a cluster. Returns its footprint too, once it has ended.
async fn measure(setup: Setup, other: &Path, scenarios: &[(Change, Disturbance)]) -> Result<(Results, Footprint)> {
    let own = setup.manager.clone();
    let cluster = RealCluster::start(setup, |step| println!("{step}")).await?;
    let mut stage = Stage::set(&cluster, own, other.to_owned()).await?;
    let mut results = Results::new();
    for (change, disturbance) in scenarios.iter().copied() {
        let name = report::name(change, disturbance);
        let mut runs = Vec::new();
        for _ in 0..change.runs() {
            let effects = stage.play(change, disturbance).await.with_context(|| name.clone())?;
            println!(
                "{name}: {:.1} s, {} of {} requests failed",
                effects.took.as_secs_f64(),
                effects.failed,
                effects.requests
            );
            runs.push(effects);
        }
        results.insert((change, disturbance), summary(&mut runs));
    }
    Ok((results, cluster.footprint()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_has_the_median_time_and_all_requests() {
        let run = |seconds, failed| UserEffects {
            took: Duration::from_secs(seconds),
            spread: Duration::ZERO,
            requests: 100,
            failed,
            failures_lasted: Duration::from_secs(failed as u64),
            load: seconds as f64,
        };
        let expected = UserEffects { requests: 300, failed: 3, failures_lasted: Duration::from_secs(2), ..run(8, 0) };
        assert_eq!(
            summary(&mut [run(9, 0), run(8, 2), run(7, 1)]),
            UserEffects { load: 9.0, spread: Duration::from_secs(2), ..expected }
        );
        assert_eq!(summary(&mut []), UserEffects::default());
    }
}
