//! Machines: asked for in batches, answered one by one, and never guessed at.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::CloudError;

/// What is known in Kubernetes about the machine behind a Node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRef {
    /// The Node's name.
    pub node: String,
    /// `spec.providerID`, once it is set. A provider looks by it first, and by the rest only without it.
    pub provider_id: Option<String>,
    /// `status.nodeInfo.systemUUID`, for clouds that know their machines by it.
    pub system_uuid: Option<String>,
    /// The Node's labels, as given.
    pub labels: BTreeMap<String, String>,
}

impl InstanceRef {
    /// A Node that has no provider id yet.
    pub fn named(node: impl Into<String>) -> Self {
        Self { node: node.into(), ..Self::default() }
    }

    /// The same Node with its provider id.
    #[must_use]
    pub fn with_provider_id(mut self, id: impl Into<String>) -> Self {
        self.provider_id = Some(id.into());
        self
    }
}

/// The kinds of a Node's addresses (upstream: core/v1, `NodeAddressType`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AddressKind {
    /// The machine's name.
    Hostname,
    /// Reached from inside the network.
    InternalIP,
    /// Reached from outside.
    ExternalIP,
    /// A name that resolves inside the network.
    InternalDNS,
    /// A name that resolves outside.
    ExternalDNS,
}

impl AddressKind {
    /// The word in a Node's `status.addresses[].type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hostname => "Hostname",
            Self::InternalIP => "InternalIP",
            Self::ExternalIP => "ExternalIP",
            Self::InternalDNS => "InternalDNS",
            Self::ExternalDNS => "ExternalDNS",
        }
    }

    /// The kind that a word in `status.addresses[].type` means, if it is one of them.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Hostname, Self::InternalIP, Self::ExternalIP, Self::InternalDNS, Self::ExternalDNS]
            .into_iter()
            .find(|kind| kind.as_str() == word)
    }
}

/// One of a machine's addresses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// What it is good for.
    pub kind: AddressKind,
    /// The address or name as it goes into the Node.
    pub address: String,
}

/// What a cloud knows about a running machine; it becomes the Node's provider id, addresses and labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// `name://...`; never empty, and never different for the same machine.
    pub provider_id: String,
    /// Becomes `node.kubernetes.io/instance-type`; empty: no label.
    pub instance_type: String,
    /// Becomes `topology.kubernetes.io/zone`; empty: no label.
    pub zone: String,
    /// Becomes `topology.kubernetes.io/region`; empty: no label.
    pub region: String,
    /// In the order in which they go into the Node: the first of a kind is the one that most readers take. The order
    /// is the same each time.
    pub addresses: Vec<Address>,
    /// More labels for a new Node. Those in Kubernetes' own domains are dropped by the controller.
    pub labels: BTreeMap<String, String>,
}

/// What is known about one machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// It runs, or starts, or is about to stop: it is there and may do work.
    Running(Box<Instance>),
    /// It is there and does no work; it may be started again.
    Stopped,
    /// The cloud answered, and there is no such machine. The one answer that may cost a Node its life, so nothing
    /// else is ever called so: no error, no throttle, no id that could not be read, no page that was missing.
    Gone,
    /// The cloud did not say. `Invalid`: it never will, as for a provider id of another cloud.
    Unknown(CloudError),
}

/// The machines of a cloud.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait Instances: Send + Sync {
    /// The state of each machine asked for, in the order asked: as many answers as questions, always.
    ///
    /// It takes any number, also none, and makes as few calls as the cloud's batches allow. A machine that spoils its
    /// batch (an id that the cloud can't read) costs the others nothing but a few more calls. What fails as a whole is
    /// `Unknown` for those it failed for.
    async fn describe(&self, instances: &[InstanceRef]) -> Vec<InstanceState>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_kinds_are_the_words_of_the_api() {
        for word in ["Hostname", "InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS"] {
            let kind = AddressKind::parse(word).expect(word);
            assert_eq!(kind.as_str(), word);
            assert_eq!(serde_json::to_value(kind).unwrap(), word);
        }
        assert_eq!(AddressKind::parse("internalIP"), None);
    }
}
