//! Policy: the effect of Nodes that cannot be decoded.
//!
//! Pods on such a node are not deleted, and a rolling update counts the node as one that should have a pod. The pods of
//! all other nodes are created, deleted and replaced as usual.

use std::collections::HashSet;

use kinds::Str;
use kinds::meta::ObjectKey;

use super::decide::Plan;
use super::decide_place::Place;
use super::decide_roll::Bounds;

/// The names of the nodes whose newest states cannot be decoded.
#[derive(Debug, Default)]
pub struct UnknownNodes(HashSet<Str>);

impl UnknownNodes {
    /// Creates the set from the keys of undecodable Nodes.
    pub fn new(undecodable: HashSet<ObjectKey>) -> Self {
        Self(undecodable.into_iter().map(|key| key.name).collect())
    }

    /// Returns true if the newest state of the node cannot be decoded.
    pub fn contains(&self, node: &str) -> bool {
        self.0.contains(node)
    }

    /// Removes the deletions of pods on these nodes from a plan, with their events. Returns the number of pods that are
    /// kept.
    pub fn keep_pods(&self, plan: &mut Plan) -> usize {
        let planned = plan.delete.len();
        plan.delete.retain(|pod| !pod.target_node().is_some_and(|node| self.0.contains(node)));
        plan.notices.retain(|(node, _)| !self.0.contains(node));
        planned - plan.delete.len()
    }

    /// Returns the bounds of a rolling update in which each of these nodes should have a pod. A node without a pod
    /// counts as unavailable.
    pub fn limit(&self, bounds: Bounds, places: &[Place]) -> Bounds {
        let known = || places.iter().filter(|place| self.0.contains(&place.node));
        let running = known().filter(|place| place.runs()).count();
        let counted = known().filter(|place| place.runs() || !place.pods.is_empty()).count();
        Bounds {
            desired: bounds.desired + self.0.len() - running,
            unavailable: bounds.unavailable.saturating_sub(self.0.len() - counted),
            surge: bounds.surge,
        }
    }
}
