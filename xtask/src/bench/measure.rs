//! Scenarios, their metrics and the goals: data and arithmetic.

use std::collections::BTreeMap;
use std::fmt;

use clap::ValueEnum;

use super::requests::Tally;
use super::subject::{Checkpoint, Mode, Subject};

/// A scenario that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Scenario {
    /// Deployments are created, until all their pods are ready
    Create,
    /// The Deployments of `create` get a new image, until the last old pod is deleted
    Update,
    /// Nothing happens in an empty cluster
    IdleEmpty,
    /// Nothing happens while the Deployments of `create` exist
    Idle,
    /// The manager starts in a cluster with many pods, until the first new pod is created
    ColdStart,
    /// Nothing happens in a cluster with many pods
    Memory,
    /// Pods of one Service become unready and ready again, from one to a hundred a second, alone and under load
    EndpointLag,
    /// Pods of many large Services become unready and ready again, a hundred a second
    EndpointChurn,
    /// StatefulSets, DaemonSets, Jobs, CronJobs, autoscalers and budgets are created, then StatefulSets and DaemonSets
    /// updated
    Mixed,
    /// Autoscalers (2000 in mode raised, 200 in mode default) find nothing to do for three periods, then all of them
    /// scale
    Autoscaling,
    /// A namespace with thousands of objects of 20 kinds is deleted
    NamespaceDelete,
    /// The owners of many objects (10,000 in mode raised, 1000 in mode default) are deleted
    GarbageCollection,
    /// A thousand nodes renew their leases
    NodeLeases,
    /// All controllers while nothing happens in an empty cluster
    AllIdle,
    /// All controllers start in a cluster with many pods, until the first new pod is created
    AllColdStart,
    /// All controllers while nothing happens in a cluster with many pods
    AllMemory,
    /// Claims are created, until all of them and their volumes are bound
    VolumesProvision,
    /// Pods with a volume each are started, moved to other nodes and deleted
    VolumesAttach,
    /// A few pods at a time with a volume each: started, moved to another node, deleted
    VolumesMove,
    /// The controllers of volumes while nothing happens in a cluster with many bound claims
    ClaimsAtRest,
    /// All controllers start in a cluster with many pods, half of which have a volume, until a new pod is created
    AllClaimsColdStart,
    /// All controllers while nothing happens in a cluster with many pods, half of which have a volume
    AllClaimsMemory,
    /// All controllers start in a cluster with many custom kinds, each of which has garbage to collect, then run idle
    ManyKinds,
}

/// A measured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Metric {
    /// Seconds until the final state.
    Wall,
    /// Seconds of user and system time. They include work after the final state, except in cold starts and autoscaling.
    Cpu,
    /// Resident memory at the end, in MiB.
    Resident,
    /// Maximum resident memory, in MiB.
    Peak,
    /// Writes to objects, events included.
    Writes,
    /// Writes of events.
    Events,
    /// All requests.
    Requests,
    /// All requests except those for the Lease.
    WithoutLease,
    /// Seconds until EndpointSlices show a change: the median.
    LagMedian,
    /// Seconds until EndpointSlices show a change: the 99th percentile.
    LagTail,
    /// Writes of the EndpointSlices of the measured Service.
    SliceWrites,
    /// Writes of nodes' statuses.
    NodeStatusWrites,
}

/// A goal for our manager.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// The maximum of our value divided by upstream's.
    Ratio(f64),
    /// The maximum of our value.
    Max(f64),
    /// Our value is zero.
    Zero,
}

/// A variant of a scenario, with separate results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Case {
    /// Pods of another Service change at the same time.
    pub loaded: bool,
    /// Pods of the Service.
    pub pods: u32,
    /// Changes of these pods per second.
    pub rate: u32,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = if self.loaded { "loaded" } else { "idle" };
        write!(f, "{load}, {} pods, {}/s", self.pods, self.rate)
    }
}

