//! Status changes that nobody waits for: they are written a moment later, most often together with something else.
//!
//! While pods are replaced, counts go up and down all the time; most of it is decided on by nobody.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kinds::meta::ObjectKey;
use tokio::time::Instant;

/// How long a change waits that nothing is decided on.
pub const UNIMPORTANT: Duration = Duration::from_secs(2);

/// How long counts wait that are on their way to others: a rollout or a scaling is under way.
pub const ON_THEIR_WAY: Duration = Duration::from_secs(3);

/// How long a change waits for each pod that is still on its way,
const PER_POD: Duration = Duration::from_millis(80);
/// and at most.
const LONGEST: Duration = Duration::from_secs(4);

/// How long news of pods that have arrived waits for others that are on their way: for few of them a moment only, and
/// the less the more have arrived already.
pub fn patience(arrived: i32, coming: i32) -> Duration {
    let (arrived, coming) = (arrived.max(0).unsigned_abs(), coming.max(0).unsigned_abs());
    let share = f64::from(coming) / f64::from((arrived.saturating_add(coming)).max(1));
    PER_POD.saturating_mul(coming).min(LONGEST).mul_f64(share)
}

/// Since when unimportant changes of objects wait.
#[derive(Debug, Default)]
pub struct Lazy {
    since: Mutex<HashMap<ObjectKey, Instant>>,
}

impl Lazy {
    /// Says that a change of an object may wait so long from when it was first said: for how much longer, or `None` if
    /// it has waited long enough.
    pub fn wait(&self, key: &ObjectKey, patience: Duration) -> Option<Duration> {
        let mut waiting = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = waiting.get(key).map_or(Duration::ZERO, Instant::elapsed);
        let remaining = patience.checked_sub(waited).filter(|remaining| !remaining.is_zero());
        match remaining {
            Some(_) => _ = waiting.entry(key.clone()).or_insert_with(Instant::now),
            None => _ = waiting.remove(key),
        }
        remaining
    }

    /// Says that no change of an object waits any more.
    pub fn forget(&self, key: &ObjectKey) {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_waits_once_and_then_goes() {
        let (lazy, key) = (Lazy::default(), ObjectKey::new("ns", "web"));
        let patience = Duration::from_secs(2);
        assert_eq!(lazy.wait(&key, patience), Some(patience));
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(lazy.wait(&key, patience), Some(Duration::from_millis(500)));
        assert_eq!(lazy.wait(&key, patience * 2), Some(Duration::from_millis(2500)), "more is on its way");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(lazy.wait(&key, patience), None);
        assert_eq!(lazy.wait(&key, patience), Some(patience), "the next one waits anew");
        assert_eq!(lazy.wait(&key, Duration::ZERO), None, "it matters by now");
        assert_eq!(lazy.wait(&key, patience), Some(patience));
        lazy.forget(&key);
        assert!(lazy.since.lock().expect("no panic").is_empty());
    }

    #[test]
    fn few_pods_are_waited_for_shortly_and_none_when_all_are_there() {
        let rows = [(0, 0, 0), (25, 0, 0), (0, 1, 80), (1, 1, 40), (1, 2, 107), (0, 25, 2000), (25, 25, 1000)];
        for (arrived, coming, millis) in rows {
            let patience = super::patience(arrived, coming);
            assert_eq!((patience.as_secs_f64() * 1000.0).round() as i32, millis, "{arrived} arrived, {coming} coming");
        }
        assert_eq!(patience(0, i32::MAX), LONGEST);
        assert!(patience(900, 100) < LONGEST / 9);
    }
}
