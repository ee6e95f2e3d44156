//! Random histories of claims and volumes under two controllers with caches that lag, crashes between writes, and lost
//! answers: no claim is bound to two volumes, no volume to two claims, and no data is deleted that has to stay.
//!
//! The objects are the real ones, changed by the real edits; the API server is a map with versions.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::meta::{Meta, ObjectKey};
use kinds::persistent_volume::{Phase as VolumePhase, ReclaimPolicy, with_phase};
use kinds::persistent_volume_claim::{BIND_COMPLETED, Phase, with_status};
use kinds::schema::{object_meta, persistent_volume_spec};
use kinds::splice::{replaced, with_part};
use kinds::wire::{Put, find};
use kinds::{Interner, PersistentVolume, PersistentVolumeClaim, StorageClass, Str};
use proptest::prelude::*;

use super::builders::{Backend, claim, read, volume};
use crate::storage::binder::decide_claim::{
    BindWrite, ClaimStep, Cluster, Search, bound_status, next_bind_write, next_step as next_claim_step, unbound_status,
};
use crate::storage::binder::decide_volume::{
    Reclaim, VolumeStep, is_reclaimable, is_released, needs_uncached_claim, next_step as next_volume_step, reclaim,
};
use crate::storage::binder::references::{referring_to_claim, referring_to_volume, unbound};
use crate::storage::binder::volume_index::{VolumeIndex, claim_key};

const CLAIMS: [&str; 3] = ["c0", "c1", "c2"];
const VOLUMES: [&str; 4] = ["v0", "v1", "v2", "v3"];
const METADATA: u32 = 1;
const SPEC: u32 = 2;
const STATUS: u32 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Sort {
    Claim,
    Volume,
}

type Id = (Sort, String);

/// Why a controller stops in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Outdated,
    Crashed,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    None,
    /// The process dies after this write.
    CrashAfter(usize),
    /// The answer to this write is lost: the controller does not know that it was done.
    LostAfter(usize),
}

#[derive(Debug, Clone)]
enum Step {
    CreateClaim {
        claim: usize,
        names: Option<usize>,
    },
    DeleteClaim(usize),
    CreateVolume {
        volume: usize,
        reserved_for: Option<usize>,
        is_delete: bool,
    },
    DeleteVolume(usize),
    ChangePolicy {
        volume: usize,
        is_delete: bool,
    },
    /// The scheduler, or an external provisioner, lets a free volume refer to a claim.
    Reserve {
        volume: usize,
        claim: usize,
    },
    Deliver {
        controller: usize,
        is_claims: bool,
        count: usize,
    },
    SyncClaim {
        controller: usize,
        claim: usize,
        fault: Fault,
    },
    SyncVolume {
        controller: usize,
        volume: usize,
        fault: Fault,
    },
}

struct Entry {
    version: u64,
    id: Id,
    object: Option<Vec<u8>>,
}

/// The API server with its history.
#[derive(Default)]
struct Server {
    version: u64,
    uids: u64,
    objects: BTreeMap<Id, Vec<u8>>,
    history: Vec<Entry>,
    /// What must never happen, if it has.
    harm: Vec<String>,
}

fn with_version(object: &[u8], version: u64) -> Vec<u8> {
    with_part(object, METADATA, |meta| {
        replaced(meta, &[object_meta::RESOURCE_VERSION], |out| {
            out.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
        })
    })
    .expect("well-formed")
}

fn id(sort: Sort, name: &str) -> Id {
    (sort, name.to_owned())
}

fn meta_of(object: &[u8]) -> Meta {
    Meta::decode(&Interner::default(), find(object, METADATA), |_, _| {}).expect("well-formed")
}

impl Server {
    fn store(&mut self, id: &Id, object: Option<Vec<u8>>) {
        self.version += 1;
        let object = object.map(|object| with_version(&object, self.version));
        match &object {
            Some(object) => self.objects.insert(id.clone(), object.clone()),
            None => self.objects.remove(id),
        };
        self.history.push(Entry { version: self.version, id: id.clone(), object });
    }

