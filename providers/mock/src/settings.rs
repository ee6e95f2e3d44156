//! A Service's settings for the mock cloud, read from its spec and annotations before any call.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use providers::{
    ClassFilter, CloudError, Features, IpFamily, IpMode, LoadBalancerSpec, Protocol, TargetId, Targeting, Targets,
};

use crate::config::MockConfig;
use crate::snapshot::{Attributes, ListenerView};

/// Prefix of the mock's annotations: `scheme` (`internal`, `internet-facing`), `targets` (`nodes`, `endpoints`,
/// `elsewhere`), `ip-mode` (`VIP`, `Proxy`), `hostname` and `report` (`true`, `false`).
pub const PREFIX: &str = "mock.cloud/";

/// Prefix of the annotations that the mock writes: `balancer`, the load balancer's name, to Services with the
/// annotation `mock.cloud/report: "true"`.
pub const WRITTEN_PREFIX: &str = "status.mock.cloud/";

/// The class that the mock accepts in addition to Services without one.
pub const CLASS: &str = "mock.cloud/balancer";

/// The desired state of a load balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    /// The load balancer's name is written to the Service.
    pub report: bool,
    pub targeting: Targeting,
    pub internal: bool,
    pub ip_mode: Option<IpMode>,
    pub hostname: bool,
    pub families: Vec<IpFamily>,
    pub requested_address: Option<IpAddr>,
    pub listeners: Vec<ListenerView>,
    pub source_ranges: Vec<IpNet>,
    pub attributes: Attributes,
}

/// Returns the features of the mock.
pub(crate) fn features() -> Features {
    Features {
        classes: ClassFilter { unset: true, named: vec![CLASS.into()] },
        endpoint_targets: true,
        selects_targets: false,
        source_ranges: true,
        protocols: vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp],
        mixed_protocols: true,
        ipv6: true,
        dual_stack: true,
        gates: None,
        annotations: Vec::new(),
        written_annotations: Some(WRITTEN_PREFIX),
    }
}

fn choice<T: Copy>(spec: &LoadBalancerSpec, key: &str, words: &[(&str, T)]) -> Result<Option<T>, CloudError> {
    let key = format!("{PREFIX}{key}");
    let Some(value) = spec.annotations.get(&key) else { return Ok(None) };
    match words.iter().find(|(choice, _)| choice == value) {
        Some((_, meaning)) => Ok(Some(*meaning)),
        None => {
            let known = words.iter().map(|(choice, _)| *choice).collect::<Vec<_>>().join(" or ");
            Err(CloudError::invalid_annotation(&key, value, &format!("use {known}")))
        }
    }
}

/// Reads a Service's settings.
pub(crate) fn read(spec: &LoadBalancerSpec, config: &MockConfig) -> Result<Settings, CloudError> {
    const KNOWN: [&str; 5] = ["hostname", "ip-mode", "report", "scheme", "targets"];
    for (key, value) in &spec.annotations {
        if let Some(suffix) = key.strip_prefix(PREFIX)
            && !KNOWN.contains(&suffix)
        {
            let fix = format!("it is not known; use one of {PREFIX}{{{}}}", KNOWN.join(","));
            return Err(CloudError::invalid_annotation(key, value, &fix));
        }
    }
    let targeting = choice(
        spec,
        "targets",
        &[("nodes", Targeting::Nodes), ("endpoints", Targeting::Endpoints), ("elsewhere", Targeting::Elsewhere)],
    )?
    .unwrap_or(Targeting::Nodes);
    let internal = choice(spec, "scheme", &[("internal", true), ("internet-facing", false)])?.unwrap_or(false);
    let ip_mode = choice(spec, "ip-mode", &[("VIP", IpMode::Vip), ("Proxy", IpMode::Proxy)])?;
    let hostname = choice(spec, "hostname", &[("true", true), ("false", false)])?.unwrap_or(false);
    let report = choice(spec, "report", &[("true", true), ("false", false)])?.unwrap_or(false);
    Ok(Settings {
        report,
        targeting,
        internal,
        ip_mode,
        hostname,
        families: spec.ip_families.clone(),
        requested_address: requested_address(spec, config)?,
        listeners: listeners(spec, targeting)?,
        source_ranges: spec.source_ranges.iter().map(IpNet::trunc).collect::<BTreeSet<_>>().into_iter().collect(),
        attributes: Attributes {
            session_affinity: spec.session_affinity,
            external_traffic_policy: spec.external_traffic_policy,
            health_check_port: spec.health_check_node_port,
        },
    })
}

fn requested_address(spec: &LoadBalancerSpec, config: &MockConfig) -> Result<Option<IpAddr>, CloudError> {
    let Some(given) = spec.requested_address.as_deref().filter(|given| !given.is_empty()) else { return Ok(None) };
    let address = given.parse::<IpAddr>().ok().filter(|address| match address {
        IpAddr::V4(v4) => config.balancer_network.contains(v4),
        IpAddr::V6(v6) => config.balancer_network_v6.contains(v6),
    });
    match address {
        Some(address) if spec.ip_families.contains(&IpFamily::of(address)) => Ok(Some(address)),
        _ => {
            let fix = format!(
                "use an address of the Service's families in {} or {}, or leave it empty",
                config.balancer_network, config.balancer_network_v6
            );
            Err(CloudError::invalid_field("spec.loadBalancerIP", given, &fix))
        }
    }
}

