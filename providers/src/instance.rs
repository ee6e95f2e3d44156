//! Instances: described in batches, with one state for each. An error is the state `Unknown`, never `Gone`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::error::CloudError;

/// The instance of a Node, as known in Kubernetes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceRef {
    /// The Node's name.
    pub node: String,
    /// `spec.providerID`, once it is set. A provider searches by it first, and by the other fields only without it.
    pub provider_id: Option<String>,
    /// `status.nodeInfo.systemUUID`, for clouds that identify instances by it.
    pub system_uuid: Option<String>,
    /// The Node's labels, as given.
    pub labels: BTreeMap<String, String>,
    /// `status.addresses` of the Node, for clouds that identify instances by an address. A provider whose cloud
    /// temporarily reports no address returns these.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// The Node's annotations that the provider reads, as given (see [`InstanceFeatures::annotations`]).
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
}

impl InstanceRef {
    /// Creates a reference by Node name, without a provider ID.
    pub fn named(node: impl Into<String>) -> Self {
        Self { node: node.into(), ..Self::default() }
    }

    /// Sets the provider ID.
    #[must_use]
    pub fn with_provider_id(mut self, id: impl Into<String>) -> Self {
        self.provider_id = Some(id.into());
        self
    }
}

/// The kinds of a Node's addresses. Upstream: core/v1, NodeAddressType.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AddressKind {
    /// The instance's name.
    Hostname,
    /// Reachable from inside the network.
    InternalIP,
    /// Reachable from outside.
    ExternalIP,
    /// A name that resolves inside the network.
    InternalDNS,
    /// A name that resolves outside.
    ExternalDNS,
}

impl AddressKind {
    /// Returns the type in a Node's `status.addresses[].type`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hostname => "Hostname",
            Self::InternalIP => "InternalIP",
            Self::ExternalIP => "ExternalIP",
            Self::InternalDNS => "InternalDNS",
            Self::ExternalDNS => "ExternalDNS",
        }
    }

    /// Parses the type in `status.addresses[].type`, if it is a known one.
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Hostname, Self::InternalIP, Self::ExternalIP, Self::InternalDNS, Self::ExternalDNS]
            .into_iter()
            .find(|kind| kind.as_str() == word)
    }
}

/// One of an instance's addresses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Address {
    /// The kind of the address.
    pub kind: AddressKind,
    /// The address or name as written to the Node.
    pub address: String,
}

/// A cloud's description of a running instance; it becomes the Node's provider ID, addresses and labels.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instance {
    /// `name://...`; never empty, and always the same for an instance.
    pub provider_id: String,
    /// Becomes `node.kubernetes.io/instance-type`; empty: no label.
    pub instance_type: String,
    /// Becomes `topology.kubernetes.io/zone`; empty: no label.
    pub zone: String,
    /// Becomes `topology.kubernetes.io/region`; empty: no label.
    pub region: String,
    /// In the order in which they are written to the Node: most readers use the first of a kind. The order is always
    /// the same.
    pub addresses: Vec<Address>,
    /// Labels in Kubernetes' own domains, and labels that the API server would refuse, are ignored. Other labels are
    /// added to a new Node. Labels with the prefix [`InstanceFeatures::labels`] also follow later changes of the
    /// instance.
    pub labels: BTreeMap<String, String>,
    /// All taints of the Node with the prefix [`InstanceFeatures::taints`]: those that are missing here are removed
    /// from the Node. Taints without the prefix are ignored.
    #[serde(default)]
    pub taints: Vec<Taint>,
}

/// The effects of taints. Upstream: core/v1, TaintEffect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaintEffect {
    /// New pods are not scheduled to the Node.
    NoSchedule,
    /// New pods are scheduled to other Nodes if possible.
    PreferNoSchedule,
    /// Running pods are evicted, too.
    NoExecute,
}

impl TaintEffect {
    /// Returns the effect's name in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoSchedule => "NoSchedule",
            Self::PreferNoSchedule => "PreferNoSchedule",
            Self::NoExecute => "NoExecute",
        }
    }
}

/// A taint of a Node, identified by key and effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Taint {
    /// The taint's key, with the provider's prefix.
    pub key: String,
    /// The taint's effect.
    pub effect: TaintEffect,
    /// The taint's value; may be empty.
    #[serde(default)]
    pub value: String,
}

/// The features of a provider's instances, constant while the process runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceFeatures {
    /// Prefixes of the Node annotations that the provider reads. Other annotations are not in
    /// [`InstanceRef::annotations`]; if there is no prefix, the process does not even keep annotations of Nodes in
    /// memory.
    pub annotations: Vec<String>,
    /// Prefix, in the vendor's domain, of the labels that follow the instance for as long as the Node exists. Only the
    /// provider may use the prefix: labels with it that are not in [`Instance::labels`] are removed. `None`: labels are
    /// only set on new Nodes.
    pub labels: Option<&'static str>,
    /// Prefix of the keys of taints that follow the instance in the same way. `None`: the provider sets no taints.
    pub taints: Option<&'static str>,
}

/// The state of an instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstanceState {
    /// The instance runs, starts, or is about to stop: it exists and may do work.
    Running(Box<Instance>),
    /// The instance exists and does no work; it may be started again.
    Stopped,
    /// The cloud responded, and there is no such instance. Only this state leads to the deletion of a Node. Therefore
    /// nothing else may result in it: no error, no throttling, no ID that could not be parsed, no missing page.
    Gone,
    /// The state is unknown. `Invalid`: permanently, as for a provider ID of another cloud.
    Unknown(CloudError),
}

/// The instances of a cloud.
#[cfg_attr(feature = "doubles", mockall::automock)]
#[async_trait]
pub trait Instances: Send + Sync {
    /// Returns the features of the provider's instances.
    fn instance_features(&self) -> InstanceFeatures {
        InstanceFeatures::default()
    }

    /// Returns the state of each requested instance, in the order of the request, always as many as requested.
    ///
    /// The request may contain any number of instances, including zero. The provider makes as few calls as the cloud's
    /// batches allow. An instance that fails its batch (an ID that the cloud cannot parse) costs the others only a few
    /// more calls. A failure of the whole request is `Unknown` for the affected instances.
    async fn describe(&self, instances: &[InstanceRef]) -> Vec<InstanceState>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_kinds_round_trip_with_the_api_names() {
        for word in ["Hostname", "InternalIP", "ExternalIP", "InternalDNS", "ExternalDNS"] {
            let kind = AddressKind::parse(word).expect(word);
            assert_eq!(kind.as_str(), word);
            assert_eq!(serde_json::to_value(kind).unwrap(), word);
        }
        assert_eq!(AddressKind::parse("internalIP"), None);
    }
}
