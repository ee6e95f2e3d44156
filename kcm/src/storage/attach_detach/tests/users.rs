//! Random histories of the pods, claims, volumes and nodes that determine the users of a volume. Reconciles that read
//! only the changed pods and nodes find the same users as a reconcile that reads all of them.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::persistent_volume::{ClaimRef, Source};
use kinds::persistent_volume_claim::Phase;
use kinds::pod::InTreeVolume;
use kinds::schema::{aws_elastic_block_store, volume_source};
use kinds::wire::Put;
use kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Str};
use proptest::prelude::*;
use runtime::testing::{deliver, deliver_deletion};

use super::bed::{Bed, NodeState};
use crate::storage::attach_detach::changes::Scope;
use crate::storage::attach_detach::keys::subscribe;
use crate::storage::testing::{claim, pod_with, recreated, volume};
use crate::storage::volume_name::{attachment_name, of_csi};

const DRIVER: &str = "ebs.csi.aws.com";
const HANDLE: &str = "vol-1";
const NODES: [&str; 2] = ["a", "b"];
/// Claims, each with the volume that it names. Both volumes have the same CSI handle.
const CLAIMS: [(&str, &str); 2] = [("data", "pv"), ("logs", "pv-2")];

#[derive(Debug, Clone, Copy)]
enum Action {
    /// A pod uses a claim, or defines the volume itself. With `is_new` it replaces an earlier pod with its name.
    StartPod {
        pod: usize,
        node: usize,
        volume: usize,
        is_new: bool,
    },
    FinishPod(usize),
    DeletePod(usize),
    SetClaim {
        claim: usize,
        is_bound: bool,
        is_new: bool,
    },
    DeleteClaim(usize),
    SetVolume {
        volume: usize,
        is_shared: bool,
    },
    DeleteVolume(usize),
    SetNode {
        node: usize,
        is_managed: bool,
    },
    DeleteNode(usize),
    Reconcile,
}

fn action() -> impl Strategy<Value = Action> {
    let (two, pod) = (|| 0..2_usize, || 0..4_usize);
    prop_oneof![
        8 => (pod(), two(), prop_oneof![9 => Just(0), 3 => Just(1), 1 => Just(2)], any::<bool>())
            .prop_map(|(pod, node, volume, is_new)| Action::StartPod { pod, node, volume, is_new }),
        2 => pod().prop_map(Action::FinishPod),
        4 => pod().prop_map(Action::DeletePod),
        3 => (two(), proptest::bool::weighted(0.8), proptest::bool::weighted(0.2))
            .prop_map(|(claim, is_bound, is_new)| Action::SetClaim { claim, is_bound, is_new }),
        1 => two().prop_map(Action::DeleteClaim),
        2 => (prop_oneof![4 => Just(0), 1 => Just(1)], any::<bool>())
            .prop_map(|(volume, is_shared)| Action::SetVolume { volume, is_shared }),
        1 => two().prop_map(Action::DeleteVolume),
        4 => (two(), any::<bool>()).prop_map(|(node, is_managed)| Action::SetNode { node, is_managed }),
        1 => two().prop_map(Action::DeleteNode),
        8 => Just(Action::Reconcile),
    ]
}

struct World {
    bed: Bed,
    version: u64,
}

/// Returns the volume's name in the status of nodes.
fn unique_name() -> Str {
    of_csi(DRIVER, HANDLE)
}

fn pod_key(number: usize) -> ObjectKey {
    ObjectKey::new("default", format!("pod-{number}"))
}

impl World {
    async fn new() -> Self {
        let bed = Bed::new().await;
        let caches = &bed.shared.caches;
        deliver_deletion(&caches.volumes, &ObjectKey::new("", "pv"));
        deliver_deletion(&caches.claims, &ObjectKey::new("default", "data"));
        for node in NODES {
            // The kubelets report the volume in use, so it is neither attached nor detached.
            bed.change_node(node, NodeState::healthy(5, &[unique_name()], &[unique_name()]));
            bed.deliver_node(node);
            bed.add_attachment(node, |attachment| {
                attachment.meta.name = attachment_name(DRIVER, HANDLE, node).into();
                attachment.attacher = DRIVER.into();
            });
        }
        subscribe(&bed.shared);
        let world = Self { bed, version: 10 };
        world.set_claim(0, true, false);
        world.set_volume(0, true);
        world
    }

