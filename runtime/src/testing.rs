//! For tests of what is built on this crate: stores that no watch fills, and metadata that no server sent.

use kinds::{Decode, Interner, Kind, Meta, Time, Uid};

use crate::store::{Index, Store};

/// A store that keeps these sections and indexes, with these records in it, as if a watch had delivered them in this
/// order. It has no watch: [`Store::progress`] says that nothing was listed yet.
pub fn filled_store<K: Kind>(decode: Decode, indexes: Vec<Index<K>>, records: impl IntoIterator<Item = K>) -> Store<K> {
    let store = Store::new(decode, indexes);
    records.into_iter().for_each(|record| store.put(record));
    store
}

/// Metadata of an object that has a name and a version, and nothing else.
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
