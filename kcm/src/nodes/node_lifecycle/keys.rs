//! The keys of the loops, and the mapping of changes of nodes to keys.

use std::fmt;
use std::sync::Arc;

use kinds::Node;
use kinds::meta::ObjectKey;
use runtime::queue::{Queue, QueueKey};
use runtime::store::{Change, Store};

/// The two loops, which run concurrently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Loop {
    /// The pass over all nodes.
    Monitor,
    /// Taints for the nodes that wait for one.
    Taint,
}

impl Loop {
    /// Number of loops.
    pub const ALL: usize = 2;
}

impl QueueKey for Loop {}

impl fmt::Display for Loop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Monitor => "monitor",
            Self::Taint => "taint",
        })
    }
}

/// Enqueues the keys of changed nodes.
pub fn subscribe(nodes: &Arc<Store<Node>>, queue: &Arc<Queue<ObjectKey>>) {
    let queue = queue.clone();
    nodes.subscribe(move |change| {
        if let Some(key) = of_node(change) {
            queue.add(key);
        }
    });
}

/// Returns the key of a node whose taints or labels may have to change. A heartbeat changes neither.
pub fn of_node(change: &Change<'_, Node>) -> Option<ObjectKey> {
    let new = change.new?;
    let statuses = |node: &Node| -> Vec<_> {
        node.conditions.iter().map(|condition| (condition.kind.clone(), condition.status.clone())).collect()
    };
    let same = change.old.is_some_and(|old| {
        old.meta.labels == new.meta.labels
            && (old.unschedulable, &old.taints) == (new.unschedulable, &new.taints)
            && statuses(old) == statuses(new)
    });
    (!same).then(|| new.meta.key())
}
