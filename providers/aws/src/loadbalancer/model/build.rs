//! Builds the whole stack that AWS should have for a Service, from its settings, the network and the observed state.

use std::collections::{BTreeMap, BTreeSet};

use providers::{CloudError, IpFamily, IpNet, LoadBalancerId, Targets};

use crate::loadbalancer::model::{subnet_changes, subnets};
use crate::loadbalancer::names::{self, Flavour};
use crate::loadbalancer::observed::network::instance_id;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack, State};
use crate::loadbalancer::observed::vpc::Network;
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::annotations::{Misfit, misfit};
use crate::loadbalancer::spec::settings::{
    Backend, Families, Group, GroupSettings, ListenerSettings, Other, SecurityGroups, Settings,
};
use crate::loadbalancer::types::{
    AddressType, Balancer, Desired, Listener, Mapping, Rule, Scheme, SecurityGroup, Source, Spread, Tagging, Tags,
    Target, TargetGroup, TargetType, all_addresses,
};
use crate::tags::ClusterTags;

/// The inputs of the stack besides the settings.
pub(crate) struct StackInputs<'a> {
    pub id: &'a LoadBalancerId,
    pub cluster: &'a ClusterTags,
    pub network: &'a Network,
    pub observed: &'a ObservedStack,
    /// The security group that nodes' rules reference, if this load balancer should have it.
    pub backend: Option<&'a str>,
    /// The ids of the security groups that annotations name.
    pub named_groups: &'a [String],
    pub targets: &'a Targets,
}

/// Returns the load balancer that is kept: the user's or the group's; for other Services one of the requested scheme,
/// preferably the one with the default name.
pub(crate) fn existing<'a>(
    settings: &Settings,
    id: &LoadBalancerId,
    observed: &'a ObservedStack,
) -> Option<&'a ObservedBalancer> {
    if settings.existing.is_some() || settings.group.is_some() {
        return observed.balancers.iter().find(|one| one.shared);
    }
    let fits = |one: &&ObservedBalancer| {
        one.state != State::Failed && settings.scheme.is_none_or(|scheme| scheme == one.scheme)
    };
    let own = |one: &ObservedBalancer| one.name == names::balancer(settings.flavour, id, one.scheme);
    let mut fit: Vec<&ObservedBalancer> = observed.balancers.iter().filter(fits).collect();
    fit.sort_by_key(|one| (!own(one), &one.name));
    fit.first().copied()
}

/// Returns true if a load balancer should have the security group that nodes' rules reference.
pub(crate) fn wants_backend(
    settings: &Settings,
    existing: Option<&ObservedBalancer>,
    observed: &ObservedStack,
) -> bool {
    let lacks_security_groups = existing.is_some_and(|balancer| balancer.security_groups.is_empty());
    let wanted = settings.node_rules || is_leaving_nodes(settings, existing, observed);
    wanted && settings.existing.is_none() && settings.security_groups != SecurityGroups::Off && !lacks_security_groups
}

/// Returns true if a load balancer still sends traffic to nodes or pods, and should send it to an Application Load
/// Balancer. The nodes and pods are reached only while the load balancer has the security group that their rules
/// reference.
fn is_leaving_nodes(settings: &Settings, existing: Option<&ObservedBalancer>, observed: &ObservedStack) -> bool {
    let own = existing.filter(|one| settings.alb.is_some() && !one.shared);
    let mut forwards = own.into_iter().flat_map(|one| &one.listeners).flat_map(|listener| &listener.forwards);
    forwards.any(|(arn, _)| observed.target_group_by_arn(arn).is_some_and(|group| group.target_type != TargetType::Alb))
}

