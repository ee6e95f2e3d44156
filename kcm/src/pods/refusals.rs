//! Backoff of creations that the API server refuses: quota, admission webhooks, policies.
//!
//! Each change of a pod requeues its owner, or the Services that select it. Without this backoff, each change would
//! repeat a creation that was just refused, and use up the rate limit that all other objects share. The next attempt is
//! due when the backoff ends, or as soon as a change of its inputs may let it succeed (see [`Attempt`]). An attempt
//! that created some of the children restarts the backoff: a webhook that refuses one pod of twenty must not delay the
//! others for hours.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use kinds::meta::{Meta, ObjectKey, Uid};
use runtime::backoff::doubled;
use runtime::lock::lock;
use runtime::write::WriteError;
use tokio::time::Instant;

/// The first delay, as in upstream's queue. Upstream: client-go/util/workqueue, DefaultControllerRateLimiter.
const FIRST_DELAY: Duration = Duration::from_millis(5);
/// Maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(1000);

/// The state on which an attempt to create the children of an owner depends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    uid: Uid,
    generation: i64,
    /// Children to create.
    missing: usize,
    /// Existing children, including those being deleted: each deletion frees quota.
    owned: usize,
    /// The resourceVersion of the other objects that the children are made from; 0 without such objects.
    inputs: u64,
}

impl Attempt {
    /// Creates an attempt to create `missing` children for an owner that has `owned`.
    pub fn new(owner: &Meta, missing: usize, owned: usize) -> Self {
        Self { uid: owner.uid.clone(), generation: owner.generation, missing, owned, inputs: 0 }
    }

    /// Returns the attempt with the resourceVersion of the other objects that the children are made from.
    pub fn with_inputs(self, inputs: u64) -> Self {
        Self { inputs, ..self }
    }

    /// Returns the state after some of the children were created.
    pub fn after(&self, created: usize) -> Self {
        Self { missing: self.missing.saturating_sub(created), owned: self.owned + created, ..self.clone() }
    }

    /// Returns true if `last` is about another owner, or if missing children were created since `last`.
    fn has_progressed_since(&self, last: &Self) -> bool {
        self.uid != last.uid || (self.missing < last.missing && self.owned > last.owned)
    }

    /// Returns true if this attempt may succeed although `refused` did not.
    fn may_succeed_after(&self, refused: &Self) -> bool {
        (&self.uid, self.generation, self.inputs) != (&refused.uid, refused.generation, refused.inputs)
            || self.missing > refused.missing
            || self.owned < refused.owned
    }
}

#[derive(Debug)]
struct Refusal {
    attempt: Attempt,
    count: u32,
    until: Instant,
    message: String,
}

/// A creation that has to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Time until the next attempt is due.
    pub left: Duration,
    /// The reason why the last attempt was refused.
    pub message: String,
}

/// Refused creations of one controller, by owner.
#[derive(Debug)]
pub struct Refusals {
    first_delay: Duration,
    max_delay: Duration,
    by_owner: Mutex<HashMap<ObjectKey, Refusal>>,
}

impl Default for Refusals {
    /// Creates an empty record with the delays of most queues.
    fn default() -> Self {
        Self::with_delays(FIRST_DELAY, MAX_DELAY)
    }
}

impl Refusals {
    /// Creates an empty record with the first delay of most queues and this maximum.
    pub fn with_max_delay(max_delay: Duration) -> Self {
        Self::with_delays(FIRST_DELAY, max_delay)
    }

    /// Creates an empty record for a controller whose queue has these delays.
    pub fn with_delays(first_delay: Duration, max_delay: Duration) -> Self {
        Self { first_delay, max_delay, by_owner: Mutex::default() }
    }

    /// Returns the wait before an attempt for the owner `key`; `None` if the attempt is due.
    pub fn waiting(&self, key: &ObjectKey, attempt: &Attempt) -> Option<Waiting> {
        let refusals = self.lock();
        let refusal = refusals.get(key).filter(|refusal| !attempt.may_succeed_after(&refusal.attempt))?;
        let left = refusal.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        Some(Waiting { left, message: refusal.message.clone() })
    }

    /// Records a failed attempt, with the state after it, if the same attempt would be refused again.
    pub fn failed(&self, key: &ObjectKey, attempt: Attempt, error: &WriteError) {
        if error.is_denied() {
            self.refused(key, attempt, error.to_string());
        }
    }

