//! From a change of a node to work on it.

use std::fmt;

use kinds::Node;
use kinds::meta::ObjectKey;
use runtime::store::{Change, Index, index_key};

use super::decide::reconciled_labels;
use crate::cloud::taints::is_uninitialized;

/// What there is to do.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Initialise this node, or bring its labels in line.
    Node(ObjectKey),
    /// Compare all nodes' addresses with the cloud's.
    Addresses,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => f.write_str(&node.name),
            Self::Addresses => f.write_str("the addresses of all nodes"),
        }
    }
}

/// Nodes that the cloud has been asked about.
pub(super) const INITIALIZED: Index<Node> = Index {
    name: "initialized",
    keys: |node, emit| {
        if !is_uninitialized(node) {
            emit(initialized());
        }
    },
};

/// The one value of [`INITIALIZED`].
pub(super) fn initialized() -> u64 {
    index_key("initialized")
}

/// The node to look at, if there may be something to do about it.
pub(super) fn of(change: &Change<'_, Node>) -> Option<Key> {
    let key = Key::Node(change.new.or(change.old)?.meta.key());
    let Some(node) = change.new else { return Some(key) };
    (is_uninitialized(node) || !reconciled_labels(&node.meta.labels).is_empty()).then_some(key)
}
