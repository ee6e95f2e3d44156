//! The journal of a controller: its last decisions and its failing keys, in bounded memory.
//!
//! The Writer, the event recorder and `Consistency` add notes while a reconcile runs. A note belongs to the reconcile
//! that runs in the same task.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jiff::Timestamp;

use crate::lock::lock;
use crate::text::{human_duration, shortened};

/// Maximum number of decisions that are kept per controller.
pub const MAX_RECENT: usize = 64;
/// Maximum number of failing keys that are kept per controller; those that failed least recently are discarded.
pub const MAX_FAILING: usize = 256;
/// Maximum number of different notes per reconcile.
const MAX_NOTES: usize = 6;
/// Maximum bytes of all notes of one reconcile.
const MAX_NOTES_BYTES: usize = 320;
/// Maximum bytes of an error.
const MAX_ERROR_BYTES: usize = 512;
/// Maximum bytes of a key. Keys of existing objects are shorter; a user may refer to a missing owner or claim by a name
/// of a megabyte.
const MAX_KEY_BYTES: usize = 512;

tokio::task_local! {
    static RUNNING: Arc<Mutex<Notes>>;
}

/// The notes of a running reconcile.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// The different notes, each with its number of occurrences.
    kept: Vec<(String, u32)>,
    /// Number of notes beyond the limit, which are not kept.
    omitted: u32,
    /// The longest Retry-After of a response.
    retry_after: Duration,
}

impl Notes {
    fn add(&mut self, text: String) {
        if let Some((_, times)) = self.kept.iter_mut().find(|(known, _)| *known == text) {
            *times += 1;
        } else if self.kept.len() < MAX_NOTES {
            self.kept.push((text, 1));
        } else {
            self.omitted += 1;
        }
    }

    /// Returns the longest Retry-After that the API server returned in this reconcile; zero without one.
    pub(crate) fn retry_after(notes: &Mutex<Self>) -> Duration {
        lock(notes).retry_after
    }

    /// Removes and returns all notes in one line.
    pub(crate) fn take(notes: &Mutex<Self>) -> String {
        let Self { kept, omitted, retry_after: _ } = std::mem::take(&mut *lock(notes));
        let mut line = String::new();
        for (text, times) in kept {
            let separator = if line.is_empty() { "" } else { "; " };
            // Writing to a String cannot fail.
            let _ = match times {
                1 => write!(line, "{separator}{text}"),
                _ => write!(line, "{separator}{text} ({times} times)"),
            };
        }
        if omitted > 0 {
            let _ = write!(line, "; and {omitted} more");
        }
        shortened(line, MAX_NOTES_BYTES)
    }
}

/// Adds a note to the reconcile that runs in this task; does nothing outside of a reconcile.
pub fn note(text: impl FnOnce() -> String) {
    // An error means that no reconcile runs in this task.
    let _ = RUNNING.try_with(|notes| lock(notes).add(text()));
}

/// Records the Retry-After of a response in the reconcile that runs in this task. If the reconcile fails, its key is
/// requeued no sooner.
pub(crate) fn note_retry_after(delay: Duration) {
    // An error means that no reconcile runs in this task.
    let _ = RUNNING.try_with(|notes| {
        let mut notes = lock(notes);
        notes.retry_after = notes.retry_after.max(delay);
    });
}

/// Runs a reconcile with these notes.
pub(crate) fn with_notes<F: Future>(
    notes: &Arc<Mutex<Notes>>,
    reconcile: F,
) -> impl Future<Output = F::Output> + use<F> {
    RUNNING.scope(notes.clone(), reconcile)
}

/// The result of a reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastResult {
    /// Nothing to do until the next change.
    Done,
    /// The key is requeued after this time.
    RequeueAfter(Duration),
    /// The cache does not contain the controller's last writes yet.
    WaitingForCache,
    /// The reconcile returned no error but is incomplete; the key is requeued with backoff and counts as failing.
    RequeueWithBackoff,
    /// The reconcile failed and is retried with backoff.
    Failed,
    /// The reconcile failed and is retried only at the next change.
    Dropped,
    /// The reconcile panicked and is retried with backoff.
    Panicked,
}

impl LastResult {
    fn is_failure(self) -> bool {
        matches!(self, Self::RequeueWithBackoff | Self::Failed | Self::Dropped | Self::Panicked)
    }

    fn describe(self) -> String {
        match self {
            Self::Done => "done".into(),
            Self::RequeueAfter(time) => format!("requeued after {}", human_duration(time.as_secs_f64())),
            Self::WaitingForCache => "waiting for the cache to contain the last write".into(),
            Self::RequeueWithBackoff => "incomplete; requeued with backoff".into(),
            Self::Failed => "failed; requeued with backoff".into(),
            Self::Dropped => "failed; retried at the next change".into(),
            Self::Panicked => "panicked; requeued with backoff".into(),
        }
    }
}

