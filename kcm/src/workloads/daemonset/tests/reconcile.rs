//! Whole reconciles against a simulated API server.

use std::sync::Mutex;

use kinds::controller_revision::Fingerprint;
use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use kinds::{ControllerRevision, Str};
use runtime::events::Recorder;
use runtime::handover::Handover;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Store, by_controller, by_namespace};
use runtime::testing::{NoEvents, deliver, deliver_deletion, filled_store, response, writer};
use runtime::worker::{Outcome, Reconcile as _, ReconcileError};

use super::*;
use crate::pods::control::PodControl;
use crate::pods::creation_gate::CreationGate;
use crate::workloads::controller_revisions::Memory;
use crate::workloads::daemonset::keys;
use crate::workloads::daemonset::state::DaemonSets;

const REVISION_NAME: &str = "agent-new";

fn decode() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

/// A DaemonSet that was created in this leadership term.
pub(super) fn agent(version: u64) -> DaemonSet {
    let mut set = set(rolling(1, 0));
    set.meta.version = version;
    set.meta.created = Time(i64::MAX);
    set.status.observed_generation = set.meta.generation;
    set
}

/// A pod of the DaemonSet on `node-1`.
pub(super) fn owned(name: &str) -> Pod {
    let mut pod = pod(name, NEW);
    pod.meta.labels = meta(name, &[("app", "agent"), (REVISION_HASH_LABEL, NEW)]).labels;
    pod.meta.owners = Interner::default().owners(&[owner("DaemonSet")]);
    pod
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "agent")
}

/// The controller with its caches, and the requests that it sent, as method and last part of the path.
pub(super) struct Bench {
    sets: Arc<Store<DaemonSet>>,
    pods: Arc<Store<Pod>>,
    requests: Arc<Mutex<Vec<(String, String)>>>,
    pub(super) reconciler: DaemonSets,
}

impl Bench {
    /// A controller in a cluster with these nodes. Its requests succeed, except those with the method `refused`.
    pub(super) async fn new(
        set: DaemonSet,
        nodes: &[&str],
        pods: impl IntoIterator<Item = Pod>,
        refused: &'static str,
    ) -> Self {
        let requests = Arc::<Mutex<Vec<(String, String)>>>::default();
        let sent = requests.clone();
        let writer = writer(move |method, path| {
            let name = path.rsplit('/').next().unwrap_or_default().to_owned();
            sent.lock().expect("the requests").push((method.to_string(), name));
            (if method.as_str() == refused { 500 } else { 200 }, response(&DaemonSet::RESOURCE, "ns", "agent", 8))
        })
        .await;
        let memory = Memory::default();
        if let Some(template) = &set.template {
            memory.remember(&set.meta, template, &Str::from(REVISION_NAME));
        }
        let mut known = meta(REVISION_NAME, &[("app", "agent"), (REVISION_HASH_LABEL, NEW)]);
        known.owners = Interner::default().owners(&[owner("DaemonSet")]);
        let revision = ControllerRevision { meta: known, revision: 1, data: Fingerprint::of(b"template") };
        let sets = Arc::new(filled_store(decode(), vec![by_namespace(), keys::ALL], [set]));
        let pods: Arc<Store<Pod>> = Arc::new(filled_store(decode(), vec![by_controller()], pods));
        let nodes = nodes.iter().map(|name| node(name, &[], &[]));
        let reconciler = DaemonSets {
            sets: sets.clone(),
            nodes: Arc::new(filled_store(decode(), vec![keys::ALL_NODES], nodes)),
            revisions: Arc::new(filled_store(decode(), vec![by_controller()], [revision])),
            control: PodControl {
                pods: pods.clone(),
                writer,
                recorder: Recorder::new("daemonset-controller", Arc::new(NoEvents)).0,
                consistency: Arc::default(),
                gate: CreationGate::new(Arc::new(filled_store(decode(), vec![], []))),
            },
            queue: Queue::new(QueueOptions::named("test")),
            clock: Arc::new(now),
            compares_numbers: false,
            memory,
            debouncer: Default::default(),
            backoffs: Default::default(),
            handover: Handover::without_former_owners(),
            refusals: Default::default(),
            revision_refusals: Default::default(),
        };
        Self { sets, pods, requests, reconciler }
    }

    pub(super) async fn reconcile(&self) -> Result<Outcome, ReconcileError> {
        self.reconciler.reconcile(&key()).await
    }

    /// Returns the last parts of the paths of a method's requests.
    pub(super) fn sent(&self, method: &str) -> Vec<String> {
        let requests = self.requests.lock().expect("the requests");
        requests.iter().filter(|(sent, _)| sent == method).map(|(_, name)| name.clone()).collect()
    }
}

