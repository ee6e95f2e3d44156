//! Maps changes of claims and pods to the claims that have to be reconciled.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::{PersistentVolumeClaim, Pod};
use runtime::queue::Queue;
use runtime::store::Change;

use super::FINALIZER;
use crate::protection::{Need, need};
use crate::storage::unused::is_tracked;

/// Adds keys to the queue.
pub struct Keys {
    /// The queue of claims.
    pub queue: Arc<Queue<ObjectKey>>,
    /// The condition `Unused` is maintained.
    pub tracks_unused: bool,
}

impl Keys {
    /// Adds a claim that lacks the condition, or whose finalizer has to be added or may be removed.
    ///
    /// A claim that is tracked from now on is added as well. Its condition may be outdated: changes of pods did not
    /// matter before the claim was bound, or there was no leader.
    pub fn claim_changed(&self, change: &Change<'_, PersistentVolumeClaim>) {
        let Some(claim) = change.new else { return };
        let is_newly_tracked = is_tracked(claim) && !change.old.is_some_and(|old| is_tracked(old));
        let needs_condition = self.tracks_unused && (claim.unused.is_none() || is_newly_tracked);
        if needs_condition || need(&claim.meta, FINALIZER) != Need::Nothing {
            self.queue.add(claim.meta.key());
        }
    }

    /// Adds the claims of a pod that started or stopped using them. A change can also replace one pod by another one
    /// with its name; then the claims of both are added.
    pub fn pod_changed(&self, change: &Change<'_, Pod>) {
        match (change.old, change.new) {
            (Some(old), Some(new)) if old.meta.uid == new.meta.uid => {
                if use_of(old) != use_of(new) && self.is_relevant(new) {
                    self.add_claims(new);
                }
            }
            (old, new) => {
                if let Some(pod) = old {
                    self.add_claims(pod);
                }
                if let Some(pod) = new.filter(|pod| self.is_relevant(pod)) {
                    self.add_claims(pod);
                }
            }
        }
    }

    /// Returns true if a change of a pod may require a write of its claims. If the condition is not maintained, only
    /// a change of a pod without a node or with released volumes counts, as in upstream: other pods still block the
    /// deletion of their claims, except for ephemeral volumes after a deletion with force.
    fn is_relevant(&self, pod: &Pod) -> bool {
        self.tracks_unused || pod.node.is_empty() || pod.has_released_volumes()
    }

    fn add_claims(&self, pod: &Pod) {
        for volume in pod.volumes.iter().flat_map(|volumes| &volumes.claims) {
            self.queue.add(ObjectKey::new(pod.meta.namespace.clone(), volume.claim.clone()));
        }
    }
}

/// Returns the properties of a pod that decide whether the pod uses its claims. The volumes of a pod never change.
fn use_of(pod: &Pod) -> (bool, bool, bool, bool) {
    let has_no_grace = pod.volumes.as_ref().is_some_and(|volumes| volumes.has_no_grace);
    (pod.node.is_empty(), pod.has_released_volumes(), pod.meta.is_deleting(), has_no_grace)
}
