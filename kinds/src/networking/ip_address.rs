//! IPAddress: an address that a Service uses. The name of the object is the address.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::find;
use crate::wire::schema::ip_address as object;

/// An IPAddress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IpAddress {
    /// Metadata; the name is the address in its canonical spelling.
    pub meta: Meta,
}

impl Kind for IpAddress {
    const RESOURCE: Resource = Resource {
        group: "networking.k8s.io",
        version: "v1",
        kind: "IPAddress",
        plural: "ipaddresses",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        Ok(Self { meta: Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})? })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
