//! Which sets of pods a change concerns.

use std::sync::Arc;

use kinds::meta::{Meta, ObjectKey};
use kinds::{Kind, Pod, ReplicaSet};
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::store::{Change, Store, by_namespace, index_key};

use super::pod_set::PodSet;

/// How soon a set has to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Pods may have to be created or deleted.
    Now,
    /// Only counts may have changed.
    Soon,
}

/// Turns changes into keys on the queue.
pub fn subscribe<K: PodSet>(
    sets: &Arc<Store<K>>,
    pods: &Arc<Store<Pod>>,
    queue: &Arc<Queue<ObjectKey>>,
    consistency: &Arc<Consistency>,
) {
    let (sets_queue, forgets) = (queue.clone(), consistency.clone());
    sets.subscribe(move |change| {
        if is_replaced_or_gone(change) {
            change.old.into_iter().for_each(|old| forgets.forget(&old.meta().key()));
        }
        if let Some(key) = change.new.or(change.old).map(|set| set.meta().key()) {
            add(&sets_queue, key, of_set(change));
        }
    });
    let (pods_queue, sets) = (queue.clone(), sets.clone());
    pods.subscribe(move |change| {
        for (key, urgency) in of_pod::<K>(change) {
            add(&pods_queue, key, urgency);
        }
        if let Some(orphan) = free_to_adopt(change) {
            let candidates = sets.by_index(&by_namespace(), index_key(&*orphan.namespace));
            for set in candidates.iter().filter(|set| selects(set.replica_set(), orphan)) {
                pods_queue.add(set.meta().key());
            }
        }
    });
}

fn add(queue: &Queue<ObjectKey>, key: ObjectKey, urgency: Urgency) {
    match urgency {
        Urgency::Now => queue.add(key),
        Urgency::Soon => queue.add_coalesced(key),
    }
}

/// True when the object of before is no more, even if another one has its name.
fn is_replaced_or_gone<K: Kind>(change: &Change<'_, K>) -> bool {
    match (change.old, change.new) {
        (Some(old), Some(new)) => old.meta().uid != new.meta().uid,
        (_, new) => new.is_none(),
    }
}

/// An update that left all but the status alone (as our own writes do) need not hurry.
pub fn of_set<K: Kind>(change: &Change<'_, K>) -> Urgency {
    match (change.old, change.new) {
        (Some(old), Some(new)) if old.meta().generation == new.meta().generation && !old.meta().differs(new.meta()) => {
            Urgency::Soon
        }
        _ => Urgency::Now,
    }
}

/// The owners of kind `K` of a pod, before and after.
pub fn of_pod<K: Kind>(change: &Change<'_, Pod>) -> Vec<(ObjectKey, Urgency)> {
    let (before, after) =
        (change.old.and_then(|pod| owner::<K>(&pod.meta)), change.new.and_then(|pod| owner::<K>(&pod.meta)));
    let Some(new) = change.new else {
        return before.map(|key| (key, Urgency::Now)).into_iter().collect();
    };
    let mut keys = Vec::new();
    if before != after {
        keys.extend(before.map(|key| (key, Urgency::Now)));
    }
    let urgency = match change.old {
        Some(old) if !old.differs(new) => return keys,
        Some(old) if old.is_active() && !new.is_active() || old.meta.labels != new.meta.labels => Urgency::Now,
        _ => Urgency::Soon,
    };
    keys.extend(after.map(|key| (key, urgency)));
    keys
}

fn owner<K: Kind>(pod: &Meta) -> Option<ObjectKey> {
    let controller = pod.controller().filter(|controller| &*controller.kind == K::RESOURCE.kind)?;
    Some(ObjectKey { namespace: pod.namespace.clone(), name: controller.name.clone() })
}

/// A pod without a controller that somebody may want now.
pub fn free_to_adopt<'a>(change: &Change<'a, Pod>) -> Option<&'a Meta> {
    let new = &change.new?.meta;
    let worth_a_look = change.old.is_none_or(|old| old.meta.labels != new.labels || old.meta.controller().is_some());
    (worth_a_look && new.controller().is_none() && !new.is_deleting()).then_some(new)
}

/// An empty selector selects nothing here (client-go, listers: GetPodReplicaSets).
fn selects(set: &ReplicaSet, pod: &Meta) -> bool {
    !set.selector.is_everything() && set.selector.matches(&pod.labels)
}
