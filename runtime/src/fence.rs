//! The fence: the check at every write that this process still leads, by the process's own monotonic clock.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// This process leads, but the lease was not renewed for too long: the health check `leaderElection` fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("leading, but the lease was last renewed {since:?} ago (at most {allowed:?}): the election is stuck")]
pub struct Stale {
    /// The time since the start of the last successful renewal.
    pub since: Duration,
    /// The maximum for that time.
    pub allowed: Duration,
}

/// The check before every write. The fence is open only while the lease has certainly not expired.
///
/// The lease lasts from the moment at which the last successful request *began*. A candidate waits at least as long,
/// from the later moment at which it observed that renewal. So two fences are never open at the same time. The clock is
/// `CLOCK_MONOTONIC`: it continues while the process is stopped, so an expired fence is closed as soon as the process
/// resumes. It does not count time while the host is suspended: a suspended host must not run a manager.
#[derive(Debug, Clone)]
pub struct Fence {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    /// The time from which renewals are counted.
    epoch: Instant,
    lease_duration: Duration,
    /// Nanoseconds from `epoch` to the start of the last successful renewal, plus one; zero: none.
    renewed: AtomicU64,
    leading: AtomicBool,
    slow_renewals: AtomicU64,
}

impl Fence {
    /// Creates the fence of a process without leader election: it is always open.
    pub fn open() -> Self {
        Self { shared: None }
    }

    /// Creates the fence of a candidate, closed until the first [`Fence::renew`].
    pub(crate) fn closed(lease_duration: Duration) -> Self {
        let shared = Shared {
            epoch: Instant::now(),
            lease_duration,
            renewed: AtomicU64::new(0),
            leading: AtomicBool::new(false),
            slow_renewals: AtomicU64::new(0),
        };
        Self { shared: Some(Arc::new(shared)) }
    }

    /// Returns true if a write may be sent now.
    pub fn holds(&self) -> bool {
        self.shared.is_none() || self.end().is_some_and(|end| Instant::now() < end)
    }

    /// Returns the time at which the fence closes unless the lease is renewed before; `None` if this process does not
    /// lead or has no election.
    fn end(&self) -> Option<Instant> {
        let shared = self.shared.as_ref()?;
        self.last_renewed().map(|started| started + shared.lease_duration)
    }

