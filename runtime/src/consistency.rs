//! Read-your-writes consistency: a key is reconciled again only when the cache contains its previous writes.
//!
//! Every write returns the resourceVersion that it created. A key waits until the cache of the written kind has reached
//! that version, and is requeued automatically. Deletions differ, because their response does not contain the version
//! of the removal: a deletion has reached the cache when the object with that uid is missing in it or terminating. No
//! creations or deletions are counted, so that no count can be wrong. A version may never arrive, because the server's
//! storage was restored: a key waits for it at most until the watch delivers other changes some minutes later.
//! Upstream: pkg/controller, UIDTrackingControllerExpectations; pkg/controller/util/consistency.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kinds::meta::{Meta, ObjectKey, Uid};
use kinds::{Kind, Resource, Str};
use tokio::time::Instant;

use crate::journal::note;
use crate::lock::lock;
use crate::store::{Cached, Progress, Store, WriteVersion};
use crate::wake::Wake;

/// Time after which an expected deletion counts as cached, because its object may never be removed. Upstream:
/// pkg/controller, ExpectationsTimeout.
pub const DELETION_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// Minimum number of keys at which the keys without an outstanding write are removed.
const SWEEP_FLOOR: usize = 256;

/// The last write of a kind for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Written {
    /// Group and plural name.
    kind: (&'static str, &'static str),
    version: WriteVersion,
    /// The value of [`Progress::early_wakes`] when a requeue of the key at this version was registered. At another
    /// value, that requeue may have run early, and the key registers again.
    awaited: Option<u64>,
}

/// A deletion that the cache may not contain yet.
#[derive(Debug, Clone)]
struct Deletion {
    /// Group and plural name.
    kind: (&'static str, &'static str),
    name: Str,
    uid: Uid,
    since: Instant,
}

/// The writes for a key that its caches may not contain yet.
#[derive(Debug, Default)]
struct Expected {
    written: Vec<Written>,
    deletions: Vec<Deletion>,
    /// The response to a write was lost.
    is_write_lost: bool,
}

impl Expected {
    fn is_empty(&self) -> bool {
        self.written.is_empty() && self.deletions.is_empty() && !self.is_write_lost
    }
}

/// Children that were read from a cache.
#[derive(Debug)]
pub struct Observed<T> {
    /// The result of the read.
    pub children: T,
    /// The cache contained all earlier deletions before it was read. Otherwise some of the children may be deleted
    /// already.
    pub are_deletions_cached: bool,
}

/// The writes of a controller that its caches do not contain yet, by key.
#[derive(Debug, Default)]
pub struct Consistency {
    keys: Mutex<HashMap<ObjectKey, Expected>>,
    /// The number of keys at which the keys without an outstanding write are removed. An object that is deleted, or
    /// idle, may never be reconciled again: its key would stay in memory.
    sweep_at: AtomicUsize,
    /// The number of waits for the cache of each kind, by group and plural name.
    skips: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
}

impl Consistency {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Expected>> {
        lock(&self.keys)
    }

    /// Records that an object of kind `K` was written for `key` at this version.
    pub fn wrote<K: Kind>(&self, key: &ObjectKey, store: &Store<K>, version: u64) {
        self.wrote_at(key, &K::RESOURCE, store.progress(), version);
    }

    /// Like [`Consistency::wrote`], for a caller that has only the progress of the kind's cache.
    pub fn wrote_at(&self, key: &ObjectKey, resource: &Resource, progress: &Progress, version: u64) {
        let version = progress.written(version);
        let written = Written { kind: (resource.group, resource.plural), version, awaited: None };
        let mut keys = self.lock();
        if keys.len() >= self.sweep_at.load(Ordering::Relaxed).max(SWEEP_FLOOR) {
            sweep(&mut keys, written.kind, progress);
            self.sweep_at.store(keys.len() * 2, Ordering::Relaxed);
        }
        let expected = keys.entry(key.clone()).or_default();
        match expected.written.iter_mut().find(|known| known.kind == written.kind) {
            Some(known) if known.version.covers(&version) => {}
            Some(known) => *known = written,
            None => expected.written.push(written),
        }
    }

