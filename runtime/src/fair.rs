//! A list whose entries leave it fairly: namespaces that wait together are served in turn, each in its own order.
//!
//! The first entry of each namespace belongs to a round. When it leaves the list, the next entry of its namespace joins
//! the following round; the first entry of any other namespace joins the current round. So one namespace with a
//! thousand entries delays each other namespace by one entry, not by a thousand. With one namespace the list is first
//! in, first out. (Start-time fair queueing; client-go's queues and rate limiters are first in, first out.)

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};

/// A namespace's hash. A collision costs only fairness.
pub(crate) type NamespaceHash = u64;

/// Rounds of namespaces without entries are kept up to this number, and one more for each namespace with entries. After
/// a sweep that keeps more, twice as many rounds are kept, so that the cost of sweeps per entry is constant.
const MAX_IDLE_NAMESPACES: usize = 64;

/// The place of an entry: its namespace, then the order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn {
    namespace: NamespaceHash,
    arrival: u64,
}

/// Entries of namespaces, in the order of their turns.
#[derive(Debug)]
pub(crate) struct FairList<T> {
    entries: BTreeMap<Turn, T>,
    /// The first entry of each namespace, by its round, then by the order of arrival.
    heads: BTreeMap<(u64, u64), NamespaceHash>,
    /// The round of each namespace's first entry; without entries, the round of the last one that left the list.
    rounds: HashMap<NamespaceHash, u64>,
    /// Number of rounds up to which they are not swept.
    sweep_at: usize,
    hasher: RandomState,
    /// The latest round of an entry that left the list.
    round: u64,
    arrivals: u64,
}

impl<T> Default for FairList<T> {
    fn default() -> Self {
        Self::new(RandomState::new())
    }
}

impl<T> FairList<T> {
    /// Creates an empty list that identifies namespaces by this hasher.
    pub(crate) fn new(hasher: RandomState) -> Self {
        let (entries, heads, rounds) = (BTreeMap::new(), BTreeMap::new(), HashMap::new());
        Self { entries, heads, rounds, sweep_at: 0, hasher, round: 0, arrivals: 0 }
    }

    /// Adds an entry of `namespace`. Returns its place.
    pub(crate) fn push(&mut self, namespace: &str, entry: T) -> Turn {
        let namespace = self.hasher.hash_one(namespace);
        self.arrivals += 1;
        let turn = Turn { namespace, arrival: self.arrivals };
        if self.first_of(namespace).is_none() {
            let round = self.rounds.entry(namespace).or_default();
            *round = self.round.max(*round + 1);
            self.heads.insert((*round, turn.arrival), namespace);
        }
        self.entries.insert(turn, entry);
        turn
    }

    /// Removes the entry whose turn it is.
    pub(crate) fn pop(&mut self) -> Option<(Turn, T)> {
        self.pop_admitted(|_| true)
    }

    /// Removes the entry whose turn it is among the admitted namespaces. A namespace that is not admitted keeps its
    /// turn.
    pub(crate) fn pop_admitted(&mut self, admits: impl Fn(NamespaceHash) -> bool) -> Option<(Turn, T)> {
        let (&(round, arrival), &namespace) = self.heads.iter().find(|(_, namespace)| admits(**namespace))?;
        self.round = self.round.max(round);
        let turn = Turn { namespace, arrival };
        // A namespace that was not admitted for a long time gets no additional turns.
        let entry = self.take(turn, round, self.round + 1)?;
        Some((turn, entry))
    }

    /// Returns true if an entry of an admitted namespace waits.
    pub(crate) fn any(&self, admits: impl Fn(NamespaceHash) -> bool) -> bool {
        self.heads.values().any(|namespace| admits(*namespace))
    }

    /// Removes the entry with this place.
    pub(crate) fn remove(&mut self, turn: Turn) -> Option<T> {
        match self.rounds.get(&turn.namespace).copied() {
            Some(round) if self.first_of(turn.namespace) == Some(turn) => self.take(turn, round, round),
            _ => self.entries.remove(&turn),
        }
    }

