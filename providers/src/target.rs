//! Targets of a load balancer: nodes or endpoints, as the provider needs.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::instance::Address;

/// A node that may receive traffic. Left out are nodes with the exclusion label, nodes that are being deleted, and
/// nodes with a taint with which the cluster autoscaler or Karpenter announces their removal. Cordoned nodes are
/// included. Unready nodes and nodes without a pod of the Service are included, too, because health checks decide about
/// them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeTarget {
    /// The Node's name.
    pub name: String,
    /// `spec.providerID`; a node without it may be skipped, and is included again when it is set.
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
    /// The name of the Service's port that the endpoint serves; empty if that port has none.
    pub port_name: String,
    /// The endpoint's address.
    pub address: IpAddr,
    /// The port's number at that address.
    pub port: u16,
    /// The name of the Node that the endpoint is on; `None` if unknown.
    pub node: Option<String>,
    /// `spec.providerID` of that Node. The Node may be missing in [`Targets::nodes`] and still run the pod.
    pub provider_id: Option<String>,
    /// The endpoint's zone.
    pub zone: Option<String>,
    /// The endpoint accepts new connections.
    pub ready: bool,
    /// The endpoint serves requests. Unlike `ready`, this stays true while the endpoint terminates, until it stops
    /// serving.
    pub serving: bool,
    /// The endpoint is terminating.
    pub terminating: bool,
    /// The endpoint's pod, if it has one.
    pub pod: Option<PodRef>,
}

/// A snapshot of possible targets. Copies are cheap, and all Services with the same nodes share the list of nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Targets {
    /// Ordered by name, each name once.
    pub nodes: Arc<[NodeTarget]>,
    /// Ordered by port name, address and port. Empty for a Service with [`Targeting::Nodes`](crate::Targeting) once its
    /// load balancer has the desired state; until then, the load balancer may still have endpoints as targets. For
    /// [`follow_targets`](crate::LoadBalancers::follow_targets), the endpoints are always included, because the kind of
    /// the Service's targets is unknown. Always empty if the provider's features do not include endpoints.
    pub endpoints: Arc<[EndpointTarget]>,
    /// The endpoints of each of [`LoadBalancerSpec::others`](crate::LoadBalancerSpec::others), by name.
    pub others: BTreeMap<String, Arc<[EndpointTarget]>>,
    /// Some Nodes or EndpointSlices could not be decoded, so the lists may lack targets. Providers add the listed
    /// targets, and remove none.
    pub incomplete: bool,
}

impl Targets {
    /// Creates a snapshot with nodes only.
    pub fn nodes(nodes: impl Into<Arc<[NodeTarget]>>) -> Self {
        Self { nodes: nodes.into(), ..Self::default() }
    }
}

/// The identity of a target in a cloud.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetId {
    /// A node, by its provider ID.
    Instance(String),
    /// An endpoint.
    Endpoint {
        /// The endpoint's address.
        address: IpAddr,
        /// The endpoint's port.
        port: u16,
    },
}

/// The health of a target, as the cloud reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// The target receives traffic.
    Healthy,
    /// The target receives no traffic.
    Unhealthy,
    /// The target is checked for the first time.
    Initial,
    /// The target is being removed and finishes its connections.
    Draining,
    /// The cloud does not report the target's health.
    Unknown,
}

/// A target in a cloud, listed once regardless of the number of ports that it serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedTarget {
    /// The target's identity.
    pub target: TargetId,
    /// The target's health; the worst over its ports.
    pub health: Health,
}