/// The values of one scenario in one run of one manager.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The manager.
    pub subject: Subject,
    /// The limits of the managers.
    pub mode: Mode,
    /// The scenario.
    pub scenario: Scenario,
    /// The variant of the scenario, if it has several.
    pub case: Option<Case>,
    /// The values.
    pub values: BTreeMap<Metric, f64>,
    /// Requests by kind.
    pub requests: BTreeMap<String, u64>,
}

/// The values of one metric of a scenario, for both managers.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The limits of the managers.
    pub mode: Mode,
    /// The scenario.
    pub scenario: Scenario,
    /// The variant of the scenario, if it has several.
    pub case: Option<Case>,
    /// The metric.
    pub metric: Metric,
    /// The median of our runs.
    pub ours: Option<f64>,
    /// The median of upstream's runs.
    pub upstream: Option<f64>,
}

impl Scenario {
    /// Returns its name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Create => "create",
            Scenario::Update => "update",
            Scenario::IdleEmpty => "idle-empty",
            Scenario::Idle => "idle",
            Scenario::ColdStart => "cold-start",
            Scenario::Memory => "memory",
            Scenario::EndpointLag => "endpoint-lag",
            Scenario::EndpointChurn => "endpoint-churn",
            Scenario::Mixed => "mixed",
            Scenario::Autoscaling => "autoscaling",
            Scenario::NamespaceDelete => "namespace-delete",
            Scenario::GarbageCollection => "garbage-collection",
            Scenario::NodeLeases => "node-leases",
            Scenario::AllIdle => "all-idle",
            Scenario::AllColdStart => "all-cold-start",
            Scenario::AllMemory => "all-memory",
            Scenario::VolumesProvision => "volumes-provision",
            Scenario::VolumesAttach => "volumes-attach",
            Scenario::VolumesMove => "volumes-move",
            Scenario::ClaimsAtRest => "claims-at-rest",
            Scenario::AllClaimsColdStart => "all-claims-cold-start",
            Scenario::AllClaimsMemory => "all-claims-memory",
            Scenario::ManyKinds => "many-kinds",
        }
    }

    /// Returns the goal for a metric.
    pub fn goal(self, metric: Metric) -> Option<Goal> {
        match (self, metric) {
            (Scenario::IdleEmpty | Scenario::Idle | Scenario::Memory, Metric::Cpu) => None,
            (Scenario::AllIdle | Scenario::AllMemory, Metric::Cpu) => None,
            (Scenario::ClaimsAtRest | Scenario::AllClaimsMemory, Metric::Cpu) => None,
            (Scenario::VolumesAttach, Metric::Cpu) => Some(Goal::Ratio(0.25)),
            (_, Metric::Cpu) => Some(Goal::Ratio(1.0 / 3.0)),
            (Scenario::Create | Scenario::Update | Scenario::Mixed, Metric::Wall) => Some(Goal::Ratio(1.0)),
            (Scenario::GarbageCollection, Metric::Wall) => Some(Goal::Ratio(1.0)),
            (Scenario::Autoscaling, Metric::Writes) => Some(Goal::Ratio(1.0)),
            (Scenario::Create | Scenario::Update | Scenario::Mixed, Metric::Writes) => Some(Goal::Ratio(0.8)),
            (Scenario::Mixed, Metric::Resident | Metric::Peak) => Some(Goal::Ratio(1.0 / 3.0)),
            (Scenario::IdleEmpty | Scenario::Idle | Scenario::Memory, Metric::Writes) => Some(Goal::Zero),
            (Scenario::NodeLeases | Scenario::AllIdle | Scenario::AllMemory, Metric::Writes) => Some(Goal::Zero),
            (Scenario::Memory, Metric::Resident | Metric::Peak) => Some(Goal::Ratio(1.0 / 6.0)),
            (Scenario::ColdStart | Scenario::AllColdStart, Metric::Wall) => Some(Goal::Ratio(1.0 / 3.0)),
            // A delay that combines writes would leave unready endpoints in a slice for longer: neither the lag nor the
            // number of writes may exceed upstream's.
            (Scenario::EndpointLag | Scenario::EndpointChurn, Metric::LagMedian | Metric::LagTail) => {
                Some(Goal::Ratio(1.0))
            }
            (Scenario::EndpointLag, Metric::SliceWrites) => Some(Goal::Ratio(1.0)),
            (Scenario::EndpointChurn, Metric::Writes) => Some(Goal::Ratio(1.0)),
            (Scenario::NamespaceDelete, Metric::Wall | Metric::WithoutLease) => Some(Goal::Ratio(0.5)),
            (Scenario::GarbageCollection, Metric::Requests) => Some(Goal::Ratio(0.6)),
            (Scenario::AllIdle, Metric::Resident) => Some(Goal::Max(25.0)),
            (Scenario::AllMemory, Metric::Resident | Metric::Peak) => Some(Goal::Ratio(1.0 / 8.0)),
            (Scenario::VolumesProvision, Metric::Wall) => Some(Goal::Ratio(1.0 / 3.0)),
            (Scenario::VolumesProvision, Metric::Writes) => Some(Goal::Ratio(0.8)),
            (Scenario::VolumesAttach | Scenario::VolumesMove, Metric::Wall) => Some(Goal::Ratio(0.5)),
            (Scenario::VolumesAttach, Metric::NodeStatusWrites) => Some(Goal::Ratio(1.0 / 3.0)),
            (Scenario::ClaimsAtRest | Scenario::AllClaimsMemory, Metric::Writes) => Some(Goal::Zero),
            (Scenario::ClaimsAtRest, Metric::Resident | Metric::Peak) => Some(Goal::Ratio(1.0 / 8.0)),
            (Scenario::AllClaimsColdStart, Metric::Wall) => Some(Goal::Ratio(1.0 / 3.0)),
            (Scenario::AllClaimsMemory, Metric::Resident | Metric::Peak) => Some(Goal::Ratio(0.1)),
            (Scenario::ManyKinds, Metric::Wall) => Some(Goal::Ratio(1.0)),
            (Scenario::ManyKinds, Metric::Resident | Metric::Peak) => Some(Goal::Ratio(1.0 / 8.0)),
            _ => None,
        }
    }
}

