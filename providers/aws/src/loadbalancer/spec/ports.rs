//! Desired listeners and target groups of a Service's ports and annotations.

use providers::{LoadBalancerSpec, Port, Protocol as Transport, TargetPort, TrafficPolicy};

use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::spec::annotation_reader::{PREFIX, Reading};
use crate::loadbalancer::spec::settings::{GroupSettings, ListenerSettings, Policy, UserGroup};
use crate::loadbalancer::spec::target_group::{GroupReader, ServicePorts};
use crate::loadbalancer::spec::{backends, user_groups};
use crate::loadbalancer::types::{Attributes, Protocol, TargetType};

/// Maximum number of host names: AWS allows only a few certificates for each load balancer.
const MAX_DOMAINS: usize = 100;

/// The ALPN policies of listeners for TLS.
const ALPN_POLICIES: [&str; 5] = ["None", "HTTP1Only", "HTTP2Only", "HTTP2Optional", "HTTP2Preferred"];

/// Returns the host names whose certificates are found in ACM, in lower case.
pub(crate) fn domains(reading: &mut Reading<'_>) -> Vec<String> {
    let domains: Vec<String> = reading.list("ssl-domains").into_iter().map(str::to_ascii_lowercase).collect();
    if reading.text("ssl-cert").is_some() && !domains.is_empty() {
        let message = format!("annotation {PREFIX}ssl-domains has no effect while {PREFIX}ssl-cert is set");
        reading.warnings.push(message);
        return Vec::new();
    }
    if domains.len() > MAX_DOMAINS {
        reading.refuse("ssl-domains", &format!("{} names", domains.len()), &format!("use at most {MAX_DOMAINS}"));
        return Vec::new();
    }
    for domain in domains.iter().filter(|domain| !is_domain(domain)) {
        reading.refuse("ssl-domains", domain, "use host names such as www.example.com, with commas between them");
    }
    domains
}

/// Returns true if a text is a host name, which may begin with a wildcard.
fn is_domain(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let name = text.strip_prefix("*.").unwrap_or(text);
    text.len() <= 253 && name.contains('.') && name.split('.').all(label)
}

/// Settings of TLS, and the ports that use it.
struct Encryption {
    certificates: Vec<String>,
    /// Certificates are found by host names.
    by_domain: bool,
    /// Ports by name or number; empty: all.
    ports: Vec<String>,
    policy: Option<String>,
    alpn: Option<String>,
    /// Traffic to targets is encrypted too.
    to_targets: bool,
}

impl Encryption {
    fn read(spec: &LoadBalancerSpec, flavour: Flavour, reading: &mut Reading<'_>) -> Self {
        let mut ports = reading.owned("ssl-ports");
        if ports.iter().any(|port| port == "*") {
            ports.clear();
        }
        let is_known = |name: &str| spec.ports.iter().any(|port| port.name == name || port.port.to_string() == name);
        for port in ports.iter().filter(|port| !is_known(port)) {
            let fix = "use names or numbers of the Service's ports, or *";
            match flavour {
                Flavour::Controller => reading.refuse("ssl-ports", port, fix),
                // Upstream: cloud-provider-aws, getPortSets: such a port has no effect.
                Flavour::CloudProvider => {
                    reading.warnings.push(format!("port {port} of annotation {PREFIX}ssl-ports has no effect: {fix}"));
                }
            }
        }
        let alpn = reading.text("alpn-policy").filter(|policy| ALPN_POLICIES.contains(policy));
        let policy = reading.text("ssl-negotiation-policy").map(str::to_owned);
        Self {
            certificates: reading.owned("ssl-cert"),
            by_domain: !reading.list("ssl-domains").is_empty(),
            ports,
            policy: policy.or_else(|| (flavour == Flavour::Controller).then(|| "ELBSecurityPolicy-2016-08".into())),
            alpn: alpn.map(str::to_owned),
            to_targets: reading.text("backend-protocol") == Some("ssl"),
        }
    }

    fn covers(&self, port: &Port, protocol: Protocol) -> bool {
        let is_named = |requested: &String| *requested == port.name || *requested == port.port.to_string();
        protocol == Protocol::Tcp
            && (self.by_domain || !self.certificates.is_empty())
            && (self.ports.is_empty() || self.ports.iter().any(is_named))
    }
}

