//! PodGroup: pods that are scheduled together, and the ResourceClaims that they share.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::scheduling::claim_entry::{ClaimEntry, EntryFields};
use crate::wire::schema::{pod_group_spec, pod_group_status};

/// A PodGroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodGroup {
    /// Metadata.
    pub meta: Meta,
    /// The claims that its pods share.
    pub claims: Box<[ClaimEntry]>,
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
        let Parts { meta, spec, status } = Parts::read(object)?;
        let listed = (spec, pod_group_spec::RESOURCE_CLAIMS);
        let reported = (status, pod_group_status::RESOURCE_CLAIM_STATUSES);
        Ok(Self {
            meta: Meta::decode(&context.interner, meta, |_, _| {})?,
            claims: ClaimEntry::read(&context.interner, listed, reported, EntryFields::POD_GROUP)?,
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
