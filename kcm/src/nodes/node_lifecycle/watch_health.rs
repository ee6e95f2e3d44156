//! Detects a stalled Lease watch or a paused process, both of which make healthy nodes look unresponsive.
//!
//! At least one Lease changes every 10 s, because API servers renew their identity Leases. If the watch delivers
//! nothing for 20 s, the watch is stalled, not the nodes: no node is marked unresponsive. After the watch recovers, or
//! after this process was paused for that long, all grace periods restart. A single stale Lease is caught by the lease
//! circuit breaker, which reads it from the API server.
//!
//! The watch is checked only once per pass. A watch that has delivered a change since the last pass was not stalled,
//! however long ago that pass was. Otherwise, with a long period between passes, each pass would restart all grace
//! periods, and no node would ever be marked.

use std::time::Duration;

use tokio::time::Instant;

/// Time after which a watch of Leases that delivers nothing is stalled.
pub const STALL: Duration = Duration::from_secs(20);

/// The state of the Lease watch in a pass. It decides whether a node without a recent heartbeat is unresponsive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchState {
    /// The watch is current: a missing heartbeat counts.
    Current,
    /// The watch is stalled: no node is marked unresponsive.
    Stalled,
    /// The watch has just recovered, or the process was paused: all grace periods restart.
    JustRecovered,
}

/// Progress of the Lease watch from pass to pass.
#[derive(Debug, Clone, Copy)]
pub struct WatchHealth {
    /// The version that the watch had reached at the last check.
    version: u64,
    /// Time of the last check that found a newer version.
    advanced: Instant,
    /// Time of the end of the last pass.
    pass_ended: Instant,
    /// The last check found the watch stalled.
    stalled: bool,
}

impl WatchHealth {
    /// Returns the health of a watch that has reached `version` and was never stalled.
    pub fn new(version: u64, now: Instant) -> Self {
        Self { version, advanced: now, pass_ended: now, stalled: false }
    }

    /// Checks the watch before a pass, which was due one `period` after the end of the last one.
    pub fn check(&mut self, version: u64, period: Duration, now: Instant) -> WatchState {
        let paused = now.saturating_duration_since(self.pass_ended) > period + STALL;
        if self.version == version {
            self.stalled |= now.saturating_duration_since(self.advanced) > STALL;
            return match (self.stalled, paused) {
                (true, _) => WatchState::Stalled,
                (false, true) => WatchState::JustRecovered,
                (false, false) => WatchState::Current,
            };
        }
        self.version = version;
        self.advanced = now;
        let recovered = std::mem::take(&mut self.stalled);
        if recovered || paused { WatchState::JustRecovered } else { WatchState::Current }
    }

    /// Records the end of a pass.
    pub fn end_pass(&mut self, now: Instant) {
        self.pass_ended = now;
    }
}
