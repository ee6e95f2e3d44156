//! Listeners and target groups as a Service's ports and annotations ask for them.

use providers::{LoadBalancerSpec, Port, Protocol as Transport, TargetPort, TrafficPolicy};

use crate::config;
use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::spec::annotation_reader::{PREFIX, Reading};
use crate::loadbalancer::spec::annotations::{GroupSettings, ListenerSettings, Policy};
use crate::loadbalancer::spec::backends;
use crate::loadbalancer::types::{Attributes, HealthCheck, Probe, Protocol, TRAFFIC_PORT, TargetType};

/// What TLS needs, for the ports that have it.
struct Encryption {
    certificates: Vec<String>,
    /// Ports by name or number; empty: all.
    ports: Vec<String>,
    policy: Option<String>,
    alpn: Option<String>,
    /// Targets speak TLS too.
    to_targets: bool,
}

impl Encryption {
    fn read(spec: &LoadBalancerSpec, flavour: Flavour, reading: &mut Reading<'_>) -> Self {
        let mut ports = reading.owned("ssl-ports");
        if ports.iter().any(|port| port == "*") {
            ports.clear();
        }
        let known = |name: &str| spec.ports.iter().any(|port| port.name == name || port.port.to_string() == name);
        for port in ports.iter().filter(|port| !known(port)) {
            reading.refuse("ssl-ports", port, "use names or numbers of the Service's ports, or *");
        }
        let words = ["None", "HTTP1Only", "HTTP2Only", "HTTP2Optional", "HTTP2Preferred"];
        let alpn = reading.text("alpn-policy");
        if let Some(policy) = alpn.filter(|policy| !words.contains(policy)) {
            reading.refuse("alpn-policy", policy, &format!("use {}", words.join(", ")));
        }
        let policy = reading.text("ssl-negotiation-policy").map(str::to_owned);
        Self {
            certificates: reading.owned("ssl-cert"),
            ports,
            policy: policy.or_else(|| (flavour == Flavour::Controller).then(|| "ELBSecurityPolicy-2016-08".into())),
            alpn: alpn.map(str::to_owned),
            to_targets: reading.text("backend-protocol") == Some("ssl"),
        }
    }

    fn covers(&self, port: &Port, protocol: Protocol) -> bool {
        let named = |asked: &String| *asked == port.name || *asked == port.port.to_string();
        protocol == Protocol::Tcp
            && !self.certificates.is_empty()
            && (self.ports.is_empty() || self.ports.iter().any(named))
    }
}

/// One listener for each port number, in the order of the Service's ports.
pub(crate) fn listeners(
    spec: &LoadBalancerSpec,
    policy: &Policy,
    flavour: Flavour,
    target_type: TargetType,
    reading: &mut Reading<'_>,
) -> Vec<ListenerSettings> {
    let encryption = Encryption::read(spec, flavour, reading);
    let quic = reading.list("quic-enabled-ports");
    let separate = reading.boolean("enable-tcp-udp-listener") == Some(false);
    let groups = Groups::read(policy, flavour, target_type, reading);
    let local = spec.external_traffic_policy == TrafficPolicy::Local;
    let health =
        groups.health(&Behind { ports: &spec.ports, local, health_port: spec.health_check_node_port }, reading);
    let mut listeners: Vec<ListenerSettings> = Vec::new();
    for port in &spec.ports {
        if let Some(first) = listeners.iter_mut().find(|listener| listener.port == port.port) {
            join(first, spec, port, target_type, separate, reading);
            continue;
        }
        let mut protocol = if port.protocol == Transport::Udp { Protocol::Udp } else { Protocol::Tcp };
        let mut to_targets = protocol;
        let encrypted = encryption.covers(port, protocol);
        if encrypted {
            protocol = Protocol::Tls;
            to_targets = if encryption.to_targets { Protocol::Tls } else { Protocol::Tcp };
        }
        if quic.contains(&port.name.as_str()) || quic.contains(&port.port.to_string().as_str()) {
            if protocol != Protocol::Udp {
                let shared = spec.ports.iter().any(|other| other.port == port.port && other.protocol == Transport::Udp);
                if !shared {
                    reading.refuse("quic-enabled-ports", &port.port.to_string(), "name UDP ports only");
                }
            } else {
                (protocol, to_targets) = (Protocol::Quic, Protocol::Quic);
            }
        }
        let number = target_port(port, target_type, reading);
        let (attributes, preserves_client) = groups.attributes(port.port, to_targets, reading);
        listeners.push(ListenerSettings {
            port: port.port,
            protocol,
            certificates: if encrypted { encryption.certificates.clone() } else { Vec::new() },
            policy: encryption.policy.clone().filter(|_| encrypted),
            alpn: encryption.alpn.clone().filter(|_| encrypted),
            attributes: Attributes::new(),
            group: GroupSettings {
                protocol: to_targets,
                port_names: vec![port.name.clone()],
                port: number,
                health: health.clone(),
                attributes,
                preserves_client,
                backend: None,
            },
            spread: None,
        });
    }
    for listener in &mut listeners {
        groups.probe_udp(&mut listener.group, local, reading);
        let suffix = format!("listener-attributes.{}-{}", listener.protocol.as_str(), listener.port);
        listener.attributes = reading.pairs(&suffix, false);
        let spread = reading.spread(listener.protocol.as_str(), listener.port);
        listener.spread = spread.and_then(|spread| backends::resolve(&spread, listener, spec, &groups, reading));
    }
    let known: Vec<String> = listeners.iter().map(|one| format!("{}-{}", one.protocol.as_str(), one.port)).collect();
    reading.refuse_other_actions(&known);
    for named in reading.continued("listener-attributes.") {
        if !listeners.iter().any(|one| format!("{}-{}", one.protocol.as_str(), one.port) == named) {
            reading.warnings.push(format!("annotation {PREFIX}listener-attributes.{named} names no listener"));
        }
    }
    listeners
}

