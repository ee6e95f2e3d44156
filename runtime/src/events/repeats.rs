//! Delayed repeats of events, so that one patch covers several repeats.
//!
//! Upstream patches an event's count at each repeat. Only the last of several patches is useful, so a repeat is delayed
//! and replaced by later ones of the same event. The delay is one second at first, five for a combined
//! event, and doubles while repeats arrive, up to [`MAX_WAIT`].

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::body::Event;

/// Delay of the first repeat of an event.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// Delay of the first repeat of a combined event: its message is only an example of many.
const FIRST_WAIT_COMBINED: Duration = Duration::from_secs(5);

/// Maximum delay of a repeat; until then the delay doubles from patch to patch.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(10);

/// Maximum number of events whose repeats are delayed: as many as are counted. Each may have a message of 8 KiB.
const MAX_SERIES: usize = 4096;

/// One event that is repeated.
#[derive(Debug)]
struct Series {
    /// The event with its last count, and the number of occurrences that the next patch covers.
    waiting: Option<(Event, u64)>,
    /// The delay of the waiting event. Without one: the delay of the last patch; the series is kept for the same time
    /// after that patch.
    wait: Duration,
    /// The time at which the patch is due; without a waiting event, the time at which the series is removed.
    due: Instant,
}

/// Delayed repeats, at most one per event, and their last delays.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    /// By namespace and name of the event.
    series: HashMap<String, Series>,
    /// Keys by due time.
    order: BTreeSet<(Instant, String)>,
}

impl Repeats {
    /// Adds a repeat. If it replaces an earlier repeat of the same event, the due time is unchanged. Returns the number
    /// of occurrences that are dropped because too many events are repeated: those of the event that is due first.
    pub(super) fn put(&mut self, event: Event) -> u64 {
        let key = format!("{}/{}", event.namespace(), event.name);
        let wait = match self.series.get_mut(&key) {
            Some(Series { waiting: Some((known, occurrences)), .. }) => {
                *known = event;
                *occurrences += 1;
                return 0;
            }
            Some(series) => {
                self.order.remove(&(series.due, key.clone()));
                (series.wait * 2).min(MAX_WAIT)
            }
            None if event.is_combined() => FIRST_WAIT_COMBINED,
            None => FIRST_WAIT,
        };
        let due = Instant::now() + wait;
        self.order.insert((due, key.clone()));
        self.series.insert(key, Series { waiting: Some((event, 1)), wait, due });
        if self.series.len() > MAX_SERIES { self.remove_first() } else { 0 }
    }

    /// Removes the series that is due first. Returns the number of occurrences that its waiting event covers.
    fn remove_first(&mut self) -> u64 {
        let first = self.order.pop_first().and_then(|(_, key)| self.series.remove(&key));
        first.and_then(|series| series.waiting).map_or(0, |(_, occurrences)| occurrences)
    }

    /// Returns the time at which [`Repeats::take`] has something to return or to remove.
    pub(super) fn due(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Returns the next repeat that is due by `until`, with the number of occurrences that it covers. If `until` is
    /// `None`, returns the next repeat even if it is not due yet.
    pub(super) fn take(&mut self, until: Option<Instant>) -> Option<(Event, u64)> {
        loop {
            let (due, _) = self.order.first()?;
            if until.is_some_and(|until| *due > until) {
                return None;
            }
            let (_, key) = self.order.pop_first()?;
            let series = self.series.get_mut(&key)?;
            match series.waiting.take() {
                Some(repeat) => {
                    // The series is kept for another wait, so that a repeat in that time continues it.
                    series.due = Instant::now() + series.wait;
                    self.order.insert((series.due, key));
                    return Some(repeat);
                }
                None => {
                    self.series.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::super::correlate::{Correlator, Occurrence};
    use super::super::{EventType, ObjectReference};
    use super::*;

    /// Returns a repeat of one event; of a combined one if `combined`.
    fn repeat(combined: bool) -> Event {
        let mut correlator = Correlator::new("c");
        let mut last = None;
        for nth in 0..12 {
            let message = if combined { nth.to_string() } else { "same".to_owned() };
            let at = Timestamp::UNIX_EPOCH;
            let about = ObjectReference { name: "p".into(), ..ObjectReference::default() };
            last =
                Some(correlator.correlate(Occurrence { about, kind: EventType::Normal, reason: "R", message, at }, at));
        }
        last.expect("twelve occurrences").event
    }

    #[tokio::test(start_paused = true)]
    async fn number_of_repeated_events_is_limited() {
        let (mut repeats, repeated, mut dropped) = (Repeats::default(), repeat(false), 0);
        for number in 0..MAX_SERIES + 10 {
            let event = Event { name: format!("e{number}"), ..repeated.clone() };
            dropped += repeats.put(event.clone()) + repeats.put(event);
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert_eq!((repeats.series.len(), repeats.order.len(), dropped), (MAX_SERIES, MAX_SERIES, 20));
        assert_eq!(repeats.take(None).map(|(event, _)| event.name), Some("e10".to_owned()), "the oldest were dropped");
    }

    /// Repeats an event every half second. Returns the times of its patches, in seconds since the start.
    async fn patches(combined: bool, seconds: u64) -> Vec<u64> {
        let (mut repeats, started, mut sent) = (Repeats::default(), Instant::now(), Vec::new());
        let mut covered = 0;
        for _ in 0..seconds * 2 {
            repeats.put(repeat(combined));
            tokio::time::advance(Duration::from_millis(500)).await;
            while let Some((_, occurrences)) = repeats.take(Some(Instant::now())) {
                sent.push(started.elapsed().as_secs());
                covered += occurrences;
            }
        }
        while let Some((_, occurrences)) = repeats.take(None) {
            covered += occurrences;
        }
        assert_eq!(covered, seconds * 2, "each occurrence is covered once");
        sent
    }

    #[tokio::test(start_paused = true)]
    async fn patches_become_rarer_while_an_event_repeats() {
        assert_eq!(patches(false, 40).await, [1, 3, 7, 15, 25, 35]);
        assert_eq!(patches(true, 40).await, [5, 15, 25, 35]);
    }

    #[tokio::test(start_paused = true)]
    async fn ended_series_is_removed_and_the_next_one_starts_over() {
        let mut repeats = Repeats::default();
        repeats.put(repeat(false));
        assert_eq!(repeats.due(), Some(Instant::now() + FIRST_WAIT));
        assert!(repeats.take(Some(Instant::now())).is_none(), "not yet");
        tokio::time::advance(FIRST_WAIT).await;
        assert!(repeats.take(Some(Instant::now())).is_some());
        tokio::time::advance(FIRST_WAIT).await;
        assert!(repeats.take(Some(Instant::now())).is_none());
        assert!(repeats.series.is_empty() && repeats.order.is_empty());
        repeats.put(repeat(false));
        assert_eq!(repeats.due(), Some(Instant::now() + FIRST_WAIT));
    }
}
