//! Whole reconciles against a simulated API server.

use std::sync::Mutex;

use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use runtime::events::Recorder;
use runtime::handover::Handover;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Store, by_controller, by_namespace};
use runtime::testing::{NoEvents, deliver, deliver_deletion, filled_store, response, writer};
use runtime::worker::{Outcome, Reconcile as _, ReconcileError};

use super::*;
use crate::pods::control::PodControl;
use crate::pods::creation_gate::CreationGate;
use crate::workloads::replicaset::decide::Gates;
use crate::workloads::replicaset::sync::PodSets;

fn decode() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

/// A pod that matches the set's selector and has no controller.
fn orphan(name: &str) -> Pod {
    let mut pod = pod(name);
    pod.meta.owners = Interner::default().owners(&[]);
    pod.meta.version = 9;
    pod
}

/// A ReplicaSet with two replicas that was created in this leadership term.
fn web(version: u64) -> ReplicaSet {
    let mut web = set(2, 0);
    web.meta.version = version;
    web.meta.created = Time(i64::MAX);
    web.selector = Selector::of_labels(&Interner::default(), [("app", "web")]);
    web
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "web")
}

/// The controller with its caches, and the requests that it sent, as method and last part of the path.
struct Bench {
    sets: Arc<Store<ReplicaSet>>,
    pods: Arc<Store<Pod>>,
    requests: Arc<Mutex<Vec<(String, String)>>>,
    reconciler: PodSets<ReplicaSet>,
}

impl Bench {
    /// A controller whose requests succeed, except those for which `respond` returns another status code. `respond`
    /// also gets the cache of pods and all requests so far.
    async fn new(
        set: ReplicaSet,
        pods: impl IntoIterator<Item = Pod>,
        respond: impl Fn(&str, &Store<Pod>, &[(String, String)]) -> Option<u16> + Send + Sync + 'static,
    ) -> Self {
        let sets = Arc::new(filled_store(decode(), vec![by_controller(), by_namespace()], [set]));
        let pods: Arc<Store<Pod>> = Arc::new(filled_store(decode(), vec![by_controller()], pods));
        let requests = Arc::<Mutex<Vec<(String, String)>>>::default();
        let (shown, sent) = (pods.clone(), requests.clone());
        let writer = writer(move |method, path| {
            let mut sent = sent.lock().expect("the requests");
            sent.push((method.to_string(), path.rsplit('/').next().unwrap_or_default().to_owned()));
            (respond(method.as_str(), &shown, &sent).unwrap_or(200), response(&ReplicaSet::RESOURCE, "ns", "web", 2))
        })
        .await;
        let reconciler = PodSets {
            sets: sets.clone(),
            control: PodControl {
                pods: pods.clone(),
                writer,
                recorder: Recorder::new("replicaset-controller", Arc::new(NoEvents)).0,
                consistency: Arc::default(),
                gate: CreationGate::new(Arc::new(filled_store(decode(), vec![], []))),
            },
            queue: Queue::new(QueueOptions::named("test")),
            clock: Arc::new(now),
            gates: Gates { deletion_cost: true, terminating_replicas: false },
            deletion_ages: None,
            handover: Handover::without_former_owners(),
            refusals: Default::default(),
            debouncer: Default::default(),
        };
        Self { sets, pods, requests, reconciler }
    }

    async fn reconcile(&self) -> Result<Outcome, ReconcileError> {
        self.reconciler.reconcile(&key()).await
    }

    /// Returns the last parts of the paths of a method's requests.
    fn sent(&self, method: &str) -> Vec<String> {
        let requests = self.requests.lock().expect("the requests");
        requests.iter().filter(|(sent, _)| sent == method).map(|(_, name)| name.clone()).collect()
    }
}

#[tokio::test]
async fn pods_deleted_in_the_last_sync_are_not_deleted_again_when_their_deletions_arrive_during_the_next() {
    let bench = Bench::new(web(7), ["a", "b", "c", "d"].map(pod), |method, pods, requests| {
        // The orphan is adopted after the pods were read and before anything is decided.
        if method == "PATCH" {
            let deleted = requests.iter().filter(|(method, _)| method == "DELETE");
            deleted.for_each(|(_, name)| deliver_deletion(pods, &ObjectKey::new("ns", name.as_str())));
        }
        None
    })
    .await;
    bench.reconcile().await.expect("two pods are surplus");
    assert_eq!(bench.sent("DELETE").len(), 2);
    deliver(&bench.sets, web(9));
    deliver(&bench.pods, orphan("e"));
    bench.reconcile().await.expect("the orphan is adopted");
    assert_eq!(bench.pods.len(), 3, "the watch delivered the deletions during the reconcile");
    let deleted = bench.sent("DELETE");
    assert_eq!(deleted.len(), 2, "of five pods two were deleted before, and one is surplus later: {deleted:?}");
}