/// A second port of the same number: one listener serves both, as AWS has one to a number.
fn join(
    first: &mut ListenerSettings,
    spec: &LoadBalancerSpec,
    port: &Port,
    target_type: TargetType,
    separate: bool,
    reading: &mut Reading<'_>,
) {
    let number = target_port(port, target_type, reading);
    let joined = match (first.protocol, port.protocol) {
        (Protocol::Tcp, Transport::Udp) | (Protocol::Udp, Transport::Tcp) => Protocol::TcpUdp,
        (Protocol::Quic, Transport::Tcp) => Protocol::TcpQuic,
        _ => {
            let fix = "give TLS ports a number of their own: AWS joins only TCP and UDP in one listener";
            return reading.refuse_field("spec.ports[].port", port.port, fix);
        }
    };
    if separate {
        let fix = "use true or leave it out: AWS has no two listeners for one port";
        reading.refuse("enable-tcp-udp-listener", "false", fix);
    }
    if number != first.group.port {
        let other = spec.ports.iter().find(|other| other.port == port.port).map(|other| other.name.as_str());
        let (field, what) = match target_type {
            TargetType::Instance => ("spec.ports[].nodePort", "nodePort"),
            TargetType::Ip => ("spec.ports[].targetPort", "targetPort"),
        };
        let fix = format!(
            "use {} as for port {:?}: TCP and UDP of one port share a listener, and with it the {what}",
            first.group.port,
            other.unwrap_or_default()
        );
        reading.refuse_field(field, number, &fix);
    }
    first.protocol = joined;
    first.group.protocol = joined;
    first.group.preserves_client = true;
    first.group.port_names.push(port.name.clone());
}

fn target_port(port: &Port, target_type: TargetType, reading: &mut Reading<'_>) -> u16 {
    match (target_type, &port.target_port) {
        (TargetType::Instance, _) => port.node_port.unwrap_or_else(|| {
            let fix = "set spec.allocateLoadBalancerNodePorts to true, or send traffic to pods with annotation \
                       service.beta.kubernetes.io/aws-load-balancer-nlb-target-type: ip";
            reading.refuse_field("spec.ports[].nodePort", format!("none for port {}", port.port), fix);
            1
        }),
        (TargetType::Ip, TargetPort::Number(number)) => *number,
        // It may differ between pods; ELB shows it and does not use it.
        (TargetType::Ip, TargetPort::Name(_)) => 1,
    }
}

const PROXY: &str = "proxy_protocol_v2.enabled";
const PRESERVE: &str = "preserve_client_ip.enabled";

/// Which ports speak proxy protocol, where annotations say so.
enum Proxied {
    Unsaid,
    All,
    Ports(Vec<u16>),
}

impl Proxied {
    fn get(&self, port: u16) -> Option<bool> {
        match self {
            Self::Unsaid => None,
            Self::All => Some(true),
            Self::Ports(ports) => Some(ports.contains(&port)),
        }
    }
}

fn proxied_ports(flavour: Flavour, reading: &mut Reading<'_>) -> Proxied {
    match reading.text("proxy-protocol").filter(|_| flavour == Flavour::Controller) {
        Some("*") => return Proxied::All,
        Some(other) => reading.refuse("proxy-protocol", other, "use *, which is all ports"),
        None => {}
    }
    match reading.text("proxy-protocol-per-target-group") {
        Some(_) => Proxied::Ports(reading.parsed("proxy-protocol-per-target-group", "use numbers of ports")),
        None => Proxied::Unsaid,
    }
}