    fn claim(&self, name: &str) -> Option<Arc<PersistentVolumeClaim>> {
        self.objects.get(&id(Sort::Claim, name)).map(|object| read(object))
    }

    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.objects.get(&id(Sort::Volume, name)).map(|object| read(object))
    }

    fn put(&mut self, id: &Id, edited: &[u8], is_status: bool) -> Result<(), Stop> {
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

    /// Checks a write against the state that it meets.
    fn check_write(&mut self, sort: &Sort, stored: &[u8]) {
        let harm = match sort {
            Sort::Claim => {
                let claim: Arc<PersistentVolumeClaim> = read(stored);
                let before = self.claim(&claim.meta.name).expect("it is replaced");
                let changes = before.volume_name != claim.volume_name;
                let is_own = |volume: &PersistentVolume| {
                    volume.claim.as_ref().is_some_and(|reference| reference.uid.as_ref() == Some(&claim.meta.uid))
                };
                let volume = self.volume(&claim.volume_name);
                let harmed = changes && volume.is_some_and(|volume| !is_own(&volume))
                    || !before.volume_name.is_empty() && changes;
                harmed.then(|| format!("{} was made to name {}", claim.meta.name, claim.volume_name))
            }
            Sort::Volume => {
                let volume: Arc<PersistentVolume> = read(stored);
                let releases = volume.phase == VolumePhase::Released
                    && self.volume(&volume.meta.name).is_some_and(|before| before.phase != VolumePhase::Released);
                (releases && self.is_needed(&volume)).then(|| format!("{} was released", volume.meta.name))
            }
        };
        self.harm.extend(harm);
    }

    /// Whether the claim of a volume exists and may still be bound to it.
    fn is_needed(&self, volume: &PersistentVolume) -> bool {
        let Some(reference) = &volume.claim else { return false };
        self.claim(&reference.name).is_some_and(|claim| {
            reference.uid.as_ref() == Some(&claim.meta.uid)
                && (claim.volume_name.is_empty() || claim.volume_name == volume.meta.name)
        })
    }
}

/// A process with caches.
#[derive(Default)]
struct Controller {
    claims_at: u64,
    volumes_at: u64,
    claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// Versions that this process wrote.
    written: BTreeMap<Id, u64>,
    writes: usize,
    fault_at: Option<Fault>,
}

impl Cluster for Controller {
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(name).cloned()
    }

    fn class(&self, _: &str) -> Option<Arc<StorageClass>> {
        None
    }

    fn find(&self, claim: &PersistentVolumeClaim, is_delayed: bool) -> Search {
        let mut index = VolumeIndex::default();
        self.volumes.values().for_each(|volume| index.apply(None, Some(volume)));
        index.find(claim, is_delayed).cloned().map_or(Search::Nothing, Search::Found)
    }

    fn default_class(&self) -> Option<Str> {
        None
    }

    fn unscheduled_pods(&self, _: &PersistentVolumeClaim) -> Vec<Str> {
        Vec::new()
    }
}

impl Controller {
    fn deliver(&mut self, server: &Server, sort: Sort, count: usize) {
        let at = if sort == Sort::Claim { &mut self.claims_at } else { &mut self.volumes_at };
        let from = *at;
        let due = server.history.iter().filter(|entry| entry.version > from && entry.id.0 == sort).take(count);
        for entry in due {
            *at = entry.version;
            let name = entry.id.1.clone();
            match (sort, &entry.object) {
                (Sort::Claim, Some(object)) => drop(self.claims.insert(name, read(object))),
                (Sort::Claim, None) => drop(self.claims.remove(&name)),
                (Sort::Volume, Some(object)) => drop(self.volumes.insert(name, read(object))),
                (Sort::Volume, None) => drop(self.volumes.remove(&name)),
            }
        }
    }

    fn crash(&mut self) {
        let (claims_at, volumes_at) = (self.claims_at, self.volumes_at);
        let (claims, volumes) = (std::mem::take(&mut self.claims), std::mem::take(&mut self.volumes));
        // Another process takes over with caches that may be as old.
        *self = Self { claims_at, volumes_at, claims, volumes, ..Self::default() };
    }

    fn is_settled(&self, id: &Id) -> bool {
        let at = if id.0 == Sort::Claim { self.claims_at } else { self.volumes_at };
        self.written.get(id).is_none_or(|written| *written <= at)
    }

