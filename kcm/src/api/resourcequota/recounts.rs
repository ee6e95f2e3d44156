//! The times of full counts: only these may lower the usage in the status of a quota.
//!
//! Admission adds to the status of a quota before the object is stored. A lower count from the caches may only mean
//! that objects are not in the cache yet; writing it would admit more objects than the quota allows. So a lower count
//! is written only in a full count: after something was removed or the quota changed, and once per period. A higher
//! count is always written: admission may have missed an object because the quota was not in its cache yet.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use kinds::meta::ObjectKey;
use runtime::lock::lock;
use tokio::time::Instant;

/// The treatment of a count that is lower than the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountMode {
    /// All counted amounts are written, lower ones too.
    Full,
    /// Amounts that would become lower are kept.
    RaiseOnly,
}

/// The time of the next full count of each quota. A quota that was never counted, or whose next count has to be full,
/// has no entry. `None`: a full count is done only on request.
#[derive(Debug, Default)]
pub struct Recounts(Mutex<HashMap<ObjectKey, Option<Instant>>>);

impl Recounts {
    /// Makes the next count a full one.
    pub fn request(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    /// Begins a count. Later requests apply to the next count.
    pub fn begin(&self, key: &ObjectKey, now: Instant) -> CountMode {
        let mut due = self.lock();
        if due.get(key).is_some_and(|due| due.is_none_or(|due| due > now)) {
            return CountMode::RaiseOnly;
        }
        due.insert(key.clone(), None);
        CountMode::Full
    }

    /// Sets a time for the next full count, unless an earlier one is set. Returns the time that is set then.
    pub fn schedule(&self, key: &ObjectKey, at: Option<Instant>) -> Option<Instant> {
        let mut due = self.lock();
        // If the entry is missing, a full count was requested during this one, and the quota's key is on the queue.
        let next = due.get_mut(key)?;
        *next = [*next, at].into_iter().flatten().min();
        *next
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Option<Instant>>> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn first_count_is_full_and_later_ones_on_request_or_at_the_set_time() {
        let recounts = Recounts::default();
        let key = ObjectKey::new("n", "quota");
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(recounts.begin(&key, now), CountMode::Full, "the quota was never counted");
        assert_eq!(recounts.schedule(&key, None), None);
        assert_eq!(recounts.begin(&key, at(1_000_000)), CountMode::RaiseOnly, "something was added");
        recounts.request(&key);
        assert_eq!(recounts.begin(&key, now), CountMode::Full);
        assert_eq!(recounts.schedule(&key, Some(at(300))), Some(at(300)));
        assert_eq!(recounts.begin(&key, at(10)), CountMode::RaiseOnly);
        assert_eq!(recounts.schedule(&key, Some(at(30))), Some(at(30)), "a pod's grace period ends earlier");
        assert_eq!(recounts.schedule(&key, None), Some(at(30)), "a raise does not delay it");
        assert_eq!(recounts.begin(&key, at(30)), CountMode::Full);
    }

    #[test]
    fn request_during_a_count_applies_to_the_next_one() {
        let recounts = Recounts::default();
        let key = ObjectKey::new("n", "quota");
        let now = Instant::now();
        assert_eq!(recounts.begin(&key, now), CountMode::Full);
        recounts.request(&key);
        assert_eq!(recounts.schedule(&key, Some(now + Duration::from_secs(300))), None);
        assert_eq!(recounts.begin(&key, now), CountMode::Full);
    }
}
