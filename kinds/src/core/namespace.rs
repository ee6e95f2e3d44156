//! Namespace: its phase.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::schema::{namespace as object, namespace_status};
use crate::wire::{fields, find};

/// A namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Namespace {
    /// Metadata.
    pub meta: Meta,
    /// True while its phase is `Active`.
    pub active: bool,
}

impl Kind for Namespace {
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "Namespace", plural: "namespaces", namespaced: false };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut meta = &[][..];
        let mut active = false;
        for field in fields(object) {
            let field = field?;
            match field.number {
                object::METADATA => meta = field.value.bytes(),
                object::STATUS => active = find(field.value.bytes(), namespace_status::PHASE) == b"Active",
                _ => {}
            }
        }
        Ok(Self { meta: Meta::decode(&context.interner, meta, |_, _| {})?, active })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
