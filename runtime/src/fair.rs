//! A list whose entries leave it fairly: namespaces that wait together are served in turn, each in its own order.
//!
//! An entry of a namespace that already waits joins the round after that namespace's last entry; any other entry joins
//! the current round. So one namespace with a thousand entries delays each other namespace by one entry, not by a
//! thousand. With one namespace the list is first in, first out. (Start-time fair queueing; client-go's queues and rate
//! limiters are first in, first out.)

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};

/// The place of an entry: its round, then the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    round: u64,
    arrival: u64,
}

/// Entries of namespaces, in the order of their turns.
#[derive(Debug)]
pub(crate) struct FairList<T> {
    entries: BTreeMap<Turn, T>,
    /// The round of the last entry of each namespace, by the namespace's hash. A collision costs only fairness.
    last_rounds: HashMap<u64, u64>,
    hasher: RandomState,
    /// The round of the entry that left the list last.
    round: u64,
    arrivals: u64,
}

impl<T> Default for FairList<T> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            last_rounds: HashMap::new(),
            hasher: RandomState::new(),
            round: 0,
            arrivals: 0,
        }
    }
}

impl<T> FairList<T> {
    /// Adds an entry of `namespace`. Returns its place.
    pub(crate) fn push(&mut self, namespace: &str, entry: T) -> Turn {
        let last = self.last_rounds.entry(self.hasher.hash_one(namespace)).or_default();
        *last = self.round.max(*last + 1);
        self.arrivals += 1;
        let turn = Turn { round: *last, arrival: self.arrivals };
        self.entries.insert(turn, entry);
        turn
    }

    /// Removes the entry whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<(Turn, T)> {
        let (turn, entry) = self.entries.pop_first()?;
        self.round = turn.round;
        self.forget_rounds();
        Some((turn, entry))
    }

    /// Removes the entry with this place.
    pub(crate) fn remove(&mut self, turn: Turn) -> Option<T> {
        let entry = self.entries.remove(&turn)?;
        self.forget_rounds();
        Some(entry)
    }

    /// Returns the entry with this place.
    pub(crate) fn get_mut(&mut self, turn: Turn) -> Option<&mut T> {
        self.entries.get_mut(&turn)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true without entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// An empty list needs no history: the memory of many namespaces is released.
    fn forget_rounds(&mut self) {
        if self.entries.is_empty() {
            self.last_rounds = HashMap::new();
            self.round = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn served(list: &mut FairList<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| list.pop().map(|(_, entry)| entry)).collect()
    }

    #[test]
    fn namespaces_are_served_in_turn() {
        // Entries in the order of arrival, each of the namespace that its letter names, and in the order of service.
        for (arrivals, order) in [
            (vec!["a1", "a2", "a3"], vec!["a1", "a2", "a3"]),
            (vec!["a1", "a2", "a3", "b1"], vec!["a1", "b1", "a2", "a3"]),
            (vec!["a1", "a2", "b1", "b2", "c1"], vec!["a1", "b1", "c1", "a2", "b2"]),
        ] {
            let mut list = FairList::default();
            for entry in arrivals {
                list.push(&entry[..1], entry);
            }
            assert_eq!(served(&mut list), order);
        }
    }

    #[test]
    fn late_namespace_waits_for_one_entry_of_each_other() {
        let mut list = FairList::default();
        for _ in 0..100 {
            list.push("a", "a");
            list.push("b", "b");
        }
        for _ in 0..50 {
            list.pop();
        }
        list.push("late", "late");
        let order = served(&mut list);
        assert!(order[..2].contains(&"late"), "{:?}", &order[..4]);
    }

    #[test]
    fn namespace_that_was_served_does_not_overtake() {
        let mut list = FairList::default();
        for _ in 0..4 {
            list.push("busy", "busy");
        }
        for _ in 0..3 {
            list.push("quick", "quick");
            assert!([list.pop(), list.pop()].into_iter().flatten().any(|(_, entry)| entry == "busy"));
        }
    }

    proptest! {
        /// Between two of its entries a namespace waits for at most two entries of any other.
        #[test]
        fn no_namespace_waits_for_many_entries_of_another(
            steps in proptest::collection::vec((0_usize..4, any::<bool>()), 1..200),
        ) {
            let mut list = FairList::default();
            let mut waiting: Vec<(usize, usize, [usize; 4])> = Vec::new();
            let mut number = 0;
            let names = ["a", "b", "c", "d"];
            let serve = |list: &mut FairList<(usize, usize)>, waiting: &mut Vec<(usize, usize, [usize; 4])>| {
                let Some((_, (served, entry))) = list.pop() else { return };
                // A namespace's entries leave in the order of their arrival.
                let first = waiting.iter().position(|(namespace, ..)| *namespace == served).expect("it waits");
                assert_eq!(waiting.remove(first).1, entry);
                let mut has_head = [false; 4];
                for (namespace, _, before) in waiting.iter_mut() {
                    if !std::mem::replace(&mut has_head[*namespace], true) && *namespace != served {
                        before[served] += 1;
                        assert!(before[served] <= 2, "{before:?}");
                    }
                }
            };
            for (namespace, is_arrival) in steps {
                if is_arrival {
                    number += 1;
                    list.push(names[namespace], (namespace, number));
                    waiting.push((namespace, number, [0; 4]));
                } else {
                    serve(&mut list, &mut waiting);
                }
                prop_assert_eq!(list.len(), waiting.len());
            }
            while !list.is_empty() {
                serve(&mut list, &mut waiting);
            }
        }
    }
}
