//! EndpointSlices of a load balancer whose targets are the nodes that the controller selects.

use std::collections::{BTreeMap, BTreeSet};

use providers::{Features, LoadBalancerSpec, Targets, TrafficPolicy};
use serde_json::{Value, json};

use crate::instances::machine_name;
use crate::objects::{
    InfraPort, InfraService, Slice, SliceConditions, SliceEndpoint, SlicePort, TargetRef, VirtualMachineInstance,
};

/// Label with the Service of a slice.
pub(crate) const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// Label with the writer of a slice.
pub(crate) const WRITER_LABEL: &str = "endpointslice.kubernetes.io/managed-by";
const WRITER: &str = "kubewright-kubevirt";

/// The writer of slices of Services with a selector. Upstream: pkg/controller/endpointslice, ControllerName.
pub(crate) const SELECTOR_WRITER: &str = "endpointslice-controller.k8s.io";

/// Maximum number of endpoints per slice that the API server accepts.
const MAX_ENDPOINTS: usize = 1000;

/// The kind of endpoints' targets.
const MACHINE_KIND: &str = "VirtualMachineInstance";

/// Returns the virtual machines that should receive traffic, and the names of nodes without a virtual machine.
///
/// With the policy Local, the infrastructure has no health check of the tenant's nodes, so only nodes with an
/// endpoint are returned: with a ready one, or, while the Service has none, with one that still serves.
pub(crate) fn target_machines(spec: &LoadBalancerSpec, targets: &Targets) -> (BTreeSet<String>, Vec<String>) {
    let hosts: Option<BTreeSet<&str>> = (spec.external_traffic_policy == TrafficPolicy::Local).then(|| {
        let any_ready = targets.endpoints.iter().any(|endpoint| endpoint.ready);
        let used = targets.endpoints.iter().filter(|endpoint| endpoint.ready || (!any_ready && endpoint.serving));
        used.filter_map(|endpoint| endpoint.node.as_deref()).collect()
    });
    let mut machines = BTreeSet::new();
    let mut without_machine = Vec::new();
    for node in targets.nodes.iter().filter(|node| hosts.as_ref().is_none_or(|hosts| hosts.contains(&*node.name))) {
        match node.provider_id.as_deref().map(machine_name) {
            Some(Ok(machine)) => drop(machines.insert(machine.to_owned())),
            _ => without_machine.push(node.name.clone()),
        }
    }
    (machines, without_machine)
}

/// Returns true if the slices of an invalid Service can be derived from the given targets. With the policy Local, they
/// depend on endpoints, which are not given if the configuration lets the infrastructure cluster select the targets.
/// After a change to that configuration, an invalid Service keeps its slices until it is valid.
pub(crate) fn can_follow(spec: &LoadBalancerSpec, features: &Features) -> bool {
    features.endpoint_targets || spec.external_traffic_policy != TrafficPolicy::Local
}

/// Returns the name of the node that runs on a virtual machine.
pub(crate) fn node_of<'a>(targets: &'a Targets, machine: &str) -> Option<&'a str> {
    let runs_on = |node: &&providers::NodeTarget| {
        node.provider_id.as_deref().map(machine_name).is_some_and(|name| name.is_ok_and(|name| name == machine))
    };
    targets.nodes.iter().find(runs_on).map(|node| &*node.name)
}

/// Returns the endpoint of a virtual machine; `None` while its interface `default` has no IPv4 address.
pub(crate) fn endpoint(instance: &VirtualMachineInstance, namespace: &str) -> Option<SliceEndpoint> {
    let interface = instance.status.interfaces.iter().find(|interface| interface.name == "default")?;
    let mut all = interface.ip_addresses.iter().chain(std::iter::once(&interface.ip_address));
    let address = all.find(|address| address.parse::<std::net::Ipv4Addr>().is_ok())?;
    Some(SliceEndpoint {
        addresses: vec![address.clone()],
        conditions: SliceConditions { ready: Some(true) },
        node_name: Some(instance.status.node_name.clone()).filter(|name| !name.is_empty()),
        target_ref: Some(TargetRef {
            kind: MACHINE_KIND.into(),
            namespace: namespace.into(),
            name: instance.metadata.name.clone(),
        }),
    })
}

/// Returns the virtual machine of an endpoint.
pub(crate) fn machine_of(endpoint: &SliceEndpoint) -> Option<&str> {
    let target = endpoint.target_ref.as_ref().filter(|target| target.kind == MACHINE_KIND)?;
    Some(&target.name)
}

