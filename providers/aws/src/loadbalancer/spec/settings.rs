//! Typed settings of a Service, and the cluster-wide policy that they are read with.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use providers::{CloudError, IpNet, NodeTarget};

use crate::config;
use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::types::{Attributes, HealthCheck, Protocol, Scheme, Spread, Tags, TargetType};

/// What holds for all Services of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Services that cloud-provider-aws leaves to the Load Balancer Controller are ours too.
    pub controller_services: bool,
    /// Targets of the traffic policy Cluster are probed where kube-proxy answers.
    pub shared_probe: Option<config::Probe>,
    /// Nodes' security groups are left alone.
    pub no_node_rules: bool,
    /// Tags of everything; they win over a Service's own.
    pub tags: Tags,
    /// Keys of tags that another program manages.
    pub foreign_tags: BTreeSet<String>,
    /// Targets in a group at most.
    pub max_targets: Option<usize>,
}

/// The families of addresses that a balancer should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Families {
    Ipv4,
    /// Both, where the subnets have both.
    PreferDualstack,
    Dualstack,
}

/// The security groups that a balancer should carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SecurityGroups {
    /// None.
    Off,
    /// One made for the Service, with its rules, and the one that nodes' rules name.
    Own,
    /// These, by id or by the tag `Name`.
    Given(Vec<String>),
}

/// A listener with its target group, before anything is known of the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListenerSettings {
    pub port: u16,
    pub protocol: Protocol,
    pub certificates: Vec<String>,
    pub policy: Option<String>,
    pub alpn: Option<String>,
    pub attributes: Attributes,
    pub group: GroupSettings,
    pub spread: Option<Spread<Other>>,
}

/// Who gets a part of a listener's traffic beside the Service itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Other {
    /// A target group that is there already, by ARN.
    Arn(String),
    /// A target group that is made for a port of another Service.
    Group(Box<GroupSettings>),
}

/// A port of another Service that a target group is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    pub service: String,
    pub port: u16,
    /// Its targets are reached by IPv6.
    pub ipv6: bool,
}

/// A target group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupSettings {
    pub protocol: Protocol,
    /// The names of the Service's ports that it serves; two for `TCP_UDP`.
    pub port_names: Vec<String>,
    /// What ELB shows: the node port, or the port of the pods.
    pub port: u16,
    pub health: HealthCheck,
    pub attributes: Attributes,
    /// Targets see the clients' addresses.
    pub preserves_client: bool,
    /// `None`: the Service's own.
    pub backend: Option<Backend>,
}

/// All that a Service asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub flavour: Flavour,
    pub target_type: TargetType,
    /// `None`: as the balancer is; internal if there is none yet.
    pub scheme: Option<Scheme>,
    pub name: Option<String>,
    pub families: Families,
    /// Targets are reached by IPv6.
    pub ipv6_targets: bool,
    /// By id or by the tag `Name`; `None`: those that fit.
    pub subnets: Option<Vec<String>>,
    pub allocations: Vec<String>,
    pub private_v4: Vec<Ipv4Addr>,
    pub v6: Vec<Ipv6Addr>,
    pub source_nat: bool,
    pub nat_prefixes: Vec<String>,
    pub security_groups: SecurityGroups,
    /// Rules in the nodes' security groups are kept here.
    pub node_rules: bool,
    /// Who may connect; empty: anyone, or only the prefix lists if there are some.
    pub ranges: Vec<IpNet>,
    pub prefix_lists: Vec<String>,
    pub private_link: Option<bool>,
    pub path_mtu: bool,
    pub attributes: Attributes,
    pub capacity: Option<i32>,
    pub listeners: Vec<ListenerSettings>,
    /// Tags that the user adds.
    pub tags: Tags,
    /// Keys of tags that another program manages.
    pub foreign_tags: BTreeSet<String>,
    /// Targets in a group at most.
    pub max_targets: Option<usize>,
    /// Labels that nodes must have; an empty value means any.
    pub node_labels: Vec<(String, String)>,
    /// Target groups that other clusters register in too.
    pub shared_groups: bool,
    /// No type is set, so that cloud-provider-aws would have made a Classic Load Balancer.
    pub untyped: bool,
    /// The Service moves from a Classic Load Balancer, which is deleted this long after its address was replaced.
    pub replace_classic: Option<Duration>,
    /// What only a Classic Load Balancer can do: an error, unless there is one that serves the Service.
    pub classic_only: Option<CloudError>,
    pub warnings: Vec<String>,
}

impl Settings {
    /// Returns whether targets are instances, which are reached at node ports.
    pub(crate) fn has_node_targets(&self) -> bool {
        self.target_type == TargetType::Instance
    }

    /// Returns whether a node has the labels that the Service selects.
    pub(crate) fn selects(&self, node: &NodeTarget) -> bool {
        let has = |(key, value): &(String, String)| {
            node.labels.get(key).is_some_and(|label| value.is_empty() || label == value)
        };
        self.node_labels.iter().all(has)
    }

    /// The target groups that are made for other Services; one for each listener that sends traffic there.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &GroupSettings> {
        let spreads = self.listeners.iter().filter_map(|listener| listener.spread.as_ref());
        spreads.flat_map(|spread| &spread.others).filter_map(|(other, _)| match other {
            Other::Arn(_) => None,
            Other::Group(group) => Some(&**group),
        })
    }
}
