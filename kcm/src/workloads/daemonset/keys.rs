//! Which DaemonSets a change concerns.

use std::sync::Arc;

use kinds::meta::{Meta, ObjectKey};
use kinds::{ControllerRevision, DaemonSet, Kind, Node, Pod};
use runtime::queue::Queue;
use runtime::store::{Change, Index, Store, by_namespace, index_key};

use super::decide_place::{Fit, fit};
use super::sync::DaemonSets;

/// All DaemonSets, for a node that changed.
pub const ALL: Index<DaemonSet> = Index { name: "all", keys: |_, emit| emit(index_key(())) };

/// All nodes, for a DaemonSet that is looked at.
pub const ALL_NODES: Index<Node> = Index { name: "all", keys: |_, emit| emit(index_key(())) };

/// How soon a DaemonSet has to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Pods may have to be created or deleted.
    Now,
    /// Only counts may have changed.
    Soon,
}

/// Turns changes into keys on the queue.
pub fn subscribe(reconciler: &DaemonSets) {
    let DaemonSets { sets, pods, nodes, revisions, queue, comparing, .. } = reconciler;
    let (wake, consistency, memory) = (queue.clone(), reconciler.consistency.clone(), reconciler.memory.clone());
    sets.subscribe(move |change| {
        if let Some(old) = gone(change) {
            consistency.forget(&old.meta.key());
            memory.forget(&old.meta.uid);
        }
        if let Some(key) = change.new.or(change.old).map(|set| set.meta.key()) {
            add(&wake, key, of_set(change));
        }
    });
    let (wake, candidates) = (queue.clone(), sets.clone());
    pods.subscribe(move |change| {
        for (key, urgency) in of_pod(change) {
            add(&wake, key, urgency);
        }
        if let Some(orphan) = free_to_adopt(change) {
            wake_candidates(&wake, &candidates, orphan);
        }
    });
    let (wake, candidates) = (queue.clone(), sets.clone());
    revisions.subscribe(move |change| {
        of_revision(change).into_iter().for_each(|key| wake.add_coalesced(key));
        if let Some(orphan) = free_to_adopt(change) {
            wake_candidates(&wake, &candidates, orphan);
        }
    });
    let (wake, candidates, comparing) = (queue.clone(), sets.clone(), *comparing);
    nodes.subscribe(move |change| {
        if says_the_same(change) {
            return;
        }
        for set in candidates.by_index(&ALL, index_key(())) {
            if concerns(&set, change, comparing) {
                wake.add(set.meta.key());
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

fn wake_candidates(queue: &Queue<ObjectKey>, sets: &Store<DaemonSet>, orphan: &Meta) {
    let candidates = sets.by_index(&by_namespace(), index_key(&*orphan.namespace));
    for set in candidates.iter().filter(|set| selects(set, orphan)) {
        queue.add(set.meta.key());
    }
}

/// The object of before that is no more, even if another one has its name.
fn gone<'a, K: Kind>(change: &Change<'a, K>) -> Option<&'a Arc<K>> {
    change.old.filter(|old| change.new.is_none_or(|new| new.meta().uid != old.meta().uid))
}

/// An update that left all but the status alone (as our own writes do) need not hurry.
pub fn of_set(change: &Change<'_, DaemonSet>) -> Urgency {
    match (change.old, change.new) {
        (Some(old), Some(new))
            if old.meta.generation == new.meta.generation
                && !old.meta.differs(&new.meta)
                && old.annotations == new.annotations =>
        {
            Urgency::Soon
        }
        _ => Urgency::Now,
    }
}

/// The owners of a pod, before and after.
pub fn of_pod(change: &Change<'_, Pod>) -> Vec<(ObjectKey, Urgency)> {
    let (before, after) = (change.old.and_then(|pod| owner(&pod.meta)), change.new.and_then(|pod| owner(&pod.meta)));
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

/// The owners of a revision that was changed or is gone, before and after. A new one is our own work
/// (pkg/controller/daemon, addHistory).
pub fn of_revision(change: &Change<'_, ControllerRevision>) -> Vec<ObjectKey> {
    let Some(old) = change.old else { return Vec::new() };
    let mut keys: Vec<_> = [Some(old), change.new].into_iter().flatten().filter_map(|one| owner(&one.meta)).collect();
    keys.dedup();
    keys
}

/// The DaemonSet that owns an object.
fn owner(child: &Meta) -> Option<ObjectKey> {
    let controller = child.controller().filter(|controller| &*controller.kind == DaemonSet::RESOURCE.kind)?;
    Some(ObjectKey { namespace: child.namespace.clone(), name: controller.name.clone() })
}

/// An object without a controller that somebody may want now.
pub fn free_to_adopt<'a, K: Kind>(change: &Change<'a, K>) -> Option<&'a Meta> {
    let new = change.new?.meta();
    let worth_a_look =
        change.old.map(|old| old.meta()).is_none_or(|old| old.labels != new.labels || old.controller().is_some());
    (worth_a_look && new.controller().is_none() && !new.is_deleting()).then_some(new)
}

/// An empty selector selects nothing here (client-go, listers: GetPodDaemonSets).
fn selects(set: &DaemonSet, child: &Meta) -> bool {
    !set.selector.is_everything() && set.selector.matches(&child.labels)
}

/// True for what a kubelet reports all the time: nothing that a DaemonSet looks at has changed.
pub fn says_the_same(change: &Change<'_, Node>) -> bool {
    matches!((change.old, change.new), (Some(old), Some(new))
        if old.meta.labels == new.meta.labels && old.taints == new.taints)
}

/// True when a node is another thing to a DaemonSet than it was.
pub fn concerns(set: &DaemonSet, change: &Change<'_, Node>, comparing: bool) -> bool {
    let Some(placement) = &set.placement else { return false };
    let judge = |node: Option<&Arc<Node>>| node.map_or(Fit::NONE, |node| fit(placement, node, comparing));
    judge(change.old) != judge(change.new)
}
