//! The order in which surplus pods are deleted.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use jiff::Timestamp;
use kinds::pod::Phase;
use kinds::{Pod, Str, Time, Uid};

/// Position of a pod in the order of deletion, with ages by their order of magnitude. The smallest is deleted first.
type Rank = (bool, Phase, bool, i32, Reverse<usize>, Option<RoughAge>, Reverse<i32>, Reverse<i32>, RoughAge, Uid);

/// The order of magnitude of an age. Unknown first, then young before old.
type RoughAge = Option<u32>;

/// The order in which the surplus pods of a ReplicaSet are deleted. Upstream: pkg/controller, ActivePodsWithRanks.
///
/// Ages count by their order of magnitude, so that any of several pods of about the same age may be deleted.
#[derive(Debug)]
pub struct Ranking {
    /// Number of related pods on each node.
    related_on_node: HashMap<Str, usize>,
    /// The annotation with the deletion cost is used (gate PodDeletionCost).
    uses_cost: bool,
    now: Timestamp,
}

impl Ranking {
    /// Returns the order for pods of a ReplicaSet. One of its criteria is the number of active pods of `related` on a
    /// pod's node.
    pub fn new(related: &[Arc<Pod>], uses_cost: bool, now: Timestamp) -> Self {
        let mut related_on_node = HashMap::new();
        for pod in related.iter().filter(|pod| pod.is_active()) {
            *related_on_node.entry(pod.node.clone()).or_default() += 1;
        }
        Self { related_on_node, uses_cost, now }
    }

    /// Returns the `count` pods that are deleted first.
    pub fn first(&self, mut pods: Vec<Arc<Pod>>, count: usize) -> Vec<Arc<Pod>> {
        pods.sort_by_cached_key(|pod| self.rank(pod));
        pods.truncate(count);
        pods
    }

    fn rank(&self, pod: &Pod) -> Rank {
        (
            !pod.node.is_empty(),
            pod.phase,
            pod.ready,
            if self.uses_cost { pod.deletion_cost } else { 0 },
            Reverse(self.related_on_node.get(&pod.node).copied().unwrap_or(0)),
            pod.ready.then(|| rough_age(pod.ready_since, self.now)),
            Reverse(pod.restarts),
            Reverse(pod.sidecar_restarts),
            rough_age(pod.meta.created, self.now),
            pod.meta.uid.clone(),
        )
    }
}

/// Returns the number of bits of an age in nanoseconds; zero for a time in the future, `None` for an unknown one.
fn rough_age(since: Time, now: Timestamp) -> RoughAge {
    let nanos = now.as_nanosecond() - i128::from(since.0) * 1_000_000_000;
    (!since.is_zero())
        .then(|| u128::try_from(nanos).ok().filter(|nanos| *nanos > 0).map_or(0, |nanos| nanos.ilog2() + 1))
}

/// Position of a pod in the order of deletion, with exact ages. The smallest is deleted first.
type ExactRank = (bool, Phase, bool, ExactAge, Reverse<i32>, Reverse<i32>, ExactAge, Uid);

/// Unknown first, then young before old.
type ExactAge = (bool, Reverse<i64>);

/// Returns the position of a pod in the order in which the surplus pods of a Job are deleted. Upstream: pkg/controller,
/// ActivePods.
pub fn exact_rank(pod: &Pod) -> impl Ord + use<> {
    let age = |since: Time| (!since.is_zero(), Reverse(since.0));
    let rank: ExactRank = (
        !pod.node.is_empty(),
        pod.phase,
        pod.ready,
        if pod.ready { age(pod.ready_since) } else { age(Time::default()) },
        Reverse(pod.restarts),
        Reverse(pod.sidecar_restarts),
        age(pod.meta.created),
        pod.meta.uid.clone(),
    );
    rank
}
