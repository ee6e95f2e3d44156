//! Whole passes over all nodes, against a simulated API server.

use std::sync::Mutex;

use kinds::envelope;
use kinds::meta::{ObjectKey, Uid};
use kinds::{Pod, Str};
use runtime::events::Recorder;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::Store;
use runtime::testing::{
    KeptEvents, NoEvents, deliver, deliver_deletion, deliver_restore, filled_store, slow_clients, writer_of,
};
use runtime::worker::Reconcile as _;

use super::*;
use crate::nodes::node_lifecycle::EVERY;
use crate::nodes::node_lifecycle::keys::Loop;
use crate::nodes::node_lifecycle::metrics::ZoneMetrics;
use crate::nodes::node_lifecycle::monitor::{Limits, Monitor};
use crate::pods::indexes::by_node;

/// A ready pod on the node `a`, in this version.
fn pod(name: &str, version: u64) -> Pod {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
    });
    Pod { node: "a".into(), ready: true, ..Pod::decode(&context(), &object).expect("well-formed") }
}

/// The controller with its caches, and the requests that it sent, as method and path.
struct Bench {
    nodes: Arc<Store<Node>>,
    pods: Arc<Store<Pod>>,
    leases: Arc<Store<Lease>>,
    requests: Arc<Mutex<Vec<(String, String)>>>,
    /// The number of keys in the queue when each pod was marked.
    queued_at_marks: Arc<Mutex<Vec<usize>>>,
    monitor: Monitor,
}

impl Bench {
    /// A cluster with one node and its pods. The first `refusals` patches fail. On the server, the node's Lease has
    /// version 40 and was renewed at second 2.
    async fn new(node: Arc<Node>, pods: impl IntoIterator<Item = Pod>, refusals: usize, recorder: Recorder) -> Self {
        let refuse = move |patches| (patches <= refusals).then_some((500, ""));
        Self::with_server(node, pods, (Duration::ZERO, refuse), recorder).await
    }

