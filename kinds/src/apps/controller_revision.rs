//! ControllerRevision: one version of a StatefulSet's or DaemonSet's pod template.
//!
//! Its data is a strategic merge patch in JSON, which may be large, and is compared far more often than it is read.
//! Therefore the record keeps only a fingerprint; callers that need the bytes read the object from the API server.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, OwnerRef};
use crate::wire::schema::{controller_revision as object, object_meta, raw_extension};
use crate::wire::splice::{edited, without_managed_fields};
use crate::wire::{Put, WireError, copy_fields, fields, find};

/// A ControllerRevision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerRevision {
    /// Metadata.
    pub meta: Meta,
    /// Its place in the history: higher is newer.
    pub revision: i64,
    /// The fingerprint of its data.
    pub data: Fingerprint,
}

/// Length and 128-bit FNV-1a hash of data: equal for equal data, and almost certainly different for different data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    len: usize,
    hash: u128,
}

impl Fingerprint {
    /// Returns the fingerprint of data.
    pub fn of(data: &[u8]) -> Self {
        const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let hash = data.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME));
        Self { len: data.len(), hash }
    }
}

/// The contents of a new ControllerRevision.
#[derive(Debug, Clone)]
pub struct NewRevision<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its namespace.
    pub namespace: &'a str,
    /// Its labels.
    pub labels: &'a [(String, String)],
    /// Its annotations.
    pub annotations: &'a [(String, String)],
    /// The workload that owns it.
    pub owner: &'a OwnerRef,
    /// The patch, in JSON.
    pub data: &'a [u8],
    /// Its place in the history.
    pub revision: i64,
}

impl NewRevision<'_> {
    /// Returns the object for a POST.
    pub fn encode(&self) -> Vec<u8> {
        let mut object = Vec::with_capacity(self.data.len() + 512);
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, self.name);
            meta.put_str(object_meta::NAMESPACE, self.namespace);
            self.labels.iter().for_each(|(key, value)| meta.put_entry(object_meta::LABELS, key, value));
            self.annotations.iter().for_each(|(key, value)| meta.put_entry(object_meta::ANNOTATIONS, key, value));
            self.owner.put(meta, object_meta::OWNER_REFERENCES);
        });
        object.put_message(object::DATA, |data| data.put_bytes(raw_extension::RAW, self.data));
        object.put_int(object::REVISION, self.revision);
        object
    }
}

impl ControllerRevision {
    /// Returns the data of a whole object (the content of the envelope), byte for byte as it was written.
    pub fn data_of(object: &[u8]) -> &[u8] {
        find(find(object, object::DATA), raw_extension::RAW)
    }

    /// Returns a whole object with one more label, for a PUT.
    ///
    /// # Errors
    /// When `object` is not well-formed.
    pub fn labelled(object: &[u8], key: &str, value: &str) -> Result<Vec<u8>, WireError> {
        let mut meta = Vec::new();
        without_managed_fields(find(object, object::METADATA), &mut meta)?;
        meta.put_entry(object_meta::LABELS, key, value);
        let mut labelled = Vec::with_capacity(object.len() + 128);
        labelled.put_bytes(object::METADATA, &meta);
        copy_fields(object, &mut labelled, |field| field.number != object::METADATA)?;
        Ok(labelled)
    }

    /// Returns a whole object with another revision number, for a PUT.
    ///
    /// # Errors
    /// When `object` is not well-formed.
    pub fn renumbered(object: &[u8], revision: i64) -> Result<Vec<u8>, WireError> {
        edited(object, &[], |field| field.number != object::REVISION, |out| out.put_int(object::REVISION, revision))
    }
}

impl Kind for ControllerRevision {
    const RESOURCE: Resource = Resource {
        group: "apps",
        version: "v1",
        kind: "ControllerRevision",
        plural: "controllerrevisions",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut meta = &[][..];
        let mut revision = 0;
        for field in fields(object) {
            let field = field?;
            match field.number {
                object::METADATA => meta = field.value.bytes(),
                object::REVISION => revision = field.value.i64(),
                _ => {}
            }
        }
        let meta = Meta::decode(&context.interner, meta, |_, _| {})?;
        Ok(Self { meta, revision, data: Fingerprint::of(Self::data_of(object)) })
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

    fn new(data: &[u8]) -> Vec<u8> {
        let owner = OwnerRef {
            api_version: "apps/v1".into(),
            kind: "StatefulSet".into(),
            name: "web".into(),
            uid: Uid::parse("u"),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let revision = NewRevision {
            name: "web-abc",
            namespace: "ns",
            labels: &[("app".into(), "web".into())],
            annotations: &[("note".into(), "kept".into())],
            owner: &owner,
            data,
            revision: 3,
        };
        let object = revision.encode();
        // Objects without a resourceVersion cannot be decoded.
        let mut versioned = Vec::new();
        versioned.put_message(object::METADATA, |meta| {
            meta.extend_from_slice(find(&object, object::METADATA));
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        copy_fields(&object, &mut versioned, |field| field.number != object::METADATA).expect("well-formed");
        versioned
    }

    fn read(object: &[u8]) -> ControllerRevision {
        let context = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
        ControllerRevision::decode(&context, object).expect("well-formed")
    }

    #[test]
    fn encoded_revision_is_decoded_unchanged() {
        let object = new(b"{\"spec\":1}");
        let revision = read(&object);
        assert_eq!((&*revision.meta.name, revision.revision, revision.meta.version), ("web-abc", 3, 7));
        assert!(revision.meta.is_controlled_by(&Uid::parse("u")));
        assert_eq!(ControllerRevision::data_of(&object), b"{\"spec\":1}");
        assert_eq!(revision.data, Fingerprint::of(b"{\"spec\":1}"));
        assert_ne!(revision.data, Fingerprint::of(b"{\"spec\":2}"));
    }

    #[test]
    fn renumbering_changes_only_the_revision() {
        let object = new(b"{}");
        let renumbered = ControllerRevision::renumbered(&object, 9).expect("well-formed");
        let expected = ControllerRevision { revision: 9, ..read(&object) };
        assert_eq!(read(&renumbered), expected);
        assert_eq!(ControllerRevision::data_of(&renumbered), b"{}");
    }

    #[test]
    fn labelling_adds_only_the_label() {
        let object = new(b"{}");
        let labelled = read(&ControllerRevision::labelled(&object, "hash", "abc").expect("well-formed"));
        assert_eq!(crate::intern::label(&labelled.meta.labels, "hash"), Some("abc"));
        assert_eq!(labelled.meta.labels.len(), read(&object).meta.labels.len() + 1);
        assert_eq!((labelled.data, labelled.revision), (read(&object).data, 3));
    }
}
