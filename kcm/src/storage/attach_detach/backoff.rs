//! Policy: the pauses of a volume's operations on one node after failures.
//!
//! Thousands of nodes may share a volume. An operation that fails on one node is not repeated at each change of
//! another node, and each failure delays this node only. Upstream: pkg/volume/util/nestedpendingoperations, with one
//! backoff for each volume and node.

use std::time::Duration;

use runtime::backoff::doubled;
use tokio::time::Instant;

use super::metrics::Operation;
use super::{BASE_DELAY, MAX_DELAY};

/// The pause after the last of several failures in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    operation: Operation,
    /// Number of earlier failures of the operation in a row.
    failures: u32,
    retry_at: Instant,
}

impl Backoff {
    /// Returns the pause after a failure at `now`. It is twice the previous one, unless another operation failed
    /// before.
    pub fn after(previous: Option<Self>, operation: Operation, now: Instant) -> Self {
        let previous = previous.filter(|previous| previous.operation == operation);
        let failures = previous.map_or(0, |previous| previous.failures.saturating_add(1));
        Self { operation, failures, retry_at: now + doubled(BASE_DELAY, failures, MAX_DELAY) }
    }

    /// Returns true if the pause is for this operation.
    pub fn is_for(&self, operation: Option<Operation>) -> bool {
        Some(self.operation) == operation
    }

    /// Returns the time until the operation is attempted again; `None` if that is now.
    pub fn remaining(&self, now: Instant) -> Option<Duration> {
        self.retry_at.checked_duration_since(now).filter(|remaining| !remaining.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pause_doubles_with_each_failure_of_the_same_operation() {
        let now = Instant::now();
        let mut last = None;
        let mut pauses = Vec::new();
        for _ in 0..10 {
            let next = Backoff::after(last, Operation::Attach, now);
            pauses.push(next.remaining(now).map_or(0, |remaining| remaining.as_millis()));
            last = Some(next);
        }
        assert_eq!(pauses, [500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 122_000, 122_000]);
        let other = Backoff::after(last, Operation::Detach, now);
        assert_eq!(other.remaining(now), Some(BASE_DELAY));
        assert_eq!(other.remaining(now + BASE_DELAY), None);
        let rows = [(Some(Operation::Detach), true), (Some(Operation::Attach), false), (None, false)];
        rows.into_iter().for_each(|(operation, expected)| assert_eq!(other.is_for(operation), expected));
    }
}
