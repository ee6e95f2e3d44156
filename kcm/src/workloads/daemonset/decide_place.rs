//! Where a DaemonSet's pods belong, and which pods are there.

use std::collections::HashMap;
use std::sync::Arc;

use kinds::placement::Placement;
use kinds::taint::{NO_EXECUTE, NO_SCHEDULE};
use kinds::{Node, Pod, Str, Taint, Toleration};

/// What every daemon pod bears: what is wrong with a node is no reason to take its daemons away
/// (pkg/controller/daemon/util, AddOrUpdateDaemonPodTolerations). The last one is for those that do without the pod
/// network.
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

/// What a node is to a DaemonSet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fit {
    /// A pod should be there.
    pub runs: bool,
    /// A pod that is there may stay.
    pub stays: bool,
}

impl Fit {
    /// Nothing is to run there, and nothing to stay.
    pub const NONE: Fit = Fit { runs: false, stays: false };
}

/// Judges a node (pkg/controller/daemon, nodeShouldRunDaemonPod). Resources and ports do not count. `comparing` says
/// whether tolerations may compare numbers.
pub fn fit(placement: &Placement, node: &Node, comparing: bool) -> Fit {
    let another = !placement.node_name.is_empty() && placement.node_name != node.meta.name;
    if another || !placement.selects(&node.meta) {
        return Fit::NONE;
    }
    let added = added_tolerations(placement.host_network);
    let borne = |taint: &Taint| {
        added.iter().any(|toleration| toleration.tolerates(taint, comparing))
            || placement.tolerations.iter().any(|toleration| toleration.tolerates(taint, comparing))
    };
    let refused_by = |effect: &str| node.taints.iter().any(|taint| *taint.effect == *effect && !borne(taint));
    let stays = !refused_by(NO_EXECUTE);
    Fit { runs: stays && !refused_by(NO_SCHEDULE), stays }
}

/// A node as far as a DaemonSet is concerned.
#[derive(Debug, Clone)]
pub struct Place {
    /// Its name.
    pub node: Str,
    /// What it is to the DaemonSet; `None` when there is no such node.
    pub fit: Option<Fit>,
    /// The DaemonSet's pods that are there or aimed at it.
    pub pods: Vec<Arc<Pod>>,
}

impl Place {
    /// Returns true if a pod should be here.
    pub fn runs(&self) -> bool {
        self.fit.is_some_and(|fit| fit.runs)
    }
}

/// Returns all nodes, followed by deleted ones that still have pods. Pods that have ended and are being deleted are
/// left out: there is nothing more to do about them (pkg/controller/daemon, getNodesToDaemonPods).
pub fn places(placement: &Placement, nodes: &[Arc<Node>], pods: &[Arc<Pod>], comparing: bool) -> Vec<Place> {
    let mut at: HashMap<Str, usize> = HashMap::with_capacity(nodes.len());
    let mut places: Vec<Place> = Vec::with_capacity(nodes.len());
    for node in nodes {
        at.insert(node.meta.name.clone(), places.len());
        places.push(Place {
            node: node.meta.name.clone(),
            fit: Some(fit(placement, node, comparing)),
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
