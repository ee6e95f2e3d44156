//! Maps changes of objects to keys of the queue.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{EndpointSlice, GatedPod, Node, Service};
use runtime::queue::{Queue, QueueKey};
use runtime::store::{Change, Store};

use super::decide::{self, concerns};
use super::load_balancer_state::LoadBalancerStates;
use super::targets;

/// Time over which new targets are coalesced. Changes of nodes that are targets already are not delayed.
const NODE_BATCH_WINDOW: Duration = Duration::from_secs(1);

/// A unit of work of this controller.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// One Service.
    Service(ObjectKey),
    /// The set of nodes that may receive traffic.
    Nodes,
    /// The audit for leaked resources.
    Leaks,
}

impl QueueKey for Key {
    fn namespace(&self) -> &str {
        match self {
            Self::Service(key) => &key.namespace,
            Self::Nodes | Self::Leaks => "",
        }
    }
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

/// Returns the key of a changed Service if it had, has or requests a load balancer.
pub fn of_service(change: &Change<'_, Service>) -> Option<Key> {
    let concerned = [change.old, change.new].into_iter().flatten().any(|service| concerns(service));
    let service = change.new.or(change.old).filter(|_| concerned)?;
    Some(Key::Service(service.meta.key()))
}

/// Returns the delay between a change of a node and the comparison of all load balancers' targets; `None` if the
/// change cannot affect the targets.
///
/// Upstream: cloud-provider, controllers/service, shouldSyncUpdatedNode. Differs from upstream: taints of autoscalers
/// count. Otherwise the node would get new connections until it is deleted.
pub fn delay_of_node(change: &Change<'_, Node>) -> Option<Duration> {
    let target = |node: &Arc<Node>| (targets::included(node) && !targets::leaving(node)).then(|| targets::node(node));
    let (old, new) = (change.old.map(target), change.new.map(target));
    match (old, new) {
        (Some(old), Some(new)) if old == new => None,
        (Some(Some(_)), _) => Some(Duration::ZERO),
        _ => Some(NODE_BATCH_WINDOW),
    }
}

/// Returns the Services that a slice belonged and belongs to: its label may change.
pub fn of_slice(change: &Change<'_, EndpointSlice>) -> BTreeSet<ObjectKey> {
    let slices = [change.old, change.new].into_iter().flatten();
    let key = |slice: &Arc<EndpointSlice>| {
        Some(ObjectKey { namespace: slice.meta.namespace.clone(), name: slice.service()?.into() })
    };
    slices.filter_map(key).collect()
}

/// Subscribes to changes of Services and nodes, and adds their keys to the queue.
pub fn subscribe(services: &Store<Service>, nodes: &Store<Node>, queue: &Arc<Queue<Key>>) {
    let changed = queue.clone();
    services.subscribe(move |change| {
        if let Some(key) = of_service(change) {
            changed.add(key);
        }
    });
    let changed = queue.clone();
    nodes.subscribe(move |change| match delay_of_node(change) {
        Some(Duration::ZERO) => changed.add(Key::Nodes),
        Some(delay) => changed.add_after(Key::Nodes, delay),
        None => {}
    });
}

/// Returns the Services whose load balancers also send traffic to a changed Service, if the change matters to them.
pub fn referring(change: &Change<'_, Service>, states: &LoadBalancerStates) -> Vec<ObjectKey> {
    let Some(service) = change.new.or(change.old).filter(|_| states.has_references()) else { return Vec::new() };
    let referring = states.referring(&service.meta.key());
    let relevant = |service: &Arc<Service>| decide::other(service);
    if referring.is_empty() || change.old.map(relevant) == change.new.map(relevant) {
        return Vec::new();
    }
    referring
}

/// Subscribes to Services, and adds the Services that refer to a changed one to the queue.
pub fn subscribe_others<S: Send + Sync + 'static>(
    services: &Store<Service>,
    queue: &Arc<Queue<Key>>,
    balancers: &Arc<S>,
    states: fn(&S) -> &LoadBalancerStates,
) {
    let (changed, balancers) = (queue.clone(), balancers.clone());
    services.subscribe(move |change| {
        referring(change, states(&balancers)).into_iter().for_each(|key| changed.add(Key::Service(key)));
    });
}

/// Subscribes to slices. When one changes, adds to the queue the Services whose load balancers have its endpoints as
/// targets. The changes for one Service are coalesced.
pub fn subscribe_slices<S: Send + Sync + 'static>(
    slices: &Store<EndpointSlice>,
    queue: &Arc<Queue<Key>>,
    balancers: &Arc<S>,
    states: fn(&S) -> &LoadBalancerStates,
) {
    let (changed, balancers) = (queue.clone(), balancers.clone());
    slices.subscribe(move |change| {
        for key in of_slice(change).iter().flat_map(|key| states(&balancers).with_endpoints_of(key)) {
            changed.add_coalesced(Key::Service(key));
        }
    });
}

/// Returns true if a pod has readiness gates with this prefix, and a change alters its gates, or begins or ends the
/// time in which the pod waits only for gates with this prefix.
pub fn gates_differ(change: &Change<'_, GatedPod>, prefix: &str) -> bool {
    let relevant = |pod: &Arc<GatedPod>| (pod.waits_only_for(prefix), pod.gates.clone());
    let gated = [change.old, change.new].into_iter().flatten().any(|pod| pod.prefixed_gates(prefix).next().is_some());
    gated && change.old.map(relevant) != change.new.map(relevant)
}

/// Subscribes to pods. If `gates_differ` returns true for a change, adds to the queue the Services whose load balancers
/// have endpoints of the pod as targets.
pub fn subscribe_pods<S: Send + Sync + 'static>(
    (pods, prefix): (&Store<GatedPod>, &'static str),
    slices: &Arc<Store<EndpointSlice>>,
    queue: &Arc<Queue<Key>>,
    balancers: &Arc<S>,
    states: fn(&S) -> &LoadBalancerStates,
) {
    let (slices, changed, balancers) = (slices.clone(), queue.clone(), balancers.clone());
    pods.subscribe(move |change| {
        let Some(pod) = change.new.or(change.old).filter(|_| gates_differ(change, prefix)) else { return };
        for slice in slices.by_index(&targets::BY_POD, targets::slices_with(&pod.meta)) {
            let Some(name) = slice.service() else { continue };
            let key = ObjectKey { namespace: slice.meta.namespace.clone(), name: name.into() };
            for key in states(&balancers).with_endpoints_of(&key) {
                changed.add_coalesced(Key::Service(key));
            }
        }
    });
}
