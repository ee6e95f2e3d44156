//! Volumes and waiting claims under one lock, so that a volume cannot become free between a search and the wait for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kinds::meta::ObjectKey;
use kinds::{PersistentVolume, PersistentVolumeClaim, Str};
use runtime::store::Change;

use super::volume_index::{Bucket, VolumeIndex, is_free};
use super::waiting::WaitingClaims;

/// Volumes that claims may have, and claims that wait for one.
#[derive(Debug, Default)]
pub struct Matcher(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    volumes: VolumeIndex,
    waiting: WaitingClaims,
}

impl Matcher {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Applies a change of a volume. Returns the claim that should search again, if the volume became free.
    pub fn apply(&self, change: &Change<'_, PersistentVolume>) -> Option<ObjectKey> {
        let mut state = self.lock();
        state.volumes.apply(change.old, change.new);
        let new = change.new.filter(|new| is_free(new))?;
        let fits_more = change.old.is_none_or(|old| !is_free(old) || has_other_fit(old, new));
        if fits_more { state.waiting.wake_for(new) } else { None }
    }

    /// Returns the best volume for a claim and hides it from other claims until [`Matcher::release`]. If there is none,
    /// the claim waits until a volume becomes free.
    pub fn find(&self, claim: &PersistentVolumeClaim, is_delayed: bool) -> Option<Arc<PersistentVolume>> {
        let mut state = self.lock();
        let found = state.volumes.find(claim, is_delayed).cloned();
        if let Some(volume) = found
            && state.volumes.hold(&volume.meta.name)
        {
            return Some(volume);
        }
        state.waiting.add(claim, is_delayed);
        None
    }

    /// Hides a volume from other claims until [`Matcher::release`]. Returns false if another claim is being bound to it.
    pub fn hold(&self, volume: &Str) -> bool {
        self.lock().volumes.hold(volume)
    }

    /// Ends a hold; see [`VolumeIndex::release`]. Returns the claim that should search again, if the volume is still
    /// free.
    pub fn release(&self, volume: &Str, written: Option<u64>, current: Option<&PersistentVolume>) -> Option<ObjectKey> {
        let mut state = self.lock();
        state.volumes.release(volume, written, current.map(|volume| volume.meta.version));
        let is_usable = written.is_none();
        current.filter(|volume| is_usable && is_free(volume)).and_then(|volume| state.waiting.wake_for(volume))
    }

    /// Removes a claim that was deleted, or no longer waits.
    pub fn stop_waiting(&self, claim: &ObjectKey) {
        self.lock().waiting.remove(claim);
    }

    /// Returns the claims that wait in a class.
    pub fn waiting_in(&self, class: &str) -> Vec<ObjectKey> {
        self.lock().waiting.of_class(class)
    }

    /// Returns the names of the volumes that refer to a claim of this name.
    pub fn reserved_for(&self, claim: &ObjectKey) -> Vec<Str> {
        self.lock().volumes.reserved_for(claim).map(|volume| volume.meta.name.clone()).collect()
    }
}

/// Reports whether a free volume has changed so that other claims may fit.
fn has_other_fit(old: &PersistentVolume, new: &PersistentVolume) -> bool {
    Bucket::of_volume(old) != Bucket::of_volume(new)
        || (&old.capacity, &old.access_modes) != (&new.capacity, &new.access_modes)
        || old.meta.labels != new.meta.labels
}