    /// The uncached read that each change begins with.
    fn begin(&self, server: &Server, id: &Id, version: u64) -> Result<Vec<u8>, Stop> {
        let object = server.objects.get(id).ok_or(Stop::Outdated)?;
        if meta_of(object).version == version { Ok(object.clone()) } else { Err(Stop::Outdated) }
    }

    fn put(&mut self, server: &mut Server, id: &Id, edited: &[u8], is_status: bool) -> Result<Vec<u8>, Stop> {
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

    fn sync_claim(&mut self, server: &mut Server, name: &str) -> Result<(), Stop> {
        let id = id(Sort::Claim, name);
        let Some(claim) = self.claims.get(name).cloned().filter(|_| self.is_settled(&id)) else { return Ok(()) };
        let edit = match next_claim_step(&claim, self).expect("there are no classes") {
            ClaimStep::Bind { volume, .. } => return self.bind(server, &claim, &volume),
            ClaimStep::Pend(_) => unbound_status(&claim, Phase::Pending),
            ClaimStep::Lose(_) => {
                let cached = self.volumes.get(&*claim.volume_name).map(|volume| volume.meta.version);
                if cached != server.volume(&claim.volume_name).map(|volume| volume.meta.version) {
                    return Err(Stop::Outdated);
                }
                unbound_status(&claim, Phase::Lost)
            }
            ClaimStep::AssignClass(_) | ClaimStep::Provision(_) | ClaimStep::Retry(..) | ClaimStep::DecideAgain => None,
        };
        if let Some(edit) = edit {
            let object = self.begin(server, &id, claim.meta.version)?;
            self.put(server, &id, &with_status(&object, &edit).expect("well-formed"), true)?;
        }
        Ok(())
    }

    fn bind(
        &mut self,
        server: &mut Server,
        claim: &PersistentVolumeClaim,
        volume: &Arc<PersistentVolume>,
    ) -> Result<(), Stop> {
        let (claim_id, volume_id) = (id(Sort::Claim, &claim.meta.name), id(Sort::Volume, &volume.meta.name));
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

    fn sync_volume(&mut self, server: &mut Server, name: &str) -> Result<(), Stop> {
        let id = id(Sort::Volume, name);
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

    fn reclaim(&mut self, server: &mut Server, volume: &PersistentVolume) -> Result<(), Stop> {
        let id = id(Sort::Volume, &volume.meta.name);
        let Reclaim::DeleteHostPath(_) = reclaim(volume) else { return Ok(()) };
        self.begin(server, &id, volume.meta.version)?;
        let claim = claim_key(volume).and_then(|key| server.claim(&key.name));
        if !is_released(volume, claim.as_deref()) {
            return Ok(());
        }
        let current = server.volume(&volume.meta.name).expect("it was read");
        if current.reclaim_policy != ReclaimPolicy::Delete || server.is_needed(&current) {
            server.harm.push(format!("data of {} was deleted", volume.meta.name));
        }
        server.store(&id, None);
        Ok(())
    }
}

struct World {
    server: Server,
    controllers: [Controller; 2],
}

impl World {
    fn new() -> Self {
        Self { server: Server::default(), controllers: [Controller::default(), Controller::default()] }
    }

    fn uid(&mut self) -> String {
        self.server.uids += 1;
        format!("uid-{}", self.server.uids)
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::CreateClaim { claim: at, names } => {
                let uid = self.uid();
                let made = claim(CLAIMS[*at]).with(|claim| {
                    claim.head.uid = uid;
                    claim.volume = names.map_or("", |at| VOLUMES[at]);
                });
                let id = id(Sort::Claim, CLAIMS[*at]);
                if !self.server.objects.contains_key(&id) {
                    self.server.store(&id, Some(made.object()));
                }
            }
            Step::CreateVolume { volume: at, reserved_for, is_delete } => {
                let uid = self.uid();
                let mut made = volume(VOLUMES[*at]).phase("Pending").with(|volume| {
                    volume.head.uid = uid;
                    volume.policy = if *is_delete { "Delete" } else { "Retain" };
                    volume.backend = Backend::HostPath("/tmp/data");
                });
                if let Some(at) = reserved_for {
                    made = made.of(CLAIMS[*at], "");
                }
                let id = id(Sort::Volume, VOLUMES[*at]);
                if !self.server.objects.contains_key(&id) {
                    self.server.store(&id, Some(made.object()));
                }
            }
            Step::DeleteClaim(at) => self.delete(&id(Sort::Claim, CLAIMS[*at])),
            Step::DeleteVolume(at) => self.delete(&id(Sort::Volume, VOLUMES[*at])),
            Step::ChangePolicy { volume, is_delete } => {
                let id = id(Sort::Volume, VOLUMES[*volume]);
                let Some(object) = self.server.objects.get(&id).cloned() else { return };
                let policy = if *is_delete { "Delete" } else { "Retain" };
                let number = persistent_volume_spec::RECLAIM_POLICY;
                let changed =
                    with_part(&object, SPEC, |spec| replaced(spec, &[number], |out| out.put_str(number, policy)));
                self.server.store(&id, Some(changed.expect("well-formed")));
            }
            Step::Reserve { volume, claim } => {
                let id = id(Sort::Volume, VOLUMES[*volume]);
                let (Some(object), Some(claim)) =
                    (self.server.objects.get(&id).cloned(), self.server.claim(CLAIMS[*claim]))
                else {
                    return;
                };
                let is_free = read::<PersistentVolume>(&object).claim.is_none();
                if is_free && claim.volume_name.is_empty() {
                    let edited = referring_to_claim(&object, &claim, true).expect("well-formed");
                    self.server.store(&id, Some(edited));
                }
            }
            Step::Deliver { controller, is_claims, count } => {
                let sort = if *is_claims { Sort::Claim } else { Sort::Volume };
                self.controllers[*controller].deliver(&self.server, sort, *count);
            }
            Step::SyncClaim { controller, claim, fault } => {
                self.sync(*controller, *fault, |controller, server| controller.sync_claim(server, CLAIMS[*claim]));
            }
            Step::SyncVolume { controller, volume, fault } => {
                self.sync(*controller, *fault, |controller, server| controller.sync_volume(server, VOLUMES[*volume]));
            }
        }
    }

    fn delete(&mut self, id: &Id) {
        if self.server.objects.contains_key(id) {
            self.server.store(id, None);
        }
    }

    fn sync(
        &mut self,
        controller: usize,
        fault: Fault,
        run: impl FnOnce(&mut Controller, &mut Server) -> Result<(), Stop>,
    ) {
        let controller = &mut self.controllers[controller];
        (controller.writes, controller.fault_at) = (0, Some(fault));
        // A stop is what the fault, or a cache that lags, leads to.
        let _ = run(controller, &mut self.server);
    }

    /// Lets the first controller work until nothing changes.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..50 {
            let before = self.server.version;
            let controller = &mut self.controllers[0];
            controller.deliver(&self.server, Sort::Claim, usize::MAX);
            controller.deliver(&self.server, Sort::Volume, usize::MAX);
            controller.written.clear();
            for at in 0..VOLUMES.len() {
                self.act(&Step::SyncVolume { controller: 0, volume: at, fault: Fault::None });
                self.act(&Step::Deliver { controller: 0, is_claims: false, count: usize::MAX });
            }
            for at in 0..CLAIMS.len() {
                self.act(&Step::SyncClaim { controller: 0, claim: at, fault: Fault::None });
                self.act(&Step::Deliver { controller: 0, is_claims: false, count: usize::MAX });
                self.act(&Step::Deliver { controller: 0, is_claims: true, count: usize::MAX });
            }
            if self.server.version == before {
                return Ok(());
            }
        }
        Err(TestCaseError::fail("the controller does not come to rest"))
    }

