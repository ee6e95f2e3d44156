//! Free and reserved volumes, ordered so that a search skips volumes that cannot match.
//!
//! Upstream: pkg/controller/volume/persistentvolume, persistentVolumeOrderedIndex; component-helpers/storage/volume,
//! FindMatchingVolume. Upstream breaks ties at random; here the first name is chosen.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use kinds::access_modes::{AccessModes, VolumeMode};
use kinds::meta::ObjectKey;
use kinds::persistent_volume::Phase;
use kinds::resource_list::Amount;
use kinds::{PersistentVolume, PersistentVolumeClaim, Str};
use tokio::time::Instant;

use super::reserved_volumes::ReservedVolumes;

/// Properties of a volume that must be equal to the claim's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bucket {
    class: Str,
    attributes_class: Str,
    volume_mode: VolumeMode,
}

impl Bucket {
    /// Returns the bucket that a volume is in.
    pub fn of_volume(volume: &PersistentVolume) -> Self {
        Self {
            class: volume.class().into(),
            attributes_class: volume.attributes_class.clone(),
            volume_mode: volume.volume_mode,
        }
    }

    /// Returns the bucket whose volumes a claim may have.
    pub fn of_claim(claim: &PersistentVolumeClaim) -> Self {
        Self {
            class: claim.class().into(),
            attributes_class: claim.attributes_class.clone(),
            volume_mode: claim.volume_mode,
        }
    }
}

/// Volumes with the same access modes, the smallest first.
type BySize = BTreeMap<(Amount, Str), Arc<PersistentVolume>>;

/// Volumes of a bucket by number of access modes, then by the modes.
type ByModes = BTreeMap<(u32, AccessModes), BySize>;

/// Reason why a volume is hidden from other claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// A write is in progress.
    Writing,
    /// The volume was written at this version; older records are outdated.
    Written(u64),
    /// The response to a write was lost. The API server may make the write until the time `until`. If it does, or if
    /// another client writes the volume, the volume's record no longer has the version `base`.
    Uncertain { base: u64, until: Instant },
}

/// Volumes that claims may be bound to.
#[derive(Debug, Default)]
pub struct VolumeIndex {
    free: HashMap<Bucket, ByModes>,
    reserved: ReservedVolumes,
    holds: HashMap<Str, (Hold, ObjectKey)>,
    holders: HashSet<ObjectKey>,
    /// The ends of uncertain holds, in this order.
    ends: VecDeque<(Instant, Str)>,
}

/// Returns the storage that a claim requests.
pub fn requested(claim: &PersistentVolumeClaim) -> Amount {
    claim.requested().unwrap_or(Amount::ZERO)
}

/// Returns true if any claim may have this volume.
pub fn is_free(volume: &PersistentVolume) -> bool {
    volume.phase == Phase::Available && volume.claim.is_none() && !volume.meta.is_deleting()
}

/// Returns true if a volume is bound to another object than this claim, so it cannot be reserved for the claim.
pub fn is_bound_to_another(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let uid = volume.claim.as_ref().and_then(|reference| reference.uid.as_ref());
    volume.phase == Phase::Bound && uid.is_some_and(|uid| *uid != claim.meta.uid)
}

/// Returns the key of the claim that a volume refers to.
pub fn claim_key(volume: &PersistentVolume) -> Option<ObjectKey> {
    volume.claim.as_ref().map(|claim| ObjectKey::new(claim.namespace.clone(), claim.name.clone()))
}

impl VolumeIndex {
    /// Applies a change of a volume.
    pub fn apply(&mut self, old: Option<&Arc<PersistentVolume>>, new: Option<&Arc<PersistentVolume>>) {
        if let Some(old) = old {
            self.remove(old);
        }
        let Some(name) = new.or(old).map(|volume| volume.meta.name.clone()) else { return };
        let Some(new) = new else {
            self.remove_hold(&name);
            return;
        };
        // The API server may have been restored to an older history, in which the written version never occurs.
        let is_older_history = old.is_some_and(|old| old.meta.version > new.meta.version);
        let is_current = |hold: &Hold| match hold {
            Hold::Writing => false,
            Hold::Written(at) => new.meta.version >= *at || is_older_history,
            Hold::Uncertain { base, .. } => new.meta.version != *base,
        };
        if self.holds.get(&name).is_some_and(|(hold, _)| is_current(hold)) {
            self.remove_hold(&name);
        }
        self.insert(new);
    }

    fn insert(&mut self, volume: &Arc<PersistentVolume>) {
        if volume.claim.is_some() {
            self.reserved.put(volume);
        } else if let Some((modes, size)) = place(volume) {
            let free = self.free.entry(Bucket::of_volume(volume)).or_default();
            free.entry(modes).or_default().insert((size, volume.meta.name.clone()), volume.clone());
        }
    }

    fn remove(&mut self, volume: &PersistentVolume) {
        if volume.claim.is_some() {
            self.reserved.remove(volume);
        } else if let Some((modes, size)) = place(volume) {
            let bucket = Bucket::of_volume(volume);
            let Some(by_modes) = self.free.get_mut(&bucket) else { return };
            if let Some(by_size) = by_modes.get_mut(&modes) {
                by_size.remove(&(size, volume.meta.name.clone()));
                if by_size.is_empty() {
                    by_modes.remove(&modes);
                }
            }
            if by_modes.is_empty() {
                self.free.remove(&bucket);
            }
        }
    }

    /// Returns the volumes that refer to a claim with this name, regardless of its uid.
    pub fn reserved_for(&self, claim: &ObjectKey) -> impl Iterator<Item = &Arc<PersistentVolume>> {
        self.reserved.of(claim).iter()
    }