/// Returns the whole stack.
///
/// # Errors
/// `Invalid` for settings that the network or the existing load balancer rules out.
pub(crate) fn desired(settings: &Settings, inputs: &StackInputs<'_>) -> Result<(Desired, Vec<String>), CloudError> {
    let mut warnings = settings.warnings.clone();
    let existing = existing(settings, inputs.id, inputs.observed);
    let shared = existing.filter(|one| one.shared);
    let requested = settings.scheme.filter(|_| shared.is_none());
    let scheme = requested.or(existing.map(|one| one.scheme)).unwrap_or(Scheme::Internal);
    let (mappings, dualstack) = match shared {
        Some(shared) => {
            check_ports(settings, shared)?;
            (shared.subnets.clone(), shared.address_type == AddressType::Dualstack)
        }
        None => {
            check_addresses(settings, existing, scheme)?;
            check_security_groups(settings, existing, &mut warnings)?;
            choose_subnets(settings, inputs, existing, scheme)?
        }
    };
    warnings.extend(existing.and_then(|one| subnet_changes::warning(&one.subnets, &mappings)));
    let name = balancer_name(settings, inputs, existing, scheme);
    let (listeners, backends) = listeners(settings, inputs, (&name, dualstack), &mut warnings);
    let lacks_security_groups = existing.is_some_and(|one| one.security_groups.is_empty());
    let backend = inputs.backend.filter(|_| wants_backend(settings, existing, inputs.observed)).map(str::to_owned);
    let groups = if lacks_security_groups { &[][..] } else { inputs.named_groups };
    let balancer = Balancer {
        name,
        scheme,
        address_type: if dualstack { AddressType::Dualstack } else { AddressType::Ipv4 },
        source_nat: settings.source_nat && dualstack,
        subnets: mappings,
        security_groups: groups.iter().cloned().chain(backend).collect(),
        private_link: settings.private_link,
        attributes: settings.attributes.clone(),
        capacity: settings.capacity,
        tags: balancer_tags(settings, inputs),
    };
    let own = settings.security_groups == SecurityGroups::Own && !lacks_security_groups && settings.existing.is_none();
    let security_group = own.then(|| match (&settings.group, shared) {
        (Some(group), Some(shared)) => group_security_group(group, settings, inputs, (&shared.name, dualstack)),
        _ => SecurityGroup {
            name: own_group_name(inputs),
            description: "[k8s] Managed SecurityGroup for LoadBalancer".into(),
            tags: tags(settings, inputs, "ManagedLBSecurityGroup"),
            rules: front_rules(settings, dualstack, ""),
        },
    });
    let tagging = Tagging { prunes: settings.flavour == Flavour::Controller, foreign: settings.foreign_tags.clone() };
    Ok((Desired { balancer, security_group, listeners, backends, tagging }, warnings))
}

/// Returns the tags of a part of the stack.
fn tags(settings: &Settings, inputs: &StackInputs<'_>, resource: &str) -> Tags {
    let mut tags = settings.tags.clone();
    tags.extend(names::tags(inputs.cluster, settings.flavour, inputs.id, resource));
    tags
}

/// Returns the tags of the load balancer. One of them marks that it may have an endpoint service.
fn balancer_tags(settings: &Settings, inputs: &StackInputs<'_>) -> Tags {
    let mut tags = tags(settings, inputs, "LoadBalancer");
    if settings.endpoint_service.is_some() {
        tags.insert(names::ENDPOINT_SERVICE.into(), "true".into());
    }
    tags
}

/// Returns the subnets, and whether the load balancer has both address families.
fn choose_subnets(
    settings: &Settings,
    inputs: &StackInputs<'_>,
    existing: Option<&ObservedBalancer>,
    scheme: Scheme,
) -> Result<(Vec<Mapping>, bool), CloudError> {
    let current = existing.map(|one| one.subnets.as_slice()).unwrap_or_default();
    let required = settings.families == Families::Dualstack;
    let mappings = subnets::choose(settings, scheme, required, inputs.network, inputs.cluster, current)?;
    let dualstack = match settings.families {
        Families::Ipv4 => false,
        _ => inputs.network.has_ipv6(&mappings),
    };
    if required && !dualstack {
        let fix = format!("use IPv4 only, or subnets with IPv6 in annotation {PREFIX}subnets");
        return Err(CloudError::invalid_field("spec.ipFamilies", "with IPv6", &fix));
    }
    Ok((mappings, dualstack))
}

