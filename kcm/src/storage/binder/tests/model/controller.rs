//! A controller of the histories: lagging caches, the real decisions and edits, and faults between writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::metadata_edit::annotated;
use kinds::persistent_volume::{Phase as VolumePhase, ReclaimPolicy, with_phase};
use kinds::persistent_volume_claim::{Phase, STORAGE_PROVISIONER, with_class, with_status};
use kinds::{PersistentVolume, PersistentVolumeClaim, StorageClass, Str};

use super::server::{Id, ObjectKind, Server, Stop, id, meta_of};
use crate::storage::binder::decide_claim::{
    BindWrite, ClaimStep, Cluster, Search, bound_status, lost_status, next_bind_write, next_step as next_claim_step,
    unbound_status,
};
use crate::storage::binder::decide_volume::{
    Reclaim, VolumeStep, decide_reclaim, is_reclaimable, is_released, needs_uncached_claim,
    next_step as next_volume_step,
};
use crate::storage::binder::provision::{Provisioning, provisioning};
use crate::storage::binder::references::{referring_to_claim, referring_to_volume, unbound};
use crate::storage::binder::tests::builders::read;
use crate::storage::binder::volume_index::{VolumeIndex, claim_key};

#[derive(Debug, Clone, Copy)]
pub enum Fault {
    None,
    /// The process is killed after this write.
    CrashAfter(usize),
    /// The response to this write is lost: the controller gets no confirmation that it succeeded.
    LostAfter(usize),
}

/// A process with caches.
#[derive(Default)]
pub struct Controller {
    pub claims_at: u64,
    pub volumes_at: u64,
    pub claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub volumes: BTreeMap<String, Arc<PersistentVolume>>,
    pub classes: Vec<Arc<StorageClass>>,
    /// Versions that this process wrote.
    pub written: BTreeMap<Id, u64>,
    pub writes: usize,
    pub fault_at: Option<Fault>,
}

impl Cluster for Controller {
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(name).cloned()
    }

    fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.iter().find(|class| &*class.meta.name == name).cloned()
    }

    fn is_class_undecodable(&self, _: &str) -> bool {
        false
    }

    fn may_have_undecodable_volume(&self, _: &PersistentVolumeClaim) -> bool {
        false
    }

    fn find(&self, claim: &PersistentVolumeClaim, is_limited: bool) -> Search {
        let mut index = VolumeIndex::default();
        self.volumes.values().for_each(|volume| index.apply(None, Some(volume)));
        index.find(claim, is_limited).cloned().map_or(Search::Nothing, Search::Found)
    }

    fn default_class(&self) -> Option<Str> {
        self.classes.iter().find(|class| class.is_default).map(|class| class.meta.name.clone())
    }

    fn unscheduled_pods(&self, _: &PersistentVolumeClaim) -> Vec<Str> {
        Vec::new()
    }
}

impl Controller {
    pub fn deliver(&mut self, server: &Server, kind: ObjectKind, count: usize) {
        let at = if kind == ObjectKind::Claim { &mut self.claims_at } else { &mut self.volumes_at };
        let from = *at;
        let due = server.history.iter().filter(|entry| entry.version > from && entry.id.0 == kind).take(count);
        for entry in due {
            *at = entry.version;
            let name = entry.id.1.clone();
            match (kind, &entry.object) {
                (ObjectKind::Claim, Some(object)) => drop(self.claims.insert(name, read(object))),
                (ObjectKind::Claim, None) => drop(self.claims.remove(&name)),
                (ObjectKind::Volume, Some(object)) => drop(self.volumes.insert(name, read(object))),
                (ObjectKind::Volume, None) => drop(self.volumes.remove(&name)),
            }
        }
    }

    pub fn crash(&mut self) {
        let (claims_at, volumes_at) = (self.claims_at, self.volumes_at);
        let (claims, volumes) = (std::mem::take(&mut self.claims), std::mem::take(&mut self.volumes));
        let classes = std::mem::take(&mut self.classes);
        // Another process takes over. Its caches may be as old as those of this process.
        *self = Self { claims_at, volumes_at, claims, volumes, classes, ..Self::default() };
    }