fn listeners(spec: &LoadBalancerSpec, targeting: Targeting) -> Result<Vec<ListenerView>, CloudError> {
    let mut listeners = Vec::with_capacity(spec.ports.len());
    for port in &spec.ports {
        if targeting == Targeting::Nodes && port.node_port.is_none() {
            return Err(CloudError::invalid_field(
                "spec.ports[].nodePort",
                format_args!("absent for port {}/{}", port.port, port.protocol),
                &format!(
                    "set spec.allocateLoadBalancerNodePorts to true, or the annotation {PREFIX}targets to endpoints"
                ),
            ));
        }
        listeners.push(ListenerView {
            protocol: port.protocol,
            port: port.port,
            node_port: port.node_port.filter(|_| targeting == Targeting::Nodes),
            app_protocol: port.app_protocol.clone(),
        });
    }
    listeners.sort();
    Ok(listeners)
}

/// Returns the desired targets, and the nodes that cannot be targets yet because they have no provider ID.
pub(crate) fn targets(targeting: Targeting, targets: &Targets) -> (BTreeSet<TargetId>, Vec<String>) {
    match targeting {
        Targeting::Nodes => {
            let ids = targets.nodes.iter().filter_map(|node| node.provider_id.clone());
            let without_id = targets.nodes.iter().filter(|node| node.provider_id.is_none());
            (ids.map(TargetId::Instance).collect(), without_id.map(|node| node.name.clone()).collect())
        }
        Targeting::Endpoints => {
            // While none is ready, terminating endpoints that still serve are used, as in kube-proxy.
            let any_ready = targets.endpoints.iter().any(|endpoint| endpoint.ready);
            let chosen = targets
                .endpoints
                .iter()
                .filter(|endpoint| endpoint.ready || (!any_ready && endpoint.serving && endpoint.terminating));
            let ids = chosen.map(|endpoint| TargetId::Endpoint { address: endpoint.address, port: endpoint.port });
            (ids.collect(), Vec::new())
        }
        Targeting::Elsewhere => (BTreeSet::new(), Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use providers::{EndpointTarget, LoadBalancerId, NodeTarget, Port, TargetPort};

    fn spec(annotations: &[(&str, &str)]) -> LoadBalancerSpec {
        let id = LoadBalancerId { cluster: "c".into(), namespace: "d".into(), name: "web".into(), uid: "u".into() };
        let port = Port {
            name: String::new(),
            protocol: Protocol::Tcp,
            app_protocol: None,
            port: 80,
            node_port: Some(30080),
            target_port: TargetPort::Name("http".into()),
        };
        let annotations = annotations.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).into()));
        LoadBalancerSpec { annotations: annotations.collect(), ..LoadBalancerSpec::new(id, vec![port]) }
    }

    fn error(spec: &LoadBalancerSpec) -> String {
        let error = read(spec, &MockConfig::default()).unwrap_err();
        assert!(error.is_invalid(), "{error:?}");
        error.message
    }

    #[test]
    fn annotations_become_settings() {
        let config = MockConfig::default();
        let plain = read(&spec(&[]), &config).unwrap();
        assert_eq!((plain.targeting, plain.internal, plain.hostname), (Targeting::Nodes, false, false));
        let all = [("scheme", "internal"), ("targets", "endpoints"), ("ip-mode", "Proxy"), ("hostname", "true")];
        let all = read(&spec(&all), &config).unwrap();
        assert_eq!((all.targeting, all.internal, all.hostname), (Targeting::Endpoints, true, true));
        assert_eq!(all.ip_mode, Some(IpMode::Proxy));
        assert_eq!(all.listeners[0].node_port, None, "endpoints are reached without node ports");
    }

    #[test]
    fn invalid_settings_are_reported() {
        assert_eq!(
            error(&spec(&[("scheme", "inside")])),
            "annotation mock.cloud/scheme is \"inside\": use internal or internet-facing"
        );
        assert!(error(&spec(&[("shceme", "internal")])).starts_with("annotation mock.cloud/shceme is \"internal\""));
        let mut portless = spec(&[]);
        portless.ports[0].node_port = None;
        assert!(error(&portless).contains("spec.allocateLoadBalancerNodePorts"));
        for address in ["nonsense", "10.0.0.1", "2001:db8:0:1::5"] {
            let request = LoadBalancerSpec { requested_address: Some(address.into()), ..spec(&[]) };
            assert!(error(&request).contains(address), "{address}");
        }
    }

    #[test]
    fn targets_are_selected_by_kind_and_state() {
        let endpoint = |last: u8, ready, serving| EndpointTarget {
            port_name: String::new(),
            address: [10, 0, 0, last].into(),
            port: 8080,
            node: None,
            provider_id: None,
            zone: None,
            ready,
            serving,
            terminating: !ready,
            pod: None,
        };
        let node = |name: &str, id: Option<&str>| NodeTarget {
            name: name.into(),
            provider_id: id.map(Into::into),
            ..NodeTarget::default()
        };
        let given = |endpoints: Vec<EndpointTarget>| Targets {
            endpoints: endpoints.into(),
            ..Targets::nodes(vec![node("a", Some("mock://r/a")), node("b", None)])
        };
        let config = MockConfig::default();
        let nodes = read(&spec(&[]), &config).unwrap();
        let (chosen, without_id) = targets(nodes.targeting, &given(vec![]));
        assert_eq!(chosen, BTreeSet::from([TargetId::Instance("mock://r/a".into())]));
        assert_eq!(without_id, ["b"]);
        let endpoints = read(&spec(&[("targets", "endpoints")]), &config).unwrap();
        let count = |given: &Targets| targets(endpoints.targeting, given).0.len();
        assert_eq!(count(&given(vec![endpoint(1, true, true), endpoint(2, false, true)])), 1);
        assert_eq!(count(&given(vec![endpoint(1, false, false), endpoint(2, false, true)])), 1);
        assert_eq!(count(&given(vec![endpoint(1, false, false)])), 0);
    }
}
