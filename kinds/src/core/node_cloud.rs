//! The link between a node and its cloud instance.

use crate::intern::{Interner, Str};
use crate::wire::schema::{node_address, node_condition, node_spec, node_status, node_system_info};
use crate::wire::{WireError, fields, find};

/// The annotation with the addresses that the kubelet was configured to use. Upstream: cloud-provider/api,
/// AnnotationAlphaProvidedIPAddr.
pub const PROVIDED_NODE_IP: &str = "alpha.kubernetes.io/provided-node-ip";

/// The condition that reports whether the node's network is missing (core/v1, NodeNetworkUnavailable).
pub const NETWORK_UNAVAILABLE: &str = "NetworkUnavailable";

/// One entry of `status.addresses`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAddress {
    /// Type, such as `InternalIP`.
    pub kind: Str,
    /// The address or name.
    pub address: Str,
}

/// The identity of a node's instance, and its last known state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCloud {
    /// `spec.providerID`; empty until it is set, and immutable afterwards.
    pub provider_id: Str,
    /// `status.nodeInfo.systemUUID`, as reported by the kubelet.
    pub system_uuid: Str,
    /// `status.addresses`.
    pub addresses: Box<[NodeAddress]>,
    /// The value of [`PROVIDED_NODE_IP`], if there is one.
    pub provided_ip: Option<Str>,
    /// The reason of the condition [`NETWORK_UNAVAILABLE`]; empty if there is none.
    pub network_reason: Str,
}

impl NodeCloud {
    /// Reads the link to the cloud instance from a node's spec and status.
    ///
    /// # Errors
    /// When they are not well-formed.
    pub(crate) fn decode(
        interner: &Interner,
        spec: &[u8],
        status: &[u8],
        provided_ip: Option<Str>,
    ) -> Result<Self, WireError> {
        let text = |bytes: &[u8]| Str::from(std::str::from_utf8(bytes).unwrap_or_default());
        let mut addresses = Vec::new();
        let mut network_reason = interner.str("");
        for field in fields(status) {
            let field = field?;
            let entry = field.value.bytes();
            match field.number {
                node_status::ADDRESSES => {
                    let kind = interner.str(&text(find(entry, node_address::TYPE)));
                    addresses.push(NodeAddress { kind, address: text(find(entry, node_address::ADDRESS)) });
                }
                node_status::CONDITIONS if find(entry, node_condition::TYPE) == NETWORK_UNAVAILABLE.as_bytes() => {
                    network_reason = interner.str(&text(find(entry, node_condition::REASON)));
                }
                _ => {}
            }
        }
        Ok(Self {
            provider_id: text(find(spec, node_spec::PROVIDER_ID)),
            system_uuid: text(find(find(status, node_status::NODE_INFO), node_system_info::SYSTEM_UUID)),
            addresses: addresses.into(),
            provided_ip,
            network_reason,
        })
    }
}
