//! A map that evicts its least recently used entry when it is full.

use std::collections::BTreeMap;

use hashbrown::HashMap;

/// A bounded map from a key's hash to a small value; every access makes its entry the newest.
#[derive(Debug)]
pub(super) struct Lru<V> {
    capacity: usize,
    /// Number of accesses so far.
    accesses: u64,
    /// Values by key, each with the number of its last access.
    entries: HashMap<u64, (u64, V)>,
    /// Keys by the number of their last access.
    by_access: BTreeMap<u64, u64>,
}

impl<V> Lru<V> {
    /// Creates a map of at most `capacity` entries and allocates nothing before the first one is added.
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, accesses: 0, entries: HashMap::new(), by_access: BTreeMap::new() }
    }

    /// Returns the value of `key`, created by `absent` if missing; evicts the oldest entry if there are too many.
    pub(super) fn entry(&mut self, key: u64, absent: impl FnOnce() -> V) -> &mut V {
        self.accesses += 1;
        let access = self.accesses;
        match self.entries.get(&key) {
            Some((used, _)) => {
                self.by_access.remove(used);
            }
            None if self.entries.len() == self.capacity => {
                if let Some((_, oldest)) = self.by_access.pop_first() {
                    self.entries.remove(&oldest);
                }
            }
            None => {}
        }
        self.by_access.insert(access, key);
        let (used, value) = self.entries.entry(key).or_insert_with(|| (access, absent()));
        *used = access;
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_entry_is_evicted() {
        let mut lru = Lru::new(2);
        *lru.entry(1, || 0) = 10;
        *lru.entry(2, || 0) = 20;
        assert_eq!(*lru.entry(1, || 0), 10, "an access keeps the entry");
        *lru.entry(3, || 0) = 30;
        assert_eq!(*lru.entry(1, || 0), 10, "1 was used after 2");
        assert_eq!(*lru.entry(2, || -1), -1, "2 was the oldest");
        assert_eq!(lru.entries.len(), 2);
        assert_eq!(lru.by_access.len(), 2);
    }
}
