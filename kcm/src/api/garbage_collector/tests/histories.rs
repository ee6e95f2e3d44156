//! Random ownership graphs, deletions and late watch events: the collector deletes an object only if each of its
//! owners is absent or in foreground deletion, and no garbage remains.

use std::collections::{BTreeMap, VecDeque};

use kinds::meta::{Meta, OwnerRef, Time};
use kinds::{Resource, Str, Uid};
use proptest::prelude::*;
use runtime::write::Propagation;
use tokio::time::Instant;

use super::super::decide::{FOREGROUND, ORPHAN, OwnerState, Plan, plan};
use super::super::graph::{Effect, Graph};
use super::super::identity::Identity;
use super::{A, B, C, object, owner};

const KINDS: [Resource; 3] = [A, B, C];

/// Another version in which each kind is served. Watches deliver objects in `v1`.
const OTHER_VERSION: &str = "v1beta1";

/// Form of a dependent's reference to its owner.
#[derive(Debug, Clone, Copy)]
struct Reference {
    blocks: bool,
    wrong_name: bool,
    other_version: bool,
}

/// Blocks the owner's deletion, and has the right coordinates.
const BLOCKING: Reference = Reference { blocks: true, wrong_name: false, other_version: false };

#[derive(Debug, Clone)]
enum Step {
    /// Create an object. Owners are given by their index in the history.
    Create {
        kind: usize,
        namespace: bool,
        owners: Vec<(usize, Reference)>,
    },
    Delete {
        which: usize,
        propagation: Propagation,
    },
    DropOwners {
        which: usize,
    },
    /// The watch of a kind delivers the next change.
    Deliver {
        kind: usize,
    },
    /// The collector processes one object.
    Work,
    /// Another process becomes leader without state, and lists all objects.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    let weighted = proptest::bool::weighted;
    let reference = (0usize..40, any::<bool>(), weighted(0.1), weighted(0.2)).prop_map(
        |(owner, blocks, wrong_name, other_version)| (owner, Reference { blocks, wrong_name, other_version }),
    );
    let propagation =
        prop_oneof![Just(Propagation::Background), Just(Propagation::Foreground), Just(Propagation::Orphan)];
    prop_oneof![
        4 => (0usize..3, any::<bool>(), proptest::collection::vec(reference, 0..3))
            .prop_map(|(kind, namespace, owners)| Step::Create { kind, namespace, owners }),
        3 => (0usize..40, propagation).prop_map(|(which, propagation)| Step::Delete { which, propagation }),
        1 => (0usize..40).prop_map(|which| Step::DropOwners { which }),
        8 => (0usize..3).prop_map(|kind| Step::Deliver { kind }),
        8 => Just(Step::Work),
        1 => Just(Step::Restart),
    ]
}

/// The API server, the watches, and a collector that processes one object at a time.
struct Simulation {
    /// The existing objects.
    objects: BTreeMap<Uid, (usize, Meta)>,
    /// All objects that ever existed.
    history: Vec<(usize, Meta)>,
    version: u64,
    /// Events that the watches have not delivered yet; `None` in place of the object is a deletion.
    undelivered: [VecDeque<(Uid, Option<Meta>)>; 3],
    /// The objects that the watches have delivered.
    delivered: BTreeMap<Uid, Meta>,
    graph: Graph,
    checks: VecDeque<Uid>,
    orphans: VecDeque<Uid>,
    deletions_by_collector: usize,
    began: Instant,
}

impl Default for Simulation {
    fn default() -> Self {
        Self {
            objects: BTreeMap::new(),
            history: Vec::new(),
            version: 0,
            undelivered: Default::default(),
            delivered: BTreeMap::new(),
            graph: Graph::default(),
            checks: VecDeque::new(),
            orphans: VecDeque::new(),
            deletions_by_collector: 0,
            began: Instant::now(),
        }
    }
}

