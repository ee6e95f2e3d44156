//! Conversion of the observed state to the provider interface.

use std::collections::{BTreeMap, BTreeSet};

use providers::{
    Health, Ingress, IpNet, Listener, LoadBalancerStatus, ObservedLoadBalancer, ObservedTarget, Phase,
    Protocol as Transport, TargetId,
};

use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedStack, State};
use crate::loadbalancer::types::{Source, TargetHealth, TargetType, all_addresses};

/// Returns the address of a load balancer, once it has a DNS name.
pub(crate) fn ingress(balancer: &ObservedBalancer) -> Option<Ingress> {
    let hostname = Some(balancer.dns.clone()).filter(|dns| !dns.is_empty())?;
    Some(Ingress { hostname: Some(hostname), ..Ingress::default() })
}

/// Returns the instances that are targets.
pub(crate) fn instances(observed: &ObservedStack) -> BTreeSet<String> {
    let groups = observed.target_groups.iter().filter(|group| group.target_type == TargetType::Instance);
    groups.flat_map(|group| group.targets.keys()).map(|target| target.id.clone()).collect()
}

/// Converts a load balancer, with the zones of the instances that are its targets.
pub(crate) fn report(
    observed: &ObservedStack,
    deleting: bool,
    zones: &BTreeMap<String, String>,
) -> ObservedLoadBalancer {
    let balancer = observed.balancers.first();
    let phase = match balancer {
        _ if deleting => Phase::Deleting,
        None => Phase::Incomplete,
        Some(balancer) if balancer.state == State::Provisioning => Phase::Provisioning,
        Some(balancer) if balancer.state == State::Failed || balancer.listeners.is_empty() => Phase::Incomplete,
        Some(_) => Phase::Active,
    };
    let mut listeners = Vec::new();
    for listener in balancer.into_iter().flat_map(|balancer| &balancer.listeners) {
        for transport in listener.protocol.transports() {
            let protocol = if *transport == "udp" { Transport::Udp } else { Transport::Tcp };
            listeners.push(Listener { protocol, port: listener.port });
        }
    }
    listeners.sort_unstable_by_key(|listener| (listener.protocol, listener.port));
    let rules = observed.security_groups.iter().flat_map(|group| &group.rules);
    let range = |source: &Source| match source {
        Source::Range(range) => Some(*range),
        Source::PrefixList(_) | Source::Group(_) => None,
    };
    let ranges: BTreeSet<IpNet> = rules.filter_map(|rule| range(&rule.rule.source)).collect();
    let open = ranges.contains(&all_addresses(false)) || ranges.contains(&all_addresses(true));
    let mut healths: BTreeMap<TargetId, Vec<TargetHealth>> = BTreeMap::new();
    for group in observed.target_groups.iter().filter(|group| group.target_type != TargetType::Alb) {
        for (target, health) in &group.targets {
            let id = match (group.target_type, target.id.parse()) {
                (TargetType::Ip, Ok(address)) => TargetId::Endpoint { address, port: target.port },
                _ => {
                    let zone = zones.get(&target.id).map(String::as_str).unwrap_or_default();
                    TargetId::Instance(format!("aws:///{zone}/{}", target.id))
                }
            };
            healths.entry(id).or_default().push(*health);
        }
    }
    let targets = healths.into_iter().map(|(target, healths)| ObservedTarget { target, health: worst(&healths) });
    ObservedLoadBalancer {
        phase,
        status: LoadBalancerStatus { ingress: balancer.and_then(ingress).into_iter().collect() },
        listeners,
        source_ranges: if open { Vec::new() } else { ranges.into_iter().collect() },
        targets: targets.collect(),
    }
}

/// Returns the worst health of a target's ports; a port that is being deregistered counts only if there is no other.
pub(crate) fn worst(healths: &[TargetHealth]) -> Health {
    let has = |health| healths.contains(&health);
    if has(TargetHealth::Unhealthy) {
        Health::Unhealthy
    } else if has(TargetHealth::Initial) {
        Health::Initial
    } else if has(TargetHealth::Unknown) || has(TargetHealth::Unused) {
        Health::Unknown
    } else if has(TargetHealth::Healthy) {
        Health::Healthy
    } else {
        Health::Draining
    }
}
