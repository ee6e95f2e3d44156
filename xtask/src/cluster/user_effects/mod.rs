//! Effects of a controller manager on users: real servers under constant load, during changes and failures.

mod change;
mod effects;
mod goals;
mod report;
mod stage;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use real_cluster::{Footprint, RealCluster, Setup};

use super::programs::{self, Manager, Order};
use crate::report_folder::ReportFolder;
use crate::{interrupt, root};
use effects::{Runs, Scenario, UserEffects};
use stage::Stage;

/// The managers and scenarios of a measurement.
pub struct Options<'a> {
    /// Our manager.
    pub ours: &'a Manager,
    /// ccm, instead of building it.
    pub cloud_manager: Option<&'a Path>,
    /// The profile of cargo with which our managers are built.
    pub profile: &'a str,
    /// Disturb the manager in rolling updates only, and measure each scenario once.
    pub quick: bool,
    /// Fail if a goal is missed.
    pub assert: bool,
}

/// A manager that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Upstream,
}

/// The measurements so far, which are reported even if later ones fail or are interrupted.
#[derive(Debug, Default)]
struct Measurements {
    ours: Runs,
    upstream: Runs,
}

impl Measurements {
    fn add(&mut self, side: Side, scenario: Scenario, effects: UserEffects) {
        let runs = match side {
            Side::Ours => &mut self.ours,
            Side::Upstream => &mut self.upstream,
        };
        runs.entry(scenario).or_default().push(effects);
    }
}

/// Returns the managers in the order of a round, which alternates, because the first one changes the machine's state
/// for the second one.
fn order(round: usize) -> [Side; 2] {
    if round.is_multiple_of(2) { [Side::Upstream, Side::Ours] } else { [Side::Ours, Side::Upstream] }
}

/// Measures both managers in one or more rounds, each manager on a new cluster, and writes a report to the folder.
pub fn bench(options: &Options, folder: &Path) -> Result<()> {
    let managers = [options.ours.clone(), Manager::Upstream];
    let order = Order {
        nodes: 2,
        managers: &managers,
        cloud_manager: options.cloud_manager,
        profile: options.profile,
        has_volumes: false,
        has_suite: false,
        has_metrics: false,
    };
    order.prepare()?;
    let mut setup = programs::setup(&order)?;
    if !root::is_root() {
        return programs::continue_as_root(&setup, options.ours);
    }
    let folder = ReportFolder::create(folder)?;
    setup.manager = folder.copy_program("ours", &setup.manager)?;
    setup.cloud_manager = folder.copy_program("ours", &setup.cloud_manager)?;
    let upstream = folder.copy_program("upstream", &Manager::Upstream.program(options.profile)?)?;

    let scenarios = change::scenarios(options.quick);
    let mut measurements = Measurements::default();
    let ended = interrupt::run(measure_all(&setup, &upstream, options.quick, &scenarios, &mut measurements));
    let missed = report::missed_goals(&measurements.ours, &measurements.upstream, &scenarios);
    let report = report::markdown(&measurements.ours, &measurements.upstream, &missed);
    print!("\n{report}");
    println!("\nThe report is {}", folder.write("real.md", &report)?.display());
    drop(folder);
    if let Err(code) = ended? {
        interrupt::exit(code);
    }
    ensure!(!options.assert || missed.is_empty(), "{} goals are missed", missed.len());
    Ok(())
}

/// Runs all rounds. `setup` has our manager.
async fn measure_all(
    setup: &Setup,
    upstream: &Path,
    quick: bool,
    scenarios: &[Scenario],
    measurements: &mut Measurements,
) -> Result<()> {
    for round in 0..change::rounds(quick) {
        for side in order(round) {
            println!("==> round {}, {side:?}", round + 1);
            let theirs = Setup { manager: upstream.to_owned(), ..setup.clone() };
            let (own, other) = match side {
                Side::Ours => (setup.clone(), upstream),
                Side::Upstream => (theirs, setup.manager.as_path()),
            };
            let footprint = measure(own, other, scenarios, |scenario, effects| {
                measurements.add(side, scenario, effects);
            })
            .await?;
            let leaks = footprint.leaks();
            ensure!(leaks.is_empty(), "the cluster left behind: {}", leaks.join(", "));
        }
    }
    Ok(())
}

/// Runs the scenarios on a cluster. Returns its footprint once it has ended.
async fn measure(
    setup: Setup,
    other: &Path,
    scenarios: &[Scenario],
    mut add: impl FnMut(Scenario, UserEffects),
) -> Result<Footprint> {
    let cluster = RealCluster::start(setup, |step| println!("{step}")).await?;
    let mut stage = Stage::set(&cluster, other).await?;
    for scenario in scenarios.iter().copied() {
        let name = report::name(scenario);
        let effects = stage.run_scenario(scenario.0, scenario.1).await.with_context(|| name.clone())?;
        println!(
            "{name}: {:.1} s, {} of {} requests failed",
            effects.took.as_secs_f64(),
            effects.failed,
            effects.requests
        );
        add(scenario, effects);
    }
    cluster.footprint()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_of_managers_alternates_between_rounds() {
        assert_eq!(order(0), [Side::Upstream, Side::Ours]);
        assert_eq!(order(1), [Side::Ours, Side::Upstream]);
        assert_eq!(order(2), order(0));
    }
}
