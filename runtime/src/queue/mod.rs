//! The work queue: keys to reconcile, each queued once and never reconciled twice at the same time.
//!
//! A key that is added while it waits is not added again. A key that is added while it is reconciled is ready again
//! when that reconcile ends. This is the only batching of urgent changes: nothing is delayed while no write is in
//! flight, and changes that arrive during a write share the next one. A slow API server gets larger batches, an idle
//! one gets each change immediately. A reconciler may request a cooldown between two such batches
//! ([`Queue::cool_down`]).
//!
//! Ready keys of several namespaces are handed out in turn, so that a namespace with many ready keys hardly delays the
//! keys of other namespaces. A namespace with long runs does not occupy all workers (`places`). Failed keys are
//! requeued with exponential backoff. Only changes of low urgency are coalesced: a key that has only such changes is
//! ready no sooner than a window after its last reconcile. Upstream: client-go, util/workqueue.

mod places;
mod state;
mod stats;

use std::cmp::Reverse;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kinds::Str;
use kinds::meta::{ObjectKey, Uid};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::backoff::doubled;
use crate::lock::{lock, try_lock};
use crate::stealing::share_woken_task;
use crate::wake::Wake;
use state::{Delayed, Priority, State, pop_due};

pub use stats::{QueueMetrics, QueueStats, Queues};

/// Maximum delay of a key. Many delays come from fields that users set, up to numbers beyond the range of the clock; a
/// key that is reconciled too early is delayed again.
pub const MAX_DELAY: Duration = Duration::from_secs(30 * 24 * 3600);

/// The identity of a unit of work.
pub trait QueueKey: Clone + Eq + Hash + Send {
    /// Returns the namespace of the work; empty if it has none. Namespaces with ready keys are served in turn.
    fn namespace(&self) -> &str {
        ""
    }
}

impl QueueKey for ObjectKey {
    fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl QueueKey for String {}
impl QueueKey for Str {}
impl QueueKey for Uid {}
impl QueueKey for &'static str {}

/// Options of a queue.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// Name in metrics.
    pub name: &'static str,
    /// Delay after the first failure.
    pub base_delay: Duration,
    /// Maximum delay after failures.
    pub max_delay: Duration,
    /// Minimum time between two runs of a key that were requested only by coalesced changes.
    pub window: Duration,
    /// The maximum of `window`, which doubles from run to run while such changes keep arriving.
    pub max_window: Duration,
}

impl QueueOptions {
    /// Returns options with upstream's default backoff and without coalescing.
    pub fn named(name: &'static str) -> Self {
        Self {
            name,
            base_delay: Duration::from_millis(5),
            max_delay: Duration::from_secs(1000),
            window: Duration::ZERO,
            max_window: Duration::ZERO,
        }
    }
}

/// The state of a key that is ready, delayed or being reconciled, or that has failed or is in its coalescing window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting<K> {
    /// The key.
    pub key: K,
    /// The key waits for a worker, or was added again during its current run.
    pub ready: bool,
    /// The time since a worker started with the key.
    pub working: Option<Duration>,
    /// The delay until its next run, if nothing happens before.
    pub due: Option<Duration>,
    /// The number of consecutive failures.
    pub failures: u32,
}

/// A read-only view of a queue, for reports.
pub trait QueueView: Send + Sync {
    /// Returns its name in metrics.
    fn name(&self) -> &'static str;
    /// Returns all keys with a state in no particular order.
    ///
    /// Costs O(n). Use it for debug pages only, never in a reconcile.
    fn waiting(&self) -> Vec<Waiting<String>>;
    /// Returns the keys that have been reconciled for at least this time, with the start of the run, in no particular
    /// order; `None` while another thread holds the queue's lock.
    fn long_runs(&self, min: Duration) -> Option<Vec<(String, Instant)>>;
}

impl<K: QueueKey + Sync + fmt::Display> QueueView for Queue<K> {
    fn name(&self) -> &'static str {
        self.options.name
    }

    fn waiting(&self) -> Vec<Waiting<String>> {
        let text = |Waiting { key, ready, working, due, failures }: Waiting<K>| Waiting {
            key: key.to_string(),
            ready,
            working,
            due,
            failures,
        };
        // Formats outside the lock, because formatting is slow.
        Queue::waiting(self).into_iter().map(text).collect()
    }

    fn long_runs(&self, min: Duration) -> Option<Vec<(String, Instant)>> {
        let now = Instant::now();
        let is_long = |since: Instant| now - since >= min;
        let long: Vec<(K, Instant)> = {
            let state = try_lock(&self.state)?;
            if !state.places.starts().next().is_some_and(is_long) {
                return Some(Vec::new());
            }
            let working = state.items.iter().filter_map(|(key, item)| Some((key, item.working?)));
            working.filter(|(_, since)| is_long(*since)).map(|(key, since)| (key.clone(), since)).collect()
        };
        Some(long.into_iter().map(|(key, since)| (key.to_string(), since)).collect())
    }
}

