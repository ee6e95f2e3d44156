//! From changes to keys.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{Node, Service};
use runtime::queue::Queue;
use runtime::store::{Change, Store};

use super::decide::concerns;
use super::targets;

/// Changes of nodes are taken together over this time.
const NODES_TOGETHER: Duration = Duration::from_secs(1);

/// What is to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// One Service.
    Service(ObjectKey),
    /// The nodes: which of them may take traffic.
    Nodes,
    /// What the cloud holds that no Service wants.
    Leaks,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(key) => key.fmt(f),
            Self::Nodes => f.write_str("(nodes)"),
            Self::Leaks => f.write_str("(leaks)"),
        }
    }
}

/// The Service to look at after a change of it, if it had or has anything to do with a balancer.
pub fn of_service(change: &Change<'_, Service>) -> Option<Key> {
    let concerned = [change.old, change.new].into_iter().flatten().any(|service| concerns(service));
    let service = change.new.or(change.old).filter(|_| concerned)?;
    Some(Key::Service(service.meta.key()))
}

/// Whether a change of a node can change what balancers send traffic to (upstream: service controller,
/// shouldSyncUpdatedNode). The autoscaler's taint alone does not: connections on the node may end in peace.
pub fn nodes_differ(change: &Change<'_, Node>) -> bool {
    let seen = |node: &Arc<Node>| targets::included(node).then(|| targets::node(node));
    match (change.old, change.new) {
        (Some(old), Some(new)) => seen(old) != seen(new),
        _ => true,
    }
}

/// Connects stores with the queue.
pub fn subscribe(services: &Store<Service>, nodes: &Store<Node>, queue: &Arc<Queue<Key>>) {
    let changed = queue.clone();
    services.subscribe(move |change| of_service(change).into_iter().for_each(|key| changed.add(key)));
    let changed = queue.clone();
    nodes.subscribe(move |change| {
        if nodes_differ(change) {
            changed.add_after(Key::Nodes, NODES_TOGETHER);
        }
    });
}