/// The Service whose ports target groups serve, as their health checks see it.
pub(super) struct Behind<'a> {
    pub ports: &'a [Port],
    /// Only nodes with pods of its own are to be healthy.
    pub local: bool,
    /// Where nodes then tell whether they have any.
    pub health_port: Option<u16>,
}

/// What all target groups have in common.
pub(super) struct Groups<'a> {
    policy: &'a Policy,
    flavour: Flavour,
    pub target_type: TargetType,
    attributes: Attributes,
    proxied: Proxied,
}

impl<'a> Groups<'a> {
    fn read(policy: &'a Policy, flavour: Flavour, target_type: TargetType, reading: &mut Reading<'_>) -> Self {
        let (attributes, proxied) = (reading.pairs("target-group-attributes", false), proxied_ports(flavour, reading));
        Self { policy, flavour, target_type, attributes, proxied }
    }

    /// The attributes of the target group of a port, and whether targets see clients' addresses.
    pub(super) fn attributes(&self, port: u16, protocol: Protocol, reading: &mut Reading<'_>) -> (Attributes, bool) {
        let mut attributes = self.attributes.clone();
        attributes.extend(reading.pairs(&format!("target-group-attributes.{port}"), false));
        match self.proxied.get(port) {
            Some(on) => drop(attributes.insert(PROXY.into(), on.to_string())),
            None if self.flavour == Flavour::Controller => {
                attributes.entry(PROXY.into()).or_insert_with(|| "false".into());
            }
            None => {}
        }
        let preserves_client = preserves_client(&attributes, protocol, self.target_type, reading);
        (attributes, preserves_client)
    }

    /// Replaces the default health check of a target group that only takes UDP, which AWS probes by TCP: nothing listens
    /// there, all targets are unhealthy, and the load balancer sends traffic to dead nodes, too. On nodes, kube-proxy answers
    /// probes.
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

    /// The health check of the target groups of a Service's ports, with upstream's defaults.
    pub(super) fn health(&self, behind: &Behind<'_>, reading: &mut Reading<'_>) -> HealthCheck {
        let local = behind.local && self.target_type == TargetType::Instance;
        let controller = self.flavour == Flavour::Controller;
        let (interval, timeout, threshold) = match (local, controller) {
            (true, true) => (10, Some(6), 2),
            (true, false) => (10, None, 2),
            (false, true) => (10, Some(10), 3),
            (false, false) => (30, None, 3),
        };
        let word = reading.text("healthcheck-protocol").unwrap_or(if local { "HTTP" } else { "TCP" });
        let protocol = Probe::parse(&word.to_ascii_uppercase()).unwrap_or_else(|| {
            reading.refuse("healthcheck-protocol", word, "use TCP, HTTP or HTTPS");
            Probe::Tcp
        });
        let own = behind.health_port.filter(|_| local).map(|port| port.to_string());
        let port = match reading.text("healthcheck-port") {
            None => own.unwrap_or_else(|| TRAFFIC_PORT.into()),
            Some(given) => health_port(behind.ports, self.target_type, given, reading),
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

/// Checks a target group's attributes; answers whether targets see clients' addresses.
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
    match attributes.get(PRESERVE).map(String::as_str) {
        Some("false") if protocol.always_preserves_client() => {
            let fix = "leave it out: AWS preserves clients' addresses for UDP always";
            reading.refuse("target-group-attributes", &format!("{PRESERVE}=false"), fix);
            true
        }
        Some(value) => value == "true",
        None => target_type == TargetType::Instance || protocol.always_preserves_client(),
    }
}

/// A number, `traffic-port`, or the name of a port of the Service.
fn health_port(ports: &[Port], target_type: TargetType, given: &str, reading: &mut Reading<'_>) -> String {
    if given == TRAFFIC_PORT || given.parse::<u16>().is_ok_and(|port| port != 0) {
        return given.to_owned();
    }
    let named = ports.iter().find(|port| port.name == given);
    let number = named.and_then(|port| match (target_type, &port.target_port) {
        (TargetType::Instance, _) => port.node_port,
        (TargetType::Ip, TargetPort::Number(number)) => Some(*number),
        (TargetType::Ip, TargetPort::Name(_)) => None,
    });
    number.map(|number| number.to_string()).unwrap_or_else(|| {
        let fix = "use traffic-port, a number, or the name of a port of the Service whose targetPort is a number";
        reading.refuse("healthcheck-port", given, fix);
        TRAFFIC_PORT.into()
    })
}
