//! What a Service of type LoadBalancer asks for and what it gets, as plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Whose a load balancer is. Everything that a provider makes for it carries this from the moment it is made.
///
/// The uid tells a Service from an earlier one of the same name: they are two load balancers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LoadBalancerId {
    /// `--cluster-name`.
    pub cluster: String,
    /// The Service's namespace.
    pub namespace: String,
    /// The Service's name.
    pub name: String,
    /// The Service's uid.
    pub uid: String,
}

impl LoadBalancerId {
    /// The name that upstream gives by default: `a` and the uid without dashes, at most 32 characters (upstream:
    /// cloud-provider, `DefaultLoadBalancerName`). Fit to find what another controller manager made.
    pub fn default_name(&self) -> String {
        std::iter::once('a').chain(self.uid.chars().filter(|c| *c != '-')).take(32).collect()
    }
}

impl fmt::Display for LoadBalancerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Transport protocols of ports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// TCP, which an empty field means too.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// The word in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a Service's port leads in its pods.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum TargetPort {
    /// The same number in every pod.
    Number(u16),
    /// A container port's name; the number may differ between pods. [`Targets::endpoints`](crate::Targets) has the
    /// numbers, resolved for each endpoint.
    Name(String),
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Port {
    /// Its name, unique in the Service; empty if it is the only one and has none.
    pub name: String,
    /// Its protocol. One Service may have the same number with several.
    pub protocol: Protocol,
    /// Its application protocol, as given (`kubernetes.io/h2c`, `https`, ...).
    pub app_protocol: Option<String>,
    /// Where clients connect.
    pub port: u16,
    /// Where every node listens for it. `None`: none is allocated, so only endpoints can be its targets.
    pub node_port: Option<u16>,
    /// Where it leads in the pods.
    pub target_port: TargetPort,
}

/// Whether a client stays with one pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionAffinity {
    /// It does not.
    #[default]
    None,
    /// By its address, until it has been silent for this long.
    ClientIp {
        /// `sessionAffinityConfig.clientIP.timeoutSeconds`, in seconds.
        timeout: Duration,
    },
}

/// Address families.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum IpFamily {
    /// IPv4.
    IPv4,
    /// IPv6.
    IPv6,
}

impl IpFamily {
    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::IPv4 } else { Self::IPv6 }
    }

    /// The family of a range.
    pub fn of_net(net: &IpNet) -> Self {
        Self::of(net.addr())
    }
}

/// How much of dual stack a Service insists on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpFamilyPolicy {
    /// One family.
    #[default]
    SingleStack,
    /// Both, if the cloud can.
    PreferDualStack,
    /// Both, or it is the user's error.
    RequireDualStack,
}

/// Which pods a node sends traffic to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// Any.
    #[default]
    Cluster,
    /// Only its own. Nodes without any must fail their health check: see [`LoadBalancerSpec::health_check_node_port`].
    Local,
}

/// Another Service of the same namespace, as far as a balancer that sends traffic to it as well needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherService {
    /// Its ports, in its order; the node ports are `None` for a Service of type ClusterIP.
    pub ports: Vec<Port>,
    /// Its families, the first one first; never empty.
    pub ip_families: Vec<IpFamily>,
    /// As [`LoadBalancerSpec::health_check_node_port`], of this Service.
    pub health_check_node_port: Option<u16>,
}

/// What a Service of type LoadBalancer asks for: all that a provider may decide by, except the targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerSpec {
    /// Whose it is.
    pub id: LoadBalancerId,
    /// `spec.loadBalancerClass`; `Some("")` is set, and not the same as `None`.
    pub class: Option<String>,
    /// The Service's annotations, as given, of those that the provider reads (see `Features::annotations`).
    pub annotations: BTreeMap<String, String>,
    /// The Service's labels, as given.
    pub labels: BTreeMap<String, String>,
    /// The ports, in the Service's order; at least one.
    pub ports: Vec<Port>,
    /// `spec.allocateLoadBalancerNodePorts`: false means that ports may have no node port.
    pub allocate_node_ports: bool,
    /// Who may connect; empty: anyone. From `spec.loadBalancerSourceRanges`, or else from the annotation
    /// `service.beta.kubernetes.io/load-balancer-source-ranges`.
    pub source_ranges: Vec<IpNet>,
    /// Whether a client stays with one pod.
    pub session_affinity: SessionAffinity,
    /// `spec.loadBalancerIP` as given, if any; never checked by the API server.
    pub requested_address: Option<String>,
    /// `spec.externalIPs` as given; routed to the nodes by somebody else.
    pub external_ips: Vec<String>,
    /// The families asked for, the first one first; never empty.
    pub ip_families: Vec<IpFamily>,
    /// How much of dual stack it insists on.
    pub ip_family_policy: IpFamilyPolicy,
    /// For traffic from outside.
    pub external_traffic_policy: TrafficPolicy,
    /// For traffic from inside.
    pub internal_traffic_policy: TrafficPolicy,
    /// With [`TrafficPolicy::Local`]: each node answers HTTP `/healthz` here, well only if it has a pod of its own.
    pub health_check_node_port: Option<u16>,
    /// Endpoints count before they are ready.
    pub publish_not_ready_addresses: bool,
    /// `spec.trafficDistribution`, as given.
    pub traffic_distribution: Option<String>,
    /// Those of the Services that [`LoadBalancers::others`](crate::LoadBalancers::others) named which are there, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, OtherService>,
}