/// A change of a slice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum SliceChange {
    /// Creates this object.
    Create(Value),
    /// Applies this merge patch.
    Patch(String, Value),
    /// Deletes the slice with this name and uid.
    Delete(String, String),
}

/// Returns the changes that turn the found slices into slices with these endpoints.
///
/// `endpoints` are in a fixed order, so that the same ones are in the same slices each time.
pub(crate) fn changes(
    (service, ports): (&InfraService, &[InfraPort]),
    labels: &BTreeMap<String, String>,
    endpoints: &[SliceEndpoint],
    found: &[Slice],
) -> Vec<SliceChange> {
    let ports: Vec<SlicePort> = ports.iter().map(port).collect();
    let chunks: Vec<&[SliceEndpoint]> = endpoints.chunks(MAX_ENDPOINTS).collect();
    let named = |index: usize| format!("{}-{index}", service.metadata.name);
    let mut changes = Vec::new();
    for (index, chunk) in chunks.iter().enumerate() {
        let name = named(index);
        match found.iter().find(|slice| slice.metadata.name == name) {
            None => changes.push(SliceChange::Create(object(&name, service, labels, &ports, chunk))),
            Some(slice) if slice.endpoints == *chunk && slice.ports == ports => {}
            Some(slice) => changes.push(SliceChange::Patch(name, patch(slice, &ports, chunk))),
        }
    }
    let outdated = |slice: &&Slice| (0..chunks.len()).all(|index| slice.metadata.name != named(index));
    changes.extend(found.iter().filter(outdated).map(deletion));
    changes
}

/// Returns the deletion of a slice.
pub(crate) fn deletion(slice: &Slice) -> SliceChange {
    SliceChange::Delete(slice.metadata.name.clone(), slice.metadata.uid.clone())
}

fn port(port: &InfraPort) -> SlicePort {
    SlicePort {
        name: port.name.clone(),
        protocol: port.protocol.clone(),
        app_protocol: port.app_protocol.clone(),
        port: port.target_port.as_u64().and_then(|number| number.try_into().ok()).unwrap_or_default(),
    }
}

fn object(
    name: &str,
    service: &InfraService,
    labels: &BTreeMap<String, String>,
    ports: &[SlicePort],
    endpoints: &[SliceEndpoint],
) -> Value {
    let mut labels = labels.clone();
    labels.insert(SERVICE_LABEL.into(), service.metadata.name.clone());
    labels.insert(WRITER_LABEL.into(), WRITER.into());
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "labels": labels,
            // Deleted with the Service, even if this process does not run then.
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Service", "name": service.metadata.name, "uid": service.metadata.uid,
            }],
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": ports,
    })
}

fn patch(slice: &Slice, ports: &[SlicePort], endpoints: &[SliceEndpoint]) -> Value {
    let metadata = json!({"uid": slice.metadata.uid, "resourceVersion": slice.metadata.resource_version});
    json!({"metadata": metadata, "endpoints": endpoints, "ports": ports})
}

#[cfg(test)]
mod tests {
    use providers::{EndpointTarget, LoadBalancerId, NodeTarget, Port, Protocol, TargetPort};

    use super::*;
    use crate::config::LoadBalancerConfig;
    use crate::desired::Desired;
    use crate::objects::Meta;

    fn spec() -> LoadBalancerSpec {
        let id = LoadBalancerId { cluster: "c".into(), namespace: "ns".into(), name: "web".into(), uid: "u".into() };
        let port = Port {
            name: String::new(),
            protocol: Protocol::Tcp,
            app_protocol: None,
            port: 80,
            node_port: Some(30080),
            target_port: TargetPort::Number(8080),
        };
        LoadBalancerSpec::new(id, vec![port])
    }

    fn node(name: &str) -> NodeTarget {
        NodeTarget { name: name.into(), provider_id: Some(format!("kubevirt://vm-{name}")), ..NodeTarget::default() }
    }

    fn on(node: &str, ready: bool, serving: bool) -> EndpointTarget {
        EndpointTarget {
            port_name: String::new(),
            address: [10, 0, 0, 1].into(),
            port: 8080,
            node: Some(node.into()),
            provider_id: None,
            zone: None,
            ready,
            serving,
            terminating: !ready,
            pod: None,
        }
    }