    /// Like [`Bench::new`]; each response takes `delay`. `refuse` gets the number of patches so far, and returns the
    /// status and body if this patch is refused.
    async fn with_server(
        node: Arc<Node>,
        pods: impl IntoIterator<Item = Pod>,
        (delay, refuse): (Duration, impl Fn(usize) -> Option<(u16, &'static str)> + Send + Sync + 'static),
        recorder: Recorder,
    ) -> Self {
        let requests = Arc::<Mutex<Vec<(String, String)>>>::default();
        let sent = requests.clone();
        let queue = Queue::new(QueueOptions::named("test"));
        let queued_at_marks = Arc::<Mutex<Vec<usize>>>::default();
        let (waiting, marks) = (queue.clone(), queued_at_marks.clone());
        let clients = slow_clients(delay, move |method, path, _| {
            if method.as_str() == "PATCH" && path.contains("/pods/") {
                marks.lock().expect("the marks").push(waiting.len());
            }
            let mut sent = sent.lock().expect("the requests");
            sent.push((method.to_string(), path.to_owned()));
            let patches = sent.iter().filter(|(method, _)| method == "PATCH").count();
            if let Some((status, body)) = refuse(patches).filter(|_| method.as_str() == "PATCH") {
                return (status, body.as_bytes().to_vec());
            }
            let is_lease = path.contains("/leases/");
            let mut object = Vec::new();
            object.put_message(1, |meta| {
                meta.put_str(object_meta::NAME, "a");
                meta.put_str(object_meta::RESOURCE_VERSION, if is_lease { "40" } else { "9" });
            });
            if is_lease {
                object.put_message(lease::SPEC, |spec| Time(2).put(spec, lease_spec::RENEW_TIME));
            }
            (200, envelope::wrap(&Pod::RESOURCE, &object))
        });
        let writer = writer_of(clients.await);
        let nodes = Arc::new(filled_store(context(), vec![EVERY], [(*node).clone()]));
        let pods = Arc::new(filled_store(context(), vec![by_node()], pods));
        let leases = Arc::new(filled_store(context(), vec![], []));
        let monitor = Monitor::new(
            nodes.clone(),
            leases.clone(),
            pods.clone(),
            writer,
            recorder,
            queue,
            Arc::new(|| jiff::Timestamp::from_second(NOW.0).expect("in range")),
            Limits { period: SECOND * 5, grace: GRACE, rates: RATES, breaker: true },
            ZoneMetrics::register(&Metrics::new()),
        );
        Self { nodes, pods, leases, requests, queued_at_marks, monitor }
    }

    /// Adds ready nodes. Without them, the whole cluster would be disrupted, and nothing would be tainted.
    fn add_ready_nodes(&self) {
        for name in ["b", "c", "d"] {
            let mut other = (*ready("True")).clone();
            other.meta.name = name.into();
            deliver(&self.nodes, other);
        }
    }

    async fn pass(&self) {
        self.monitor.reconcile(&Loop::Monitor).await.expect("a pass never fails");
    }

    /// Returns the paths of a method's requests that contain a text.
    fn sent(&self, method: &str, part: &str) -> Vec<String> {
        let requests = self.requests.lock().expect("the requests");
        let wanted = requests.iter().filter(|(sent, path)| sent == method && path.contains(part));
        wanted.map(|(_, path)| path.clone()).collect()
    }
}

fn without_events() -> Recorder {
    Recorder::new("node-controller", Arc::new(NoEvents)).0
}

fn ready(status: &'static str) -> Arc<Node> {
    node(&NodeFields { conditions: &[("Ready", status)], heartbeat: 1, ..NodeFields::default() })
}

#[tokio::test(start_paused = true)]
async fn pods_of_an_unresponsive_node_are_marked_until_that_succeeds() {
    let bench = Bench::new(ready("Unknown"), [pod("web", 7)], 1, without_events()).await;
    bench.pass().await;
    assert_eq!(bench.sent("PATCH", "/pods/").len(), 1, "the server fails");
    bench.pass().await;
    assert_eq!(bench.sent("PATCH", "/pods/"), ["/api/v1/namespaces/ns/pods/web/status"; 2]);
    bench.pass().await;
    assert_eq!(bench.sent("PATCH", "/pods/").len(), 2, "the cache does not contain the write yet");
    deliver(&bench.pods, Pod { ready: false, ..pod("web", 9) });
    bench.pass().await;
    assert_eq!(bench.sent("PATCH", "/pods/").len(), 2, "the pod is marked");
    deliver(&bench.pods, pod("web", 11));
    bench.pass().await;
    assert_eq!(bench.sent("PATCH", "/pods/").len(), 3, "another client has set it to ready");
}

#[tokio::test(start_paused = true)]
async fn taints_are_queued_before_the_first_pod_is_marked() {
    let bench = Bench::new(ready("Unknown"), [pod("web", 7), pod("db", 7)], 0, without_events()).await;
    bench.add_ready_nodes();
    bench.pass().await;
    assert_eq!(*bench.queued_at_marks.lock().expect("the marks"), [1, 1]);
}

#[tokio::test(start_paused = true)]
async fn refused_taint_is_retried_with_backoff_and_no_sooner_than_the_server_requests() {
    const OVERLOADED: &str = r#"{"kind":"Status","code":429,"details":{"retryAfterSeconds":30}}"#;
    for (status, body, expected) in [(500, "", 10..=20), (429, OVERLOADED, 4..=4)] {
        let server = (Duration::ZERO, move |_| Some((status, body)));
        let bench = Bench::with_server(ready("False"), [], server, without_events()).await;
        bench.add_ready_nodes();
        bench.pass().await;
        // Each pass queues the loop, which therefore runs more often than its outcome requests.
        for _ in 0..2000 {
            bench.monitor.reconcile(&Loop::Taint).await.expect("the loop never fails");
            tokio::time::advance(Duration::from_millis(50)).await;
        }
        let sent = bench.sent("PATCH", "/nodes/a").len();
        assert!(expected.contains(&sent), "{sent} attempts within 100 s after {status}");
    }
}

/// The node `a`, unresponsive and tainted for that, in a version after that of [`ready`].
fn tainted() -> Arc<Node> {
    let taints = &[(UNREACHABLE, "NoExecute")];
    let conditions = &[("Ready", "Unknown")];
    let mut tainted = (*node(&NodeFields { conditions, taints, heartbeat: 1, ..NodeFields::default() })).clone();
    tainted.meta.version = 8;
    Arc::new(tainted)
}

#[tokio::test(start_paused = true)]
async fn taint_that_is_written_after_the_start_of_full_disruption_is_removed() {
    let bench = Bench::new(ready("Unknown"), [], 0, without_events()).await;
    bench.pass().await;
    assert!(bench.sent("PATCH", "/nodes/").is_empty(), "the only node has no taint");
    deliver(&bench.nodes, (*tainted()).clone());
    bench.pass().await;
    assert_eq!(bench.sent("PATCH", "/nodes/a").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn removal_of_the_taints_of_a_new_node_is_retried_until_it_succeeds() {
    let bench = Bench::new(tainted(), [], 1, without_events()).await;
    bench.add_ready_nodes();
    for expected in [1, 2, 2] {
        bench.pass().await;
        assert_eq!(bench.sent("PATCH", "/nodes/a").len(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeat_counts_from_the_time_at_which_it_is_read() {
    let bench = Bench::with_server(tainted(), [], (SECOND * 20, |_| None), without_events()).await;
    let deliver_more = |node: &Node, version| {
        for number in 0..16 {
            let mut other = node.clone();
            other.meta.name = format!("node-{number}").into();
            other.meta.version = version;
            deliver(&bench.nodes, other);
        }
    };
    deliver_more(&tainted(), 8);
    let recover = async {
        tokio::time::sleep(SECOND).await;
        let mut recovered = (*ready("True")).clone();
        recovered.meta.version = 9;
        deliver_more(&recovered, 9);
        deliver(&bench.nodes, recovered);
    };
    let begun = Instant::now();
    tokio::join!(bench.pass(), recover);
    assert_eq!(begun.elapsed(), SECOND * 60, "the old taints of eight nodes are removed concurrently, and each once");
    tokio::time::advance(SECOND * 5).await;
    // The watch of Leases is not stalled.
    let mut other = leased(30, Some(1));
    other.meta.name = "other".into();
    deliver(&bench.leases, other);
    bench.pass().await;
    assert!(bench.sent("GET", "/leases/").is_empty(), "the heartbeats were read five seconds ago");
}

#[tokio::test(start_paused = true)]
async fn only_pods_of_unresponsive_nodes_are_marked() {
    for (status, marked) in [("True", 0), ("False", 0), ("Unknown", 1)] {
        let elsewhere = Pod { node: "b".into(), ..pod("elsewhere", 7) };
        let unready = Pod { ready: false, ..pod("unready", 7) };
        let bench = Bench::new(ready(status), [pod("web", 7), elsewhere, unready], 0, without_events()).await;
        bench.pass().await;
        assert_eq!(bench.sent("PATCH", "/pods/").len(), marked, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn lease_that_the_server_has_in_a_newer_version_stops_the_pass() {
    let bench = Bench::new(ready("True"), [pod("web", 7)], 0, without_events()).await;
    deliver(&bench.leases, leased(30, Some(1)));
    bench.pass().await;
    // The watch of Leases delivers changes of another Lease: only this node's Lease does not change.
    let other = |version| {
        let mut other = leased(version, Some(1));
        other.meta.name = "other".into();
        deliver(&bench.leases, other);
    };
    for version in 31..40 {
        tokio::time::advance(SECOND * 5).await;
        other(version);
        bench.pass().await;
    }
    assert_eq!(
        bench.sent("GET", "/leases/").len(),
        1,
        "the Lease is read once, and the next passes wait for the watch"
    );
    assert!(bench.sent("PUT", "").is_empty() && bench.sent("PATCH", "").is_empty(), "no node is marked or tainted");
    other(41);
    bench.pass().await;
    assert_eq!(
        bench.sent("GET", "/leases/").len(),
        2,
        "the Lease is read again after the watch has reached its version"
    );
}

#[tokio::test(start_paused = true)]
async fn lease_that_changed_without_a_renewal_does_not_stop_the_pass() {
    let bench = Bench::new(ready("True"), [], 0, without_events()).await;
    deliver(&bench.leases, leased(30, Some(2)));
    bench.pass().await;
    for version in 31..40 {
        tokio::time::advance(SECOND * 5).await;
        let mut other = leased(version, Some(1));
        other.meta.name = "other".into();
        deliver(&bench.leases, other);
        bench.pass().await;
    }
    assert!(!bench.sent("GET", "/leases/").is_empty());
    assert!(!bench.sent("GET", "/nodes/a").is_empty(), "the node is about to be marked");
}

#[tokio::test(start_paused = true)]
async fn version_of_a_lease_is_not_awaited_after_the_server_was_restored_from_a_backup() {
    let bench = Bench::new(ready("True"), [pod("web", 7)], 0, without_events()).await;
    let deliver_leases = |version| {
        let mut other = leased(version, Some(1));
        other.meta.name = "other".into();
        deliver(&bench.leases, other);
    };
    deliver(&bench.leases, leased(30, Some(1)));
    bench.pass().await;
    while bench.sent("GET", "/leases/").is_empty() {
        tokio::time::advance(SECOND * 5).await;
        deliver_leases(bench.leases.progress().version() + 1);
        bench.pass().await;
    }
    // The storage of the server is restored from a backup before the watch has delivered version 40.
    deliver_restore(&bench.leases, 10);
    deliver_leases(11);
    bench.pass().await;
    assert_eq!(bench.sent("GET", "/leases/").len(), 2, "the Lease is read again");
}

#[tokio::test(start_paused = true)]
async fn deleted_node_is_reported_with_its_uid() {
    let events = Arc::<KeptEvents>::default();
    let (recorder, sender) = Recorder::new("node-controller", events.clone());
    let running = tokio::spawn(sender);
    let mut doomed = (*ready("True")).clone();
    doomed.meta.uid = Uid::parse("uid-of-a");
    let bench = Bench::new(Arc::new(doomed), [], 0, recorder).await;
    bench.pass().await;
    deliver_deletion(&bench.nodes, &ObjectKey { namespace: Str::from(""), name: "a".into() });
    bench.pass().await;
    tokio::time::sleep(SECOND * 30).await;
    running.abort();
    let events = events.bodies();
    let removing = events.iter().find(|event| event.contains("RemovingNode"));
    assert!(removing.is_some_and(|event| event.contains("uid-of-a")), "{events:?}");
}