    /// Records that an object of this kind is about to be deleted for `key`.
    pub fn deleting(&self, key: &ObjectKey, resource: &Resource, object: &Meta) {
        let kind = (resource.group, resource.plural);
        let deletion = Deletion { kind, name: object.name.clone(), uid: object.uid.clone(), since: Instant::now() };
        self.lock().entry(key.clone()).or_default().deletions.push(deletion);
    }

    /// Reverts [`Consistency::deleting`]: the deletion failed.
    pub fn not_deleting(&self, key: &ObjectKey, uid: &Uid) {
        if let Some(expected) = self.lock().get_mut(key) {
            expected.deletions.retain(|deletion| deletion.uid != *uid);
        }
    }

    /// Records that a write for `key` may have been executed although its response was lost.
    pub fn lost(&self, key: &ObjectKey) {
        self.lock().entry(key.clone()).or_default().is_write_lost = true;
    }

    /// Returns true once after [`Consistency::lost`]: the caller reads from the API server before it acts.
    pub fn take_lost(&self, key: &ObjectKey) -> bool {
        self.lock().get_mut(key).is_some_and(|expected| std::mem::take(&mut expected.is_write_lost))
    }

    /// Returns true if the cache contains all writes of kind `K` for `key`. If not, `wake` runs when the cache contains
    /// them, or when their versions may never arrive.
    pub fn caught_up<K: Kind>(&self, key: &ObjectKey, store: &Arc<Store<K>>, wake: impl Into<Wake>) -> bool {
        self.caught_up_at(key, &K::RESOURCE, store.progress(), wake)
    }

    /// Reads the object of a key, if the cache contains all writes of kind `K` for the key; otherwise `wake` runs when
    /// the cache contains them. If there is no object, removes the key.
    pub fn read<K: Kind>(&self, key: &ObjectKey, store: &Arc<Store<K>>, wake: impl Into<Wake>) -> Cached<K> {
        if !self.caught_up(key, store, wake) {
            return Cached::Lagging;
        }
        let object = store.get(key);
        if object.is_none() {
            self.forget(key);
        }
        object.into()
    }

    /// Reads children of kind `K`, and reports if the cache contained all deletions of that kind for `key`.
    ///
    /// Deletions are checked before the read. In the other order, the watch may advance in between: the deletions would
    /// count as cached although the deleted objects are among those that were read, and too many others would be
    /// deleted.
    pub fn observe<K: Kind, T>(
        &self,
        key: &ObjectKey,
        store: &Store<K>,
        read: impl FnOnce(&Store<K>) -> T,
    ) -> Observed<T> {
        let are_deletions_cached = self.deletions_cached(key, store);
        Observed { children: read(store), are_deletions_cached }
    }

    /// Like [`Consistency::caught_up`], for a caller that has only the progress of the kind's cache.
    pub fn caught_up_at(
        &self,
        key: &ObjectKey,
        resource: &Resource,
        progress: &Progress,
        wake: impl Into<Wake>,
    ) -> bool {
        let (kind, wake) = ((resource.group, resource.plural), wake.into());
        let behind = {
            let mut keys = self.lock();
            let Some(expected) = keys.get_mut(key) else { return true };
            expected.written.retain(|written| written.kind != kind || !progress.contains(&written.version));
            let behind = expected.written.iter_mut().find(|written| written.kind == kind);
            let early_wakes = progress.early_wakes();
            let behind = behind.map(|written| {
                let is_awaited = written.awaited == Some(early_wakes);
                if wake.is_some() {
                    written.awaited = Some(early_wakes);
                }
                (written.version.version(), is_awaited)
            });
            if expected.is_empty() {
                keys.remove(key);
            }
            behind
        };
        match behind {
            None => true,
            Some((version, is_awaited)) => {
                note(|| format!("the cache of {} has not reached version {version} yet", resource.plural));
                *lock(&self.skips).entry(kind).or_default() += 1;
                // A key that changes constantly while the watch is stalled must not fill the memory.
                if !is_awaited {
                    progress.when_reached(version, wake);
                }
                false
            }
        }
    }

