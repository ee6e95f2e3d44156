//! The desired state and the status of a Service of type LoadBalancer, as plain data.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The owner of a load balancer. All resources that a provider creates for the load balancer have this id from the
/// start.
///
/// The uid distinguishes a Service from an earlier one with the same name: each has its own load balancer.
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
    /// Returns upstream's default name: `a` and the uid without dashes, at most 32 characters. It can be used to find
    /// resources of another controller manager. Upstream: cloud-provider, DefaultLoadBalancerName.
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
    /// TCP, also the meaning of an empty field.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

impl Protocol {
    /// Returns the protocol's name in the Kubernetes API.
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

/// The port in the pods to which a Service's port leads (`targetPort`).
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
    /// The port's name, unique in the Service; empty if the port is the only one and has none.
    pub name: String,
    /// The port's protocol. A Service may have the same number for several protocols.
    pub protocol: Protocol,
    /// The port's application protocol, as given (`kubernetes.io/h2c`, `https`, ...).
    pub app_protocol: Option<String>,
    /// The port for clients.
    pub port: u16,
    /// The port on every node. `None`: none is allocated, so only endpoints can be targets.
    pub node_port: Option<u16>,
    /// The port in the pods.
    pub target_port: TargetPort,
}

/// The affinity of a client to one pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SessionAffinity {
    /// Requests of one client may reach any pod.
    #[default]
    None,
    /// Requests from one address reach the same pod, until the client has been idle for this time.
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
    /// Returns the family of an address.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::IPv4 } else { Self::IPv6 }
    }

    /// Returns the family of a range.
    pub fn of_net(net: &IpNet) -> Self {
        Self::of(net.addr())
    }
}

/// A Service's requirements for dual stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpFamilyPolicy {
    /// One address family.
    #[default]
    SingleStack,
    /// Both families, if the cloud supports that.
    PreferDualStack,
    /// Both families; if the cloud supports only one, the request is `Invalid`.
    RequireDualStack,
}

/// The pods to which a node sends traffic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficPolicy {
    /// Any.
    #[default]
    Cluster,
    /// Only its own. Nodes without such pods must fail their health check: see
    /// [`LoadBalancerSpec::health_check_node_port`].
    Local,
}

/// The parts of another Service in the same namespace to which a load balancer also sends traffic.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherService {
    /// The Service's ports, in its order; the node ports are `None` for a Service of type ClusterIP.
    pub ports: Vec<Port>,
    /// The Service's families, the first one first; never empty.
    pub ip_families: Vec<IpFamily>,
    /// Same as [`LoadBalancerSpec::health_check_node_port`], of this Service.
    pub health_check_node_port: Option<u16>,
}

/// The desired state of a Service of type LoadBalancer: the whole input of a provider except for the targets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerSpec {
    /// The owner of the load balancer.
    pub id: LoadBalancerId,
    /// `spec.loadBalancerClass`; `Some("")` is set, and not the same as `None`.
    pub class: Option<String>,
    /// The Service's annotations that the provider reads, as given (see `Features::annotations`).
    pub annotations: BTreeMap<String, String>,
    /// The Service's labels, as given.
    pub labels: BTreeMap<String, String>,
    /// The ports, in the Service's order; at least one.
    pub ports: Vec<Port>,
    /// `spec.allocateLoadBalancerNodePorts`: false means that ports may have no node port.
    pub allocate_node_ports: bool,
    /// Allowed source ranges; empty: any source. From `spec.loadBalancerSourceRanges`, or else from the annotation
    /// `service.beta.kubernetes.io/load-balancer-source-ranges`.
    pub source_ranges: Vec<IpNet>,
    /// The affinity of a client to one pod.
    pub session_affinity: SessionAffinity,
    /// `spec.loadBalancerIP` as given, if any; not validated by the API server.
    pub requested_address: Option<String>,
    /// `spec.externalIPs` as given; routed to the nodes by other means.
    pub external_ips: Vec<String>,
    /// The requested families, the first one first; never empty.
    pub ip_families: Vec<IpFamily>,
    /// The Service's requirements for dual stack.
    pub ip_family_policy: IpFamilyPolicy,
    /// `spec.externalTrafficPolicy`.
    pub external_traffic_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`.
    pub internal_traffic_policy: TrafficPolicy,
    /// With [`TrafficPolicy::Local`]: the port on which each node serves HTTP `/healthz`, healthy only if it has a pod.
    pub health_check_node_port: Option<u16>,
    /// Endpoints are used before they are ready.
    pub publish_not_ready_addresses: bool,
    /// `spec.trafficDistribution`, as given.
    pub traffic_distribution: Option<String>,
    /// The Services of [`LoadBalancers::others`](crate::LoadBalancers::others) that exist, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub others: BTreeMap<String, OtherService>,
}

impl LoadBalancerSpec {
    /// Creates the desired state of a minimal Service: IPv4 only, every policy at the API server's default.
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

/// The destination address of a load balancer's traffic at the nodes. Upstream: core/v1, LoadBalancerIPMode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum IpMode {
    /// Traffic arrives with the load balancer's address as its destination; nodes may deliver their own traffic to that
    /// address directly.
    #[serde(rename = "VIP")]
    Vip,
    /// Traffic arrives at the node's or the pod's address; nodes must send their own traffic through the load balancer.
    Proxy,
}

/// The state of one port of an ingress point.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The Service's port.
    pub port: u16,
    /// The port's protocol.
    pub protocol: Protocol,
    /// The reason why it does not work, in CamelCase. Upstream: core/v1, PortStatus.Error.
    pub error: Option<String>,
}

/// An ingress point.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ingress {
    /// The IP address of the ingress point; `None` if clients use the hostname.
    pub ip: Option<IpAddr>,
    /// The DNS name of the ingress point; `None` if clients use the address.
    pub hostname: Option<String>,
    /// Only with an address; `None` leaves it to the API server, which defaults to VIP.
    pub ip_mode: Option<IpMode>,
    /// States of ports, if the cloud reports them.
    pub ports: Vec<PortStatus>,
}

/// The Service's `status.loadBalancer`. The order must be stable, because every difference is written.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadBalancerStatus {
    /// The ingress points; empty: none yet.
    pub ingress: Vec<Ingress>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_name_equals_that_of_upstream() {
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
    fn names_equal_those_of_the_api() {
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
