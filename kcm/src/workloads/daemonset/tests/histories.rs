//! Random histories of nodes, kubelets and templates: the bounds hold at every step, and every rollout completes.

use std::collections::BTreeMap;

use proptest::prelude::{Just, ProptestConfig, TestCaseError, any, prop_assert, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::*;
use crate::pods::availability::is_available;
use crate::workloads::daemonset::decide::{Plan, allows_surge, manage};
use crate::workloads::daemonset::decide_roll::{bounds, roll};

/// A step of a history.
#[derive(Debug, Clone)]
enum Step {
    /// The controller reconciles.
    Reconcile,
    /// The pods of a node become ready, or unready.
    Report(usize, bool),
    /// A pod of a node fails.
    Fail(usize),
    /// The deletion of a node's pods has finished.
    Finish(usize),
    /// The fitness of a node changes.
    Fit(usize, Fit),
    /// The template changes.
    Update,
}

fn steps(nodes: usize) -> impl proptest::strategy::Strategy<Value = Vec<Step>> {
    let fits = prop_oneof![3 => Just(RUNS), 1 => Just(STAYS), 1 => Just(Fit::NONE)];
    let step = prop_oneof![
        6 => Just(Step::Reconcile),
        6 => (0..nodes, any::<bool>()).prop_map(|(node, ready)| Step::Report(node, ready)),
        1 => (0..nodes).prop_map(Step::Fail),
        5 => (0..nodes).prop_map(Step::Finish),
        1 => (0..nodes, fits).prop_map(|(node, fit)| Step::Fit(node, fit)),
        1 => Just(Step::Update),
    ];
    proptest::collection::vec(step, 0..80)
}

struct Model {
    set: DaemonSet,
    fits: Vec<Fit>,
    pods: BTreeMap<String, (usize, Pod)>,
    made: usize,
    version: usize,
}

impl Model {
    fn places(&self) -> Vec<Place> {
        let at =
            |node| self.pods.values().filter(move |(place, _)| *place == node).map(|(_, pod)| pod.clone()).collect();
        self.fits.iter().enumerate().map(|(node, fit)| named(node, Some(*fit), at(node))).collect()
    }

    fn hash(&self) -> String {
        format!("v{}", self.version)
    }

    /// Returns the number of nodes that should have an available pod and have none.
    fn down(&self) -> usize {
        let up = |place: &Place| place.pods.iter().any(|pod| !pod.meta.is_deleting() && is_available(pod, 0, now()));
        self.places().iter().filter(|place| place.runs() && !up(place)).count()
    }

    fn plan(&self) -> Plan {
        let places = self.places();
        let hash = self.hash();
        let revision = Revision { hash: &hash, generation: None };
        let plan = manage(&self.set, &places, revision, now(), |_| None);
        match bounds(&self.set, &places).expect("numbers") {
            Some(bounds) if plan.is_nothing() => roll(&self.set, &places, bounds, revision, now()),
            _ => plan,
        }
    }

    fn reconcile(&mut self) -> Result<bool, TestCaseError> {
        let before = self.down();
        let places = self.places();
        let plan = self.plan();
        let unavailable = bounds(&self.set, &places).expect("numbers").map_or(0, |bounds| bounds.unavailable);
        let nothing = plan.is_nothing();
        for pod in plan.delete {
            let known = self.pods.get_mut(&*pod.meta.name).expect("it exists");
            prop_assert!(!known.1.meta.is_deleting(), "deleted twice");
            known.1 = deleting(known.1.clone());
        }
        for node in plan.create {
            let index: usize = node.trim_start_matches("node-").parse().expect("a number");
            prop_assert!(self.fits[index].runs, "the node should have no pod");
            self.made += 1;
            let name = format!("pod-{}", self.made);
            let age = 5000 - i64::try_from(self.made).expect("few");
            let made = born(unready(Pod { node, ..pod(&name, &self.hash()) }), age);
            self.pods.insert(name, (index, made));
        }
        prop_assert!(
            self.down() <= before.max(unavailable),
            "{} down, {before} before, {unavailable} may be",
            self.down()
        );
        let max = if allows_surge(&self.set) { 2 } else { 1 };
        for place in self.places() {
            let there = place.pods.iter().filter(|pod| !pod.meta.is_deleting() && !pod.is_terminal()).count();
            prop_assert!(there <= max, "{there} pods on {}", place.node);
        }
        Ok(nothing)
    }

    fn on(&mut self, node: usize) -> impl Iterator<Item = &mut Pod> {
        self.pods.values_mut().filter(move |(place, _)| *place == node).map(|(_, pod)| pod)
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Reconcile => {
                self.reconcile()?;
            }
            Step::Report(node, ready) => {
                for pod in self.on(node).filter(|pod| !pod.is_terminal()) {
                    pod.ready = ready;
                    pod.ready_since = Time(NOW - 10);
                }
            }
            Step::Fail(node) => {
                if let Some(pod) = self.on(node).next() {
                    *pod = ended(pod.clone(), Phase::Failed);
                }
            }
            Step::Finish(node) => self.pods.retain(|_, (place, pod)| *place != node || !pod.meta.is_deleting()),
            Step::Fit(node, fit) => self.fits[node] = fit,
            Step::Update => self.version += 1,
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn bounds_hold_and_every_rollout_ends(
        steps in steps(4), unavailable in 0..3, surge in 0..3, on_delete in proptest::bool::weighted(0.1),
    ) {
        let strategy = if on_delete { Strategy::OnDelete } else { rolling(unavailable, surge) };
        let mut model =
            Model { set: set(strategy), fits: vec![RUNS; 4], pods: BTreeMap::new(), made: 0, version: 1 };
        for step in steps {
            model.step(step)?;
        }
        // From here on all pods become ready, and all deletions finish.
        for _ in 0..60 {
            if model.reconcile()? && model.pods.values().all(|(_, pod)| pod.ready && !pod.meta.is_deleting()) {
                break;
            }
            for node in 0..4 {
                model.step(Step::Finish(node))?;
                model.step(Step::Report(node, true))?;
            }
        }
        prop_assert!(model.plan().is_nothing(), "the rollout does not complete");
        for (fit, place) in model.fits.clone().into_iter().zip(model.places()) {
            let current = place.pods.iter().filter(|pod| on_delete || Revision { hash: &model.hash(), generation: None }.is_of(pod)).count();
            let right = if fit.runs { current == 1 && place.pods.len() == 1 } else { fit.stays || place.pods.is_empty() };
            prop_assert!(right, "{place:?}");
        }
    }
}