#[tokio::test]
async fn set_with_its_pods_is_not_written_again() {
    let mut complete = web(7);
    let pods = ["a", "b"].map(pod);
    let all = arcs(pods.to_vec());
    complete.status = status(&complete, &all, None, None, now());
    let bench = Bench::new(complete, pods, |_, _, _| None).await;
    bench.reconcile().await.expect("nothing to do");
    assert!(bench.requests.lock().expect("the requests").is_empty());
}

#[tokio::test]
async fn creations_stop_at_the_first_refusal_and_are_repeated() {
    let mut large = web(7);
    large.replicas = 10;
    let bench = Bench::new(large, [], |method, _, _| (method == "POST").then_some(500)).await;
    let error = bench.reconcile().await.expect_err("the creation failed");
    assert!(!error.terminal, "{error:?}");
    assert_eq!(bench.sent("POST").len(), 1, "batches begin with one pod");
}

#[tokio::test]
async fn status_write_that_fails_is_repeated() {
    let bench = Bench::new(web(7), ["a", "b"].map(pod), |method, _, _| (method == "PUT").then_some(500)).await;
    let error = bench.reconcile().await.expect_err("the status was not written");
    assert!(!error.terminal, "{error:?}");
    assert_eq!(bench.sent("PUT").len(), 1);
}

#[tokio::test]
async fn adoption_that_fails_is_repeated_and_nothing_is_created_before() {
    let bench = Bench::new(web(7), [orphan("a")], |method, _, _| (method == "PATCH").then_some(500)).await;
    let error = bench.reconcile().await.expect_err("the pod was not adopted");
    assert!(!error.terminal, "{error:?}");
    assert!(bench.sent("POST").is_empty(), "a pod that is not adopted yet would be surplus then");
}

#[tokio::test]
async fn set_that_is_being_deleted_neither_adopts_nor_creates() {
    let mut deleted = web(7);
    deleted.meta.deletion = Time(NOW);
    let bench = Bench::new(deleted, [orphan("a")], |_, _, _| None).await;
    bench.reconcile().await.expect("nothing to do");
    for method in ["PATCH", "POST", "DELETE"] {
        assert!(bench.sent(method).is_empty(), "{method}");
    }
}

#[tokio::test]
async fn pod_of_another_controller_is_neither_adopted_nor_counted() {
    let mut other = pod("a");
    other.meta.owners = Interner::default().owners(&[owner("other", "ReplicaSet")]);
    let bench = Bench::new(web(7), [other, pod("b")], |_, _, _| None).await;
    bench.reconcile().await.expect("a pod is created");
    assert!(bench.sent("PATCH").is_empty() && bench.sent("DELETE").is_empty());
    assert_eq!(bench.sent("POST").len(), 1, "one pod is missing");
}

#[tokio::test]
async fn pods_created_in_the_last_sync_are_not_created_again_before_the_cache_contains_them() {
    let bench = Bench::new(web(7), [], |_, _, _| None).await;
    bench.reconcile().await.expect("two pods are created");
    deliver(&bench.sets, web(9));
    for _ in 0..3 {
        assert_eq!(bench.reconcile().await, Ok(Outcome::WaitingForCache));
    }
    assert_eq!(bench.sent("POST").len(), 2);
}

#[tokio::test]
async fn successor_of_the_same_name_does_not_wait_for_writes_of_the_deleted_set() {
    let bench = Bench::new(web(7), ["a", "b", "c"].map(pod), |_, _, _| None).await;
    bench.reconcile().await.expect("a pod is surplus");
    deliver_deletion(&bench.sets, &key());
    // The resourceVersion of a deletion event is higher than those of all earlier writes. The same is true for these
    // changes.
    let mut other = web(9);
    other.meta.name = "other".into();
    deliver(&bench.sets, other);
    deliver(&bench.pods, orphan("unrelated"));
    bench.reconcile().await.expect("there is no such set");
    let mut successor = web(20);
    successor.meta.uid = Uid::parse("successor");
    deliver(&bench.sets, successor);
    deliver_deletion(&bench.pods, &ObjectKey::new("ns", "unrelated"));
    bench.reconcile().await.expect("two pods are created");
    assert_eq!(bench.sent("POST").len(), 2);
}

/// A tenant who learns the UID of another tenant's ReplicaSet can write pods that refer to that set.
#[tokio::test]
async fn pods_of_other_namespaces_that_refer_to_the_set_are_not_its_pods() {
    let foreign = |name: &str| {
        let mut foreign = pod(name);
        foreign.meta.namespace = "tenant".into();
        foreign
    };
    let own = ["a", "b"].map(pod);
    let bench = Bench::new(web(7), own.into_iter().chain(["c", "d"].map(foreign)), |_, _, _| None).await;
    bench.reconcile().await.expect("no request fails");
    assert_eq!(bench.sent("DELETE"), Vec::<String>::new(), "none of the set's pods is surplus");
    let bench = Bench::new(web(7), ["a", "b"].map(foreign), |_, _, _| None).await;
    bench.reconcile().await.expect("no request fails");
    assert_eq!(bench.sent("POST").len(), 2, "the set has no pods yet");
}
