//! The parts of Network Load Balancers as plain data, for the desired and the observed state. The values of enums are
//! ELB's words.

use std::collections::{BTreeMap, BTreeSet};

use providers::IpNet;

/// Tags by key.
pub(crate) type Tags = BTreeMap<String, String>;

/// Attributes by key.
pub(crate) type Attributes = BTreeMap<String, String>;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub(crate) enum $name { $($variant),+ }

        impl $name {
            /// Returns ELB's word.
            pub(crate) fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// Parses ELB's word; `None` if it is unknown here.
            pub(crate) fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

words! {
    /// Protocols of listeners and target groups.
    Protocol { Tcp = "TCP", Udp = "UDP", TcpUdp = "TCP_UDP", Tls = "TLS", Quic = "QUIC", TcpQuic = "TCP_QUIC" }
}
words! {
    /// Schemes of a load balancer.
    Scheme { Internal = "internal", InternetFacing = "internet-facing" }
}
words! {
    /// The address families of a load balancer.
    AddressType { Ipv4 = "ipv4", Dualstack = "dualstack" }
}
words! {
    /// Kinds of identifiers of targets.
    TargetType { Instance = "instance", Ip = "ip", Alb = "alb" }
}
words! {
    /// Protocols of health checks.
    Probe { Tcp = "TCP", Http = "HTTP", Https = "HTTPS" }
}

impl Protocol {
    /// Returns the transports of a protocol, as named in security group rules.
    pub(crate) fn transports(self) -> &'static [&'static str] {
        match self {
            Self::Tcp | Self::Tls => &["tcp"],
            Self::Udp | Self::Quic => &["udp"],
            Self::TcpUdp | Self::TcpQuic => &["tcp", "udp"],
        }
    }

    /// Returns true if targets always receive the client's address, regardless of the attribute.
    pub(crate) fn always_preserves_client(self) -> bool {
        !matches!(self, Self::Tcp | Self::Tls)
    }
}

/// A health check; fields that are `None` are left to ELB and not compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    pub protocol: Probe,
    /// A number, or `traffic-port`.
    pub port: String,
    pub path: Option<String>,
    /// HTTP codes of a healthy target, such as `200-399`.
    pub codes: Option<String>,
    /// Seconds from one probe to the next.
    pub interval: u32,
    /// Seconds until a probe counts as failed.
    pub timeout: Option<u32>,
    /// Number of consecutive successful probes that make a target healthy.
    pub healthy: u32,
    /// Number of consecutive failed probes that make a target unhealthy.
    pub unhealthy: u32,
}

/// The keyword for probes at the port of the traffic.
pub(crate) const TRAFFIC_PORT: &str = "traffic-port";

impl HealthCheck {
    /// Returns true if `observed` has all settings of this check.
    pub(crate) fn is_met_by(&self, observed: &Self) -> bool {
        let met = |requested: &Option<String>, observed: &Option<String>| requested.is_none() || requested == observed;
        self.protocol == observed.protocol
            && self.port == observed.port
            && met(&self.path, &observed.path)
            && met(&self.codes, &observed.codes)
            && self.interval == observed.interval
            && (self.timeout.is_none() || self.timeout == observed.timeout)
            && self.healthy == observed.healthy
            && self.unhealthy == observed.unhealthy
    }
}

/// A destination of a target group's traffic.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Target {
    /// An instance's id, an address, or the ARN of an Application Load Balancer.
    pub id: String,
    pub port: u16,
}

impl TargetType {
    /// Returns the ports of nodes or pods that a target group with this port and these targets sends traffic to.
    pub(crate) fn traffic_ports(self, port: u16, targets: &BTreeSet<Target>) -> BTreeSet<u16> {
        match self {
            Self::Alb => BTreeSet::new(),
            Self::Instance => [port].into(),
            Self::Ip => targets.iter().map(|target| target.port).collect(),
        }
    }
}

/// The health that ELB reports for a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetHealth {
    Healthy,
    Unhealthy,
    Initial,
    /// No listener uses its target group yet.
    Unused,
    Draining,
    Unknown,
}

/// A subnet of a load balancer, with the addresses for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mapping {
    pub subnet: String,
    pub zone: String,
    /// An Elastic IP's allocation.
    pub allocation: Option<String>,
    pub private_v4: Option<String>,
    pub v6: Option<String>,
    /// The IPv6 prefix for source NAT (`SourceNatIpv6Prefix`); `auto_assigned` lets AWS choose.
    pub nat_prefix: Option<String>,
}

/// Ports that load balancers reach, by transport.
pub(crate) type Ports = BTreeSet<(&'static str, u16)>;

/// The source of packets.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    Range(IpNet),
    PrefixList(String),
    /// All interfaces with this security group.
    Group(String),
}

/// The security groups that annotations name for a Classic Load Balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ClassicGroups {
    /// Groups in place of one that cloud-provider-aws makes.
    pub instead: Vec<String>,
    /// Groups in addition to the others.
    pub extra: Vec<String>,
}

