//! The work queue: what is to be reconciled, once each, never twice at the same time.
//!
//! A key that is added while it waits is not added again. A key that is added while it is reconciled is ready again when
//! that reconcile ends. This is the only batching of urgent changes: nothing is delayed while no write is in flight, and
//! changes that arrive during a write share the next one. A slow API server gets larger batches, an idle one gets each
//! change immediately. A reconciler may ask for a cooldown between two such batches ([`Queue::cool_down`]).
//!
//! Failed keys are requeued with exponential backoff. Only changes of low urgency are coalesced: such a key is ready no
//! sooner than a window after its last reconcile. (client-go, util/workqueue)

mod stats;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::wake::Wake;

pub use stats::{QueueMetrics, QueueStats, Queues};

/// How a queue behaves.
#[derive(Debug, Clone)]
pub struct QueueOptions {
    /// Name in metrics.
    pub name: &'static str,
    /// First wait after a failure.
    pub base_delay: Duration,
    /// Longest wait after failures.
    pub max_delay: Duration,
    /// Shortest time between two runs of a key that only coalesced changes ask for.
    pub window: Duration,
    /// What that time grows to, doubling from run to run, while such changes keep coming.
    pub longest_window: Duration,
}

impl QueueOptions {
    /// Upstream's default rate limiter, and no coalescing.
    pub fn named(name: &'static str) -> Self {
        Self {
            name,
            base_delay: Duration::from_millis(5),
            max_delay: Duration::from_secs(1000),
            window: Duration::ZERO,
            longest_window: Duration::ZERO,
        }
    }
}

/// Where a key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting<K> {
    /// The key.
    pub key: K,
    /// It waits for a worker.
    pub ready: bool,
    /// It has been worked on for so long.
    pub working: Option<Duration>,
    /// It is looked at after this time, if nothing happens before.
    pub due: Option<Duration>,
    /// It failed so often in a row.
    pub failures: u32,
}

/// A queue as people see it.
pub trait QueueLook: Send + Sync {
    /// Its name in metrics.
    fn name(&self) -> &'static str;
    /// All keys that are in it, in no order. Looks at each of them: for whoever asks because a person did.
    fn waiting(&self) -> Vec<Waiting<String>>;
}

impl<K: Clone + Eq + Hash + Send + Sync + fmt::Display> QueueLook for Queue<K> {
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
        // Without the lock: texts are slow.
        Queue::waiting(self).into_iter().map(text).collect()
    }
}

/// Which keys go first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Priority {
    Background,
    Fresh,
}

#[derive(Default)]
struct Item {
    /// Waits in a ready list since then.
    ready: Option<(Priority, Instant)>,
    /// Is being worked on since then.
    working: Option<Instant>,
    /// Was added while it was worked on.
    again: Option<Priority>,
    /// Earliest delayed run.
    due: Option<Instant>,
    failures: u32,
    /// Coalesced changes wait until then.
    quiet_until: Option<Instant>,
    /// How long that quiet time was when it began.
    window: Duration,
    /// Coalesced changes came in that quiet time.
    busy: bool,
    /// Coalesced changes came while it was worked on.
    busy_while_working: bool,
    /// The cooldown after the present run.
    cooldown: Duration,
    /// The end of the cooldown. The key is not ready before it.
    cool_at: Option<Instant>,
}

impl Item {
    fn is_idle(&self, now: Instant) -> bool {
        self.ready.is_none()
            && self.working.is_none()
            && self.due.is_none()
            && self.failures == 0
            && self.quiet_until.is_none_or(|until| until <= now)
    }
}

struct State<K> {
    items: HashMap<K, Item>,
    fresh: VecDeque<K>,
    background: VecDeque<K>,
    /// Delayed runs; an entry counts only while it is still the item's `due`.
    delayed: BinaryHeap<Reverse<Delayed<K>>>,
    /// Keys of which nothing has to be known from then on, so that their items can be forgotten.
    quiet: BinaryHeap<Reverse<Delayed<K>>>,
    closed: bool,
}

struct Delayed<K> {
    at: Instant,
    key: K,
}

impl<K> PartialEq for Delayed<K> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}
impl<K> Eq for Delayed<K> {}
impl<K> PartialOrd for Delayed<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Delayed<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

/// A deduplicating queue of keys with delays.
pub struct Queue<K> {
    options: QueueOptions,
    state: Mutex<State<K>>,
    wake: Notify,
    metrics: QueueMetrics,
}

impl<K: Clone + Eq + Hash + Send> Queue<K> {
    /// Adds `key` once a cache shows a write. A key waits only once for each cache and version.
    pub fn waker(self: &Arc<Self>, key: &K) -> Wake
    where
        K: 'static,
    {
        let (queue, added) = (self.clone(), key.clone());
        Wake::of((Arc::as_ptr(self).addr(), key), move || queue.add(added))
    }

