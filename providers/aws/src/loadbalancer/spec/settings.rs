//! Typed settings of a Service, and the settings of the cluster that apply to all Services.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use providers::{CloudError, IpNet, NodeTarget};

use crate::config;
use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::spec::endpoint_service::EndpointServiceSettings;
use crate::loadbalancer::types::{Attributes, ClassicGroups, HealthCheck, Protocol, Scheme, Spread, Tags, TargetType};

/// Settings for all Services of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Policy {
    /// This process also serves Services that cloud-provider-aws leaves to the Load Balancer Controller.
    pub controller_services: bool,
    /// With the traffic policy Cluster, health checks use kube-proxy's health port on nodes instead of the node port.
    pub shared_probe: Option<config::Probe>,
    /// Nodes' security groups are not changed.
    pub no_node_rules: bool,
    /// Tags of all resources; they override a Service's own.
    pub tags: Tags,
    /// Keys of tags that another program manages.
    pub foreign_tags: BTreeSet<String>,
    /// Maximum number of targets in a group.
    pub max_targets: Option<usize>,
    /// The namespaces whose Services share a load balancer, by the name of the group.
    pub groups: BTreeMap<String, BTreeSet<String>>,
}

/// A load balancer that several Services share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Group {
    /// `<namespace>/<name>`, or only the name if the operator shares it between namespaces.
    pub key: String,
    /// Annotations about the load balancer itself, without their prefix.
    pub balancer_annotations: Vec<String>,
}

/// The desired address families of a load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Families {
    Ipv4,
    /// Both families, if the subnets have both.
    PreferDualstack,
    Dualstack,
}

/// The desired security groups of a load balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SecurityGroups {
    /// No security groups.
    Off,
    /// A security group that is created for the Service, with its rules, and the shared security group that the nodes'
    /// rules reference.
    Own,
    /// The listed security groups, by id or by the tag `Name`.
    Named(Vec<String>),
}

/// A listener with its target group, as the Service's fields and annotations request it.
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

/// Another destination of a listener's traffic besides the Service itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Other {
    /// An existing target group, by ARN.
    Arn(String),
    /// A target group that is made for a port of another Service.
    Group(Box<GroupSettings>),
}

/// A port of another Service that a target group is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Backend {
    pub service: String,
    pub port: u16,
    /// The targets are reached by IPv6.
    pub ipv6: bool,
}

/// An Application Load Balancer that a user made, as the target of all listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alb {
    /// Its name or ARN, as in the annotation.
    pub name: String,
    /// Empty until the load balancer was found.
    pub arn: String,
    /// An annotation sets the protocol of health checks; otherwise it is the protocol of the Application Load
    /// Balancer's listener.
    pub probe_is_set: bool,
}

/// A target group that the user made for a port of the Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserGroup {
    pub arn: String,
    /// The port of the Service.
    pub port: u16,
    /// The settings of the targets; the user sets health checks and attributes in AWS.
    pub group: GroupSettings,
    /// The port's listener on the Service's own load balancer, which serves until the target group does.
    pub former: ListenerSettings,
}

/// A target group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupSettings {
    pub protocol: Protocol,
    /// The names of the Service's ports that the group serves; two for `TCP_UDP`.
    pub port_names: Vec<String>,
    /// The port of the group in ELB: the node port, the port of the pods (1 if that has a name), or the port of the
    /// Application Load Balancer.
    pub port: u16,
    pub health: HealthCheck,
    pub attributes: Attributes,
    /// Packets reach targets with the client's source address.
    pub preserves_client: bool,
    /// The port of another Service that the group is made for; `None`: a port of this Service.
    pub backend: Option<Backend>,
}

