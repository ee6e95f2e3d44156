//! Detects changes of EndpointSlices by other clients, after which their Service has to be reconciled.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kinds::meta::{Meta, ObjectKey};
use kinds::{EndpointSlice, Uid};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::store::{Change, Index, Store, index_key};

/// Returns the index of slices by their Service and their manager. Look up by [`slices_of`].
pub const fn by_service() -> Index<EndpointSlice> {
    Index {
        name: "service",
        keys: |slice, emit| {
            if let (Some(service), Some(manager)) = (slice.service(), slice.manager()) {
                emit(slices_of(&slice.meta.namespace, service, manager));
            }
        },
    }
}

/// Returns the key of a Service's slices of one manager.
pub fn slices_of(namespace: &str, service: &str, manager: &str) -> u64 {
    index_key((namespace, service, manager))
}

/// Writes of slices by this process that the watch has not delivered yet.
#[derive(Debug, Default)]
pub struct OwnChanges(Mutex<OwnWrites>);

#[derive(Debug, Default)]
struct OwnWrites {
    /// Versions of this process's writes.
    versions: HashSet<u64>,
    /// Slices with an update in flight, with the versions that the watch delivers before the response arrives.
    updates: HashMap<Uid, Vec<u64>>,
    /// Slices with a deletion in flight or accepted.
    deletions: HashSet<Uid>,
}

/// Number of recorded versions above which those that the watch has passed are dropped.
const MAX_VERSIONS: usize = 1024;

impl OwnWrites {
    fn wrote(&mut self, store: &Store<EndpointSlice>, version: u64) {
        let reached = store.progress().version();
        if reached < version {
            if self.versions.len() >= MAX_VERSIONS {
                self.versions.retain(|version| *version > reached);
            }
            self.versions.insert(version);
        }
    }
}

impl OwnChanges {
    fn lock(&self) -> MutexGuard<'_, OwnWrites> {
        lock(&self.0)
    }

    /// Records the version of a write, unless the cache has reached it.
    pub fn wrote(&self, store: &Store<EndpointSlice>, version: u64) {
        self.lock().wrote(store, version);
    }

    /// Records that a slice is about to be updated: the watch may deliver the update before the response arrives.
    pub fn updating(&self, uid: &Uid) {
        self.lock().updates.insert(uid.clone(), Vec::new());
    }

    /// Records the result of [`OwnChanges::updating`]: the written version, if it is known. Returns true if the watch
    /// has delivered a version of another client.
    pub fn updated(&self, store: &Store<EndpointSlice>, uid: &Uid, written: Option<u64>) -> bool {
        let mut own = self.lock();
        let delivered = own.updates.remove(uid).unwrap_or_default();
        if let Some(written) = written.filter(|written| !delivered.contains(written)) {
            own.wrote(store, written);
        }
        delivered.iter().any(|version| Some(*version) != written)
    }

    /// Records that a slice is about to be deleted.
    pub fn deleting(&self, uid: &Uid) {
        self.lock().deletions.insert(uid.clone());
    }

    /// Reverts [`OwnChanges::deleting`].
    pub fn not_deleting(&self, uid: &Uid) {
        self.lock().deletions.remove(uid);
    }

    /// Returns true if a version that the watch delivers was written by this controller, or will be checked by
    /// [`OwnChanges::updated`].
    fn is_own_write(&self, slice: &Meta) -> bool {
        let mut own = self.lock();
        if own.versions.remove(&slice.version) {
            return true;
        }
        let update = own.updates.get_mut(&slice.uid);
        update.map(|delivered| delivered.push(slice.version)).is_some()
    }

    fn deleted(&self, uid: &Uid) -> bool {
        self.lock().deletions.remove(uid)
    }
}

/// The urgency of the reconcile of a slice's Service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Immediately: the Service's key may be waiting for the cache to contain this deletion.
    Now,
    /// Delayed: another client changed the slice, and may be about to change others.
    Soon,
}

/// Returns the keys that a change of a slice affects. `is_own` and `is_own_deletion` return true if the change is a
/// write by this process.
pub fn of_slice(
    change: &Change<'_, EndpointSlice>,
    manager: &str,
    is_own: impl FnOnce(&Meta) -> bool,
    is_own_deletion: impl FnOnce(&Uid) -> bool,
) -> Vec<(ObjectKey, Urgency)> {
    let service = |slice: &Arc<EndpointSlice>| {
        let service = slice.service()?;
        (slice.manager() == Some(manager)).then(|| ObjectKey::new(slice.meta.namespace.clone(), service))
    };
    let (before, after) = (change.old.and_then(service), change.new.and_then(service));
    match (change.old, change.new) {
        (Some(old), None) => {
            let urgency = if is_own_deletion(&old.meta.uid) { Urgency::Now } else { Urgency::Soon };
            before.into_iter().map(|key| (key, urgency)).collect()
        }
        (_, Some(new)) if before == after || change.old.is_none() => {
            let foreign = after.is_some() && !is_own(&new.meta);
            after.into_iter().filter(|_| foreign).map(|key| (key, Urgency::Soon)).collect()
        }
        _ => before.into_iter().chain(after).map(|key| (key, Urgency::Soon)).collect(),
    }
}

