//! The cache of the API server's objects: one indexed store per kind.
//!
//! Only the watch of the kind changes a store; all other code reads it. A look-up by name or index takes a short lock,
//! does not scan the kind, and returns shared records.

mod cached;
mod indexed;
mod progress;
mod undecodable;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hash, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use kinds::meta::ObjectKey;
use kinds::{Decode, Kind, Uid};
use tracing::error;

use crate::lock::{lock, read, write};
use crate::stale;
use crate::wake::Wake;
pub use cached::Cached;
use indexed::Indexed;
pub use progress::{Progress, WriteVersion};
use undecodable::Undecodable;

/// A way to look up records by other values than their names: `keys` yields the hash of each value under which a record
/// is found. Collisions are possible but very unlikely; callers that need an exact match must compare the value.
#[derive(Debug)]
pub struct Index<K: 'static> {
    /// Unique among the kind's indexes.
    pub name: &'static str,
    /// The record's values, each hashed by [`index_key`].
    pub keys: fn(&K, &mut dyn FnMut(u64)),
}

impl<K> Clone for Index<K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K> Copy for Index<K> {}

/// Hashes a value for an [`Index`], with a seed of this process.
pub fn index_key(value: impl Hash) -> u64 {
    static SEED: OnceLock<RandomState> = OnceLock::new();
    SEED.get_or_init(RandomState::new).hash_one(value)
}

/// Returns an index of a kind's objects by their controller, and of those without one by their namespace. Look up by
/// [`owned_by`] or [`orphans_in`].
pub const fn by_controller<K: Kind>() -> Index<K> {
    Index {
        name: "controller",
        keys: |record, emit| {
            let meta = record.meta();
            emit(match meta.controller() {
                Some(controller) => owned_by(&meta.namespace, &controller.uid),
                None => orphans_in(&meta.namespace),
            });
        },
    }
}

/// Returns the index key of all objects of one controller in its namespace. References from other namespaces do not
/// count: any tenant may write them. Upstream: pkg/controller, PodControllerIndexKey.
pub fn owned_by(namespace: &str, controller: &Uid) -> u64 {
    index_key(("owned", namespace, controller))
}

/// Returns the index key of all objects of a namespace without a controller.
pub fn orphans_in(namespace: &str) -> u64 {
    index_key(("orphan", namespace))
}

/// Returns an index of a kind's objects by namespace. Look up by [`index_key`] of the namespace.
pub const fn by_namespace<K: Kind>() -> Index<K> {
    Index { name: "namespace", keys: |record, emit| emit(index_key(&*record.meta().namespace)) }
}

/// One change of a record, as subscribers receive it.
#[derive(Debug)]
pub struct Change<'a, K> {
    /// The old record; `None` if it is new.
    pub old: Option<&'a Arc<K>>,
    /// The new record; `None` if it was deleted.
    pub new: Option<&'a Arc<K>>,
}

type Subscriber<K> = Arc<dyn Fn(&Change<'_, K>) + Send + Sync>;

/// The cache of all objects of one kind.
pub struct Store<K: Kind> {
    decode: Decode,
    records: RwLock<Indexed<K>>,
    progress: Progress,
    subscribers: RwLock<Arc<[Subscriber<K>]>>,
    /// Objects on the server that could not be decoded.
    undecodable: Undecodable,
    /// The memory of all records, if the store of this kind is limited ([`Kind::limited_bytes`]); otherwise zero.
    bytes: AtomicUsize,
    /// Versions that this process has written and the watch has not delivered yet.
    written: Mutex<HashMap<ObjectKey, WriteVersion>>,
    /// Objects with a write in progress, and the waiters for its end.
    in_progress: Mutex<HashMap<ObjectKey, Vec<Wake>>>,
    /// Subscribers are being called about a record that [`Store::discard`] removed.
    is_discarding: Arc<AtomicBool>,
}

/// When the number of written objects reaches this value or a power-of-two multiple of it, entries that are no longer
/// awaited are removed.
const WRITTEN_SWEEP_SIZE: usize = 64;

/// The only write to an object that is in progress; the next one may begin when this is dropped. Keep it until the
/// version of the response was passed to [`Store::wrote`].
#[must_use = "dropping it ends the write"]
pub struct WriteInProgress<'a, K: Kind> {
    store: &'a Store<K>,
    key: ObjectKey,
}

impl<K: Kind> Drop for WriteInProgress<'_, K> {
    fn drop(&mut self) {
        let waiting = lock(&self.store.in_progress).remove(&self.key);
        waiting.into_iter().flatten().for_each(Wake::run);
    }
}

