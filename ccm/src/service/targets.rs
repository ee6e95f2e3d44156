//! Where balancers may send traffic: the nodes that are eligible.

use std::sync::Arc;

use kinds::Node;
use kinds::intern::label;
use providers::{Address, AddressKind, NodeTarget};

/// Keeps a node from balancers (core/v1, LabelNodeExcludeBalancers).
const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// The cluster autoscaler is about to remove the node (upstream: service controller, ToBeDeletedTaint).
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// Whether a node belongs to balancers, but for the autoscaler's taint (upstream: service controller,
/// nodeIncludedPredicate and nodeNotDeletedPredicate). A label that is neither true nor false excludes.
pub fn included(node: &Node) -> bool {
    let excluded = match label(&node.meta.labels, EXCLUDE) {
        None => false,
        // The words of Go's strconv.ParseBool.
        Some(word) => !matches!(word, "0" | "f" | "F" | "false" | "False" | "FALSE"),
    };
    !excluded && !node.meta.is_deleting()
}

/// A node as providers see it.
pub fn node(node: &Node) -> NodeTarget {
    let cloud = node.cloud.as_deref();
    let address = |address: &kinds::node_cloud::NodeAddress| {
        Some(Address { kind: AddressKind::parse(&address.kind)?, address: address.address.to_string() })
    };
    NodeTarget {
        name: node.meta.name.to_string(),
        provider_id: cloud.map(|cloud| cloud.provider_id.to_string()).filter(|id| !id.is_empty()),
        addresses: cloud.map(|cloud| cloud.addresses.iter().filter_map(address).collect()).unwrap_or_default(),
        labels: node.meta.labels.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect(),
    }
}

/// The nodes that may take traffic, ordered by name. Whether they are ready is for health checks to find out
/// (upstream: service controller, stableNodeSetPredicates).
pub fn nodes(all: &[Arc<Node>]) -> Vec<NodeTarget> {
    let tainted = |node: &Node| node.taints.iter().any(|taint| &*taint.key == TO_BE_DELETED);
    let mut nodes: Vec<_> =
        all.iter().filter(|node| included(node) && !tainted(node)).map(|record| node(record)).collect();
    nodes.sort_by(|a, b| a.name.cmp(&b.name));
    nodes
}
