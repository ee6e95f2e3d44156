//! Maps changes of nodes and pods to the keys of pods.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::{Node, Pod};
use runtime::queue::Queue;
use runtime::store::{Change, Store};

use super::countdown::Countdowns;
use super::decide::no_execute_taints;
use crate::pods::indexes::{by_node, on_node};

/// Enqueues the pods that changes affect. A cache contains a change before its subscribers are called. So the
/// subscriber of the later of two changes (pod, taint of its node) finds the earlier one in the cache.
pub fn subscribe(
    nodes: &Arc<Store<Node>>,
    pods: &Arc<Store<Pod>>,
    queue: &Arc<Queue<ObjectKey>>,
    countdowns: &Arc<Countdowns>,
) {
    let (of_nodes, known, running) = (queue.clone(), pods.clone(), countdowns.clone());
    nodes.subscribe(move |change| {
        let Some(node) = change.new else { return };
        let has_changed_taints = node_with_changed_taints(change).is_some();
        // A new node may replace a deleted one, whose pods still have countdowns.
        if has_changed_taints || change.old.is_none() && !running.is_empty() {
            let pods = known.by_index(&by_node(), on_node(&node.meta.name));
            let keys = pods.iter().map(|pod| pod.meta.key());
            keys.filter(|key| has_changed_taints || running.contains(key)).for_each(|key| of_nodes.add(key));
        }
    });
    let (queue, nodes, countdowns) = (queue.clone(), nodes.clone(), countdowns.clone());
    pods.subscribe(move |change| {
        let Some(pod) = relevant_pod(change) else { return };
        let key = pod.meta.key();
        let node = ObjectKey { namespace: "".into(), name: pod.node.clone() };
        let tainted = || nodes.get(&node).is_some_and(|node| no_execute_taints(&node.taints).next().is_some());
        if countdowns.contains(&key) || change.new.is_some() && !pod.node.is_empty() && tainted() {
            queue.add(key);
        }
    });
}

/// Returns the node, if its `NoExecute` taints changed. The deletion of a node evicts no pod.
pub fn node_with_changed_taints<'a>(change: &Change<'a, Node>) -> Option<&'a Arc<Node>> {
    let new = change.new?;
    let before = change.old.map_or(&[][..], |old| &old.taints);
    (!no_execute_taints(before).eq(no_execute_taints(&new.taints))).then_some(new)
}

/// Returns the pod, if it was created, deleted or bound, or tolerates other taints now.
pub fn relevant_pod<'a>(change: &Change<'a, Pod>) -> Option<&'a Arc<Pod>> {
    let same = change.old.zip(change.new).is_some_and(|(old, new)| {
        (&old.meta.uid, &old.node, &old.tolerations) == (&new.meta.uid, &new.node, &new.tolerations)
    });
    change.new.or(change.old).filter(|_| !same)
}