    /// Checks that references are mutual and unique.
    fn check(&self, has_deleted_volumes: bool) -> Result<(), TestCaseError> {
        prop_assert!(self.server.harm.is_empty(), "{:?}", self.server.harm);
        let claims: Vec<_> = CLAIMS.iter().filter_map(|name| self.server.claim(name)).collect();
        let bound =
            claims.iter().filter(|claim| claim.annotation(BIND_COMPLETED).is_some() && claim.phase == Phase::Bound);
        for claim in bound.filter(|_| !has_deleted_volumes) {
            let volume = self.server.volume(&claim.volume_name);
            let uid = volume.as_ref().and_then(|volume| volume.claim.as_ref()).and_then(|claim| claim.uid.clone());
            prop_assert_eq!(uid, Some(claim.meta.uid.clone()), "{} is bound to {}", claim.meta.name, claim.volume_name);
        }
        Ok(())
    }

    /// Checks the state after everything has settled.
    fn check_settled(&self) -> Result<(), TestCaseError> {
        let volumes: Vec<_> = VOLUMES.iter().filter_map(|name| self.server.volume(name)).collect();
        for name in CLAIMS {
            let Some(claim) = self.server.claim(name) else { continue };
            match claim.phase {
                Phase::Bound => {
                    let own = volumes.iter().filter(|volume| {
                        volume.claim.as_ref().is_some_and(|at| at.uid.as_ref() == Some(&claim.meta.uid))
                    });
                    let own: Vec<_> = own.map(|volume| (&*volume.meta.name, volume.phase)).collect();
                    prop_assert_eq!(own, [(&*claim.volume_name, VolumePhase::Bound)], "{}", name);
                }
                Phase::Pending if claim.volume_name.is_empty() => {
                    let free = volumes.iter().find(|volume| volume.claim.is_none());
                    prop_assert!(free.is_none(), "{} waits, and {} is free", name, free.expect("some").meta.name);
                }
                _ => {}
            }
        }
        for volume in &volumes {
            let is_bound = volume.phase == VolumePhase::Bound;
            prop_assert!(!is_bound || self.server.is_needed(volume), "{} is bound to nothing", volume.meta.name);
        }
        Ok(())
    }
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        4 => Just(Fault::None),
        1 => (1usize..4).prop_map(Fault::CrashAfter),
        1 => (1usize..4).prop_map(Fault::LostAfter),
    ]
}