#[tokio::test]
async fn each_node_without_a_pod_gets_one() {
    for (nodes, pods, creations) in [
        (&["node-1", "node-2"][..], vec![], 2),
        (&["node-1", "node-2"], vec![owned("a")], 1),
        (&["node-1"], vec![owned("a")], 0),
        (&[], vec![], 0),
    ] {
        let bench = Bench::new(agent(7), nodes, pods, "").await;
        bench.reconcile().await.expect("it succeeds");
        assert_eq!(bench.sent("POST").len(), creations, "{nodes:?}");
        assert!(bench.sent("DELETE").is_empty(), "{nodes:?}");
    }
}

#[tokio::test]
async fn daemonset_that_is_being_deleted_writes_nothing() {
    let mut deleted = agent(7);
    deleted.meta.deletion = Time(NOW);
    let bench = Bench::new(deleted, &["node-1"], [], "").await;
    bench.reconcile().await.expect("nothing to do");
    assert!(bench.requests.lock().expect("the requests").is_empty());
}

#[tokio::test]
async fn daemonset_that_selects_everything_writes_nothing() {
    let mut everything = agent(7);
    everything.selector = Selector::of_labels(&Interner::default(), []);
    let bench = Bench::new(everything, &["node-1"], [owned("a"), pod("b", "old")], "").await;
    bench.reconcile().await.expect("an event only");
    assert!(bench.requests.lock().expect("the requests").is_empty());
}

#[tokio::test]
async fn creations_stop_at_the_first_refusal_and_are_repeated() {
    let names: Vec<String> = (0..20).map(|number| format!("node-{number}")).collect();
    let nodes: Vec<&str> = names.iter().map(String::as_str).collect();
    let bench = Bench::new(agent(7), &nodes, [], "POST").await;
    let error = bench.reconcile().await.expect_err("the creation failed");
    assert!(!error.terminal, "{error:?}");
    assert_eq!(bench.sent("POST").len(), 1, "batches begin with one pod");
}

#[tokio::test]
async fn status_write_that_fails_is_repeated() {
    let bench = Bench::new(agent(7), &["node-1"], [owned("a")], "PUT").await;
    let error = bench.reconcile().await.expect_err("the status was not written");
    assert!(!error.terminal, "{error:?}");
    assert_eq!(bench.sent("PUT"), ["status"]);
}

#[tokio::test]
async fn pods_created_in_the_last_sync_are_not_created_again_before_the_cache_contains_them() {
    let bench = Bench::new(agent(7), &["node-1", "node-2"], [], "").await;
    bench.reconcile().await.expect("two pods are created");
    deliver(&bench.sets, agent(9));
    for _ in 0..3 {
        assert_eq!(bench.reconcile().await, Ok(Outcome::WaitingForCache));
    }
    assert_eq!(bench.sent("POST").len(), 2);
}

#[tokio::test]
async fn successor_of_the_same_name_does_not_wait_for_writes_of_the_deleted_daemonset() {
    let bench = Bench::new(agent(7), &["node-1"], [], "").await;
    bench.reconcile().await.expect("a pod is created");
    deliver_deletion(&bench.sets, &key());
    // The resourceVersion of a deletion event is higher than those of all earlier writes. The same is true for these
    // changes.
    let mut other = agent(9);
    other.meta.name = "other".into();
    deliver(&bench.sets, other);
    let mut unrelated = pod("unrelated", "old");
    unrelated.meta.version = 9;
    deliver(&bench.pods, unrelated);
    bench.reconcile().await.expect("there is no such DaemonSet");
    let mut successor = agent(20);
    successor.meta.uid = Uid::parse("successor");
    deliver(&bench.sets, successor);
    assert_ne!(bench.reconcile().await, Ok(Outcome::WaitingForCache));
}

/// If a DaemonSet is deleted during a reconcile, the watch handles the deletion before the reconcile records the
/// revision.
#[tokio::test]
async fn last_reconcile_removes_the_recorded_revision_of_a_deleted_daemonset() {
    let set = agent(7);
    let (meta, template) = (set.meta.clone(), set.template.clone().expect("a template"));
    let bench = Bench::new(set, &["node-1"], [owned("a")], "").await;
    bench.reconcile().await.expect("no request fails");
    let recall = || bench.reconciler.memory.recall(&meta, &template);
    assert_eq!(recall().as_deref(), Some(REVISION_NAME));
    deliver_deletion(&bench.sets, &key());
    // The version of the deletion, which the cache reaches before the last reconcile.
    let mut other = agent(9);
    other.meta.name = "other".into();
    deliver(&bench.sets, other);
    bench.reconcile().await.expect("there is no such DaemonSet");
    assert_eq!(recall(), None);
}
