//! What a Service asks of the cloud, and when a failed call is made again: no calls, no writes.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use kinds::intstr::IntOrString;
use kinds::meta::Meta;
use kinds::service::{self, Balancing, ServicePort, ServiceType};
use kinds::{Service, Str};
use providers::{
    ClassFilter, CloudError, IpFamily, IpFamilyPolicy, IpMode, LoadBalancerId, LoadBalancerSpec, LoadBalancerStatus,
    OtherService, Port, Protocol, SessionAffinity, TargetPort, TrafficPolicy,
};
use serde_json::{Value, json};

/// Holds a Service until all that was made for it is gone (upstream: service/helpers, LoadBalancerCleanupFinalizer).
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Who may connect, where the spec does not say (upstream: core/v1, AnnotationLoadBalancerSourceRangesKey).
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// What is to come of a Service's balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Not ours to act on.
    Nothing,
    /// It is wanted.
    Balancer,
    /// It is not wanted any more, and the finalizer says that there may be one.
    Cleanup,
}

/// The Service holds our finalizer.
pub fn is_held(meta: &Meta) -> bool {
    meta.finalizers.iter().any(|finalizer| &**finalizer == FINALIZER)
}

/// Whether a Service can have anything to do with a balancer: only then its changes are looked at.
pub fn concerns(service: &Service) -> bool {
    service.kind == ServiceType::LoadBalancer || is_held(&service.meta)
}

/// What a Service wants (upstream: service controller, wantsLoadBalancer and needsCleanup). `ours` says that this
/// process has made its balancer, which counts where the class is not one of ours any more.
pub fn wish(service: &Service, classes: &ClassFilter, ours: bool) -> Wish {
    let balanced = service.kind == ServiceType::LoadBalancer;
    let held = is_held(&service.meta);
    let taken = balanced && classes.takes(class(service));
    match (service.meta.is_deleting(), held) {
        (true, false) => Wish::Nothing,
        (true, true) => Wish::Cleanup,
        (false, _) if taken => Wish::Balancer,
        (false, true) if !balanced || ours => Wish::Cleanup,
        (false, _) => Wish::Nothing,
    }
}

fn class(service: &Service) -> Option<&str> {
    service.balancing.as_ref()?.class.as_deref()
}

/// Whose balancer a Service's is.
pub fn id(meta: &Meta, cluster: &str) -> LoadBalancerId {
    LoadBalancerId {
        cluster: cluster.to_owned(),
        namespace: meta.namespace.to_string(),
        name: meta.name.to_string(),
        uid: meta.uid.to_string(),
    }
}

/// What a Service of type LoadBalancer asks for; of its annotations those whose names begin with one of `read`, or all
/// if there is none.
///
/// # Errors
/// `Invalid` for what no cloud could do: the message names field or annotation, value, and the fix.
pub fn spec(service: &Service, cluster: &str, read: &[String]) -> Result<LoadBalancerSpec, CloudError> {
    let missing = || CloudError::invalid_field("spec.type", "not LoadBalancer", "use LoadBalancer");
    let asked = service.balancing.as_deref().ok_or_else(missing)?;
    let ports = service.ports.iter().map(port).collect::<Result<Vec<_>, _>>()?;
    let texts =
        |labels: &[(Str, Str)]| labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let is_read = |name: &str| read.is_empty() || read.iter().any(|beginning| name.starts_with(&**beginning));
    let mut annotations: BTreeMap<String, String> = texts(&service.annotations);
    annotations.retain(|name, _| is_read(name));
    let policy = |local: bool| if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    Ok(LoadBalancerSpec {
        class: asked.class.as_deref().map(str::to_owned),
        annotations,
        labels: texts(&service.meta.labels),
        allocate_node_ports: asked.allocate_node_ports,
        source_ranges: source_ranges(service, asked)?,
        session_affinity: affinity(asked),
        requested_address: Some(asked.requested_ip.to_string()).filter(|ip| !ip.is_empty()),
        external_ips: asked.external_ips.iter().map(|ip| ip.to_string()).collect(),
        ip_families: families(&service.ip_families),
        ip_family_policy: match &*asked.ip_family_policy {
            "RequireDualStack" => IpFamilyPolicy::RequireDualStack,
            "PreferDualStack" => IpFamilyPolicy::PreferDualStack,
            _ => IpFamilyPolicy::SingleStack,
        },
        external_traffic_policy: policy(asked.external_local),
        internal_traffic_policy: policy(asked.internal_local),
        health_check_node_port: health_check_node_port(asked),
        publish_not_ready_addresses: service.publish_not_ready_addresses,
        traffic_distribution: service.traffic_distribution.as_deref().map(str::to_owned),
        ..LoadBalancerSpec::new(id(&service.meta, cluster), ports)
    })
}

/// A Service as the balancer of another one sees it; ports that no cloud could serve are left out.
pub fn other(service: &Service) -> OtherService {
    OtherService {
        ports: service.ports.iter().filter_map(|asked| port(asked).ok()).collect(),
        ip_families: families(&service.ip_families),
        health_check_node_port: service.balancing.as_deref().and_then(health_check_node_port),
    }
}

fn health_check_node_port(asked: &Balancing) -> Option<u16> {
    u16::try_from(asked.health_check_node_port).ok().filter(|port| asked.external_local && *port != 0)
}

