//! VolumeAttributesClass: attributes of volumes that can be changed while they are in use.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::find;
use crate::wire::schema::volume_attributes_class as object;

/// A VolumeAttributesClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeAttributesClass {
    /// Metadata.
    pub meta: Meta,
}

impl Kind for VolumeAttributesClass {
    const RESOURCE: Resource = Resource {
        group: "storage.k8s.io",
        version: "v1",
        kind: "VolumeAttributesClass",
        plural: "volumeattributesclasses",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { meta: Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})? })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
