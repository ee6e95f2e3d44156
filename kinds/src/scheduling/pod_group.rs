//! PodGroup: pods that are scheduled together.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::find;
use crate::wire::schema::pod_group as f;

/// A PodGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodGroup {
    /// Metadata.
    pub meta: Meta,
}

impl Kind for PodGroup {
    const RESOURCE: Resource = Resource {
        group: "scheduling.k8s.io",
        version: "v1beta1",
        kind: "PodGroup",
        plural: "podgroups",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { meta: Meta::decode(&context.interner, find(object, f::METADATA), |_, _| {})? })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
