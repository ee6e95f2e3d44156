//! PodCertificateRequest: only metadata.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::find;
use crate::wire::schema::pod_certificate_request as object;

/// A request for a pod's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCertificateRequest {
    /// Metadata.
    pub meta: Meta,
}

impl Kind for PodCertificateRequest {
    const RESOURCE: Resource = Resource {
        group: "certificates.k8s.io",
        version: "v1",
        kind: "PodCertificateRequest",
        plural: "podcertificaterequests",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { meta: Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})? })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
