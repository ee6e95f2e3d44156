//! What Network Load Balancers are made of, in ELB's own words, as data that both sides of a comparison share.

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
            /// ELB's word for it.
            pub(crate) fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The variant of ELB's word, if it is one of those known here.
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
    /// Who can reach a balancer.
    Scheme { Internal = "internal", InternetFacing = "internet-facing" }
}
words! {
    /// The families that a balancer's addresses are of.
    AddressType { Ipv4 = "ipv4", Dualstack = "dualstack" }
}
words! {
    /// What targets are registered by.
    TargetType { Instance = "instance", Ip = "ip" }
}
words! {
    /// How targets are probed.
    Probe { Tcp = "TCP", Http = "HTTP", Https = "HTTPS" }
}

impl Protocol {
    /// The transports of packets that it stands for, as security group rules call them.
    pub(crate) fn transports(self) -> &'static [&'static str] {
        match self {
            Self::Tcp | Self::Tls => &["tcp"],
            Self::Udp | Self::Quic => &["udp"],
            Self::TcpUdp | Self::TcpQuic => &["tcp", "udp"],
        }
    }

    /// Targets see the client's address, whatever the attribute says.
    pub(crate) fn always_preserves_client(self) -> bool {
        !matches!(self, Self::Tcp | Self::Tls)
    }
}

/// A health check; what is `None` is left to ELB and not compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthCheck {
    pub protocol: Probe,
    /// A number, or `traffic-port`.
    pub port: String,
    pub path: Option<String>,
    /// HTTP codes that are well, such as `200-399`.
    pub codes: Option<String>,
    /// Seconds from one probe to the next.
    pub interval: u32,
    /// Seconds until a probe counts as failed.
    pub timeout: Option<u32>,
    /// Good probes in a row that make a target healthy.
    pub healthy: u32,
    /// Bad probes in a row that make it unhealthy.
    pub unhealthy: u32,
}

/// Probes go to the port that traffic goes to.
pub(crate) const TRAFFIC_PORT: &str = "traffic-port";

impl HealthCheck {
    /// Whether `seen` is as this asks.
    pub(crate) fn is_met_by(&self, seen: &Self) -> bool {
        let met = |asked: &Option<String>, seen: &Option<String>| asked.is_none() || asked == seen;
        self.protocol == seen.protocol
            && self.port == seen.port
            && met(&self.path, &seen.path)
            && met(&self.codes, &seen.codes)
            && self.interval == seen.interval
            && (self.timeout.is_none() || self.timeout == seen.timeout)
            && self.healthy == seen.healthy
            && self.unhealthy == seen.unhealthy
    }
}

/// Where a target group sends traffic.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Target {
    /// An instance's id, or an address.
    pub id: String,
    pub port: u16,
}

/// What ELB says of a target.
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

/// A subnet that a balancer is in, with what it is given there.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mapping {
    pub subnet: String,
    pub zone: String,
    /// An Elastic IP's allocation.
    pub allocation: Option<String>,
    pub private_v4: Option<String>,
    pub v6: Option<String>,
    /// The prefix that UDP over IPv6 is translated from; `auto_assigned` lets AWS choose.
    pub nat_prefix: Option<String>,
}

/// Ports that load balancers reach, by transport.
pub(crate) type Ports = BTreeSet<(&'static str, u16)>;

/// Where packets come from.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Source {
    Range(IpNet),
    PrefixList(String),
    /// Whatever carries this security group.
    Group(String),
}

/// What one rule of a security group lets in.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Rule {
    /// `tcp`, `udp`, `icmp` or `icmpv6`.
    pub protocol: String,
    /// The first port, or ICMP's type.
    pub from: i32,
    /// The last port, or ICMP's code.
    pub to: i32,
    pub source: Source,
    pub description: String,
}

impl Rule {
    /// What EC2 tells rules apart by: everything but the description.
    pub(crate) fn key(&self) -> (&str, i32, i32, &Source) {
        (&self.protocol, self.from, self.to, &self.source)
    }
}

/// A rule as EC2 has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SeenRule {
    pub id: String,
    pub rule: Rule,
}

/// A security group as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SecurityGroup {
    pub name: String,
    pub description: String,
    pub tags: Tags,
    pub rules: BTreeSet<Rule>,
}

/// A balancer as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Balancer {
    pub name: String,
    pub scheme: Scheme,
    pub address_type: AddressType,
    /// Addresses for the translation of UDP over IPv6.
    pub source_nat: bool,
    pub subnets: Vec<Mapping>,
    /// Its groups by id, but for the Service's own one, which may have to be made first.
    pub security_groups: Vec<String>,
    /// Rules count for traffic by PrivateLink; `None`: as AWS has it.
    pub private_link: Option<bool>,
    pub attributes: Attributes,
    /// Reserved capacity in units; `None`: as AWS has it.
    pub capacity: Option<i32>,
    pub tags: Tags,
}

/// A listener as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listener {
    pub port: u16,
    pub protocol: Protocol,
    /// ARNs; the first one is the default.
    pub certificates: Vec<String>,
    pub policy: Option<String>,
    pub alpn: Option<String>,
    pub attributes: Attributes,
    pub tags: Tags,
    pub group: TargetGroup,
    /// Other target groups that traffic goes to, by ARN, or by name those of [`Desired::backends`]; `None`: only the
    /// own one.
    pub spread: Option<Spread<String>>,
}

impl Listener {
    /// A client stays with its target group.
    pub(crate) fn is_sticky(&self) -> bool {
        self.spread.as_ref().is_some_and(|spread| spread.sticky)
    }
}

/// A target group as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TargetGroup {
    pub name: String,
    pub target_type: TargetType,
    pub protocol: Protocol,
    /// What ELB shows as its port; targets are registered with ports of their own.
    pub port: u16,
    pub ipv6: bool,
    pub health: HealthCheck,
    pub attributes: Attributes,
    pub tags: Tags,
    pub targets: BTreeSet<Target>,
    /// More targets may be wanted: nothing is taken out.
    pub incomplete: bool,
    /// Targets at most.
    pub most: Option<usize>,
    /// Other clusters register targets too: only what this cluster registered is taken out.
    pub shared: bool,
    /// Targets see the clients' addresses.
    pub preserves_client: bool,
}

/// All that a Service asks of AWS.
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
    /// All target groups.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &TargetGroup> {
        self.listeners.values().map(|listener| &listener.group).chain(self.backends.values())
    }
}

/// How existing tags are brought to the desired state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tagging {
    /// Tags that are not desired are removed, as the Load Balancer Controller does.
    pub prunes: bool,
    /// Keys that another program manages.
    pub foreign: BTreeSet<String>,
}

/// How a listener's traffic is spread; `P` says who gets the parts of others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Spread<P> {
    /// The weight of the own target group.
    pub own: i32,
    /// Others, with their weights.
    pub others: Vec<(P, i32)>,
    /// A client stays with its target group.
    pub sticky: bool,
}

impl<P> Spread<P> {
    /// The same with the others called otherwise.
    pub(crate) fn map<Q>(&self, mut name: impl FnMut(&P) -> Q) -> Spread<Q> {
        let others = self.others.iter().map(|(other, weight)| (name(other), *weight)).collect();
        Spread { own: self.own, others, sticky: self.sticky }
    }
}

/// The range that everybody is in.
pub(crate) fn anyone(ipv6: bool) -> IpNet {
    match ipv6 {
        true => IpNet::new_assert(std::net::Ipv6Addr::UNSPECIFIED.into(), 0),
        false => IpNet::new_assert(std::net::Ipv4Addr::UNSPECIFIED.into(), 0),
    }
}