impl<K: Kind> Store<K> {
    /// Creates an empty store with these sections and indexes.
    pub(crate) fn new(decode: Decode, indexes: Vec<Index<K>>) -> Self {
        Self {
            decode,
            records: RwLock::new(Indexed::new(indexes)),
            progress: Progress::default(),
            subscribers: RwLock::new(Arc::new([])),
            undecodable: Undecodable::default(),
            bytes: AtomicUsize::new(0),
            written: Mutex::default(),
            in_progress: Mutex::default(),
            is_discarding: Arc::default(),
        }
    }

    /// Returns the decoding options of the kind.
    pub fn decoding(&self) -> &Decode {
        &self.decode
    }

    /// Returns the progress of the watch.
    pub fn progress(&self) -> &Progress {
        &self.progress
    }

    /// Returns the record with this name.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read_noting_stale(|records| records.get(&key.namespace, &key.name))
    }

    /// Returns the record with this name if it still has this uid.
    pub fn get_with_uid(&self, namespace: &str, name: &str, uid: &Uid) -> Option<Arc<K>> {
        self.read_noting_stale(|records| records.get(namespace, name).filter(|record| record.meta().uid == *uid))
    }

    /// Returns the records that an index holds under a value, in no particular order.
    ///
    /// # Panics
    /// When the index was not declared: a defect of the controller's descriptor.
    pub fn by_index(&self, index: &Index<K>, key: u64) -> Vec<Arc<K>> {
        self.read_noting_stale(|records| records.by_index(index.name, key))
    }

    /// Returns the records that an index holds under a value, and the keys of all undecodable objects of the kind. The
    /// Writer refuses no deletion because some of these records are stale: the caller must leave out each deletion that
    /// depends on an undecodable object.
    ///
    /// # Panics
    /// Same as [`Store::by_index`].
    pub fn by_index_and_undecodable(&self, index: &Index<K>, key: u64) -> (Vec<Arc<K>>, HashSet<ObjectKey>) {
        // The keys are read first: an object that becomes decodable in between counts as undecodable.
        let undecodable = self.undecodable.all();
        (self.read(|records| records.by_index(index.name, key)), undecodable)
    }

    /// Returns the number of records that an index holds under a value.
    ///
    /// # Panics
    /// Same as [`Store::by_index`].
    pub fn count(&self, index: &Index<K>, key: u64) -> usize {
        self.read(|records| records.count(index.name, key))
    }

    /// Returns the records under the rarest of several values of an index, in no particular order.
    ///
    /// # Panics
    /// Same as [`Store::by_index`].
    pub fn by_rarest(&self, index: &Index<K>, keys: impl Iterator<Item = u64>) -> Vec<Arc<K>> {
        self.read_noting_stale(|records| {
            let rarest = keys.min_by_key(|key| records.count(index.name, *key));
            rarest.map(|key| records.by_index(index.name, key)).unwrap_or_default()
        })
    }

    /// Returns all records, in no particular order.
    ///
    /// Costs O(n). Use it for reports, never in a reconcile of one key.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read_noting_stale(|records| records.iter().cloned().collect::<Vec<_>>())
    }

    /// Returns the UIDs of all records. Does not count as a read of stale records.
    pub(crate) fn uids(&self) -> HashSet<Uid> {
        self.read(|records| records.iter().map(|record| record.meta().uid.clone()).collect())
    }

    /// Returns true if a record satisfies `matches`, which must not use the store. Copies nothing, and stops at the
    /// first such record.
    pub fn any(&self, mut matches: impl FnMut(&K) -> bool) -> bool {
        self.read(|records| {
            records.iter().any(|record| {
                self.note_stale([record]);
                matches(record)
            })
        })
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.read(Indexed::len)
    }

    /// Returns true if there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of objects on the server that could not be decoded. While there are any, nothing may be
    /// deleted because an object is missing in this store.
    pub fn undecodable(&self) -> usize {
        self.undecodable.len()
    }

    /// Returns the keys of all undecodable objects.
    pub(crate) fn undecodable_keys(&self) -> HashSet<ObjectKey> {
        self.undecodable.all()
    }

    /// Returns the number of undecodable objects in a namespace. Decisions in other namespaces do not depend on them.
    pub fn undecodable_in(&self, namespace: &str) -> usize {
        self.undecodable.count(|key| *key.namespace == *namespace)
    }

    /// Returns true if the record of an object is older than the object on the server, whose newest state cannot be
    /// decoded. After a reconcile has read such a record, the Writer refuses its deletions in the record's namespace
    /// and of cluster-scoped objects; if the record is cluster-scoped, all of its deletions.
    pub fn is_stale(&self, key: &ObjectKey) -> bool {
        self.undecodable.contains(key) && self.read(|records| records.get(&key.namespace, &key.name)).is_some()
    }

    /// Returns true if the newest state of an object cannot be decoded. If it returns false and a later read finds no
    /// record, the object does not exist on the server.
    pub fn is_undecodable(&self, key: &ObjectKey) -> bool {
        self.undecodable.contains(key)
    }

    /// Returns the keys of the objects on the server without a record: no state of them could be decoded. If a later
    /// read finds no record of an object, the object is one of these, or does not exist on the server.
    pub fn undecodable_without_record(&self) -> HashSet<ObjectKey> {
        // An object that becomes decodable has its record before it is removed from the undecodable ones.
        let mut keys = self.undecodable.all();
        if !keys.is_empty() {
            self.read(|records| keys.retain(|key| records.get(&key.namespace, &key.name).is_none()));
        }
        keys
    }

    /// Returns true if an undecodable object satisfies `matches`, which receives the object's stale record, if there is
    /// one, and must not use the store.
    pub fn any_undecodable(&self, matches: impl Fn(Option<&K>) -> bool) -> bool {
        let record = |records: &Indexed<K>, key: &ObjectKey| records.get(&key.namespace, &key.name);
        self.read(|records| self.undecodable.count(|key| matches(record(records, key).as_deref())) > 0)
    }

    /// Returns the number of stale records.
    pub fn stale(&self) -> usize {
        self.read(|records| self.undecodable.count(|key| records.get(&key.namespace, &key.name).is_some()))
    }

    /// Returns what `read` returns, and records in the running reconcile which of these records are stale. Both happen
    /// under one lock: a decodable state that arrives in between would make a record that was read appear current.
    fn read_noting_stale<R>(&self, read: impl FnOnce(&Indexed<K>) -> R) -> R
    where
        for<'a> &'a R: IntoIterator<Item = &'a Arc<K>>,
    {
        self.read(|records| {
            let found = read(records);
            self.note_stale(&found);
            found
        })
    }

    /// Records in the running reconcile which of these records are stale.
    fn note_stale<'a>(&self, records: impl IntoIterator<Item = &'a Arc<K>>)
    where
        K: 'a,
    {
        if self.undecodable.is_empty() {
            return;
        }
        let keys = records.into_iter().map(|record| record.meta().key());
        for key in keys.filter(|key| self.undecodable.contains(key)) {
            stale::note(&key.namespace, || format!("{} {key}", K::RESOURCE.kind));
        }
    }

    /// Records that a controller of this process wrote an object at this version.
    pub fn wrote(&self, key: &ObjectKey, version: u64) {
        let mut written = lock(&self.written);
        if self.progress.version() < version && self.get(key).is_none_or(|record| record.meta().version < version) {
            // An object that was deleted before its write arrived here leaves its entry behind.
            if written.len() >= WRITTEN_SWEEP_SIZE && written.len().is_power_of_two() {
                written.retain(|_, version| !self.progress.contains(version));
            }
            written.insert(key.clone(), self.progress.written(version));
        }
    }

    /// Returns true if the record of an object contains the last write of this process, and no write is in progress: a
    /// write that is based on the record would meet no conflict caused by this process. If not, `wake` runs when
    /// that may have changed.
    pub fn is_settled(&self, key: &ObjectKey, wake: impl Into<Wake>) -> bool {
        let wake = wake.into();
        if let Some(waiting) = lock(&self.in_progress).get_mut(key) {
            wake.wait_in(waiting);
            return false;
        }
        match self.awaited(key) {
            Some(version) => {
                self.progress.when_reached(version, wake);
                false
            }
            None => true,
        }
    }

    /// Begins a write to an object that is based on its version `version`. Returns `None` if the write would meet a
    /// conflict: another controller of this process has written the object since or is about to, or the watch has
    /// delivered a later version.
    pub fn begin_write(&self, key: &ObjectKey, version: u64) -> Option<WriteInProgress<'_, K>> {
        let mut in_progress = lock(&self.in_progress);
        let outdated = self.awaited(key).is_some_and(|written| written > version)
            || self.get(key).is_some_and(|record| record.meta().version > version);
        if outdated || in_progress.contains_key(key) {
            return None;
        }
        in_progress.insert(key.clone(), Vec::new());
        Some(WriteInProgress { store: self, key: key.clone() })
    }

    /// Returns the version of an object that this process wrote and that the watch has not delivered yet.
    fn awaited(&self, key: &ObjectKey) -> Option<u64> {
        let written = *lock(&self.written).get(key)?;
        (!self.progress.contains(&written)).then(|| written.version())
    }

    /// Handles a restore of the server's storage from a backup, after which a list had this version: the watch will
    /// never deliver versions that were written before the restore.
    pub(crate) fn restart(&self, version: u64) {
        lock(&self.written).clear();
        self.progress.reset(version);
    }

    fn forget_written(&self, key: &ObjectKey, version: u64) {
        let mut written = lock(&self.written);
        if written.get(key).is_some_and(|awaited| awaited.version() <= version) {
            written.remove(key);
        }
    }

    fn read<T>(&self, apply: impl FnOnce(&Indexed<K>) -> T) -> T {
        apply(&read(&self.records))
    }

    /// Calls `subscriber` for each change, in order, after the store contains it. The subscriber must not block: it
    /// maps a change to queue keys. A subscriber that is added after the watch has started misses earlier changes.
    pub fn subscribe(&self, subscriber: impl Fn(&Change<'_, K>) + Send + Sync + 'static) {
        let mut subscribers = write(&self.subscribers);
        *subscribers = subscribers.iter().cloned().chain([Arc::new(subscriber) as Subscriber<K>]).collect();
    }

    /// Applies a record that the watch delivered.
    pub(crate) fn put(&self, record: K) {
        let new = Arc::new(record);
        let old = write(&self.records).put(new.clone());
        self.bytes.fetch_add(new.limited_bytes(), Ordering::Relaxed);
        self.release(old.as_deref());
        let key = new.meta().key();
        // After the record was replaced: see `read_noting_stale`.
        self.undecodable.remove(&key);
        self.forget_written(&key, new.meta().version);
        self.notify(&Change { old: old.as_ref(), new: Some(&new) });
    }

    /// Passes a record to the subscribers again.
    pub(crate) fn repeat(&self, key: &ObjectKey) {
        if let Some(record) = self.read(|records| records.get(&key.namespace, &key.name)) {
            self.notify(&Change { old: Some(&record), new: Some(&record) });
        }
    }

    /// Removes a record that the watch reported as deleted.
    pub(crate) fn remove(&self, namespace: &str, name: &str) {
        let old = write(&self.records).remove(namespace, name);
        self.release(old.as_deref());
        let key = ObjectKey::new(namespace, name);
        self.undecodable.remove(&key);
        self.forget_written(&key, u64::MAX);
        if let Some(old) = old {
            self.notify(&Change { old: Some(&old), new: None });
        }
    }

    /// Removes a record although its object was not deleted, because the kind takes too much memory. Subscribers cannot
    /// distinguish this from a deletion, except those of [`Source::subscribe_meta`](crate::watch::Source).
    pub(crate) fn discard(&self, key: &ObjectKey) {
        // Only the watch of the kind changes records, one after another: the flag applies to this record.
        self.is_discarding.store(true, Ordering::Release);
        self.remove(&key.namespace, &key.name);
        self.is_discarding.store(false, Ordering::Release);
    }

    /// Returns a flag that is true while subscribers are called about a discarded record.
    pub(crate) fn discards(&self) -> Arc<AtomicBool> {
        self.is_discarding.clone()
    }

    /// Returns the keys of all objects, including undecodable ones: to find deletions after a new list, or the objects
    /// that an undecodable object may refer to. Costs O(n).
    pub fn keys(&self) -> hashbrown::HashSet<ObjectKey> {
        let undecodable = self.undecodable.all();
        self.read(|records| records.iter().map(|record| record.meta().key()).chain(undecodable).collect())
    }

    /// Records that the newest state of an object cannot be decoded. Returns false if there are too many such objects.
    pub(crate) fn set_undecodable(&self, key: ObjectKey) -> bool {
        self.undecodable.add(key)
    }

    /// Returns true if the API server has an object with this name, decodable or not, according to the watch.
    pub(crate) fn contains(&self, key: &ObjectKey) -> bool {
        self.undecodable.contains(key) || self.read(|records| records.get(&key.namespace, &key.name)).is_some()
    }

    /// Returns the memory of all records in bytes, if the store of this kind is limited ([`Kind::limited_bytes`]);
    /// otherwise zero.
    pub(crate) fn limited_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn release(&self, old: Option<&K>) {
        self.bytes.fetch_sub(old.map_or(0, Kind::limited_bytes), Ordering::Relaxed);
    }

    fn notify(&self, change: &Change<'_, K>) {
        let subscribers = read(&self.subscribers).clone();
        for subscriber in &*subscribers {
            // A panic of one subscriber must neither keep a change from the others, nor stop the watch of the kind.
            if catch_unwind(AssertUnwindSafe(|| subscriber(change))).is_err() {
                self.progress.count_subscriber_panic();
                let object = change.new.or(change.old).map(|record| record.meta().key().to_string());
                error!(kind = K::RESOURCE.plural, object, "subscriber panicked; its controller misses this change");
            }
        }
    }
}

#[cfg(test)]
mod tests;