    /// Runs `work` while the fence is open. Returns `None` and drops `work` if the fence closes before `work`
    /// completes.
    ///
    /// The fence is checked before each step of `work`, not only at its start: a process that was paused while it
    /// waited for a token or a connection takes no further step when it resumes. A renewal of the lease extends the
    /// run.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        if self.shared.is_none() {
            return Some(work.await);
        }
        let mut timer = pin!(sleep_until(self.end()?));
        poll_fn(|context| {
            loop {
                let Some(end) = self.end().filter(|end| Instant::now() < *end) else { return Poll::Ready(None) };
                if let Poll::Ready(output) = work.as_mut().poll(context) {
                    return Poll::Ready(Some(output));
                }
                if timer.deadline() != end {
                    timer.as_mut().reset(end);
                }
                // A renewal does not wake this task: when the former end is reached, the new one is read.
                if timer.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Returns true from the acquisition of the Lease until this process detects its loss or releases it; always true
    /// without an election. The value of `leader_election_master_status`.
    pub fn is_leader(&self) -> bool {
        let Some(shared) = &self.shared else { return true };
        shared.leading.load(Ordering::Acquire)
    }

    /// Returns the time at which the last successful request for the lease began; `None` if this process does not lead
    /// or has no election.
    pub fn last_renewed(&self) -> Option<Instant> {
        let shared = self.shared.as_ref()?;
        let nanos = shared.renewed.load(Ordering::Acquire).checked_sub(1)?;
        Some(shared.epoch + Duration::from_nanos(nanos))
    }

    /// Returns the number of renewals that had to read the lease first: the value of `leader_election_slowpath_total`.
    pub fn slow_renewals(&self) -> u64 {
        let Some(shared) = &self.shared else { return 0 };
        shared.slow_renewals.load(Ordering::Relaxed)
    }

    /// Runs the health check `leaderElection`: fails if this process leads and did not renew for the lease's duration
    /// plus `tolerance` (20 s in the managers). Upstream: `tools/leaderelection`, `LeaderElector.Check`.
    ///
    /// # Errors
    /// `Stale`, with both durations.
    pub fn check(&self, tolerance: Duration) -> Result<(), Stale> {
        let (Some(shared), Some(started)) = (&self.shared, self.last_renewed()) else {
            return Ok(());
        };
        let (since, allowed) = (started.elapsed(), shared.lease_duration + tolerance);
        if self.is_leader() && since > allowed {
            return Err(Stale { since, allowed });
        }
        Ok(())
    }

    /// Opens the fence for the lease duration from `started`, the start of a successful request for the lease.
    pub(crate) fn renew(&self, started: Instant) {
        if let Some(shared) = &self.shared {
            let nanos = started.saturating_duration_since(shared.epoch).as_nanos();
            let stored = u64::try_from(nanos).unwrap_or(u64::MAX - 1) + 1;
            shared.renewed.store(stored, Ordering::Release);
            shared.leading.store(true, Ordering::Release);
        }
    }

    /// Closes the fence: this process no longer leads.
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

    const LEASE_DURATION: Duration = Duration::from_secs(15);
    const TOLERANCE: Duration = Duration::from_secs(20);

    #[tokio::test(start_paused = true)]
    async fn fence_is_open_from_the_start_of_the_request_for_the_lease_duration() {
        let fence = Fence::closed(LEASE_DURATION);
        assert!(!fence.holds() && !fence.is_leader());
        let started = Instant::now();
        tokio::time::advance(Duration::from_secs(4)).await;
        fence.renew(started);
        assert!(fence.holds() && fence.is_leader());
        assert_eq!(fence.last_renewed(), Some(started));
        tokio::time::advance(Duration::from_millis(10_999)).await;
        assert!(fence.holds());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!fence.holds());
        assert!(fence.is_leader(), "only the election ends leadership");
    }

    #[tokio::test(start_paused = true)]
    async fn health_check_fails_only_for_a_leader_that_does_not_renew() {
        let fence = Fence::closed(LEASE_DURATION);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!(fence.check(TOLERANCE), Ok(()), "a standby is healthy");
        fence.renew(Instant::now());
        tokio::time::advance(LEASE_DURATION + TOLERANCE).await;
        assert_eq!(fence.check(TOLERANCE), Ok(()));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(fence.check(TOLERANCE).is_err());
        fence.revoke();
        assert_eq!(fence.check(TOLERANCE), Ok(()));
        assert!(!fence.holds());
    }

    #[tokio::test(start_paused = true)]
    async fn run_ends_with_the_fence_unless_the_lease_is_renewed() {
        let fence = Fence::closed(LEASE_DURATION);
        assert_eq!(fence.run(async { 1 }).await, None, "not leading");
        fence.renew(Instant::now());
        assert_eq!(fence.run(async { 1 }).await, Some(1));
        let started = Instant::now();
        assert_eq!(fence.run(std::future::pending::<()>()).await, None);
        assert_eq!(started.elapsed().as_secs(), LEASE_DURATION.as_secs());
        fence.renew(Instant::now());
        let renewals = async {
            for _ in 0..10 {
                tokio::time::sleep(Duration::from_secs(10)).await;
                fence.renew(Instant::now());
            }
        };
        let work = fence.run(tokio::time::sleep(Duration::from_secs(90)));
        assert_eq!(tokio::join!(work, renewals).0, Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn run_takes_no_step_after_a_pause_beyond_the_end_of_the_fence() {
        let fence = Fence::closed(LEASE_DURATION);
        fence.renew(Instant::now());
        let (resume, resumed) = tokio::sync::oneshot::channel::<()>();
        let mut sent = false;
        let work = async {
            let _ = resumed.await;
            sent = true;
        };
        let pause = async {
            // No other task runs in between, as in a process that was stopped: the work is ready when the process
            // resumes.
            tokio::time::advance(LEASE_DURATION).await;
            let _ = resume.send(());
        };
        let (outcome, ()) = tokio::join!(fence.run(work), pause);
        assert_eq!((outcome, sent), (None, false));
    }

    #[test]
    fn fence_without_election_is_always_open() {
        let fence = Fence::open();
        assert!(fence.holds() && fence.is_leader());
        assert_eq!(fence.check(TOLERANCE), Ok(()));
    }
}
