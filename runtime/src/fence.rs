//! Whether this process may still write as the leader, told by its own monotonic clock alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Leading, but the lease was not renewed for too long: the health check `leaderElection` fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("leading, but the lease was last renewed {since:?} ago (at most {allowed:?}): the election is stuck")]
pub struct Stale {
    /// How long ago the last successful renewal began.
    pub since: Duration,
    /// How long ago it may have been.
    pub allowed: Duration,
}

/// A check before every write: it holds only while the lease that we renewed last certainly has not run out.
///
/// The lease lasts from the moment the last successful request was *begun*; a candidate waits at least as long from
/// the later moment at which it saw that renewal, so two fences never hold at once. The clock is `CLOCK_MONOTONIC`:
/// it goes on while the process is stopped, so a fence that ran out meanwhile is down at once on resume. It does not
/// count while the whole machine is suspended: a suspended machine must not host a manager.
#[derive(Debug, Clone)]
pub struct Fence {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    epoch: Instant,
    lasts: Duration,
    /// Nanoseconds from `epoch` to the begin of the last successful renewal plus one; zero: none.
    renewed: AtomicU64,
    leading: AtomicBool,
    slow_renewals: AtomicU64,
}

impl Fence {
    /// The fence of a process without leader election: it always holds.
    pub fn open() -> Self {
        Self { shared: None }
    }

    pub(crate) fn shut(lasts: Duration) -> Self {
        let shared = Shared {
            epoch: Instant::now(),
            lasts,
            renewed: AtomicU64::new(0),
            leading: AtomicBool::new(false),
            slow_renewals: AtomicU64::new(0),
        };
        Self { shared: Some(Arc::new(shared)) }
    }

    /// Whether a write may be sent now.
    pub fn holds(&self) -> bool {
        match &self.shared {
            None => true,
            Some(shared) => self.last_renewed().is_some_and(|begun| Instant::now() < begun + shared.lasts),
        }
    }

    /// Whether this process is the leader as far as it knows: from acquiring until losing or releasing;
    /// the value of `leader_election_master_status`.
    pub fn is_leader(&self) -> bool {
        let Some(shared) = &self.shared else { return true };
        shared.leading.load(Ordering::Acquire)
    }

    /// When the last successful request that made or kept us leader was begun; none when not leading.
    pub fn last_renewed(&self) -> Option<Instant> {
        let shared = self.shared.as_ref()?;
        let nanos = shared.renewed.load(Ordering::Acquire).checked_sub(1)?;
        Some(shared.epoch + Duration::from_nanos(nanos))
    }

    /// How many renewals had to read the lease first: the value of `leader_election_slowpath_total`.
    pub fn slow_renewals(&self) -> u64 {
        let Some(shared) = &self.shared else { return 0 };
        shared.slow_renewals.load(Ordering::Relaxed)
    }

    /// The health check `leaderElection`: fails if we lead and did not renew for the lease's duration plus `tolerance`
    /// (20 s in the managers); upstream: `tools/leaderelection`, `LeaderElector.Check`.
    ///
    /// # Errors
    /// `Stale`, with both durations.
    pub fn check(&self, tolerance: Duration) -> Result<(), Stale> {
        let (Some(shared), Some(begun)) = (&self.shared, self.last_renewed()) else {
            return Ok(());
        };
        let (since, allowed) = (begun.elapsed(), shared.lasts + tolerance);
        if self.is_leader() && since > allowed {
            return Err(Stale { since, allowed });
        }
        Ok(())
    }

    pub(crate) fn renew(&self, begun: Instant) {
        if let Some(shared) = &self.shared {
            let nanos = begun.saturating_duration_since(shared.epoch).as_nanos();
            let stored = u64::try_from(nanos).unwrap_or(u64::MAX - 1) + 1;
            shared.renewed.store(stored, Ordering::Release);
            shared.leading.store(true, Ordering::Release);
        }
    }

    pub(crate) fn revoke(&self) {
        if let Some(shared) = &self.shared {
            shared.renewed.store(0, Ordering::Release);
            shared.leading.store(false, Ordering::Release);
        }
    }

    pub(crate) fn count_slow_renewal(&self) {
        if let Some(shared) = &self.shared {
            shared.slow_renewals.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(15);
    const TOLERANCE: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn holds_from_the_begin_of_the_request_for_the_duration_of_the_lease() {
        let fence = Fence::shut(LASTS);
        assert!(!fence.holds() && !fence.is_leader());
        let begun = Instant::now();
        tokio::time::advance(Duration::from_secs(4)).await;
        fence.renew(begun);
        assert!(fence.holds() && fence.is_leader());
        assert_eq!(fence.last_renewed(), Some(begun));
        tokio::time::advance(Duration::from_millis(10_999)).await;
        assert!(fence.holds());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!fence.holds());
        assert!(fence.is_leader(), "only the election says that it is over");
    }

    #[tokio::test(start_paused = true)]
    async fn the_health_check_fails_only_for_a_leader_that_does_not_renew() {
        let fence = Fence::shut(LASTS);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(fence.check(TOLERANCE), Ok(()), "a standby is healthy");
        fence.renew(Instant::now());
        tokio::time::advance(LASTS + TOLERANCE).await;
        assert_eq!(fence.check(TOLERANCE), Ok(()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(fence.check(TOLERANCE).is_err());
        fence.revoke();
        assert_eq!(fence.check(TOLERANCE), Ok(()));
        assert!(!fence.holds());
    }

    #[test]
    fn without_election_it_always_holds() {
        let fence = Fence::open();
        assert!(fence.holds() && fence.is_leader());
        assert_eq!(fence.check(TOLERANCE), Ok(()));
    }
}
