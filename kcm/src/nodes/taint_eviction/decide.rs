//! Whether a pod may stay on its node, and for how long.

use std::time::Duration;

use kinds::taint::{NO_EXECUTE, Taint, Tolerations};
use tokio::time::Instant;

use super::countdown::Stage;

/// For how long a pod bears its node's taints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bears {
    /// Not at all.
    Never,
    /// For this time.
    For(Duration),
    /// For ever.
    Always,
}

/// Returns those taints that drive pods away.
pub fn executing(taints: &[Taint]) -> impl Iterator<Item = &Taint> {
    taints.iter().filter(|taint| &*taint.effect == NO_EXECUTE)
}

/// For how long a pod bears taints: each taint is answered by the first toleration that can, and the shortest of their
/// times counts (GetMatchingTolerations, getMinTolerationTime).
pub fn bears<'a>(taints: impl Iterator<Item = &'a Taint>, tolerations: Option<&Tolerations>, comparing: bool) -> Bears {
    let mut shortest = None;
    for taint in taints {
        let mut tolerations = tolerations.into_iter().flat_map(Tolerations::iter);
        let Some(answer) = tolerations.find(|toleration| toleration.tolerates(taint, comparing)) else {
            return Bears::Never;
        };
        let seconds = answer.seconds.map(|seconds| u64::try_from(seconds).unwrap_or(0));
        shortest = shortest.into_iter().chain(seconds).min();
    }
    shortest.map_or(Bears::Always, |seconds| Bears::For(Duration::from_secs(seconds)))
}

/// What is done about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It stays; a countdown ends.
    Stay,
    /// It is deleted now.
    Evict,
    /// Its time runs until then.
    Wait(Instant),
}

/// Decides on a pod. A countdown that runs is kept whatever finite time would be given now: an earlier beginning makes
/// it end sooner than a new one (processPodOnNode).
pub fn decide(bears: Bears, running: Option<&Stage>, now: Instant) -> Decision {
    match (bears, running) {
        (Bears::Always, _) => Decision::Stay,
        (Bears::Never, _) => Decision::Evict,
        (Bears::For(_), Some(Stage::Until(end))) if *end > now => Decision::Wait(*end),
        (Bears::For(_), Some(_)) => Decision::Evict,
        (Bears::For(time), None) if time.is_zero() => Decision::Evict,
        // A time that the clock cannot express does not end.
        (Bears::For(time), None) => now.checked_add(time).map_or(Decision::Stay, Decision::Wait),
    }
}
