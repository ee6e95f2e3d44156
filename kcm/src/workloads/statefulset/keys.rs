//! Maps changes to the keys of the StatefulSets that they affect.

use std::sync::Arc;

use kinds::meta::{Meta, ObjectKey};
use kinds::{PersistentVolumeClaim, Pod, StatefulSet};
use runtime::children::{self, Urgency, adoptable, deleted, enqueue, wake_adopters};
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::store::{Change, Store};

use super::identity;
use crate::pods::keys::owners_of_pod;

/// The caches to subscribe to, and the state that their changes update.
pub struct Wiring<'a> {
    /// StatefulSets.
    pub sets: &'a Arc<Store<StatefulSet>>,
    /// Pods.
    pub pods: &'a Arc<Store<Pod>>,
    /// Claims.
    pub claims: &'a Arc<Store<PersistentVolumeClaim>>,
    /// The controller's queue.
    pub queue: &'a Arc<Queue<ObjectKey>>,
    /// Writes by this process; entries of deleted StatefulSets are removed.
    pub consistency: &'a Arc<Consistency>,
}

/// Enqueues the StatefulSets that changes affect.
pub fn subscribe(wiring: &Wiring<'_>) {
    let (queue, consistency) = (wiring.queue.clone(), wiring.consistency.clone());
    wiring.sets.subscribe(move |change| {
        if let Some(old) = deleted(change) {
            consistency.forget(&old.meta.key());
        }
        if let Some(set) = change.new.or(change.old) {
            enqueue(&queue, set.meta.key(), of_set(change));
        }
    });
    let (queue, sets) = (wiring.queue.clone(), wiring.sets.clone());
    wiring.pods.subscribe(move |change| {
        for (key, urgency) in of_pod(change, |key| sets.get(key).is_some_and(|set| set.parallel)) {
            enqueue(&queue, key, urgency);
        }
        if let Some(orphan) = adoptable(change) {
            wake_adopters(&sets, orphan, |set| selects(set, orphan), |key| queue.add(key));
        }
    });
    let (queue, sets) = (wiring.queue.clone(), wiring.sets.clone());
    wiring.claims.subscribe(move |change| {
        if change.new.is_none() {
            let keys = change.old.into_iter().flat_map(|old| of_claim(&old.meta));
            keys.filter(|key| sets.get(key).is_some()).for_each(|key| queue.add(key));
        }
    });
}

/// Returns the urgency of a StatefulSet's change. An update of the status alone, as this controller writes it, may be
/// coalesced.
pub fn of_set(change: &Change<'_, StatefulSet>) -> Urgency {
    match (change.old, change.new) {
        (Some(old), Some(new)) if old.meta.generation == new.meta.generation && !old.meta.differs(&new.meta) => {
            Urgency::Soon
        }
        _ => Urgency::Now,
    }
}

/// Returns the old and new owners of a pod. If pods are ordered, the next one waits until this one is ready, so a
/// change of readiness or phase is urgent.
pub fn of_pod(change: &Change<'_, Pod>, is_parallel: impl Fn(&ObjectKey) -> bool) -> Vec<(ObjectKey, Urgency)> {
    let mut keys = owners_of_pod::<StatefulSet>(change);
    let is_step = matches!((change.old, change.new), (Some(old), Some(new))
        if (old.ready, old.phase) != (new.ready, new.phase));
    for (key, urgency) in &mut keys {
        if is_step && !is_parallel(key) {
            *urgency = Urgency::Now;
        }
    }
    keys
}

/// Returns the StatefulSets that owned a claim, directly or by a pod: a new pod may wait for the claim's deletion.
pub fn of_claim(claim: &Meta) -> Vec<ObjectKey> {
    let sets = claim.owners.iter().filter_map(|owner| match &*owner.kind {
        "StatefulSet" => Some(&*owner.name),
        "Pod" => identity::parse(&owner.name).map(|(set, _)| set),
        _ => None,
    });
    sets.map(|set| ObjectKey::new(claim.namespace.clone(), set)).collect()
}

/// Returns true if a pod has the labels and the name of a StatefulSet's pods.
fn selects(set: &StatefulSet, pod: &Meta) -> bool {
    children::selects(&set.selector, pod) && is_member(set, pod)
}

/// Returns true if a pod's name is that of a pod of this StatefulSet.
pub fn is_member(set: &StatefulSet, pod: &Meta) -> bool {
    identity::parse(&pod.name).is_some_and(|(parent, _)| *parent == *set.meta.name)
}