fn steps(deletes_volumes: bool) -> impl Strategy<Value = Vec<Step>> {
    let (claim, volume) = (0..CLAIMS.len(), 0..VOLUMES.len());
    let maybe_claim = proptest::option::weighted(0.3, 0..CLAIMS.len());
    let maybe_volume = proptest::option::weighted(0.2, 0..VOLUMES.len());
    let deletions = if deletes_volumes { 1 } else { 0 };
    let step = prop_oneof![
        3 => (claim.clone(), maybe_volume).prop_map(|(claim, names)| Step::CreateClaim { claim, names }),
        2 => claim.clone().prop_map(Step::DeleteClaim),
        3 => (volume.clone(), maybe_claim, any::<bool>())
            .prop_map(|(volume, reserved_for, is_delete)| Step::CreateVolume { volume, reserved_for, is_delete }),
        deletions => volume.clone().prop_map(Step::DeleteVolume),
        1 => (volume.clone(), any::<bool>()).prop_map(|(volume, is_delete)| Step::ChangePolicy { volume, is_delete }),
        1 => (volume.clone(), claim.clone()).prop_map(|(volume, claim)| Step::Reserve { volume, claim }),
        8 => (0usize..2, any::<bool>(), 1usize..6)
            .prop_map(|(controller, is_claims, count)| Step::Deliver { controller, is_claims, count }),
        8 => (0usize..2, claim, faults())
            .prop_map(|(controller, claim, fault)| Step::SyncClaim { controller, claim, fault }),
        8 => (0usize..2, volume, faults())
            .prop_map(|(controller, volume, fault)| Step::SyncVolume { controller, volume, fault }),
    ];
    proptest::collection::vec(step, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn bindings_stay_mutual_and_unique_under_crashes_and_lag(steps in steps(false)) {
        let mut world = World::new();
        for step in &steps {
            world.act(step);
            world.check(false)?;
        }
        world.settle()?;
        world.check(false)?;
        world.check_settled()?;
    }

    #[test]
    fn no_data_is_deleted_that_has_to_stay_when_volumes_are_deleted_too(steps in steps(true)) {
        let mut world = World::new();
        for step in &steps {
            world.act(step);
            world.check(true)?;
        }
        world.settle()?;
        world.check(true)?;
    }
}
