//! Which Deployments a change concerns.

use std::sync::Arc;

use kinds::deployment::Strategy;
use kinds::meta::{Meta, ObjectKey};
use kinds::{Deployment, Kind, Pod, ReplicaSet};
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::store::{Change, Store, by_namespace, index_key};

/// Turns changes into keys on the queue.
pub fn subscribe(
    deployments: &Arc<Store<Deployment>>,
    sets: &Arc<Store<ReplicaSet>>,
    pods: &Arc<Store<Pod>>,
    queue: &Arc<Queue<ObjectKey>>,
    consistency: &Arc<Consistency>,
) {
    let (wake, forgets) = (queue.clone(), consistency.clone());
    deployments.subscribe(move |change| {
        if let Some(old) = gone(change) {
            forgets.forget(&old.meta.key());
        }
        let keys = change.new.or(change.old).map(|deployment| deployment.meta.key());
        add_all(&wake, keys, only_status_of_deployment(change));
    });
    let (wake, candidates) = (queue.clone(), deployments.clone());
    sets.subscribe(move |change| {
        add_all(&wake, of_set(change), only_status_of_set(change));
        if let Some(orphan) = free_to_adopt(change) {
            let candidates = candidates.by_index(&by_namespace(), index_key(&*orphan.namespace));
            for deployment in candidates.iter().filter(|deployment| selects(deployment, orphan)) {
                wake.add(deployment.meta.key());
            }
        }
    });
    let (wake, sets, deployments) = (queue.clone(), sets.clone(), deployments.clone());
    pods.subscribe(move |change| {
        let Some(pod) = stopped(change) else { return };
        let set = owner(&pod.meta, ReplicaSet::RESOURCE.kind).and_then(|key| sets.get(&key));
        let key = set.and_then(|set| owner(&set.meta, Deployment::RESOURCE.kind));
        // Only this strategy waits for pods; the others wait for what their sets report.
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

/// True for an update that left all but the status alone: several of them are taken together.
pub fn only_status_of_set(change: &Change<'_, ReplicaSet>) -> bool {
    matches!((change.old, change.new), (Some(old), Some(new))
        if old.meta.generation == new.meta.generation && !old.meta.differs(&new.meta) && old.annotations == new.annotations)
}

/// As [`only_status_of_set`], for a Deployment.
pub fn only_status_of_deployment(change: &Change<'_, Deployment>) -> bool {
    matches!((change.old, change.new), (Some(old), Some(new))
        if old.meta.generation == new.meta.generation && !old.meta.differs(&new.meta) && old.annotations == new.annotations)
}

/// The object of before that is no more, even if another one has its name.
fn gone<'a, K: Kind>(change: &Change<'a, K>) -> Option<&'a Arc<K>> {
    change.old.filter(|old| change.new.is_none_or(|new| new.meta().uid != old.meta().uid))
}

fn owner(child: &Meta, kind: &str) -> Option<ObjectKey> {
    let controller = child.controller().filter(|controller| *controller.kind == *kind)?;
    Some(ObjectKey { namespace: child.namespace.clone(), name: controller.name.clone() })
}

/// The owners of a set, before and after (pkg/controller/deployment, updateReplicaSet).
pub fn of_set(change: &Change<'_, ReplicaSet>) -> Vec<ObjectKey> {
    let owned_by = |set: &Arc<ReplicaSet>| owner(&set.meta, Deployment::RESOURCE.kind);
    let mut keys: Vec<_> = [change.old, change.new].into_iter().flatten().filter_map(owned_by).collect();
    keys.dedup();
    keys
}

/// A set without a controller that somebody may want now (pkg/controller/deployment, addReplicaSet and
/// updateReplicaSet).
pub fn free_to_adopt<'a>(change: &Change<'a, ReplicaSet>) -> Option<&'a Meta> {
    let new = &change.new?.meta;
    let worth_a_look = change.old.is_none_or(|old| old.meta.labels != new.labels || old.meta.controller().is_some());
    (worth_a_look && new.controller().is_none() && !new.is_deleting()).then_some(new)
}

/// A selector that matches everything is refused, so that it selects nothing here
/// (pkg/controller/deployment/util, GetDeploymentsForReplicaSet).
fn selects(deployment: &Deployment, set: &Meta) -> bool {
    !deployment.selector.is_everything() && deployment.selector.matches(&set.labels)
}

/// A pod that ran before and does not any more. Upstream waits until it is deleted (pkg/controller/deployment,
/// deletePod), though a finished pod does not hold a rollout up.
pub fn stopped<'a>(change: &Change<'a, Pod>) -> Option<&'a Arc<Pod>> {
    gone(change)
        .or_else(|| change.old.filter(|old| !old.is_terminal() && change.new.is_some_and(|new| new.is_terminal())))
}
