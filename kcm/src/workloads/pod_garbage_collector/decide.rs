//! Policy: the pods to delete, and the reasons.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kinds::pod::DISRUPTION_TARGET;
use kinds::{Node, Pod, Str, Time};
use runtime::lock::lock;
use serde_json::{Value, json};

use crate::pods::disruption_target;

/// The taint with which an administrator declares a node out of service.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Counts over all pods, updated with each change: finished pods, and pods per node.
#[derive(Debug, Default)]
pub struct Census {
    pub(super) finished: AtomicUsize,
    nodes: Mutex<HashMap<Str, usize>>,
}

impl Census {
    /// Applies one change of a pod.
    pub fn apply(&self, old: Option<&Pod>, new: Option<&Pod>) {
        let ended = |pod: Option<&Pod>| pod.is_some_and(Pod::is_terminal);
        match (ended(old), ended(new)) {
            (false, true) => drop(self.finished.fetch_add(1, Ordering::Relaxed)),
            (true, false) => drop(self.finished.fetch_sub(1, Ordering::Relaxed)),
            _ => {}
        }
        let node = |pod: Option<&Pod>| pod.map(|pod| pod.node.clone()).filter(|node| !node.is_empty());
        let (before, after) = (node(old), node(new));
        if before == after {
            return;
        }
        let mut nodes = lock(&self.nodes);
        if let Some(before) = before {
            let left = nodes.get(&before).map_or(0, |count| count - 1);
            if left == 0 {
                nodes.remove(&before)
            } else {
                nodes.insert(before, left)
            };
        }
        if let Some(after) = after {
            *nodes.entry(after).or_default() += 1;
        }
    }

    /// Returns the nodes that have pods and for which `known` is false.
    pub fn missing(&self, known: impl Fn(&Str) -> bool) -> Vec<Str> {
        let nodes = lock(&self.nodes);
        nodes.keys().filter(|node| !known(node)).cloned().collect()
    }
}

/// Returns the number of finished pods beyond the threshold; a threshold of zero or less keeps all.
pub fn surplus(finished: usize, threshold: i32) -> usize {
    usize::try_from(threshold).ok().filter(|max| *max > 0).map_or(0, |max| finished.saturating_sub(max))
}

/// Returns the `count` pods that are deleted first: evicted ones, then the oldest, then by name. Upstream:
/// pkg/controller/podgc, byEvictionAndCreationTimestamp.
pub fn first_deleted(mut finished: Vec<Arc<Pod>>, count: usize) -> Vec<Arc<Pod>> {
    let kept = |pod: &Pod| !pod.disruption.as_ref().is_some_and(|disruption| disruption.evicted);
    finished.sort_by(|a, b| {
        kept(a)
            .cmp(&kept(b))
            .then_with(|| a.meta.by_creation(&b.meta))
            .then_with(|| a.meta.namespace.cmp(&b.meta.namespace))
    });
    finished.truncate(count);
    finished
}

/// The reason for which a pod is force-deleted; its text is for metrics and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// There are too many finished pods.
    Terminated,
    /// The pod is being deleted, and its node is out of service and not ready.
    OutOfService,
    /// The pod's node was deleted.
    Orphaned,
    /// The pod is being deleted and was never bound to a node.
    Unscheduled,
}

impl Reason {
    /// Returns the metric's label value. Upstream: pkg/controller/podgc/metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Terminated => "terminated",
            Self::OutOfService => "out-of-service",
            Self::Orphaned => "orphaned",
            Self::Unscheduled => "unscheduled",
        }
    }
}

/// Returns the reason to force-delete a pod that is being deleted; `node` is its node, if it is cached.
pub fn stuck(pod: &Pod, node: Option<&Node>) -> Option<Reason> {
    if !pod.meta.is_deleting() {
        return None;
    }
    if pod.node.is_empty() {
        return Some(Reason::Unscheduled);
    }
    let out_of_service =
        |node: &Node| node.ready() != Some("True") && node.taints.iter().any(|taint| &*taint.key == OUT_OF_SERVICE);
    node.is_some_and(out_of_service).then_some(Reason::OutOfService)
}

/// The condition after which `DisruptionTarget` is placed. Every pod with a node has this condition, usually as the
/// last one of the list.
const LAST_CONDITION: &str = "PodScheduled";

/// Returns the patch that sets a pod's phase to failed; `None` if it has ended already. A pod whose node was deleted
/// also gets a condition with that reason.
pub fn failure(pod: &Pod, reason: Reason, now: jiff::Timestamp) -> Option<Value> {
    if pod.is_terminal() {
        return None;
    }
    let mut status = json!({"phase": "Failed", "observedGeneration": pod.meta.generation});
    if reason == Reason::Orphaned {
        let mut condition = json!({
            "type": DISRUPTION_TARGET, "status": "True", "observedGeneration": pod.meta.generation,
            "reason": "DeletionByPodGC", "message": "PodGC: node no longer exists",
        });
        // A condition that is true already keeps its transition time.
        if pod.disruption.as_ref().is_none_or(|disruption| disruption.target_since.is_none()) {
            let seconds = jiff::Timestamp::from_second(now.as_second()).unwrap_or(now);
            condition["lastTransitionTime"] = seconds.to_string().into();
            status[disruption_target::ORDER] = disruption_target::order_after(LAST_CONDITION);
        }
        status["conditions"] = json!([condition]);
    }
    Some(json!({"metadata": {"uid": pod.meta.uid.to_string()}, "status": status}))
}

/// Returns true if a pod that was force-deleted is due for another attempt. A pod with finalizers stays, and an early
/// attempt would change nothing.
pub fn is_due_again(since: Time, now: Time) -> bool {
    const RETRY_AFTER_SECONDS: i64 = 600;
    now.0 - since.0 >= RETRY_AFTER_SECONDS
}
