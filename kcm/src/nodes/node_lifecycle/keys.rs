//! Maps changes of nodes to keys.

use std::sync::Arc;

use kinds::Node;
use kinds::meta::ObjectKey;
use runtime::queue::Queue;
use runtime::store::{Change, Store};

/// Enqueues the keys of changed objects.
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
