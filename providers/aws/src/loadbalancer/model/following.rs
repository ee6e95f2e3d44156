//! The targets of existing target groups that a Service's current spec does not describe: the spec is invalid, AWS
//! refused the change to it, or the change is not finished. These targets *follow*: they are updated when nodes and
//! pods change. Their settings are read from the target groups, or else from the spec. The Service's current ports and
//! node ports have an effect, too.

use std::collections::BTreeSet;

use providers::{LoadBalancerId, LoadBalancerSpec, Port, Protocol as Transport, TargetPort, Targets};

use crate::loadbalancer::model::build;
use crate::loadbalancer::model::range_rules::Reached;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::balancer_state::{KnownGroup, known_group};
use crate::loadbalancer::observed::stack::{ObservedStack, ObservedTargetGroup};
use crate::loadbalancer::spec::settings::{Backend, GroupSettings, ListenerSettings, Settings};
use crate::loadbalancer::spec::target_group::has_client_addresses;
use crate::loadbalancer::types::{Attributes, Mapping, Protocol, TargetType};

/// A target group with the settings by which its targets follow nodes and pods.
#[derive(Debug, Clone)]
pub(crate) struct FollowedGroup {
    pub known: KnownGroup,
    pub requested: GroupSettings,
    /// The labels that nodes must have; `None`: those in the spec.
    pub node_labels: Option<Vec<(String, String)>>,
}

impl FollowedGroup {
    /// Returns the group with its targets: the rules in the targets' security groups depend on both.
    pub(crate) fn reached(&self, settings: &Settings, targets: &Targets) -> Reached {
        let Self { known, requested, .. } = self;
        let targets = build::targets(settings, requested, known.ipv6, targets);
        Reached {
            protocol: requested.protocol,
            port: requested.port,
            traffic: known.target_type.traffic_ports(requested.port, &targets),
            probed: requested.health.port.clone(),
            preserves_client: requested.preserves_client,
            ipv6: known.ipv6,
        }
    }
}

/// The target groups whose targets follow, and the other Services that some send traffic to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Followed {
    pub groups: Vec<FollowedGroup>,
    /// Names of all other Services, including those whose ports are unknown.
    pub others: BTreeSet<String>,
}

/// The ports with which nodes are registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NodePorts {
    /// The port of each target group, even if the Service has another node port now: the group is being replaced by one
    /// with the current port.
    OfGroups,
    /// The node ports that the Service has now. kube-proxy serves no others.
    Current,
}

/// Returns the target groups that listeners of the Service's load balancers send traffic to, except `described` ones.
///
/// A group is left out if its targets are unknown: they are pods of a port that the Service no longer has, or an
/// Application Load Balancer.
pub(crate) fn followed(
    spec: &LoadBalancerSpec,
    observed: &ObservedStack,
    described: &BTreeSet<String>,
    node_ports: NodePorts,
) -> Followed {
    let mut followed = Followed::default();
    let mut seen = described.clone();
    for listener in observed.balancers.iter().flat_map(|balancer| &balancer.listeners) {
        for (arn, _) in &listener.forwards {
            let Some(group) = observed.target_group_by_arn(arn).filter(|_| seen.insert(arn.clone())) else { continue };
            let known = known_group(&spec.id, listener.port, group);
            let other = known.backend.as_deref().and_then(|part| backend(&spec.id, part));
            followed.others.extend(other.iter().map(|(service, _)| service.clone()));
            if let Some(requested) = settings_of(spec, listener.port, group, other, node_ports) {
                followed.groups.push(FollowedGroup { known, requested, node_labels: names::node_labels(&group.tags) });
            }
        }
    }
    followed
}

/// Returns the other Service and its port that a target group sends traffic to.
fn backend(id: &LoadBalancerId, part: &str) -> Option<(String, u16)> {
    let (service, port) = part.rsplit_once(':')?;
    let (namespace, name) = service.split_once('/')?;
    (namespace == id.namespace).then_some((name.to_owned(), port.parse().ok()?))
}

/// Returns the settings of a target group; `None` if its targets are unknown.
fn settings_of(
    spec: &LoadBalancerSpec,
    listener: u16,
    group: &ObservedTargetGroup,
    other: Option<(String, u16)>,
    node_ports: NodePorts,
) -> Option<GroupSettings> {
    let ports = match &other {
        None => served(&spec.ports, listener, group),
        Some((service, port)) => {
            let ports = spec.others.get(service).map(|other| other.ports.as_slice()).unwrap_or_default();
            served(ports, *port, group)
        }
    };
    let port = match group.target_type {
        TargetType::Instance if node_ports == NodePorts::OfGroups => group.port,
        // If the Service has no node port now, the port of the group is the last known one.
        TargetType::Instance => ports.iter().find_map(|port| port.node_port).unwrap_or(group.port),
        TargetType::Ip if ports.is_empty() => return None,
        TargetType::Ip => group.port,
        TargetType::Alb => return None,
    };
    Some(GroupSettings {
        protocol: group.protocol,
        port_names: ports.iter().map(|port| port.name.clone()).collect(),
        port,
        health: group.health.clone(),
        attributes: Attributes::new(),
        preserves_client: has_client_addresses(&group.attributes, group.protocol, group.target_type),
        backend: other.map(|(service, port)| Backend { service, port, ipv6: group.ipv6 }),
    })
}

