//! Repeats of events that wait a moment, so that one patch tells of several.
//!
//! Upstream patches an event's count at each repeat. Only the last of several patches within a second is of use to
//! anybody, so a repeat waits that long and later ones of the same event take its place.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::body::Event;

/// How long a repeat waits.
const WAITS: Duration = Duration::from_secs(1);

/// Repeats that wait, at most one of each event.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    waiting: HashMap<String, (Event, u64)>,
    order: VecDeque<(Instant, String)>,
}

impl Repeats {
    /// Takes a repeat in; it replaces an earlier one of the same event, which has waited longer.
    pub(super) fn put(&mut self, event: Event) {
        let key = format!("{}/{}", event.namespace(), event.name);
        match self.waiting.get_mut(&key) {
            Some((known, occurrences)) => {
                *known = event;
                *occurrences += 1;
            }
            None => {
                self.order.push_back((Instant::now() + WAITS, key.clone()));
                self.waiting.insert(key, (event, 1));
            }
        }
    }

    /// When the first repeat is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.order.front().map(|(due, _)| *due)
    }

    /// The next repeat that is due until then, or the next of all, and how many occurrences it tells of.
    pub(super) fn take(&mut self, until: Option<Instant>) -> Option<(Event, u64)> {
        let (due, _) = self.order.front()?;
        if until.is_some_and(|until| *due > until) {
            return None;
        }
        let (_, key) = self.order.pop_front()?;
        self.waiting.remove(&key)
    }
}
