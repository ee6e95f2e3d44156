//! A controller's last decisions and its failing keys, in bounded space.
//!
//! What a reconcile does is noted as it happens, by the Writer, the event recorder and `Consistency`, and
//! belongs to the reconcile that runs in the same task.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::text::words;

/// Decisions that a controller remembers.
pub const RECENT: usize = 64;
/// Failing keys that a controller remembers; of more, the oldest are forgotten.
pub const FAILING: usize = 256;
/// Different notes of one reconcile that are kept.
const NOTES: usize = 6;
/// Bytes of all notes of one reconcile.
const LONGEST_NOTES: usize = 320;
/// Bytes of an error.
const LONGEST_ERROR: usize = 512;

tokio::task_local! {
    static RUNNING: Arc<Mutex<Notes>>;
}

/// What a reconcile did so far.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    kept: Vec<(String, u32)>,
    more: u32,
    retry_after: Duration,
}

impl Notes {
    fn add(&mut self, text: String) {
        if let Some((_, times)) = self.kept.iter_mut().find(|(known, _)| *known == text) {
            *times += 1;
        } else if self.kept.len() < NOTES {
            self.kept.push((text, 1));
        } else {
            self.more += 1;
        }
    }

    /// The longest Retry-After that the API server returned in this reconcile; zero without one.
    pub(crate) fn retry_after(notes: &Mutex<Self>) -> Duration {
        notes.lock().unwrap_or_else(PoisonError::into_inner).retry_after
    }

    /// Everything in one line; nothing is left.
    pub(crate) fn take(notes: &Mutex<Self>) -> String {
        let Self { kept, more, retry_after: _ } =
            std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner));
        let mut line = String::new();
        for (text, times) in kept {
            let separator = if line.is_empty() { "" } else { "; " };
            // Writing to a String cannot fail.
            let _ = match times {
                1 => write!(line, "{separator}{text}"),
                _ => write!(line, "{separator}{text} ({times} times)"),
            };
        }
        if more > 0 {
            let _ = write!(line, "; and {more} more");
        }
        shortened(line, LONGEST_NOTES)
    }
}

/// Notes what the reconcile that runs in this task does; outside of one it does nothing.
pub fn note(text: impl FnOnce() -> String) {
    // The error says that no reconcile runs here.
    let _ = RUNNING.try_with(|notes| notes.lock().unwrap_or_else(PoisonError::into_inner).add(text()));
}

/// Records that the API server asked the reconcile that runs in this task to retry only after a time. If the reconcile
/// fails, its key is requeued no sooner.
pub(crate) fn note_retry_after(delay: Duration) {
    // The error says that no reconcile runs here.
    let _ = RUNNING.try_with(|notes| {
        let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
        notes.retry_after = notes.retry_after.max(delay);
    });
}

/// Runs a reconcile whose notes go there.
pub(crate) fn noted<F: Future>(notes: &Arc<Mutex<Notes>>, reconcile: F) -> impl Future<Output = F::Output> + use<F> {
    RUNNING.scope(notes.clone(), reconcile)
}

/// The first bytes of a text, and a mark if there were more.
fn shortened(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

/// How a reconcile ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastResult {
    /// Nothing more until something changes.
    Done,
    /// The key is requeued after this time.
    RequeueAfter(Duration),
    /// A cache does not show the controller's last writes yet.
    WaitingForCache,
    /// Nothing failed, but the key is requeued with backoff.
    RequeueWithBackoff,
    /// It failed and is tried again.
    Failed,
    /// It failed and is not tried again until something changes.
    Dropped,
    /// It panicked and is tried again.
    Panicked,
}

impl LastResult {
    fn failed(self) -> bool {
        matches!(self, Self::RequeueWithBackoff | Self::Failed | Self::Dropped | Self::Panicked)
    }

