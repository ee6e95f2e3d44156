//! Correlation of events: combined with similar ones, counted with equal ones, or dropped as spam.
//!
//! The whole policy of upstream's `tools/record`, `EventCorrelator`, without IO: the current time is an argument.

use std::hash::{BuildHasher, Hash, RandomState};

use jiff::Timestamp;

use super::body::{Event, event_name};
use super::lru::Lru;
use super::{EventType, ObjectReference};

/// Maximum number of entries of each cache.
const MAX_CACHE_ENTRIES: usize = 4096;
/// Number of different messages at which events begin to be combined.
const SIMILAR_MESSAGES: usize = 10;
/// Maximum time between two similar messages.
const SIMILAR_WITHIN_SECONDS: f64 = 600.0;
/// Initial and maximum budget of an object for one type of event, in events.
const SPAM_BURST: f64 = 25.0;
/// Time after which one event is added to a budget.
const SPAM_REFILL_SECONDS: f64 = 300.0;
const COMBINED_PREFIX: &str = "(combined from similar events): ";

/// One event as a controller recorded it.
#[derive(Debug, Clone)]
pub(super) struct Occurrence {
    pub(super) about: ObjectReference,
    pub(super) kind: EventType,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) at: Timestamp,
}

/// The result of the correlation.
#[derive(Debug)]
pub(super) struct Correlation {
    /// The event as the server should store it; a count above one means that it was recorded before.
    pub(super) event: Event,
    /// The object's budget is exhausted: nothing is written, but the count is kept.
    pub(super) spam: bool,
}

/// The different messages of one reason about one object.
#[derive(Debug)]
struct SimilarMessages {
    /// Hashes of the messages, the oldest first.
    messages: Vec<u64>,
    last: Timestamp,
}

/// The occurrences of an event.
#[derive(Debug, Default)]
struct EventCount {
    count: u32,
    first: Timestamp,
    name: String,
}

/// The budget of an object for events of one type.
#[derive(Debug)]
struct Budget {
    tokens: f64,
    at: Timestamp,
}

/// The state for one component's events: three caches of 4,096 entries, with hashes, counts and event names, but no
/// events.
#[derive(Debug)]
pub(super) struct Correlator {
    component: &'static str,
    hasher: RandomState,
    similar: Lru<SimilarMessages>,
    counted: Lru<EventCount>,
    budgets: Lru<Budget>,
}

impl Correlator {
    /// Creates an empty state for the events of `component`.
    pub(super) fn new(component: &'static str) -> Self {
        Self {
            component,
            hasher: RandomState::new(),
            similar: Lru::new(MAX_CACHE_ENTRIES),
            counted: Lru::new(MAX_CACHE_ENTRIES),
            budgets: Lru::new(MAX_CACHE_ENTRIES),
        }
    }

    /// Combines, counts and filters, in this order, as `EventCorrelator.EventCorrelate` does; `now` is the wall clock.
    pub(super) fn correlate(&mut self, occurrence: Occurrence, now: Timestamp) -> Correlation {
        let (mut event, key) = self.combine(occurrence, now);
        self.count(&mut event, key);
        let spam = !self.allow(&event, now);
        Correlation { event, spam }
    }

    /// Returns the event for an occurrence, and its key. From the tenth different message of one reason about one
    /// object on, each message that is not among the last nine becomes the combined event of that reason, until none
    /// arrives for ten minutes (`EventAggregator.EventAggregate`).
    fn combine(&mut self, occurrence: Occurrence, now: Timestamp) -> (Event, u64) {
        let Occurrence { about, kind, reason, message, at } = occurrence;
        let similar_key = self.key(&about, kind, (0u8, reason));
        let message_key = self.hasher.hash_one(&message);
        let similar = self.similar.entry(similar_key, || SimilarMessages { messages: Vec::new(), last: now });
        if seconds_between(similar.last, now) > SIMILAR_WITHIN_SECONDS {
            similar.messages.clear();
        }
        similar.last = now;
        if !similar.messages.contains(&message_key) {
            similar.messages.push(message_key);
        }
        if similar.messages.len() < SIMILAR_MESSAGES {
            let key = self.key(&about, kind, (1u8, reason, &message));
            let event = Event {
                name: event_name(&about.name, at),
                about,
                kind,
                reason,
                message,
                component: self.component,
                reporting: true,
                first: at,
                last: at,
                count: 1,
            };
            return (event, key);
        }
        // Upstream drops a random message; dropping the oldest is equivalent and reproducible.
        similar.messages.remove(0);
        let event = Event {
            name: event_name(&about.name, now),
            about,
            kind,
            reason,
            message: format!("{COMBINED_PREFIX}{message}"),
            component: self.component,
            reporting: false,
            first: now,
            last: now,
            count: 1,
        };
        (event, similar_key)
    }

    /// Counts an event: one that was recorded before keeps its name and first time, and its count increases
    /// (`eventLogger.eventObserve`).
    fn count(&mut self, event: &mut Event, key: u64) {
        let counted = self.counted.entry(key, EventCount::default);
        if counted.count > 0 {
            event.name.clone_from(&counted.name);
            event.first = counted.first;
        } else {
            counted.name.clone_from(&event.name);
            counted.first = event.first;
        }
        counted.count = counted.count.saturating_add(1);
        event.count = counted.count;
    }

    /// Takes one token of the object's budget: 25 initially, then one every five minutes
    /// (`EventSourceObjectSpamFilter`).
    fn allow(&mut self, event: &Event, now: Timestamp) -> bool {
        let key = self.key(&event.about, event.kind, 2u8);
        let budget = self.budgets.entry(key, || Budget { tokens: SPAM_BURST, at: now });
        let refilled = seconds_between(budget.at, now).max(0.0) / SPAM_REFILL_SECONDS;
        budget.tokens = (budget.tokens + refilled).min(SPAM_BURST);
        budget.at = now;
        let allowed = budget.tokens >= 1.0;
        if allowed {
            budget.tokens -= 1.0;
        }
        allowed
    }

    /// Returns the hash of the part that all three keys share, and of the part that distinguishes them.
    fn key(&self, about: &ObjectReference, kind: EventType, distinction: impl Hash) -> u64 {
        let object = (&about.kind, &about.namespace, &about.name, &about.uid, &about.api_version);
        self.hasher.hash_one((object, kind, distinction))
    }
}

fn seconds_between(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}
