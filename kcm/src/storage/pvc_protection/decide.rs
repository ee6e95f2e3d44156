//! Policy: the use of claims by pods, and the resulting condition and finalizer.

use kinds::{PersistentVolumeClaim, Pod};

use crate::storage::unused::volumes_of;

/// Returns true if a pod keeps a claim from being deleted: the pod is on a node and has a volume of the claim, even if
/// the pod has finished. A kubelet starts no pod with a claim that is being deleted, so pods without a node do not
/// count.
///
/// A generic ephemeral volume does not count after the kubelet has stopped the pod or the pod was deleted with force.
/// Otherwise a finalizer of the pod that waits for the deletion of the claim could never be removed.
pub fn blocks_deletion(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let is_shut_down = pod.meta.is_deleting() && pod.volumes.as_ref().is_some_and(|volumes| volumes.has_no_grace);
    !pod.node.is_empty() && volumes_of(pod, claim).any(|volume| !volume.is_ephemeral || !is_shut_down)
}

/// The next step for the condition `Unused` of a tracked claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnusedStep {
    /// The condition is correct.
    Keep,
    /// The condition has to be written with this status.
    Write(bool),
    /// The last user is no longer in the cache: write that the claim is unused unless another pod follows soon.
    AwaitUser,
    /// The claim has no condition, and the cache contains no user: the users are read from the API server.
    ListPods,
}

/// Decides on the condition by the pods of the cache.
pub fn unused_step(claim: &PersistentVolumeClaim, is_used: bool) -> UnusedStep {
    match (is_used, claim.unused) {
        (true, Some(false)) => UnusedStep::Keep,
        (true, _) => UnusedStep::Write(false),
        // A pod that the cache does not contain yet requeues the claim when it arrives.
        (false, Some(true)) => UnusedStep::Keep,
        (false, Some(false)) => UnusedStep::AwaitUser,
        (false, None) => UnusedStep::ListPods,
    }
}
