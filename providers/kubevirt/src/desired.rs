//! The Service that a load balancer needs in the infrastructure cluster, and the difference from the existing one.

use std::collections::BTreeMap;

use providers::{
    ClassFilter, CloudError, Features, LoadBalancerSpec, Protocol, SessionAffinity, Targeting, TrafficPolicy,
};
use serde_json::{Map, Value, json};

use crate::config::{LoadBalancerConfig, Targets};
use crate::objects::{ClientIpConfig, InfraPort, InfraService, InfraServiceSpec, SessionAffinityConfig};
use crate::ownership::{self, CLUSTER_LABEL};

/// Label of the virtual machines that receive traffic; they also have the label with the cluster's name. Upstream:
/// TenantNodeRoleLabelKey.
const ROLE_LABEL: (&str, &str) = ("cluster.x-k8s.io/role", "worker");

/// Annotation with the keys of the annotations that were copied from the tenant's Service, separated by commas.
const COPIED: &str = "kubewright/copied-annotations";

/// Prefix of annotations that describe the tenant's object and nothing else.
const KUBECTL: &str = "kubectl.kubernetes.io/";

/// Returns the features of load balancers.
pub(crate) fn features(config: &LoadBalancerConfig, classes: &ClassFilter) -> Features {
    Features {
        classes: classes.clone(),
        // With the policy Local, only nodes with an endpoint are targets.
        endpoint_targets: config.targets == Targets::Nodes,
        selects_targets: config.targets == Targets::Selector,
        source_ranges: true,
        protocols: vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp],
        mixed_protocols: true,
        ..Features::default()
    }
}

/// Checks a spec, and returns the kind of targets that it needs, without any calls.
pub(crate) fn targeting(
    spec: &LoadBalancerSpec,
    config: &LoadBalancerConfig,
    features: &Features,
) -> Result<Targeting, CloudError> {
    features.check(spec)?;
    if let Some(port) = spec.ports.iter().find(|port| port.node_port.is_none()) {
        let value = format!("absent for port {}/{}", port.port, port.protocol);
        let fix = "set spec.allocateLoadBalancerNodePorts to true: traffic arrives at the node ports";
        return Err(CloudError::invalid_field("spec.ports[].nodePort", value, fix));
    }
    let local = spec.external_traffic_policy == TrafficPolicy::Local;
    Ok(if config.targets == Targets::Nodes && local { Targeting::Endpoints } else { Targeting::Nodes })
}

/// The desired Service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Desired {
    pub name: String,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    pub spec: InfraServiceSpec,
}

impl Desired {
    /// Converts a tenant's Service.
    pub fn of(spec: &LoadBalancerSpec, config: &LoadBalancerConfig, infra_labels: &BTreeMap<String, String>) -> Self {
        let mut labels = infra_labels.clone();
        // Ownership cannot be overridden by the configuration.
        labels.extend(ownership::labels(&spec.id));
        let mut annotations: BTreeMap<String, String> =
            spec.annotations.iter().filter(|(key, _)| is_copied(key)).map(|(k, v)| (k.clone(), v.clone())).collect();
        let copied: Vec<&str> = annotations.keys().map(String::as_str).collect();
        annotations.insert(COPIED.into(), copied.join(","));
        let selector = match config.targets {
            Targets::Nodes => BTreeMap::new(),
            Targets::Selector => [ROLE_LABEL, (CLUSTER_LABEL, spec.id.cluster.as_str())]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        };
        let (session_affinity, session_affinity_config) = affinity(spec.session_affinity);
        let local = spec.external_traffic_policy == TrafficPolicy::Local;
        let mut source_ranges: Vec<String> = spec.source_ranges.iter().map(|range| range.trunc().to_string()).collect();
        source_ranges.sort();
        source_ranges.dedup();
        let infra = InfraServiceSpec {
            kind: "LoadBalancer".into(),
            ports: spec.ports.iter().map(port).collect(),
            selector,
            load_balancer_source_ranges: source_ranges,
            load_balancer_ip: spec.requested_address.clone().filter(|address| !address.is_empty()),
            external_traffic_policy: if local { "Local" } else { "Cluster" }.into(),
            session_affinity,
            session_affinity_config,
        };
        Self { name: spec.id.default_name(), labels, annotations, spec: infra }
    }

