//! Whether this process itself sees: a watch that stands still, or a process that stood still, shows silent nodes where
//! there are none.
//!
//! Leases move all the time, if only those of the API servers themselves, every ten seconds. When the watch of leases
//! brings nothing for twice as long, it is the watch that is dead; and after it has come back, or after this process
//! was stopped for that long, every node gets its grace anew, for nobody could be heard. The check of single leases
//! against the server (the lease circuit breaker) finds what is left.

use std::time::Duration;

use tokio::time::Instant;

/// A watch of leases that moves less often is dead.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a pass may conclude from silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// What it likes.
    Clear,
    /// Nothing.
    Blind,
    /// Nothing about the time before now.
    Regained,
}

/// How far the watch of leases was, and when a pass last ended.
#[derive(Debug, Clone, Copy)]
pub struct Watchman {
    version: u64,
    moved: Instant,
    passed: Instant,
}

impl Watchman {
    /// Begins to look: nothing was missed so far.
    pub fn new(version: u64, now: Instant) -> Self {
        Self { version, moved: now, passed: now }
    }

    /// Takes in how far the watch of leases is, before a pass that was to begin a `period` after the last one ended.
    pub fn look(&mut self, version: u64, period: Duration, now: Instant) -> Sight {
        let stood_still = now.saturating_duration_since(self.passed) > period + PATIENCE;
        let silent = now.saturating_duration_since(self.moved) > PATIENCE;
        if self.version == version && silent {
            return Sight::Blind;
        }
        if self.version != version {
            (self.version, self.moved) = (version, now);
        }
        if silent || stood_still { Sight::Regained } else { Sight::Clear }
    }

    /// A pass ended.
    pub fn passed(&mut self, now: Instant) {
        self.passed = now;
    }
}
