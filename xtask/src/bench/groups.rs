//! Groups of scenarios that share a kind of cluster. Each group measures one manager completely before the next one.
//! Only endpoint-lag alternates between the managers, in short blocks.

use anyhow::Result;

use super::endpoint_churn::Churn;
use super::many_kinds::ManyKinds;
use super::many_pods::{ControllerSet, ManyPods};
use super::measure::{Measurement, Scenario};
use super::report::Report;
use super::shared_cluster::SharedCluster;
use super::subject::{Binaries, Mode, Subject};
use super::{Arguments, autoscaling, lag, mixed, rollout, volumes};

/// Scenarios of one manager on a separate control plane, in this order.
const ROLLOUTS: [Scenario; 4] = [Scenario::IdleEmpty, Scenario::Create, Scenario::Update, Scenario::Idle];

/// Scenarios of the shared control plane, in this order: the last one leaves its nodes behind.
const ON_A_SHARED_CLUSTER: [Scenario; 4] =
    [Scenario::AllIdle, Scenario::NamespaceDelete, Scenario::GarbageCollection, Scenario::NodeLeases];

/// A manager with its rate limits, and the name of its log.
type Turn = (Mode, Subject, String);

/// Measures all chosen scenarios; returns the measurements, and a text for each failure.
pub async fn measure(
    arguments: &Arguments,
    binaries: &Binaries,
    report: &Report,
) -> Result<(Vec<Measurement>, Vec<String>)> {
    let chosen = arguments.scenarios();
    let (measurements, failures) = (Vec::new(), Vec::new());
    let mut groups = Groups { arguments, binaries, report, chosen, measurements, failures };
    groups.rollouts().await;
    groups.mixed().await;
    groups.autoscaling().await;
    groups.fresh_volumes().await;
    groups.claims_at_rest().await;
    groups.shared_cluster().await;
    groups.many_pods().await;
    groups.many_kinds().await;
    groups.endpoint_lag().await;
    groups.endpoint_churn().await;
    let Groups { chosen, mut measurements, failures, .. } = groups;
    measurements.retain(|measurement| chosen.contains(&measurement.scenario));
    Ok((measurements, failures))
}

struct Groups<'a> {
    arguments: &'a Arguments,
    binaries: &'a Binaries,
    report: &'a Report,
    chosen: Vec<Scenario>,
    measurements: Vec<Measurement>,
    failures: Vec<String>,
}

