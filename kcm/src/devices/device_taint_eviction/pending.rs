//! The evictions of pods: their stages, and the rules that cause them.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard};

use kinds::Uid;
use kinds::meta::ObjectKey;
use runtime::lock::lock;

/// The stage of a pod's eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The pod's countdown is running.
    Waiting,
    /// The time of the pod's deletion has come, and the event that announces the deletion was recorded.
    Announced,
    /// The pod was deleted.
    Deleted,
}

/// The eviction of one pod.
#[derive(Debug)]
struct PodEviction {
    pod: Uid,
    stage: Stage,
    /// The rules that cause it.
    rules: BTreeSet<Uid>,
}

/// All evictions.
#[derive(Debug, Default)]
pub struct Pending(Mutex<HashMap<ObjectKey, PodEviction>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<ObjectKey, PodEviction>> {
        lock(&self.0)
    }

    /// Returns the stage of this pod's eviction.
    pub fn get(&self, key: &ObjectKey, uid: &Uid) -> Option<Stage> {
        self.lock().get(key).filter(|eviction| eviction.pod == *uid).map(|eviction| eviction.stage)
    }

    /// Returns true if a pod with this name has an eviction.
    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.lock().contains_key(key)
    }

    /// Records that a pod has to be evicted because of these rules. Returns the rules of the previous record.
    pub fn record(&self, key: &ObjectKey, uid: &Uid, rules: &BTreeSet<Uid>) -> BTreeSet<Uid> {
        let mut all = self.lock();
        let stage = all.get(key).filter(|known| known.pod == *uid).map_or(Stage::Waiting, |known| known.stage);
        let eviction = PodEviction { pod: uid.clone(), stage, rules: rules.clone() };
        all.insert(key.clone(), eviction).map(|known| known.rules).unwrap_or_default()
    }

    /// Sets the stage of a recorded eviction.
    pub fn set_stage(&self, key: &ObjectKey, uid: &Uid, stage: Stage) {
        if let Some(eviction) = self.lock().get_mut(key).filter(|eviction| eviction.pod == *uid) {
            eviction.stage = stage;
        }
    }

    /// Removes the eviction of the pod with this name. Returns its rules.
    pub fn remove(&self, key: &ObjectKey) -> BTreeSet<Uid> {
        self.lock().remove(key).map(|eviction| eviction.rules).unwrap_or_default()
    }
}