    /// Returns the best volume for a claim: of those with the fewest access modes the one that is reserved for the
    /// claim, or the smallest that is not hidden. If `is_limited`, only a volume that is reserved for the claim is
    /// returned.
    pub fn find(&self, claim: &PersistentVolumeClaim, is_limited: bool) -> Option<&Arc<PersistentVolume>> {
        let reserved = self.find_reserved(claim);
        if is_limited {
            return reserved;
        }
        let order = |volume: &PersistentVolume| (volume.modes().len(), volume.modes());
        let limit = reserved.map(|volume| order(volume));
        self.find_free(claim, limit).or(reserved)
    }

    fn find_reserved(&self, claim: &PersistentVolumeClaim) -> Option<&Arc<PersistentVolume>> {
        let key = claim.meta.key();
        let usable = self.reserved_for(&key).filter(|volume| {
            volume.refers_to(&claim.meta)
                && volume.storage().is_some_and(|capacity| capacity >= requested(claim))
                && volume.modes().contains(claim.modes())
                && volume.volume_mode == claim.volume_mode
                && volume.attributes_class == claim.attributes_class
                && !volume.meta.is_deleting()
        });
        usable.min_by_key(|volume| (volume.modes().len(), volume.modes()))
    }

    /// Searches the sets of access modes that come before `limit`, the set of the reserved volume. That volume takes
    /// precedence over volumes of this set and of later sets.
    fn find_free(
        &self,
        claim: &PersistentVolumeClaim,
        limit: Option<(u32, AccessModes)>,
    ) -> Option<&Arc<PersistentVolume>> {
        let sets = self.free.get(&Bucket::of_claim(claim))?.iter();
        let searched = sets.take_while(|(order, _)| limit.is_none_or(|limit| **order < limit));
        let modes = claim.modes();
        let smallest = (requested(claim), Str::from(""));
        let mut fitting = searched
            .filter(|((_, set), _)| set.contains(modes))
            .flat_map(|(_, by_size)| by_size.range(smallest.clone()..).map(|(_, volume)| volume));
        let is_held = |volume: &PersistentVolume| self.holds.contains_key(&volume.meta.name);
        let selects = |volume: &PersistentVolume| {
            claim.selector.as_ref().is_none_or(|selector| selector.matches(&volume.meta.labels))
        };
        fitting.find(|volume| selects(volume) && !is_held(volume))
    }

    /// Hides a volume from other claims while it is bound to this one. Returns false if the volume is hidden already,
    /// or the claim is being bound to another volume.
    pub fn hold(&mut self, volume: &Str, claim: &ObjectKey) -> bool {
        if self.holds.contains_key(volume) || !self.holders.insert(claim.clone()) {
            return false;
        }
        self.holds.insert(volume.clone(), (Hold::Writing, claim.clone()));
        true
    }

    /// Returns true if a claim is being bound, or was bound so recently that the volume's record is outdated.
    pub fn is_holder(&self, claim: &ObjectKey) -> bool {
        self.holders.contains(claim)
    }

    /// Ends a hold. After a write, the volume stays hidden until a record of the written version has arrived; `current`
    /// is the version of the present record.
    pub fn release(&mut self, (volume, claim): (&Str, &ObjectKey), written: Option<u64>, current: Option<u64>) {
        // The volume may have been deleted and created again in the meantime, and may be held for another claim.
        let Some((hold, _)) = self.holds.get_mut(volume).filter(|(_, holder)| holder == claim) else { return };
        match written.zip(current).filter(|(written, current)| current < written) {
            Some((written, _)) => *hold = Hold::Written(written),
            None => self.remove_hold(volume),
        }
    }

    /// Keeps a hold after a write whose response was lost, which was based on the version `base`: until a record of
    /// another version has arrived, or until the time `until`. `current` is the version of the present record.
    pub fn keep(&mut self, (volume, claim): (&Str, &ObjectKey), base: u64, until: Instant, current: Option<u64>) {
        let Some((hold, _)) = self.holds.get_mut(volume).filter(|(_, holder)| holder == claim) else { return };
        if current == Some(base) {
            *hold = Hold::Uncertain { base, until };
            self.ends.push_back((until, volume.clone()));
        } else {
            self.remove_hold(volume);
        }
    }

    /// Ends the holds for writes that the API server no longer makes.
    pub fn end_uncertain(&mut self, now: Instant) {
        while self.ends.front().is_some_and(|(until, _)| *until <= now) {
            let Some((end, volume)) = self.ends.pop_front() else { return };
            let is_due = |hold: &Hold| matches!(hold, Hold::Uncertain { until, .. } if *until == end);
            if self.holds.get(&volume).is_some_and(|(hold, _)| is_due(hold)) {
                self.remove_hold(&volume);
            }
        }
    }

    /// Ends a hold that waits for a version which may never arrive.
    pub fn expire(&mut self, volume: &Str, written: u64) {
        if self.holds.get(volume).is_some_and(|(hold, _)| *hold == Hold::Written(written)) {
            self.remove_hold(volume);
        }
    }

    fn remove_hold(&mut self, volume: &Str) {
        if let Some((_, claim)) = self.holds.remove(volume) {
            self.holders.remove(&claim);
        }
    }
}

/// Returns the position of a free volume in the index.
fn place(volume: &PersistentVolume) -> Option<((u32, AccessModes), Amount)> {
    let modes = volume.modes();
    is_free(volume).then(|| volume.storage()).flatten().map(|size| ((modes.len(), modes), size))
}
