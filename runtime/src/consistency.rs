//! Read your own writes: a key is reconciled again only when the cache contains its previous writes.
//!
//! Every write returns the resourceVersion that it created. A key waits until the cache of that kind has reached it,
//! and is requeued automatically. Deletions differ, because their response does not contain the version of the removal:
//! a deletion counts as seen when the cache shows that very object, by uid, as deleted or terminating. Nothing is
//! counted, so nothing can be miscounted. (upstream: pkg/controller, UIDTrackingControllerExpectations;
//! pkg/controller/util/consistency)

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kinds::meta::{Meta, ObjectKey, Uid};
use kinds::{Kind, Resource, Str};
use tokio::time::Instant;

use crate::journal::note;
use crate::store::{Progress, Store};

/// After this time an expected deletion counts as seen, because its object may never be removed (pkg/controller,
/// ExpectationsTimeout).
const DELETIONS_EXPIRE: Duration = Duration::from_secs(5 * 60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Written {
    kind: (&'static str, &'static str),
    history: u64,
    version: u64,
    /// The key will be requeued at this version already.
    is_awaited: bool,
}

#[derive(Debug, Clone)]
struct Deletion {
    name: Str,
    uid: Uid,
    since: Instant,
}

#[derive(Debug, Default)]
struct Expected {
    written: Vec<Written>,
    deletions: Vec<Deletion>,
    /// The response to a write was lost.
    uncertain: bool,
}

/// Writes of a controller that the cache does not contain yet, by key.
#[derive(Debug, Default)]
pub struct Consistency {
    keys: Mutex<HashMap<ObjectKey, Expected>>,
    skips: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
}

impl Consistency {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Expected>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an object of kind `K` was written for `key` at this version.
    pub fn wrote<K: Kind>(&self, key: &ObjectKey, store: &Store<K>, version: u64) {
        self.wrote_at(key, &K::RESOURCE, store.progress(), version);
    }

    /// Like [`Consistency::wrote`], for a kind of which only the progress of its cache is known.
    pub fn wrote_at(&self, key: &ObjectKey, resource: &Resource, progress: &Progress, version: u64) {
        let written = Written {
            kind: (resource.group, resource.plural),
            history: progress.history(),
            version,
            is_awaited: false,
        };
        let mut keys = self.lock();
        let expected = keys.entry(key.clone()).or_default();
        match expected.written.iter_mut().find(|known| known.kind == written.kind) {
            Some(known) if known.history == written.history && known.version >= version => {}
            Some(known) => *known = written,
            None => expected.written.push(written),
        }
    }

    /// Records that an object is about to be deleted for `key`.
    pub fn deleting(&self, key: &ObjectKey, object: &Meta) {
        let deletion = Deletion { name: object.name.clone(), uid: object.uid.clone(), since: Instant::now() };
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
        self.lock().entry(key.clone()).or_default().uncertain = true;
    }

    /// Returns true once after [`Consistency::lost`]: the caller reads from the API server before it acts.
    pub fn take_lost(&self, key: &ObjectKey) -> bool {
        self.lock().get_mut(key).is_some_and(|expected| std::mem::take(&mut expected.uncertain))
    }

    /// Reports whether the cache contains all writes of kind `K` for `key`. If not, `wake` runs when it does.
    pub fn caught_up<K: Kind>(
        &self,
        key: &ObjectKey,
        store: &Arc<Store<K>>,
        wake: impl FnOnce() + Send + 'static,
    ) -> bool {
        self.caught_up_at(key, &K::RESOURCE, store.progress(), wake)
    }

    /// Like [`Consistency::caught_up`], for a kind of which only the progress of its cache is known.
    pub fn caught_up_at(
        &self,
        key: &ObjectKey,
        resource: &Resource,
        progress: &Progress,
        wake: impl FnOnce() + Send + 'static,
    ) -> bool {
        let kind = (resource.group, resource.plural);
        let behind = {
            let mut keys = self.lock();
            let Some(expected) = keys.get_mut(key) else { return true };
            let (history, version) = (progress.history(), progress.version());
            expected
                .written
                .retain(|written| written.kind != kind || written.history == history && written.version > version);
            let behind = expected.written.iter_mut().find(|written| written.kind == kind);
            behind.map(|written| (written.version, std::mem::replace(&mut written.is_awaited, true)))
        };
        match behind {
            None => true,
            Some((version, is_awaited)) => {
                note(|| format!("the cache of {} has not reached version {version} yet", resource.plural));
                *self.skips.lock().unwrap_or_else(PoisonError::into_inner).entry(kind).or_default() += 1;
                // A key that changes all the time while the watch is stalled must not fill the memory.
                if !is_awaited {
                    progress.when_reached(version, wake);
                }
                false
            }
        }
    }

    /// Returns how often a key had to wait for the cache of a kind, by group and plural name.
    pub fn skips(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.skips.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reports whether the cache shows all objects of kind `K` that were deleted for `key` as deleted or terminating.
    pub fn deletions_seen<K: Kind>(&self, key: &ObjectKey, store: &Store<K>) -> bool {
        let mut keys = self.lock();
        let Some(expected) = keys.get_mut(key) else { return true };
        expected.deletions.retain(|deletion| {
            deletion.since.elapsed() < DELETIONS_EXPIRE
                && store
                    .get_with_uid(&key.namespace, &deletion.name, &deletion.uid)
                    .is_some_and(|record| !record.meta().is_deleting())
        });
        let seen = expected.deletions.is_empty();
        if seen && expected.written.is_empty() && !expected.uncertain {
            keys.remove(key);
        }
        seen
    }

    /// Removes a key: its object was deleted, and a new object of that name starts without history.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

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
        // A later write is waited for, too, although an earlier one is already awaited.
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
}
