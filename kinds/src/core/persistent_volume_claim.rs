//! PersistentVolumeClaim: whose it is, and what it counts for.

use crate::core::persistent_volume_claim_usage::StorageClaim;
use crate::decode::{Decode, DecodeError, Sections};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, OwnerRef};
use crate::wire::schema::{object_meta, persistent_volume_claim as f};
use crate::wire::splice::without_managed_fields;
use crate::wire::{Put, WireError, copy_fields, fields, find};

/// A PersistentVolumeClaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PersistentVolumeClaim {
    /// Metadata.
    pub meta: Meta,
    /// What it counts for in a quota; only with [`PersistentVolumeClaim::STORAGE`].
    pub storage: Option<Box<StorageClaim>>,
}

impl PersistentVolumeClaim {
    /// Section: what it counts for in a quota.
    pub const STORAGE: Sections = Sections(1);

    /// A whole object (the inside of the envelope) with these owners instead of its own, for a PUT.
    ///
    /// # Errors
    /// When `object` is not well-formed.
    pub fn owned_by(object: &[u8], owners: &[OwnerRef]) -> Result<Vec<u8>, WireError> {
        let mut owned = Vec::with_capacity(object.len() + 128);
        for field in fields(object) {
            let field = field?;
            if field.number != f::METADATA {
                owned.extend_from_slice(field.raw);
                continue;
            }
            let (mut trimmed, mut meta) = (Vec::new(), Vec::new());
            without_managed_fields(field.value.bytes(), &mut trimmed)?;
            copy_fields(&trimmed, &mut meta, |field| field.number != object_meta::OWNER_REFERENCES)?;
            owners.iter().for_each(|owner| owner.put(&mut meta, object_meta::OWNER_REFERENCES));
            owned.put_bytes(f::METADATA, &meta);
        }
        Ok(owned)
    }
}

impl Kind for PersistentVolumeClaim {
    const RESOURCE: Resource = Resource {
        group: "",
        version: "v1",
        kind: "PersistentVolumeClaim",
        plural: "persistentvolumeclaims",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let counted = context.sections.contains(Self::STORAGE);
        let storage = counted.then(|| StorageClaim::read(&context.interner, object).map(Box::new)).transpose()?;
        Ok(Self { meta: Meta::decode(&context.interner, find(object, f::METADATA), |_, _| {})?, storage })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decode::Sections;
    use crate::intern::Interner;
    use crate::meta::Uid;

    #[test]
    fn only_the_owners_change() {
        let owner = |uid: &str| OwnerRef {
            api_version: "apps/v1".into(),
            kind: "StatefulSet".into(),
            name: "web".into(),
            uid: Uid::parse(uid),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let mut object = Vec::new();
        object.put_message(f::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "data-web-0");
            meta.put_str(object_meta::RESOURCE_VERSION, "3");
            meta.put_str(object_meta::MANAGED_FIELDS, "large");
            owner("old").put(meta, object_meta::OWNER_REFERENCES);
        });
        object.put_str(f::SPEC, "the spec");
        let owned = PersistentVolumeClaim::owned_by(&object, &[owner("new")]).expect("well-formed");
        let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
        let read = PersistentVolumeClaim::decode(&context, &owned).expect("well-formed");
        assert_eq!((&*read.meta.name, read.meta.version, &*read.meta.owners), ("data-web-0", 3, &[owner("new")][..]));
        assert_eq!(find(&owned, f::SPEC), b"the spec");
        assert_eq!(find(find(&owned, f::METADATA), object_meta::MANAGED_FIELDS), b"");
    }
}
