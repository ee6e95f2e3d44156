//! Random histories of claims and volumes under two controllers with caches that lag, crashes between writes, and lost
//! responses: no claim is bound to two volumes, no volume to two claims, and no data that is still needed is deleted.
//!
//! The objects are the real ones, changed by the real edits; the API server is a map with versions.

mod controller;
mod dynamic;
mod server;

use kinds::PersistentVolume;
use kinds::persistent_volume::Phase as VolumePhase;
use kinds::persistent_volume_claim::{BIND_COMPLETED, Phase};
use kinds::schema::persistent_volume_spec;
use kinds::splice::{replaced, with_part};
use kinds::wire::Put;
use proptest::prelude::*;

use controller::{Controller, Fault};
use server::{Id, ObjectKind, SPEC, Server, Stop, id};

use super::builders::{Backend, claim, read, volume};
use crate::storage::binder::references::referring_to_claim;

const CLAIMS: [&str; 3] = ["c0", "c1", "c2"];
const VOLUMES: [&str; 4] = ["v0", "v1", "v2", "v3"];

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
    /// The scheduler, or an external provisioner, sets a free volume's reference to a claim.
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

struct Model {
    server: Server,
    controllers: [Controller; 2],
}

impl Model {
    fn new() -> Self {
        Self { server: Server::default(), controllers: [Controller::default(), Controller::default()] }
    }

    fn uid(&mut self) -> String {
        self.server.uids += 1;
        format!("uid-{}", self.server.uids)
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::CreateClaim { claim, names } => self.create_claim(CLAIMS[*claim], names.map_or("", |at| VOLUMES[at])),
            Step::CreateVolume { volume, reserved_for, is_delete } => {
                self.create_volume(VOLUMES[*volume], reserved_for.map(|at| CLAIMS[at]), *is_delete);
            }
            Step::DeleteClaim(at) => self.delete(&id(ObjectKind::Claim, CLAIMS[*at])),
            Step::DeleteVolume(at) => self.delete(&id(ObjectKind::Volume, VOLUMES[*at])),
            Step::ChangePolicy { volume, is_delete } => {
                let id = id(ObjectKind::Volume, VOLUMES[*volume]);
                let Some(object) = self.server.objects.get(&id).cloned() else { return };
                let policy = if *is_delete { "Delete" } else { "Retain" };
                let number = persistent_volume_spec::RECLAIM_POLICY;
                let changed =
                    with_part(&object, SPEC, |spec| replaced(spec, &[number], |out| out.put_str(number, policy)));
                self.server.store(&id, Some(changed.expect("well-formed")));
            }
            Step::Reserve { volume, claim } => {
                let id = id(ObjectKind::Volume, VOLUMES[*volume]);
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
                let kind = if *is_claims { ObjectKind::Claim } else { ObjectKind::Volume };
                self.controllers[*controller].deliver(&self.server, kind, *count);
            }
            Step::SyncClaim { controller, claim, fault } => {
                self.sync(*controller, *fault, |controller, server| controller.sync_claim(server, CLAIMS[*claim]));
            }
            Step::SyncVolume { controller, volume, fault } => {
                self.sync(*controller, *fault, |controller, server| controller.sync_volume(server, VOLUMES[*volume]));
            }
        }
    }

    fn create_claim(&mut self, name: &str, names: &'static str) {
        let uid = self.uid();
        let made = claim(name).with(|claim| {
            claim.head.uid = uid;
            claim.volume = names;
        });
        self.create(&id(ObjectKind::Claim, name), made.object());
    }

    fn create_volume(&mut self, name: &str, reserved_for: Option<&'static str>, is_delete: bool) {
        let uid = self.uid();
        let mut made = volume(name).phase("Pending").with(|volume| {
            volume.head.uid = uid;
            volume.policy = if is_delete { "Delete" } else { "Retain" };
            volume.backend = Backend::HostPath("/tmp/data");
        });
        if let Some(claim) = reserved_for {
            made = made.of(claim, "");
        }
        self.create(&id(ObjectKind::Volume, name), made.object());
    }

    fn create(&mut self, id: &Id, object: Vec<u8>) {
        if !self.server.objects.contains_key(id) {
            self.server.store(id, Some(object));
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
        controller.writes = 0;
        controller.fault_at = Some(fault);
        // The fault, or a cache that lags, may stop the reconcile.
        let _ = run(controller, &mut self.server);
    }

    /// Lets the first controller work until nothing changes.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..50 {
            let before = self.server.version;
            let controller = &mut self.controllers[0];
            controller.deliver(&self.server, ObjectKind::Claim, usize::MAX);
            controller.deliver(&self.server, ObjectKind::Volume, usize::MAX);
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
        Err(TestCaseError::fail("the controller does not reach a stable state"))
    }

    /// Checks that no invariant is violated and, if no volumes were deleted, that the volume of each bound claim refers
    /// to the claim.
    fn check(&self, has_deleted_volumes: bool) -> Result<(), TestCaseError> {
        prop_assert!(self.server.violations.is_empty(), "{:?}", self.server.violations);
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

    /// Checks that each bound claim has exactly one bound volume, that no claim waits while a volume is free, and that
    /// each bound volume has a claim.
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
        let mut model = Model::new();
        for step in &steps {
            model.act(step);
            model.check(false)?;
        }
        model.settle()?;
        model.check(false)?;
        model.check_settled()?;
    }

    #[test]
    fn no_needed_data_is_deleted_when_volumes_are_deleted_too(steps in steps(true)) {
        let mut model = Model::new();
        for step in &steps {
            model.act(step);
            model.check(true)?;
        }
        model.settle()?;
        model.check(true)?;
    }
}
