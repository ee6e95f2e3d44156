//! Policy: the time for which a pod may stay on its tainted node.

use std::time::Duration;

use kinds::taint::{NO_EXECUTE, Taint, Tolerations};
use tokio::time::Instant;

use super::countdown::Stage;

/// The time for which a pod tolerates its node's taints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToleratedTime {
    /// A taint is not tolerated: the pod is evicted immediately.
    Never,
    /// The pod is evicted after this time.
    For(Duration),
    /// The pod is not evicted.
    Always,
}

/// Returns the taints that evict pods.
pub fn no_execute_taints(taints: &[Taint]) -> impl Iterator<Item = &Taint> {
    taints.iter().filter(|taint| &*taint.effect == NO_EXECUTE)
}

/// Returns the time for which a pod tolerates taints: each taint is matched with the first toleration that fits, and
/// the shortest of their times counts. Upstream: pkg/apis/core/v1/helper, GetMatchingTolerations;
/// pkg/controller/tainteviction, getMinTolerationTime.
pub fn tolerated_time<'a>(
    taints: impl Iterator<Item = &'a Taint>,
    tolerations: Option<&Tolerations>,
    compares_numbers: bool,
) -> ToleratedTime {
    let mut shortest = None;
    for taint in taints {
        let mut tolerations = tolerations.into_iter().flat_map(Tolerations::iter);
        let Some(matching) = tolerations.find(|toleration| toleration.tolerates(taint, compares_numbers)) else {
            return ToleratedTime::Never;
        };
        let seconds = matching.seconds.map(|seconds| u64::try_from(seconds).unwrap_or(0));
        shortest = shortest.into_iter().chain(seconds).min();
    }
    shortest.map_or(ToleratedTime::Always, |seconds| ToleratedTime::For(Duration::from_secs(seconds)))
}

/// The action for a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The pod stays; a running countdown is cancelled.
    Stay,
    /// The pod is deleted now.
    Evict,
    /// The countdown of the pod ends at this time.
    Wait(Instant),
}

/// Returns the action for a pod. A running countdown is kept if the tolerated time changes to another finite time: a
/// new countdown would begin later. Upstream: pkg/controller/tainteviction, processPodOnNode.
pub fn decide(tolerated_time: ToleratedTime, running: Option<&Stage>, now: Instant) -> Decision {
    match (tolerated_time, running) {
        (ToleratedTime::Always, _) => Decision::Stay,
        (ToleratedTime::Never, _) => Decision::Evict,
        (ToleratedTime::For(_), Some(Stage::Until(end))) if *end > now => Decision::Wait(*end),
        (ToleratedTime::For(_), Some(_)) => Decision::Evict,
        (ToleratedTime::For(time), None) if time.is_zero() => Decision::Evict,
        // A pod whose tolerated time ends beyond the range of the clock is never evicted.
        (ToleratedTime::For(time), None) => now.checked_add(time).map_or(Decision::Stay, Decision::Wait),
    }
}
