//! The state of a queue and of its keys.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use tokio::time::Instant;

use super::QueueKey;
use super::places::{Admission, Places};
use crate::fair::{FairList, NamespaceHash};

/// Capacity up to which a queue's collections are never shrunk.
pub(super) const KEPT_CAPACITY: usize = 64;

/// Returns true if a collection should release memory. All objects of a kind are queued at startup, and few afterwards.
///
/// A collection that shrinks to twice its length is not shrunk again before three quarters of its entries are removed.
/// So the cost per removal stays constant.
fn is_oversized(len: usize, capacity: usize) -> bool {
    capacity > KEPT_CAPACITY && len < capacity / 8
}

/// Number of consecutive keys with priority [`Priority::Fresh`] after which a key with low priority is next. Otherwise
/// keys that fail constantly, which are retried like changes, could delay the keys of the startup forever.
pub(super) const MAX_FRESH_IN_ROW: u32 = 64;

/// The order of ready keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Priority {
    /// Added at startup or resync.
    Background,
    /// Added because of a change.
    Fresh,
}

/// The state of a key in the queue: that of a ready key, and, by dereferencing, that of its runs.
///
/// All objects of a kind are queued at startup. The state of runs is much larger, and is on the heap only for keys that
/// have begun to run or are delayed.
#[derive(Default)]
pub(super) struct Item {
    /// Its priority among the ready keys.
    pub(super) ready: Option<Priority>,
    /// The time at which it was added for its next run: it waits for a worker, for the end of its current run, or for
    /// the end of its cooldown.
    pub(super) added: Option<Instant>,
    runs: Option<Box<Runs>>,
}

/// The state of a key's current, last and delayed run.
#[derive(Default)]
pub(super) struct Runs {
    /// The time since which it has been reconciled.
    pub(super) working: Option<Instant>,
    /// The key's priority in the next run, if the key was added while it was reconciled.
    pub(super) again: Option<Priority>,
    /// The time of its earliest delayed run.
    pub(super) due: Option<Instant>,
    /// Consecutive failures.
    pub(super) failures: u32,
    /// Coalesced changes wait until this time.
    pub(super) quiet_until: Option<Instant>,
    /// The length of that quiet period when it began.
    pub(super) window: Duration,
    /// Coalesced changes arrived in that quiet period.
    pub(super) busy: bool,
    /// Coalesced changes arrived while the key was reconciled.
    pub(super) busy_while_working: bool,
    /// The cooldown after the current run.
    pub(super) cooldown: Duration,
    /// The end of the cooldown. The key is not ready before it.
    pub(super) cool_at: Option<Instant>,
}

impl Runs {
    const NONE: Runs = Runs {
        working: None,
        again: None,
        due: None,
        failures: 0,
        quiet_until: None,
        window: Duration::ZERO,
        busy: false,
        busy_while_working: false,
        cooldown: Duration::ZERO,
        cool_at: None,
    };
}

impl Deref for Item {
    type Target = Runs;

    fn deref(&self) -> &Runs {
        self.runs.as_deref().unwrap_or(&Runs::NONE)
    }
}

impl DerefMut for Item {
    fn deref_mut(&mut self) -> &mut Runs {
        self.runs.get_or_insert_default()
    }
}

impl Item {
    /// Returns true if the item holds no state that the queue needs, so that it can be removed.
    pub(super) fn is_idle(&self, now: Instant) -> bool {
        self.ready.is_none()
            && self.working.is_none()
            && self.due.is_none()
            && self.failures == 0
            && self.quiet_until.is_none_or(|until| until <= now)
    }
}

pub(super) struct State<K> {
    pub(super) items: HashMap<K, Item>,
    /// Ready keys with priority [`Priority::Fresh`].
    pub(super) fresh: FairList<K>,
    /// Ready keys with priority [`Priority::Background`], and entries of keys whose priority was raised: these are
    /// skipped.
    pub(super) background: FairList<K>,
    /// Number of keys with priority [`Priority::Fresh`] since the last one with [`Priority::Background`].
    fresh_in_row: u32,
    /// Delayed runs; an entry is valid only while it equals the item's `due`.
    pub(super) delayed: BinaryHeap<Reverse<Delayed<K>>>,
    /// Ends of quiet periods, after which items without other state can be removed.
    pub(super) quiet: BinaryHeap<Reverse<Delayed<K>>>,
    /// The current runs.
    pub(super) places: Places,
    /// Identifies namespaces in the ready lists and the places.
    hasher: RandomState,
    pub(super) closed: bool,
    /// A worker waits for a notification of the next key.
    pub(super) is_taker_idle: bool,
}

