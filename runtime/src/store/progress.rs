//! The progress of a watch, and the waiters for it.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::lock::lock;
use crate::metrics::histogram;
use crate::wake::Wake;

/// The version up to which a store is complete. Versions are compared within one resource only.
pub struct Progress {
    state: Mutex<State>,
    synced: watch::Sender<bool>,
    restarts: AtomicU64,
    panics: AtomicU64,
    /// Panics of consecutive steps.
    panics_in_a_row: AtomicU64,
    /// Time to decode and apply an event, subscribers included.
    latency: Histogram,
}

/// Upper bounds of the time to apply an event in seconds. Upstream: component-base, metrics/prometheus/clientgo/fifo.
const LATENCY_SECONDS: [f64; 12] = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// If a watch works for this long after a write without delivering its event, it never will: the server was restored
/// from a backup since, or returned a version that does not exist.
const WRITES_EXPIRE: Duration = Duration::from_secs(5 * 60);

/// Maximum time from the restore of a server's storage to its detection by a watch.
const RESTORE_DETECTED: Duration = Duration::from_secs(30);

struct State {
    version: u64,
    history: u64,
    /// The last time that a restore of the server from a backup was detected.
    replaced: Instant,
    /// The last time that the watch delivered a version.
    advanced: Instant,
    waiters: BTreeMap<u64, Vec<Wake>>,
    /// The number of times that callbacks ran although their version was not reached.
    early_wakes: u64,
    /// The last time that overdue callbacks were searched.
    swept: Instant,
}

impl Default for State {
    fn default() -> Self {
        let now = Instant::now();
        let (version, history, early_wakes) = (0, 0, 0);
        Self { version, history, replaced: now, advanced: now, waiters: BTreeMap::new(), early_wakes, swept: now }
    }
}

impl State {
    /// Removes the callbacks that are overdue, and returns them. Searches for them once in [`WRITES_EXPIRE`].
    fn take_overdue(&mut self, now: Instant) -> Vec<Wake> {
        if now.duration_since(self.swept) < WRITES_EXPIRE {
            return Vec::new();
        }
        self.swept = now;
        let mut overdue = Vec::new();
        self.waiters.retain(|_, waiting| {
            overdue.extend(waiting.extract_if(.., |wake| now.duration_since(wake.created()) >= WRITES_EXPIRE));
            !waiting.is_empty()
        });
        self.early_wakes += u64::from(!overdue.is_empty());
        overdue
    }
}

/// The version of a write, and the history of the server to which it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteVersion {
    version: u64,
    history: u64,
    /// The time at which the response was received.
    at: Instant,
    /// The watch had reached the version by then: either it was faster than the response, or the version belongs to a
    /// new history that the watch has not listed yet.
    was_reached: bool,
}

impl WriteVersion {
    /// Returns the version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns true if this write and another one of the same kind belong to the same history, and this one is not
    /// older.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        self.history == other.history && self.version >= other.version
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            synced: watch::Sender::new(false),
            restarts: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            panics_in_a_row: AtomicU64::new(0),
            latency: histogram(LATENCY_SECONDS),
        }
    }
}

impl Progress {
    /// Returns the reached version; zero before the first list.
    pub fn version(&self) -> u64 {
        lock(&self.state).version
    }

    /// Returns the number of the server's history that the versions belong to; it changes when the server is restored
    /// from a backup.
    pub fn history(&self) -> u64 {
        lock(&self.state).history
    }

    /// Returns the version of a write whose response was just received.
    pub fn written(&self, version: u64) -> WriteVersion {
        let state = lock(&self.state);
        WriteVersion { version, history: state.history, at: Instant::now(), was_reached: version <= state.version }
    }

    /// Returns true if the store contains a write, or the write will never arrive.
    ///
    /// It never arrives if the history to which its version belongs was replaced, or if the watch still delivered
    /// versions five minutes after the write. A write to the new history, recorded before the watch has detected the
    /// replacement, is still awaited.
    pub fn contains(&self, write: &WriteVersion) -> bool {
        let state = lock(&self.state);
        let is_of_new_history = state.history == write.history + 1
            && write.was_reached
            && state.replaced.duration_since(write.at) < RESTORE_DETECTED;
        write.version <= state.version
            || state.history != write.history && !is_of_new_history
            || state.advanced >= write.at + WRITES_EXPIRE
    }

    /// Returns the number of times that callbacks ran although their version was not reached: keys that still wait have to
    /// register again.
    pub(crate) fn early_wakes(&self) -> u64 {
        lock(&self.state).early_wakes
    }

    /// Runs `wake` once the version is reached. If it is reached already, runs `wake` immediately and returns true.
    /// `wake` also runs if the version may never be reached: with an event that the watch delivers five to ten minutes
    /// later, or when the watch detects that the server was restored from a backup.
    pub fn when_reached(&self, version: u64, wake: impl Into<Wake>) -> bool {
        let wake = wake.into();
        let mut state = lock(&self.state);
        if state.version < version {
            if wake.is_some() {
                wake.wait_in(state.waiters.entry(version).or_default());
            }
            return false;
        }
        drop(state);
        wake.run();
        true
    }

