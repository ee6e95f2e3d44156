//! Converts a Service to a request to the provider, and the provider's status to the Service's. Pure functions.

use std::collections::{BTreeMap, HashSet};
use std::str::FromStr;
use std::time::Duration;

use ipnet::IpNet;
use kinds::int_or_string::IntOrString;
use kinds::meta::Meta;
use kinds::service::{self, Balancing, ServicePort, ServiceType};
use kinds::{Service, Str};
use providers::{
    ClassFilter, CloudError, ErrorKind, IpFamily, IpFamilyPolicy, IpMode, LoadBalancerId, LoadBalancerSpec,
    LoadBalancerStatus, OtherService, Port, Protocol, SessionAffinity, TargetPort, TrafficPolicy,
};
use serde_json::{Value, json};

/// Finalizer that blocks the deletion of a Service until its cloud resources are deleted. Upstream: cloud-provider,
/// service/helpers, LoadBalancerCleanupFinalizer.
pub const FINALIZER: &str = "service.kubernetes.io/load-balancer-cleanup";

/// Annotation with the clients that may connect, if `spec.loadBalancerSourceRanges` is empty.
/// Upstream: core/v1, AnnotationLoadBalancerSourceRangesKey.
const SOURCE_RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// Desired state of a Service's load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DesiredState {
    /// No load balancer, or a load balancer of another controller. One that this process has created is deleted without
    /// writing to the Service.
    Nothing,
    /// This controller's load balancer.
    LoadBalancer,
    /// A load balancer is no longer requested. Because the finalizer is set, a load balancer may exist: it is deleted,
    /// then the finalizer is removed.
    Cleanup,
}

/// Returns true if the Service has this controller's finalizer.
pub fn has_finalizer(meta: &Meta) -> bool {
    meta.finalizers.iter().any(|finalizer| &**finalizer == FINALIZER)
}

/// Returns true if the Service exists after this controller has removed its finalizer.
pub fn outlives_release(meta: &Meta) -> bool {
    !meta.is_deleting() || meta.finalizers.iter().any(|finalizer| &**finalizer != FINALIZER)
}

/// Returns true if a Service may have or request a load balancer.
pub fn concerns(service: &Service) -> bool {
    service.kind == ServiceType::LoadBalancer || has_finalizer(&service.meta)
}

/// Returns the desired state of a Service's load balancer.
///
/// `ours` is set if this process may have created the load balancer. Then the load balancer is deleted if the
/// Service's class now belongs to another controller. Otherwise that controller deletes its own load balancer, and
/// removes the finalizer, which can have the same name. Upstream: cloud-provider, controllers/service,
/// wantsLoadBalancer and needsCleanup.
pub fn desired_state(service: &Service, classes: &ClassFilter, ours: bool) -> DesiredState {
    let balanced = service.kind == ServiceType::LoadBalancer;
    let has_finalizer = has_finalizer(&service.meta);
    let is_own_class = balanced && classes.accepts(class(service));
    match (service.meta.is_deleting(), has_finalizer) {
        (true, true) if is_own_class || !balanced || ours => DesiredState::Cleanup,
        (false, _) if is_own_class => DesiredState::LoadBalancer,
        (false, true) if !balanced || ours => DesiredState::Cleanup,
        _ => DesiredState::Nothing,
    }
}

fn balancing(service: &Service) -> Result<&Balancing, CloudError> {
    let missing = || CloudError::new(ErrorKind::Invalid, "ReadSpec", "spec.type is not LoadBalancer: use LoadBalancer");
    service.balancing.as_deref().ok_or_else(missing)
}

fn class(service: &Service) -> Option<&str> {
    service.balancing.as_ref()?.class.as_deref()
}

/// Returns the identity of a Service's load balancer.
pub fn id(meta: &Meta, cluster: &str) -> LoadBalancerId {
    LoadBalancerId {
        cluster: cluster.to_owned(),
        namespace: meta.namespace.to_string(),
        name: meta.name.to_string(),
        uid: meta.uid.to_string(),
    }
}

/// Returns the request of a Service of type LoadBalancer.
///
/// It contains the annotations whose names begin with one of `prefixes`, or all annotations if there are no prefixes.
///
/// # Errors
/// `Invalid` if no cloud could provide it. The message names the field or annotation, its value, and the fix.
pub fn spec(service: &Service, cluster: &str, prefixes: &[String]) -> Result<LoadBalancerSpec, CloudError> {
    let source_ranges = source_ranges(service, balancing(service)?)?;
    Ok(LoadBalancerSpec { source_ranges, ..spec_without_ranges(service, cluster, prefixes)? })
}

/// Returns the request without the IP ranges of clients. It is not used to create or change a load balancer, which
/// would then be open to any client.
///
/// # Errors
/// Same as [`spec`].
pub fn spec_without_ranges(
    service: &Service,
    cluster: &str,
    prefixes: &[String],
) -> Result<LoadBalancerSpec, CloudError> {
    let settings = balancing(service)?;
    let ports = service.ports.iter().map(port).collect::<Result<Vec<_>, _>>()?;
    let texts =
        |labels: &[(Str, Str)]| labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let is_read = |name: &str| prefixes.is_empty() || prefixes.iter().any(|prefix| name.starts_with(&**prefix));
    let mut annotations: BTreeMap<String, String> = texts(&service.annotations);
    annotations.retain(|name, _| is_read(name));
    let policy = |local: bool| if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    Ok(LoadBalancerSpec {
        class: settings.class.as_deref().map(str::to_owned),
        annotations,
        labels: texts(&service.meta.labels),
        allocate_node_ports: settings.allocate_node_ports,
        source_ranges: Vec::new(),
        session_affinity: affinity(settings),
        requested_address: Some(settings.requested_ip.to_string()).filter(|ip| !ip.is_empty()),
        external_ips: settings.external_ips.iter().map(|ip| ip.to_string()).collect(),
        ip_families: families(&service.ip_families),
        ip_family_policy: match &*settings.ip_family_policy {
            "RequireDualStack" => IpFamilyPolicy::RequireDualStack,
            "PreferDualStack" => IpFamilyPolicy::PreferDualStack,
            _ => IpFamilyPolicy::SingleStack,
        },
        external_traffic_policy: policy(settings.external_local),
        internal_traffic_policy: policy(settings.internal_local),
        health_check_node_port: health_check_node_port(settings),
        publish_not_ready_addresses: service.publish_not_ready_addresses,
        traffic_distribution: service.traffic_distribution.as_deref().map(str::to_owned),
        ..LoadBalancerSpec::new(id(&service.meta, cluster), ports)
    })
}

