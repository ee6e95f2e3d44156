//! Service: selector, ports, addresses, and load balancer settings.

mod balancing;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Labels, Str, label};
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::template::raw_object::annotated_meta;
use crate::value::int_or_string::IntOrString;
use crate::value::ip::{Family, Ip};
use crate::wire::schema::{service_port, service_spec as spec};
use crate::wire::{WireError, fields, map_entry};

pub use balancing::{Balancing, Ingress, PortStatus};

/// Annotation: distribution of a Service's traffic over zones; `Auto` enables hints (core/v1, AnnotationTopologyMode).
pub const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";
/// The deprecated name of that annotation, which takes precedence (core/v1, DeprecatedAnnotationTopologyAwareHints).
pub const TOPOLOGY_AWARE_HINTS: &str = "service.kubernetes.io/topology-aware-hints";

/// A Service's `spec.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ServiceType {
    /// Reachable inside the cluster.
    #[default]
    ClusterIp,
    /// Also reachable at a port of each node.
    NodePort,
    /// Also reachable through a load balancer.
    LoadBalancer,
    /// An alias of an external name.
    ExternalName,
}

impl ServiceType {
    fn parse(word: &str) -> Self {
        match word {
            "NodePort" => Self::NodePort,
            "LoadBalancer" => Self::LoadBalancer,
            "ExternalName" => Self::ExternalName,
            _ => Self::ClusterIp,
        }
    }
}

/// One of `spec.ports`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name; empty if it has none.
    pub name: Str,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Str,
    /// Its application protocol, as given.
    pub app_protocol: Option<Str>,
    /// The port at the Service's own address.
    pub port: i32,
    /// The port of the pods: a number, or a container port's name.
    pub target_port: IntOrString,
    /// The port of the nodes; zero if it has none.
    pub node_port: i32,
}

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// Metadata.
    pub meta: Meta,
    /// Annotations, except the one that `kubectl apply` sets.
    pub annotations: Labels,
    /// `spec.type`.
    pub kind: ServiceType,
    /// Labels of the pods behind it; empty if another client maintains the endpoints.
    pub selector: Labels,
    /// `spec.ports`, in their order.
    pub ports: Vec<ServicePort>,
    /// `spec.clusterIP`, then the other addresses of `spec.clusterIPs`. A headless Service has the text `None` here.
    pub cluster_ips: Vec<Str>,
    /// `spec.ipFamilies`: `IPv4`, `IPv6`.
    pub ip_families: Vec<Str>,
    /// Pods count as ready from their start.
    pub publish_not_ready_addresses: bool,
    /// `spec.trafficDistribution`, as given.
    pub traffic_distribution: Option<Str>,
    /// Load balancer settings; only with section [`Service::BALANCING`], and only for Services of type LoadBalancer and
    /// those whose status still has an ingress.
    pub balancing: Option<Box<Balancing>>,
}

impl Service {
    /// Section: load balancer settings and their status.
    pub const BALANCING: Sections = Sections(1);

    /// Returns the value of an annotation.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        label(&self.annotations, key)
    }

    /// Returns true if the Service is headless.
    pub fn is_headless(&self) -> bool {
        self.cluster_ips.first().is_some_and(|ip| &**ip == "None")
    }

    /// Returns true if the Service has no address, permanently or for now. Upstream: pkg/apis/core/v1/helper,
    /// IsServiceIPSet, negated.
    pub fn is_without_ip(&self) -> bool {
        self.cluster_ips.first().is_none_or(|ip| ip.is_empty()) || self.is_headless()
    }

    /// Returns the family of the Service's first address, if it has one.
    pub fn cluster_ip_family(&self) -> Option<Family> {
        let first = self.cluster_ips.first().filter(|_| !self.is_without_ip())?;
        Some(Ip::parse(first).family().unwrap_or(Family::V4))
    }

    /// Returns the Service's address families, the primary one first.
    pub fn families(&self) -> impl Iterator<Item = Family> {
        self.ip_families.iter().filter_map(|name| Family::parse(name))
    }

    /// Returns true if annotations request topology aware hints. Upstream: k8s.io/endpointslice, hintsEnabled.
    pub fn wants_topology_hints(&self) -> bool {
        let mode = self.annotation(TOPOLOGY_AWARE_HINTS).or_else(|| self.annotation(TOPOLOGY_MODE));
        matches!(mode, Some("Auto" | "auto"))
    }
}

impl ServicePort {
    fn decode(context: &Decode, message: &[u8]) -> Result<Self, WireError> {
        let strings = &context.interner;
        let mut port = Self {
            name: strings.str(""),
            protocol: strings.str("TCP"),
            app_protocol: None,
            port: 0,
            target_port: IntOrString::Int(0),
            node_port: 0,
        };
        for field in fields(message) {
            let field = field?;
            match field.number {
                service_port::NAME => port.name = strings.str(field.value.str()),
                service_port::PROTOCOL if !field.value.bytes().is_empty() => {
                    port.protocol = strings.str(field.value.str())
                }
                service_port::APP_PROTOCOL => port.app_protocol = Some(strings.str(field.value.str())),
                service_port::PORT => port.port = field.value.i32(),
                service_port::TARGET_PORT => port.target_port = IntOrString::decode(field.value.bytes())?,
                service_port::NODE_PORT => port.node_port = field.value.i32(),
                _ => {}
            }
        }
        Ok(port)
    }
}

impl Kind for Service {
    const RESOURCE: Resource =
        Resource { group: "", version: "v1", kind: "Service", plural: "services", namespaced: true };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let Parts { meta, spec, status } = Parts::read(object)?;
        let strings = &context.interner;
        let (meta, annotations) = annotated_meta(strings, meta)?;
        let mut service = Self {
            meta,
            annotations,
            kind: ServiceType::default(),
            selector: strings.labels(Vec::new()),
            ports: Vec::new(),
            cluster_ips: Vec::new(),
            ip_families: Vec::new(),
            publish_not_ready_addresses: false,
            traffic_distribution: None,
            balancing: None,
        };
        let mut selector = Vec::new();
        let mut first = None;
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::TYPE => service.kind = ServiceType::parse(field.value.str()),
                spec::SELECTOR => {
                    let (key, value) = map_entry(field.value.bytes())?;
                    selector.push((strings.str(key), strings.str(value)));
                }
                spec::PORTS => service.ports.push(ServicePort::decode(context, field.value.bytes())?),
                spec::CLUSTER_IP => first = Some(field.value.str()).filter(|ip| !ip.is_empty()),
                spec::CLUSTER_IPS => service.cluster_ips.push(field.value.str().into()),
                spec::IP_FAMILIES => service.ip_families.push(strings.str(field.value.str())),
                spec::PUBLISH_NOT_READY_ADDRESSES => service.publish_not_ready_addresses = field.value.bool(),
                spec::TRAFFIC_DISTRIBUTION => service.traffic_distribution = Some(strings.str(field.value.str())),
                _ => {}
            }
        }
        if let Some(first) = first.filter(|first| service.cluster_ips.iter().all(|ip| **ip != **first)) {
            service.cluster_ips.insert(0, first.into());
        }
        service.selector = strings.labels(selector);
        if context.sections.contains(Self::BALANCING) {
            let balancing = Balancing::decode(strings, spec, status)?;
            let wanted = service.kind == ServiceType::LoadBalancer || !balancing.ingress.is_empty();
            service.balancing = wanted.then(|| Box::new(balancing));
        }
        Ok(service)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests;