/// Returns the ports that a target group serves: those with the number of its listener, or else those with its targets'
/// port, if the Service's port has another number now.
fn served<'a>(ports: &'a [Port], number: u16, group: &ObservedTargetGroup) -> Vec<&'a Port> {
    let fits = |port: &&Port| has_transport(group.protocol, port.protocol);
    let of_number: Vec<&Port> = ports.iter().filter(fits).filter(|port| port.port == number).collect();
    if !of_number.is_empty() {
        return of_number;
    }
    let leads_to_group = |port: &&Port| match (group.target_type, &port.target_port) {
        (TargetType::Ip, TargetPort::Number(target)) => *target == group.port,
        (TargetType::Ip, TargetPort::Name(_)) => false,
        _ => port.node_port == Some(group.port),
    };
    ports.iter().filter(fits).filter(leads_to_group).collect()
}

fn has_transport(protocol: Protocol, transport: Transport) -> bool {
    let word = match transport {
        Transport::Tcp => "tcp",
        Transport::Udp => "udp",
        Transport::Sctp => "sctp",
    };
    protocol.transports().contains(&word)
}

/// Target groups whose targets follow by the same settings. All groups of a batch have the same kind of targets.
#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub groups: Vec<FollowedGroup>,
    /// The Service's settings, some of them replaced by those of the target groups and their load balancers.
    pub settings: Settings,
}

/// The target groups of an invalid Service, as last read or changed.
#[derive(Debug)]
pub(crate) struct Following {
    /// The Service's spec, which is invalid.
    pub spec: LoadBalancerSpec,
    pub batches: Vec<Batch>,
    pub firewall: Firewall,
    /// The other Services that the load balancer sends traffic to.
    pub others: BTreeSet<String>,
}

/// The load balancers to which the security groups of new targets are opened.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Firewall {
    /// A load balancer has the group that nodes' rules reference.
    pub shared_group: bool,
    /// Load balancers without security groups: the name in the descriptions of their rules, and their subnets.
    pub without_groups: Vec<(String, Vec<Mapping>)>,
    /// All names by which rules of the Service's load balancers are found.
    pub names: Vec<String>,
}

impl Firewall {
    /// Returns true if nodes' security groups may have rules for a load balancer.
    pub(crate) fn opens_nodes(&self) -> bool {
        self.shared_group || !self.without_groups.is_empty()
    }
}

/// Returns target groups as batches. `opens`: the nodes' security groups have rules for their load balancers.
pub(crate) fn batches(service: &Settings, groups: Vec<FollowedGroup>, opens: bool) -> Vec<Batch> {
    let mut batches: Vec<Vec<FollowedGroup>> = Vec::new();
    let kind = |one: &FollowedGroup| {
        (one.known.target_type, one.known.user, one.known.recorded.is_some(), one.node_labels.clone())
    };
    for group in groups {
        match batches.iter_mut().find(|batch| batch.first().map(kind) == Some(kind(&group))) {
            Some(batch) => batch.push(group),
            None => batches.push(vec![group]),
        }
    }
    batches.into_iter().map(|groups| Batch { settings: settings(service, &groups, opens), groups }).collect()
}

/// Returns the settings of a batch.
fn settings(service: &Settings, groups: &[FollowedGroup], opens: bool) -> Settings {
    let first = groups.first();
    let listener = |group: &FollowedGroup| ListenerSettings {
        port: group.known.port,
        protocol: group.known.protocol,
        certificates: Vec::new(),
        policy: None,
        alpn: None,
        attributes: Attributes::new(),
        group: group.requested.clone(),
        spread: None,
    };
    let is_shared = first.is_some_and(|group| group.known.recorded.is_some());
    Settings {
        target_type: first.map_or(service.target_type, |group| group.known.target_type),
        // Users open nodes to their own load balancers themselves.
        listeners: groups.iter().filter(|group| !group.known.user).map(listener).collect(),
        user_groups: Vec::new(),
        existing: None,
        group: None,
        alb: None,
        node_rules: service.node_rules && opens,
        shared_groups: service.shared_groups || is_shared,
        node_labels: first.and_then(|group| group.node_labels.clone()).unwrap_or_else(|| service.node_labels.clone()),
        ..service.clone()
    }
}

/// Returns the settings of a target group that a user made, with its `recorded` targets of this Service; `None` if its
/// targets are unknown. `port` is the Service's port, if the spec names the group.
pub(crate) fn of_user(
    spec: &LoadBalancerSpec,
    group: &ObservedTargetGroup,
    known: KnownGroup,
    port: Option<u16>,
) -> Option<FollowedGroup> {
    // The port of the group has no effect: targets are registered with their own.
    let recorded = known.recorded.iter().flatten().next().map(|target| target.port);
    let observed = ObservedTargetGroup { port: recorded.unwrap_or(group.port), ..group.clone() };
    let requested = settings_of(spec, port.unwrap_or_default(), &observed, None, NodePorts::Current)?;
    Some(FollowedGroup { known, requested, node_labels: None })
}
