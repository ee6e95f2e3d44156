//! Test support: stores that are filled without a watch, and metadata without a server.

use kinds::{Decode, Interner, Kind, Meta, Time, Uid};

use crate::store::{Index, Store};

/// Returns a store with these sections and indexes that contains these records, as if a watch had delivered them in
/// this order. It has no watch: [`Store::progress`] reports that nothing was listed yet.
pub fn filled_store<K: Kind>(decode: Decode, indexes: Vec<Index<K>>, records: impl IntoIterator<Item = K>) -> Store<K> {
    let store = Store::new(decode, indexes);
    records.into_iter().for_each(|record| store.put(record));
    store
}

/// Returns the metadata of an object with only a name and a version.
pub fn meta(namespace: &str, name: &str, version: u64) -> Meta {
    let interner = Interner::default();
    Meta {
        namespace: namespace.into(),
        name: name.into(),
        uid: Uid::default(),
        version,
        generation: 0,
        created: Time::default(),
        deletion: Time::default(),
        labels: interner.labels(Vec::new()),
        owners: interner.owners(&[]),
        finalizers: interner.list(&[]),
    }
}