fn port(port: &ServicePort) -> Result<Port, CloudError> {
    let number = |field, value: i32| {
        u16::try_from(value).map_err(|_| CloudError::invalid_field(field, value, "use a port from 1 to 65535"))
    };
    let protocol = match &*port.protocol {
        "TCP" => Protocol::Tcp,
        "UDP" => Protocol::Udp,
        "SCTP" => Protocol::Sctp,
        other => return Err(CloudError::invalid_field("spec.ports[].protocol", other, "use TCP, UDP or SCTP")),
    };
    Ok(Port {
        name: port.name.to_string(),
        protocol,
        app_protocol: port.app_protocol.as_deref().map(str::to_owned),
        port: number("spec.ports[].port", port.port)?,
        node_port: Some(number("spec.ports[].nodePort", port.node_port)?).filter(|port| *port != 0),
        target_port: match &port.target_port {
            IntOrString::Int(0) => TargetPort::Number(number("spec.ports[].port", port.port)?),
            IntOrString::Int(target) => TargetPort::Number(number("spec.ports[].targetPort", *target)?),
            IntOrString::Text(name) => TargetPort::Name(name.to_string()),
        },
    })
}

fn affinity(asked: &Balancing) -> SessionAffinity {
    // The API server fills the time in; three hours is its default (core/v1, DefaultClientIPServiceAffinitySeconds).
    let seconds = asked.affinity_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(10_800);
    match asked.client_ip_affinity {
        true => SessionAffinity::ClientIp { timeout: Duration::from_secs(seconds) },
        false => SessionAffinity::None,
    }
}

fn families(words: &[Str]) -> Vec<IpFamily> {
    let families: Vec<_> =
        words.iter().map(|word| if &**word == "IPv6" { IpFamily::IPv6 } else { IpFamily::IPv4 }).collect();
    if families.is_empty() { vec![IpFamily::IPv4] } else { families }
}

/// Who may connect; empty: anyone. The spec's ranges, or else the annotation's (upstream: service/helpers,
/// GetLoadBalancerSourceRanges).
fn source_ranges(service: &Service, asked: &Balancing) -> Result<Vec<IpNet>, CloudError> {
    let parse = |text: &str| IpNet::from_str(text.trim()).ok().map(|net| net.trunc());
    if !asked.source_ranges.is_empty() {
        let bad = |text: &Str| {
            let fix = "use an IP range, for example 10.0.0.0/24";
            CloudError::invalid_field("spec.loadBalancerSourceRanges", text, fix)
        };
        return asked.source_ranges.iter().map(|text| parse(text).ok_or_else(|| bad(text))).collect();
    }
    let given = service.annotation(SOURCE_RANGES).unwrap_or_default();
    if given.trim().is_empty() {
        return Ok(Vec::new());
    }
    let ranges: Option<Vec<_>> = given.split(',').map(parse).collect();
    ranges.ok_or_else(|| {
        let fix = "use a comma-separated list of IP ranges, for example 10.0.0.0/24,192.168.2.0/24";
        CloudError::invalid_annotation(SOURCE_RANGES, given, fix)
    })
}

/// The time from one look for drift to the next: some more or less than `usual` for each Service, so that they do not
/// all come at once.
pub fn resync_after(usual: Duration, uid: &str) -> Duration {
    let hash = uid.bytes().fold(17u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    usual.mul_f64(0.75 + f64::from(hash % 1000) / 2000.0)
}

/// A provider's status as a Service's status has it, with what the API server fills in.
pub fn ingress(status: &LoadBalancerStatus) -> Vec<service::Ingress> {
    let mode = |ingress: &providers::Ingress| match (ingress.ip, ingress.ip_mode) {
        (None, _) => "",
        (Some(_), Some(IpMode::Proxy)) => "Proxy",
        (Some(_), _) => "VIP",
    };
    let point = |ingress: &providers::Ingress| service::Ingress {
        ip: ingress.ip.map(|ip| ip.to_string()).unwrap_or_default().into(),
        hostname: ingress.hostname.clone().unwrap_or_default().into(),
        ip_mode: mode(ingress).into(),
        ports: ingress
            .ports
            .iter()
            .map(|port| service::PortError {
                port: port.port.into(),
                protocol: port.protocol.as_str().into(),
                error: port.error.as_deref().map(Into::into),
            })
            .collect(),
    };
    status.ingress.iter().map(point).collect()
}

/// `status.loadBalancer` as a patch has it; no ways in at all are a `null`, which takes the field away.
pub fn ingress_patch(ingress: &[service::Ingress]) -> Value {
    if ingress.is_empty() {
        return json!({ "ingress": null });
    }
    let port = |port: &service::PortError| {
        let mut value = json!({ "port": port.port, "protocol": port.protocol });
        if let Some(error) = &port.error {
            value["error"] = json!(error);
        }
        value
    };
    let point = |point: &service::Ingress| {
        let texts = [("ip", &point.ip), ("hostname", &point.hostname), ("ipMode", &point.ip_mode)];
        let mut value: BTreeMap<&str, Value> =
            texts.into_iter().filter(|(_, text)| !text.is_empty()).map(|(key, text)| (key, json!(text))).collect();
        if !point.ports.is_empty() {
            value.insert("ports", point.ports.iter().map(port).collect());
        }
        json!(value)
    };
    json!({ "ingress": ingress.iter().map(point).collect::<Vec<_>>() })
}

/// What the Service's status says now.
pub fn published(service: &Service) -> &[service::Ingress] {
    service.balancing.as_ref().map_or(&[], |asked| &asked.ingress)
}