impl<K: QueueKey> State<K> {
    /// Returns the state of an empty queue.
    pub(super) fn new() -> Self {
        let hasher = RandomState::new();
        Self {
            items: HashMap::new(),
            fresh: FairList::new(hasher.clone()),
            background: FairList::new(hasher.clone()),
            fresh_in_row: 0,
            delayed: BinaryHeap::new(),
            quiet: BinaryHeap::new(),
            places: Places::default(),
            hasher,
            closed: false,
            is_taker_idle: false,
        }
    }

    /// Returns the namespace of a key as the ready lists and the places identify it.
    pub(super) fn namespace(&self, key: &K) -> NamespaceHash {
        self.hasher.hash_one(key.namespace())
    }

    /// Removes the item of a key.
    pub(super) fn remove(&mut self, key: &K) {
        self.items.remove(key);
        if is_oversized(self.items.len(), self.items.capacity()) {
            self.items.shrink_to(self.items.len() * 2);
        }
    }

    /// Removes the delayed runs that an earlier run of the same key replaced, if they are the majority. Without this,
    /// some would remain for a month: a key with a distant deadline gets a new delayed run after each run.
    pub(super) fn sweep_delayed(&mut self) {
        if self.delayed.len() > KEPT_CAPACITY.max(2 * self.items.len()) {
            let items = &self.items;
            let is_due =
                |delayed: &Delayed<K>| items.get(&delayed.key).is_some_and(|item| item.due == Some(delayed.at));
            self.delayed.retain(|Reverse(delayed)| is_due(delayed));
        }
    }

    /// Removes and returns the ready key whose turn it is, among those that may run now.
    pub(super) fn pop(&mut self, now: Instant) -> Option<(Priority, K)> {
        let admission = self.places.admission(now);
        let admits = |namespace| self.places.admits(admission, namespace);
        let is_background_due = self.fresh_in_row >= MAX_FRESH_IN_ROW;
        let background = if is_background_due { self.background.pop_admitted(admits) } else { None };
        if background.is_none()
            && let Some((_, key)) = self.fresh.pop_admitted(admits)
        {
            self.fresh_in_row = self.fresh_in_row.saturating_add(1);
            return Some((Priority::Fresh, key));
        }
        let (_, key) = background.or_else(|| self.background.pop_admitted(admits))?;
        self.fresh_in_row = 0;
        Some((Priority::Background, key))
    }

    /// Returns true if another worker could run a ready key now, or when a spare place is free.
    pub(super) fn has_candidate(&self, now: Instant) -> bool {
        if self.places.admission(now) == Admission::All {
            return !(self.fresh.is_empty() && self.background.is_empty());
        }
        let waits = |namespace| !self.places.has_run(namespace);
        self.places.next_spare().is_some() && (self.fresh.any(waits) || self.background.any(waits))
    }

    /// Returns the time at which a worker without a key has to check again, if nothing is added before.
    pub(super) fn next_check(&self, now: Instant) -> Option<Instant> {
        let delayed = self.delayed.peek().map(|Reverse(delayed)| delayed.at);
        let spare = self.places.next_spare().filter(|_| self.has_candidate(now));
        delayed.into_iter().chain(spare).min()
    }
}

/// Removes the earliest entry if it is due.
pub(super) fn pop_due<K>(heap: &mut BinaryHeap<Reverse<Delayed<K>>>, now: Instant) -> Option<Delayed<K>> {
    if heap.peek().is_none_or(|Reverse(first)| first.at > now) {
        return None;
    }
    let Reverse(due) = heap.pop()?;
    if is_oversized(heap.len(), heap.capacity()) {
        heap.shrink_to(heap.len() * 2);
    }
    Some(due)
}

/// A key and a time, ordered by time.
pub(super) struct Delayed<K> {
    pub(super) at: Instant,
    pub(super) key: K,
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
