//! Use of quota by a PersistentVolumeClaim: storage, storage class, and VolumeAttributesClasses.

use crate::intern::{Interner, Str};
use crate::value::resource_list::{Amount, Amounts, read_entry};
use crate::wire::schema::{
    modify_volume_status, object_meta, persistent_volume_claim as object, persistent_volume_claim_spec as spec,
    persistent_volume_claim_status as status, volume_resources,
};
use crate::wire::{WireError, fields, find, map_entry};

/// The deprecated annotation for the class; it takes precedence over the field.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// A claim's use of quota.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClaimUsage {
    /// Name of its storage class; `None` without one.
    pub class: Option<Str>,
    /// The larger one of the requested and the allocated storage, rounded up to whole bytes; `None` without a request.
    pub storage: Option<Amount>,
    /// Names of the VolumeAttributesClasses that it has, requests or is being changed to; sorted, without duplicates.
    pub attributes: Vec<Str>,
}

impl ClaimUsage {
    /// Reads a claim (the content of its envelope).
    pub(crate) fn read(interner: &Interner, object: &[u8]) -> Result<Self, WireError> {
        let (spec, status) = (find(object, object::SPEC), find(object, object::STATUS));
        let mut class = find(spec, spec::STORAGE_CLASS_NAME);
        for field in fields(find(object, object::METADATA)) {
            let field = field?;
            if field.number == object_meta::ANNOTATIONS {
                let (key, value) = map_entry(field.value.bytes())?;
                if key == CLASS {
                    class = value.as_bytes();
                }
            }
        }
        let mut requested = Amounts::new();
        for field in fields(find(spec, spec::RESOURCES)) {
            let field = field?;
            if field.number == volume_resources::REQUESTS {
                read_entry(&mut requested, field.value.bytes())?;
            }
        }
        let mut allocated = Amounts::new();
        for field in fields(status) {
            let field = field?;
            if field.number == status::ALLOCATED_RESOURCES {
                read_entry(&mut allocated, field.value.bytes())?;
            }
        }
        let requested = requested.get("storage").map(|amount| amount.rounded_up());
        let storage = requested
            .map(|requested| allocated.get("storage").map_or(requested, |other| requested.max(other.rounded_up())));
        let modified = find(status, status::MODIFY_VOLUME_STATUS);
        let mut attributes: Vec<Str> = [
            find(spec, spec::VOLUME_ATTRIBUTES_CLASS_NAME),
            find(status, status::CURRENT_VOLUME_ATTRIBUTES_CLASS_NAME),
            find(modified, modify_volume_status::TARGET_VOLUME_ATTRIBUTES_CLASS_NAME),
        ]
        .into_iter()
        .filter(|name| !name.is_empty())
        .map(|name| interner.str(std::str::from_utf8(name).unwrap_or_default()))
        .collect();
        attributes.sort_unstable();
        attributes.dedup();
        let class = std::str::from_utf8(class).unwrap_or_default();
        Ok(Self { class: (!class.is_empty()).then(|| interner.str(class)), storage, attributes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;
    use crate::wire::schema::quantity;

    fn storage(out: &mut Vec<u8>, number: u32, text: &str) {
        out.put_message(number, |entry| {
            entry.put_str(1, "storage");
            entry.put_message(2, |message| message.put_str(quantity::STRING, text));
        });
    }

    #[test]
    fn larger_of_request_and_allocation_counts() {
        for (requested, allocated, expected) in
            [("1Gi", None, "1Gi"), ("1Gi", Some("2Gi"), "2Gi"), ("2Gi", Some("1Gi"), "2Gi"), ("1500m", None, "2")]
        {
            let mut object = Vec::new();
            object.put_message(object::METADATA, |meta| meta.put_entry(object_meta::ANNOTATIONS, CLASS, "gold"));
            object.put_message(object::SPEC, |spec| {
                spec.put_message(spec::RESOURCES, |resources| {
                    storage(resources, volume_resources::REQUESTS, requested)
                });
                spec.put_str(spec::STORAGE_CLASS_NAME, "silver");
                spec.put_str(spec::VOLUME_ATTRIBUTES_CLASS_NAME, "fast");
            });
            object.put_message(object::STATUS, |status| {
                allocated.iter().for_each(|text| storage(status, status::ALLOCATED_RESOURCES, text));
                status.put_str(status::CURRENT_VOLUME_ATTRIBUTES_CLASS_NAME, "fast");
            });
            let read = ClaimUsage::read(&Interner::default(), &object).expect("well-formed");
            assert_eq!(read.storage.expect("a request").to_string(), expected, "{requested} {allocated:?}");
            assert_eq!((read.class.as_deref(), read.attributes), (Some("gold"), vec!["fast".into()]));
        }
    }

    #[test]
    fn requested_current_and_target_attributes_classes_count() {
        for (requested, current, target, expected) in [
            ("", "", "", &[][..]),
            ("a", "", "", &["a"]),
            ("a", "b", "", &["a", "b"]),
            ("a", "b", "c", &["a", "b", "c"]),
            ("a", "b", "a", &["a", "b"]),
        ] {
            let mut object = Vec::new();
            object.put_message(object::SPEC, |spec| spec.put_str(spec::VOLUME_ATTRIBUTES_CLASS_NAME, requested));
            object.put_message(object::STATUS, |status| {
                status.put_str(status::CURRENT_VOLUME_ATTRIBUTES_CLASS_NAME, current);
                status.put_message(status::MODIFY_VOLUME_STATUS, |modified| {
                    modified.put_str(modify_volume_status::TARGET_VOLUME_ATTRIBUTES_CLASS_NAME, target);
                });
            });
            let read = ClaimUsage::read(&Interner::default(), &object).expect("well-formed");
            let names: Vec<&str> = read.attributes.iter().map(|name| &**name).collect();
            assert_eq!(names, expected, "{requested} {current} {target}");
        }
    }
}