/// A deduplicating queue of keys with delays.
pub struct Queue<K> {
    options: QueueOptions,
    state: Mutex<State<K>>,
    wake: Notify,
    metrics: QueueMetrics,
}

impl<K: QueueKey> Queue<K> {
    /// Returns a callback that adds `key`, for use when a cache has reached a version. Several such callbacks for the
    /// same cache and version add the key only once.
    pub fn waker(self: &Arc<Self>, key: &K) -> Wake
    where
        K: 'static,
    {
        let (queue, added) = (self.clone(), key.clone());
        Wake::of((Arc::as_ptr(self).addr(), key), move || queue.add(added))
    }

    /// Creates an empty queue.
    pub fn new(options: QueueOptions) -> Arc<Self> {
        Arc::new(Self {
            metrics: QueueMetrics::new(options.name),
            options,
            state: Mutex::new(State::new()),
            wake: Notify::new(),
        })
    }

    /// Sets the number of keys that run at the same time; unlimited by default. Up to twice as many may be taken with
    /// [`Queue::next`]: the others are keys of further namespaces while runs take long.
    pub fn set_workers(&self, workers: usize) {
        self.lock().places.set_workers(workers);
    }

    /// Adds a key because of a change.
    pub fn add(&self, key: K) {
        self.add_with(key, Priority::Fresh);
    }

    /// Adds a key with low priority: at startup or resync.
    pub fn add_background(&self, key: K) {
        self.add_with(key, Priority::Background);
    }

    /// Adds a key whose changes may be coalesced: ready now if it was not reconciled recently, else at the end of its
    /// quiet period, the [`QueueOptions::window`] after its last reconcile.
    pub fn add_coalesced(&self, key: K) {
        let quiet_until = {
            let mut state = self.lock();
            match state.items.get_mut(&key) {
                Some(item) if item.working.is_some() && !self.options.window.is_zero() => {
                    item.busy_while_working = true;
                    return;
                }
                Some(item) => {
                    let now = Instant::now();
                    let quiet_until = item.quiet_until.filter(|until| *until > now);
                    if quiet_until.is_some() {
                        item.busy = true;
                    }
                    quiet_until
                }
                None => None,
            }
        };
        match quiet_until {
            Some(until) => self.add_at(key, until),
            None => self.add(key),
        }
    }

