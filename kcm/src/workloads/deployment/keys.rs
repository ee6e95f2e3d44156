//! Maps changes to the keys of the Deployments that they affect.

use std::sync::Arc;

use kinds::deployment::Strategy;
use kinds::meta::ObjectKey;
use kinds::{Deployment, Pod, ReplicaSet};
use runtime::children::{adoptable, deleted, owner_of, owners_of, selects, wake_adopters};
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::store::{Change, Store};

/// Enqueues the Deployments that changes affect.
pub fn subscribe(
    deployments: &Arc<Store<Deployment>>,
    sets: &Arc<Store<ReplicaSet>>,
    pods: &Arc<Store<Pod>>,
    queue: &Arc<Queue<ObjectKey>>,
    consistency: &Arc<Consistency>,
) {
    let (wake, consistency) = (queue.clone(), consistency.clone());
    deployments.subscribe(move |change| {
        if let Some(old) = deleted(change) {
            consistency.forget(&old.meta.key());
        }
        let keys = change.new.or(change.old).map(|deployment| deployment.meta.key());
        add_all(&wake, keys, only_status_of_deployment(change));
    });
    let (wake, candidates) = (queue.clone(), deployments.clone());
    sets.subscribe(move |change| {
        add_all(&wake, owners_of::<Deployment, _>(change), only_status_of_set(change));
        if let Some(orphan) = adoptable(change) {
            wake_adopters(&candidates, orphan, |found| selects(&found.selector, orphan), |key| wake.add(key));
        }
    });
    let (wake, sets, deployments) = (queue.clone(), sets.clone(), deployments.clone());
    pods.subscribe(move |change| {
        let Some(pod) = stopped(change) else { return };
        let set = owner_of::<ReplicaSet>(&pod.meta).and_then(|key| sets.get(&key));
        let key = set.and_then(|set| owner_of::<Deployment>(&set.meta));
        // Only `Recreate` waits for pods; a rolling update depends on the statuses of the sets.
        if let Some(key) =
            key.filter(|key| deployments.get(key).is_some_and(|found| found.strategy == Strategy::Recreate))
        {
            wake.add(key);
        }
    });
}

fn add_all(queue: &Queue<ObjectKey>, keys: impl IntoIterator<Item = ObjectKey>, only_status: bool) {
    for key in keys {
        if only_status { queue.add_coalesced(key) } else { queue.add(key) }
    }
}

/// Returns true for an update of the status alone, which may be coalesced.
pub fn only_status_of_set(change: &Change<'_, ReplicaSet>) -> bool {
    matches!((change.old, change.new), (Some(old), Some(new))
        if old.meta.generation == new.meta.generation && !old.meta.differs(&new.meta) && old.annotations == new.annotations)
}

/// Like [`only_status_of_set`], for a Deployment.
pub fn only_status_of_deployment(change: &Change<'_, Deployment>) -> bool {
    matches!((change.old, change.new), (Some(old), Some(new))
        if old.meta.generation == new.meta.generation && !old.meta.differs(&new.meta) && old.annotations == new.annotations)
}

/// Returns a pod that finished or was deleted. Upstream requeues the Deployment only when the pod is deleted, although
/// a finished pod does not block a rollout. Upstream: pkg/controller/deployment, deletePod.
pub fn stopped<'a>(change: &Change<'a, Pod>) -> Option<&'a Arc<Pod>> {
    deleted(change)
        .or_else(|| change.old.filter(|old| !old.is_terminal() && change.new.is_some_and(|new| new.is_terminal())))
}
