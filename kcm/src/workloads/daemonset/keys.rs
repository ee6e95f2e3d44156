//! Maps changes to the keys of the DaemonSets that they affect.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::{ControllerRevision, DaemonSet, Node};
use runtime::children::{Urgency, adoptable, deleted, enqueue, owners_of, selects, wake_adopters};
use runtime::store::{Change, Index, index_key};

use super::decide_place::{Fit, fit};
use super::state::DaemonSets;
use crate::pods::keys::owners_of_pod;

/// The index of all DaemonSets. A change of a node is compared with each of them.
pub const ALL: Index<DaemonSet> = Index { name: "all", keys: |_, emit| emit(index_key(())) };

/// The index of all nodes. Each reconcile reads them.
pub const ALL_NODES: Index<Node> = Index { name: "all", keys: |_, emit| emit(index_key(())) };

/// Enqueues the DaemonSets that changes affect.
pub fn subscribe(reconciler: &DaemonSets) {
    let DaemonSets { sets, control, nodes, revisions, queue, compares_numbers, .. } = reconciler;
    let (wake, consistency) = (queue.clone(), control.consistency.clone());
    sets.subscribe(move |change| {
        if let Some(old) = deleted(change) {
            consistency.forget(&old.meta.key());
        }
        if let Some(key) = change.new.or(change.old).map(|set| set.meta.key()) {
            enqueue(&wake, key, of_set(change));
        }
    });
    let (wake, candidates) = (queue.clone(), sets.clone());
    control.pods.subscribe(move |change| {
        for (key, urgency) in owners_of_pod::<DaemonSet>(change) {
            enqueue(&wake, key, urgency);
        }
        if let Some(orphan) = adoptable(change) {
            wake_adopters(&candidates, orphan, |set| selects(&set.selector, orphan), |key| wake.add(key));
        }
    });
    let (wake, candidates) = (queue.clone(), sets.clone());
    revisions.subscribe(move |change| {
        for key in of_revision(change) {
            wake.add_coalesced(key);
        }
        if let Some(orphan) = adoptable(change) {
            wake_adopters(&candidates, orphan, |set| selects(&set.selector, orphan), |key| wake.add(key));
        }
    });
    let wake = queue.clone();
    let candidates = sets.clone();
    let compares_numbers = *compares_numbers;
    nodes.subscribe(move |change| {
        if has_same_fitness(change) {
            return;
        }
        for set in candidates.by_index(&ALL, index_key(())) {
            if affects_fitness(&set, change, compares_numbers) {
                wake.add(set.meta.key());
            }
        }
    });
}

/// Returns the urgency of a DaemonSet's change. An update of the status alone may be coalesced.
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

/// Returns the old and new owners of a revision that was changed or deleted. A new revision requeues no owner: usually
/// this controller has created it. Upstream: pkg/controller/daemon, addHistory.
pub fn of_revision(change: &Change<'_, ControllerRevision>) -> Vec<ObjectKey> {
    if change.old.is_some() { owners_of::<DaemonSet, _>(change) } else { Vec::new() }
}

/// Returns true if a node changed in no field that affects DaemonSets, as in a kubelet's periodic reports.
pub fn has_same_fitness(change: &Change<'_, Node>) -> bool {
    matches!((change.old, change.new), (Some(old), Some(new))
        if old.meta.labels == new.meta.labels && old.taints == new.taints)
}

/// Returns true if a change of a node may change whether the DaemonSet's pod should run or may stay there. Always true
/// for a placement with very many tolerations or affinity terms: to compare it here would delay the events of all
/// nodes.
pub fn affects_fitness(set: &DaemonSet, change: &Change<'_, Node>, compares_numbers: bool) -> bool {
    let Some(placement) = &set.placement else { return false };
    let fitness = |node: Option<&Arc<Node>>| node.map_or(Fit::NONE, |node| fit(placement, node, compares_numbers));
    placement.is_large() || fitness(change.old) != fitness(change.new)
}
