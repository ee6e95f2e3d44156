//! Changed copies of a PersistentVolumeClaim for a PUT. Each function takes and returns a whole object (the content of
//! the envelope), so that edits can be chained; unknown fields are kept.

use super::Phase;
use crate::intern::Str;
use crate::meta::Time;
use crate::wire::schema::{
    persistent_volume_claim as object, persistent_volume_claim_condition as condition,
    persistent_volume_claim_spec as spec, persistent_volume_claim_status as status, quantity,
};
use crate::wire::splice::{replaced, with_part};
use crate::wire::{Put, WireError, fields, find};

/// Returns a copy of the claim with this `spec.volumeName`.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_volume_name(object: &[u8], volume: &str) -> Result<Vec<u8>, WireError> {
    with_part(object, object::SPEC, |spec| {
        replaced(spec, &[spec::VOLUME_NAME], |out| out.put_str(spec::VOLUME_NAME, volume))
    })
}

/// Returns a copy of the claim with this `spec.storageClassName`.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_class(object: &[u8], class: &str) -> Result<Vec<u8>, WireError> {
    with_part(object, object::SPEC, |spec| {
        replaced(spec, &[spec::STORAGE_CLASS_NAME], |out| out.put_str(spec::STORAGE_CLASS_NAME, class))
    })
}

/// Changes to a claim's status; `None` keeps a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatusEdit<'a> {
    /// `phase`
    pub phase: Option<Phase>,
    /// `accessModes`; removed if empty.
    pub access_modes: Option<&'a [Str]>,
    /// `capacity`: replaced by this amount of storage alone; removed if empty.
    pub capacity: Option<&'a str>,
    /// `currentVolumeAttributesClassName`; removed if empty.
    pub attributes_class: Option<&'a str>,
}

impl StatusEdit<'_> {
    fn replaced_fields(&self) -> Vec<u32> {
        let fields = [
            (status::PHASE, self.phase.is_some()),
            (status::ACCESS_MODES, self.access_modes.is_some()),
            (status::CAPACITY, self.capacity.is_some()),
            (status::CURRENT_VOLUME_ATTRIBUTES_CLASS_NAME, self.attributes_class.is_some()),
        ];
        fields.into_iter().filter(|(_, is_set)| *is_set).map(|(number, _)| number).collect()
    }

    fn put(&self, status: &mut Vec<u8>) {
        if let Some(phase) = self.phase {
            status.put_str(status::PHASE, phase.name());
        }
        for mode in self.access_modes.unwrap_or_default() {
            status.put_str(status::ACCESS_MODES, mode);
        }
        if let Some(amount) = self.capacity.filter(|amount| !amount.is_empty()) {
            status.put_message(status::CAPACITY, |entry| {
                entry.put_str(1, "storage");
                entry.put_message(2, |message| message.put_str(quantity::STRING, amount));
            });
        }
        if let Some(class) = self.attributes_class.filter(|class| !class.is_empty()) {
            status.put_str(status::CURRENT_VOLUME_ATTRIBUTES_CLASS_NAME, class);
        }
    }
}

/// Returns a copy of the claim with a changed status.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_status(object: &[u8], edit: &StatusEdit<'_>) -> Result<Vec<u8>, WireError> {
    with_part(object, object::STATUS, |status| replaced(status, &edit.replaced_fields(), |out| edit.put(out)))
}