    /// An empty queue.
    pub fn new(options: QueueOptions) -> Arc<Self> {
        Arc::new(Self {
            metrics: QueueMetrics::new(options.name),
            options,
            state: Mutex::new(State {
                items: HashMap::new(),
                fresh: VecDeque::new(),
                background: VecDeque::new(),
                delayed: BinaryHeap::new(),
                quiet: BinaryHeap::new(),
                closed: false,
            }),
            wake: Notify::new(),
        })
    }

    /// Adds a key because something changed.
    pub fn add(&self, key: K) {
        self.add_with(key, Priority::Fresh);
    }

    /// Adds a key that can wait until there is nothing fresh: start-up, resync.
    pub fn add_background(&self, key: K) {
        self.add_with(key, Priority::Background);
    }

    /// Adds a key whose changes may be taken together: now, if it was not done lately; else when its quiet time ends.
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
                    item.busy |= quiet_until.is_some();
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

    /// Adds a key after a time. Of several such times the earliest counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            self.add(key);
        } else {
            self.add_at(key, Instant::now() + delay);
        }
    }

    /// Adds a key that failed, after its own growing time.
    pub fn add_rate_limited(&self, key: K) {
        self.add_rate_limited_after(key, Duration::ZERO);
    }

    /// As [`Queue::add_rate_limited`], but no sooner than after `least`.
    pub fn add_rate_limited_after(&self, key: K, least: Duration) {
        let delay = {
            let mut state = self.lock();
            let item = state.items.entry(key.clone()).or_default();
            let doubled = self.options.base_delay.saturating_mul(1u32.checked_shl(item.failures).unwrap_or(u32::MAX));
            item.failures = item.failures.saturating_add(1);
            doubled.min(self.options.max_delay)
        };
        self.metrics.retries.inc();
        self.add_after(key, delay.max(least));
    }

    /// Forgets a key's failures.
    pub fn forget(&self, key: &K) {
        let mut state = self.lock();
        if let Some(item) = state.items.get_mut(key) {
            item.failures = 0;
            if item.is_idle(Instant::now()) {
                state.items.remove(key);
            }
        }
    }

    /// How often a key failed since it was last forgotten.
    pub fn failures(&self, key: &K) -> u32 {
        self.lock().items.get(key).map_or(0, |item| item.failures)
    }

    /// The next key to work on, when there is one; `None` once the queue is closed. The caller must call
    /// [`Queue::done`] with it.
    pub async fn next(&self) -> Option<K> {
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
                    return Some(key);
                }
                state.delayed.peek().map(|Reverse(delayed)| delayed.at)
            };
            match until {
                Some(at) => tokio::select! {
                    () = notified => {}
                    () = sleep_until(at) => {}
                },
                None => notified.await,
            }
        }
    }

    /// Says that nothing could be done about a key yet, and that it will be added again: what was known of its quiet
    /// time still holds.
    pub fn waiting_for_cache(&self, key: &K) {
        let mut state = self.lock();
        let now = Instant::now();
        let Some(item) = state.items.get_mut(key) else { return };
        self.end_work(item, now);
        item.busy |= std::mem::take(&mut item.busy_while_working);
        if let Some(priority) = item.again.take() {
            self.push(&mut state, key.clone(), priority, now);
        } else if item.is_idle(now) && self.options.window.is_zero() {
            state.items.remove(key);
        }
    }

    fn end_work(&self, item: &mut Item, now: Instant) {
        if let Some(since) = item.working.take() {
            self.metrics.work_duration.observe((now - since).as_secs_f64());
        }
    }

    /// Delays the next run of a key that is being worked on by `cooldown` after this run, if the key was added during it.
    /// Batches that follow each other without a gap then become fewer and larger.
    ///
    /// A key that is first added after its run is not delayed, so that changes which arrive one by one never wait.
    pub fn cool_down(&self, key: &K, cooldown: Duration) {
        if let Some(item) = self.lock().items.get_mut(key).filter(|item| item.working.is_some()) {
            item.cooldown = cooldown;
        }
    }

    /// Says that the work on a key is over; it comes back if it was added meanwhile.
    pub fn done(&self, key: &K) {
        let mut state = self.lock();
        let now = Instant::now();
        let Some(item) = state.items.get_mut(key) else { return };
        self.end_work(item, now);
        let again = item.again.take();
        let cooldown = std::mem::take(&mut item.cooldown);
        item.cool_at = again.map(|_| now + cooldown);
        let mut coalesced = None;
        if !self.options.window.is_zero() {
            item.window = match item.busy || item.busy_while_working {
                true => (item.window * 2).min(self.options.longest_window).max(self.options.window),
                false => self.options.window,
            };
            let until = now + item.window;
            item.quiet_until = Some(until);
            coalesced = std::mem::take(&mut item.busy_while_working).then_some(until);
            item.busy = coalesced.is_some();
            state.quiet.push(Reverse(Delayed { at: until, key: key.clone() }));
        } else if item.is_idle(now) && again.is_none() {
            state.items.remove(key);
        }
        if let Some(priority) = again {
            self.push(&mut state, key.clone(), priority, now);
        }
        drop(state);
        if let Some(until) = coalesced {
            self.add_at(key.clone(), until);
        }
    }

    /// All keys that are in the queue, in no order.
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

    /// Keys that wait to be worked on now.
    pub fn len(&self) -> usize {
        let state = self.lock();
        state.fresh.len() + state.background.len()
    }

    /// True when no key waits to be worked on now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Lets no key out any more; workers end after what they are doing.
    pub fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_waiters();
    }

    /// The queue's metrics.
    pub fn metrics(&self) -> &QueueMetrics {
        &self.metrics
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_with(&self, key: K, priority: Priority) {
        let mut state = self.lock();
        self.push(&mut state, key, priority, Instant::now());
    }

    fn add_at(&self, key: K, at: Instant) {
        self.delay(&mut self.lock(), key, at);
    }

    fn delay(&self, state: &mut State<K>, key: K, at: Instant) {
        let item = state.items.entry(key.clone()).or_default();
        if item.due.is_none_or(|due| at < due) {
            item.due = Some(at);
            state.delayed.push(Reverse(Delayed { at, key }));
            self.wake.notify_one();
        }
    }

    fn push(&self, state: &mut State<K>, key: K, priority: Priority, now: Instant) {
        let item = state.items.entry(key.clone()).or_default();
        if item.working.is_some() {
            if item.again.is_none() {
                self.metrics.adds.inc();
            }
            item.again = item.again.max(Some(priority));
            return;
        }
        if let Some(cool_at) = item.cool_at.filter(|cool_at| *cool_at > now) {
            return self.delay(state, key, cool_at);
        }
        match &mut item.ready {
            Some((waiting, _)) if *waiting >= priority => return,
            // Moves up; its place in the lower list is skipped when that is reached.
            Some((waiting, _)) => *waiting = priority,
            None => {
                self.metrics.adds.inc();
                self.metrics.depth.inc();
                item.ready = Some((priority, now));
            }
        }
        match priority {
            Priority::Fresh => state.fresh.push_back(key),
            Priority::Background => state.background.push_back(key),
        }
        self.wake.notify_one();
    }

    /// Moves delayed keys whose time has come to the ready lists, and forgets items that have nothing left to keep.
    fn promote(&self, state: &mut State<K>, now: Instant) {
        while state.delayed.peek().is_some_and(|Reverse(delayed)| delayed.at <= now) {
            let Some(Reverse(Delayed { at, key })) = state.delayed.pop() else { break };
            if let Some(item) = state.items.get_mut(&key)
                && item.due == Some(at)
            {
                item.due = None;
                self.push(state, key, Priority::Fresh, now);
            }
        }
        while state.quiet.peek().is_some_and(|Reverse(quiet)| quiet.at <= now) {
            let Some(Reverse(Delayed { key, .. })) = state.quiet.pop() else { break };
            if state.items.get(&key).is_some_and(|item| item.is_idle(now)) {
                state.items.remove(&key);
            }
        }
    }

    fn take(&self, state: &mut State<K>, now: Instant) -> Option<K> {
        loop {
            let (priority, key) = match state.fresh.pop_front() {
                Some(key) => (Priority::Fresh, key),
                None => (Priority::Background, state.background.pop_front()?),
            };
            if let Some(item) = state.items.get_mut(&key)
                && let Some((waiting, since)) = item.ready
                && waiting == priority
            {
                item.ready = None;
                (item.cooldown, item.cool_at) = (Duration::ZERO, None);
                item.working = Some(now);
                self.metrics.depth.dec();
                self.metrics.queue_duration.observe((now - since).as_secs_f64());
                if !(state.fresh.is_empty() && state.background.is_empty()) {
                    self.wake.notify_one();
                }
                return Some(key);
            }
        }
    }
}

impl<K: Clone + Eq + Hash + Send> QueueStats for Queue<K> {
    fn metrics(&self) -> &QueueMetrics {
        &self.metrics
    }

    fn working(&self) -> (f64, f64) {
        let now = Instant::now();
        let state = self.lock();
        let ages = state.items.values().filter_map(|item| item.working).map(|since| (now - since).as_secs_f64());
        ages.fold((0.0, 0.0), |(sum, longest), age| (sum + age, f64::max(longest, age)))
    }
}

#[cfg(test)]
mod tests;