    fn words(self) -> String {
        match self {
            Self::Done => "done: nothing more until something changes".into(),
            Self::RequeueAfter(time) => format!("looks again after {}", words(time.as_secs_f64())),
            Self::WaitingForCache => "waits for a store to show what was written".into(),
            Self::RequeueWithBackoff => "could not be finished; tried again after a growing time".into(),
            Self::Failed => "failed; tried again after a growing time".into(),
            Self::Dropped => "failed; not tried again until something changes".into(),
            Self::Panicked => "panicked; tried again after a growing time".into(),
        }
    }
}

/// A decision on a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Box<str>,
    /// When it was over.
    pub at: Timestamp,
    /// How long it took.
    pub took: Duration,
    ended: LastResult,
    /// What was done, and with what success; empty when nothing was.
    pub did: Box<str>,
}

impl Entry {
    /// How it ended, in words.
    #[must_use]
    pub fn outcome(&self) -> String {
        self.ended.words()
    }

    /// Whether a cache did not show the controller's last writes yet.
    #[must_use]
    pub fn is_waiting_for_cache(&self) -> bool {
        self.ended == LastResult::WaitingForCache
    }

    /// After which time it is looked at again, if it asked for that.
    #[must_use]
    pub fn again_after(&self) -> Option<Duration> {
        match self.ended {
            LastResult::RequeueAfter(time) => Some(time),
            _ => None,
        }
    }
}

/// A key that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The last error.
    pub error: Box<str>,
    /// When the first of these failures in a row was.
    pub since: Timestamp,
    /// When the last one was.
    pub last: Timestamp,
    /// How many there were in a row.
    pub times: u32,
    /// It is not tried again until something changes.
    pub dropped: bool,
}

#[derive(Debug, Default)]
struct State {
    recent: VecDeque<Entry>,
    failing: HashMap<Box<str>, Failure>,
    forgotten: u64,
}

/// A controller's last decisions and its failing keys.
#[derive(Debug, Default)]
pub struct Journal(Mutex<State>);

impl Journal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a decision in; `error` says why it failed, if it did.
    pub(crate) fn record(&self, key: String, ended: LastResult, took: Duration, did: String, error: Option<String>) {
        let (at, key) = (Timestamp::now(), key.into_boxed_str());
        let mut state = self.state();
        if ended.failed() {
            let error = error.filter(|error| !error.is_empty()).unwrap_or_else(|| did.clone());
            let error = shortened(error, LONGEST_ERROR).into_boxed_str();
            state.fail(&key, error, at, ended == LastResult::Dropped);
        } else if ended != LastResult::WaitingForCache && !state.failing.is_empty() {
            state.failing.remove(&key);
        }
        if let Some(known) = state.recent.iter().position(|entry| entry.key == key) {
            state.recent.remove(known);
        } else if state.recent.len() >= RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back(Entry { key, at, took, ended, did: did.into_boxed_str() });
    }

    /// The last decisions, the newest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Entry> {
        self.state().recent.iter().rev().cloned().collect()
    }

    /// The last decision on a key, if it is remembered.
    #[must_use]
    pub fn last(&self, key: &str) -> Option<Entry> {
        self.state().recent.iter().find(|entry| *entry.key == *key).cloned()
    }

    /// The failing keys, those that fail longest first, and how many more were forgotten so far.
    #[must_use]
    pub fn failing(&self) -> (Vec<(Box<str>, Failure)>, u64) {
        let state = self.state();
        let mut failing: Vec<_> = state.failing.iter().map(|(key, failure)| (key.clone(), failure.clone())).collect();
        failing.sort_by(|a, b| (a.1.since, &a.0).cmp(&(b.1.since, &b.0)));
        (failing, state.forgotten)
    }

    /// How a key fails, if it does.
    #[must_use]
    pub fn failure(&self, key: &str) -> Option<Failure> {
        self.state().failing.get(key).cloned()
    }

    /// How many keys fail.
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
        if self.failing.len() >= FAILING {
            let oldest = self.failing.iter().min_by_key(|(_, failure)| failure.last).map(|(key, _)| key.clone());
            oldest.into_iter().for_each(|key| drop(self.failing.remove(&key)));
            self.forgotten += 1;
        }
        self.failing.insert(key.into(), Failure { error, since: at, last: at, times: 1, dropped });
    }
}
