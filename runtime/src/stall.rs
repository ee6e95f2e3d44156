//! Detection of a stall: the threads of the controllers no longer run tasks, because of a deadlock or an endless
//! loop.
//!
//! The Lease is renewed on another thread, so that a controller that computes for seconds does not lose the leadership.
//! Without this check, a process whose controllers never continue would therefore lead forever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

/// Time between two beats of the controllers' threads, and between two checks.
const BEAT_INTERVAL: Duration = Duration::from_secs(5);

/// Consecutive checks without a beat after which the health check `workers` fails: one minute.
const MAX_MISSED_IF_HEALTHY: u32 = 12;

/// Consecutive checks without a beat after which the process ends: two minutes.
const MAX_MISSED: u32 = 24;

/// The time for which the threads of the controllers have run no task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the controllers' threads have run no task for {0:?}: deadlock or endless loop")]
pub struct Stall(pub Duration);

/// The beats of the controllers' threads. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Heartbeat(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Number of beats.
    count: AtomicU64,
    /// Consecutive checks without a beat. Checks are counted instead of time: after a pause of the whole process, in
    /// which nothing ran, only one check is missed.
    missed: AtomicU32,
}

impl Heartbeat {
    /// Counts beats for as long as the runtime that polls this future runs tasks. Does not return.
    pub(crate) async fn beat(self) {
        loop {
            self.0.count.fetch_add(1, Ordering::Relaxed);
            sleep(BEAT_INTERVAL).await;
        }
    }

    /// Returns when too many checks in a row found no beat. Poll it on another thread than [`Heartbeat::beat`].
    pub(crate) async fn stalled(&self) -> Stall {
        let mut last = None;
        loop {
            let count = self.0.count.load(Ordering::Relaxed);
            let missed = if last.replace(count) == Some(count) { self.0.missed.load(Ordering::Relaxed) + 1 } else { 0 };
            self.0.missed.store(missed, Ordering::Relaxed);
            if missed >= MAX_MISSED {
                return Stall(BEAT_INTERVAL * missed);
            }
            sleep(BEAT_INTERVAL).await;
        }
    }

    /// Runs the health check `workers`.
    ///
    /// # Errors
    /// [`Stall`], if there was no beat for a minute.
    pub fn check(&self) -> Result<(), Stall> {
        match self.0.missed.load(Ordering::Relaxed) {
            missed if missed >= MAX_MISSED_IF_HEALTHY => Err(Stall(BEAT_INTERVAL * missed)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, timeout};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[tokio::test(start_paused = true)]
    async fn beating_threads_are_healthy() {
        let heartbeat = Heartbeat::default();
        let beats = tokio::spawn(heartbeat.clone().beat());
        timeout(HOUR, heartbeat.stalled()).await.expect_err("no stall");
        assert_eq!(heartbeat.check(), Ok(()));
        beats.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn threads_without_a_beat_are_unhealthy_after_one_minute_and_stalled_after_two() {
        let heartbeat = Heartbeat::default();
        let started = Instant::now();
        let mut stalled = std::pin::pin!(heartbeat.stalled());
        timeout(Duration::from_secs(59), &mut stalled).await.expect_err("too early");
        assert_eq!(heartbeat.check(), Ok(()));
        timeout(Duration::from_secs(2), &mut stalled).await.expect_err("too early");
        assert!(heartbeat.check().is_err());
        timeout(HOUR, stalled).await.expect("a stall");
        assert_eq!(started.elapsed(), Duration::from_secs(120));
    }

    #[tokio::test(start_paused = true)]
    async fn pause_of_the_whole_process_is_not_a_stall() {
        let heartbeat = Heartbeat::default();
        let mut stalled = std::pin::pin!(heartbeat.stalled());
        timeout(BEAT_INTERVAL, &mut stalled).await.expect_err("too early");
        tokio::time::advance(HOUR).await;
        timeout(BEAT_INTERVAL, &mut stalled).await.expect_err("one check was missed, not an hour of checks");
        assert_eq!(heartbeat.check(), Ok(()));
    }
}