    /// Waits until the version is reached, or may never be reached. A wait that is dropped leaves no waiter behind.
    pub async fn reached(&self, version: u64) {
        static NEXT_WAIT: AtomicU64 = AtomicU64::new(0);
        let (advanced, wait) = oneshot::channel::<()>();
        let wake = Wake::unique(NEXT_WAIT.fetch_add(1, Ordering::Relaxed), move || drop(advanced));
        let waiter = Waiter { progress: self, version, id: wake.id() };
        if !self.when_reached(version, wake) {
            // The sender is dropped when the callback runs.
            let _ = wait.await;
        }
        drop(waiter);
    }

    /// Waits for the first complete list.
    pub async fn synced(&self) {
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Returns true after the first complete list.
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Returns the number of failures and relists of the watch.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Ordering::Relaxed)
    }

    pub(crate) fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of panics of the watch and its subscribers. A panic of the decoder is not counted: its object
    /// counts as undecodable.
    pub fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Returns the number of panics of the watch since its last step that ended without a panic.
    pub fn panics_in_a_row(&self) -> u64 {
        self.panics_in_a_row.load(Ordering::Relaxed)
    }

    /// Counts a panic of the watch.
    pub(crate) fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        self.panics_in_a_row.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a panic of a subscriber; the watch continues.
    pub(crate) fn count_subscriber_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Resets the consecutive panics.
    pub(crate) fn forget_panics(&self) {
        self.panics_in_a_row.store(0, Ordering::Relaxed);
    }

    /// Records the time to apply an event.
    pub(crate) fn applied(&self, time: Duration) {
        self.latency.observe(time.as_secs_f64());
    }

    /// Returns the times to apply events. Clones share their counts.
    pub fn latency(&self) -> Histogram {
        self.latency.clone()
    }

    pub(crate) fn set_synced(&self) {
        self.synced.send_replace(true);
    }

    /// Advances to a version, and wakes its waiters and those that are overdue.
    pub(crate) fn advance(&self, version: u64) {
        let now = Instant::now();
        let (reached, overdue) = {
            let mut state = lock(&self.state);
            state.version = state.version.max(version);
            state.advanced = now;
            if state.waiters.is_empty() {
                return;
            }
            let later = state.version + 1;
            let later = state.waiters.split_off(&later);
            let reached = std::mem::replace(&mut state.waiters, later);
            (reached, state.take_overdue(now))
        };
        reached.into_values().flatten().chain(overdue).for_each(Wake::run);
    }

    /// Restarts at a version that may be older, because the server was restored from a backup. Waiters are woken,
    /// because their version may never arrive.
    pub(crate) fn reset(&self, version: u64) {
        let waiters = {
            let mut state = lock(&self.state);
            state.version = version;
            state.history += 1;
            state.replaced = Instant::now();
            state.advanced = state.replaced;
            state.early_wakes += 1;
            std::mem::take(&mut state.waiters)
        };
        waiters.into_values().flatten().for_each(Wake::run);
    }
}

/// A callback of [`Progress::reached`], which is removed when this is dropped.
struct Waiter<'a> {
    progress: &'a Progress,
    version: u64,
    id: Option<u64>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.progress.state);
        if let Some(waiters) = state.waiters.get_mut(&self.version) {
            waiters.retain(|wake| wake.id() != self.id);
            if waiters.is_empty() {
                state.waiters.remove(&self.version);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn waiter_with_an_identity_waits_once_for_a_version() {
        let progress = Progress::default();
        let woken = Arc::new(AtomicUsize::new(0));
        for call in 0..1000 {
            let woken = woken.clone();
            let count = move || _ = woken.fetch_add(1, Ordering::Relaxed);
            assert!(!progress.when_reached(5, Wake::of(call % 2, count)) && !progress.when_reached(5, Wake::none()));
        }
        let waiting: usize = progress.state.lock().expect("the state").waiters.values().map(Vec::len).sum();
        assert_eq!(waiting, 2);
        progress.advance(5);
        assert_eq!(woken.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn dropped_wait_leaves_no_waiter_behind() {
        let progress = Progress::default();
        for version in [5, 6] {
            let mut wait = Box::pin(progress.reached(version));
            assert!(futures::poll!(&mut wait).is_pending());
            assert_eq!(lock(&progress.state).waiters.len(), 1);
        }
        assert!(lock(&progress.state).waiters.is_empty());
        let mut waits = [Box::pin(progress.reached(5)), Box::pin(progress.reached(5)), Box::pin(progress.reached(6))];
        for wait in &mut waits {
            assert!(futures::poll!(wait).is_pending());
        }
        progress.advance(5);
        let [first, second, third] = waits;
        assert!(futures::poll!(first).is_ready() && futures::poll!(second).is_ready());
        assert!(futures::poll!(third).is_pending());
        assert!(lock(&progress.state).waiters.is_empty());
        progress.reached(5).await;
    }

    #[test]
    fn waiters_wake_when_their_version_is_reached_and_not_before() {
        let progress = Progress::default();
        let woken = Arc::new(AtomicUsize::new(0));
        let wait = |version| {
            let woken = woken.clone();
            progress.when_reached(version, move || {
                woken.fetch_add(1, Ordering::Relaxed);
            })
        };
        progress.advance(5);
        assert!(wait(5), "already reached");
        assert!(!wait(6) && !wait(7) && !wait(9));
        progress.advance(7);
        assert_eq!(woken.load(Ordering::Relaxed), 3);
        progress.advance(3);
        assert_eq!(progress.version(), 7, "only a reset decreases it");
        progress.reset(2);
        assert_eq!((progress.version(), woken.load(Ordering::Relaxed)), (2, 4), "a reset wakes all");
    }
}
