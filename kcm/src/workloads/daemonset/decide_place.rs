//! Policy: the nodes that run a DaemonSet's pods, with their pods.

use std::collections::HashMap;
use std::sync::Arc;

use kinds::placement::Placement;
use kinds::taint::{NO_EXECUTE, NO_SCHEDULE};
use kinds::{Node, Pod, Str, Taint, Toleration};

/// Tolerations of every daemon pod: these taints must neither evict the pod nor prevent its creation. The last one is
/// only for pods that use the host network. Upstream: pkg/controller/daemon/util, AddOrUpdateDaemonPodTolerations.
const ADDED: [Toleration<'static>; 7] = [
    Toleration::of("node.kubernetes.io/not-ready", NO_EXECUTE),
    Toleration::of("node.kubernetes.io/unreachable", NO_EXECUTE),
    Toleration::of("node.kubernetes.io/disk-pressure", NO_SCHEDULE),
    Toleration::of("node.kubernetes.io/memory-pressure", NO_SCHEDULE),
    Toleration::of("node.kubernetes.io/pid-pressure", NO_SCHEDULE),
    Toleration::of("node.kubernetes.io/unschedulable", NO_SCHEDULE),
    Toleration::of("node.kubernetes.io/network-unavailable", NO_SCHEDULE),
];

/// Returns the tolerations that daemon pods get in addition to those of their template.
pub fn added_tolerations(host_network: bool) -> &'static [Toleration<'static>] {
    if host_network { &ADDED } else { &ADDED[..ADDED.len() - 1] }
}

/// The fitness of a node for a DaemonSet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// The node should have a pod.
    pub runs: bool,
    /// An existing pod may stay.
    pub stays: bool,
}

impl Fit {
    /// No pod is created on the node, and none may stay.
    pub const NONE: Fit = Fit { runs: false, stays: false };
}

/// Returns the fitness of a node. Resources and ports do not count. With `compares_numbers`, tolerations may have the
/// operators `Lt` and `Gt`. Upstream: pkg/controller/daemon, nodeShouldRunDaemonPod.
pub fn fit(placement: &Placement, node: &Node, compares_numbers: bool) -> Fit {
    fit_by(placement, node, |taint| is_tolerated(placement, taint, compares_numbers))
}

fn is_tolerated(placement: &Placement, taint: &Taint, compares_numbers: bool) -> bool {
    let added = added_tolerations(placement.host_network);
    added.iter().any(|toleration| toleration.tolerates(taint, compares_numbers))
        || placement.tolerations.iter().any(|toleration| toleration.tolerates(taint, compares_numbers))
}

fn fit_by(placement: &Placement, node: &Node, mut is_tolerated: impl FnMut(&Taint) -> bool) -> Fit {
    let another = !placement.node_name.is_empty() && placement.node_name != node.meta.name;
    if another || !placement.selects(&node.meta) {
        return Fit::NONE;
    }
    let mut refused_by =
        |effect: &str| node.taints.iter().any(|taint| *taint.effect == *effect && !is_tolerated(taint));
    let stays = !refused_by(NO_EXECUTE);
    Fit { runs: stays && !refused_by(NO_SCHEDULE), stays }
}

/// A node with the DaemonSet's pods on it.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name.
    pub node: Str,
    /// Its fitness; `None` if the node does not exist.
    pub fit: Option<Fit>,
    /// The DaemonSet's pods that are bound to the node, or require it by affinity.
    pub pods: Vec<Arc<Pod>>,
}

impl Place {
    /// Returns true if the node should have a pod.
    pub fn runs(&self) -> bool {
        self.fit.is_some_and(|fit| fit.runs)
    }
}

/// Returns all nodes, followed by deleted ones that still have pods. Pods that have ended and are being deleted are
/// left out: they need no action. Upstream: pkg/controller/daemon, getNodesToDaemonPods.
pub fn places(placement: &Placement, nodes: &[Arc<Node>], pods: &[Arc<Pod>], compares_numbers: bool) -> Vec<Place> {
    let mut at: HashMap<Str, usize> = HashMap::with_capacity(nodes.len());
    let mut places: Vec<Place> = Vec::with_capacity(nodes.len());
    // Many nodes have equal taints, and a DaemonSet may have 100,000 tolerations: each distinct taint is compared once.
    let mut known: HashMap<(Str, Str, Str), bool> = HashMap::new();
    let mut is_tolerated = |taint: &Taint| {
        let key = (taint.key.clone(), taint.value.clone(), taint.effect.clone());
        *known.entry(key).or_insert_with(|| is_tolerated(placement, taint, compares_numbers))
    };
    for node in nodes {
        at.insert(node.meta.name.clone(), places.len());
        places.push(Place {
            node: node.meta.name.clone(),
            fit: Some(fit_by(placement, node, &mut is_tolerated)),
            pods: Vec::new(),
        });
    }
    for pod in pods.iter().filter(|pod| !(pod.is_terminal() && pod.meta.is_deleting())) {
        let Some(node) = pod.target_node() else { continue };
        let index = at.get(node).copied().unwrap_or_else(|| {
            at.insert(node.into(), places.len());
            places.push(Place { node: node.into(), fit: None, pods: Vec::new() });
            places.len() - 1
        });
        places[index].pods.push(pod.clone());
    }
    places
}