impl LoadBalancerSpec {
    /// What an otherwise empty Service asks for: IPv4 only, every policy at the API server's default.
    pub fn new(id: LoadBalancerId, ports: Vec<Port>) -> Self {
        Self {
            id,
            class: None,
            annotations: BTreeMap::new(),
            labels: BTreeMap::new(),
            ports,
            allocate_node_ports: true,
            source_ranges: Vec::new(),
            session_affinity: SessionAffinity::None,
            requested_address: None,
            external_ips: Vec::new(),
            ip_families: vec![IpFamily::IPv4],
            ip_family_policy: IpFamilyPolicy::SingleStack,
            external_traffic_policy: TrafficPolicy::Cluster,
            internal_traffic_policy: TrafficPolicy::Cluster,
            health_check_node_port: None,
            publish_not_ready_addresses: false,
            traffic_distribution: None,
            others: BTreeMap::new(),
        }
    }
}

/// Whether the balancer's address is seen by the pods' nodes (upstream: core/v1, `LoadBalancerIPMode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpMode {
    /// Traffic arrives with the balancer's address as its destination; nodes may short-cut to it.
    #[serde(rename = "VIP")]
    Vip,
    /// Traffic arrives at the node's or the pod's address; nodes must send theirs through the balancer.
    Proxy,
}

/// The state of one port of an ingress point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The Service's port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Why it does not work, as a CamelCase reason (upstream: core/v1, `PortStatus.Error`).
    pub error: Option<String>,
}

/// One way in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ingress {
    /// An address, or else a hostname.
    pub ip: Option<IpAddr>,
    /// A DNS name.
    pub hostname: Option<String>,
    /// Only with an address; `None` leaves it to the API server, which takes VIP.
    pub ip_mode: Option<IpMode>,
    /// Per port, if the cloud has something to say about them.
    pub ports: Vec<PortStatus>,
}

/// What goes into the Service's `status.loadBalancer`. In the same order each time, or it is written each time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerStatus {
    /// The ways in; empty: none yet.
    pub ingress: Vec<Ingress>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_name_is_upstreams() {
        let id = LoadBalancerId {
            cluster: "c".into(),
            namespace: "n".into(),
            name: "s".into(),
            uid: "01234567-89ab-cdef-0123-456789abcdef".into(),
        };
        assert_eq!(id.default_name(), "a0123456789abcdef0123456789abcde");
        assert_eq!(id.default_name().len(), 32);
        assert_eq!(LoadBalancerId { uid: "u-1".into(), ..id }.default_name(), "au1");
    }

    #[test]
    fn words_are_the_apis() {
        assert_eq!(serde_json::to_value(IpMode::Vip).unwrap(), "VIP");
        assert_eq!(serde_json::to_value(IpMode::Proxy).unwrap(), "Proxy");
        assert_eq!(serde_json::to_value(IpFamilyPolicy::PreferDualStack).unwrap(), "PreferDualStack");
        assert_eq!(serde_json::to_value(TrafficPolicy::Local).unwrap(), "Local");
        for protocol in [Protocol::Tcp, Protocol::Udp, Protocol::Sctp] {
            assert_eq!(serde_json::to_value(protocol).unwrap(), protocol.as_str());
        }
        assert_eq!(IpFamily::of_net(&"fd00::/8".parse().unwrap()), IpFamily::IPv6);
    }
}
