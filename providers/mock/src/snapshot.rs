//! The state of the mock cloud as JSON: resources, calls and armed faults.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use providers::{
    Instance, LoadBalancerId, ObservedTarget, Phase, Protocol, RouteTarget, SessionAffinity, Targeting, TrafficPolicy,
};
use serde::{Deserialize, Serialize};

use crate::fault::{FaultView, Operation};

/// The whole state at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Milliseconds since the cloud was created.
    pub now_millis: u64,
    /// Instances by name, including invisible ones.
    pub instances: BTreeMap<String, InstanceView>,
    /// Load balancers by owner, including partial, terminating and invisible ones.
    pub balancers: Vec<LoadBalancerView>,
    /// Routes by destination, including foreign ones.
    pub routes: Vec<RouteView>,
    /// Calls by operation, without operations that were never called.
    pub calls: BTreeMap<Operation, CallCount>,
    /// Armed faults.
    pub faults: Vec<FaultView>,
}

/// An instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceView {
    /// The instance runs.
    pub running: bool,
    /// Reads return the instance.
    pub visible: bool,
    /// The description that reads return.
    #[serde(flatten)]
    pub instance: Instance,
}

/// A load balancer with its addresses, or its existing parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerView {
    /// The owner of the load balancer.
    pub id: LoadBalancerId,
    /// The phase of the load balancer.
    pub phase: Phase,
    /// The load balancer itself exists, not only addresses.
    pub exists: bool,
    /// The load balancer is reachable only from inside the network.
    pub internal: bool,
    /// The addresses of the load balancer, in the order of their allocation.
    pub addresses: Vec<IpAddr>,
    /// Allowed source ranges; empty: any source.
    pub source_ranges: Vec<IpNet>,
    /// Session affinity and health checks.
    pub attributes: Attributes,
    /// Ports.
    pub listeners: Vec<ListenerView>,
    /// Targets with their health.
    pub targets: Vec<ObservedTarget>,
    /// Time until it works, or is deleted.
    #[serde(skip)]
    pub remaining: Duration,
}

impl LoadBalancerView {
    /// Returns the kind of targets.
    pub(crate) fn targeting(&self) -> Targeting {
        if self.listeners.iter().any(|listener| listener.node_port.is_some()) {
            Targeting::Nodes
        } else {
            Targeting::Endpoints
        }
    }
}

/// Settings of a load balancer other than its listeners.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Session affinity.
    pub session_affinity: SessionAffinity,
    /// The external traffic policy of the Service.
    pub external_traffic_policy: TrafficPolicy,
    /// The port of the nodes' health checks; `None`: the ports of the traffic.
    pub health_check_port: Option<u16>,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListenerView {
    /// The listener's protocol.
    pub protocol: Protocol,
    /// The listener's port number.
    pub port: u16,
    /// The node port that the listener leads to; `None` if the listener leads to endpoints.
    pub node_port: Option<u16>,
    /// The listener's application protocol.
    pub app_protocol: Option<String>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteView {
    /// The route's destination.
    pub destination: IpNet,
    /// The route's target; `None` for a foreign route.
    pub target: Option<RouteTarget>,
}

/// Number of calls of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCount {
    /// All calls.
    pub calls: u64,
    /// Calls with an error, or without a response.
    pub failed: u64,
}