    /// Returns the number of times that a key had to wait for the cache of a kind, by group and plural name.
    pub fn skips(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        lock(&self.skips).clone()
    }

    /// Returns true if all objects of kind `K` that were deleted for `key` are missing in the store or terminating, or
    /// were deleted at least [`DELETION_TIMEOUT`] ago.
    fn deletions_cached<K: Kind>(&self, key: &ObjectKey, store: &Store<K>) -> bool {
        let kind = (K::RESOURCE.group, K::RESOURCE.plural);
        let mut keys = self.lock();
        let Some(expected) = keys.get_mut(key) else { return true };
        expected.deletions.retain(|deletion| {
            let is_awaited = deletion.kind != kind
                || store
                    .get_with_uid(&key.namespace, &deletion.name, &deletion.uid)
                    .is_some_and(|record| !record.meta().is_deleting());
            is_awaited && deletion.since.elapsed() < DELETION_TIMEOUT
        });
        let are_cached = expected.deletions.iter().all(|deletion| deletion.kind != kind);
        if expected.is_empty() {
            keys.remove(key);
        }
        are_cached
    }

    /// Removes a key: its object was deleted, and a new object with that name starts without history.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }
}

/// Removes the writes of a kind that its cache contains, and the keys without outstanding writes and deletions.
fn sweep(keys: &mut HashMap<ObjectKey, Expected>, kind: (&str, &str), progress: &Progress) {
    keys.retain(|_, expected| {
        expected.written.retain(|written| written.kind != kind || !progress.contains(&written.version));
        !expected.is_empty()
    });
    keys.shrink_to(keys.len() * 2);
}

#[cfg(test)]
mod tests {
    use kinds::schema::object_meta;
    use kinds::wire::Put as _;
    use kinds::{ConfigMap, Decode, Secret, Sections};

    use super::*;
    use crate::testing::filled_store;

