//! Targets of load balancers: the eligible nodes, and the endpoints that EndpointSlices list.

use std::sync::Arc;

use kinds::endpoint::Target;
use kinds::endpoint_slice::Endpoint;
use kinds::intern::label;
use kinds::ip::Ip;
use kinds::meta::Meta;
use kinds::{EndpointSlice, Node};
use providers::{EndpointTarget, NodeTarget, PodRef};
use runtime::store::{Index, index_key};

use crate::cloud::instances;

/// Label that excludes a node from load balancers (core/v1, LabelNodeExcludeBalancers).
const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Taints of nodes that an autoscaler is about to remove: that of the cluster autoscaler (upstream: cloud-provider,
/// controllers/service, ToBeDeletedTaint), and that of Karpenter, as in the AWS Load Balancer Controller.
const LEAVING: [&str; 2] = ["ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"];

/// Returns true if an autoscaler is about to remove the node.
pub fn leaving(node: &Node) -> bool {
    node.taints.iter().any(|taint| LEAVING.contains(&&*taint.key))
}

/// Returns true if a node may be a target, regardless of autoscalers' taints.
///
/// A label value that is neither true nor false excludes the node. Upstream: cloud-provider, controllers/service,
/// nodeIncludedPredicate and nodeNotDeletedPredicate.
pub fn included(node: &Node) -> bool {
    let excluded = match label(&node.meta.labels, EXCLUDE) {
        None => false,
        // The values that Go's strconv.ParseBool reads as false.
        Some(word) => !matches!(word, "0" | "f" | "F" | "false" | "False" | "FALSE"),
    };
    !excluded && !node.meta.is_deleting()
}

/// Converts a node to the form that providers receive.
pub fn node(node: &Node) -> NodeTarget {
    NodeTarget {
        name: node.meta.name.to_string(),
        provider_id: provider_id(node),
        addresses: instances::addresses(node),
        labels: node.meta.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
    }
}

/// Returns the nodes that may take traffic, ordered by name.
///
/// Unready nodes are included: health checks of the load balancer exclude them. Upstream: cloud-provider,
/// controllers/service, stableNodeSetPredicates.
pub fn nodes(all: &[Arc<Node>]) -> Vec<NodeTarget> {
    let mut nodes: Vec<_> =
        all.iter().filter(|node| included(node) && !leaving(node)).map(|record| node(record)).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}

/// Index of slices by their Service.
pub const BY_SERVICE: Index<EndpointSlice> = Index {
    name: "balanced-service",
    keys: |slice, emit| {
        if let Some(service) = slice.service() {
            emit(index_key((&*slice.meta.namespace, service)));
        }
    },
};

/// Index of slices by the pods behind their endpoints.
pub const BY_POD: Index<EndpointSlice> = Index {
    name: "balanced-pod",
    keys: |slice, emit| {
        for endpoint in &slice.contents.endpoints {
            if let Some(Target::Pod { namespace, name, .. }) = &endpoint.target {
                emit(index_key((&**namespace, &**name)));
            }
        }
    },
};

/// Returns the key of a pod in [`BY_POD`].
pub fn slices_with(pod: &Meta) -> u64 {
    index_key((&*pod.namespace, &*pod.name))
}

/// Returns the key of a Service in [`BY_SERVICE`].
pub fn slices_of(service: &Meta) -> u64 {
    index_key((&*service.namespace, &*service.name))
}

/// Returns the endpoints of a Service's slices, ordered by port name, address and port, without duplicates.
///
/// An unset condition `ready` means that the endpoint is ready (discovery/v1, EndpointConditions). Slices may list an
/// address twice, after a new pod got the address of a terminated pod. Then the ready endpoint counts, or else the
/// one that is not terminating.
pub fn endpoints(slices: &[Arc<EndpointSlice>]) -> Vec<EndpointTarget> {
    let mut targets = Vec::new();
    for contents in slices.iter().map(|slice| &slice.contents) {
        for port in contents.ports.iter() {
            let Some(number) = port.number.and_then(|number| u16::try_from(number).ok()) else { continue };
            targets.extend(contents.endpoints.iter().flat_map(|endpoint| of_endpoint(endpoint, &port.name, number)));
        }
    }
    let order = |a: &EndpointTarget, b: &EndpointTarget| {
        let place = (&a.port_name, a.address, a.port).cmp(&(&b.port_name, b.address, b.port));
        let state = |one: &EndpointTarget| (!one.ready, one.terminating, !one.serving);
        place.then_with(|| state(a).cmp(&state(b)))
    };
    targets.sort_by(order);
    targets.dedup_by(|a, b| (&a.port_name, a.address, a.port) == (&b.port_name, b.address, b.port));
    targets
}

/// Adds the provider ID of each endpoint's node, also of nodes that are not targets themselves.
pub fn add_provider_ids(endpoints: &mut [EndpointTarget], node: impl Fn(&str) -> Option<Arc<Node>>) {
    for endpoint in endpoints {
        let node = endpoint.node.as_deref().and_then(&node);
        endpoint.provider_id = node.and_then(|node| provider_id(&node));
    }
}

fn provider_id(node: &Node) -> Option<String> {
    let cloud = node.cloud.as_deref();
    cloud.map(|cloud| cloud.provider_id.to_string()).filter(|id| !id.is_empty())
}

fn of_endpoint<'a>(endpoint: &'a Endpoint, port: &'a str, number: u16) -> impl Iterator<Item = EndpointTarget> + 'a {
    let addresses = endpoint.addresses.iter().filter_map(|ip| match ip.canonical()? {
        Ip::V4(address) => Some(address.into()),
        Ip::V6(address) => Some(address.into()),
        Ip::Text(_) => None,
    });
    let conditions = endpoint.conditions;
    let pod = match &endpoint.target {
        Some(Target::Pod { namespace, name, uid }) => {
            Some(PodRef { namespace: namespace.to_string(), name: name.to_string(), uid: uid.to_string() })
        }
        _ => None,
    };
    addresses.map(move |address| EndpointTarget {
        port_name: port.to_owned(),
        address,
        port: number,
        node: endpoint.node.as_deref().map(str::to_owned),
        provider_id: None,
        zone: endpoint.zone.as_deref().map(str::to_owned),
        ready: conditions.ready.unwrap_or(true),
        serving: conditions.serving.or(conditions.ready).unwrap_or(true),
        terminating: conditions.terminating.unwrap_or(false),
        pod: pod.clone(),
    })
}