/// Checks that the Service's ports are free on a load balancer that the user made, or that several Services share.
fn check_ports(settings: &Settings, shared: &ObservedBalancer) -> Result<(), CloudError> {
    match settings.listeners.iter().find(|listener| shared.taken.contains(&listener.port)) {
        Some(listener) => {
            let fix = format!("use another port: {} has a listener of another owner for it", shared.arn);
            Err(CloudError::invalid_field("spec.ports[].port", listener.port, &fix))
        }
        None => Ok(()),
    }
}

/// Checks the requested addresses against the scheme of the load balancer, if the Service does not set the scheme.
/// Upstream: Load Balancer Controller, buildLoadBalancerScheme: the scheme is then that of the existing load balancer,
/// or internal for a new one.
fn check_addresses(settings: &Settings, existing: Option<&ObservedBalancer>, scheme: Scheme) -> Result<(), CloudError> {
    let misfit = misfit(scheme, &settings.allocations, &settings.private_v4).filter(|_| settings.scheme.is_none());
    let Some(Misfit { suffix, value, fix }) = misfit else { return Ok(()) };
    let reason = match existing {
        Some(existing) => format!("the load balancer {} is {}", existing.name, scheme.as_str()),
        None => format!("a new load balancer is {}", scheme.as_str()),
    };
    let fix = format!("{fix}; {reason}, as annotation {PREFIX}scheme is missing");
    Err(CloudError::invalid_annotation(&format!("{PREFIX}{suffix}"), &value, &fix))
}

/// Checks the settings for security groups against the existing load balancer: AWS can neither add a first security
/// group later, nor remove the last one.
fn check_security_groups(
    settings: &Settings,
    existing: Option<&ObservedBalancer>,
    warnings: &mut Vec<String>,
) -> Result<(), CloudError> {
    match (&settings.security_groups, existing.map(|one| one.security_groups.is_empty())) {
        (SecurityGroups::Off, Some(false)) => {
            let fix = "use false: AWS cannot remove all security groups from a load balancer; to have none, delete the \
                       Service and create it again";
            Err(CloudError::invalid_annotation(&format!("{PREFIX}disable-nlb-sg"), "true", fix))
        }
        (SecurityGroups::Named(_), Some(true)) => {
            warnings.push(format!(
                "annotation {PREFIX}security-groups has no effect: AWS cannot add security groups to a load balancer that \
                 was created without any"
            ));
            Ok(())
        }
        _ => Ok(()),
    }
}

/// Returns the listeners by port, and the target groups for other Services by name.
fn listeners(
    settings: &Settings,
    inputs: &StackInputs<'_>,
    (balancer, dualstack): (&str, bool),
    warnings: &mut Vec<String>,
) -> (BTreeMap<u16, Listener>, BTreeMap<String, TargetGroup>) {
    let tags = |resource: &str| tags(settings, inputs, resource);
    let mut listeners = BTreeMap::new();
    let mut backends = BTreeMap::new();
    for requested in &settings.listeners {
        let mut made = |group_of: &GroupSettings| {
            let group = group(settings, group_of, requested.port, (balancer, dualstack), &tags, inputs);
            warnings.extend(warning_of_targets(settings, requested.port, group_of, group.targets.len()));
            group
        };
        let own = made(&requested.group);
        let spread = requested.spread.as_ref().map(|spread| {
            spread.map(|other| match other {
                Other::Arn(arn) => arn.clone(),
                Other::Group(requested) => {
                    let group = made(requested);
                    let name = group.name.clone();
                    backends.insert(name.clone(), group);
                    name
                }
            })
        });
        listeners.insert(requested.port, listener(requested, own, spread, tags(&requested.port.to_string())));
    }
    (listeners, backends)
}

