//! Detects which changes of EndpointSlices were made by others, so that their Service has to be synced.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kinds::meta::{Meta, ObjectKey};
use kinds::{EndpointSlice, Uid};
use runtime::queue::Queue;
use runtime::store::{Change, Index, Store, index_key};

/// Returns the index of slices by their Service and by who takes care of them. Look up by [`slices_of`].
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

/// Returns the key of a Service's slices that one manager takes care of.
pub fn slices_of(namespace: &str, service: &str, manager: &str) -> u64 {
    index_key((namespace, service, manager))
}

/// What this controller does to slices, as long as the watch has not shown it.
#[derive(Debug, Default)]
pub struct OwnChanges(Mutex<Own>);

#[derive(Debug, Default)]
struct Own {
    /// Versions that it made.
    versions: HashSet<u64>,
    /// Slices that it is updating, with the versions of them that the watch shows before the answer is there.
    updates: HashMap<Uid, Vec<u64>>,
    /// Slices that it requested to delete.
    deletions: HashSet<Uid>,
}

/// Above this many remembered versions those are dropped that the watch has passed without showing them.
const MANY: usize = 1024;

impl Own {
    fn wrote(&mut self, store: &Store<EndpointSlice>, version: u64) {
        let reached = store.progress().version();
        if reached < version {
            if self.versions.len() >= MANY {
                self.versions.retain(|version| *version > reached);
            }
            self.versions.insert(version);
        }
    }
}

impl OwnChanges {
    fn lock(&self) -> MutexGuard<'_, Own> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers a version.
    pub fn wrote(&self, store: &Store<EndpointSlice>, version: u64) {
        self.lock().wrote(store, version);
    }

    /// Remembers that a slice is about to be updated: the watch may be faster than the answer.
    pub fn updating(&self, uid: &Uid) {
        self.lock().updates.insert(uid.clone(), Vec::new());
    }

    /// Records the outcome of [`OwnChanges::updating`]: the version that was written, if one is known. Returns whether
    /// the watch has shown a version that someone else wrote.
    pub fn updated(&self, store: &Store<EndpointSlice>, uid: &Uid, made: Option<u64>) -> bool {
        let mut own = self.lock();
        let shown = own.updates.remove(uid).unwrap_or_default();
        if let Some(made) = made.filter(|made| !shown.contains(made)) {
            own.wrote(store, made);
        }
        shown.iter().any(|version| Some(*version) != made)
    }

    /// Remembers that an object is about to be deleted.
    pub fn deleting(&self, uid: &Uid) {
        self.lock().deletions.insert(uid.clone());
    }

    /// Takes [`OwnChanges::deleting`] back.
    pub fn not_deleting(&self, uid: &Uid) {
        self.lock().deletions.remove(uid);
    }

    /// Reports whether a version that the watch shows is this controller's, or will be judged by
    /// [`OwnChanges::updated`].
    fn made(&self, slice: &Meta) -> bool {
        let mut own = self.lock();
        if own.versions.remove(&slice.version) {
            return true;
        }
        let update = own.updates.get_mut(&slice.uid);
        update.map(|shown| shown.push(slice.version)).is_some()
    }

    fn deleted(&self, uid: &Uid) -> bool {
        self.lock().deletions.remove(uid)
    }
}

/// How soon the Service of a slice has to be synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// It may be waiting for this.
    Now,
    /// Someone else changed the slice, and may be about to change others.
    Soon,
}

/// Returns the keys that a change of a slice concerns. `is_own` and `is_own_deletion` say whether the change is our
/// doing.
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

/// Turns changes of slices into keys on the queue; changes of others are processed after `delay`.
pub fn subscribe(
    slices: &Arc<Store<EndpointSlice>>,
    manager: &'static str,
    own: &Arc<OwnChanges>,
    queue: &Arc<Queue<ObjectKey>>,
    delay: Duration,
) {
    let (own, queue) = (own.clone(), queue.clone());
    slices.subscribe(move |change| {
        let keys = of_slice(change, manager, |slice| own.made(slice), |uid| own.deleted(uid));
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
    fn an_update_that_the_watch_shows_before_its_answer_is_nobody_elses() {
        let mut needs = Builder::default();
        needs.need::<EndpointSlice>(Sections::default(), &[]);
        let store = needs.build().store::<EndpointSlice>();
        let own = OwnChanges::default();
        let slice = |version| Meta { uid: Uid::parse("u"), ..meta("n", "web-x", version) };
        // (what the watch shows before the answer, what the answer says, whether someone else changed it, too)
        for (shown, made, others) in [
            (&[][..], Some(5), false),
            (&[6], Some(6), false),
            (&[7], Some(8), true),
            (&[9, 10], Some(10), true),
            (&[], None, false),
            (&[11], None, true),
        ] {
            own.updating(&Uid::parse("u"));
            shown.iter().for_each(|version| assert!(own.made(&slice(*version)), "{version} is judged later"));
            assert_eq!(own.updated(&store, &Uid::parse("u"), made), others, "{shown:?} {made:?}");
            let late = made.filter(|made| !shown.contains(made));
            late.into_iter().for_each(|version| assert!(own.made(&slice(version)), "{version} comes later"));
        }
        assert!(!own.made(&slice(12)), "somebody else's");
    }
}
