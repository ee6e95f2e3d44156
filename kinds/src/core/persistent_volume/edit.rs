//! Changed copies of a PersistentVolume for a PUT. Each function takes and returns a whole object (the content of the
//! envelope), so that edits can be chained; unknown fields are kept.

use super::{ClaimRef, Phase};
use crate::wire::schema::{
    object_reference, persistent_volume as object, persistent_volume_spec as spec, persistent_volume_status as status,
};
use crate::wire::splice::{replaced, with_part};
use crate::wire::{Put, WireError, copy_fields, find};

/// Returns a copy of the volume whose `spec.claimRef` refers to this claim at the resource version `claim_version`.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_claim(object: &[u8], claim: &ClaimRef, claim_version: u64) -> Result<Vec<u8>, WireError> {
    with_part(object, object::SPEC, |spec| {
        replaced(spec, &[spec::CLAIM_REF], |out| {
            out.put_message(spec::CLAIM_REF, |reference| {
                reference.put_str(object_reference::KIND, "PersistentVolumeClaim");
                reference.put_str(object_reference::NAMESPACE, &claim.namespace);
                reference.put_str(object_reference::NAME, &claim.name);
                if let Some(uid) = &claim.uid {
                    reference.put_str(object_reference::UID, &uid.to_string());
                }
                reference.put_str(object_reference::API_VERSION, "v1");
                reference.put_str(object_reference::RESOURCE_VERSION, &claim_version.to_string());
            });
        })
    })
}

/// Returns a copy of the volume without `spec.claimRef`.
///
/// # Errors
/// When `object` is not well-formed.
pub fn without_claim(object: &[u8]) -> Result<Vec<u8>, WireError> {
    with_part(object, object::SPEC, |spec| replaced(spec, &[spec::CLAIM_REF], |_| {}))
}

/// Returns a copy of the volume that is reserved for its claim by name only.
///
/// # Errors
/// When `object` is not well-formed.
pub fn without_claim_uid(object: &[u8]) -> Result<Vec<u8>, WireError> {
    with_part(object, object::SPEC, |spec| {
        let mut reference = Vec::new();
        copy_fields(find(spec, spec::CLAIM_REF), &mut reference, |field| field.number != object_reference::UID)?;
        replaced(spec, &[spec::CLAIM_REF], |out| out.put_bytes(spec::CLAIM_REF, &reference))
    })
}

/// Returns a copy of the volume in another phase, for a PUT of its status. The API server sets the time of the
/// transition.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_phase(object: &[u8], phase: Phase, message: &str) -> Result<Vec<u8>, WireError> {
    with_part(object, object::STATUS, |status| {
        replaced(status, &[status::PHASE, status::MESSAGE], |out| {
            out.put_str(status::PHASE, phase.name());
            out.put_str(status::MESSAGE, message);
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::persistent_volume::PersistentVolume;
    use crate::decode::{Decode, Sections};
    use crate::kind::Kind;
    use crate::meta::Uid;
    use crate::wire::schema::object_meta;

    fn read(object: &[u8]) -> PersistentVolume {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        PersistentVolume::decode(&context, object).expect("well-formed")
    }

    #[test]
    fn edits_change_their_field_and_keep_unknown_ones() {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "pv-1");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_str(spec::STORAGE_CLASS_NAME, "gold");
            spec.put_str(99, "unknown");
        });
        object.put_message(object::STATUS, |status| {
            status.put_str(status::REASON, "kept");
            status.put_str(status::MESSAGE, "old");
        });
        let claim = ClaimRef { namespace: "shop".into(), name: "data".into(), uid: Some(Uid::parse("u-1")) };
        let bound =
            with_phase(&with_claim(&object, &claim, 42).expect("well-formed"), Phase::Bound, "").expect("well-formed");
        let volume = read(&bound);
        assert_eq!((volume.claim.as_deref(), volume.phase, volume.meta.version), (Some(&claim), Phase::Bound, 7));
        let reference = find(find(&bound, object::SPEC), spec::CLAIM_REF);
        assert_eq!(
            (find(reference, object_reference::KIND), find(reference, object_reference::RESOURCE_VERSION)),
            (&b"PersistentVolumeClaim"[..], &b"42"[..])
        );
        assert_eq!(
            (find(find(&bound, object::STATUS), status::REASON), find(find(&bound, object::STATUS), status::MESSAGE)),
            (&b"kept"[..], &b""[..])
        );

        let by_name = without_claim_uid(&bound).expect("well-formed");
        assert_eq!(read(&by_name).claim.as_deref(), Some(&ClaimRef { uid: None, ..claim }));
        let free = without_claim(&by_name).expect("well-formed");
        assert_eq!(read(&free).claim, None);
        assert_eq!(find(find(&free, object::SPEC), 99), b"unknown");
        assert_eq!(&*read(&free).spec_class, "gold");
    }
}