    /// Records a refused attempt, with the state after it. The backoff restarts if the attempt created some of the
    /// children.
    pub fn refused(&self, key: &ObjectKey, attempt: Attempt, message: String) {
        let mut refusals = self.lock();
        let known = refusals.get(key).filter(|refusal| !attempt.has_progressed_since(&refusal.attempt));
        let count = known.map_or(0, |refusal| refusal.count);
        let delay = doubled(self.first_delay, count, self.max_delay);
        let refusal = Refusal { attempt, count: count.saturating_add(1), until: Instant::now() + delay, message };
        refusals.insert(key.clone(), refusal);
    }

    /// Returns the number of attempts that were refused in a row. An attempt that created some of the children restarts
    /// the count.
    pub fn count(&self, key: &ObjectKey) -> usize {
        self.lock().get(key).map_or(0, |refusal| usize::try_from(refusal.count).unwrap_or(usize::MAX))
    }

    /// Removes the record of an owner: it has no missing children, its attempt succeeded, or it no longer exists.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Refusal>> {
        lock(&self.by_owner)
    }
}

#[cfg(test)]
mod tests {
    use runtime::testing::meta;

    use super::*;

    fn owner(uid: &str, generation: i64) -> Meta {
        Meta { uid: Uid::parse(uid), generation, ..meta("ns", "web", 1) }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_creation_waits_unless_something_changed_that_it_depends_on() {
        let (refusals, key) = (Refusals::default(), ObjectKey::new("ns", "web"));
        let attempt = Attempt::new(&owner("a", 1), 3, 7);
        assert_eq!(refusals.waiting(&key, &attempt), None);
        for _ in 0..5 {
            refusals.refused(&key, attempt.after(1), "exceeded quota".into());
        }
        let rows = [
            ("the same", Attempt::new(&owner("a", 1), 2, 8), true),
            ("another pod was created", Attempt::new(&owner("a", 1), 1, 9), true),
            ("a pod was lost", Attempt::new(&owner("a", 1), 3, 8), false),
            ("a terminating pod disappeared", Attempt::new(&owner("a", 1), 2, 7), false),
            ("the spec changed", Attempt::new(&owner("a", 2), 2, 8), false),
            ("another object with the same name", Attempt::new(&owner("b", 1), 2, 8), false),
            ("a template changed", Attempt::new(&owner("a", 1), 2, 8).with_inputs(9), false),
        ];
        for (name, attempt, waits) in rows {
            let expected = waits.then(|| Waiting { left: FIRST_DELAY * 16, message: "exceeded quota".into() });
            assert_eq!(refusals.waiting(&key, &attempt), expected, "{name}");
        }
        tokio::time::advance(FIRST_DELAY * 16).await;
        assert_eq!(refusals.waiting(&key, &attempt.after(1)), None, "the backoff is over");
        assert_eq!(refusals.count(&key), 5);
        refusals.forget(&key);
        assert_eq!(refusals.count(&key), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn partial_success_restarts_the_backoff() {
        let (refusals, key) = (Refusals::default(), ObjectKey::new("ns", "web"));
        let mut attempt = Attempt::new(&owner("a", 1), 1_000, 0);
        for _ in 0..20 {
            attempt = attempt.after(28);
            refusals.refused(&key, attempt.clone(), "webhook".into());
            let waiting = refusals.waiting(&key, &attempt).map(|waiting| waiting.left);
            assert_eq!(waiting, Some(FIRST_DELAY));
        }
        refusals.refused(&key, attempt.clone(), "webhook".into());
        assert_eq!(refusals.count(&key), 2, "nothing was created");
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_attempts_is_logarithmic_when_the_owner_is_reconciled_often() {
        let (refusals, key) = (Refusals::default(), ObjectKey::new("ns", "web"));
        let attempt = Attempt::new(&owner("a", 1), 1, 9);
        let mut sent = 0;
        for _ in 0..6000 {
            if refusals.waiting(&key, &attempt).is_none() {
                sent += 1;
                refusals.refused(&key, attempt.clone(), "refused".into());
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!((12..=20).contains(&sent), "{sent} attempts in ten minutes");
    }
}