impl Metric {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Wall => "wall time (s)",
            Metric::Cpu => "CPU (s)",
            Metric::Resident => "resident memory (MiB)",
            Metric::Peak => "peak memory (MiB)",
            Metric::Writes => "object writes",
            Metric::Events => "event writes",
            Metric::Requests => "all requests",
            Metric::WithoutLease => "requests without the Lease",
            Metric::LagMedian => "endpoint lag, median (s)",
            Metric::LagTail => "endpoint lag, p99 (s)",
            Metric::SliceWrites => "slice writes",
            Metric::NodeStatusWrites => "node status writes",
        }
    }

    /// Returns a value as tables show it.
    pub fn show(self, value: f64) -> String {
        match self {
            Metric::Wall | Metric::Cpu => format!("{value:.2}"),
            Metric::LagMedian | Metric::LagTail => format!("{value:.3}"),
            Metric::Resident | Metric::Peak => format!("{value:.1}"),
            Metric::Writes | Metric::Events | Metric::Requests | Metric::WithoutLease => {
                format!("{value:.0}")
            }
            Metric::SliceWrites | Metric::NodeStatusWrites => format!("{value:.0}"),
        }
    }
}

impl Measurement {
    /// Creates a measurement from two points in time; `wall` is in seconds, if the time is measured.
    pub fn new(
        (subject, mode, scenario): (Subject, Mode, Scenario),
        wall: Option<f64>,
        (from, to): (&Checkpoint, &Checkpoint),
        tally: Tally,
    ) -> Self {
        let counts = [
            (Metric::Cpu, to.usage.cpu - from.usage.cpu),
            (Metric::Resident, to.usage.resident),
            (Metric::Peak, to.usage.peak),
            (Metric::Writes, tally.writes as f64),
            (Metric::Events, tally.events as f64),
            (Metric::Requests, tally.all as f64),
            (Metric::WithoutLease, (tally.all - tally.leases) as f64),
        ];
        let values = wall.map(|wall| (Metric::Wall, wall)).into_iter().chain(counts).collect();
        Self { subject, mode, scenario, case: None, values, requests: tally.kinds }
    }
}