    /// Returns the object to create.
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name, "labels": self.labels, "annotations": self.annotations},
            "spec": without_nulls(fields(&self.spec)),
        })
    }

    /// Returns the merge patch that changes the found Service into the desired one; `None` if there is no difference.
    ///
    /// Labels and annotations that others have added are kept, and so are the infrastructure's node ports.
    pub fn patch(&self, found: &InfraService) -> Option<Value> {
        let mut spec = self.spec.clone();
        for port in &mut spec.ports {
            let same = |other: &&InfraPort| (other.port, &other.protocol) == (port.port, &port.protocol);
            port.node_port = found.spec.ports.iter().find(same).and_then(|other| other.node_port);
        }
        let labels = changes(&self.labels, &found.metadata.labels, std::iter::empty());
        let copied = found.metadata.annotations.get(COPIED).map_or("", String::as_str).split(',');
        let annotations = changes(&self.annotations, &found.metadata.annotations, copied);
        let same_spec = spec == found.spec;
        if same_spec && labels.is_empty() && annotations.is_empty() {
            return None;
        }
        let mut patch = json!({"metadata": {
            "uid": found.metadata.uid,
            "resourceVersion": found.metadata.resource_version,
            "labels": labels,
            "annotations": annotations,
        }});
        if !same_spec {
            let mut changed = fields(&spec);
            // A merge patch keeps the keys of a map that it does not name.
            if changed["selector"].is_object() {
                for key in found.spec.selector.keys().filter(|key| !spec.selector.contains_key(*key)) {
                    changed["selector"][key] = Value::Null;
                }
            }
            patch["spec"] = changed;
        }
        Some(patch)
    }
}

/// Returns true if an annotation of the tenant's Service is copied to the infrastructure's Service.
fn is_copied(key: &str) -> bool {
    !key.starts_with(KUBECTL) && key != COPIED
}

/// Returns the keys with new values, and `null` for those that were set before and are no longer desired.
fn changes<'a>(
    desired: &BTreeMap<String, String>,
    found: &BTreeMap<String, String>,
    set_before: impl Iterator<Item = &'a str>,
) -> Map<String, Value> {
    let set = desired.iter().filter(|(key, value)| found.get(*key) != Some(value));
    let set = set.map(|(key, value)| (key.clone(), Value::from(value.as_str())));
    let outdated = set_before.filter(|key| !desired.contains_key(*key) && found.contains_key(*key));
    set.chain(outdated.map(|key| (key.to_owned(), Value::Null))).collect()
}

fn port(requested: &providers::Port) -> InfraPort {
    InfraPort {
        name: requested.name.clone(),
        protocol: requested.protocol.to_string(),
        app_protocol: requested.app_protocol.clone(),
        port: requested.port,
        target_port: requested.node_port.unwrap_or_default().into(),
        node_port: None,
    }
}

fn affinity(requested: SessionAffinity) -> (String, Option<SessionAffinityConfig>) {
    match requested {
        SessionAffinity::None => ("None".into(), None),
        SessionAffinity::ClientIp { timeout } => {
            let client_ip = Some(ClientIpConfig { timeout_seconds: timeout.as_secs() });
            ("ClientIP".into(), Some(SessionAffinityConfig { client_ip }))
        }
    }
}

/// Returns the ports of an infrastructure Service with the node ports that an invalid tenant Service has now, which are
/// the only ones that the tenant's kube-proxy serves.
pub(crate) fn followed_ports(spec: &LoadBalancerSpec, service: &InfraService) -> Vec<InfraPort> {
    let followed = |found: &InfraPort| {
        let same = |port: &&providers::Port| port.port == found.port && port.protocol.as_str() == found.protocol;
        let node_port = spec.ports.iter().find(same).and_then(|port| port.node_port);
        let target_port = node_port.map_or_else(|| found.target_port.clone(), Into::into);
        InfraPort { target_port, ..found.clone() }
    };
    service.spec.ports.iter().map(followed).collect()
}

