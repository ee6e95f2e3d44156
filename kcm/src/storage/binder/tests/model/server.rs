//! The API server of the histories: objects with versions, and checks of every update by a controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::meta::Meta;
use kinds::persistent_volume::Phase as VolumePhase;
use kinds::schema::object_meta;
use kinds::splice::{replaced, with_part};
use kinds::wire::{Put, find};
use kinds::{Interner, PersistentVolume, PersistentVolumeClaim};

use crate::storage::binder::tests::builders::read;

const METADATA: u32 = 1;
/// Field number of the spec of both kinds.
pub const SPEC: u32 = 2;
const STATUS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    Claim,
    Volume,
}

pub type Id = (ObjectKind, String);

/// Reason why a controller stops before its last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    Outdated,
    Crashed,
}

pub struct Entry {
    pub version: u64,
    pub id: Id,
    pub object: Option<Vec<u8>>,
}

/// The API server with its history.
#[derive(Default)]
pub struct Server {
    pub version: u64,
    pub uids: u64,
    pub objects: BTreeMap<Id, Vec<u8>>,
    pub history: Vec<Entry>,
    /// Violated invariants.
    pub violations: Vec<String>,
}

pub fn with_version(object: &[u8], version: u64) -> Vec<u8> {
    with_part(object, METADATA, |meta| {
        replaced(meta, &[object_meta::RESOURCE_VERSION], |out| {
            out.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
        })
    })
    .expect("well-formed")
}

pub fn id(kind: ObjectKind, name: &str) -> Id {
    (kind, name.to_owned())
}

pub fn meta_of(object: &[u8]) -> Meta {
    Meta::decode(&Interner::default(), find(object, METADATA), |_, _| {}).expect("well-formed")
}

impl Server {
    pub fn store(&mut self, id: &Id, object: Option<Vec<u8>>) {
        self.version += 1;
        let object = object.map(|object| with_version(&object, self.version));
        match &object {
            Some(object) => self.objects.insert(id.clone(), object.clone()),
            None => self.objects.remove(id),
        };
        self.history.push(Entry { version: self.version, id: id.clone(), object });
    }

    pub fn claim(&self, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.objects.get(&id(ObjectKind::Claim, name)).map(|object| read(object))
    }

    pub fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.objects.get(&id(ObjectKind::Volume, name)).map(|object| read(object))
    }

    pub fn put(&mut self, id: &Id, edited: &[u8], is_status: bool) -> Result<(), Stop> {
        let current = self.objects.get(id).ok_or(Stop::Outdated)?.clone();
        let (old, new) = (meta_of(&current), meta_of(edited));
        if (old.version, &old.uid) != (new.version, &new.uid) {
            return Err(Stop::Outdated);
        }
        let kept = if is_status { SPEC } else { STATUS };
        let stored = with_part(edited, kept, |_| Ok(find(&current, kept).to_vec())).expect("well-formed");
        self.check_write(&id.0, &stored);
        self.store(id, Some(stored));
        Ok(())
    }

    /// Checks a write against the current state.
    pub fn check_write(&mut self, kind: &ObjectKind, stored: &[u8]) {
        let violations = match kind {
            ObjectKind::Claim => {
                let claim: Arc<PersistentVolumeClaim> = read(stored);
                let before = self.claim(&claim.meta.name).expect("it is replaced");
                let changes = before.volume_name != claim.volume_name;
                let is_own = |volume: &PersistentVolume| {
                    volume.claim.as_ref().is_some_and(|reference| reference.uid.as_ref() == Some(&claim.meta.uid))
                };
                let volume = self.volume(&claim.volume_name);
                let is_foreign = volume.is_some_and(|volume| !is_own(&volume) && !self.replaces(&volume, is_own));
                let harmed = changes && (!before.volume_name.is_empty() || is_foreign);
                harmed.then(|| format!("{} was made to name {}", claim.meta.name, claim.volume_name))
            }
            ObjectKind::Volume => {
                let volume: Arc<PersistentVolume> = read(stored);
                let releases = volume.phase == VolumePhase::Released
                    && self.volume(&volume.meta.name).is_some_and(|before| before.phase != VolumePhase::Released);
                (releases && self.is_needed(&volume)).then(|| format!("{} was released", volume.meta.name))
            }
        };
        self.violations.extend(violations);
    }

    /// Returns true if a deleted volume with the same name had this property. At the write of a claim, a controller
    /// cannot detect that another client has just replaced the claim's volume: one write cannot depend on two objects.
    fn replaces(&self, volume: &PersistentVolume, property: impl Fn(&PersistentVolume) -> bool) -> bool {
        let id = id(ObjectKind::Volume, &volume.meta.name);
        let former = self.history.iter().filter(|entry| entry.id == id).filter_map(|entry| entry.object.as_deref());
        former.map(read).any(|former: Arc<PersistentVolume>| former.meta.uid != volume.meta.uid && property(&former))
    }

    /// Returns true if the claim of a volume exists and may still be bound to it.
    pub fn is_needed(&self, volume: &PersistentVolume) -> bool {
        let Some(reference) = &volume.claim else { return false };
        self.claim(&reference.name).is_some_and(|claim| {
            reference.uid.as_ref() == Some(&claim.meta.uid)
                && (claim.volume_name.is_empty() || claim.volume_name == volume.meta.name)
        })
    }
}
