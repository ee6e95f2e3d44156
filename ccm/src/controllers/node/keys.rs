//! Maps a change of a node to a key.

use std::fmt;

use kinds::Node;
use kinds::meta::ObjectKey;
use runtime::queue::QueueKey;
use runtime::store::{Change, Index, index_key};

use super::decide::reconciled_labels;
use crate::cloud::taints::is_uninitialized;

/// A unit of work of this controller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    /// Initialize this node, or reconcile its labels.
    Node(ObjectKey),
    /// Compare all nodes with their instances.
    Updates,
}

impl QueueKey for Key {}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => f.write_str(&node.name),
            Self::Updates => f.write_str("the instances of all nodes"),
        }
    }
}

/// Index of initialized nodes.
pub(super) const INITIALIZED: Index<Node> = Index {
    name: "initialized",
    keys: |node, emit| {
        if !is_uninitialized(node) {
            emit(initialized());
        }
    },
};

/// Returns the only key of [`INITIALIZED`].
pub(super) fn initialized() -> u64 {
    index_key("initialized")
}

/// Returns the key of a node that was deleted, is uninitialized, or has a beta label whose stable successor is missing
/// or has another value (see [`reconciled_labels`]).
pub(super) fn key_of_change(change: &Change<'_, Node>) -> Option<Key> {
    let key = Key::Node(change.new.or(change.old)?.meta.key());
    let Some(node) = change.new else { return Some(key) };
    (is_uninitialized(node) || !reconciled_labels(&node.meta.labels).is_empty()).then_some(key)
}