/// Returns one listener for each port number, in the order of the Service's ports, and the target groups that users
/// made for other ports.
pub(crate) fn listeners(
    spec: &LoadBalancerSpec,
    policy: &Policy,
    flavour: Flavour,
    target_type: TargetType,
    reading: &mut Reading<'_>,
) -> (Vec<ListenerSettings>, Vec<UserGroup>) {
    let encryption = Encryption::read(spec, flavour, reading);
    let quic = reading.list("quic-enabled-ports");
    let joint = reading.boolean("enable-tcp-udp-listener");
    check_encrypted_ports(spec, &encryption, flavour == Flavour::Controller && joint == Some(true), reading);
    let separate = joint == Some(false);
    let groups = GroupReader::read(policy, flavour, target_type, reading);
    let local = spec.external_traffic_policy == TrafficPolicy::Local;
    let health =
        groups.health(&ServicePorts { ports: &spec.ports, local, health_port: spec.health_check_node_port }, reading);
    let mut listeners: Vec<ListenerSettings> = Vec::new();
    for port in &spec.ports {
        if let Some(first) = listeners.iter_mut().find(|listener| listener.port == port.port) {
            merge_port(first, spec, port, target_type, separate, reading);
            continue;
        }
        let protocols = protocols(port, spec, &encryption, &quic, reading);
        let number = target_port(port, target_type, reading);
        let (attributes, preserves_client) = groups.attributes(port.port, protocols.1, reading);
        let group = GroupSettings {
            protocol: protocols.1,
            port_names: vec![port.name.clone()],
            port: number,
            health: health.clone(),
            attributes,
            preserves_client,
            backend: None,
        };
        listeners.push(listener(port.port, protocols.0, &encryption, group));
    }
    for listener in &mut listeners {
        groups.probe_udp(&mut listener.group, local, reading);
        let suffix = format!("listener-attributes.{}-{}", listener.protocol.as_str(), listener.port);
        listener.attributes = reading.pairs(&suffix, false);
        let spread = reading.spread(listener.protocol.as_str(), listener.port);
        if target_type == TargetType::Alb && spread.is_some() {
            let fix = "leave it out: all traffic goes to the Application Load Balancer";
            reading.refuse_action(listener.protocol.as_str(), listener.port, "targetGroups", fix);
            continue;
        }
        listener.spread = spread.and_then(|spread| backends::resolve(&spread, listener, spec, &groups, reading));
    }
    check_alpn(&listeners, flavour, reading);
    warn_of_unknown_listeners(&listeners, reading);
    user_groups::separate(listeners, reading)
}

/// Returns the protocols of a port's listener and of its target group.
fn protocols(
    port: &Port,
    spec: &LoadBalancerSpec,
    encryption: &Encryption,
    quic: &[&str],
    reading: &mut Reading<'_>,
) -> (Protocol, Protocol) {
    let plain = if port.protocol == Transport::Udp { Protocol::Udp } else { Protocol::Tcp };
    let wants_quic = quic.contains(&port.name.as_str()) || quic.contains(&port.port.to_string().as_str());
    if wants_quic && plain == Protocol::Udp {
        return (Protocol::Quic, Protocol::Quic);
    }
    // The annotation may name the UDP port with the same number, by name or number.
    if wants_quic && !has_udp_port(spec, port) {
        reading.refuse("quic-enabled-ports", &port.port.to_string(), "name UDP ports only");
    }
    if !encryption.covers(port, plain) || has_udp_port(spec, port) {
        (plain, plain)
    } else if encryption.to_targets {
        (Protocol::Tls, Protocol::Tls)
    } else {
        (Protocol::Tls, Protocol::Tcp)
    }
}

/// Returns true if the Service has a UDP port with the same number as this port.
fn has_udp_port(spec: &LoadBalancerSpec, port: &Port) -> bool {
    spec.ports.iter().any(|other| other.port == port.port && other.protocol == Transport::Udp)
}

