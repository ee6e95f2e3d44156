//! HorizontalPodAutoscaler: target, bounds, metrics and status.

mod behavior;
mod metric;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::decode::{Decode, DecodeError};
use crate::intern::{Interner, Str};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::schema::{
    cross_version_object_reference, horizontal_pod_autoscaler as object, horizontal_pod_autoscaler_spec as spec,
};
use crate::wire::splice::edited;
use crate::wire::{Field, Put, WireError, fields, find, push};

pub use behavior::{Behavior, Policy, Rules, Select};
pub use metric::{Current, Metric, MetricId, MetricStatus, Source, Target};
pub use status::{AutoscalerCondition, AutoscalerStatus};

/// A HorizontalPodAutoscaler.
#[derive(Debug, Clone, PartialEq)]
pub struct HorizontalPodAutoscaler {
    /// Metadata.
    pub meta: Meta,
    /// The scaled object.
    pub target: ObjectRef,
    /// Minimum number of pods; one if it is not given.
    pub min_replicas: Option<i32>,
    /// Maximum number of pods.
    pub max_replicas: i32,
    /// The metrics.
    pub metrics: Box<[Metric]>,
    /// Scaling rules.
    pub behavior: Option<Box<Behavior>>,
    /// `status`, as last read.
    pub status: AutoscalerStatus,
    /// Metadata without managed fields, and status, for a PUT of the status.
    raw: Arc<[u8]>,
}

/// An object in the same namespace, of any kind.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ObjectRef {
    /// Kind.
    pub kind: Str,
    /// Name.
    pub name: Str,
    /// Group and version.
    pub api_version: Str,
}

impl ObjectRef {
    fn decode(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                cross_version_object_reference::KIND => read.kind = interner.str(field.value.str()),
                cross_version_object_reference::NAME => read.name = interner.str(field.value.str()),
                cross_version_object_reference::API_VERSION => read.api_version = interner.str(field.value.str()),
                _ => {}
            }
        }
        Ok(read)
    }

    fn put(&self, out: &mut Vec<u8>, number: u32) {
        out.put_message(number, |message| {
            message.put_str(cross_version_object_reference::KIND, &self.kind);
            message.put_str(cross_version_object_reference::NAME, &self.name);
            message.put_str(cross_version_object_reference::API_VERSION, &self.api_version);
        });
    }
}

impl HorizontalPodAutoscaler {
    /// Returns the object for a PUT of this status: the server takes metadata and status from it and ignores the spec.
    pub fn status_update(&self, status: &AutoscalerStatus) -> Vec<u8> {
        let spliced = status.splice(find(&self.raw, object::STATUS));
        // The object was decoded before, so it is well-formed.
        let keep = |field: &Field<'_>| field.number != object::STATUS;
        edited(&self.raw, &[], keep, |object| object.put_bytes(object::STATUS, &spliced)).unwrap_or_default()
    }
}

impl Kind for HorizontalPodAutoscaler {
    const RESOURCE: Resource = Resource {
        group: "autoscaling",
        version: "v2",
        kind: "HorizontalPodAutoscaler",
        plural: "horizontalpodautoscalers",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut read = Self {
            meta: Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})?,
            target: ObjectRef::default(),
            min_replicas: None,
            max_replicas: 0,
            metrics: Box::default(),
            behavior: None,
            status: AutoscalerStatus::decode(&context.interner, find(object, object::STATUS))?,
            raw: edited(object, &[], |field| field.number == object::STATUS, |_| {})?.into(),
        };
        let mut metrics = Vec::new();
        let spec_message = find(object, object::SPEC);
        for field in fields(spec_message) {
            let field = field?;
            match field.number {
                spec::SCALE_TARGET_REF => read.target = ObjectRef::decode(&context.interner, field.value.bytes())?,
                spec::MIN_REPLICAS => read.min_replicas = Some(field.value.i32()),
                spec::MAX_REPLICAS => read.max_replicas = field.value.i32(),
                spec::METRICS => {
                    push(&mut metrics, Metric::decode(&context.interner, field.value.bytes())?, spec_message)?;
                }
                spec::BEHAVIOR => read.behavior = Some(Box::new(Behavior::decode(field.value.bytes())?)),
                _ => {}
            }
        }
        read.metrics = metrics.into();
        Ok(read)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
