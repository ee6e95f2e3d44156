//! The condition `Unused` of bound claims: written with the binding, and maintained afterwards.
//!
//! Upstream: pkg/controller/volume/pvcprotection, updateUnusedCondition.

use kinds::persistent_volume_claim::{Phase, UNUSED};
use kinds::pod::ClaimVolume;
use kinds::{PersistentVolumeClaim, Pod};

/// Type, status, reason and message of a condition.
pub type Condition = (&'static str, &'static str, &'static str, &'static str);

/// Returns the condition for a used or unused claim.
pub fn condition(is_unused: bool) -> Condition {
    if is_unused {
        (UNUSED, "True", "NoPodsUsingPVC", "No pods are currently referencing this PVC")
    } else {
        (UNUSED, "False", "PodUsingPVC", "A pod is currently referencing this PVC")
    }
}

/// Returns true if the condition of a claim is maintained: it is bound and not being deleted.
pub fn is_tracked(claim: &PersistentVolumeClaim) -> bool {
    claim.phase == Phase::Bound && !claim.meta.is_deleting()
}

/// Returns true if a pod that has not finished refers to a claim, on a node or not.
pub fn refers(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    !pod.has_released_volumes() && volumes_of(pod, claim).next().is_some()
}

/// Returns the pod's volumes that use the claim. A generic ephemeral volume uses it only if the pod controls the claim.
pub fn volumes_of<'a>(pod: &'a Pod, claim: &'a PersistentVolumeClaim) -> impl Iterator<Item = &'a ClaimVolume> {
    let is_same_namespace = pod.meta.namespace == claim.meta.namespace;
    let volumes = pod.volumes.iter().filter(move |_| is_same_namespace);
    let of_claim = volumes.flat_map(|volumes| volumes.of_claim(&claim.meta.name));
    of_claim.filter(|volume| !volume.is_ephemeral || claim.meta.is_controlled_by(&pod.meta.uid))
}