    fn config_map(name: &str) -> ConfigMap {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::NAMESPACE, "ns");
            meta.put_str(object_meta::UID, name);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
        });
        ConfigMap::decode(&decode(), &object).expect("a ConfigMap")
    }

    fn decode() -> Decode {
        Decode { interner: Arc::default(), sections: Sections::default() }
    }

    fn store(names: &[&str]) -> Arc<Store<ConfigMap>> {
        Arc::new(filled_store(decode(), Vec::new(), names.iter().map(|name| config_map(name))))
    }

    #[tokio::test(start_paused = true)]
    async fn deletion_that_arrives_during_the_read_does_not_count_as_cached() {
        let (consistency, key) = (Consistency::default(), ObjectKey::new("ns", "owner"));
        for is_cached_before in [false, true] {
            let store = store(&["a", "b"]);
            consistency.deleting(&key, &ConfigMap::RESOURCE, &config_map("a").meta);
            let advance = || store.remove("ns", "a");
            if is_cached_before {
                advance();
            }
            let observed = consistency.observe(&key, &store, |store| {
                let children = store.all();
                if !is_cached_before {
                    advance();
                }
                children
            });
            // The children contain the deleted object if and only if its deletion does not count as cached.
            let has_deleted = observed.children.iter().any(|child| &*child.meta.name == "a");
            assert_eq!(observed.are_deletions_cached, !has_deleted);
            assert!(consistency.observe(&key, &store, |_| ()).are_deletions_cached, "the next reconcile");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn deletions_of_each_kind_are_looked_up_in_its_own_cache() {
        let (consistency, key) = (Consistency::default(), ObjectKey::new("ns", "owner"));
        let (config_maps, secrets) = (store(&["a"]), Store::<Secret>::new(decode(), Vec::new()));
        consistency.deleting(&key, &ConfigMap::RESOURCE, &config_map("a").meta);
        assert!(consistency.observe(&key, &secrets, |_| ()).are_deletions_cached, "no Secret was deleted");
        assert!(!consistency.observe(&key, &config_maps, |_| ()).are_deletions_cached, "the ConfigMap is cached");
        config_maps.remove("ns", "a");
        assert!(consistency.observe(&key, &config_maps, |_| ()).are_deletions_cached);
    }

    #[test]
    fn object_is_not_read_before_the_cache_contains_the_last_write() {
        let (consistency, key) = (Consistency::default(), ObjectKey::new("ns", "a"));
        let store = store(&["a"]);
        assert!(matches!(consistency.read(&key, &store, || {}), Cached::Current(_)));
        consistency.wrote(&key, &store, 5);
        assert!(matches!(consistency.read(&key, &store, || {}), Cached::Lagging));
        store.progress().advance(5);
        assert!(matches!(consistency.read(&key, &store, || {}), Cached::Current(_)));
        consistency.lost(&key);
        store.remove("ns", "a");
        assert!(matches!(consistency.read(&key, &store, || {}), Cached::Absent));
        assert!(!consistency.take_lost(&key), "a new object with the same name starts without history");
    }

    #[test]
    fn newest_write_of_each_kind_is_awaited_in_its_own_cache() {
        let (consistency, key) = (Consistency::default(), ObjectKey::new("ns", "owner"));
        let (config_maps, secrets) = (store(&[]), Arc::new(Store::<Secret>::new(decode(), Vec::new())));
        let are_cached =
            || (consistency.caught_up(&key, &config_maps, || {}), consistency.caught_up(&key, &secrets, || {}));
        assert_eq!(are_cached(), (true, true), "nothing is written");
        consistency.wrote(&key, &config_maps, 10);
        consistency.wrote(&key, &config_maps, 8);
        consistency.wrote(&key, &secrets, 100);
        for (config_map, secret, expected) in
            [(8, 50, (false, false)), (10, 50, (true, false)), (15, 99, (true, false)), (15, 100, (true, true))]
        {
            config_maps.progress().advance(config_map);
            secrets.progress().advance(secret);
            assert_eq!(are_cached(), expected, "{config_map} {secret}");
        }
    }

    /// For example, the key of a deleted object is not reconciled again after the write that removed the finalizer.
    #[test]
    fn keys_that_are_never_checked_again_do_not_fill_the_memory() {
        const KEYS: u64 = 20_000;
        let pods = Resource { group: "", version: "v1", kind: "Pod", plural: "pods", namespaced: true };
        let (consistency, progress) = (Consistency::default(), Progress::default());
        let key = |version: u64| ObjectKey::new("ns", version.to_string());
        let lost = ObjectKey::new("ns", "lost");
        consistency.lost(&lost);
        for version in 1..=KEYS {
            consistency.wrote_at(&key(version), &pods, &progress, version);
            // The cache is behind by 100 writes.
            progress.advance(version.saturating_sub(100));
        }
        assert!(consistency.lock().len() <= 2 * SWEEP_FLOOR, "{} keys are kept", consistency.lock().len());
        let is_behind = |version| !consistency.caught_up_at(&key(version), &pods, &progress, || {});
        assert!((KEYS - 99..=KEYS).all(is_behind), "outstanding writes are kept");
        assert!(consistency.take_lost(&lost));
    }

    #[test]
    fn repeatedly_checked_key_registers_one_waiter() {
        let pods = Resource { group: "", version: "v1", kind: "Pod", plural: "pods", namespaced: true };
        let (consistency, progress) = (Consistency::default(), Progress::default());
        let (key, woken) = (ObjectKey::new("ns", "a"), Arc::new(AtomicUsize::new(0)));
        let check = || {
            let woken = woken.clone();
            consistency.caught_up_at(&key, &pods, &progress, move || {
                woken.fetch_add(1, Ordering::Relaxed);
            })
        };
        consistency.wrote_at(&key, &pods, &progress, 5);
        assert!((0..1000).all(|_| !check()));
        progress.advance(5);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert!(check());
        consistency.wrote_at(&key, &pods, &progress, 7);
        assert!(!check());
        // The key waits for a later write, too, although it already waits for an earlier one.
        consistency.wrote_at(&key, &pods, &progress, 9);
        assert!(!check());
        progress.advance(7);
        assert!(!check() && !check());
        progress.advance(9);
        assert!(check());
        assert_eq!(woken.load(Ordering::Relaxed), 3);
        consistency.wrote_at(&key, &pods, &progress, 20);
        assert!(!check());
        progress.reset(3);
        assert!(woken.load(Ordering::Relaxed) == 4 && check(), "another history");
    }

    const PODS: Resource = Resource { group: "", version: "v1", kind: "Pod", plural: "pods", namespaced: true };

    /// Counts the calls of a waker.
    fn counting(woken: &Arc<AtomicUsize>) -> impl FnOnce() + Send + 'static {
        let woken = woken.clone();
        move || _ = woken.fetch_add(1, Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_a_version_that_never_arrives_ends_after_minutes_if_the_watch_delivers() {
        let (consistency, progress) = (Consistency::default(), Progress::default());
        let (key, woken) = (ObjectKey::new("ns", "a"), Arc::new(AtomicUsize::new(0)));
        consistency.wrote_at(&key, &PODS, &progress, i64::MAX as u64);
        let is_cached = || consistency.caught_up_at(&key, &PODS, &progress, counting(&woken));
        assert!(!is_cached());
        tokio::time::advance(Duration::from_secs(4 * 60)).await;
        progress.advance(5);
        assert!(!is_cached(), "the event may be late");
        tokio::time::advance(Duration::from_secs(60 * 60)).await;
        assert!(!is_cached(), "the watch delivers nothing: it may be late, too");
        assert_eq!(woken.load(Ordering::Relaxed), 0);
        progress.advance(6);
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        assert!(is_cached());
        let reached = progress.reached(i64::MAX as u64);
        tokio::pin!(reached);
        assert!(futures::poll!(&mut reached).is_pending());
        tokio::time::advance(Duration::from_secs(6 * 60)).await;
        progress.advance(7);
        assert!(futures::poll!(&mut reached).is_ready(), "waits end, too");
    }

    /// The API server was restored from a backup, and this process writes before its watch has failed and relisted.
    #[tokio::test(start_paused = true)]
    async fn write_to_a_restored_server_is_awaited_although_its_version_was_reached_before() {
        let (consistency, progress) = (Consistency::default(), Progress::default());
        let woken = Arc::new(AtomicUsize::new(0));
        let key = |name: &str| ObjectKey::new("ns", name);
        let is_cached = |name| consistency.caught_up_at(&key(name), &PODS, &progress, counting(&woken));
        progress.advance(999);
        for (name, version) in [("delivered", 1000), ("lost", 1001)] {
            consistency.wrote_at(&key(name), &PODS, &progress, version);
        }
        progress.advance(1000);
        // The watch was faster than this response.
        consistency.wrote_at(&key("late"), &PODS, &progress, 998);
        assert!(!is_cached("lost"));
        tokio::time::advance(Duration::from_secs(60)).await;
        consistency.wrote_at(&key("new"), &PODS, &progress, 505);
        progress.reset(500);
        assert_eq!(woken.load(Ordering::Relaxed), 1, "the written version may never arrive");
        assert!(["delivered", "lost", "late"].into_iter().all(is_cached));
        assert!(!is_cached("new") && !is_cached("new"), "the write is newer than the list of the restored state");
        progress.advance(504);
        assert!(!is_cached("new"));
        progress.advance(505);
        assert_eq!(woken.load(Ordering::Relaxed), 2);
        assert!(is_cached("new"));
    }
}