/// All settings of a Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub flavour: Flavour,
    pub target_type: TargetType,
    /// `None`: the scheme of the existing load balancer; internal for a new one.
    pub scheme: Option<Scheme>,
    pub name: Option<String>,
    pub families: Families,
    /// Targets are reached by IPv6.
    pub ipv6_targets: bool,
    /// By id or by the tag `Name`; `None`: a suitable one in each zone.
    pub subnets: Option<Vec<String>>,
    pub allocations: Vec<String>,
    pub private_v4: Vec<Ipv4Addr>,
    pub v6: Vec<Ipv6Addr>,
    pub source_nat: bool,
    pub nat_prefixes: Vec<String>,
    pub security_groups: SecurityGroups,
    /// Rules in the nodes' security groups are managed here.
    pub node_rules: bool,
    /// Address ranges of clients; empty: all addresses, or only the prefix lists if there are some.
    pub ranges: Vec<IpNet>,
    pub prefix_lists: Vec<String>,
    pub private_link: Option<bool>,
    pub path_mtu: bool,
    pub attributes: Attributes,
    pub capacity: Option<i32>,
    pub listeners: Vec<ListenerSettings>,
    /// The Application Load Balancer that all traffic goes to.
    pub alb: Option<Alb>,
    /// Host names whose certificates are found in ACM.
    pub domains: Vec<String>,
    /// Target groups of the user, for ports without a listener.
    pub user_groups: Vec<UserGroup>,
    /// Additional tags: those of the Service, and those of all resources of the cluster.
    pub tags: Tags,
    /// The subset of `tags` that all resources of the cluster have.
    pub common_tags: Tags,
    /// Keys of tags that another program manages.
    pub foreign_tags: BTreeSet<String>,
    /// Maximum number of targets in a group.
    pub max_targets: Option<usize>,
    /// Labels that nodes must have. An empty value means any, but only for a Service of cloud-provider-aws.
    pub node_labels: Vec<(String, String)>,
    /// Other clusters register targets in the target groups, too.
    pub shared_groups: bool,
    /// The ARN of a load balancer that the user made; only listeners and target groups are managed here.
    pub existing: Option<String>,
    /// The load balancer that the Service shares with others.
    pub group: Option<Group>,
    /// An endpoint service (AWS PrivateLink) for the load balancer.
    pub endpoint_service: Option<EndpointServiceSettings>,
    /// The type is not `nlb`, so cloud-provider-aws would have made a Classic Load Balancer.
    pub untyped: bool,
    /// The Service moves from a Classic Load Balancer, which is deleted when the Service has had its new address for
    /// this time.
    pub replace_classic: Option<Duration>,
    /// The security groups that annotations name for a Classic Load Balancer.
    pub classic_groups: ClassicGroups,
    /// Nodes' security groups are opened to a Classic Load Balancer.
    pub classic_node_rules: bool,
    /// The error about values that only a Classic Load Balancer can have. It counts unless a Classic Load Balancer
    /// serves the Service.
    pub classic_only: Option<CloudError>,
    pub warnings: Vec<String>,
}

impl Settings {
    /// Returns true if targets are instances, which are reached at node ports.
    pub(crate) fn has_node_targets(&self) -> bool {
        self.target_type == TargetType::Instance
    }

    /// Returns true if this process opens the security groups of targets. Users open them to their own load balancers.
    pub(crate) fn opens_targets(&self) -> bool {
        self.node_rules && !self.listeners.is_empty()
    }

    /// Returns true if certificates have to be found by host names.
    pub(crate) fn needs_certificates(&self) -> bool {
        !self.domains.is_empty() && self.listeners.iter().any(|listener| listener.protocol == Protocol::Tls)
    }

    /// Returns the settings with these certificates of all listeners for TLS.
    pub(crate) fn with_certificates(&self, arns: &[String]) -> Self {
        let mut settings = self.clone();
        for listener in settings.listeners.iter_mut().filter(|listener| listener.protocol == Protocol::Tls) {
            listener.certificates = arns.to_vec();
        }
        settings
    }

    /// Returns true if a node has the labels that the Service selects. Upstream: cloud-provider-aws, filterTargetNodes;
    /// Load Balancer Controller: buildTargetGroupBindingNodeSelector.
    pub(crate) fn selects(&self, node: &NodeTarget) -> bool {
        let empty_is_any = self.flavour == Flavour::CloudProvider;
        let has = |(key, value): &(String, String)| {
            node.labels.get(key).is_some_and(|label| label == value || (empty_is_any && value.is_empty()))
        };
        self.node_labels.iter().all(has)
    }

    /// Returns the target groups for other Services; one for each listener that sends traffic there.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &GroupSettings> {
        let spreads = self.listeners.iter().filter_map(|listener| listener.spread.as_ref());
        spreads.flat_map(|spread| &spread.others).filter_map(|(other, _)| match other {
            Other::Arn(_) => None,
            Other::Group(group) => Some(&**group),
        })
    }
}
