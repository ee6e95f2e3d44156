//! Claims without a user: their condition is changed only if no other pod uses them within a short time.
//!
//! A controller that replaces a pod creates the next one soon after it has deleted the previous one.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use kinds::meta::ObjectKey;
use runtime::lock::lock;
use tokio::time::Instant;

/// Time without a user after which a claim counts as unused.
const DELAY: Duration = Duration::from_secs(1);

/// The claims without a user, and the time since which each has had none.
#[derive(Debug, Default)]
pub struct IdleClaims(Mutex<HashMap<ObjectKey, Instant>>);

impl IdleClaims {
    /// Records that a claim has no user. Returns the time until it counts as unused; zero if it does.
    pub fn record_idle(&self, claim: &ObjectKey) -> Duration {
        let now = Instant::now();
        let since = *lock(&self.0).entry(claim.clone()).or_insert(now);
        (since + DELAY).saturating_duration_since(now)
    }

    /// Removes a claim that has a user or was deleted, or whose condition is written.
    pub fn forget(&self, claim: &ObjectKey) {
        lock(&self.0).remove(claim);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn claim_counts_as_unused_after_a_time_without_interruption() {
        let (idle, claim) = (IdleClaims::default(), ObjectKey::new("shop", "data"));
        assert_eq!(idle.record_idle(&claim), DELAY);
        advance(DELAY / 2).await;
        assert_eq!(idle.record_idle(&claim), DELAY / 2);
        idle.forget(&claim);
        assert_eq!(idle.record_idle(&claim), DELAY, "a pod used it in between");
        advance(DELAY).await;
        assert_eq!(idle.record_idle(&claim), Duration::ZERO);
        idle.forget(&claim);
        assert!(lock(&idle.0).is_empty());
    }
}