    pub fn is_settled(&self, id: &Id) -> bool {
        let at = if id.0 == ObjectKind::Claim { self.claims_at } else { self.volumes_at };
        self.written.get(id).is_none_or(|written| *written <= at)
    }

    /// Returns the object to change, if it still has the version that was decided on.
    pub fn begin(&self, server: &Server, id: &Id, version: u64) -> Result<Vec<u8>, Stop> {
        let object = server.objects.get(id).ok_or(Stop::Outdated)?;
        if meta_of(object).version == version { Ok(object.clone()) } else { Err(Stop::Outdated) }
    }

    pub fn put(&mut self, server: &mut Server, id: &Id, edited: &[u8], is_status: bool) -> Result<Vec<u8>, Stop> {
        server.put(id, edited, is_status)?;
        self.writes += 1;
        match self.fault_at {
            Some(Fault::CrashAfter(at)) if at == self.writes => {
                self.crash();
                return Err(Stop::Crashed);
            }
            Some(Fault::LostAfter(at)) if at == self.writes => return Err(Stop::Outdated),
            _ => {}
        }
        self.written.insert(id.clone(), server.version);
        Ok(server.objects[id].clone())
    }

    pub fn sync_claim(&mut self, server: &mut Server, name: &str) -> Result<(), Stop> {
        let id = id(ObjectKind::Claim, name);
        let Some(claim) = self.claims.get(name).cloned().filter(|_| self.is_settled(&id)) else { return Ok(()) };
        let edit = match next_claim_step(&claim, self).expect("each class has a binding mode") {
            ClaimStep::Bind { volume, .. } => return self.bind(server, &claim, &volume),
            ClaimStep::Pend(_) => unbound_status(&claim, Phase::Pending),
            ClaimStep::Lose(_) => {
                let cached = self.volumes.get(&*claim.volume_name).map(|volume| volume.meta.version);
                if cached != server.volume(&claim.volume_name).map(|volume| volume.meta.version) {
                    return Err(Stop::Outdated);
                }
                lost_status(&claim)
            }
            ClaimStep::AssignClass(class) => {
                let object = self.begin(server, &id, claim.meta.version)?;
                self.put(server, &id, &with_class(&object, &class).expect("well-formed"), false)?;
                None
            }
            ClaimStep::Provision(class) => return self.request(server, &claim, &class),
            ClaimStep::Retry(..) | ClaimStep::DecideAgain => None,
        };
        if let Some(edit) = edit {
            let object = self.begin(server, &id, claim.meta.version)?;
            self.put(server, &id, &with_status(&object, &edit).expect("well-formed"), true)?;
        }
        Ok(())
    }

    fn request(&mut self, server: &mut Server, claim: &PersistentVolumeClaim, class: &str) -> Result<(), Stop> {
        let external = match provisioning(class, self.class(class).as_deref(), true) {
            Provisioning::External(name) if claim.annotation(STORAGE_PROVISIONER) != Some(&*name) => name,
            _ => return Ok(()),
        };
        let id = id(ObjectKind::Claim, &claim.meta.name);
        let object = self.begin(server, &id, claim.meta.version)?;
        let edited = annotated(&object, &[(STORAGE_PROVISIONER, Some(&*external))]).expect("well-formed");
        self.put(server, &id, &edited, false)?;
        Ok(())
    }