/// Returns all fields of a spec. An empty `selector` or `loadBalancerSourceRanges` is `null`, so that a merge patch
/// removes it.
fn fields(spec: &InfraServiceSpec) -> Value {
    let mut fields = serde_json::to_value(spec).unwrap_or_default();
    for key in ["selector", "loadBalancerSourceRanges"] {
        if fields[key].as_array().is_some_and(Vec::is_empty) || fields[key].as_object().is_some_and(Map::is_empty) {
            fields[key] = Value::Null;
        }
    }
    fields
}

fn without_nulls(mut fields: Value) -> Value {
    if let Some(fields) = fields.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    fields
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use providers::{LoadBalancerId, Port, TargetPort};

    use super::*;
    use crate::objects::Meta;

    const NODES: LoadBalancerConfig = LoadBalancerConfig {
        poll_interval: Duration::from_secs(1),
        poll_timeout: Duration::from_secs(60),
        targets: Targets::Nodes,
    };

    fn selecting() -> LoadBalancerConfig {
        LoadBalancerConfig { targets: Targets::Selector, ..NODES }
    }

    fn port_of(number: u16, node_port: Option<u16>) -> Port {
        Port {
            name: format!("p{number}"),
            protocol: Protocol::Tcp,
            app_protocol: None,
            port: number,
            node_port,
            target_port: TargetPort::Number(8080),
        }
    }

    fn spec() -> LoadBalancerSpec {
        let id = LoadBalancerId { cluster: "c".into(), namespace: "ns".into(), name: "web".into(), uid: "u-1".into() };
        LoadBalancerSpec::new(id, vec![port_of(80, Some(30080))])
    }

    /// Returns the Service as the API server stores it, with a node port for each port.
    fn stored(desired: &Desired) -> InfraService {
        let mut found = InfraService {
            metadata: Meta {
                name: desired.name.clone(),
                uid: "infra".into(),
                resource_version: "7".into(),
                labels: desired.labels.clone(),
                annotations: desired.annotations.clone(),
                ..Meta::default()
            },
            spec: desired.spec.clone(),
            ..InfraService::default()
        };
        for (number, port) in (31000..).zip(&mut found.spec.ports) {
            port.node_port = Some(number);
        }
        found
    }

    fn desired(spec: &LoadBalancerSpec, config: &LoadBalancerConfig) -> Desired {
        Desired::of(spec, config, &BTreeMap::new())
    }

    #[test]
    fn target_ports_are_the_tenants_node_ports() {
        let object = desired(&spec(), &selecting()).object();
        assert_eq!(object["spec"]["ports"][0]["targetPort"], 30080);
        assert_eq!(object["spec"]["selector"], json!({"cluster.x-k8s.io/role": "worker", CLUSTER_LABEL: "c"}));
        assert_eq!(object["metadata"]["name"], "au1");
        assert!(object["spec"].get("loadBalancerIP").is_none() && object["spec"].get("externalIPs").is_none());
        let without = desired(&spec(), &NODES).object();
        assert!(without["spec"].get("selector").is_none(), "{without}");
    }

    #[test]
    fn configured_label_does_not_override_ownership() {
        let infra = BTreeMap::from([(CLUSTER_LABEL.to_owned(), "other".to_owned()), ("team".into(), "a".into())]);
        let object = Desired::of(&spec(), &NODES, &infra).object();
        assert_eq!(object["metadata"]["labels"][CLUSTER_LABEL], "c");
        assert_eq!(object["metadata"]["labels"]["team"], "a");
    }

    #[test]
    fn stored_service_needs_no_patch() {
        let mut rich = spec();
        rich.ports.push(port_of(443, Some(30443)));
        rich.source_ranges = ["192.0.3.0/24", "192.0.2.7/24"].map(|range| range.parse().expect("a range")).to_vec();
        rich.session_affinity = SessionAffinity::ClientIp { timeout: Duration::from_secs(60) };
        rich.external_traffic_policy = TrafficPolicy::Local;
        rich.requested_address = Some("198.18.0.7".into());
        rich.annotations = BTreeMap::from([("example.com/pool".into(), "a".into())]);
        for config in [NODES, selecting()] {
            for spec in [spec(), rich.clone()] {
                let desired = desired(&spec, &config);
                assert_eq!(desired.patch(&stored(&desired)), None);
            }
        }
    }

    #[test]
    fn patch_keeps_node_ports_and_names_the_version() {
        let found = stored(&desired(&spec(), &NODES));
        let mut more = spec();
        more.ports.insert(0, port_of(443, Some(30443)));
        let patch = desired(&more, &NODES).patch(&found).expect("another port");
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        assert_eq!(patch["spec"]["ports"][1]["nodePort"], 31000);
        assert!(patch["spec"]["ports"][0].get("nodePort").is_none());
        let mut moved = spec();
        moved.ports[0].node_port = Some(30999);
        let patch = desired(&moved, &NODES).patch(&found).expect("another target port");
        assert_eq!(
            patch["spec"]["ports"],
            json!([{"name": "p80", "protocol": "TCP", "port": 80, "targetPort": 30999, "nodePort": 31000}])
        );
    }

    #[test]
    fn ports_of_an_invalid_service_follow_its_node_ports() {
        let found = stored(&desired(&spec(), &NODES));
        let targets = |ports: Vec<Port>| {
            let followed = followed_ports(&LoadBalancerSpec { ports, ..spec() }, &found);
            followed.into_iter().map(|port| (port.name, port.target_port)).collect::<Vec<_>>()
        };
        let at = |number: u16| vec![("p80".to_owned(), json!(number))];
        assert_eq!(targets(vec![port_of(80, Some(30999)), port_of(443, None)]), at(30999));
        assert_eq!(targets(vec![port_of(80, None)]), at(30080), "it has no node port now: the last one is used");
        assert_eq!(targets(vec![port_of(81, Some(30999))]), at(30080), "the port has another number now");
        let udp = Port { protocol: Protocol::Udp, ..port_of(80, Some(30999)) };
        assert_eq!(targets(vec![udp]), at(30080), "a port of another protocol");
    }

    #[test]
    fn selector_of_upstream_is_removed_and_set_again() {
        let (selected, listed) = (desired(&spec(), &selecting()), desired(&spec(), &NODES));
        let patch = listed.patch(&stored(&selected)).expect("a difference");
        assert_eq!(patch["spec"]["selector"], Value::Null);
        let mut found = stored(&listed);
        found.spec.selector = BTreeMap::from([("app".into(), "x".into())]);
        let patch = selected.patch(&found).expect("a difference");
        assert_eq!(patch["spec"]["selector"]["app"], Value::Null);
        assert_eq!(patch["spec"]["selector"][CLUSTER_LABEL], "c");
    }

    #[test]
    fn annotations_are_copied_and_removed_and_others_are_kept() {
        let mut first = spec();
        first.annotations = BTreeMap::from([
            ("example.com/pool".into(), "a".into()),
            ("kubectl.kubernetes.io/last-applied-configuration".into(), "{}".into()),
        ]);
        let mut found = stored(&desired(&first, &NODES));
        assert_eq!(found.metadata.annotations[COPIED], "example.com/pool");
        found.metadata.annotations.insert("infra.example/by-its-controller".into(), "1".into());
        let patch = desired(&spec(), &NODES).patch(&found).expect("one annotation less");
        assert_eq!(patch["metadata"]["annotations"], json!({"example.com/pool": null, COPIED: ""}));
        assert!(patch.get("spec").is_none(), "the ports are not written again");
    }

    #[test]
    fn service_without_node_ports_is_invalid() {
        let config = selecting();
        let features = features(&config, &ClassFilter::default());
        let without = LoadBalancerSpec { ports: vec![port_of(80, None)], ..spec() };
        let error = targeting(&without, &config, &features).expect_err("no target port");
        assert!(error.is_invalid() && error.message.contains("spec.allocateLoadBalancerNodePorts"), "{error}");
        let local = LoadBalancerSpec { external_traffic_policy: TrafficPolicy::Local, ..spec() };
        assert_eq!(targeting(&local, &config, &features), Ok(Targeting::Nodes));
        assert_eq!(targeting(&local, &NODES, &features), Ok(Targeting::Endpoints));
        assert_eq!(targeting(&spec(), &NODES, &features), Ok(Targeting::Nodes));
    }
}
