//! References between claims and volumes, as whole objects for a PUT.

use kinds::metadata_edit::annotated;
use kinds::persistent_volume::{BOUND_BY_CONTROLLER, ClaimRef, with_claim, without_claim, without_claim_uid};
use kinds::persistent_volume_claim::{BIND_COMPLETED, with_volume_name};
use kinds::schema::object_meta;
use kinds::wire::{WireError, fields, find, map_entry};
use kinds::{PersistentVolume, PersistentVolumeClaim};

use super::names::YES;

/// Metadata is field 1 of every object.
const METADATA: u32 = 1;

/// Returns an object with these annotations. An annotation that the object already has keeps its value: only the
/// presence matters.
fn marked(object: &[u8], keys: &[&str]) -> Result<Vec<u8>, WireError> {
    let mut missing = keys.to_vec();
    for field in fields(find(object, METADATA)) {
        let field = field?;
        if field.number == object_meta::ANNOTATIONS {
            let (key, _) = map_entry(field.value.bytes())?;
            missing.retain(|missing| *missing != key);
        }
    }
    let edits: Vec<(&str, Option<&str>)> = missing.into_iter().map(|key| (key, Some(YES))).collect();
    annotated(object, &edits)
}

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
    if by_controller { marked(&referring, &[BOUND_BY_CONTROLLER]) } else { Ok(referring) }
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
        return marked(object, &[BIND_COMPLETED]);
    }
    with_volume_name(&marked(object, &[BIND_COMPLETED, BOUND_BY_CONTROLLER])?, &volume.meta.name)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::storage::binder::tests::builders::{claim, read, volume};

    #[test]
    fn annotation_of_another_binder_keeps_its_value() {
        for (value, expected) in [(None, YES), (Some("no"), "no"), (Some(""), "")] {
            let mut free = volume("pv");
            let mut pending = claim("data");
            if let Some(value) = value {
                free = free.annotated(BOUND_BY_CONTROLLER, value);
                pending = pending.annotated(BOUND_BY_CONTROLLER, value).annotated(BIND_COMPLETED, value);
            }
            let bound = referring_to_claim(&free.object(), &pending.record(), true).expect("well-formed");
            let bound: Arc<PersistentVolume> = read(&bound);
            assert_eq!(bound.annotation(BOUND_BY_CONTROLLER), Some(expected), "{value:?}");
            let complete = referring_to_volume(&pending.object(), &bound, true).expect("well-formed");
            let complete: Arc<PersistentVolumeClaim> = read(&complete);
            assert_eq!(complete.annotation(BOUND_BY_CONTROLLER), Some(expected), "{value:?}");
            assert_eq!(complete.annotation(BIND_COMPLETED), Some(expected), "{value:?}");
        }
    }
}
