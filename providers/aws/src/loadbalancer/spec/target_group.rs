//! Settings of target groups: attributes and health checks.

use providers::{Port, TargetPort};

use crate::config;
use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::spec::annotation_reader::{PREFIX, Reading};
use crate::loadbalancer::spec::settings::{GroupSettings, Policy};
use crate::loadbalancer::types::{Attributes, HealthCheck, Probe, Protocol, TRAFFIC_PORT, TargetType};

/// The attribute for the header of the proxy protocol, version 2.
pub(super) const PROXY: &str = "proxy_protocol_v2.enabled";
const PRESERVE: &str = "preserve_client_ip.enabled";

/// The ports whose targets get the proxy protocol header.
enum ProxyProtocol {
    Unset,
    All,
    Ports(Vec<u16>),
}

impl ProxyProtocol {
    fn get(&self, port: u16) -> Option<bool> {
        match self {
            Self::Unset => None,
            Self::All => Some(true),
            Self::Ports(ports) => Some(ports.contains(&port)),
        }
    }
}

fn read_proxy_protocol(flavour: Flavour, reading: &mut Reading<'_>) -> ProxyProtocol {
    match reading.text("proxy-protocol").filter(|_| flavour == Flavour::Controller) {
        Some("*") => return ProxyProtocol::All,
        Some(other) => reading.refuse("proxy-protocol", other, "use *, which means all ports"),
        None => {}
    }
    match reading.text("proxy-protocol-per-target-group") {
        Some(_) => ProxyProtocol::Ports(reading.parsed("proxy-protocol-per-target-group", "use port numbers")),
        None => ProxyProtocol::Unset,
    }
}

/// The ports of a Service that health checks need.
pub(super) struct ServicePorts<'a> {
    pub ports: &'a [Port],
    /// The traffic policy is Local: only nodes with pods of the Service should be healthy.
    pub local: bool,
    /// The node port at which kube-proxy reports whether the node has pods of the Service.
    pub health_port: Option<u16>,
}

/// A reader of the settings of target groups, with the settings that all groups of a Service share.
pub(super) struct GroupReader<'a> {
    policy: &'a Policy,
    flavour: Flavour,
    pub target_type: TargetType,
    attributes: Attributes,
    proxy_protocol: ProxyProtocol,
}

impl<'a> GroupReader<'a> {
    pub(super) fn read(
        policy: &'a Policy,
        flavour: Flavour,
        target_type: TargetType,
        reading: &mut Reading<'_>,
    ) -> Self {
        let attributes = reading.pairs("target-group-attributes", false);
        let proxy_protocol = read_proxy_protocol(flavour, reading);
        Self { policy, flavour, target_type, attributes, proxy_protocol }
    }

    /// Returns the attributes of the target group of a port, and whether packets keep the client's address.
    pub(super) fn attributes(&self, port: u16, protocol: Protocol, reading: &mut Reading<'_>) -> (Attributes, bool) {
        let mut attributes = self.attributes.clone();
        // Upstream: Load Balancer Controller, buildPortSpecificTargetGroupAttributes: with an empty value, the value
        // for all ports applies.
        let of_port = reading.pairs(&format!("target-group-attributes.{port}"), false);
        attributes.extend(of_port.into_iter().filter(|(_, value)| !value.is_empty()));
        match self.proxy_protocol.get(port) {
            Some(on) => drop(attributes.insert(PROXY.into(), on.to_string())),
            None if self.flavour == Flavour::Controller => {
                attributes.entry(PROXY.into()).or_insert_with(|| "false".into());
            }
            None => {}
        }
        // Upstream: Load Balancer Controller, buildTargetGroupAttributes: with an empty value, the default of AWS
        // applies.
        if self.flavour == Flavour::Controller && attributes.get(PROXY).is_some_and(String::is_empty) {
            attributes.remove(PROXY);
        }
        let preserves_client = preserves_client(&attributes, protocol, self.target_type, reading);
        (attributes, preserves_client)
    }

    /// Replaces the default health check of a target group without TCP: kube-proxy's health check of the node is used.
    /// If targets are pods, only warns.
    ///
    /// AWS would probe the UDP port by TCP. Nothing listens there, so all targets are unhealthy, and the load balancer
    /// sends traffic to failed nodes, too.
    ///
    /// Differs from upstream: see docs/differences.md.
    pub(super) fn probe_udp(&self, group: &mut GroupSettings, local: bool, reading: &mut Reading<'_>) {
        let given = ["healthcheck-port", "healthcheck-protocol"].iter().any(|suffix| reading.text(suffix).is_some());
        let udp_only = !group.protocol.transports().contains(&"tcp");
        if !udp_only
            || given
            || (self.target_type == TargetType::Instance && (local || self.policy.shared_probe.is_some()))
        {
            return;
        }
        if self.target_type == TargetType::Ip {
            let message = format!(
                "targets of UDP port {} are probed by TCP at the same port: set annotation {PREFIX}healthcheck-port to a TCP \
                 port of the pods, otherwise traffic goes to unhealthy pods, too",
                group.port
            );
            return reading.warnings.push(message);
        }
        let probe = config::Probe::default();
        group.health.protocol = Probe::Http;
        group.health.port = probe.port.to_string();
        group.health.path = Some(reading.text("healthcheck-path").map_or(probe.path, str::to_owned));
        group.health.codes = reading.text("healthcheck-success-codes").map(str::to_owned);
    }