/// Enqueues the Services of changed slices. Changes of other clients are processed after `delay`.
pub fn subscribe(
    slices: &Arc<Store<EndpointSlice>>,
    manager: &'static str,
    own: &Arc<OwnChanges>,
    queue: &Arc<Queue<ObjectKey>>,
    delay: Duration,
) {
    let (own, queue) = (own.clone(), queue.clone());
    slices.subscribe(move |change| {
        let keys = of_slice(change, manager, |slice| own.is_own_write(slice), |uid| own.deleted(uid));
        for (key, urgency) in keys {
            match urgency {
                Urgency::Now => queue.add(key),
                Urgency::Soon => queue.add_after(key, delay),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use kinds::Sections;
    use runtime::testing::meta;
    use runtime::watch::Builder;

    use super::*;

    #[test]
    fn services_of_a_changed_slice_are_requeued_unless_the_change_is_an_own_write() {
        let slice = |service: &str, manager: &str| {
            let mut slice: EndpointSlice = runtime::testing::object("web-x", Sections::default());
            let names = [("kubernetes.io/service-name", service), ("endpointslice.kubernetes.io/managed-by", manager)];
            let names = names.into_iter().filter(|(_, value)| !value.is_empty());
            let names = names.map(|(key, value)| (key.into(), value.into())).collect();
            slice.meta.labels = kinds::Interner::default().labels(names);
            Some(Arc::new(slice))
        };
        let (soon, now) = (Urgency::Soon, Urgency::Now);
        for (what, old, new, is_own, expected) in [
            ("created", None, slice("web", "me"), false, &[("web", soon)][..]),
            ("created here", None, slice("web", "me"), true, &[]),
            ("of another manager", None, slice("web", "you"), false, &[]),
            ("without Service", None, slice("", "me"), false, &[]),
            ("updated", slice("web", "me"), slice("web", "me"), false, &[("web", soon)]),
            ("updated here", slice("web", "me"), slice("web", "me"), true, &[]),
            ("moved", slice("web", "me"), slice("db", "me"), false, &[("web", soon), ("db", soon)]),
            ("taken by another manager", slice("web", "me"), slice("web", "you"), false, &[("web", soon)]),
            ("deleted", slice("web", "me"), None, false, &[("web", soon)]),
            ("deleted here", slice("web", "me"), None, true, &[("web", now)]),
            ("deleted, without Service", slice("", "me"), None, false, &[]),
        ] {
            let change = Change { old: old.as_ref(), new: new.as_ref() };
            let found = of_slice(&change, "me", |_| is_own, |_| is_own);
            let found: Vec<(&str, Urgency)> = found.iter().map(|(key, urgency)| (&*key.name, *urgency)).collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn update_that_the_watch_delivers_before_its_response_is_an_own_write() {
        let mut needs = Builder::default();
        needs.need::<EndpointSlice>(Sections::default(), &[]);
        let store = needs.build().store::<EndpointSlice>();
        let own = OwnChanges::default();
        let slice = |version| Meta { uid: Uid::parse("u"), ..meta("n", "web-x", version) };
        // (versions delivered before the response, version in the response, whether another client changed it, too)
        for (delivered, written, others) in [
            (&[][..], Some(5), false),
            (&[6], Some(6), false),
            (&[7], Some(8), true),
            (&[9, 10], Some(10), true),
            (&[], None, false),
            (&[11], None, true),
        ] {
            own.updating(&Uid::parse("u"));
            delivered
                .iter()
                .for_each(|version| assert!(own.is_own_write(&slice(*version)), "{version} is checked later"));
            assert_eq!(own.updated(&store, &Uid::parse("u"), written), others, "{delivered:?} {written:?}");
            let late = written.filter(|written| !delivered.contains(written));
            late.into_iter()
                .for_each(|version| assert!(own.is_own_write(&slice(version)), "{version} is delivered later"));
        }
        assert!(!own.is_own_write(&slice(12)), "another client's");
    }
}
