//! Delays of status writes, for the `StatusDebouncer`.

use std::time::Duration;

/// The delay of a change that no controller acts on.
pub const MINOR_CHANGE: Duration = Duration::from_secs(2);

/// The delay of counts that are still changing, because a rollout or a scaling is in progress.
pub const CHANGING_COUNTS: Duration = Duration::from_secs(3);

/// The delay for each pod that is not counted yet.
const PER_POD: Duration = Duration::from_millis(80);
/// The longest delay for pods that are not counted yet.
const MAX_FOR_PODS: Duration = Duration::from_secs(4);

/// Returns the delay of a status that counts `counted` pods while `pending` more are expected: proportional to the
/// pending pods and to their share of all pods.
pub fn for_pods(counted: i32, pending: i32) -> Duration {
    let (counted, pending) = (counted.max(0).unsigned_abs(), pending.max(0).unsigned_abs());
    let share = f64::from(pending) / f64::from((counted.saturating_add(pending)).max(1));
    PER_POD.saturating_mul(pending).min(MAX_FOR_PODS).mul_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_grows_with_pending_pods_and_shrinks_with_their_share() {
        let rows = [(0, 0, 0), (25, 0, 0), (0, 1, 80), (1, 1, 40), (1, 2, 107), (0, 25, 2000), (25, 25, 1000)];
        for (counted, pending, millis) in rows {
            let delay = for_pods(counted, pending);
            assert_eq!((delay.as_secs_f64() * 1000.0).round() as i32, millis, "{counted} counted, {pending} pending");
        }
        assert_eq!(for_pods(0, i32::MAX), MAX_FOR_PODS);
        assert!(for_pods(900, 100) < MAX_FOR_PODS / 9);
    }
}
