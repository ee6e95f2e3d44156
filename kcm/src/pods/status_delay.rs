//! Delays of status writes, for the `StatusDebouncer`.

use std::time::Duration;

/// The delay of a change that no controller acts on.
pub const MINOR_CHANGE: Duration = Duration::from_secs(2);

/// The delay of counts that are still changing, because a rollout or a scaling is in progress.
pub const CHANGING_COUNTS: Duration = Duration::from_secs(3);

/// The delay for each pod that is expected to change.
const PER_POD: Duration = Duration::from_millis(80);

/// Returns the delay of a minor change while `pending` more pods are expected to change: proportional to them, and
/// [`MINOR_CHANGE`] at most.
pub fn for_pods(pending: i32) -> Duration {
    PER_POD.saturating_mul(pending.max(0).unsigned_abs()).min(MINOR_CHANGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_grows_with_pending_pods() {
        for (pending, millis) in [(-1, 0), (0, 0), (1, 80), (10, 800), (25, 2000), (26, 2000), (i32::MAX, 2000)] {
            assert_eq!(for_pods(pending).as_millis(), millis, "{pending} pending");
        }
    }
}
