//! Pods by the node that they are bound to.

use kinds::Pod;
use runtime::store::{Index, index_key};

/// Index of pods by node; those that are bound to none are not in it. Look up by [`on_node`].
pub const fn by_node() -> Index<Pod> {
    Index {
        name: "node",
        keys: |pod, emit| {
            if !pod.node.is_empty() {
                emit(on_node(&pod.node));
            }
        },
    }
}

/// The key of all pods that are bound to a node.
pub fn on_node(node: &str) -> u64 {
    index_key(("node", node))
}
