//! Random histories of claims with classes, a scheduler that chooses nodes, and a provisioner with its driver: each
//! claim gets its own volume, and the driver leaks no volume.

use std::collections::BTreeSet;
use std::sync::Arc;

use kinds::metadata_edit::annotated;
use kinds::persistent_volume::{PROVISIONED_BY, Phase as VolumePhase};
use kinds::persistent_volume_claim::{Phase, SELECTED_NODE, STORAGE_PROVISIONER};
use kinds::{PersistentVolumeClaim, StorageClass};
use proptest::prelude::*;

use super::controller::{Controller, Fault};
use super::faults;
use super::server::{ObjectKind, Server, Stop, id};
use crate::storage::binder::references::referring_to_claim;
use crate::storage::binder::tests::builders::{Backend, claim, class, volume};

const CLAIMS: [&str; 3] = ["c0", "c1", "c2"];
const DRIVER: &str = "csi.example.com";
/// The class whose volumes are provisioned immediately, and which may be the default.
const NOW: &str = "now";
/// The class whose volumes wait for a pod.
const LATER: &str = "later";

#[derive(Debug, Clone)]
enum Step {
    CreateClaim {
        claim: usize,
        class: Option<&'static str>,
    },
    DeleteClaim(usize),
    /// The scheduler chooses a node for a pod that uses the claim.
    SelectNode(usize),
    /// The provisioner rejects the node.
    RejectNode(usize),
    SetDefault(bool),
    DeliverClasses(usize),
    Provision(usize),
    Reclaim(usize),
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
        at: usize,
        fault: Fault,
    },
}

fn classes(is_default: bool) -> Vec<Arc<StorageClass>> {
    vec![class(NOW, DRIVER, "Immediate", is_default, 0), class(LATER, DRIVER, "WaitForFirstConsumer", false, 0)]
}

struct Model {
    server: Server,
    controllers: [Controller; 2],
    has_default: bool,
    /// Volumes that the driver has.
    driver: BTreeSet<String>,
}

