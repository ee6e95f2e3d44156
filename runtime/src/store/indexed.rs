//! Records in a hash table without copies of their keys, and in a group for each value of an index.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::hash_map::Entry;
use hashbrown::{DefaultHashBuilder, HashMap, HashTable};
use kinds::{Kind, Meta};

use super::Index;

/// A table that takes nine bytes per slot, a pointer and a control byte: it reads the key from the record itself.
#[derive(Default)]
struct Table<K> {
    records: HashTable<Arc<K>>,
}

impl<K> Table<K> {
    fn new() -> Self {
        Self { records: HashTable::new() }
    }
}

/// The records under each value of an index. Most values have one record: a separate map stores it in a slot of 17
/// bytes (key, pointer, control byte), without a table.
struct Groups<K> {
    /// The record of each value that has one.
    single: HashMap<u64, Arc<K>>,
    /// The records of each value that has or had several.
    several: HashMap<u64, Table<K>>,
}

impl<K: Kind> Groups<K> {
    fn new() -> Self {
        Self { single: HashMap::new(), several: HashMap::new() }
    }

    fn count(&self, key: u64) -> usize {
        match self.several.get(&key) {
            Some(table) => table.records.len(),
            None => usize::from(self.single.contains_key(&key)),
        }
    }

    fn records(&self, key: u64) -> Vec<Arc<K>> {
        match self.several.get(&key) {
            Some(table) => table.records.iter().cloned().collect(),
            None => self.single.get(&key).cloned().into_iter().collect(),
        }
    }

    fn put(&mut self, hasher: &DefaultHashBuilder, key: u64, new: Arc<K>) {
        if let Some(table) = self.several.get_mut(&key) {
            table.put(hasher, new);
            return;
        }
        match self.single.entry(key) {
            Entry::Vacant(place) => drop(place.insert(new)),
            Entry::Occupied(mut record) if is_same(record.get().meta(), new.meta()) => drop(record.insert(new)),
            Entry::Occupied(record) => {
                let mut table = Table::new();
                table.put(hasher, record.remove());
                table.put(hasher, new);
                self.several.insert(key, table);
            }
        }
    }

    fn remove(&mut self, hasher: &DefaultHashBuilder, key: u64, old: &K) {
        let meta = old.meta();
        if let Some(table) = self.several.get_mut(&key) {
            table.remove(hash(hasher, old), hasher, &meta.namespace, &meta.name);
            if table.records.is_empty() {
                self.several.remove(&key);
            }
        } else if self.single.get(&key).is_some_and(|record| is_same(record.meta(), meta)) {
            self.single.remove(&key);
        }
    }
}

fn is_same(one: &Meta, other: &Meta) -> bool {
    one.name == other.name && one.namespace == other.namespace
}

/// All records of a kind, with its indexes.
pub struct Indexed<K: Kind> {
    hasher: DefaultHashBuilder,
    all: Table<K>,
    indexes: Vec<(Index<K>, Groups<K>)>,
}

fn hash<K: Kind>(hasher: &DefaultHashBuilder, record: &K) -> u64 {
    let meta = record.meta();
    hasher.hash_one((&*meta.namespace, &*meta.name))
}

impl<K: Kind> Table<K> {
    fn find(&self, hash: u64, namespace: &str, name: &str) -> Option<&Arc<K>> {
        self.records.find(hash, |record| *record.meta().name == *name && *record.meta().namespace == *namespace)
    }

    fn put(&mut self, hasher: &DefaultHashBuilder, new: Arc<K>) -> Option<Arc<K>> {
        let hashed = hash(hasher, &*new);
        match self.records.find_mut(hashed, |record| is_same(record.meta(), new.meta())) {
            Some(old) => Some(std::mem::replace(old, new)),
            None => {
                self.records.insert_unique(hashed, new, |record| hash(hasher, &**record));
                None
            }
        }
    }

    fn remove(&mut self, hashed: u64, hasher: &DefaultHashBuilder, namespace: &str, name: &str) -> Option<Arc<K>> {
        let same = |record: &Arc<K>| *record.meta().name == *name && *record.meta().namespace == *namespace;
        let (old, _) = self.records.find_entry(hashed, same).ok()?.remove();
        if self.records.len() * 4 < self.records.capacity() {
            self.records.shrink_to_fit(|record| hash(hasher, &**record));
        }
        Some(old)
    }
}

