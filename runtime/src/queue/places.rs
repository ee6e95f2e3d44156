//! The places of a queue's workers, and the namespaces that occupy them.
//!
//! All workers can be busy in one namespace for minutes: each write waits for a slow admission webhook there, or for
//! the rate limit. Other namespaces' keys must not wait for that. So every run that has lasted [`SLOW`] opens a spare
//! place, and a spare place is only for a namespace without a run: a namespace never has more runs than there are
//! workers, and at most twice as many runs exist. Keys of objects without namespace count as one namespace.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use crate::fair::NamespaceHash;

/// Duration after which a run opens a spare place.
pub(super) const SLOW: Duration = Duration::from_secs(1);

/// The namespaces whose keys may run now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// A worker is free.
    All,
    /// Only a spare place is free.
    WithoutRun,
    /// No place is free.
    Closed,
}

/// The current runs of a queue's keys.
#[derive(Debug)]
pub(super) struct Places {
    workers: usize,
    /// Starts of the current runs, the oldest first.
    starts: VecDeque<Instant>,
    /// Number of current runs of each namespace that has any.
    runs: HashMap<NamespaceHash, usize>,
}

impl Default for Places {
    fn default() -> Self {
        Self { workers: usize::MAX, starts: VecDeque::new(), runs: HashMap::new() }
    }
}

impl Places {
    /// Sets the number of workers; unlimited by default.
    pub(super) fn set_workers(&mut self, workers: usize) {
        self.workers = workers.max(1);
    }

    /// Returns the namespaces whose keys may run at `now`.
    pub(super) fn admission(&self, now: Instant) -> Admission {
        if self.starts.len() < self.workers {
            return Admission::All;
        }
        match self.next_spare() {
            Some(at) if at <= now => Admission::WithoutRun,
            _ => Admission::Closed,
        }
    }

    /// Returns true if a key of this namespace may run.
    pub(super) fn admits(&self, admission: Admission, namespace: NamespaceHash) -> bool {
        match admission {
            Admission::All => true,
            Admission::WithoutRun => !self.has_run(namespace),
            Admission::Closed => false,
        }
    }

    /// Returns true if a key of this namespace runs.
    pub(super) fn has_run(&self, namespace: NamespaceHash) -> bool {
        self.runs.contains_key(&namespace)
    }

    /// Returns the time at which the next spare place is free if no run ends; `None` if that does not happen.
    pub(super) fn next_spare(&self) -> Option<Instant> {
        // The first spare place needs one slow run, the second needs two, and so on.
        let spare = self.starts.len().checked_sub(self.workers).filter(|spare| *spare < self.workers)?;
        self.starts.get(spare).map(|start| *start + SLOW)
    }

    /// Returns the starts of the current runs, the oldest first.
    pub(super) fn starts(&self) -> impl Iterator<Item = Instant> {
        self.starts.iter().copied()
    }

    /// Records the start of a run.
    pub(super) fn begin(&mut self, namespace: NamespaceHash, now: Instant) {
        self.starts.push_back(now);
        *self.runs.entry(namespace).or_default() += 1;
    }

    /// Records the end of a run that began at `start`.
    pub(super) fn end(&mut self, namespace: NamespaceHash, start: Instant) {
        let at = self.starts.partition_point(|other| *other < start);
        self.starts.remove(at);
        if let Some(runs) = self.runs.get_mut(&namespace) {
            *runs -= 1;
            if *runs == 0 {
                self.runs.remove(&namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spare_places_follow_the_table() {
        let now = Instant::now() + Duration::from_secs(100);
        // (workers, ages of the runs in milliseconds, admission)
        for (workers, ages, expected) in [
            (2, vec![], Admission::All),
            (2, vec![5000], Admission::All),
            (2, vec![5000, 0], Admission::WithoutRun),
            (2, vec![900, 0], Admission::Closed),
            (2, vec![5000, 900, 0], Admission::Closed),
            (2, vec![5000, 1000, 0], Admission::WithoutRun),
            (2, vec![5000, 5000, 5000, 5000], Admission::Closed),
            (1, vec![900], Admission::Closed),
            (1, vec![1000], Admission::WithoutRun),
            (1, vec![1000, 1000], Admission::Closed),
        ] {
            let mut places = Places::default();
            places.set_workers(workers);
            for age in &ages {
                places.begin(7, now - Duration::from_millis(*age));
            }
            assert_eq!(places.admission(now), expected, "{workers} workers, {ages:?}");
        }
    }

    proptest! {
        /// No namespace has more runs than there are workers, and there are at most as many runs beyond the number of
        /// workers as slow runs. A namespace without a run gets a spare place as soon as there is one.
        #[test]
        fn places_are_limited_and_free_for_other_namespaces(
            workers in 1_usize..5,
            steps in proptest::collection::vec((0_u64..4, 0_u8..3, 0_u64..900), 1..120),
        ) {
            let mut places = Places::default();
            places.set_workers(workers);
            let mut now = Instant::now();
            let mut current: Vec<(u64, Instant)> = Vec::new();
            for (namespace, step, pause) in steps {
                now += Duration::from_millis(pause);
                let runs = |of: u64| current.iter().filter(|(other, _)| *other == of).count();
                let slow = current.iter().filter(|(_, start)| *start + SLOW <= now).count();
                let spare = (current.len() + 1).saturating_sub(workers);
                if step > 0 {
                    let admitted = places.admits(places.admission(now), namespace);
                    let expected = spare == 0 || (runs(namespace) == 0 && spare <= slow.min(workers));
                    prop_assert_eq!(admitted, expected);
                    if admitted {
                        prop_assert!(runs(namespace) < workers);
                        places.begin(namespace, now);
                        current.push((namespace, now));
                    }
                } else if let Some(at) = current.iter().position(|(other, _)| *other == namespace) {
                    let (_, start) = current.remove(at);
                    places.end(namespace, start);
                }
                prop_assert_eq!(places.starts.len(), current.len());
            }
            for (namespace, start) in current {
                places.end(namespace, start);
            }
            prop_assert!(places.starts.is_empty() && places.runs.is_empty());
        }
    }
}
