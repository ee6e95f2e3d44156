//! Which changes of EndpointSlices somebody else made, so that their Service has to be looked at.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{EndpointSlice, Uid};
use runtime::queue::Queue;
use runtime::store::{Change, Index, Store, index_key};

/// Index of slices by their Service and by who takes care of them. Look up by [`slices_of`].
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

/// The key of a Service's slices that one manager takes care of.
pub fn slices_of(namespace: &str, service: &str, manager: &str) -> u64 {
    index_key((namespace, service, manager))
}

/// Versions that this controller made and deletions that it asked for, as long as the watch has not shown them.
#[derive(Debug, Default)]
pub struct OwnChanges {
    versions: Mutex<HashSet<u64>>,
    deletions: Mutex<HashSet<Uid>>,
}

/// Above so many remembered versions those are dropped that the watch has passed without showing them.
const MANY: usize = 1024;

impl OwnChanges {
    /// Remembers a version.
    pub fn wrote(&self, store: &Store<EndpointSlice>, version: u64) {
        let reached = store.progress().version();
        if reached < version {
            let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
            if versions.len() >= MANY {
                versions.retain(|version| *version > reached);
            }
            versions.insert(version);
        }
    }

    /// Remembers that an object is about to be deleted.
    pub fn deleting(&self, uid: &Uid) {
        self.deletions.lock().unwrap_or_else(PoisonError::into_inner).insert(uid.clone());
    }

    /// Takes [`OwnChanges::deleting`] back.
    pub fn not_deleting(&self, uid: &Uid) {
        self.deletions.lock().unwrap_or_else(PoisonError::into_inner).remove(uid);
    }

    fn made(&self, version: u64) -> bool {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner).remove(&version)
    }

    fn deleted(&self, uid: &Uid) -> bool {
        self.deletions.lock().unwrap_or_else(PoisonError::into_inner).remove(uid)
    }
}

/// How soon the Service of a slice has to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// It may be waiting for this.
    Now,
    /// Somebody changed the slice, and may be about to change others.
    Soon,
}

/// The keys that a change of a slice concerns. `is_own` and `is_own_deletion` say whether the change is our doing.
pub fn of_slice(
    change: &Change<'_, EndpointSlice>,
    manager: &str,
    is_own: impl FnOnce(u64) -> bool,
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
            let foreign = after.is_some() && !is_own(new.meta.version);
            after.into_iter().filter(|_| foreign).map(|key| (key, Urgency::Soon)).collect()
        }
        _ => before.into_iter().chain(after).map(|key| (key, Urgency::Soon)).collect(),
    }
}

/// Turns changes of slices into keys on the queue; what others did is looked at after `delay`.
pub fn subscribe(
    slices: &Arc<Store<EndpointSlice>>,
    manager: &'static str,
    own: &Arc<OwnChanges>,
    queue: &Arc<Queue<ObjectKey>>,
    delay: Duration,
) {
    let (own, queue) = (own.clone(), queue.clone());
    slices.subscribe(move |change| {
        let keys = of_slice(change, manager, |version| own.made(version), |uid| own.deleted(uid));
        for (key, urgency) in keys {
            match urgency {
                Urgency::Now => queue.add(key),
                Urgency::Soon => queue.add_after(key, delay),
            }
        }
    });
}