impl<K: Kind> Indexed<K> {
    pub(super) fn new(indexes: Vec<Index<K>>) -> Self {
        Self {
            hasher: DefaultHashBuilder::default(),
            all: Table::new(),
            indexes: indexes.into_iter().map(|index| (index, Groups::new())).collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.records.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<K>> {
        self.all.records.iter()
    }

    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.all.find(self.hasher.hash_one((namespace, name)), namespace, name).cloned()
    }

    fn groups(&self, name: &str) -> &Groups<K> {
        let found = self.indexes.iter().find(|(index, _)| index.name == name);
        &found.unwrap_or_else(|| panic!("{} has no index {name}", K::RESOURCE.plural)).1
    }

    pub(super) fn by_index(&self, name: &str, key: u64) -> Vec<Arc<K>> {
        self.groups(name).records(key)
    }

    pub(super) fn count(&self, name: &str, key: u64) -> usize {
        self.groups(name).count(key)
    }

    /// Adds a record; returns the one that it replaces.
    pub(super) fn put(&mut self, new: Arc<K>) -> Option<Arc<K>> {
        let old = self.all.put(&self.hasher, new.clone());
        for (index, groups) in &mut self.indexes {
            let mut kept = values(index, &new);
            if let Some(old) = &old {
                kept.sort_unstable();
                drop_values(&self.hasher, index, groups, old, &kept);
            }
            for key in kept {
                groups.put(&self.hasher, key, new.clone());
            }
        }
        old
    }

    /// Removes a record; returns it.
    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<K>> {
        let old = self.all.remove(self.hasher.hash_one((namespace, name)), &self.hasher, namespace, name)?;
        for (index, groups) in &mut self.indexes {
            drop_values(&self.hasher, index, groups, &old, &[]);
        }
        Some(old)
    }
}

fn values<K>(index: &Index<K>, record: &K) -> Vec<u64> {
    let mut values = Vec::with_capacity(1);
    (index.keys)(record, &mut |key| values.push(key));
    values
}

/// Removes a record from the groups of its values that are not in `kept`, which is sorted.
///
/// A tenant may give an object very many values, so each one must not be compared with all others.
fn drop_values<K: Kind>(
    hasher: &DefaultHashBuilder,
    index: &Index<K>,
    groups: &mut Groups<K>,
    old: &Arc<K>,
    kept: &[u64],
) {
    for key in values(index, old).into_iter().filter(|key| kept.binary_search(key).is_err()) {
        groups.remove(hasher, key, old);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use kinds::{Decode, DecodeError, Resource};
    use proptest::prelude::*;

    use super::*;
    use crate::store::index_key;
    use crate::testing;

    #[derive(Debug)]
    struct Thing {
        meta: Meta,
        colors: Vec<u8>,
    }

    impl Kind for Thing {
        const RESOURCE: Resource =
            Resource { group: "", version: "v1", kind: "Thing", plural: "things", namespaced: true };
        fn decode(_: &Decode, _: &[u8]) -> Result<Self, DecodeError> {
            Err(DecodeError::field("thing", "is never decoded"))
        }
        fn meta(&self) -> &Meta {
            &self.meta
        }
    }

    const BY_COLOR: Index<Thing> =
        Index { name: "color", keys: |thing, emit| thing.colors.iter().for_each(|color| emit(index_key(color))) };

    fn thing(name: u8, version: u64, colors: Vec<u8>) -> Arc<Thing> {
        let meta = testing::meta("n", &name.to_string(), version);
        Arc::new(Thing { meta, colors })
    }

    /// A kubelet may report any number of volumes. With a scan of the new values for each old one, this takes minutes.
    #[test]
    fn object_with_very_many_values_is_replaced_in_near_linear_time() {
        const VALUES: u64 = 100_000;
        const BY_RANGE: Index<Thing> = Index {
            name: "range",
            keys: |thing, emit| (0..VALUES).for_each(|value| emit(index_key(value + thing.meta.version))),
        };
        let started = testing::CpuTime::now();
        let mut indexed = Indexed::new(vec![BY_RANGE]);
        indexed.put(thing(0, 0, Vec::new()));
        indexed.put(thing(0, 1, Vec::new()));
        assert_eq!(indexed.count("range", index_key(0_u64)), 0, "only the old record has it");
        assert_eq!(indexed.count("range", index_key(VALUES)), 1);
        assert_eq!(indexed.indexes[0].1.single.len() as u64, VALUES);
        assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
    }

    proptest! {
        /// After any puts and removals, look-ups agree with a scan of a plain map.
        #[test]
        fn indexes_agree_with_a_scan(steps in proptest::collection::vec(
            (0u8..20, proptest::option::of(proptest::collection::vec(0u8..4, 0..3))), 0..200)) {
            let mut indexed = Indexed::new(vec![BY_COLOR]);
            let mut model: BTreeMap<String, Vec<u8>> = BTreeMap::new();
            for (version, (name, colors)) in steps.into_iter().enumerate() {
                match colors {
                    Some(colors) => {
                        let old = indexed.put(thing(name, version as u64, colors.clone()));
                        prop_assert_eq!(old.map(|old| old.colors.clone()), model.insert(name.to_string(), colors));
                    }
                    None => {
                        let old = indexed.remove("n", &name.to_string());
                        prop_assert_eq!(old.map(|old| old.colors.clone()), model.remove(&name.to_string()));
                    }
                }
                for color in 0u8..4 {
                    let found: BTreeSet<String> = indexed.by_index("color", index_key(color)).iter()
                        .map(|thing| thing.meta.name.to_string()).collect();
                    let expected: BTreeSet<String> = model.iter().filter(|(_, colors)| colors.contains(&color))
                        .map(|(name, _)| name.clone()).collect();
                    prop_assert_eq!(found, expected);
                }
                prop_assert_eq!(indexed.len(), model.len());
            }
            let used: BTreeSet<u8> = model.values().flatten().copied().collect();
            let groups = &indexed.indexes[0].1;
            prop_assert_eq!(groups.single.len() + groups.several.len(), used.len(), "empty groups are removed");
        }
    }
}