impl Simulation {
    fn change(&mut self, uid: &Uid, edit: impl FnOnce(&mut Meta)) {
        let Some((kind, meta)) = self.objects.get_mut(uid) else { return };
        let before = meta.clone();
        edit(meta);
        if *meta == before {
            return;
        }
        self.version += 1;
        meta.version = self.version;
        let kind = *kind;
        let meta = meta.clone();
        if meta.is_deleting() && meta.finalizers.is_empty() {
            self.objects.remove(uid);
            self.undelivered[kind].push_back((uid.clone(), None));
        } else {
            self.undelivered[kind].push_back((uid.clone(), Some(meta)));
        }
    }

    /// Applies a DELETE as the API server does.
    fn delete(&mut self, uid: &Uid, propagation: Propagation) {
        self.change(uid, |meta| {
            meta.deletion = Time(9);
            let mut finalizers: Vec<Str> =
                meta.finalizers.iter().filter(|found| ![FOREGROUND, ORPHAN].contains(&&***found)).cloned().collect();
            match propagation {
                Propagation::Background => {}
                Propagation::Foreground => finalizers.push(FOREGROUND.into()),
                Propagation::Orphan => finalizers.push(ORPHAN.into()),
            }
            meta.finalizers = finalizers.into();
        });
    }

    /// Returns the owner of a reference, if it exists.
    fn owner_of(&self, namespace: &str, reference: &OwnerRef) -> Option<&Meta> {
        let (kind, owner) = self.objects.get(&reference.uid)?;
        let identity = identity(*kind, owner);
        let reference = &in_watched_version(reference);
        (identity.matches_reference(reference) && identity.may_own_in(namespace)).then_some(owner)
    }

    fn waits_for_dependents(meta: &Meta) -> bool {
        meta.is_deleting() && meta.finalizers.iter().any(|found| **found == *FOREGROUND)
    }

