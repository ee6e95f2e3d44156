//! Adds the keys of sets to the queue when sets or their pods change.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::{Kind, Pod};
use runtime::children::{Urgency, adoptable, deleted, enqueue, selects, wake_adopters};
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::store::{Change, Store};

use super::pod_set::PodSet;
use crate::pods::keys::owners_of_pod;

/// Adds a set's key to the queue when the set, one of its pods, or a pod that the set may adopt changes.
pub fn subscribe<K: PodSet>(
    sets: &Arc<Store<K>>,
    pods: &Arc<Store<Pod>>,
    queue: &Arc<Queue<ObjectKey>>,
    consistency: &Arc<Consistency>,
) {
    let (wake, consistency) = (queue.clone(), consistency.clone());
    sets.subscribe(move |change| {
        if let Some(old) = deleted(change) {
            consistency.forget(&old.meta().key());
        }
        if let Some(set) = change.new.or(change.old) {
            enqueue(&wake, set.meta().key(), of_set(change));
        }
    });
    let (wake, sets) = (queue.clone(), sets.clone());
    pods.subscribe(move |change| {
        for (key, urgency) in owners_of_pod::<K>(change) {
            enqueue(&wake, key, urgency);
        }
        if let Some(orphan) = adoptable(change) {
            wake_adopters(&sets, orphan, |set| selects(&set.replica_set().selector, orphan), |key| wake.add(key));
        }
    });
}

/// Returns the urgency of a change of a set. An update of the status alone, as this controller writes it, may be
/// coalesced.
pub fn of_set<K: Kind>(change: &Change<'_, K>) -> Urgency {
    match (change.old, change.new) {
        (Some(old), Some(new)) if old.meta().generation == new.meta().generation && !old.meta().differs(new.meta()) => {
            Urgency::Soon
        }
        _ => Urgency::Now,
    }
}
