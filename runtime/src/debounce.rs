//! Delays of status writes, so that changes in quick succession are written together.
//!
//! While pods are replaced, the counts in a status change constantly, and most values are short-lived. Which
//! change may wait, and for how long, is the controller's decision.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use kinds::meta::ObjectKey;
use tokio::time::Instant;

use crate::lock::lock;

/// Minimum time from a write of a status whose counts fluctuate to the next write of a gain, which is a change that
/// loses no available child. Losses are not damped.
pub const DAMPED_INTERVAL: Duration = Duration::from_millis(400);

/// Start times of delayed status changes, by object.
#[derive(Debug, Default)]
pub struct StatusDebouncer {
    since: Mutex<HashMap<ObjectKey, Instant>>,
    /// Time at which a fluctuating status was last due, by object.
    fluctuating: Mutex<HashMap<ObjectKey, Instant>>,
}

impl StatusDebouncer {
    /// Delays a status write by at most `delay` after the first call. Returns the time left, or `None` if the write is
    /// due.
    pub fn wait(&self, key: &ObjectKey, delay: Duration) -> Option<Duration> {
        let mut since = lock(&self.since);
        let waited = since.get(key).map_or(Duration::ZERO, Instant::elapsed);
        let remaining = delay.checked_sub(waited).filter(|remaining| !remaining.is_zero());
        if remaining.is_some() {
            since.entry(key.clone()).or_insert_with(Instant::now);
        } else {
            since.remove(key);
        }
        remaining
    }

    /// Delays like [`StatusDebouncer::wait`], for counts that may fluctuate forever. `is_loss`: the number of
    /// available children decreases. A loss is not damped. After a loss, while changes keep arriving, at most one gain
    /// per [`DAMPED_INTERVAL`] is due.
    pub fn wait_damped(&self, key: &ObjectKey, delay: Duration, is_loss: bool) -> Option<Duration> {
        let mut fluctuating = lock(&self.fluctuating);
        let elapsed = fluctuating.get(key).map(Instant::elapsed);
        let damped = elapsed.and_then(|elapsed| DAMPED_INTERVAL.checked_sub(elapsed)).filter(|left| !left.is_zero());
        let damped = damped.filter(|_| !is_loss);
        let remaining = self.wait(key, delay.max(damped.unwrap_or_default())).max(damped);
        if remaining.is_none() {
            if is_loss || elapsed.is_some_and(|elapsed| elapsed < 2 * DAMPED_INTERVAL) {
                fluctuating.insert(key.clone(), Instant::now());
            } else {
                fluctuating.remove(key);
            }
        }
        remaining
    }

    /// Removes an object: its status was written, or it no longer exists.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.since).remove(key);
        lock(&self.fluctuating).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn change_is_delayed_once_and_then_due() {
        let (debouncer, key) = (StatusDebouncer::default(), ObjectKey::new("ns", "web"));
        let delay = Duration::from_secs(2);
        assert_eq!(debouncer.wait(&key, delay), Some(delay));
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(debouncer.wait(&key, delay), Some(Duration::from_millis(500)));
        assert_eq!(
            debouncer.wait(&key, delay * 2),
            Some(Duration::from_millis(2500)),
            "a longer delay counts from the same start"
        );
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(debouncer.wait(&key, delay), None);
        assert_eq!(debouncer.wait(&key, delay), Some(delay), "the next change is delayed again");
        assert_eq!(debouncer.wait(&key, Duration::ZERO), None, "due without a delay");
        assert_eq!(debouncer.wait(&key, delay), Some(delay));
        debouncer.forget(&key);
        assert!(debouncer.since.lock().expect("no panic").is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn loss_is_due_immediately_and_gains_after_it_once_per_interval() {
        let (debouncer, key) = (StatusDebouncer::default(), ObjectKey::new("ns", "web"));
        let tenth_of_a_second = Duration::from_millis(100);
        // A change every tenth of a second: a loss, then gains.
        let mut due = Vec::new();
        for step in 0..100 {
            if debouncer.wait_damped(&key, Duration::ZERO, step == 0).is_none() {
                due.push(step);
            }
            tokio::time::advance(tenth_of_a_second).await;
        }
        assert_eq!(due, (0..100).step_by(4).collect::<Vec<_>>());
        assert_eq!(debouncer.wait_damped(&key, Duration::ZERO, true), None, "a further loss is not damped");
        assert_eq!(debouncer.wait_damped(&key, Duration::ZERO, true), None);
        // After a steady period, a change is due immediately, and so is the next one.
        tokio::time::advance(2 * DAMPED_INTERVAL).await;
        assert_eq!(debouncer.wait_damped(&key, Duration::ZERO, false), None);
        assert!(debouncer.fluctuating.lock().expect("no panic").is_empty());
        assert_eq!(debouncer.wait_damped(&key, Duration::ZERO, false), None);
        // A longer delay applies, counted from the first call.
        assert_eq!(debouncer.wait_damped(&key, Duration::ZERO, true), None);
        assert_eq!(debouncer.wait_damped(&key, tenth_of_a_second, false), Some(DAMPED_INTERVAL));
        tokio::time::advance(tenth_of_a_second).await;
        let remaining = debouncer.wait_damped(&key, 6 * tenth_of_a_second, false);
        assert_eq!(remaining, Some(5 * tenth_of_a_second));
        debouncer.forget(&key);
        assert_eq!(debouncer.wait_damped(&key, Duration::ZERO, false), None);
    }
}
