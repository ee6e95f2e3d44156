//! Where a load balancer sends traffic: nodes, or endpoints, as the provider wants it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::instance::Address;

/// A node that may take traffic. Whether it should is decided already: excluded, deleted and draining nodes are left
/// out, while unready ones and ones without a pod of the Service are in, since health checks tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTarget {
    /// The Node's name.
    pub name: String,
    /// `spec.providerID`; a node that has none yet may be passed over, it comes again when it has.
    pub provider_id: Option<String>,
    /// The Node's addresses.
    pub addresses: Vec<Address>,
    /// The Node's labels, as given.
    pub labels: BTreeMap<String, String>,
}

/// The pod behind an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRef {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid.
    pub uid: String,
}

/// One port of one endpoint of the Service, with named ports resolved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointTarget {
    /// The name of the Service's port that it serves; empty if that has none.
    pub port_name: String,
    /// The endpoint's address.
    pub address: IpAddr,
    /// The port's number at that address.
    pub port: u16,
    /// The node it is on.
    pub node: Option<String>,
    /// The zone it is in.
    pub zone: Option<String>,
    /// It takes new connections.
    pub ready: bool,
    /// It still answers; true for a while after it stopped being ready because it terminates.
    pub serving: bool,
    /// It is being shut down.
    pub terminating: bool,
    /// The pod behind it, if a pod is.
    pub pod: Option<PodRef>,
}

/// A snapshot of where traffic may go. The lists are shared between all Services that see the same nodes, so that
/// handing them on costs nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// Ordered by name, each name once.
    pub nodes: Arc<[NodeTarget]>,
    /// Ordered by port name, address and port; empty unless the provider asked for endpoints with
    /// [`Targeting::Endpoints`](crate::Targeting).
    pub endpoints: Arc<[EndpointTarget]>,
    /// The same for each of [`LoadBalancerSpec::others`](crate::LoadBalancerSpec::others), by name.
    pub others: BTreeMap<String, Arc<[EndpointTarget]>>,
    /// Some Nodes or EndpointSlices could not be decoded, so that the lists may lack targets. Providers register what
    /// is listed, and take nothing out.
    pub incomplete: bool,
}

impl Targets {
    /// Nodes only.
    pub fn nodes(nodes: impl Into<Arc<[NodeTarget]>>) -> Self {
        Self { nodes: nodes.into(), ..Self::default() }
    }
}

/// What a target is known by in a cloud.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetId {
    /// A node, by its provider id.
    Instance(String),
    /// An endpoint.
    Endpoint {
        /// Its address.
        address: IpAddr,
        /// Its port.
        port: u16,
    },
}

/// What a cloud thinks of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// It gets traffic.
    Healthy,
    /// It gets none.
    Unhealthy,
    /// It is checked for the first time.
    Initial,
    /// It is on its way out and finishes what it has.
    Draining,
    /// The cloud does not say.
    Unknown,
}

/// A target that a cloud has, once however many ports it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedTarget {
    /// Which.
    pub target: TargetId,
    /// What the cloud thinks of it; the worst over its ports.
    pub health: Health,
}