/// The traffic that one rule of a security group allows.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Rule {
    /// `tcp`, `udp`, `icmp` or `icmpv6`; in observed rules also others, such as `-1` for all protocols.
    pub protocol: String,
    /// The first port, or ICMP's type.
    pub from: i32,
    /// The last port, or ICMP's code.
    pub to: i32,
    pub source: Source,
    pub description: String,
}

impl Rule {
    /// Returns the fields by which EC2 distinguishes rules: all but the description.
    pub(crate) fn key(&self) -> (&str, i32, i32, &Source) {
        (&self.protocol, self.from, self.to, &self.source)
    }
}

/// A rule as read from EC2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedRule {
    pub id: String,
    pub rule: Rule,
}

/// A desired security group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecurityGroup {
    pub name: String,
    pub description: String,
    pub tags: Tags,
    pub rules: BTreeSet<Rule>,
}

/// A desired load balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Balancer {
    pub name: String,
    pub scheme: Scheme,
    pub address_type: AddressType,
    /// Source NAT prefixes are enabled, which UDP listeners need with IPv6 (`EnablePrefixForIpv6SourceNat`).
    pub source_nat: bool,
    pub subnets: Vec<Mapping>,
    /// Ids of its security groups, except the Service's own group, which may not exist yet.
    pub security_groups: Vec<String>,
    /// Security group rules apply to traffic through PrivateLink; `None`: not managed.
    pub private_link: Option<bool>,
    pub attributes: Attributes,
    /// Reserved capacity in units; `None`: not managed.
    pub capacity: Option<i32>,
    pub tags: Tags,
}

/// A desired listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listener {
    pub port: u16,
    pub protocol: Protocol,
    /// ARNs of certificates; the first one is the default.
    pub certificates: Vec<String>,
    pub policy: Option<String>,
    pub alpn: Option<String>,
    pub attributes: Attributes,
    pub tags: Tags,
    pub group: TargetGroup,
    /// Other target groups that traffic goes to, by ARN, or by name if they are among [`Desired::backends`]; `None`:
    /// only the listener's own target group.
    pub spread: Option<Spread<String>>,
}

impl Listener {
    /// Returns true if a client keeps its target group.
    pub(crate) fn is_sticky(&self) -> bool {
        self.spread.as_ref().is_some_and(|spread| spread.sticky)
    }
}

/// A desired target group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetGroup {
    pub name: String,
    pub target_type: TargetType,
    pub protocol: Protocol,
    /// The port that ELB shows; targets are registered with ports of their own.
    pub port: u16,
    pub ipv6: bool,
    pub health: HealthCheck,
    pub attributes: Attributes,
    pub tags: Tags,
    pub targets: BTreeSet<Target>,
    /// The list of targets may be incomplete: nothing is deregistered.
    pub incomplete: bool,
    /// Maximum number of targets.
    pub max_targets: Option<usize>,
    /// Other clusters register targets, too: only this cluster's targets are deregistered.
    pub shared: bool,
    /// Targets receive packets with the clients' addresses.
    pub preserves_client: bool,
}

/// The whole desired state of a Service in AWS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Desired {
    pub balancer: Balancer,
    pub security_group: Option<SecurityGroup>,
    /// By port.
    pub listeners: BTreeMap<u16, Listener>,
    /// Target groups for other Services, by name.
    pub backends: BTreeMap<String, TargetGroup>,
    pub tagging: Tagging,
}

impl Desired {
    /// Returns all target groups.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &TargetGroup> {
        self.listeners.values().map(|listener| &listener.group).chain(self.backends.values())
    }
}

/// The way in which existing tags are brought to the desired state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tagging {
    /// Tags that are not desired are removed, as the Load Balancer Controller does.
    pub prunes: bool,
    /// Keys that another program manages.
    pub foreign: BTreeSet<String>,
}

/// The spread of a listener's traffic; `P` identifies the other destinations.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spread<P> {
    /// The weight of the listener's own target group.
    pub own: i32,
    /// The other destinations, with their weights.
    pub others: Vec<(P, i32)>,
    /// A client keeps its target group.
    pub sticky: bool,
}

impl<P> Spread<P> {
    /// Converts the identifiers of the other destinations.
    pub(crate) fn map<Q>(&self, mut name: impl FnMut(&P) -> Q) -> Spread<Q> {
        let others = self.others.iter().map(|(other, weight)| (name(other), *weight)).collect();
        Spread { own: self.own, others, sticky: self.sticky }
    }
}

/// Returns the range of all addresses.
pub(crate) fn all_addresses(ipv6: bool) -> IpNet {
    if ipv6 {
        IpNet::new_assert(std::net::Ipv6Addr::UNSPECIFIED.into(), 0)
    } else {
        IpNet::new_assert(std::net::Ipv4Addr::UNSPECIFIED.into(), 0)
    }
}