/// Returns the fields of a Service that matter if another Service's load balancer sends traffic to it.
///
/// Invalid ports are left out.
pub fn other(service: &Service) -> OtherService {
    OtherService {
        ports: service.ports.iter().filter_map(|requested| port(requested).ok()).collect(),
        ip_families: families(&service.ip_families),
        health_check_node_port: service.balancing.as_deref().and_then(health_check_node_port),
    }
}

fn health_check_node_port(settings: &Balancing) -> Option<u16> {
    u16::try_from(settings.health_check_node_port).ok().filter(|port| settings.external_local && *port != 0)
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

fn affinity(settings: &Balancing) -> SessionAffinity {
    // The API server sets the timeout if it is missing; three hours is its default (core/v1,
    // DefaultClientIPServiceAffinitySeconds).
    let seconds = settings.affinity_seconds.and_then(|seconds| u64::try_from(seconds).ok()).unwrap_or(10_800);
    if settings.client_ip_affinity {
        SessionAffinity::ClientIp { timeout: Duration::from_secs(seconds) }
    } else {
        SessionAffinity::None
    }
}

fn families(words: &[Str]) -> Vec<IpFamily> {
    let families: Vec<_> =
        words.iter().map(|word| if &**word == "IPv6" { IpFamily::IPv6 } else { IpFamily::IPv4 }).collect();
    if families.is_empty() { vec![IpFamily::IPv4] } else { families }
}

/// Returns the IP ranges of clients that may connect; empty means any client.
///
/// The ranges of the spec take precedence over those of the annotation. Upstream: cloud-provider, service/helpers,
/// GetLoadBalancerSourceRanges.
fn source_ranges(service: &Service, settings: &Balancing) -> Result<Vec<IpNet>, CloudError> {
    let parse = |text: &str| IpNet::from_str(text.trim()).ok().map(|net| net.trunc());
    if !settings.source_ranges.is_empty() {
        let invalid = |text: &Str| {
            let fix = "use an IP range, for example 10.0.0.0/24";
            CloudError::invalid_field("spec.loadBalancerSourceRanges", text, fix)
        };
        let ranges = settings.source_ranges.iter().map(|text| parse(text).ok_or_else(|| invalid(text)));
        return ranges.collect::<Result<_, _>>().map(distinct);
    }
    let annotation = service.annotation(SOURCE_RANGES).unwrap_or_default();
    if annotation.trim().is_empty() {
        return Ok(Vec::new());
    }
    let ranges: Option<Vec<_>> = annotation.split(',').map(parse).collect();
    ranges.map(distinct).ok_or_else(|| {
        let fix = "use a comma-separated list of IP ranges, for example 10.0.0.0/24,192.168.2.0/24";
        CloudError::invalid_annotation(SOURCE_RANGES, annotation, fix)
    })
}

/// Returns the ranges in their order, each once.
fn distinct(mut ranges: Vec<IpNet>) -> Vec<IpNet> {
    let mut seen = HashSet::new();
    ranges.retain(|range| seen.insert(*range));
    ranges
}

/// Returns the interval between two checks for drift: `period`, changed by up to a quarter depending on the UID, so
/// that the checks of all Services do not run at the same time.
pub fn resync_after(period: Duration, uid: &str) -> Duration {
    period.mul_f64(0.75 + spread(uid) / 2.0)
}

/// Returns the delay before the check that a provider requests: `delay`, prolonged by up to a fifth depending on the
/// UID, so that the checks of all Services do not run at the same time. It is never shorter: before that, the check
/// could be of no use.
pub fn check_after(delay: Duration, uid: &str) -> Duration {
    delay.mul_f64(1.0 + spread(uid) / 5.0)
}

/// Returns a number from 0 to 1 that depends on the UID.
fn spread(uid: &str) -> f64 {
    let hash = uid.bytes().fold(17u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    f64::from(hash % 1000) / 1000.0
}

/// Converts a provider's status to a Service's status, with the defaults that the API server fills in.
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
            .map(|port| service::PortStatus {
                port: port.port.into(),
                protocol: port.protocol.as_str().into(),
                error: port.error.as_deref().map(Into::into),
            })
            .collect(),
    };
    status.ingress.iter().map(point).collect()
}

/// Returns the patch of `status.loadBalancer`. Without addresses, `ingress` is `null`, which removes the field.
pub fn ingress_patch(ingress: &[service::Ingress]) -> Value {
    if ingress.is_empty() {
        return json!({ "ingress": null });
    }
    let port = |port: &service::PortStatus| {
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

/// Returns the addresses in the Service's status.
pub fn published(service: &Service) -> &[service::Ingress] {
    service.balancing.as_ref().map_or(&[], |settings| &settings.ingress)
}
