//! The load balancer part of a Service.

use crate::decode::DecodeError;
use crate::intern::{Interner, Str};
use crate::wire::schema::{
    client_ip_config, load_balancer_ingress, load_balancer_status, port_status, service_spec as spec, service_status,
    session_affinity_config,
};
use crate::wire::{WireError, fields, find};

/// The load balancer settings of a Service, and their status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Balancing {
    /// `spec.loadBalancerClass`; `None` only if the field is absent, not if it is empty.
    pub class: Option<Str>,
    /// `spec.loadBalancerSourceRanges`, as given.
    pub source_ranges: Vec<Str>,
    /// `spec.loadBalancerIP`; empty if there is none.
    pub requested_ip: Str,
    /// `spec.externalIPs`.
    pub external_ips: Vec<Str>,
    /// `spec.allocateLoadBalancerNodePorts`; true if absent.
    pub allocate_node_ports: bool,
    /// `spec.sessionAffinity` is `ClientIP`.
    pub client_ip_affinity: bool,
    /// `spec.sessionAffinityConfig.clientIP.timeoutSeconds`.
    pub affinity_seconds: Option<i32>,
    /// `spec.ipFamilyPolicy`; empty if there is none.
    pub ip_family_policy: Str,
    /// `spec.externalTrafficPolicy` is `Local`.
    pub external_local: bool,
    /// `spec.internalTrafficPolicy` is `Local`.
    pub internal_local: bool,
    /// `spec.healthCheckNodePort`; zero if there is none.
    pub health_check_node_port: i32,
    /// `status.loadBalancer.ingress`.
    pub ingress: Vec<Ingress>,
}

/// One of `status.loadBalancer.ingress`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Ingress {
    /// Its address; empty if it has none.
    pub ip: Box<str>,
    /// Its name; empty if it has none.
    pub hostname: Box<str>,
    /// `VIP`, `Proxy`, or empty.
    pub ip_mode: Box<str>,
    /// State of its ports.
    pub ports: Vec<PortStatus>,
}

/// One of an ingress's `ports`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PortStatus {
    /// The Service's port.
    pub port: i32,
    /// Its protocol.
    pub protocol: Box<str>,
    /// The reason why the load balancer does not serve the port; `None` if it does.
    pub error: Option<Box<str>>,
}

impl Balancing {
    pub(super) fn decode(strings: &Interner, spec: &[u8], status: &[u8]) -> Result<Self, DecodeError> {
        let mut balancing = Self {
            class: None,
            source_ranges: Vec::new(),
            requested_ip: strings.str(""),
            external_ips: Vec::new(),
            allocate_node_ports: true,
            client_ip_affinity: false,
            affinity_seconds: None,
            ip_family_policy: strings.str(""),
            external_local: false,
            internal_local: false,
            health_check_node_port: 0,
            ingress: Vec::new(),
        };
        for field in fields(spec) {
            let field = field?;
            let text = || strings.str(field.value.str());
            match field.number {
                spec::LOAD_BALANCER_CLASS => balancing.class = Some(text()),
                spec::LOAD_BALANCER_SOURCE_RANGES => balancing.source_ranges.push(text()),
                spec::LOAD_BALANCER_IP => balancing.requested_ip = text(),
                spec::EXTERNAL_IPS => balancing.external_ips.push(text()),
                spec::ALLOCATE_LOAD_BALANCER_NODE_PORTS => balancing.allocate_node_ports = field.value.bool(),
                spec::SESSION_AFFINITY => balancing.client_ip_affinity = field.value.bytes() == b"ClientIP",
                spec::SESSION_AFFINITY_CONFIG => balancing.affinity_seconds = affinity_seconds(field.value.bytes())?,
                spec::IP_FAMILY_POLICY => balancing.ip_family_policy = text(),
                spec::EXTERNAL_TRAFFIC_POLICY => balancing.external_local = field.value.bytes() == b"Local",
                spec::INTERNAL_TRAFFIC_POLICY => balancing.internal_local = field.value.bytes() == b"Local",
                spec::HEALTH_CHECK_NODE_PORT => balancing.health_check_node_port = field.value.i32(),
                _ => {}
            }
        }
        for field in fields(find(status, service_status::LOAD_BALANCER)) {
            let field = field?;
            if field.number == load_balancer_status::INGRESS {
                balancing.ingress.push(Ingress::decode(field.value.bytes())?);
            }
        }
        Ok(balancing)
    }
}

fn affinity_seconds(config: &[u8]) -> Result<Option<i32>, WireError> {
    let mut seconds = None;
    for field in fields(find(config, session_affinity_config::CLIENT_IP)) {
        let field = field?;
        if field.number == client_ip_config::TIMEOUT_SECONDS {
            seconds = Some(field.value.i32());
        }
    }
    Ok(seconds)
}

impl Ingress {
    fn decode(message: &[u8]) -> Result<Self, WireError> {
        let mut ingress = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                load_balancer_ingress::IP => ingress.ip = field.value.str().into(),
                load_balancer_ingress::HOSTNAME => ingress.hostname = field.value.str().into(),
                load_balancer_ingress::IP_MODE => ingress.ip_mode = field.value.str().into(),
                load_balancer_ingress::PORTS => {
                    let mut port = PortStatus::default();
                    for field in fields(field.value.bytes()) {
                        let field = field?;
                        match field.number {
                            port_status::PORT => port.port = field.value.i32(),
                            port_status::PROTOCOL => port.protocol = field.value.str().into(),
                            port_status::ERROR => port.error = Some(field.value.str().into()),
                            _ => {}
                        }
                    }
                    ingress.ports.push(port);
                }
                _ => {}
            }
        }
        Ok(ingress)
    }
}
