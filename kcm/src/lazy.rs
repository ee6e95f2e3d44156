//! Status changes that nobody waits for: they are written a moment later, most often together with something else.
//!
//! While pods are replaced, the number of terminating ones goes up and down all the time; nothing is decided on it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kinds::meta::ObjectKey;
use tokio::time::Instant;

/// How long such a change waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// Since when unimportant changes of objects wait.
#[derive(Debug, Default)]
pub struct Lazy {
    since: Mutex<HashMap<ObjectKey, Instant>>,
}

impl Lazy {
    /// Says that an unimportant change of an object waits: for how much longer, or `None` if it has waited long enough.
    pub fn wait(&self, key: &ObjectKey) -> Option<Duration> {
        let mut waiting = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = waiting.entry(key.clone()).or_insert_with(Instant::now).elapsed();
        let remaining = PATIENCE.checked_sub(waited).filter(|remaining| !remaining.is_zero());
        if remaining.is_none() {
            waiting.remove(key);
        }
        remaining
    }

    /// Says that no unimportant change of an object waits any more.
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
        assert_eq!(lazy.wait(&key), Some(PATIENCE));
        tokio::time::advance(Duration::from_millis(1500)).await;
        assert_eq!(lazy.wait(&key), Some(Duration::from_millis(500)));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(lazy.wait(&key), None);
        assert_eq!(lazy.wait(&key), Some(PATIENCE), "the next one waits anew");
        lazy.forget(&key);
        assert!(lazy.since.lock().expect("no panic").is_empty());
    }
}
