//! The stages of evictions, by pod.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kinds::Uid;
use kinds::meta::ObjectKey;

/// The stage of a pod's eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its countdown is running.
    Waiting,
    /// It is due, and the event was recorded.
    Announced,
    /// It was deleted.
    Deleted,
}

/// All evictions.
#[derive(Debug, Default)]
pub struct Pending(Mutex<HashMap<ObjectKey, (Uid, Stage)>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, (Uid, Stage)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stage of this pod's eviction.
    pub fn get(&self, key: &ObjectKey, uid: &Uid) -> Option<Stage> {
        self.lock().get(key).filter(|(of, _)| of == uid).map(|(_, stage)| *stage)
    }

    /// Returns true if a pod of this name has an eviction.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Sets the stage of a pod's eviction.
    pub fn set(&self, key: &ObjectKey, uid: &Uid, stage: Stage) {
        self.lock().insert(key.clone(), (uid.clone(), stage));
    }

    /// Removes the eviction of the pod of this name.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }
}
