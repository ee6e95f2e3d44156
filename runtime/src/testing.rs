//! For tests of what is built on this crate: stores that no watch fills.

use kinds::{Decode, Kind};

use crate::store::{Index, Store};

/// A store that keeps these sections and indexes, with these records in it, as if a watch had delivered them in this
/// order. It has no watch: [`Store::progress`] says that nothing was listed yet.
pub fn filled_store<K: Kind>(decode: Decode, indexes: Vec<Index<K>>, records: impl IntoIterator<Item = K>) -> Store<K> {
    let store = Store::new(decode, indexes);
    records.into_iter().for_each(|record| store.put(record));
    store
}