/// A decision on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Box<str>,
    /// The time at which the reconcile ended.
    pub at: Timestamp,
    /// The duration of the reconcile.
    pub took: Duration,
    ended: LastResult,
    /// The actions and their results; empty if there were none.
    pub did: Box<str>,
}

impl Entry {
    /// Returns the result as a text.
    #[must_use]
    pub fn outcome(&self) -> String {
        self.ended.describe()
    }

    /// Returns true if the cache did not contain the controller's last writes yet.
    #[must_use]
    pub fn is_waiting_for_cache(&self) -> bool {
        self.ended == LastResult::WaitingForCache
    }

    /// Returns the delay after which the key is requeued, if the reconcile requested one.
    #[must_use]
    pub fn requeue_after(&self) -> Option<Duration> {
        match self.ended {
            LastResult::RequeueAfter(time) => Some(time),
            _ => None,
        }
    }
}

/// The failures of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The last error.
    pub error: Box<str>,
    /// The time of the first of these consecutive failures.
    pub since: Timestamp,
    /// The time of the last failure.
    pub last: Timestamp,
    /// The number of consecutive failures.
    pub times: u32,
    /// The key is retried only at the next change.
    pub dropped: bool,
}

#[derive(Debug, Default)]
struct State {
    recent: VecDeque<Entry>,
    failing: HashMap<Box<str>, Failure>,
    /// Number of failing keys that were discarded.
    discarded: u64,
}

/// The last decisions and the failing keys of a controller.
#[derive(Debug, Default)]
pub struct Journal(Mutex<State>);

impl Journal {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0)
    }

    /// Adds a decision; `error` is the reason of a failure.
    pub(crate) fn record(&self, key: String, ended: LastResult, took: Duration, did: String, error: Option<String>) {
        let (at, key) = (Timestamp::now(), shortened(key, MAX_KEY_BYTES).into_boxed_str());
        let mut state = self.state();
        if ended.is_failure() {
            let error = error.filter(|error| !error.is_empty()).unwrap_or_else(|| did.clone());
            let error = shortened(error, MAX_ERROR_BYTES).into_boxed_str();
            state.fail(&key, error, at, ended == LastResult::Dropped);
        } else if ended != LastResult::WaitingForCache && !state.failing.is_empty() {
            state.failing.remove(&key);
        }
        if let Some(known) = state.recent.iter().position(|entry| entry.key == key) {
            state.recent.remove(known);
        } else if state.recent.len() >= MAX_RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back(Entry { key, at, took, ended, did: did.into_boxed_str() });
    }

    /// Returns the last decisions, the newest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Entry> {
        self.state().recent.iter().rev().cloned().collect()
    }

    /// Returns the last decision on a key, if it is still kept.
    #[must_use]
    pub fn last(&self, key: &str) -> Option<Entry> {
        self.state().recent.iter().find(|entry| *entry.key == *key).cloned()
    }

    /// Returns the failing keys, the longest failing first, and the number of discarded ones.
    #[must_use]
    pub fn failing(&self) -> (Vec<(Box<str>, Failure)>, u64) {
        let state = self.state();
        let mut failing: Vec<_> = state.failing.iter().map(|(key, failure)| (key.clone(), failure.clone())).collect();
        failing.sort_by(|a, b| (a.1.since, &a.0).cmp(&(b.1.since, &b.0)));
        (failing, state.discarded)
    }

    /// Returns the failures of a key, if it fails.
    #[must_use]
    pub fn failure(&self, key: &str) -> Option<Failure> {
        self.state().failing.get(key).cloned()
    }

    /// Returns the number of failing keys.
    #[must_use]
    pub fn failures(&self) -> usize {
        self.state().failing.len()
    }
}

impl State {
    fn fail(&mut self, key: &str, error: Box<str>, at: Timestamp, dropped: bool) {
        if let Some(failure) = self.failing.get_mut(key) {
            let times = failure.times.saturating_add(1);
            *failure = Failure { error, since: failure.since, last: at, times, dropped };
            return;
        }
        if self.failing.len() >= MAX_FAILING {
            let oldest = self.failing.iter().min_by_key(|(_, failure)| failure.last).map(|(key, _)| key.clone());
            if let Some(key) = oldest {
                self.failing.remove(&key);
            }
            self.discarded += 1;
        }
        self.failing.insert(key.into(), Failure { error, since: at, last: at, times: 1, dropped });
    }
}
