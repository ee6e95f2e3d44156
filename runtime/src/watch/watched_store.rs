//! A store without its kind, as the loop of a watch uses it.
//!
//! The loop is compiled once for all kinds. A copy for each kind took a tenth of a program's memory.

use std::panic::{AssertUnwindSafe, catch_unwind};

use hashbrown::HashSet;
use kinds::meta::ObjectKey;
use kinds::{DecodeError, Kind};

use crate::store::{Progress, Store};

/// The store of a watched kind.
pub(super) trait WatchedStore: Send + Sync {
    /// Returns true if the kind's list is requested in one response ([`Kind::MANY`]).
    fn has_large_list(&self) -> bool;
    /// Decodes an object and applies its record.
    fn apply(&self, object: &[u8]) -> Result<(), DecodeError>;
    /// Records that the newest state of an object cannot be decoded. Returns false if there are too many such objects.
    fn set_undecodable(&self, key: ObjectKey) -> bool;
    /// Removes the record of a deleted object.
    fn remove(&self, namespace: &str, name: &str);
    /// Removes the record of an object that was not deleted, because the kind takes too much memory.
    fn discard(&self, key: &ObjectKey);
    /// Passes a record to the subscribers again.
    fn repeat(&self, key: &ObjectKey);
    /// Handles a restore of the server's storage from a backup, after which a list had this version.
    fn restart(&self, version: u64);
    /// Returns the progress of the watch.
    fn progress(&self) -> &Progress;
    /// Returns the keys of all objects, including undecodable ones.
    fn keys(&self) -> HashSet<ObjectKey>;
    /// Returns true if there is an object with this name, decodable or not.
    fn contains(&self, key: &ObjectKey) -> bool;
    /// Returns the number of records.
    fn len(&self) -> usize;
    /// Returns the memory of all records in bytes, if the store of this kind is limited; otherwise zero.
    fn limited_bytes(&self) -> usize;
}

impl<K: Kind> WatchedStore for Store<K> {
    fn has_large_list(&self) -> bool {
        K::MANY
    }

    fn apply(&self, object: &[u8]) -> Result<(), DecodeError> {
        let decoded = catch_unwind(AssertUnwindSafe(|| K::decode(self.decoding(), object)));
        let record = decoded.unwrap_or_else(|_| Err(DecodeError::field("object", "makes the decoder panic")))?;
        self.put(record);
        Ok(())
    }

    fn set_undecodable(&self, key: ObjectKey) -> bool {
        Store::set_undecodable(self, key)
    }

    fn remove(&self, namespace: &str, name: &str) {
        Store::remove(self, namespace, name);
    }

    fn discard(&self, key: &ObjectKey) {
        Store::discard(self, key);
    }

    fn repeat(&self, key: &ObjectKey) {
        Store::repeat(self, key);
    }

    fn restart(&self, version: u64) {
        Store::restart(self, version);
    }

    fn progress(&self) -> &Progress {
        Store::progress(self)
    }

    fn keys(&self) -> HashSet<ObjectKey> {
        Store::keys(self)
    }

    fn contains(&self, key: &ObjectKey) -> bool {
        Store::contains(self, key)
    }

    fn len(&self) -> usize {
        Store::len(self)
    }

    fn limited_bytes(&self) -> usize {
        Store::limited_bytes(self)
    }
}
