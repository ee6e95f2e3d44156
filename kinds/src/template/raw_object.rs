//! The raw bytes behind a workload's record, from which whole objects are rebuilt for a PUT.
//!
//! An update must contain every field of the object, including unknown ones. Therefore the object is stored as the
//! server sent it, with two exceptions: `managedFields`, because a PUT without them does not change the server's; and
//! the pod template, which is stored once for all workloads that share it. Changed parts are spliced in.

use std::collections::HashSet;
use std::sync::Arc;

use crate::decode::DecodeError;
use crate::intern::{Interner, Labels, Str};
use crate::meta::{Meta, Parts};
use crate::template::Template;
use crate::value::int_or_string::IntOrString;
use crate::wire::schema::object_meta;
use crate::wire::splice::without_managed_fields;
use crate::wire::{self, Put, WireError, fields, find, map_entry};

/// The annotation of `kubectl apply`: large, and irrelevant for controllers.
pub const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

const METADATA: u32 = Parts::METADATA;
const SPEC: u32 = Parts::SPEC;
const STATUS: u32 = Parts::STATUS;
/// The template's field in the spec of Deployments, ReplicaSets, ReplicationControllers and StatefulSets. For other
/// workloads, only the status is written and the spec is not stored.
const TEMPLATE: u32 = 3;

/// New values of annotations; `None` removes one.
pub type AnnotationEdits = Vec<(Str, Option<Str>)>;

/// A workload as the server sent it, except for managed fields and the template. Empty if no controller writes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Raw(Arc<[u8]>);

impl Raw {
    /// Stores the parts of an object that an update needs.
    ///
    /// # Errors
    /// When `object` is not well-formed.
    pub fn keep(object: &[u8]) -> Result<Self, WireError> {
        let mut kept = Vec::with_capacity(object.len());
        for field in fields(object) {
            let field = field?;
            let mut inner = Vec::new();
            match field.number {
                METADATA => without_managed_fields(field.value.bytes(), &mut inner)?,
                SPEC => wire::copy_fields(field.value.bytes(), &mut inner, |field| field.number != TEMPLATE)?,
                _ => {
                    kept.extend_from_slice(field.raw);
                    continue;
                }
            }
            kept.put_bytes(field.number, &inner);
        }
        Ok(Self(kept.into()))
    }

    /// Returns the raw spec, without its template.
    pub fn spec(&self) -> &[u8] {
        find(&self.0, SPEC)
    }

    /// Returns the raw status.
    pub fn status(&self) -> &[u8] {
        find(&self.0, STATUS)
    }

    /// Returns the object for a PUT, with `edits` applied to the annotations and with `template`. The fields of the
    /// spec whose numbers are in `dropped` are left out; `put` appends their new values.
    pub fn update(
        &self,
        edits: &AnnotationEdits,
        template: &Template,
        dropped: &[u32],
        put: impl FnOnce(&mut Vec<u8>),
    ) -> Vec<u8> {
        let mut object = Vec::with_capacity(self.0.len() + template.spec.len() + 256);
        self.put_metadata(&mut object, edits);
        object.put_message(SPEC, |spec| {
            // The object was decoded before, so it is well-formed.
            let copied = wire::copy_fields(find(&self.0, SPEC), spec, |field| !dropped.contains(&field.number));
            debug_assert!(copied.is_ok());
            put(spec);
            spec.put_bytes(TEMPLATE, &template.encode());
        });
        object.put_bytes(STATUS, self.status());
        object
    }

    /// Returns the object for a PUT of its status: the server takes metadata and status from it and ignores the spec.
    pub fn status_update(&self, edits: &AnnotationEdits, status: &[u8]) -> Vec<u8> {
        let mut object = Vec::with_capacity(self.0.len() + 128);
        self.put_metadata(&mut object, edits);
        object.put_bytes(STATUS, status);
        object
    }

    fn put_metadata(&self, object: &mut Vec<u8>, edits: &AnnotationEdits) {
        // A set: an object may have 80,000 annotations, and each of them may be edited.
        let edited: HashSet<&str> = edits.iter().map(|(key, _)| &**key).collect();
        object.put_message(METADATA, |meta| {
            let copied = wire::copy_fields(find(&self.0, METADATA), meta, |field| {
                field.number != object_meta::ANNOTATIONS
                    || !map_entry(field.value.bytes()).is_ok_and(|(key, _)| edited.contains(key))
            });
            debug_assert!(copied.is_ok());
            for (key, value) in edits {
                if let Some(value) = value {
                    meta.put_entry(object_meta::ANNOTATIONS, key, value);
                }
            }
        });
    }
}

/// Returns the metadata, and all annotations except the one that `kubectl apply` sets.
///
/// # Errors
/// As [`Meta::decode`].
pub fn annotated_meta(interner: &Interner, message: &[u8]) -> Result<(Meta, Labels), DecodeError> {
    let mut annotations = Vec::new();
    let meta = Meta::decode(interner, message, |key, value| {
        if key != LAST_APPLIED {
            annotations.push((interner.str(key), interner.str(value)));
        }
    })?;
    Ok((meta, interner.labels(annotations)))
}

/// The replacement of pods after a change of the template, for Deployments and DaemonSets.
pub(crate) struct StrategyMessage<'a> {
    /// The strategy's type, such as `RollingUpdate`.
    pub kind: &'a str,
    pub max_unavailable: Option<IntOrString>,
    pub max_surge: Option<IntOrString>,
}

/// The field numbers of a kind's strategy.
pub(crate) struct StrategyMessageFields {
    pub kind: u32,
    pub rolling_update: u32,
    pub max_unavailable: u32,
    pub max_surge: u32,
}

impl<'a> StrategyMessage<'a> {
    /// Reads a strategy's message.
    pub fn read(message: &'a [u8], numbers: &StrategyMessageFields) -> Result<Self, WireError> {
        let mut read = Self { kind: "", max_unavailable: None, max_surge: None };
        for field in fields(message) {
            let field = field?;
            if field.number == numbers.kind {
                read.kind = field.value.str();
            } else if field.number == numbers.rolling_update {
                for field in fields(field.value.bytes()) {
                    let field = field?;
                    let bound = || IntOrString::decode(field.value.bytes()).map(Some);
                    match field.number {
                        n if n == numbers.max_unavailable => read.max_unavailable = bound()?,
                        n if n == numbers.max_surge => read.max_surge = bound()?,
                        _ => {}
                    }
                }
            }
        }
        Ok(read)
    }
}