    /// Returns the entry with this place.
    pub(crate) fn get_mut(&mut self, turn: Turn) -> Option<&mut T> {
        self.entries.get_mut(&turn)
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the list has no entries.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn first_of(&self, namespace: NamespaceHash) -> Option<Turn> {
        let all = Turn { namespace, arrival: 0 }..=Turn { namespace, arrival: u64::MAX };
        self.entries.range(all).next().map(|(turn, _)| *turn)
    }

    /// Removes the first entry of a namespace; the following one joins the round `next`.
    fn take(&mut self, head: Turn, round: u64, next: u64) -> Option<T> {
        self.heads.remove(&(round, head.arrival));
        let entry = self.entries.remove(&head)?;
        if let Some(following) = self.first_of(head.namespace) {
            self.heads.insert((next, following.arrival), head.namespace);
            self.rounds.insert(head.namespace, next);
        } else if self.entries.is_empty() {
            // An empty list needs no history: the memory of many namespaces is released.
            self.rounds = HashMap::new();
            (self.round, self.sweep_at) = (0, 0);
        } else if self.rounds.len() > self.sweep_at.max(2 * self.heads.len() + MAX_IDLE_NAMESPACES) {
            // A namespace without entries whose round is over is treated like a new one.
            let waiting: HashSet<NamespaceHash> = self.heads.values().copied().collect();
            let current = self.round;
            self.rounds.retain(|namespace, round| *round >= current || waiting.contains(namespace));
            self.sweep_at = 2 * self.rounds.len();
        }
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::testing::CpuTime;

    fn served(list: &mut FairList<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| list.pop().map(|(_, entry)| entry)).collect()
    }

    #[test]
    fn history_of_namespaces_without_entries_is_bounded() {
        let mut list = FairList::default();
        list.push("busy", "entry");
        for number in 0..10_000 {
            list.push(&format!("brief-{number}"), "entry");
            list.push("busy", "entry");
            list.pop();
            list.pop();
        }
        assert!(!list.is_empty());
        assert!(list.rounds.len() <= 2 * (MAX_IDLE_NAMESPACES + 2), "{}", list.rounds.len());
    }

    /// The entries of a round leave together: none of its namespaces can be forgotten before the last one.
    #[test]
    fn list_of_many_namespaces_is_drained_in_linear_time() {
        let started = CpuTime::now();
        let mut list = FairList::default();
        for number in 0..20_000 {
            list.push(&number.to_string(), "entry");
        }
        assert_eq!(served(&mut list).len(), 20_000);
        let took = started.elapsed();
        assert!(took < Duration::from_secs(2), "{took:?}");
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

    /// Returns the hash by which the list identifies a namespace.
    fn hash_of(list: &FairList<&'static str>, namespace: &str) -> NamespaceHash {
        list.hasher.hash_one(namespace)
    }

    #[test]
    fn namespace_that_is_not_admitted_keeps_its_turn_but_does_not_catch_up() {
        let mut list = FairList::default();
        for _ in 0..20 {
            list.push("blocked", "blocked");
            list.push("other", "other");
        }
        let blocked = hash_of(&list, "blocked");
        for _ in 0..10 {
            assert_eq!(list.pop_admitted(|namespace| namespace != blocked).map(|(_, entry)| entry), Some("other"));
        }
        assert!(list.any(|namespace| namespace == blocked));
        assert!(!list.any(|namespace| namespace == hash_of(&list, "unknown")));
        let order = served(&mut list);
        assert_eq!(order[..6], ["blocked", "blocked", "other", "blocked", "other", "blocked"]);
        assert_eq!(order.len(), 30);
        assert!(list.rounds.is_empty() && list.heads.is_empty());
    }

    #[test]
    fn removed_entry_leaves_its_turn_to_the_next_of_its_namespace() {
        let mut list = FairList::default();
        let turns = ["a1", "a2", "b1", "a3"].map(|entry| list.push(&entry[..1], entry));
        assert_eq!(list.remove(turns[0]), Some("a1"));
        assert_eq!(list.remove(turns[0]), None);
        assert_eq!(list.remove(turns[3]), Some("a3"));
        assert_eq!(served(&mut list), ["a2", "b1"]);
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