/// Returns the warning about a target group with more desired targets than the maximum.
fn warning_of_targets(settings: &Settings, port: u16, group: &GroupSettings, all: usize) -> Option<String> {
    let max = settings.max_targets.filter(|max| all > *max)?;
    let of = group.backend.as_ref().map(|backend| format!(" of {}", backend.service)).unwrap_or_default();
    let port = group.backend.as_ref().map_or(port, |backend| backend.port);
    Some(format!("port {port}{of} has only {max} of {all} targets, because of --max-targets-per-target-group"))
}

/// Returns the tags of the security group of a load balancer that several Services share: the same for all of them.
pub(crate) fn group_tags(group: &Group, settings: &Settings, cluster: &ClusterTags) -> Tags {
    let mut tags = settings.common_tags.clone();
    tags.extend(names::group_tags(cluster, &group.key));
    tags
}

/// Returns the security group of a load balancer that several Services share, with the rules of this Service.
fn group_security_group(
    group: &Group,
    settings: &Settings,
    inputs: &StackInputs<'_>,
    (name, dualstack): (&str, bool),
) -> SecurityGroup {
    SecurityGroup {
        name: name.to_owned(),
        description: String::new(),
        tags: group_tags(group, settings, inputs.cluster),
        rules: front_rules(settings, dualstack, &names::group_rule(inputs.id)),
    }
}

/// Returns the name of the Service's existing security group, or upstream's name for a new one.
fn own_group_name(inputs: &StackInputs<'_>) -> String {
    let name = names::security_group(inputs.id);
    let groups = &inputs.observed.security_groups;
    match groups.iter().find(|group| group.name == name).or(groups.first()) {
        Some(group) => group.name.clone(),
        None => name,
    }
}

fn balancer_name(
    settings: &Settings,
    inputs: &StackInputs<'_>,
    existing: Option<&ObservedBalancer>,
    scheme: Scheme,
) -> String {
    if let Some(existing) = existing {
        return existing.name.clone();
    }
    let candidates = [
        settings.name.clone(),
        Some(names::balancer(settings.flavour, inputs.id, scheme)),
        Some(names::balancer(Flavour::Controller, inputs.id, scheme)),
    ];
    // The old load balancer of another scheme keeps its name until the new one works.
    let taken = |name: &String| inputs.observed.balancer(name).is_some_and(|one| one.state != State::Failed);
    let mut names = candidates.into_iter().flatten();
    names.find(|name| !taken(name)).unwrap_or_default()
}

fn listener(requested: &ListenerSettings, group: TargetGroup, spread: Option<Spread<String>>, tags: Tags) -> Listener {
    Listener {
        port: requested.port,
        protocol: requested.protocol,
        certificates: requested.certificates.clone(),
        policy: requested.policy.clone(),
        alpn: requested.alpn.clone(),
        attributes: requested.attributes.clone(),
        tags,
        group,
        spread,
    }
}

fn group(
    settings: &Settings,
    requested: &GroupSettings,
    port: u16,
    (balancer, dualstack): (&str, bool),
    tags: &impl Fn(&str) -> Tags,
    inputs: &StackInputs<'_>,
) -> TargetGroup {
    let id = inputs.id;
    let kind = settings.target_type;
    let protocol = requested.protocol;
    let node_port = (kind == TargetType::Instance && !settings.shared_groups).then_some(requested.port);
    let (name, part, ipv6) = match &requested.backend {
        None => {
            let ipv6 = settings.ipv6_targets && dualstack;
            let name = names::target_group(id, balancer, (port, node_port), kind, protocol, ipv6);
            (name, names::resource_id(&id.namespace, &id.name, port), ipv6)
        }
        Some(Backend { service, port, ipv6 }) => {
            let ipv6 = *ipv6 && dualstack;
            let name = names::backend(id, balancer, (service, *port, node_port), kind, protocol, ipv6);
            (name, names::resource_id(&id.namespace, service, *port), ipv6)
        }
    };
    let mut tags = tags(&part);
    if requested.backend.is_some() {
        // Only this tag identifies the Service that the target group's targets belong to.
        tags.insert(names::RESOURCE.into(), part);
    }
    let labels = Some(&settings.node_labels).filter(|_| kind == TargetType::Instance);
    let had_labels = inputs.observed.target_group(&name).is_some_and(|one| one.tags.contains_key(names::NODE_LABELS));
    // The empty value replaces labels that are no longer required.
    if let Some(labels) = labels.filter(|labels| had_labels || !labels.is_empty()) {
        tags.insert(names::NODE_LABELS.into(), names::node_labels_tag(labels));
    }
    TargetGroup {
        name,
        target_type: settings.target_type,
        protocol: requested.protocol,
        port: requested.port,
        ipv6,
        health: requested.health.clone(),
        attributes: requested.attributes.clone(),
        tags,
        targets: targets(settings, requested, ipv6, inputs.targets),
        incomplete: inputs.targets.incomplete,
        max_targets: settings.max_targets,
        shared: settings.shared_groups,
        preserves_client: requested.preserves_client,
    }
}