    /// Adds a key after a delay, at most [`MAX_DELAY`]. Of several delays the earliest applies.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.metrics.retries.inc();
        if delay.is_zero() {
            self.add(key);
        } else {
            self.add_at(key, Instant::now() + delay.min(MAX_DELAY));
        }
    }

    /// Adds a failed key after its backoff.
    pub fn add_rate_limited(&self, key: K) {
        self.add_rate_limited_after(key, Duration::ZERO);
    }

    /// Like [`Queue::add_rate_limited`], but no sooner than after `min_delay`.
    pub fn add_rate_limited_after(&self, key: K, min_delay: Duration) {
        let delay = {
            let mut state = self.lock();
            let item = state.items.entry(key.clone()).or_default();
            let delay = doubled(self.options.base_delay, item.failures, self.options.max_delay);
            item.failures = item.failures.saturating_add(1);
            delay
        };
        self.add_after(key, delay.max(min_delay));
    }

    /// Resets a key's failures.
    pub fn forget(&self, key: &K) {
        let mut state = self.lock();
        if let Some(item) = state.items.get_mut(key) {
            if item.failures > 0 {
                item.failures = 0;
            }
            if item.is_idle(Instant::now()) {
                state.remove(key);
            }
        }
    }

    /// Returns the number of failures of a key since its last reset.
    #[cfg(test)]
    fn failures(&self, key: &K) -> u32 {
        self.lock().items.get(key).map_or(0, |item| item.failures)
    }

    /// Waits for the next key to reconcile; `None` once the queue is closed. The caller must call [`Queue::done`] or
    /// [`Queue::waiting_for_cache`] with the key, and `next` again unless enough keys are running.
    pub async fn next(&self) -> Option<K> {
        let mut has_timer = false;
        loop {
            let notified = self.wake.notified();
            let until = {
                let mut state = self.lock();
                if state.closed {
                    return None;
                }
                let now = Instant::now();
                self.promote(&mut state, now);
                if let Some(key) = self.take(&mut state, now) {
                    // Wakes another worker, which takes a further key, or waits for the next due time in place of this
                    // worker.
                    if has_timer || state.has_candidate(now) {
                        self.notify(&mut state);
                    }
                    return Some(key);
                }
                state.is_taker_idle = true;
                state.next_check(now)
            };
            has_timer = until.is_some();
            match until {
                Some(at) => tokio::select! {
                    () = notified => {}
                    () = sleep_until(at) => {}
                },
                None => notified.await,
            }
        }
    }

    /// Ends the run of a key that waits for the cache, which adds the key again ([`Queue::waker`]). The quiet period of
    /// the key is not changed.
    pub fn waiting_for_cache(&self, key: &K) {
        let mut state = self.lock();
        let now = Instant::now();
        self.end_work(&mut state, key, now);
        let Some(item) = state.items.get_mut(key) else { return };
        item.busy |= std::mem::take(&mut item.busy_while_working);
        if let Some(priority) = item.again.take() {
            self.push(&mut state, key.clone(), priority, now);
        } else if item.is_idle(now) && self.options.window.is_zero() {
            state.remove(key);
        }
    }

    /// Ends the current run of a key and records its duration. Wakes a worker if another key is ready.
    fn end_work(&self, state: &mut State<K>, key: &K, now: Instant) {
        if let Some(since) = state.items.get_mut(key).and_then(|item| item.working.take()) {
            self.metrics.work_duration.observe((now - since).as_secs_f64());
            let namespace = state.namespace(key);
            state.places.end(namespace, since);
            if state.has_candidate(now) {
                self.notify(state);
            }
        }
    }

    /// Wakes a worker that waits for a key.
    fn notify(&self, state: &mut State<K>) {
        self.wake.notify_one();
        // A reconcile that adds a key of another controller may compute for a long time afterwards.
        if std::mem::take(&mut state.is_taker_idle) {
            share_woken_task();
        }
    }

    /// Delays the next run of a key by `cooldown` after the current run, if the key is added during this run. Batches
    /// that follow each other without a gap become fewer and larger.
    ///
    /// A key that is first added after its run is not delayed, so that changes which arrive one by one never wait.
    pub fn cool_down(&self, key: &K, cooldown: Duration) {
        if let Some(item) = self.lock().items.get_mut(key).filter(|item| item.working.is_some()) {
            item.cooldown = cooldown;
        }
    }

    /// Ends the run of a key. The key is ready again if it was added during the run.
    pub fn done(&self, key: &K) {
        let mut state = self.lock();
        let now = Instant::now();
        self.end_work(&mut state, key, now);
        let Some(item) = state.items.get_mut(key) else { return };
        let again = item.again.take();
        let cooldown = std::mem::take(&mut item.cooldown);
        item.cool_at = again.map(|_| now + cooldown);
        let mut coalesced = None;
        if !self.options.window.is_zero() {
            item.window = if item.busy || item.busy_while_working {
                (item.window * 2).min(self.options.max_window).max(self.options.window)
            } else {
                self.options.window
            };
            let until = now + item.window;
            item.quiet_until = Some(until);
            coalesced = std::mem::take(&mut item.busy_while_working).then_some(until);
            item.busy = coalesced.is_some();
            state.quiet.push(Reverse(Delayed { at: until, key: key.clone() }));
        } else if item.is_idle(now) && again.is_none() {
            state.remove(key);
        }
        if let Some(priority) = again {
            self.push(&mut state, key.clone(), priority, now);
        }
        drop(state);
        if let Some(until) = coalesced {
            self.add_at(key.clone(), until);
        }
    }

    /// Returns all keys with a state, also those that are only being reconciled or have only failed, in no particular
    /// order.
    pub fn waiting(&self) -> Vec<Waiting<K>> {
        let (now, state) = (Instant::now(), self.lock());
        let items = state.items.iter().filter(|(_, item)| !item.is_idle(now));
        let waiting = items.map(|(key, item)| Waiting {
            key: key.clone(),
            ready: item.ready.is_some() || item.again.is_some(),
            working: item.working.map(|since| now - since),
            due: item.due.map(|due| due.saturating_duration_since(now)),
            failures: item.failures,
        });
        waiting.collect()
    }

    /// Returns the number of entries in the ready lists. A key whose priority was raised while it was ready has two,
    /// until the older one is reached and skipped.
    pub fn len(&self) -> usize {
        let state = self.lock();
        state.fresh.len() + state.background.len()
    }

    /// Returns true if the ready lists have no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stops handing out keys. Workers exit after their current key.
    pub fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_waiters();
    }

    /// Returns the queue's metrics.
    pub fn metrics(&self) -> &QueueMetrics {
        &self.metrics
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        lock(&self.state)
    }

    fn add_with(&self, key: K, priority: Priority) {
        let mut state = self.lock();
        self.push(&mut state, key, priority, Instant::now());
    }

    fn add_at(&self, key: K, at: Instant) {
        self.delay(&mut self.lock(), key, at);
    }

    /// Makes a key ready at a time, unless it is due earlier.
    fn delay(&self, state: &mut State<K>, key: K, at: Instant) {
        let item = state.items.entry(key.clone()).or_default();
        if item.due.is_none_or(|due| at < due) {
            item.due = Some(at);
            state.delayed.push(Reverse(Delayed { at, key }));
            state.sweep_delayed();
            self.notify(state);
        }
    }

    /// Makes a key ready: immediately, after its current run, or at the end of its cooldown.
    fn push(&self, state: &mut State<K>, key: K, priority: Priority, now: Instant) {
        let item = state.items.entry(key.clone()).or_default();
        if item.added.is_none() {
            item.added = Some(now);
            self.metrics.adds.inc();
            self.metrics.depth.inc();
        }
        if item.working.is_some() {
            item.again = item.again.max(Some(priority));
            return;
        }
        if let Some(cool_at) = item.cool_at.filter(|cool_at| *cool_at > now) {
            return self.delay(state, key, cool_at);
        }
        match &mut item.ready {
            Some(waiting) if *waiting >= priority => return,
            // Raises the priority. The entry in the list of the lower priority is skipped when it is reached.
            Some(waiting) => *waiting = priority,
            None => item.ready = Some(priority),
        }
        let list = match priority {
            Priority::Fresh => &mut state.fresh,
            Priority::Background => &mut state.background,
        };
        let namespace = key.namespace().to_owned();
        list.push(&namespace, key);
        self.notify(state);
    }

    /// Moves due keys to the ready lists and removes items without remaining state.
    fn promote(&self, state: &mut State<K>, now: Instant) {
        while let Some(Delayed { at, key }) = pop_due(&mut state.delayed, now) {
            if let Some(item) = state.items.get_mut(&key)
                && item.due == Some(at)
            {
                item.due = None;
                self.push(state, key, Priority::Fresh, now);
            }
        }
        while let Some(Delayed { key, .. }) = pop_due(&mut state.quiet, now) {
            if state.items.get(&key).is_some_and(|item| item.is_idle(now)) {
                state.remove(&key);
            }
        }
    }

    /// Removes and returns the next ready key, and marks it as being reconciled.
    fn take(&self, state: &mut State<K>, now: Instant) -> Option<K> {
        loop {
            let (priority, key) = state.pop(now)?;
            if let Some(item) = state.items.get_mut(&key)
                && item.ready == Some(priority)
            {
                item.ready = None;
                // This run covers the changes for which the key was to run at the end of its quiet period.
                if item.due == item.quiet_until {
                    item.due = None;
                }
                item.cooldown = Duration::ZERO;
                item.cool_at = None;
                item.working = Some(now);
                if let Some(since) = item.added.take() {
                    self.metrics.depth.dec();
                    self.metrics.queue_duration.observe((now - since).as_secs_f64());
                }
                let namespace = state.namespace(&key);
                state.places.begin(namespace, now);
                return Some(key);
            }
        }
    }
}

impl<K: QueueKey> QueueStats for Queue<K> {
    fn metrics(&self) -> &QueueMetrics {
        &self.metrics
    }

    fn working(&self) -> (f64, f64) {
        let now = Instant::now();
        let state = self.lock();
        let ages = state.places.starts().map(|since| (now - since).as_secs_f64());
        ages.fold((0.0, 0.0), |(sum, longest), age| (sum + age, f64::max(longest, age)))
    }
}

#[cfg(test)]
mod tests;