    fn apply(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Check(uid) | Effect::CheckLater(uid) if !self.checks.contains(&uid) => {
                    self.checks.push_back(uid)
                }
                Effect::Orphan(uid) => self.orphans.push_back(uid),
                _ => {}
            }
        }
    }

    fn deliver(&mut self, kind: usize) {
        let Some((uid, meta)) = self.undelivered[kind].pop_front() else { return };
        let effects = match meta {
            Some(meta) => {
                let effects = self.graph.observe(&KINDS[kind], &meta);
                self.delivered.insert(uid, meta);
                effects
            }
            None => {
                self.delivered.remove(&uid);
                self.graph.remove_deleted(&uid)
            }
        };
        self.apply(effects);
    }

    fn restart(&mut self) {
        (self.graph, self.delivered) = Default::default();
        (self.checks, self.orphans, self.undelivered) = Default::default();
        for (kind, meta) in self.objects.clone().into_values() {
            self.graph.observe(&KINDS[kind], &meta);
            self.delivered.insert(meta.uid.clone(), meta);
        }
        let effects = self.graph.unsettled();
        self.apply(effects);
    }

    fn absent(&mut self, identity: &Identity) {
        let effects = self.graph.observe_absent(identity);
        self.apply(effects);
    }

    /// Processes one object; returns false if none is due.
    fn work(&mut self) -> bool {
        if let Some(uid) = self.orphans.pop_front() {
            self.orphan(&uid);
            return true;
        }
        let Some(uid) = self.checks.pop_front() else { return false };
        let Some(view) = self.graph.view(&uid) else { return true };
        if !view.state.observed {
            let exists = self.objects.get(&uid).is_some_and(|(kind, meta)| {
                // A read of a cluster-scoped kind ignores the namespace.
                let namespace = if KINDS[*kind].namespaced { &meta.namespace } else { &view.identity.namespace };
                let requested = &view.identity;
                let api_version = requested.api_version.replace(OTHER_VERSION, "v1").into();
                let requested = Identity { api_version, ..requested.clone() };
                Identity { namespace: namespace.clone(), ..identity(*kind, meta) } == requested
            });
            if exists { self.checks.push_back(uid) } else { self.absent(&view.identity) }
        } else if view.state.foreground {
            let blocking = self.graph.blocking(&uid);
            if blocking.is_empty() {
                self.remove_finalizer(&uid, FOREGROUND);
            }
        } else if !view.state.deleting && view.owned && !view.settled {
            self.collect(&view.identity);
        }
        true
    }

    fn collect(&mut self, item: &Identity) {
        // A write to an outdated version is a conflict, and the object is processed again.
        let Some((_, meta)) = self.objects.get(&item.uid) else { return self.absent(item) };
        if self.delivered.get(&item.uid).map(|delivered| delivered.version) != Some(meta.version) {
            return self.checks.push_back(item.uid.clone());
        }
        let meta = meta.clone();
        let mut owners = Vec::new();
        for reference in meta.owners.iter() {
            let coordinates = Identity::of_owner(reference, &meta.namespace);
            // Reads never expire here: only changes of the graph discard them.
            let known = self.graph.owner_reads.get(&coordinates, self.began);
            let state = known.unwrap_or_else(|| match self.owner_of(&meta.namespace, reference) {
                Some(owner) if Self::waits_for_dependents(owner) => OwnerState::Waiting,
                Some(_) => OwnerState::Solid,
                None => OwnerState::Dangling,
            });
            if state != OwnerState::Dangling {
                let ticket = self.graph.owner_reads.begin();
                self.graph.owner_reads.add(ticket, coordinates, state, self.began);
            }
            let known_absent = [&Str::from(""), &meta.namespace]
                .iter()
                .any(|namespace| self.graph.absent.contains(&Identity::of_owner(reference, namespace)));
            assert!(
                !known_absent || self.owner_of(&meta.namespace, reference).is_none(),
                "{reference:?} counts as absent, but exists"
            );
            owners.push((reference.uid.clone(), state));
        }
        let in_cycle = self.graph.may_be_in_cycle(&item.uid);
        match plan(&owners, &meta.finalizers, self.graph.has_dependents(&item.uid), || in_cycle) {
            Plan::Keep => {}
            Plan::DropReferences(absent) => self.drop_references(&item.uid, &absent),
            Plan::DeleteForeground { unblock } => {
                if unblock {
                    self.change(&item.uid, |meta| {
                        meta.owners = meta
                            .owners
                            .iter()
                            .map(|owner| OwnerRef { block_owner_deletion: Some(false), ..owner.clone() })
                            .collect();
                    });
                }
                self.delete_as_collector(&item.uid, Propagation::Foreground);
            }
            Plan::Delete(propagation) => self.delete_as_collector(&item.uid, propagation),
        }
    }

    fn delete_as_collector(&mut self, uid: &Uid, propagation: Propagation) {
        let (_, meta) = &self.objects[uid];
        assert!(!meta.owners.is_empty(), "the collector deletes {meta:?}, which has no owner reference");
        for reference in meta.owners.iter() {
            let exists =
                self.owner_of(&meta.namespace, reference).is_some_and(|owner| !Self::waits_for_dependents(owner));
            assert!(!exists, "the collector deletes {meta:?}, whose owner {reference:?} exists");
        }
        self.deletions_by_collector += 1;
        self.delete(uid, propagation);
    }

    fn drop_references(&mut self, uid: &Uid, owners: &[Uid]) {
        self.change(uid, |meta| {
            meta.owners = meta.owners.iter().filter(|owner| !owners.contains(&owner.uid)).cloned().collect();
        });
    }

    fn orphan(&mut self, uid: &Uid) {
        if !self.graph.view(uid).is_some_and(|view| view.state.orphaning) {
            return;
        }
        for dependent in self.graph.dependents(uid) {
            self.drop_references(&dependent.uid, std::slice::from_ref(uid));
        }
        self.remove_finalizer(uid, ORPHAN);
    }

    fn remove_finalizer(&mut self, uid: &Uid, finalizer: &str) {
        self.change(uid, |meta| {
            meta.finalizers = meta.finalizers.iter().filter(|found| ***found != *finalizer).cloned().collect();
        });
    }

    fn apply_step(&mut self, step: Step) {
        match step {
            Step::Create { kind, namespace, owners } => {
                let namespace = if !KINDS[kind].namespaced {
                    ""
                } else if namespace {
                    "n"
                } else {
                    "m"
                };
                let references = owners.into_iter().filter_map(|(which, form)| {
                    let (owner_kind, meta) = self.history.get(which)?;
                    let Uid::Uuid(number) = meta.uid else { return None };
                    // A cluster-scoped object can only have cluster-scoped owners: others can never be read.
                    let possible = KINDS[kind].namespaced || !KINDS[*owner_kind].namespaced;
                    let mut reference = owner(&KINDS[*owner_kind], u128::from_be_bytes(number));
                    reference.block_owner_deletion = Some(form.blocks);
                    if form.wrong_name {
                        reference.name = "wrong".into();
                    }
                    if form.other_version {
                        reference.api_version = reference.api_version.replace("v1", OTHER_VERSION).into();
                    }
                    possible.then_some(reference)
                });
                let mut references: Vec<OwnerRef> = references.collect();
                references.dedup_by_key(|reference| reference.uid.clone());
                let number = self.history.len() as u128 + 1;
                self.version += 1;
                let meta = Meta { version: self.version, ..object(number, namespace, references) };
                self.history.push((kind, meta.clone()));
                self.objects.insert(meta.uid.clone(), (kind, meta.clone()));
                self.undelivered[kind].push_back((meta.uid.clone(), Some(meta)));
            }
            Step::Delete { which, propagation } => {
                if let Some((_, meta)) = self.history.get(which).cloned() {
                    self.delete(&meta.uid, propagation);
                }
            }
            Step::DropOwners { which } => {
                if let Some((_, meta)) = self.history.get(which).cloned() {
                    self.change(&meta.uid, |meta| meta.owners = Vec::new().into());
                }
            }
            Step::Deliver { kind } => self.deliver(kind),
            Step::Work => drop(self.work()),
            Step::Restart => self.restart(),
        }
    }

    /// Runs until nothing changes.
    fn settle(&mut self) {
        for _ in 0..20_000 {
            let lagging = (0..3).find(|kind| !self.undelivered[*kind].is_empty());
            match lagging {
                Some(kind) => self.deliver(kind),
                None if !self.work() => return,
                None => {}
            }
        }
        panic!("work remains after 20,000 steps: {:?}", self.checks);
    }
}

