//! Indexes of pods that several controllers share.

use kinds::{Pod, Str};
use runtime::store::{Index, index_key};

/// Returns the index of pods by node, without pods that are not bound to a node. Look up by [`on_node`].
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

/// Returns the key in [`by_node`] of all pods that are bound to a node.
pub fn on_node(node: &str) -> u64 {
    index_key(("node", node))
}

/// Returns the index of pods by each of their labels. Look up by [`pair`].
pub const fn by_label() -> Index<Pod> {
    Index {
        name: "label",
        keys: |pod, emit| pod.meta.labels.iter().for_each(|label| emit(pair(&pod.meta.namespace, label))),
    }
}

/// Returns the key in [`by_label`] of all pods of a namespace that have a label with this value.
pub fn pair(namespace: &str, (key, value): &(Str, Str)) -> u64 {
    index_key((namespace, &**key, &**value))
}