impl Groups<'_> {
    fn chosen_of(&self, scenarios: &[Scenario]) -> Vec<Scenario> {
        scenarios.iter().copied().filter(|scenario| self.chosen.contains(scenario)).collect()
    }

    fn is_chosen(&self, scenario: Scenario) -> bool {
        self.chosen.contains(&scenario)
    }

    /// Returns each manager for each run and mode, in the order of measurement. The names of logs begin with `kind`.
    fn turns(&self, kind: &str) -> Vec<Turn> {
        let mut turns = Vec::new();
        for run in 1..=self.arguments.runs {
            for mode in self.arguments.modes() {
                for subject in self.arguments.subjects(run) {
                    turns.push((mode, subject, format!("{kind}-{}-{}-{run}", mode.name(), subject.name())));
                }
            }
        }
        turns
    }

    fn record(&mut self, name: String, measured: Result<Vec<Measurement>>) {
        match measured {
            Ok(measured) => self.measurements.extend(measured),
            Err(error) => {
                eprintln!("  FAILED: {error:#}");
                self.failures.push(format!("{name}: {error:#}"));
            }
        }
    }

    async fn rollouts(&mut self) {
        let scenarios = self.chosen_of(&ROLLOUTS);
        if scenarios.is_empty() {
            return;
        }
        for (mode, subject, name) in self.turns("rollout") {
            eprintln!("{name}");
            let (size, log) = (self.arguments.size(mode), self.report.log(&name));
            let measured = rollout::measure(self.binaries, (subject, mode), size, &scenarios, &log).await;
            self.record(name, measured);
        }
    }

    async fn mixed(&mut self) {
        if !self.is_chosen(Scenario::Mixed) {
            return;
        }
        for (mode, subject, name) in self.turns("mixed") {
            eprintln!("{name}");
            let (size, log) = (self.arguments.mix(mode), self.report.log(&name));
            let measured = mixed::measure(self.binaries, (subject, mode), size, &log).await;
            self.record(name, measured.map(|measured| vec![measured]));
        }
    }

    async fn autoscaling(&mut self) {
        if !self.is_chosen(Scenario::Autoscaling) {
            return;
        }
        for (mode, subject, name) in self.turns("autoscaling") {
            eprintln!("{name}");
            let (count, log) = (self.arguments.autoscalers(mode), self.report.log(&name));
            let measured = autoscaling::measure(self.binaries, (subject, mode), count, &log).await;
            self.record(name, measured.map(|measured| vec![measured]));
        }
    }

    async fn fresh_volumes(&mut self) {
        for scenario in self.chosen_of(&volumes::WITH_NEW_CLUSTERS) {
            for (mode, subject, name) in self.turns(scenario.name()) {
                eprintln!("{name}");
                let (size, log) = (self.arguments.volumes(mode), self.report.log(&name));
                let measured = volumes::measure(self.binaries, (subject, mode), scenario, size, &log).await;
                self.record(name, measured.map(|measured| vec![measured]));
            }
        }
    }

    async fn claims_at_rest(&mut self) {
        if !self.is_chosen(Scenario::ClaimsAtRest) {
            return;
        }
        let claims = if self.arguments.quick { 500 } else { 10_000 };
        let rest = match volumes::ClaimsAtRest::create(claims).await {
            Ok(rest) => rest,
            Err(error) => return self.record("claims at rest".into(), Err(error)),
        };
        let turns = self.turns(Scenario::ClaimsAtRest.name());
        if let Some((_, subject, _)) = turns.first()
            && let Err(error) = rest.reach_steady_state(self.binaries, *subject).await
        {
            self.record("steady state".into(), Err(error));
        }
        for (mode, subject, name) in turns {
            eprintln!("{name}");
            let (idle, log) = (self.arguments.idle(), self.report.log(&name));
            let measured = rest.measure(self.binaries, (subject, mode), idle, &log).await;
            self.record(name, measured.map(|measured| vec![measured]));
        }
    }

    async fn shared_cluster(&mut self) {
        let scenarios = self.chosen_of(&ON_A_SHARED_CLUSTER);
        if scenarios.is_empty() {
            return;
        }
        let mut shared = match SharedCluster::start().await {
            Ok(shared) => shared,
            Err(error) => return self.record("shared cluster".into(), Err(error)),
        };
        for scenario in scenarios {
            for (mode, subject, name) in self.turns(scenario.name()) {
                eprintln!("{name}");
                let (size, log) = (self.arguments.shared_cluster(mode), self.report.log(&name));
                let measured = shared.measure(self.binaries, (subject, mode), scenario, size, &log).await;
                self.record(name, measured.map(|measured| vec![measured]));
            }
        }
    }

    /// Measures managers in clusters with many pods: first without volumes, then half of the pods have one.
    async fn many_pods(&mut self) {
        for managers in [vec![ControllerSet::Workloads, ControllerSet::All], vec![ControllerSet::Volumes]] {
            let managers: Vec<ControllerSet> = managers
                .into_iter()
                .filter(|controllers| !self.chosen_of(&controllers.scenarios()).is_empty())
                .collect();
            if !managers.is_empty() {
                self.among_many_pods(&managers).await;
            }
        }
    }

    async fn among_many_pods(&mut self, managers: &[ControllerSet]) {
        let pods = self.arguments.pods(20_000);
        eprintln!("many-pods: {pods} pods");
        let mut cluster = match ManyPods::create(pods, managers == [ControllerSet::Volumes]).await {
            Ok(cluster) => cluster,
            Err(error) => return self.record("many-pods".into(), Err(error)),
        };
        for controllers in managers {
            let turns = self.turns(controllers.name());
            if let (ControllerSet::All | ControllerSet::Volumes, Some((_, subject, _))) = (controllers, turns.first())
                && let Err(error) = cluster.reach_steady_state(self.binaries, (*subject, Mode::Raised)).await
            {
                self.record("steady state".into(), Err(error));
            }
            for (mode, subject, name) in turns {
                eprintln!("{name}");
                let (idle, log) = (self.arguments.idle(), self.report.log(&name));
                let measured = cluster.measure(self.binaries, (subject, mode), *controllers, idle, &log).await;
                self.record(name, measured);
            }
        }
    }

    async fn many_kinds(&mut self) {
        if !self.is_chosen(Scenario::ManyKinds) {
            return;
        }
        let mut cluster = match ManyKinds::create(self.arguments.kinds()).await {
            Ok(cluster) => cluster,
            Err(error) => return self.record("many kinds".into(), Err(error)),
        };
        for (mode, subject, name) in self.turns(Scenario::ManyKinds.name()) {
            eprintln!("{name}");
            let (idle, log) = (self.arguments.idle(), self.report.log(&name));
            let measured = cluster.measure(self.binaries, (subject, mode), idle, &log).await;
            self.record(name, measured.map(|measured| vec![measured]));
        }
    }

    async fn endpoint_lag(&mut self) {
        if !self.is_chosen(Scenario::EndpointLag) {
            return;
        }
        let size = if self.arguments.quick { lag::Size::QUICK } else { lag::Size::WHOLE };
        for run in 1..=self.arguments.runs {
            for mode in self.arguments.modes() {
                let name = format!("endpoint-lag-{}-{run}", mode.name());
                eprintln!("{name}");
                let subjects = self.arguments.subjects(run);
                let measured = lag::measure(self.binaries, &subjects, mode, size, self.report).await;
                self.record(name, measured);
            }
        }
    }

    async fn endpoint_churn(&mut self) {
        if !self.is_chosen(Scenario::EndpointChurn) {
            return;
        }
        let churn = match Churn::create(self.arguments.churn()).await {
            Ok(churn) => churn,
            Err(error) => return self.record("endpoint churn".into(), Err(error)),
        };
        for (mode, subject, name) in self.turns("churn") {
            eprintln!("{name}");
            let measured = churn.measure(self.binaries, (subject, mode), &self.report.log(&name)).await;
            self.record(name, measured.map(|measured| vec![measured]));
        }
    }
}
