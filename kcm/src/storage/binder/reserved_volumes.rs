//! Volumes by the claim that they refer to. Every bound volume has an entry, so an entry must take little memory.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::{DefaultHashBuilder, HashTable};
use kinds::PersistentVolume;
use kinds::meta::ObjectKey;

/// The volumes that refer to one claim, sorted by name: mostly one.
#[derive(Debug)]
enum Group {
    One(Arc<PersistentVolume>),
    Many(Box<Several>),
}

/// Two or more volumes. They are boxed in a [`Group`], so that a group takes one pointer instead of three words.
#[derive(Debug)]
struct Several(Vec<Arc<PersistentVolume>>);

impl Group {
    fn volumes(&self) -> &[Arc<PersistentVolume>] {
        match self {
            Self::One(volume) => std::slice::from_ref(volume),
            Self::Many(several) => &several.0,
        }
    }

    /// Returns namespace and name of the claim.
    fn claim(&self) -> (&str, &str) {
        self.volumes().first().map_or(("", ""), |volume| claim_of(volume))
    }

    fn put(&mut self, new: &Arc<PersistentVolume>) {
        match self {
            Self::One(volume) if volume.meta.name == new.meta.name => *volume = new.clone(),
            Self::One(volume) => {
                let mut both = vec![volume.clone(), new.clone()];
                both.sort_by(|one, other| one.meta.name.cmp(&other.meta.name));
                *self = Self::Many(Box::new(Several(both)));
            }
            Self::Many(several) => match several.0.binary_search_by(|other| other.meta.name.cmp(&new.meta.name)) {
                Ok(at) => several.0[at] = new.clone(),
                Err(at) => several.0.insert(at, new.clone()),
            },
        }
    }

    /// Removes a volume. Returns true if none is left.
    fn remove(&mut self, name: &str) -> bool {
        match self {
            Self::One(volume) => *volume.meta.name == *name,
            Self::Many(several) => {
                if let Ok(at) = several.0.binary_search_by(|other| (*other.meta.name).cmp(name)) {
                    several.0.remove(at);
                }
                if let [last] = &several.0[..] {
                    *self = Self::One(last.clone());
                }
                false
            }
        }
    }
}

/// Volumes that refer to claims, by the claim's namespace and name.
#[derive(Debug, Default)]
pub struct ReservedVolumes {
    groups: HashTable<Group>,
    hasher: DefaultHashBuilder,
}

/// Returns namespace and name of the claim that a volume refers to.
fn claim_of(volume: &PersistentVolume) -> (&str, &str) {
    volume.claim.as_ref().map_or(("", ""), |claim| (&claim.namespace, &claim.name))
}

impl ReservedVolumes {
    /// Adds a volume that refers to a claim, or replaces its record.
    pub fn put(&mut self, volume: &Arc<PersistentVolume>) {
        let claim = claim_of(volume);
        let hasher = &self.hasher;
        let hash = hasher.hash_one(claim);
        match self.groups.find_mut(hash, |group| group.claim() == claim) {
            Some(group) => group.put(volume),
            None => {
                let group = Group::One(volume.clone());
                self.groups.insert_unique(hash, group, |group| hasher.hash_one(group.claim()));
            }
        }
    }

    /// Removes a volume by its last record.
    pub fn remove(&mut self, volume: &PersistentVolume) {
        let claim = claim_of(volume);
        let hasher = &self.hasher;
        let found = self.groups.find_entry(hasher.hash_one(claim), |group| group.claim() == claim);
        let Ok(mut entry) = found else { return };
        if !entry.get_mut().remove(&volume.meta.name) {
            return;
        }
        entry.remove();
        if self.groups.len() * 4 < self.groups.capacity() {
            self.groups.shrink_to_fit(|group| hasher.hash_one(group.claim()));
        }
    }

    /// Returns the volumes that refer to a claim with this name, regardless of its uid, sorted by name.
    pub fn of(&self, claim: &ObjectKey) -> &[Arc<PersistentVolume>] {
        let claim = (&*claim.namespace, &*claim.name);
        let group = self.groups.find(self.hasher.hash_one(claim), |group| group.claim() == claim);
        group.map_or(&[], Group::volumes)
    }
}

#[cfg(test)]
mod tests {
    use kinds::persistent_volume::ClaimRef;

    use super::*;
    use crate::storage::testing::volume;

    fn reserved(name: &str, claim: &str) -> Arc<PersistentVolume> {
        let mut made = volume(name);
        made.claim = Some(Box::new(ClaimRef { namespace: "shop".into(), name: claim.into(), uid: None }));
        Arc::new(made)
    }

    fn names(volumes: &ReservedVolumes, claim: &str) -> Vec<String> {
        volumes.of(&ObjectKey::new("shop", claim)).iter().map(|volume| volume.meta.name.to_string()).collect()
    }

    #[test]
    fn volumes_are_found_by_their_claim_until_they_are_removed() {
        let mut volumes = ReservedVolumes::default();
        for name in ["c", "a", "b", "a"] {
            volumes.put(&reserved(name, "data"));
        }
        (0..100).for_each(|number| volumes.put(&reserved(&format!("pv-{number}"), &format!("logs-{number}"))));
        assert_eq!(names(&volumes, "data"), ["a", "b", "c"]);
        assert_eq!(names(&volumes, "logs-7"), ["pv-7"]);
        assert!(names(&volumes, "other").is_empty() && volumes.of(&ObjectKey::new("", "data")).is_empty());
        volumes.remove(&reserved("other", "data"));
        volumes.remove(&reserved("a", "data"));
        volumes.remove(&reserved("c", "data"));
        assert_eq!(names(&volumes, "data"), ["b"]);
        volumes.remove(&reserved("b", "data"));
        assert!(names(&volumes, "data").is_empty());
        (0..100).for_each(|number| volumes.remove(&reserved(&format!("pv-{number}"), &format!("logs-{number}"))));
        assert!(volumes.groups.is_empty() && volumes.groups.capacity() < 100, "the memory is returned");
    }
}
