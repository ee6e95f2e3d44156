//! Volumes and waiting claims under one lock, so that a volume cannot become free between a search and the start of the
//! wait.

use std::sync::{Arc, Mutex, MutexGuard};

use kinds::meta::ObjectKey;
use kinds::{PersistentVolume, PersistentVolumeClaim, Str};
use runtime::lock::lock;
use runtime::store::{Change, Progress};
use tokio::time::Instant;

use super::decide_claim::Search;
use super::volume_index::{Bucket, VolumeIndex, is_free};
use super::waiting::WaitingClaims;
use crate::storage::lost_write::REQUEST_TIMEOUT;

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
        lock(&self.0)
    }

    /// Applies a change of a volume. Returns the claim that should search again, if the volume is free and may fit
    /// other claims than before.
    pub fn apply(&self, change: &Change<'_, PersistentVolume>) -> Option<ObjectKey> {
        let mut state = self.lock();
        state.volumes.apply(change.old, change.new);
        let new = change.new.filter(|new| is_free(new))?;
        let may_fit_more_claims = change.old.is_none_or(|old| !is_free(old) || has_other_fit(old, new));
        if may_fit_more_claims { state.waiting.wake_for(new) } else { None }
    }

    /// Searches for the best volume of a claim and hides it from other claims until [`Matcher::release`]. If there is
    /// none, adds the claim to the waiting ones: a volume that becomes free may wake it unless `is_limited`.
    pub fn find(&self, claim: &PersistentVolumeClaim, is_limited: bool) -> Search {
        let mut state = self.lock();
        state.volumes.end_uncertain(Instant::now());
        let key = claim.meta.key();
        if state.volumes.is_holder(&key) {
            return Search::Busy;
        }
        let Some(volume) = state.volumes.find(claim, is_limited).cloned() else {
            state.waiting.add(claim, is_limited);
            return Search::Nothing;
        };
        if state.volumes.hold(&volume.meta.name, &key) { Search::Found(volume) } else { Search::Busy }
    }

    /// Hides a volume from other claims until [`Matcher::release`]. Returns false if the volume or the claim is already
    /// being bound.
    pub fn hold(&self, volume: &Str, claim: &ObjectKey) -> bool {
        let mut state = self.lock();
        state.volumes.end_uncertain(Instant::now());
        state.volumes.hold(volume, claim)
    }

    /// Ends a claim's hold of a volume; see [`VolumeIndex::release`]. Returns the claim that should search again, if
    /// the volume was not written and is still free. `current` reads the volume's record, under the lock: otherwise the
    /// written version could be applied between the read and the lock, when it does not end the hold yet.
    pub fn release(
        &self,
        (volume, claim): (&Str, &ObjectKey),
        written: Option<u64>,
        current: impl FnOnce() -> Option<Arc<PersistentVolume>>,
    ) -> Option<ObjectKey> {
        let mut state = self.lock();
        let current = current();
        state.volumes.release((volume, claim), written, current.as_ref().map(|volume| volume.meta.version));
        let is_usable = written.is_none();
        current.filter(|volume| is_usable && is_free(volume)).and_then(|volume| state.waiting.wake_for(&volume))
    }

    /// Keeps a claim's hold of a volume after a write whose response was lost, at most as long as the API server may make
    /// the write; see [`VolumeIndex::keep`]. `current` is as in [`Matcher::release`].
    pub fn keep_hold(
        &self,
        held: (&Str, &ObjectKey),
        base: u64,
        current: impl FnOnce() -> Option<Arc<PersistentVolume>>,
    ) {
        let mut state = self.lock();
        let current = current().map(|volume| volume.meta.version);
        state.volumes.keep(held, base, Instant::now() + REQUEST_TIMEOUT, current);
    }

    /// Limits a hold after a write to the time in which the written version may still arrive. If the API server's
    /// storage is restored from a backup, the record of the volume may stay as it is, without a later version.
    pub fn expire_hold(self: &Arc<Self>, progress: &Progress, volume: &Str, written: u64) {
        // If the version is reached and its record has not arrived, the version belongs to a restored history of the
        // server, which the watch has not detected yet.
        if progress.version() < written {
            let (matcher, volume) = (self.clone(), volume.clone());
            progress.when_reached(written, move || matcher.lock().volumes.expire(&volume, written));
        }
    }

    /// Removes a claim that was deleted, or no longer waits.
    pub fn stop_waiting(&self, claim: &ObjectKey) {
        self.lock().waiting.remove(claim);
    }

    /// Returns the claims that wait in a class.
    pub fn waiting_in(&self, class: &str) -> Vec<ObjectKey> {
        self.lock().waiting.of_class(class)
    }

    /// Returns the names of the volumes that refer to a claim with this name.
    pub fn reserved_for(&self, claim: &ObjectKey) -> Vec<Str> {
        self.lock().volumes.reserved_for(claim).map(|volume| volume.meta.name.clone()).collect()
    }
}

/// Returns true if a free volume has changed so that other claims may fit.
fn has_other_fit(old: &PersistentVolume, new: &PersistentVolume) -> bool {
    Bucket::of_volume(old) != Bucket::of_volume(new)
        || (&old.capacity, &old.access_modes) != (&new.capacity, &new.access_modes)
        || old.meta.labels != new.meta.labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::testing::{claim, volume};

    #[test]
    fn hold_ends_when_the_written_version_is_applied_during_its_release() {
        let matcher = Matcher::default();
        let (old, mut new) = (Arc::new(volume("a")), volume("a"));
        let (name, key) = (&old.meta.name, claim("data").meta.key());
        new.meta.version = old.meta.version + 1;
        assert!(matcher.hold(name, &key));
        matcher.release((name, &key), Some(new.meta.version), || {
            assert!(matcher.0.try_lock().is_err(), "the written version could be applied now");
            Some(old.clone())
        });
        matcher.apply(&Change { old: Some(&old), new: Some(&Arc::new(new)) });
        assert!(matcher.hold(name, &key));
    }
}