/// Returns a reference with the version in which watches deliver the owner.
fn in_watched_version(reference: &OwnerRef) -> OwnerRef {
    OwnerRef { api_version: reference.api_version.replace(OTHER_VERSION, "v1").into(), ..reference.clone() }
}

fn identity(kind: usize, meta: &Meta) -> Identity {
    Identity {
        kind: KINDS[kind].kind.into(),
        api_version: KINDS[kind].api_version().into(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn random_history_deletes_exactly_the_garbage(steps in proptest::collection::vec(step(), 0..120)) {
        let mut simulation = Simulation::default();
        for step in steps {
            simulation.apply_step(step);
        }
        simulation.settle();
        for (_, meta) in simulation.objects.values() {
            let exists = |reference: &OwnerRef| simulation.owner_of(&meta.namespace, reference).is_some();
            prop_assert!(meta.owners.is_empty() || meta.owners.iter().any(exists), "{meta:?} has no owner");
            prop_assert!(!meta.is_deleting(), "the deletion of {meta:?} never ends");
        }
        let expected = (simulation.objects.len(), 0);
        prop_assert_eq!(simulation.graph.len(), expected, "the graph differs from the existing objects");
        // The checks of a new leader change nothing.
        let before = simulation.objects.clone();
        let effects = simulation.graph.unsettled();
        simulation.apply(effects);
        simulation.settle();
        prop_assert_eq!(simulation.objects, before);
    }
}

#[test]
fn history_with_foreground_deletion_deletes_dependents() {
    let mut simulation = Simulation::default();
    let create = |owners: Vec<(usize, Reference)>| Step::Create { kind: 0, namespace: true, owners };
    for step in [create(vec![]), create(vec![(0, BLOCKING)]), create(vec![(1, BLOCKING)])] {
        simulation.apply_step(step);
    }
    simulation.apply_step(Step::Delete { which: 0, propagation: Propagation::Foreground });
    simulation.settle();
    assert_eq!((simulation.objects.len(), simulation.deletions_by_collector), (0, 2));
}