    pub fn bind(
        &mut self,
        server: &mut Server,
        claim: &PersistentVolumeClaim,
        volume: &Arc<PersistentVolume>,
    ) -> Result<(), Stop> {
        let (claim_id, volume_id) =
            (id(ObjectKind::Claim, &claim.meta.name), id(ObjectKind::Volume, &volume.meta.name));
        let mut volume = volume.clone();
        let write = next_bind_write(claim, &volume);
        if matches!(write, BindWrite::VolumeReference { .. }) {
            self.begin(server, &claim_id, claim.meta.version)?;
        }
        if matches!(write, BindWrite::VolumeReference { .. } | BindWrite::VolumePhase) {
            let mut object = self.begin(server, &volume_id, volume.meta.version)?;
            if let BindWrite::VolumeReference { by_controller } = write {
                let edited = referring_to_claim(&object, claim, by_controller).expect("well-formed");
                object = self.put(server, &volume_id, &edited, false)?;
            }
            if read::<PersistentVolume>(&object).phase != VolumePhase::Bound {
                let edited = with_phase(&object, VolumePhase::Bound, "").expect("well-formed");
                object = self.put(server, &volume_id, &edited, true)?;
            }
            volume = read(&object);
        }
        let is_settled = next_bind_write(claim, &volume) == BindWrite::ClaimStatus
            && bound_status(claim, &volume).expect("has a capacity").is_none();
        if is_settled {
            return Ok(());
        }
        let mut object = self.begin(server, &claim_id, claim.meta.version)?;
        if let BindWrite::ClaimReference { by_controller } = next_bind_write(claim, &volume) {
            let edited = referring_to_volume(&object, &volume, by_controller).expect("well-formed");
            object = self.put(server, &claim_id, &edited, false)?;
        }
        let claim: Arc<PersistentVolumeClaim> = read(&object);
        if let Some(edit) = bound_status(&claim, &volume).expect("has a capacity") {
            self.put(server, &claim_id, &with_status(&object, &edit).expect("well-formed"), true)?;
        }
        Ok(())
    }

    pub fn sync_volume(&mut self, server: &mut Server, name: &str) -> Result<(), Stop> {
        let id = id(ObjectKind::Volume, name);
        let Some(volume) = self.volumes.get(name).cloned().filter(|_| self.is_settled(&id)) else { return Ok(()) };
        let mut claim = claim_key(&volume).and_then(|key: ObjectKey| self.claims.get(&*key.name).cloned());
        if needs_uncached_claim(&volume, claim.as_deref()) {
            claim = claim_key(&volume).and_then(|key| server.claim(&key.name));
        }
        let phase = match next_volume_step(&volume, claim.as_deref()) {
            VolumeStep::SetPhase(phase) if volume.phase != phase => phase,
            VolumeStep::Reclaim if is_reclaimable(volume.phase) => return self.reclaim(server, &volume),
            VolumeStep::Reclaim => VolumePhase::Released,
            VolumeStep::Unbind => {
                let object = self.begin(server, &id, volume.meta.version)?;
                let object = self.put(server, &id, &unbound(&object, &volume).expect("well-formed"), false)?;
                self.put(server, &id, &with_phase(&object, VolumePhase::Available, "").expect("well-formed"), true)?;
                return Ok(());
            }
            _ => return Ok(()),
        };
        let object = self.begin(server, &id, volume.meta.version)?;
        self.put(server, &id, &with_phase(&object, phase, "").expect("well-formed"), true)?;
        Ok(())
    }

    pub fn reclaim(&mut self, server: &mut Server, volume: &PersistentVolume) -> Result<(), Stop> {
        let id = id(ObjectKind::Volume, &volume.meta.name);
        let Reclaim::DeleteHostPath(_) = decide_reclaim(volume) else { return Ok(()) };
        self.begin(server, &id, volume.meta.version)?;
        let claim = claim_key(volume).and_then(|key| server.claim(&key.name));
        if !is_released(volume, claim.as_deref()) {
            return Ok(());
        }
        let current = server.volume(&volume.meta.name).expect("it was read");
        if current.reclaim_policy != ReclaimPolicy::Delete || server.is_needed(&current) {
            server.violations.push(format!("data of {} was deleted", volume.meta.name));
        }
        server.store(&id, None);
        Ok(())
    }
}