/// Returns a copy of the claim with this condition, in the position of the old condition with the same type, or at the
/// end if there is none. `lastProbeTime` is not set.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_condition(
    object: &[u8],
    (kind, status, reason, message): (&str, &str, &str, &str),
    transition: Time,
) -> Result<Vec<u8>, WireError> {
    let put = |copy: &mut Vec<u8>| {
        copy.put_message(status::CONDITIONS, |out| {
            out.put_str(condition::TYPE, kind);
            out.put_str(condition::STATUS, status);
            transition.put(out, condition::LAST_TRANSITION_TIME);
            out.put_str(condition::REASON, reason);
            out.put_str(condition::MESSAGE, message);
        });
    };
    with_part(object, object::STATUS, |part| {
        let mut copy = Vec::with_capacity(part.len() + 128);
        let mut is_put = false;
        for field in fields(part) {
            let field = field?;
            if field.number != status::CONDITIONS || find(field.value.bytes(), condition::TYPE) != kind.as_bytes() {
                copy.extend_from_slice(field.raw);
            } else if !is_put {
                put(&mut copy);
                is_put = true;
            }
        }
        if !is_put {
            put(&mut copy);
        }
        Ok(copy)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::core::persistent_volume_claim::{PersistentVolumeClaim, UNUSED};
    use crate::decode::{Decode, Sections};
    use crate::kind::Kind;
    use crate::wire::schema::object_meta;

    fn object() -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "data");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(object::STATUS, |status| {
            status.put_str(status::PHASE, "Pending");
            status.put_message(status::CONDITIONS, |out| out.put_str(condition::TYPE, "Resizing"));
            status.put_str(10, "health");
        });
        object
    }

    fn read(object: &[u8]) -> PersistentVolumeClaim {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        PersistentVolumeClaim::decode(&context, object).expect("well-formed")
    }

    #[test]
    fn binding_sets_the_volume_class_and_status() {
        let modes: [Str; 2] = ["ReadWriteOnce".into(), "ReadOnlyMany".into()];
        let edit = StatusEdit {
            phase: Some(Phase::Bound),
            access_modes: Some(&modes),
            capacity: Some("10Gi"),
            attributes_class: Some("fast"),
        };
        let named =
            with_volume_name(&with_class(&object(), "gold").expect("well-formed"), "pv-1").expect("well-formed");
        let bound = with_status(&named, &edit).expect("well-formed");
        let claim = read(&bound);
        assert_eq!((&*claim.volume_name, claim.class(), claim.phase), ("pv-1", "gold", Phase::Bound));
        assert_eq!(
            (&*claim.status_modes, &*claim.capacity, &*claim.current_attributes_class),
            (&modes[..], "10Gi", "fast")
        );
        assert_eq!(find(find(&bound, object::STATUS), 10), b"health");

        let cleared = StatusEdit {
            phase: Some(Phase::Lost),
            access_modes: Some(&[]),
            capacity: Some(""),
            attributes_class: Some(""),
        };
        let lost = read(&with_status(&bound, &cleared).expect("well-formed"));
        assert_eq!(
            (lost.phase, lost.status_modes.len(), &*lost.capacity, &*lost.current_attributes_class),
            (Phase::Lost, 0, "", "")
        );

        let kept = read(&with_status(&bound, &StatusEdit::default()).expect("well-formed"));
        assert_eq!(kept, claim);
    }

    #[test]
    fn condition_replaces_the_one_of_its_type_only() {
        let first =
            with_condition(&object(), (UNUSED, "True", "NoPodsUsingPVC", "unused"), Time(5)).expect("well-formed");
        let resized = with_condition(&first, ("Resized", "True", "a", "b"), Time(6)).expect("well-formed");
        let second = with_condition(&resized, (UNUSED, "False", "PodUsingPVC", "used"), Time(9)).expect("well-formed");
        assert_eq!((read(&first).unused, read(&second).unused), (Some(true), Some(false)));
        let conditions: Vec<_> = fields(find(&second, object::STATUS))
            .flatten()
            .filter(|field| field.number == status::CONDITIONS)
            .collect();
        let types: Vec<&[u8]> = conditions.iter().map(|field| find(field.value.bytes(), condition::TYPE)).collect();
        // Upstream's tests expect that the first condition is that of the resizer.
        assert_eq!(types, [&b"Resizing"[..], b"Unused", b"Resized"]);
        assert_eq!(Time::decode(find(conditions[1].value.bytes(), condition::LAST_TRANSITION_TIME)), Ok(Time(9)));
        assert_eq!(find(find(&second, object::STATUS), 10), b"health");
    }
}
