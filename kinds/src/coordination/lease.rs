//! Lease: the time of the last renewal.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::schema::{lease as object, lease_spec, time};
use crate::wire::{fields, find};

/// The namespace of the kubelets' leases; each has the name of its node.
pub const NODE_LEASES: &str = "kube-node-lease";

/// A lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// Metadata.
    pub meta: Meta,
    /// Time of the last renewal, in seconds and nanoseconds since 1970.
    pub renewed: Option<(i64, i32)>,
}

impl Kind for Lease {
    const RESOURCE: Resource =
        Resource { group: "coordination.k8s.io", version: "v1", kind: "Lease", plural: "leases", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let meta = Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})?;
        let mut renewed = None;
        for field in fields(find(object, object::SPEC)) {
            let field = field?;
            if field.number == lease_spec::RENEW_TIME {
                let (mut seconds, mut nanos) = (0, 0);
                for part in fields(field.value.bytes()) {
                    let part = part?;
                    match part.number {
                        time::SECONDS => seconds = part.value.i64(),
                        time::NANOS => nanos = part.value.i32(),
                        _ => {}
                    }
                }
                renewed = Some((seconds, nanos));
            }
        }
        Ok(Self { meta, renewed })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
