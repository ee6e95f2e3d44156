//! Claims that found no volume, ordered so that a volume that becomes free wakes a claim that it fits.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use kinds::access_modes::AccessModes;
use kinds::meta::ObjectKey;
use kinds::resource_list::Amount;
use kinds::selector::Selector;
use kinds::{PersistentVolume, PersistentVolumeClaim, Str};

use super::volume_index::{Bucket, requested};

/// Text that sorts after all namespaces, which are ASCII.
const AFTER_ALL_NAMESPACES: &str = "\u{10ffff}";

#[derive(Debug)]
struct Need {
    modes: AccessModes,
    labels: Option<Box<Selector>>,
}

/// Position of a waiting claim.
#[derive(Debug)]
struct Place {
    /// `None` if free volumes do not wake the claim: it may get only a volume that is reserved for it, or was woken and
    /// has not searched since.
    need: Option<(Bucket, Amount)>,
    class: Str,
}

/// Claims that wait for a volume or a class.
#[derive(Debug, Default)]
pub struct WaitingClaims {
    by_need: HashMap<Bucket, BTreeMap<(Amount, ObjectKey), Need>>,
    by_class: HashMap<Str, BTreeSet<ObjectKey>>,
    places: HashMap<ObjectKey, Place>,
}

impl WaitingClaims {
    /// Adds a claim that found no volume. Free volumes do not wake a claim that may get only a volume that is reserved
    /// for it (`is_limited`).
    pub fn add(&mut self, claim: &PersistentVolumeClaim, is_limited: bool) {
        let key = claim.meta.key();
        self.remove(&key);
        let class = Str::from(claim.class());
        self.by_class.entry(class.clone()).or_default().insert(key.clone());
        let need = (!is_limited).then(|| (Bucket::of_claim(claim), requested(claim)));
        if let Some((bucket, request)) = &need {
            let waiter = Need { modes: claim.modes(), labels: claim.selector.clone() };
            self.by_need.entry(bucket.clone()).or_default().insert((*request, key.clone()), waiter);
        }
        self.places.insert(key, Place { need, class });
    }

    /// Removes a claim that was deleted or no longer waits.
    pub fn remove(&mut self, key: &ObjectKey) {
        let Some(place) = self.places.remove(key) else { return };
        if let Some(keys) = self.by_class.get_mut(&place.class) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_class.remove(&place.class);
            }
        }
        if let Some((bucket, request)) = place.need {
            self.remove_need(&bucket, request, key);
        }
    }

    fn remove_need(&mut self, bucket: &Bucket, request: Amount, key: &ObjectKey) {
        if let Some(needs) = self.by_need.get_mut(bucket) {
            needs.remove(&(request, key.clone()));
            if needs.is_empty() {
                self.by_need.remove(bucket);
            }
        }
    }

    /// Returns, of the claims that a free volume fits and that were not woken yet, the one with the largest request.
    ///
    /// One claim for each volume is enough. If the claim takes another free volume, the claim that was woken for that
    /// volume can take this one; and waiting claims also search again periodically.
    pub fn wake_for(&mut self, volume: &PersistentVolume) -> Option<ObjectKey> {
        let bucket = Bucket::of_volume(volume);
        let after_fitting = (volume.storage()?, ObjectKey::new(AFTER_ALL_NAMESPACES, ""));
        let modes = volume.modes();
        let labels = &volume.meta.labels;
        let selects = |need: &Need| need.labels.as_ref().is_none_or(|selector| selector.matches(labels));
        let fits = |need: &Need| modes.contains(need.modes) && selects(need);
        let mut fitting = self.by_need.get(&bucket)?.range(..after_fitting).rev();
        let (request, key) = fitting.find(|(_, need)| fits(need)).map(|(at, _)| at.clone())?;
        self.remove_need(&bucket, request, &key);
        if let Some(place) = self.places.get_mut(&key) {
            place.need = None;
        }
        Some(key)
    }

    /// Returns the claims that wait in a class, including those that free volumes do not wake.
    pub fn of_class(&self, class: &str) -> Vec<ObjectKey> {
        self.by_class.get(class).into_iter().flatten().cloned().collect()
    }
}
