//! The pods that wipe released volumes, and the pauses after failures.
//!
//! A pod counts only for the claim whose data it wipes. Otherwise, if an administrator gave the volume to another
//! claim afterwards, that claim's data would count as wiped, too.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use kinds::meta::{ObjectKey, Uid};
use kinds::{PersistentVolume, Str};
use runtime::lock::lock;
use runtime::store::WriteVersion;
use tokio::time::Instant;

use super::decide_volume::claim_uid;

/// A pod that this process has created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Uid of the volume.
    pub volume: Uid,
    /// Uid of the claim that the volume was bound to, whose data the pod wipes.
    pub claim: Option<Uid>,
    /// Namespace and name of the pod.
    pub key: ObjectKey,
    /// Uid of the pod.
    pub pod: Uid,
    /// Version at which the pod was created.
    pub version: WriteVersion,
}

impl Run {
    /// Returns true if the pod wipes the data of the volume's current claim.
    pub fn is_of(&self, volume: &PersistentVolume) -> bool {
        self.volume == volume.meta.uid && self.claim.as_ref() == claim_uid(volume)
    }
}

/// Pods that wipe volumes, by volume. Pods of an earlier process do not count: they may have ended before a later claim
/// wrote to the volume.
#[derive(Debug, Default)]
pub struct Recycling {
    runs: Mutex<HashMap<Str, Run>>,
    failed: Mutex<HashMap<Str, Instant>>,
}

impl Recycling {
    /// Returns the last pod of a volume with this name.
    pub fn get(&self, volume: &Str) -> Option<Run> {
        lock(&self.runs).get(volume).cloned()
    }

    /// Records a created pod.
    pub fn insert(&self, volume: &Str, run: Run) {
        lock(&self.runs).insert(volume.clone(), run);
    }

    /// Returns the time until a volume may be wiped again after a failed attempt; `None` if it may be wiped now. The
    /// change to the phase Failed requeues the volume earlier than that.
    pub fn pause(&self, volume: &Str, pause: Duration) -> Option<Duration> {
        let failed = lock(&self.failed).get(volume).copied();
        failed.and_then(|at| (at + pause).checked_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Starts a pause after a failure.
    pub fn set_failed(&self, volume: &Str) {
        lock(&self.failed).insert(volume.clone(), Instant::now());
    }

    /// Removes the pod of a volume.
    pub fn end_run(&self, volume: &Str) {
        lock(&self.runs).remove(volume);
    }

    /// Removes the state of a volume that was deleted or wiped.
    pub fn forget(&self, volume: &Str) {
        self.end_run(volume);
        lock(&self.failed).remove(volume);
    }
}
