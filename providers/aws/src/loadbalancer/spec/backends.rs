//! Target groups with the targets of other Services: annotations of a Service can send a part of a listener's traffic
//! to a port of another one. Upstream: AWS Load Balancer Controller, buildTargetGroupTuples.

use providers::{IpFamily, LoadBalancerSpec, OtherService, Port, Protocol as Transport, TargetPort};

use crate::loadbalancer::spec::actions::{Destination, ServicePort};
use crate::loadbalancer::spec::annotation_reader::{PREFIX, Reading};
use crate::loadbalancer::spec::settings::{Backend, GroupSettings, ListenerSettings, Other};
use crate::loadbalancer::spec::target_group::{GroupReader, ServicePorts};
use crate::loadbalancer::types::{Protocol, Spread, TargetType};

/// A mistake in an action: its part, and the fix.
type Mistake = (String, String);

/// Returns a listener's forward action with the data of the Services that it names; `None` after a mistake, which is
/// added to `reading`.
pub(super) fn resolve(
    spread: &Spread<Destination>,
    listener: &ListenerSettings,
    spec: &LoadBalancerSpec,
    groups: &GroupReader<'_>,
    reading: &mut Reading<'_>,
) -> Option<Spread<Other>> {
    let resolved = spread.map(|destination| match destination {
        Destination::Arn(arn) => Some(Other::Arn(arn.clone())),
        Destination::Service(requested) => match group(requested, listener.protocol, spec, groups, reading) {
            Ok(group) => Some(Other::Group(Box::new(group))),
            Err((what, fix)) => {
                reading.refuse_action(listener.protocol.as_str(), listener.port, &what, &fix);
                None
            }
        },
    });
    let others = resolved.others.into_iter().map(|(other, weight)| Some((other?, weight))).collect::<Option<_>>()?;
    Some(Spread { own: resolved.own, others, sticky: resolved.sticky })
}

fn group(
    requested: &ServicePort,
    listener: Protocol,
    spec: &LoadBalancerSpec,
    groups: &GroupReader<'_>,
    reading: &mut Reading<'_>,
) -> Result<GroupSettings, Mistake> {
    let service = &requested.service;
    let other = other(requested, spec)?;
    let protocol = match listener {
        Protocol::Tls if requested.decrypt => Protocol::Tcp,
        protocol => protocol,
    };
    let served = served(requested, other, protocol)?;
    let number = number(requested, &served, groups.target_type)?;
    let port = served[0].port;
    let (attributes, preserves_client) = groups.attributes(port, protocol, reading);
    let health_port = other.health_check_node_port;
    let behind = ServicePorts { ports: &other.ports, local: health_port.is_some(), health_port };
    let local = behind.local;
    let mut group = GroupSettings {
        protocol,
        port_names: served.iter().map(|port| port.name.clone()).collect(),
        port: number,
        health: groups.health(&behind, reading),
        attributes,
        preserves_client,
        backend: Some(Backend { service: service.clone(), port, ipv6: other.ip_families.contains(&IpFamily::IPv6) }),
    };
    groups.probe_udp(&mut group, local, reading);
    Ok(group)
}

fn other<'a>(requested: &ServicePort, spec: &'a LoadBalancerSpec) -> Result<&'a OtherService, Mistake> {
    let service = &requested.service;
    let namespace = &spec.id.namespace;
    let what = format!("serviceName {service}");
    if *service == spec.id.name {
        let fix = "name another Service: the weight of this Service is baseServiceWeight";
        return Err((what, fix.into()));
    }
    let missing = || {
        format!(
            "create a Service {service} in namespace {namespace}, where there is none, or leave it out of targetGroups"
        )
    };
    spec.others.get(service).ok_or_else(|| (what, missing()))
}

/// Returns the ports of another Service that a target group serves: one, or one for each transport of the group.
fn served<'a>(requested: &ServicePort, other: &'a OtherService, protocol: Protocol) -> Result<Vec<&'a Port>, Mistake> {
    let what = format!("serviceName {}, servicePort {}", requested.service, requested.port);
    let named = |port: &&Port| port.name == requested.port || port.port.to_string() == requested.port;
    let fits = |port: &&Port| {
        let transport = if port.protocol == Transport::Udp { "udp" } else { "tcp" };
        port.protocol != Transport::Sctp && protocol.transports().contains(&transport)
    };
    match other.ports.iter().filter(fits).find(named) {
        Some(first) => Ok(other.ports.iter().filter(fits).filter(|port| port.port == first.port).collect()),
        None if other.ports.iter().any(|port| named(&port)) => {
            let transports = protocol.transports().join(" or ").to_uppercase();
            Err((what, format!("use a {transports} port, like the listener")))
        }
        None => {
            let has = other.ports.iter().map(|port| {
                if port.name.is_empty() { port.port.to_string() } else { format!("{} ({})", port.port, port.name) }
            });
            let has: Vec<String> = has.collect();
            Err((what, format!("use a port that the Service {} has: {}", requested.service, has.join(", "))))
        }
    }
}

/// Returns the port that ELB shows for a target group: the node port, or the port of the pods; 1 if that has a name,
/// because the number may differ between pods.
fn number(requested: &ServicePort, served: &[&Port], target_type: TargetType) -> Result<u16, Mistake> {
    let of = |port: &Port| match (target_type, &port.target_port) {
        (TargetType::Instance, _) => port.node_port,
        (TargetType::Ip, TargetPort::Number(number)) => Some(*number),
        (TargetType::Ip, TargetPort::Name(_)) => Some(1),
        (TargetType::Alb, _) => Some(port.port),
    };
    let what = || format!("serviceName {}, servicePort {}", requested.service, requested.port);
    let number = of(served[0]).ok_or_else(|| {
        let fix = format!(
            "make {} a Service of type NodePort, as the port has no nodePort, or send traffic to pods with annotation \
             {PREFIX}nlb-target-type: ip",
            requested.service
        );
        (what(), fix)
    })?;
    if served.iter().all(|port| of(port) == Some(number)) {
        Ok(number)
    } else {
        let field = if target_type == TargetType::Instance { "nodePort" } else { "targetPort" };
        Err((what(), format!("give TCP and UDP of the port the same {field}: they share a target group")))
    }
}
