//! The volume behind a claim of a pod.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::persistent_volume_claim::Phase;
use kinds::pod::ClaimVolume;
use kinds::{PersistentVolume, PersistentVolumeClaim, Pod};
use runtime::store::Store;

/// Returns the volume that a claim of a pod is bound to, if that volume is bound to the claim, too. The claim of an
/// ephemeral volume must belong to the pod.
pub fn bound_volume(
    (claims, volumes): (&Store<PersistentVolumeClaim>, &Store<PersistentVolume>),
    pod: &Pod,
    used: &ClaimVolume,
) -> Option<Arc<PersistentVolume>> {
    let key = ObjectKey::new(pod.meta.namespace.clone(), used.claim.clone());
    let claim = claims.get(&key).filter(|claim| claim.phase == Phase::Bound)?;
    if used.is_ephemeral && !claim.meta.is_controlled_by(&pod.meta.uid) {
        return None;
    }
    let volume = volumes.get(&ObjectKey::new("", claim.volume_name.clone()))?;
    let is_bound = volume.claim.as_ref().is_some_and(|reference| reference.uid.as_ref() == Some(&claim.meta.uid));
    is_bound.then_some(volume)
}