    #[test]
    fn policy_local_selects_nodes_with_an_endpoint() {
        let local = LoadBalancerSpec { external_traffic_policy: TrafficPolicy::Local, ..spec() };
        let nodes = ["a", "b", "c"].map(node);
        let given =
            |endpoints: Vec<EndpointTarget>| Targets { endpoints: endpoints.into(), ..Targets::nodes(nodes.to_vec()) };
        for (spec, endpoints, expected) in [
            (&spec(), vec![], vec!["vm-a", "vm-b", "vm-c"]),
            (&local, vec![], vec![]),
            (&local, vec![on("a", true, true), on("b", false, true)], vec!["vm-a"]),
            (&local, vec![on("a", false, false), on("b", false, true)], vec!["vm-b"]),
            (&local, vec![on("unknown", true, true)], vec![]),
        ] {
            let (machines, without) = target_machines(spec, &given(endpoints));
            assert_eq!(machines.iter().map(String::as_str).collect::<Vec<_>>(), expected);
            assert!(without.is_empty());
        }
        let odd = NodeTarget { name: "odd".into(), provider_id: Some("aws:///i".into()), ..NodeTarget::default() };
        let new = NodeTarget { name: "new".into(), ..NodeTarget::default() };
        let (machines, without) = target_machines(&spec(), &Targets::nodes(vec![new, odd]));
        assert_eq!((machines.len(), without), (0, vec!["new".to_owned(), "odd".to_owned()]));
    }

    #[test]
    fn invalid_service_with_policy_local_keeps_its_slices_if_no_endpoints_are_given() {
        for (endpoint_targets, external_traffic_policy, expected) in [
            (true, TrafficPolicy::Local, true),
            (false, TrafficPolicy::Local, false),
            (false, TrafficPolicy::Cluster, true),
        ] {
            let features = Features { endpoint_targets, ..Features::default() };
            let spec = LoadBalancerSpec { external_traffic_policy, ..spec() };
            assert_eq!(can_follow(&spec, &features), expected, "{endpoint_targets} {external_traffic_policy:?}");
        }
    }

    #[test]
    fn endpoint_has_the_default_interfaces_ipv4_address() {
        let with = |interfaces: Value| -> Option<SliceEndpoint> {
            let instance = json!({"metadata": {"name": "vm"}, "status": {"nodeName": "n", "interfaces": interfaces}});
            endpoint(&serde_json::from_value(instance).expect("an instance"), "ns")
        };
        let found = with(json!([{"name": "default", "ipAddresses": ["fd00::1", "10.0.0.1"]}])).expect("an address");
        assert_eq!((&found.addresses[0][..], found.node_name.as_deref()), ("10.0.0.1", Some("n")));
        assert_eq!(machine_of(&found), Some("vm"));
        assert_eq!(with(json!([{"name": "default", "ipAddress": "fd00::1"}])), None);
        assert_eq!(with(json!([{"name": "other", "ipAddress": "10.0.0.1"}])), None);
        assert_eq!(with(json!([])), None);
    }

    #[test]
    fn endpoints_overflow_into_another_slice_and_shrink_back() {
        let desired = Desired::of(&spec(), &LoadBalancerConfig::default(), &BTreeMap::new());
        let service =
            InfraService { metadata: Meta { name: "au".into(), ..Meta::default() }, ..InfraService::default() };
        let endpoint = |number: usize| SliceEndpoint {
            addresses: vec![format!("10.0.{}.{}", number / 256, number % 256)],
            ..SliceEndpoint::default()
        };
        let endpoints: Vec<SliceEndpoint> = (0..1001).map(endpoint).collect();
        let labels = BTreeMap::new();
        let at = (&service, &desired.spec.ports[..]);
        let created = changes(at, &labels, &endpoints, &[]);
        let stored: Vec<Slice> = created
            .iter()
            .map(|change| match change {
                SliceChange::Create(object) => serde_json::from_value(object.clone()).expect("a slice"),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(stored.iter().map(|slice| slice.endpoints.len()).collect::<Vec<_>>(), [1000, 1]);
        assert_eq!(changes(at, &labels, &endpoints, &stored), []);
        let fewer = changes(at, &labels, &endpoints[1..], &stored);
        assert!(
            matches!(&fewer[..], [SliceChange::Patch(..), SliceChange::Delete(name, _)] if name == "au-1"),
            "{fewer:?}"
        );
        let none = changes(at, &labels, &[], &stored);
        assert!(matches!(&none[..], [SliceChange::Delete(..), SliceChange::Delete(..)]), "{none:?}");
    }
}
