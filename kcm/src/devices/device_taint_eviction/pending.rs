//! The pods that have to go, by name.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kinds::Uid;
use kinds::meta::ObjectKey;

/// How far the end of a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Its time runs.
    Waits,
    /// Its time is up; the event says so already.
    Told,
    /// It was deleted.
    Deleted,
}

/// All that is under way.
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

    /// Reports whether anything is under way for a pod of this name.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Remembers how far the end of a pod is.
    pub fn set(&self, key: &ObjectKey, uid: &Uid, stage: Stage) {
        self.lock().insert(key.clone(), (uid.clone(), stage));
    }

    /// Forgets the pod of this name.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().remove(key);
    }
}