/// Returns the targets of a target group.
pub(crate) fn targets(settings: &Settings, requested: &GroupSettings, ipv6: bool, all: &Targets) -> BTreeSet<Target> {
    match settings.target_type {
        TargetType::Instance => {
            let fit = all.nodes.iter().filter(|node| settings.selects(node));
            let ids = fit.filter_map(|node| instance_id(node.provider_id.as_deref()?));
            ids.map(|id| Target { id: id.to_owned(), port: requested.port }).collect()
        }
        TargetType::Alb => {
            settings.alb.iter().map(|alb| Target { id: alb.arn.clone(), port: requested.port }).collect()
        }
        TargetType::Ip => {
            let family = if ipv6 { IpFamily::IPv6 } else { IpFamily::IPv4 };
            let endpoints = match &requested.backend {
                None => all.endpoints.as_ref(),
                Some(backend) => all.others.get(&backend.service).map(AsRef::as_ref).unwrap_or_default(),
            };
            let fit = endpoints.iter().filter(|endpoint| {
                endpoint.ready
                    && IpFamily::of(endpoint.address) == family
                    && requested.port_names.contains(&endpoint.port_name)
            });
            fit.map(|endpoint| Target { id: endpoint.address.to_string(), port: endpoint.port }).collect()
        }
    }
}

/// Returns the rules for the clients of a Service, with this description: they may connect to the ports of the
/// listeners, and send ICMP for path MTU discovery if the Service requests it.
fn front_rules(settings: &Settings, dualstack: bool, description: &str) -> BTreeSet<Rule> {
    let ranges = clients(settings, dualstack);
    let lists = settings.prefix_lists.iter().cloned().map(Source::PrefixList);
    let sources: Vec<Source> = ranges.iter().copied().map(Source::Range).chain(lists).collect();
    let mut rules = BTreeSet::new();
    let rule = |protocol: &str, from: i32, to: i32, source: &Source| Rule {
        protocol: protocol.to_owned(),
        from,
        to,
        source: source.clone(),
        description: description.to_owned(),
    };
    for listener in &settings.listeners {
        for transport in listener.protocol.transports() {
            let port = i32::from(listener.port);
            rules.extend(sources.iter().map(|source| rule(transport, port, port, source)));
        }
    }
    if settings.path_mtu {
        rules.extend(ranges.iter().map(|range| {
            if range.addr().is_ipv6() {
                rule("icmpv6", 2, 0, &Source::Range(*range))
            } else {
                rule("icmp", 3, 4, &Source::Range(*range))
            }
        }));
    }
    rules
}

/// Returns the address ranges of clients that may connect.
pub(crate) fn clients(settings: &Settings, dualstack: bool) -> Vec<IpNet> {
    if !settings.ranges.is_empty() || !settings.prefix_lists.is_empty() {
        return settings.ranges.clone();
    }
    let mut all = vec![all_addresses(false)];
    if dualstack {
        all.push(all_addresses(true));
    }
    all
}
