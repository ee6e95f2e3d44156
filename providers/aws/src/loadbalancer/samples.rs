//! Services and networks for tests.

use providers::{EndpointTarget, LoadBalancerId, LoadBalancerSpec, NodeTarget, Port, Protocol, TargetPort, Targets};

use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedTargetGroup, State};
use crate::loadbalancer::observed::vpc::{Network, Subnet};
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::types::{AddressType, HealthCheck, Probe, Scheme, Tags, TargetType};

pub(crate) fn id() -> LoadBalancerId {
    LoadBalancerId {
        cluster: "kubernetes".into(),
        namespace: "default".into(),
        name: "web".into(),
        uid: "01234567-89ab-cdef-0123-456789abcdef".into(),
    }
}

/// A Service's port, with a node port from 30000 on.
pub(crate) fn port(protocol: Protocol, number: u16) -> Port {
    Port {
        name: format!("{}-{number}", protocol.as_str().to_lowercase()),
        protocol,
        app_protocol: None,
        port: number,
        node_port: Some(30_000 + number % 2000),
        target_port: TargetPort::Number(8000 + number % 1000),
    }
}

/// A Service with one TCP port and these annotations, without their common prefix.
pub(crate) fn spec(annotations: &[(&str, &str)]) -> LoadBalancerSpec {
    let mut spec = LoadBalancerSpec::new(id(), vec![port(Protocol::Tcp, 80)]);
    spec.annotations = annotations.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).into())).collect();
    spec
}

/// Three zones with a public and a private subnet each.
pub(crate) fn network() -> Network {
    let subnet = |number: u8, zone: &str, public| Subnet {
        id: format!("subnet-{number}"),
        zone: format!("eu-west-1{zone}"),
        v4: vec![format!("10.0.{number}.0/24").parse().unwrap()],
        v6: vec![format!("fd00:{number}::/64").parse().unwrap()],
        tags: [("Name".to_owned(), format!("net-{number}"))].into(),
        free: 200,
        public,
        outpost: false,
    };
    Network {
        vpc: "vpc-1".into(),
        region: "eu-west-1".into(),
        ranges: vec!["10.0.0.0/16".parse().unwrap()],
        subnets: vec![
            subnet(1, "a", true),
            subnet(2, "b", true),
            subnet(3, "c", true),
            subnet(4, "a", false),
            subnet(5, "b", false),
            subnet(6, "c", false),
        ],
        own_subnet: "subnet-4".into(),
    }
}

/// Nodes with these numbers, each with its instance.
pub(crate) fn nodes(numbers: impl IntoIterator<Item = u8>) -> Targets {
    let node = |number: u8| NodeTarget {
        name: format!("node-{number:03}"),
        provider_id: Some(format!("aws:///eu-west-1a/i-{number:017}")),
        ..NodeTarget::default()
    };
    Targets::nodes(numbers.into_iter().map(node).collect::<Vec<_>>())
}

/// A ready endpoint behind the Service's port with this name.
pub(crate) fn endpoint(port_name: &str, address: [u8; 4], port: u16) -> EndpointTarget {
    EndpointTarget {
        port_name: port_name.into(),
        address: address.into(),
        port,
        node: None,
        provider_id: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: None,
    }
}

/// Tags of these keys and values.
pub(crate) fn tags(pairs: &[(&str, &str)]) -> Tags {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A target group for TCP to instances as in a listing, with these tags.
pub(crate) fn listed_group(arn: &str, pairs: &[(&str, &str)]) -> ObservedTargetGroup {
    ObservedTargetGroup {
        arn: arn.into(),
        name: "group".into(),
        target_type: TargetType::Instance,
        protocol: crate::loadbalancer::types::Protocol::Tcp,
        port: 80,
        ipv6: false,
        health: HealthCheck {
            protocol: Probe::Tcp,
            port: "traffic-port".into(),
            path: None,
            codes: None,
            interval: 30,
            timeout: None,
            healthy: 3,
            unhealthy: 3,
        },
        attributes: Default::default(),
        tags: tags(pairs),
        targets: Default::default(),
        recorded: None,
    }
}

/// An active load balancer as in a listing, with these tags.
pub(crate) fn listed_balancer(name: &str, pairs: &[(&str, &str)]) -> ObservedBalancer {
    ObservedBalancer {
        arn: format!("arn:loadbalancer/net/{name}"),
        name: name.into(),
        dns: String::new(),
        state: State::Active,
        reason: String::new(),
        scheme: Scheme::Internal,
        address_type: AddressType::Ipv4,
        subnets: Vec::new(),
        security_groups: Vec::new(),
        private_link: None,
        source_nat: false,
        attributes: Default::default(),
        capacity: None,
        tags: tags(pairs),
        listeners: Vec::new(),
        shared: false,
        leads: false,
        taken: Default::default(),
    }
}