    /// Returns the health check of the target groups of a Service's ports, with upstream's defaults.
    pub(super) fn health(&self, service: &ServicePorts<'_>, reading: &mut Reading<'_>) -> HealthCheck {
        let local = service.local && self.target_type == TargetType::Instance;
        let controller = self.flavour == Flavour::Controller;
        let (interval, timeout, threshold) = match (local, controller) {
            (true, true) => (10, Some(6), 2),
            (true, false) => (10, None, 2),
            (false, true) => (10, Some(10), 3),
            (false, false) => (30, None, 3),
        };
        let word = reading.text("healthcheck-protocol").unwrap_or(if local || self.target_type == TargetType::Alb {
            "HTTP"
        } else {
            "TCP"
        });
        let protocol = Probe::parse(&word.to_ascii_uppercase()).unwrap_or_else(|| {
            let fix = "use TCP, HTTP or HTTPS";
            if word.eq_ignore_ascii_case("SSL") && !controller {
                reading.refuse_network("healthcheck-protocol", word, fix);
            } else {
                reading.refuse("healthcheck-protocol", word, fix);
            }
            Probe::Tcp
        });
        if self.target_type == TargetType::Alb && protocol == Probe::Tcp {
            reading.refuse("healthcheck-protocol", word, "use HTTP or HTTPS for an Application Load Balancer");
        }
        let node_health_port = service.health_port.filter(|_| local).map(|port| port.to_string());
        let port = match reading.text("healthcheck-port") {
            None => node_health_port.unwrap_or_else(|| TRAFFIC_PORT.into()),
            Some(given) => health_port(service.ports, self.target_type, given, reading),
        };
        let default = if local { "/healthz" } else { "/" };
        let path = reading.text("healthcheck-path").unwrap_or(default).to_owned();
        let codes = match (reading.text("healthcheck-success-codes"), controller) {
            (Some(codes), _) => Some(codes.to_owned()),
            (None, true) => Some("200-399".to_owned()),
            (None, false) => None,
        };
        let with_path = protocol != Probe::Tcp;
        let mut health = HealthCheck {
            protocol,
            port,
            path: Some(path).filter(|_| with_path),
            codes: codes.filter(|_| with_path),
            interval: reading.number("healthcheck-interval", 5, 300).unwrap_or(interval),
            timeout: reading.number("healthcheck-timeout", 2, 120).or(timeout),
            healthy: reading.number("healthcheck-healthy-threshold", 2, 10).unwrap_or(threshold),
            unhealthy: reading.number("healthcheck-unhealthy-threshold", 2, 10).unwrap_or(threshold),
        };
        if let Some(probe) =
            self.policy.shared_probe.as_ref().filter(|_| !local && self.target_type == TargetType::Instance)
        {
            health.protocol = Probe::Http;
            health.port = probe.port.to_string();
            health.path = Some(probe.path.clone());
        }
        health
    }
}

/// Checks a target group's attributes; returns whether packets keep the client's address.
fn preserves_client(
    attributes: &Attributes,
    protocol: Protocol,
    target_type: TargetType,
    reading: &mut Reading<'_>,
) -> bool {
    for key in [PRESERVE, PROXY] {
        let Some(value) = attributes.get(key) else { continue };
        if value != "true" && value != "false" {
            reading.refuse("target-group-attributes", &format!("{key}={value}"), "use true or false");
        }
    }
    if attributes.get(PRESERVE).is_some_and(|value| value == "false") && protocol.always_preserves_client() {
        let fix = "leave it out: AWS always preserves clients' addresses for UDP";
        reading.refuse("target-group-attributes", &format!("{PRESERVE}=false"), fix);
    }
    has_client_addresses(attributes, protocol, target_type)
}

/// Returns true if packets to the targets of a group with these attributes keep the client's address.
pub(crate) fn has_client_addresses(attributes: &Attributes, protocol: Protocol, target_type: TargetType) -> bool {
    let default = target_type != TargetType::Ip;
    protocol.always_preserves_client() || attributes.get(PRESERVE).map_or(default, |value| value == "true")
}

/// Parses a number, `traffic-port`, or the name of a port of the Service.
fn health_port(ports: &[Port], target_type: TargetType, given: &str, reading: &mut Reading<'_>) -> String {
    if given == TRAFFIC_PORT || given.parse::<u16>().is_ok_and(|port| port != 0) {
        return given.to_owned();
    }
    let named = ports.iter().find(|port| port.name == given);
    let number = named.and_then(|port| match (target_type, &port.target_port) {
        (TargetType::Instance, _) => port.node_port,
        (TargetType::Alb, _) => Some(port.port),
        (TargetType::Ip, TargetPort::Number(number)) => Some(*number),
        (TargetType::Ip, TargetPort::Name(_)) => None,
    });
    number.map(|number| number.to_string()).unwrap_or_else(|| {
        let fix = "use traffic-port, a number, or the name of a port of the Service whose targetPort is a number";
        reading.refuse("healthcheck-port", given, fix);
        TRAFFIC_PORT.into()
    })
}
