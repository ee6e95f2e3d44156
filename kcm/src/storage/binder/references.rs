//! References between claims and volumes, as whole objects for a PUT.

use kinds::metadata_edit::annotated;
use kinds::persistent_volume::{BOUND_BY_CONTROLLER, ClaimRef, with_claim, without_claim, without_claim_uid};
use kinds::persistent_volume_claim::{BIND_COMPLETED, with_volume_name};
use kinds::wire::WireError;
use kinds::{PersistentVolume, PersistentVolumeClaim};

use super::names::YES;

/// Returns a volume that refers to a claim. `by_controller` is false if the volume was reserved for the claim before.
///
/// # Errors
/// When `object` is not well-formed.
pub fn referring_to_claim(
    object: &[u8],
    claim: &PersistentVolumeClaim,
    by_controller: bool,
) -> Result<Vec<u8>, WireError> {
    let reference = ClaimRef {
        namespace: claim.meta.namespace.clone(),
        name: claim.meta.name.clone(),
        uid: Some(claim.meta.uid.clone()),
    };
    let referring = with_claim(object, &reference, claim.meta.version)?;
    if by_controller { annotated(&referring, &[(BOUND_BY_CONTROLLER, Some(YES))]) } else { Ok(referring) }
}

/// Returns a claim whose binding is complete. `by_controller` is false if the claim names the volume already.
///
/// # Errors
/// When `object` is not well-formed.
pub fn referring_to_volume(
    object: &[u8],
    volume: &PersistentVolume,
    by_controller: bool,
) -> Result<Vec<u8>, WireError> {
    if !by_controller {
        return annotated(object, &[(BIND_COMPLETED, Some(YES))]);
    }
    let annotated = annotated(object, &[(BIND_COMPLETED, Some(YES)), (BOUND_BY_CONTROLLER, Some(YES))])?;
    with_volume_name(&annotated, &volume.meta.name)
}

/// Returns a volume without its claim: free if a controller chose the claim, otherwise reserved for the claim's name.
///
/// # Errors
/// When `object` is not well-formed.
pub fn unbound(object: &[u8], volume: &PersistentVolume) -> Result<Vec<u8>, WireError> {
    if volume.annotation(BOUND_BY_CONTROLLER).is_none() {
        return without_claim_uid(object);
    }
    annotated(&without_claim(object)?, &[(BOUND_BY_CONTROLLER, None)])
}
