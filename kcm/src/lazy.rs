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

/// Shortest time between two changes that are told while counts that matter go up and down.
pub const UPS_AND_DOWNS: Duration = Duration::from_millis(400);

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
    /// When something was last told of objects that go up and down.
    unsteady: Mutex<HashMap<ObjectKey, Instant>>,
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

    /// As [`Lazy::wait`], for counts that may go up and down without end. The first loss goes at once. From then on, and
    /// for as long as there is news, one change is told each [`UPS_AND_DOWNS`].
    pub fn wait_damped(&self, key: &ObjectKey, patience: Duration, is_loss: bool) -> Option<Duration> {
        let mut unsteady = self.unsteady.lock().unwrap_or_else(PoisonError::into_inner);
        let since_told = unsteady.get(key).map(Instant::elapsed);
        let rest = since_told.and_then(|since| UPS_AND_DOWNS.checked_sub(since)).filter(|rest| !rest.is_zero());
        let waits = self.wait(key, patience.max(rest.unwrap_or_default())).max(rest);
        if waits.is_none() {
            match is_loss || since_told.is_some_and(|since| since < 2 * UPS_AND_DOWNS) {
                true => _ = unsteady.insert(key.clone(), Instant::now()),
                false => _ = unsteady.remove(key),
            }
        }
        waits
    }

    /// Says that no change of an object waits any more.
    pub fn forget(&self, key: &ObjectKey) {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        self.unsteady.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
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

    #[tokio::test(start_paused = true)]
    async fn the_first_loss_goes_at_once_and_ups_and_downs_are_told_now_and_then() {
        let (lazy, key) = (Lazy::default(), ObjectKey::new("ns", "web"));
        let moment = Duration::from_millis(100);
        // Something new each tenth of a second, by turns lost and there again.
        let mut told = Vec::new();
        for tenth in 0..100 {
            if lazy.wait_damped(&key, Duration::ZERO, tenth % 2 == 0).is_none() {
                told.push(tenth);
            }
            tokio::time::advance(moment).await;
        }
        assert_eq!(told, (0..100).step_by(4).collect::<Vec<_>>());
        // Steady for a while: what comes then goes at once, and the next one, too.
        tokio::time::advance(2 * UPS_AND_DOWNS).await;
        assert_eq!(lazy.wait_damped(&key, Duration::ZERO, false), None);
        assert!(lazy.unsteady.lock().expect("no panic").is_empty());
        assert_eq!(lazy.wait_damped(&key, Duration::ZERO, false), None);
        // What may wait longer does so, from when it was first said.
        assert_eq!(lazy.wait_damped(&key, Duration::ZERO, true), None);
        assert_eq!(lazy.wait_damped(&key, moment, false), Some(UPS_AND_DOWNS));
        tokio::time::advance(moment).await;
        assert_eq!(lazy.wait_damped(&key, 6 * moment, false), Some(5 * moment));
        lazy.forget(&key);
        assert_eq!(lazy.wait_damped(&key, Duration::ZERO, false), None);
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
