//! Calls that wait for a cache.

use std::fmt;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::OnceLock;

/// A call that is made once when a cache has come far enough.
///
/// A key that changes all the time asks again and again while a watch stands still: calls with the same identity are kept
/// once, so that the number of those that wait is bounded by the number of keys.
pub struct Wake {
    id: Option<u64>,
    run: Option<Box<dyn FnOnce() + Send>>,
}

impl Wake {
    /// A call with an identity, of which a hash is kept.
    pub fn of(identity: impl Hash, run: impl FnOnce() + Send + 'static) -> Self {
        static SEED: OnceLock<RandomState> = OnceLock::new();
        let id = SEED.get_or_init(RandomState::new).hash_one(identity);
        Self { id: Some(id), run: Some(Box::new(run)) }
    }

    /// No call: the caller asks again by itself.
    pub fn none() -> Self {
        Self { id: None, run: None }
    }

    /// True if there is a call to make.
    pub(crate) fn is_some(&self) -> bool {
        self.run.is_some()
    }

    /// Adds the call to those that wait, unless it is among them.
    pub(crate) fn wait_in(self, waiting: &mut Vec<Self>) {
        let is_known = self.id.is_some() && waiting.iter().any(|known| known.id == self.id);
        if self.is_some() && !is_known {
            waiting.push(self);
        }
    }

    /// Makes the call.
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
        Self { id: None, run: Some(Box::new(run)) }
    }
}