impl Model {
    fn new() -> Self {
        let controllers = std::array::from_fn(|_| Controller { classes: classes(false), ..Controller::default() });
        Self { server: Server::default(), controllers, has_default: false, driver: BTreeSet::new() }
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::CreateClaim { claim, class } => self.create_claim(CLAIMS[*claim], *class),
            Step::DeleteClaim(at) => self.delete_claim(CLAIMS[*at]),
            Step::SelectNode(at) => self.set_node(CLAIMS[*at], Some("node")),
            Step::RejectNode(at) => self.set_node(CLAIMS[*at], None),
            Step::SetDefault(is_default) => self.has_default = *is_default,
            Step::DeliverClasses(controller) => self.controllers[*controller].classes = classes(self.has_default),
            Step::Provision(at) => self.provision(CLAIMS[*at]),
            Step::Reclaim(at) => {
                if let Some(name) = self.volume_names().get(*at) {
                    self.reclaim(name);
                }
            }
            Step::Deliver { controller, is_claims, count } => {
                let kind = if *is_claims { ObjectKind::Claim } else { ObjectKind::Volume };
                self.controllers[*controller].deliver(&self.server, kind, *count);
            }
            Step::SyncClaim { controller, claim, fault } => {
                self.sync(*controller, *fault, |controller, server| controller.sync_claim(server, CLAIMS[*claim]));
            }
            Step::SyncVolume { controller, at, fault } => {
                if let Some(name) = self.volume_names().get(*at) {
                    self.sync(*controller, *fault, |controller, server| controller.sync_volume(server, name));
                }
            }
        }
    }

    fn volume_names(&self) -> Vec<String> {
        let volumes = self.server.objects.keys().filter(|(kind, _)| *kind == ObjectKind::Volume);
        volumes.map(|(_, name)| name.clone()).collect()
    }

    fn create_claim(&mut self, name: &str, class: Option<&'static str>) {
        let id = id(ObjectKind::Claim, name);
        if self.server.objects.contains_key(&id) {
            return;
        }
        self.server.uids += 1;
        let uid = format!("uid-{}", self.server.uids);
        let made = claim(name).with(|claim| {
            claim.head.uid = uid;
            claim.class = class;
        });
        self.server.store(&id, Some(made.object()));
    }

    fn delete_claim(&mut self, name: &str) {
        let id = id(ObjectKind::Claim, name);
        if self.server.objects.contains_key(&id) {
            self.server.store(&id, None);
        }
    }

    /// Writes the scheduler's choice, which only concerns claims that wait for it.
    fn set_node(&mut self, name: &str, node: Option<&str>) {
        let Some(claim) = self.server.claim(name) else { return };
        if claim.class() != LATER
            || !claim.volume_name.is_empty()
            || self.server.objects.contains_key(&id(ObjectKind::Volume, &provisioned_for(&claim)))
        {
            return;
        }
        if claim.annotation(SELECTED_NODE) != node {
            let id = id(ObjectKind::Claim, name);
            let edited = annotated(&self.server.objects[&id], &[(SELECTED_NODE, node)]).expect("well-formed");
            self.server.store(&id, Some(edited));
        }
    }

    /// Creates the volume that a claim requests, in the driver and as an object.
    fn provision(&mut self, name: &str) {
        let Some(claim) = self.server.claim(name) else { return };
        let volume_name = provisioned_for(&claim);
        let volume_id = id(ObjectKind::Volume, &volume_name);
        let is_requested = claim.annotation(STORAGE_PROVISIONER) == Some(DRIVER) && claim.volume_name.is_empty();
        let has_node = claim.class() != LATER || claim.annotation(SELECTED_NODE).is_some();
        if !is_requested || !has_node || self.server.objects.contains_key(&volume_id) {
            return;
        }
        let of_class = if claim.class() == LATER { LATER } else { NOW };
        let made = volume(&volume_name).phase("Pending").annotated(PROVISIONED_BY, DRIVER).with(|volume| {
            volume.policy = "Delete";
            volume.class = of_class;
            volume.backend = Backend::Csi;
        });
        let reserved = referring_to_claim(&made.object(), &claim, false).expect("well-formed");
        self.driver.insert(volume_name);
        self.server.store(&volume_id, Some(reserved));
    }

    /// Deletes a released volume, in the driver and as an object.
    fn reclaim(&mut self, name: &str) {
        let Some(volume) = self.server.volume(name).filter(|volume| volume.phase == VolumePhase::Released) else {
            return;
        };
        if self.server.is_needed(&volume) {
            self.server.violations.push(format!("data of {name} was deleted"));
        }
        self.driver.remove(name);
        self.server.store(&id(ObjectKind::Volume, name), None);
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

    /// Lets the first controller and the provisioner work until nothing changes.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        self.act(&Step::DeliverClasses(0));
        for _ in 0..50 {
            let before = self.server.version;
            for at in 0..CLAIMS.len() {
                self.deliver_all();
                self.act(&Step::SyncClaim { controller: 0, claim: at, fault: Fault::None });
                self.act(&Step::Provision(at));
            }
            for name in self.volume_names() {
                self.deliver_all();
                self.sync(0, Fault::None, |controller, server| controller.sync_volume(server, &name));
                self.reclaim(&name);
            }
            if self.server.version == before {
                return Ok(());
            }
        }
        Err(TestCaseError::fail("the controller does not reach a stable state"))
    }

    fn deliver_all(&mut self) {
        let controller = &mut self.controllers[0];
        controller.deliver(&self.server, ObjectKind::Claim, usize::MAX);
        controller.deliver(&self.server, ObjectKind::Volume, usize::MAX);
        controller.written.clear();
    }

    /// Checks that each claim that can have a volume is bound to a volume of its own, and that no other volumes exist.
    fn check_settled(&self) -> Result<(), TestCaseError> {
        let mut expected = BTreeSet::new();
        for claim in CLAIMS.iter().filter_map(|name| self.server.claim(name)) {
            let is_due = match claim.class() {
                NOW => true,
                LATER => claim.annotation(SELECTED_NODE).is_some(),
                _ => false,
            };
            let has_volume = claim.phase == Phase::Bound;
            prop_assert!(has_volume || !is_due, "{} has no volume: {:?}", claim.meta.name, claim);
            if has_volume {
                prop_assert_eq!(&*claim.volume_name, provisioned_for(&claim));
                expected.insert(claim.volume_name.to_string());
            }
        }
        prop_assert_eq!(&self.driver, &expected, "volumes in the driver, and of claims");
        prop_assert_eq!(self.volume_names().into_iter().collect::<BTreeSet<_>>(), expected);
        Ok(())
    }
}

fn provisioned_for(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.meta.uid)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let claim = 0..CLAIMS.len();
    let class = prop_oneof![Just(None), Just(Some(NOW)), Just(Some(LATER))];
    let step = prop_oneof![
        3 => (claim.clone(), class).prop_map(|(claim, class)| Step::CreateClaim { claim, class }),
        2 => claim.clone().prop_map(Step::DeleteClaim),
        3 => claim.clone().prop_map(Step::SelectNode),
        1 => claim.clone().prop_map(Step::RejectNode),
        1 => any::<bool>().prop_map(Step::SetDefault),
        1 => (0usize..2).prop_map(Step::DeliverClasses),
        6 => claim.clone().prop_map(Step::Provision),
        3 => (0usize..4).prop_map(Step::Reclaim),
        10 => (0usize..2, any::<bool>(), 1usize..6)
            .prop_map(|(controller, is_claims, count)| Step::Deliver { controller, is_claims, count }),
        10 => (0usize..2, claim, faults())
            .prop_map(|(controller, claim, fault)| Step::SyncClaim { controller, claim, fault }),
        8 => (0usize..2, 0usize..4, faults())
            .prop_map(|(controller, at, fault)| Step::SyncVolume { controller, at, fault }),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn provisioned_volumes_belong_to_one_claim_and_none_is_left_in_the_driver(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.act(step);
            prop_assert!(model.server.violations.is_empty(), "{:?}", model.server.violations);
        }
        model.settle()?;
        model.check_settled()?;
        (0..CLAIMS.len()).for_each(|at| model.act(&Step::DeleteClaim(at)));
        model.settle()?;
        prop_assert!(model.server.violations.is_empty(), "{:?}", model.server.violations);
        prop_assert_eq!((model.volume_names(), &model.driver), (Vec::new(), &BTreeSet::new()));
    }
}
