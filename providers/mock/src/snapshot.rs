//! The mock cloud as JSON: what it has, what it was asked, and what is armed against it.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use providers::{
    Instance, LoadBalancerId, ObservedTarget, Phase, Protocol, RouteTarget, SessionAffinity, TrafficPolicy,
};
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, Operation};

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Milliseconds since the cloud was made.
    pub now_millis: u64,
    /// Machines by name, invisible ones too.
    pub instances: BTreeMap<String, InstanceView>,
    /// Balancers by owner, half-made and half-deleted ones and invisible ones too.
    pub balancers: Vec<BalancerView>,
    /// Routes by destination, foreign ones too.
    pub routes: Vec<RouteView>,
    /// Calls by operation, only those that were made.
    pub calls: BTreeMap<Operation, CallCount>,
    /// Faults that are armed.
    pub faults: Vec<FaultView>,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceView {
    /// It runs.
    pub running: bool,
    /// Reads see it.
    pub visible: bool,
    /// What reads say of it.
    #[serde(flatten)]
    pub instance: Instance,
}

/// A balancer with its addresses, or what there is of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BalancerView {
    /// Whose it is.
    pub id: LoadBalancerId,
    /// How far it is.
    pub phase: Phase,
    /// The balancer itself is there, not only addresses.
    pub exists: bool,
    /// Only reached from inside.
    pub internal: bool,
    /// Its addresses, in the order in which families were asked for.
    pub addresses: Vec<IpAddr>,
    /// Who may connect; empty: anyone.
    pub source_ranges: Vec<IpNet>,
    /// Session affinity and health checks.
    pub attributes: Attributes,
    /// Ports.
    pub listeners: Vec<ListenerView>,
    /// Targets with their health.
    pub targets: Vec<ObservedTarget>,
    /// How long until it works, or is gone.
    #[serde(skip)]
    pub remaining: Duration,
}

/// What a balancer does besides listening.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    /// Whether a client stays with one target.
    pub session_affinity: SessionAffinity,
    /// How nodes treat what it sends them.
    pub external_traffic_policy: TrafficPolicy,
    /// Where nodes say whether they want traffic; `None`: at the ports themselves.
    pub health_check_port: Option<u16>,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ListenerView {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// Where nodes listen for it; `None` if it leads to endpoints.
    pub node_port: Option<u16>,
    /// Its application protocol.
    pub app_protocol: Option<String>,
}

/// A route.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteView {
    /// What it is for.
    pub destination: IpNet,
    /// Where it leads; `None` for a foreign one.
    pub target: Option<RouteTarget>,
}

/// How often an operation was called.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCount {
    /// In all.
    pub calls: u64,
    /// Answered with an error, or not at all.
    pub failed: u64,
}

/// An armed fault.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FaultView {
    /// To remove it by.
    pub id: u64,
    /// The fault.
    pub fault: Fault,
    /// Calls that it was for.
    pub seen: u64,
    /// Calls that it happened to.
    pub fired: u64,
}