impl Row {
    /// Returns the scenario's name, with its variant.
    pub fn scenario(&self) -> String {
        let name = self.scenario.name();
        self.case.map_or_else(|| name.to_owned(), |case| format!("{name} ({case})"))
    }

    /// Returns our value divided by upstream's, if both are known and upstream's is not 0.
    pub fn ratio(&self) -> Option<f64> {
        self.upstream.filter(|value| *value > 0.0).and_then(|upstream| Some(self.ours? / upstream))
    }

    /// Returns the goal, if there is one.
    pub fn goal(&self) -> Option<Goal> {
        self.scenario.goal(self.metric)
    }

    /// Returns true if the goal is met; `None` if there is no goal or a value is missing. Ratios, but not goals, are
    /// rounded to two decimals, as printed: the third varies from run to run.
    pub fn met(&self) -> Option<bool> {
        match self.goal()? {
            Goal::Ratio(max) => Some((self.ratio()? * 100.0).round() <= max * 100.0 + f64::EPSILON),
            Goal::Max(max) => Some(self.ours? <= max),
            Goal::Zero => Some(self.ours? == 0.0),
        }
    }
}

/// The identity of a row.
type Heading = (Mode, Scenario, Option<Case>, Metric);

/// Returns the medians of all runs, in the order of modes, scenarios and metrics.
pub fn rows(measurements: &[Measurement]) -> Vec<Row> {
    let mut groups: BTreeMap<Heading, BTreeMap<Subject, Vec<f64>>> = BTreeMap::new();
    for measurement in measurements {
        for (metric, value) in &measurement.values {
            let group = groups.entry((measurement.mode, measurement.scenario, measurement.case, *metric)).or_default();
            group.entry(measurement.subject).or_default().push(*value);
        }
    }
    let row = |((mode, scenario, case, metric), mut runs): (_, BTreeMap<Subject, Vec<f64>>)| {
        let mut of = |subject| runs.remove(&subject).and_then(median);
        Row { mode, scenario, case, metric, ours: of(Subject::Ours), upstream: of(Subject::Upstream) }
    };
    groups.into_iter().map(row).collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(subject: Subject, cpu: f64) -> Measurement {
        Measurement {
            subject,
            mode: Mode::Raised,
            scenario: Scenario::Create,
            case: None,
            values: [(Metric::Cpu, cpu)].into(),
            requests: BTreeMap::new(),
        }
    }

    #[test]
    fn ratios_are_of_medians_and_meet_goals_or_not() {
        use Subject::{Ours, Upstream};
        let runs = [(Ours, 1.0), (Ours, 9.0), (Ours, 2.0), (Upstream, 5.0), (Upstream, 7.0)];
        let mut rows = rows(&runs.map(|(subject, cpu)| measured(subject, cpu)));
        let row = rows.pop().unwrap();
        assert!(rows.is_empty());
        assert_eq!((row.ours, row.upstream), (Some(2.0), Some(6.0)));
        assert_eq!(row.met(), Some(true));
        assert_eq!(Row { ours: Some(2.004), ..row.clone() }.met(), Some(true));
        assert_eq!(Row { ours: Some(2.1), ..row.clone() }.met(), Some(false));
        assert_eq!(Row { upstream: None, ..row.clone() }.met(), None);
        assert_eq!(Row { upstream: Some(0.0), ..row }.ratio(), None);
    }

    #[test]
    fn absolute_goal_needs_no_upstream_value() {
        for (scenario, metric, good, bad) in
            [(Scenario::Idle, Metric::Writes, 0.0, 1.0), (Scenario::AllIdle, Metric::Resident, 25.0, 25.1)]
        {
            let row =
                |ours| Row { mode: Mode::Default, scenario, case: None, metric, ours: Some(ours), upstream: None };
            assert_eq!((row(good).met(), row(bad).met()), (Some(true), Some(false)), "{}", scenario.name());
        }
    }
}
