//! Which StatefulSets a change concerns.

use std::sync::Arc;

use kinds::meta::{Meta, ObjectKey};
use kinds::{Kind, PersistentVolumeClaim, Pod, StatefulSet};
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::store::{Change, Store, by_namespace, index_key};

use super::identity;
use crate::workloads::controller_revisions::Memory;

/// How soon a StatefulSet has to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Pods may have to be created or deleted.
    Now,
    /// Only counts may have changed.
    Soon,
}

/// What changes, and what is told of it.
pub struct Wiring<'a> {
    /// StatefulSets.
    pub sets: &'a Arc<Store<StatefulSet>>,
    /// Pods.
    pub pods: &'a Arc<Store<Pod>>,
    /// Claims.
    pub claims: &'a Arc<Store<PersistentVolumeClaim>>,
    /// Where keys go.
    pub queue: &'a Arc<Queue<ObjectKey>>,
    /// Forgets what is gone.
    pub consistency: &'a Arc<Consistency>,
    /// Forgets what is gone.
    pub memory: &'a Arc<Memory>,
}

/// Turns changes into keys on the queue.
pub fn subscribe(wiring: &Wiring<'_>) {
    let (queue, forgets, memory) = (wiring.queue.clone(), wiring.consistency.clone(), wiring.memory.clone());
    wiring.sets.subscribe(move |change| {
        if let Some(old) = change.old.filter(|old| change.new.is_none_or(|new| new.meta.uid != old.meta.uid)) {
            forgets.forget(&old.meta.key());
            memory.forget(&old.meta.uid);
        }
        if let Some(set) = change.new.or(change.old) {
            add(&queue, set.meta.key(), of_set(change));
        }
    });
    let (queue, sets) = (wiring.queue.clone(), wiring.sets.clone());
    wiring.pods.subscribe(move |change| {
        for (key, urgency) in of_pod(change, |key| sets.get(key).is_some_and(|set| set.parallel)) {
            add(&queue, key, urgency);
        }
        if let Some(orphan) = free_to_adopt(change) {
            let candidates = sets.by_index(&by_namespace(), index_key(&*orphan.namespace));
            for set in candidates.iter().filter(|set| selects(set, orphan)) {
                queue.add(set.meta.key());
            }
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

fn add(queue: &Queue<ObjectKey>, key: ObjectKey, urgency: Urgency) {
    match urgency {
        Urgency::Now => queue.add(key),
        Urgency::Soon => queue.add_coalesced(key),
    }
}

/// An update that left all but the status alone (as our own writes do) need not hurry.
pub fn of_set(change: &Change<'_, StatefulSet>) -> Urgency {
    match (change.old, change.new) {
        (Some(old), Some(new)) if old.meta.generation == new.meta.generation && !old.meta.differs(&new.meta) => {
            Urgency::Soon
        }
        _ => Urgency::Now,
    }
}

/// The owners of a pod, before and after. Where pods are ordered, the next one waits for this one to become ready.
pub fn of_pod(change: &Change<'_, Pod>, is_parallel: impl Fn(&ObjectKey) -> bool) -> Vec<(ObjectKey, Urgency)> {
    let (before, after) = (change.old.and_then(|pod| owner(&pod.meta)), change.new.and_then(|pod| owner(&pod.meta)));
    let Some(new) = change.new else {
        return before.map(|key| (key, Urgency::Now)).into_iter().collect();
    };
    let mut keys = Vec::new();
    if before != after {
        keys.extend(before.map(|key| (key, Urgency::Now)));
    }
    let Some(key) = after else { return keys };
    let urgency = match change.old {
        Some(old) if !old.differs(new) => return keys,
        Some(old) if old.is_active() && !new.is_active() || old.meta.labels != new.meta.labels => Urgency::Now,
        Some(old) if (old.ready, old.phase) != (new.ready, new.phase) && !is_parallel(&key) => Urgency::Now,
        _ => Urgency::Soon,
    };
    keys.push((key, urgency));
    keys
}

fn owner(pod: &Meta) -> Option<ObjectKey> {
    let controller = pod.controller().filter(|controller| &*controller.kind == StatefulSet::RESOURCE.kind)?;
    Some(ObjectKey { namespace: pod.namespace.clone(), name: controller.name.clone() })
}

/// The StatefulSets that a claim belonged to, itself or by a pod: a new pod may have waited for it to go.
pub fn of_claim(claim: &Meta) -> Vec<ObjectKey> {
    let sets = claim.owners.iter().filter_map(|owner| match &*owner.kind {
        "StatefulSet" => Some(&*owner.name),
        "Pod" => identity::parse(&owner.name).map(|(set, _)| set),
        _ => None,
    });
    sets.map(|set| ObjectKey::new(claim.namespace.clone(), set)).collect()
}

/// A pod without a controller that somebody may want now.
pub fn free_to_adopt<'a>(change: &Change<'a, Pod>) -> Option<&'a Meta> {
    let new = &change.new?.meta;
    let worth_a_look = change.old.is_none_or(|old| old.meta.labels != new.labels || old.meta.controller().is_some());
    (worth_a_look && new.controller().is_none() && !new.is_deleting()).then_some(new)
}

/// An empty selector selects nothing here (client-go, listers: GetPodStatefulSets); nor does one whose StatefulSet has
/// another name than the pod's says.
fn selects(set: &StatefulSet, pod: &Meta) -> bool {
    !set.selector.is_everything() && set.selector.matches(&pod.labels) && is_member(set, pod)
}

/// True when a pod's name says that it is one of this StatefulSet's.
pub fn is_member(set: &StatefulSet, pod: &Meta) -> bool {
    identity::parse(&pod.name).is_some_and(|(parent, _)| *parent == *set.meta.name)
}