/// Checks ports with certificates whose listener is for UDP, too: AWS has no TLS there. `joint`: an annotation requests
/// such listeners, so the Load Balancer Controller may serve the port already, without encryption.
///
/// Differs from upstream: see docs/differences.md.
fn check_encrypted_ports(spec: &LoadBalancerSpec, encryption: &Encryption, joint: bool, reading: &mut Reading<'_>) {
    let tcp = spec.ports.iter().filter(|port| port.protocol == Transport::Tcp);
    for port in tcp.filter(|port| encryption.covers(port, Protocol::Tcp) && has_udp_port(spec, port)) {
        let number = port.port;
        if joint {
            let message = format!("certificates have no effect on port {number}, which is not encrypted");
            reading.warnings.push(format!("{message}: its listener is for UDP, too"));
        } else {
            let (suffix, value) = match reading.text("ssl-cert") {
                Some(certificates) => ("ssl-cert", certificates),
                None => ("ssl-domains", reading.text("ssl-domains").unwrap_or_default()),
            };
            let fix = format!(
                "list the encrypted ports without {number} in annotation {PREFIX}ssl-ports, or use a number that no UDP \
                 port has: AWS does not support TLS on a listener for TCP and UDP"
            );
            reading.refuse(suffix, value, &fix);
        }
    }
}

/// Checks the ALPN policy, which only listeners for TLS have. Upstream: Load Balancer Controller,
/// buildListenerALPNPolicy.
fn check_alpn(listeners: &[ListenerSettings], flavour: Flavour, reading: &mut Reading<'_>) {
    let Some(policy) = reading.text("alpn-policy").filter(|policy| !ALPN_POLICIES.contains(policy)) else { return };
    let fix = format!("use {}", ALPN_POLICIES.join(", "));
    let encrypted = listeners.iter().any(|listener| listener.protocol == Protocol::Tls);
    if encrypted && flavour == Flavour::Controller {
        reading.refuse("alpn-policy", policy, &fix);
    } else {
        reading.warn_of_value("alpn-policy", policy, &fix);
    }
}

/// Returns a listener without its attributes and other destinations.
fn listener(port: u16, protocol: Protocol, encryption: &Encryption, group: GroupSettings) -> ListenerSettings {
    let encrypted = protocol == Protocol::Tls;
    ListenerSettings {
        port,
        protocol,
        certificates: if encrypted { encryption.certificates.clone() } else { Vec::new() },
        policy: encryption.policy.clone().filter(|_| encrypted),
        alpn: encryption.alpn.clone().filter(|_| encrypted),
        attributes: Attributes::new(),
        group,
        spread: None,
    }
}

/// Warns about annotations of listeners that do not exist.
fn warn_of_unknown_listeners(listeners: &[ListenerSettings], reading: &mut Reading<'_>) {
    let listener_names: Vec<String> =
        listeners.iter().map(|one| format!("{}-{}", one.protocol.as_str(), one.port)).collect();
    reading.warn_of_other_actions(&listener_names);
    for listener in reading.continued("listener-attributes.") {
        if !listener_names.iter().any(|known| known == listener) {
            reading.warnings.push(format!("annotation {PREFIX}listener-attributes.{listener} names no listener"));
        }
    }
}

/// Adds a second port with the same number to its listener, because AWS allows only one listener for each number.
fn merge_port(
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
            let fix = "use each number once for each protocol: AWS joins only TCP and UDP in one listener";
            return reading.refuse_field("spec.ports[].port", port.port, fix);
        }
    };
    if separate {
        let fix = "use true or leave it out: AWS allows only one listener for a port";
        reading.refuse("enable-tcp-udp-listener", "false", fix);
    }
    if number != first.group.port {
        let other = spec.ports.iter().find(|other| other.port == port.port).map(|other| other.name.as_str());
        let (field, what) = match target_type {
            TargetType::Alb => ("spec.ports[].port", "port"),
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
        (TargetType::Alb, _) => port.port,
        (TargetType::Ip, TargetPort::Number(number)) => *number,
        // A named port may differ between pods. Each target has its own port, so the port of the group has no effect.
        (TargetType::Ip, TargetPort::Name(_)) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_are_distinguished_from_other_texts() {
        let long = format!("{}.example.com", "a".repeat(64));
        for (text, expected) in [
            ("www.example.com", true),
            ("*.example.com", true),
            ("xn--bcher-kva.example", true),
            ("example", false),
            ("*.com", false),
            ("www.*.com", false),
            ("*", false),
            ("", false),
            ("a..b", false),
            ("-a.b", false),
            ("https://a.b", false),
            (&long, false),
        ] {
            assert_eq!(is_domain(text), expected, "{text}");
        }
    }
}
