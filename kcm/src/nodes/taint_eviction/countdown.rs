//! Countdowns of pods to their eviction, by name.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use kinds::Uid;
use kinds::meta::ObjectKey;
use runtime::lock::lock;
use tokio::time::Instant;

/// The state of a pod's eviction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// The countdown is running: the pod is to be deleted at this time.
    Until(Instant),
    /// The pod has had to be deleted since this time, and the event that announces its deletion was recorded.
    Announced(Instant),
    /// The pod was deleted at this time.
    Deleted(Instant),
}

/// The eviction of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Countdown {
    /// The pod.
    pub uid: Uid,
    /// The state of its eviction.
    pub stage: Stage,
}

/// All evictions.
#[derive(Debug, Default)]
pub struct Countdowns(Mutex<HashMap<ObjectKey, Countdown>>);

impl Countdowns {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, Countdown>> {
        lock(&self.0)
    }

    /// Returns the eviction of the pod with this name.
    pub fn get(&self, key: &ObjectKey) -> Option<Countdown> {
        self.lock().get(key).cloned()
    }

    /// Returns true if the pod with this name has an eviction.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Returns true if there are no evictions.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Sets the eviction of a pod.
    pub fn set(&self, key: &ObjectKey, uid: &Uid, stage: Stage) {
        self.lock().insert(key.clone(), Countdown { uid: uid.clone(), stage });
    }

    /// Removes the eviction of the pod with this name. Returns true if its countdown was running.
    pub fn stop(&self, key: &ObjectKey) -> bool {
        self.lock().remove(key).is_some_and(|countdown| matches!(countdown.stage, Stage::Until(_)))
    }
}
