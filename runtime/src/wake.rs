//! Callbacks that run when a cache has reached a version.

use std::fmt;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::OnceLock;

use tokio::time::Instant;

/// A callback that runs once, when a cache has reached a version.
///
/// While a watch is stalled, a key that is reconciled repeatedly registers the same callback each time. The identity of
/// that callback is the queue and the key, and only one of each identity is kept for a version.
pub struct Wake {
    id: Option<u64>,
    /// No other callback has the same identity.
    is_unique: bool,
    created: Instant,
    run: Option<Box<dyn FnOnce() + Send>>,
}

impl Wake {
    /// Creates a callback with an identity, of which only a hash is stored.
    pub fn of(identity: impl Hash, run: impl FnOnce() + Send + 'static) -> Self {
        static SEED: OnceLock<RandomState> = OnceLock::new();
        let id = SEED.get_or_init(RandomState::new).hash_one(identity);
        Self { id: Some(id), is_unique: false, created: Instant::now(), run: Some(Box::new(run)) }
    }

    /// Creates a callback whose identity no other one has: it is added without a search among the waiting ones.
    pub(crate) fn unique(identity: u64, run: impl FnOnce() + Send + 'static) -> Self {
        Self { id: Some(identity), is_unique: true, created: Instant::now(), run: Some(Box::new(run)) }
    }

    /// Creates a placeholder without a callback, for callers that check again by themselves.
    pub fn none() -> Self {
        Self { id: None, is_unique: true, created: Instant::now(), run: None }
    }

    /// Returns the hash of the identity, if there is one.
    pub(crate) fn id(&self) -> Option<u64> {
        self.id
    }

    /// Returns the time at which the wait began.
    pub(crate) fn created(&self) -> Instant {
        self.created
    }

    /// Returns true if there is a callback.
    pub(crate) fn is_some(&self) -> bool {
        self.run.is_some()
    }

    /// Adds the callback to the waiting ones, unless one with the same identity is among them.
    pub(crate) fn wait_in(self, waiting: &mut Vec<Self>) {
        let is_known = !self.is_unique && waiting.iter().any(|known| !known.is_unique && known.id == self.id);
        if self.is_some() && !is_known {
            waiting.push(self);
        }
    }

    /// Runs the callback.
    pub(crate) fn run(self) {
        if let Some(run) = self.run {
            run();
        }
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wake({:?})", self.id)
    }
}

impl<F: FnOnce() + Send + 'static> From<F> for Wake {
    fn from(run: F) -> Self {
        Self { id: None, is_unique: true, created: Instant::now(), run: Some(Box::new(run)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callbacks_with_one_identity_wait_once_and_unique_ones_always() {
        let mut waiting = Vec::new();
        for _ in 0..3 {
            Wake::of("key", || {}).wait_in(&mut waiting);
            Wake::from(|| {}).wait_in(&mut waiting);
            Wake::none().wait_in(&mut waiting);
        }
        Wake::unique(1, || {}).wait_in(&mut waiting);
        Wake::unique(2, || {}).wait_in(&mut waiting);
        assert_eq!(waiting.len(), 6);
    }

    #[test]
    fn unique_callbacks_are_added_without_a_search() {
        let mut waiting = Vec::new();
        let started = crate::testing::CpuTime::now();
        (0..200_000).for_each(|identity| Wake::unique(identity, || {}).wait_in(&mut waiting));
        assert_eq!(waiting.len(), 200_000);
        // A search would make 20 billion comparisons.
        assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    }
}
