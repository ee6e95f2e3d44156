//! Node: its identity, and how long the kubelet may keep what it read.

use crate::meta::Meta;
use crate::schema::node as f;
use crate::wire::find;
use crate::{Decode, DecodeError, Kind, Resource};

/// Tells the kubelet for how many seconds it may keep Secrets and ConfigMaps before it looks again.
pub const TTL: &str = "node.alpha.kubernetes.io/ttl";

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// Metadata.
    pub meta: Meta,
    /// The value of the annotation [`TTL`], if that is a number.
    pub ttl_seconds: Option<i64>,
}

impl Kind for Node {
    const RESOURCE: Resource = Resource { group: "", version: "v1", kind: "Node", plural: "nodes", namespaced: false };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut ttl_seconds = None;
        let meta = Meta::decode(&context.interner, find(object, f::METADATA), |key, value| {
            if key == TTL {
                ttl_seconds = value.parse().ok();
            }
        })?;
        Ok(Self { meta, ttl_seconds })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
