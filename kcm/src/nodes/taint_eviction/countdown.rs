//! The pods whose time runs, by name.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kinds::Uid;
use kinds::meta::ObjectKey;
use tokio::time::Instant;

/// What is under way for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// It is deleted then.
    Until(Instant),
    /// Its time is up; the event says so already.
    Told,
    /// It was deleted.
    Deleted,
}

/// A pod that has to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Countdown {
    /// The pod.
    pub uid: Uid,
    /// How far its end is.
    pub stage: Stage,
}

/// All that is under way.
#[derive(Debug, Default)]
pub struct Countdowns(Mutex<HashMap<ObjectKey, Countdown>>);

impl Countdowns {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Countdown>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what is under way for the pod of this name.
    pub fn get(&self, key: &ObjectKey) -> Option<Countdown> {
        self.lock().get(key).cloned()
    }

    /// Reports whether anything is under way for the pod of this name.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Remembers what is under way for a pod.
    pub fn set(&self, key: &ObjectKey, uid: &Uid, stage: Stage) {
        self.lock().insert(key.clone(), Countdown { uid: uid.clone(), stage });
    }

    /// Forgets the pod of this name; true if its time was running.
    pub fn stop(&self, key: &ObjectKey) -> bool {
        self.lock().remove(key).is_some_and(|countdown| matches!(countdown.stage, Stage::Until(_)))
    }
}