    fn start_pod(&self, pod: usize, node: usize, volume: usize, is_new: bool) {
        let mut started: Pod = pod_with(&pod_key(pod).name, &[CLAIMS.get(volume).map_or("", |(claim, _)| *claim)]);
        started.node = NODES[node].into();
        if volume == 2 {
            let mut raw = Vec::new();
            raw.put_str(aws_elastic_block_store::VOLUME_ID, HANDLE);
            let field = volume_source::AWS_ELASTIC_BLOCK_STORE;
            let volumes = started.volumes.as_mut().expect("it has volumes");
            volumes.in_tree = [InTreeVolume { name: "disk".into(), field, raw: raw.into() }].into();
            volumes.claims = Box::default();
        }
        if is_new {
            recreated(&mut started.meta);
        }
        // The node and the volumes of a pod never change.
        let known = self.bed.shared.caches.pods.get(&pod_key(pod));
        if known.is_none_or(|known| known.meta.uid != started.meta.uid) {
            deliver(&self.bed.shared.caches.pods, started);
        }
    }

    fn set_claim(&self, number: usize, is_bound: bool, is_new: bool) {
        let mut set: PersistentVolumeClaim = claim(CLAIMS[number].0);
        set.volume_name = CLAIMS[number].1.into();
        set.phase = if is_bound { Phase::Bound } else { Phase::Pending };
        if is_new {
            recreated(&mut set.meta);
        }
        deliver(&self.bed.shared.caches.claims, set);
    }

    fn set_volume(&self, number: usize, is_shared: bool) {
        let mut set: PersistentVolume = volume(CLAIMS[number].1);
        let uid = Some(claim(CLAIMS[number].0).meta.uid);
        set.source = Source::Csi { driver: DRIVER.into(), handle: HANDLE.into() };
        set.access_modes = Arc::new([if is_shared { "ReadWriteMany" } else { "ReadWriteOnce" }.into()]);
        set.claim = Some(Box::new(ClaimRef { namespace: "default".into(), name: CLAIMS[number].0.into(), uid }));
        deliver(&self.bed.shared.caches.volumes, set);
    }

    fn set_node(&mut self, node: usize, is_managed: bool) {
        self.version += 1;
        let state = NodeState::healthy(self.version, &[unique_name()], &[unique_name()]);
        self.bed.change_node(NODES[node], state);
        self.bed.deliver_node(NODES[node]);
        if !is_managed {
            let nodes = &self.bed.shared.caches.nodes;
            let mut changed: Node = (*nodes.get(&ObjectKey::new("", NODES[node])).expect("it was delivered")).clone();
            changed.volumes = None;
            deliver(nodes, changed);
        }
    }

    async fn act(&mut self, action: Action) {
        let caches = &self.bed.shared.caches;
        match action {
            Action::StartPod { pod, node, volume, is_new } => self.start_pod(pod, node, volume, is_new),
            Action::FinishPod(pod) => {
                if let Some(known) = caches.pods.get(&pod_key(pod)) {
                    let phase = kinds::pod::Phase::Succeeded;
                    deliver(&caches.pods, Pod { phase, ..(*known).clone() });
                }
            }
            Action::DeletePod(pod) => deliver_deletion(&caches.pods, &pod_key(pod)),
            Action::SetClaim { claim, is_bound, is_new } => self.set_claim(claim, is_bound, is_new),
            Action::DeleteClaim(claim) => {
                deliver_deletion(&caches.claims, &ObjectKey::new("default", CLAIMS[claim].0));
            }
            Action::SetVolume { volume, is_shared } => self.set_volume(volume, is_shared),
            Action::DeleteVolume(volume) => deliver_deletion(&caches.volumes, &ObjectKey::new("", CLAIMS[volume].1)),
            Action::SetNode { node, is_managed } => self.set_node(node, is_managed),
            Action::DeleteNode(node) => deliver_deletion(&caches.nodes, &ObjectKey::new("", NODES[node])),
            Action::Reconcile => self.reconcile().await,
        }
    }

    async fn reconcile(&self) {
        self.bed.reconcile(&unique_name()).await.expect("it succeeds");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn reconciles_of_changed_pods_find_the_same_users_as_a_reconcile_of_all_pods(
        actions in prop::collection::vec(action(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let mut world = World::new().await;
            for (at, action) in actions.iter().enumerate() {
                world.act(*action).await;
                if !matches!(action, Action::Reconcile) {
                    continue;
                }
                let memory = &world.bed.shared.memory;
                let state = || (memory.users(&unique_name(), &Scope::All), memory.sites(&unique_name(), &Scope::All));
                let found = state();
                memory.changes.forget(&unique_name());
                world.reconcile().await;
                prop_assert_eq!(state(), found, "after {:?}", &actions[..=at]);
            }
            Ok(())
        })?;
    }
}
