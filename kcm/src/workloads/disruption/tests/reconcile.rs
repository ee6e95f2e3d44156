//! Whole reconciles of budgets against a simulated API server.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use kinds::meta::ObjectKey;
use kinds::schema::{replica_set, replication_controller, stateful_set};
use kinds::{Deployment, ReplicaSet, ReplicationController, StatefulSet, envelope};
use runtime::client::Clients;
use runtime::debounce::StatusDebouncer;
use runtime::discovery::Discovery;
use runtime::events::Recorder;
use runtime::queue::{Queue, QueueOptions};
use runtime::scale::Scales;
use runtime::store::{Store, by_namespace};
use runtime::testing::{KeptEvents, NoEvents, clients, filled_store, writer_of};
use runtime::worker::{Outcome, Reconcile as _, ReconcileError};
use serde_json::Value;

use super::super::owners::{DesiredPods, Owners};
use super::super::sync::Budgets;
use super::*;
use crate::pods::indexes::by_label;

const CONFLICT: u16 = 409;

fn context() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

fn reference(api_version: &str, kind: &str, name: &str) -> OwnerRef {
    OwnerRef {
        api_version: api_version.into(),
        kind: kind.into(),
        name: name.into(),
        uid: Uid::parse(name),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

/// Returns a pod with this controller; it is ready if `is_ready`.
fn member(name: &str, owner: Option<&OwnerRef>, is_ready: bool) -> Pod {
    let mut pod: Pod = decode(pod_fields::METADATA, name);
    pod.ready = is_ready;
    pod.phase = Phase::Running;
    pod.meta.owners = Interner::default().owners(owner.map_or(&[], std::slice::from_ref));
    pod
}

/// Returns the resources that the simulated API server serves: kinds with a scale, a kind without a scale, a kind with
/// another scale, and a kind whose definition was created late.
fn discovery_of(path: &str, has_late: bool) -> Value {
    let resource = |plural: &str, kind: &str, scale: Option<&str>| {
        let scale =
            scale.map(|kind| json!([{"subresource": "scale", "responseKind": {"kind": kind}, "verbs": ["get"]}]));
        json!({
            "resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": ["get"],
            "subresources": scale.unwrap_or_default(),
        })
    };
    let group = |name: &str, resources: &[Value]| {
        json!({
            "metadata": {"name": name},
            "versions": [{"version": "v1", "freshness": "Current", "resources": resources}],
        })
    };
    let groups = if path.ends_with("/api") {
        vec![group("", &[resource("pods", "Pod", None)])]
    } else {
        let fleets = [
            resource("fleets", "Fleet", Some("Scale")),
            resource("boxes", "Box", None),
            resource("ladders", "Ladder", Some("Rungs")),
        ];
        let late = [resource("latecomers", "Latecomer", Some("Scale"))];
        vec![
            group("apps", &[resource("replicasets", "ReplicaSet", Some("Scale"))]),
            group("example.com", &fleets),
            group("late.example.com", if has_late { &late } else { &[] }),
        ]
    };
    json!({ "items": groups })
}

/// Returns the response of the API server to a request for the scale of the object with this path.
fn scale_of(path: &str) -> (u16, Value) {
    let name = path.trim_end_matches("/scale").rsplit('/').next().unwrap_or_default();
    match name {
        "fleet" | "late" => (200, json!({"metadata": {"uid": name}, "spec": {"replicas": 10}})),
        "set" => (200, json!({"metadata": {"uid": "set"}, "spec": {"replicas": 11}})),
        "replaced" => (200, json!({"metadata": {"uid": "other"}, "spec": {"replicas": 12}})),
        _ => (404, json!({"kind": "Status", "code": 404, "reason": "NotFound"})),
    }
}

/// The content of the caches.
#[derive(Clone, Default)]
struct Caches {
    pods: Vec<Pod>,
    replication_controllers: Vec<ReplicationController>,
    replica_sets: Vec<ReplicaSet>,
    deployments: Vec<Deployment>,
    stateful_sets: Vec<StatefulSet>,
}

impl Caches {
    fn with_set(mut self, name: &str, replicas: i32, above: Option<&OwnerRef>) -> Self {
        let mut set: ReplicaSet = decode(replica_set::METADATA, name);
        set.replicas = replicas;
        set.meta.owners = Interner::default().owners(above.map_or(&[], std::slice::from_ref));
        self.replica_sets.push(set);
        self
    }

    fn with_controller(mut self, name: &str, replicas: i32) -> Self {
        let mut controller: ReplicationController = decode(replication_controller::METADATA, name);
        controller.set.replicas = replicas;
        self.replication_controllers.push(controller);
        self
    }

    fn with_deployment(mut self, name: &str, replicas: i32) -> Self {
        let mut found: Deployment = decode(replica_set::METADATA, name);
        found.replicas = replicas;
        self.deployments.push(found);
        self
    }

    fn with_stateful_set(mut self, name: &str, replicas: i32) -> Self {
        let mut set: StatefulSet = decode(stateful_set::METADATA, name);
        set.replicas = replicas;
        self.stateful_sets.push(set);
        self
    }

    /// Adds `count` pods of a controller, of which `ready` are ready.
    fn with_pods(mut self, owner: Option<&OwnerRef>, count: usize, ready: usize) -> Self {
        let first = self.pods.len();
        self.pods.extend((0..count).map(|at| member(&format!("pod-{}", first + at), owner, at < ready)));
        self
    }

    fn owners(self, clients: Arc<Clients>) -> Owners {
        Owners {
            replication_controllers: Arc::new(filled_store(context(), vec![], self.replication_controllers)),
            replica_sets: Arc::new(filled_store(context(), vec![], self.replica_sets)),
            deployments: Arc::new(filled_store(context(), vec![], self.deployments)),
            stateful_sets: Arc::new(filled_store(context(), vec![], self.stateful_sets)),
            scales: Scales {
                discovery: Arc::new(Discovery::new(clients.clone())),
                watched: Default::default(),
                writer: writer_of(clients),
            },
        }
    }
}

/// The controller with its caches, and the written statuses.
struct Bench {
    reconciler: Budgets,
    written: Arc<Mutex<Vec<BudgetStatus>>>,
    /// True if the API server serves the kind that is defined late.
    has_late: Arc<AtomicBool>,
    /// Number of requests for discovery.
    discoveries: Arc<AtomicUsize>,
}

impl Bench {
    /// A controller whose status writes get the status code `code`.
    async fn new(budget: PodDisruptionBudget, caches: Caches, code: u16) -> Self {
        let written = Arc::<Mutex<Vec<BudgetStatus>>>::default();
        let (has_late, discoveries) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (puts, late, read) = (written.clone(), has_late.clone(), discoveries.clone());
        let clients = clients(move |method, path, body| match method.as_str() {
            "GET" if path.ends_with("/scale") => {
                let (code, scale) = scale_of(path);
                (code, scale.to_string().into_bytes())
            }
            "GET" => {
                read.fetch_add(1, Ordering::SeqCst);
                (200, discovery_of(path, late.load(Ordering::SeqCst)).to_string().into_bytes())
            }
            _ => {
                let object = envelope::unwrap(body).expect("protobuf");
                let budget = PodDisruptionBudget::decode(&context(), object).expect("well-formed");
                puts.lock().expect("the writes").push(budget.status);
                let refusal = json!({"kind": "Status", "code": code, "reason": "Conflict"}).to_string().into_bytes();
                (code, if code == CONFLICT { refusal } else { body.to_vec() })
            }
        })
        .await;
        let pods: Arc<Store<Pod>> =
            Arc::new(filled_store(context(), vec![by_namespace(), by_label()], caches.pods.clone()));
        let reconciler = Budgets {
            budgets: Arc::new(filled_store(context(), vec![by_namespace()], [budget])),
            pods,
            owners: caches.owners(clients.clone()),
            writer: writer_of(clients),
            recorder: Recorder::new("controllermanager", Arc::new(NoEvents)).0,
            queue: Queue::new(QueueOptions::named("test")),
            clock: Arc::new(now),
            recorded_events: Default::default(),
            debouncer: StatusDebouncer::default(),
        };
        Self { reconciler, written, has_late, discoveries }
    }

    async fn reconcile(&self) -> Result<Outcome, ReconcileError> {
        self.reconciler.reconcile(&ObjectKey::new("ns", "pdb")).await
    }

    fn written(&self) -> Vec<BudgetStatus> {
        self.written.lock().expect("the writes").clone()
    }

    /// The events of the last reconcile, as text.
    fn events(&self) -> String {
        format!("{:?}", self.reconciler.recorded_events.lock().expect("the events"))
    }
}

/// Returns a budget of all pods of its namespace.
fn of_all(min: Option<IntOrString>, max: Option<IntOrString>) -> PodDisruptionBudget {
    budget(|budget| {
        budget.selector = Selector::All(Default::default());
        budget.min_available = min;
        budget.max_unavailable = max;
    })
}

fn at_least(min: IntOrString) -> PodDisruptionBudget {
    of_all(Some(min), None)
}

fn at_most(max: IntOrString) -> PodDisruptionBudget {
    of_all(None, Some(max))
}

#[tokio::test]
async fn status_counts_pods_and_the_scales_of_their_owners() {
    let int = IntOrString::Int;
    let set = reference("apps/v1", "ReplicaSet", "set");
    let controller = reference("v1", "ReplicationController", "controller");
    let stateful = reference("apps/v1", "StatefulSet", "stateful");
    let fleet = reference("example.com/v1", "Fleet", "fleet");
    let of_set = |replicas| Caches::default().with_set("set", replicas, None);
    let of_controller = |replicas| Caches::default().with_controller("controller", replicas);
    let of_stateful = |replicas| Caches::default().with_stateful_set("stateful", replicas);
    // Of two controllers, 22 pods and this number of ready ones.
    let of_two = |ready: usize| {
        let both = of_controller(11).with_set("set", 11, None);
        both.with_pods(Some(&controller), 11, 5).with_pods(Some(&set), 11, ready - 5)
    };
    for (name, budget, caches, [allowed, healthy, desired, expected]) in [
        ("no pods", at_least(int(3)), Caches::default(), [0, 0, 3, 0]),
        ("too few pods", at_least(int(3)), Caches::default().with_pods(None, 1, 1), [0, 1, 3, 1]),
        ("a spare pod", at_least(int(3)), Caches::default().with_pods(None, 4, 4), [1, 4, 3, 4]),
        ("a spare pod that is not ready", at_least(int(3)), Caches::default().with_pods(None, 4, 3), [0, 3, 3, 4]),
        ("no pods, at most one", at_most(int(1)), Caches::default(), [0, 0, 0, 0]),
        (
            "a pod without controller, at most one",
            at_most(int(1)),
            Caches::default().with_pods(None, 1, 1),
            [0, 1, 0, 0],
        ),
        (
            "a pod without controller, a share",
            at_least(text("28%")),
            Caches::default().with_pods(None, 1, 1),
            [0, 1, 0, 0],
        ),
        ("at most two of seven", at_most(int(2)), of_set(7).with_pods(Some(&set), 1, 1), [0, 1, 5, 7]),
        ("at most two of five", at_most(int(2)), of_set(5).with_pods(Some(&set), 1, 1), [0, 1, 3, 5]),
        ("at most 30% of seven", at_most(text("30%")), of_set(7).with_pods(Some(&set), 1, 1), [0, 1, 4, 7]),
        ("at most 30% of three", at_most(text("30%")), of_set(3).with_pods(Some(&set), 1, 1), [0, 1, 2, 3]),
        ("20% of ten", at_least(text("20%")), of_set(10).with_pods(Some(&set), 1, 1), [0, 1, 2, 10]),
        (
            "more pods than the scale",
            at_least(text("1%")),
            of_controller(1).with_pods(Some(&controller), 2, 2),
            [1, 2, 1, 1],
        ),
        ("a controller without pods", at_least(text("34%")), of_controller(3), [0, 0, 0, 0]),
        ("two pods of three", at_least(text("34%")), of_controller(3).with_pods(Some(&controller), 2, 2), [0, 2, 2, 3]),
        ("all pods of three", at_least(text("34%")), of_controller(3).with_pods(Some(&controller), 3, 3), [1, 3, 2, 3]),
        (
            "another pod of no controller",
            at_least(text("34%")),
            of_controller(3).with_pods(Some(&controller), 3, 3).with_pods(None, 1, 1),
            [2, 4, 2, 3],
        ),
        ("two stateful pods", at_least(text("34%")), of_stateful(3).with_pods(Some(&stateful), 2, 2), [0, 2, 2, 3]),
        ("all stateful pods", at_least(text("34%")), of_stateful(3).with_pods(Some(&stateful), 3, 3), [1, 3, 2, 3]),
        ("two controllers", at_least(text("28%")), of_two(9), [2, 9, 7, 22]),
        ("two controllers, a pod less", at_least(text("28%")), of_two(8), [1, 8, 7, 22]),
        ("two controllers, two pods less", at_least(text("28%")), of_two(7), [0, 7, 7, 22]),
        ("a custom resource", at_most(int(5)), Caches::default().with_pods(Some(&fleet), 4, 4), [0, 4, 5, 10]),
    ] {
        let bench = Bench::new(budget, caches, 200).await;
        let outcome = bench.reconcile().await;
        assert!(matches!(outcome, Ok(Outcome::Done)), "{name}: {outcome:?}");
        let written = bench.written();
        let [status] = &written[..] else { panic!("{name}: {written:?}") };
        let counts = [status.disruptions_allowed, status.current_healthy, status.desired_healthy, status.expected_pods];
        assert_eq!(counts, [allowed, healthy, desired, expected], "{name}");
        let reason = &status.allowed.as_ref().expect("a condition").reason;
        assert_eq!(&**reason, if allowed > 0 { "SufficientPods" } else { "InsufficientPods" }, "{name}");
        assert_eq!(
            bench.events().contains("UnmanagedPods"),
            name.starts_with("a pod without") || name.starts_with("another"),
            "{name}"
        );
        assert_eq!(bench.events().contains("No matching pods found"), healthy == 0, "{name}");
    }
}

#[tokio::test]
async fn owner_counts_by_its_kind_group_and_uid() {
    let above = |api_version: &str, kind: &str| Some(reference(api_version, kind, "above"));
    let set = |api_version: &str| reference(api_version, "ReplicaSet", "set");
    let custom = |kind: &str, name: &str| reference("example.com/v1", kind, name);
    let another = OwnerRef { uid: Uid::parse("another"), ..set("apps/v1") };
    let none = None::<OwnerRef>;
    let missing = "found no controllers for pod \"pod-0\"";
    for (name, owner, above, expected) in [
        ("a ReplicaSet", set("apps/v1"), none.clone(), Ok(5)),
        ("a ReplicaSet of the former group", set("extensions/v1beta1"), none.clone(), Ok(5)),
        ("another group's ReplicaSet", set("invalid/v1"), none.clone(), Err("no matches for kind \"ReplicaSet\"")),
        ("a deleted ReplicaSet", another, none.clone(), Err(missing)),
        ("a ReplicationController", reference("v1", "ReplicationController", "controller"), none.clone(), Ok(6)),
        ("an empty group", reference("/v1", "ReplicationController", "controller"), none.clone(), Ok(6)),
        (
            "another group's ReplicationController",
            reference("apps/v1", "ReplicationController", "controller"),
            none.clone(),
            Err("no matches for kind \"ReplicationController\""),
        ),
        ("a StatefulSet", reference("apps/v1", "StatefulSet", "stateful"), none.clone(), Ok(7)),
        ("the name of a StatefulSet", reference("apps/v1", "ReplicaSet", "stateful"), none.clone(), Err(missing)),
        ("a Deployment", set("apps/v1"), above("apps/v1", "Deployment"), Ok(8)),
        ("a Deployment of the former group", set("apps/v1"), above("extensions/v1", "Deployment"), Ok(8)),
        // Read from the API server, which has another number than the cache.
        ("another group's Deployment", set("extensions/v1"), above("deployment/v1", "Deployment"), Err("no matches")),
        (
            "another group's Deployment, scale of its ReplicaSet",
            set("apps/v1"),
            above("deployment/v1", "Deployment"),
            Ok(11),
        ),
        ("a ReplicaSet owned by another kind", set("apps/v1"), above("extensions/v1", "InvalidKind"), Ok(5)),
        ("a scale", custom("Fleet", "fleet"), none.clone(), Ok(10)),
        ("no object with a scale", custom("Fleet", "deleted"), none.clone(), Err(missing)),
        ("a successor of the owner", custom("Fleet", "replaced"), none.clone(), Err(missing)),
        (
            "a kind without scale",
            custom("Box", "box"),
            none.clone(),
            Err("boxes.example.com does not implement the scale subresource"),
        ),
        (
            "a scale in another form",
            custom("Ladder", "ladder"),
            none,
            Err("ladders.example.com does not implement the scale subresource"),
        ),
    ] {
        let caches = Caches::default()
            .with_set("set", 5, above.as_ref())
            .with_controller("controller", 6)
            .with_stateful_set("stateful", 7)
            .with_deployment("above", 8);
        let bench = Bench::new(at_most(IntOrString::Int(1)), caches, 200).await;
        let desired = bench.reconciler.owners.desired_pods(&[Arc::new(member("pod-0", Some(&owner), true))]).await;
        match (desired, expected) {
            (Ok(desired), Ok(pods)) => assert_eq!(desired, DesiredPods { pods, unmanaged: Vec::new() }, "{name}"),
            (Err(error), Err(message)) => {
                assert!(error.message.contains(message), "{name}: {error:?}");
                assert_eq!(error.transient, message != missing, "{name}: the kind may be served later");
            }
            (found, _) => panic!("{name}: {found:?}"),
        }
    }
}

#[tokio::test]
async fn budget_that_cannot_be_counted_allows_nothing() {
    let unknown = reference("apps.test.io/v1", "TestWorkload", "unknown");
    let invalid = budget(|budget| {
        budget.selector = Selector::Invalid("\"illegal\" is not a valid label selector operator".into());
        budget.min_available = Some(IntOrString::Int(3));
    });
    for (name, budget, caches, event, expected) in [
        (
            "an owner of an unknown kind",
            at_least(text("28%")),
            Caches::default().with_pods(Some(&unknown), 1, 1),
            "CalculateExpectedPodCountFailed",
            Outcome::RequeueWithBackoff,
        ),
        ("an invalid selector", invalid, Caches::default().with_pods(None, 4, 4), "Failed to get pods", Outcome::Done),
    ] {
        let bench = Bench::new(budget, caches, 200).await;
        let outcome = bench.reconcile().await.expect("an outcome");
        assert_eq!(outcome, expected, "{name}");
        assert!(bench.events().contains(event), "{name}: {}", bench.events());
        let written = bench.written();
        let [status] = &written[..] else { panic!("{name}: {written:?}") };
        assert_eq!((status.disruptions_allowed, status.current_healthy, status.expected_pods), (0, 0, 0), "{name}");
        assert_eq!(&*status.allowed.as_ref().expect("a condition").reason, "SyncFailed", "{name}");
    }
}

/// A CustomResourceDefinition may be served only after the pods of its resources exist; no watched object changes then.
#[tokio::test(start_paused = true)]
async fn budget_is_counted_once_the_kind_of_its_owner_is_served() {
    let late = reference("late.example.com/v1", "Latecomer", "late");
    let caches = Caches::default().with_pods(Some(&late), 4, 4);
    let first = Bench::new(at_most(IntOrString::Int(7)), caches.clone(), 200).await;
    assert_eq!(first.reconcile().await.expect("an outcome"), Outcome::RequeueWithBackoff);
    let mut failed = at_most(IntOrString::Int(7));
    failed.status = first.written().pop().expect("a status");
    let bench = Bench::new(failed, caches, 200).await;
    for retry in 0..20 {
        assert_eq!(bench.reconcile().await.expect("an outcome"), Outcome::RequeueWithBackoff, "retry {retry}");
    }
    assert_eq!(bench.written(), [], "the status is known");
    assert_eq!(bench.discoveries.load(Ordering::SeqCst), 2, "retries share the two documents of discovery");
    bench.has_late.store(true, Ordering::SeqCst);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(bench.reconcile().await.expect("an outcome"), Outcome::Done);
    let status = bench.written().pop().expect("a status");
    assert_eq!((status.disruptions_allowed, status.expected_pods), (1, 10));
}

#[tokio::test]
async fn granted_evictions_stay_in_the_status_while_their_pods_exist() {
    let mut budget = at_least(IntOrString::Int(1));
    budget.status.disrupted_pods = [("pod-0", 0), ("pod-1", 180), ("pod-2", 60), ("missing", 0)]
        .map(|(name, ago)| (name.into(), Time(NOW - ago)))
        .into();
    let mut caches = Caches::default().with_pods(None, 3, 3);
    caches.pods[0].meta.deletion = Time(NOW);
    let bench = Bench::new(budget, caches, 200).await;
    let outcome = bench.reconcile().await;
    assert!(matches!(outcome, Ok(Outcome::RequeueAfter(_))), "checked again: {outcome:?}");
    let status = bench.written().pop().expect("a status");
    assert_eq!(status.disrupted_pods, [("pod-2".into(), Time(NOW - 60))]);
    let counts = [status.disruptions_allowed, status.current_healthy, status.desired_healthy, status.expected_pods];
    assert_eq!(counts, [0, 1, 1, 3]);
}

#[tokio::test]
async fn status_is_counted_again_when_an_eviction_was_granted_in_between() {
    let bench = Bench::new(at_least(IntOrString::Int(1)), Caches::default().with_pods(None, 2, 2), CONFLICT).await;
    let outcome = bench.reconcile().await;
    assert!(matches!(outcome, Ok(Outcome::RequeueWithBackoff)), "{outcome:?}");
    assert_eq!(bench.written().len(), 1, "it is not repeated with the same counts");
}

#[tokio::test]
async fn missing_budget_is_not_written() {
    let bench = Bench::new(at_least(text("67%")), Caches::default(), 200).await;
    let outcome = bench.reconciler.reconcile(&ObjectKey::new("ns", "missing")).await;
    assert!(matches!(outcome, Ok(Outcome::Done)), "{outcome:?}");
    assert_eq!(bench.written(), []);
}

/// A budget may be deleted and created again between two reconciles.
#[tokio::test]
async fn budget_that_replaces_another_one_gets_its_own_events() {
    let mut bench = Bench::new(at_least(IntOrString::Int(1)), Caches::default(), 200).await;
    let kept = Arc::<KeptEvents>::default();
    let (recorder, sender) = Recorder::new("controllermanager", kept.clone());
    bench.reconciler.recorder = recorder;
    for uid in ["first-budget", "first-budget", "second-budget", "second-budget"] {
        let mut budget = at_least(IntOrString::Int(1));
        budget.meta.uid = Uid::parse(uid);
        bench.reconciler.budgets = Arc::new(filled_store(context(), vec![by_namespace()], [budget]));
        bench.reconcile().await.expect("an outcome");
    }
    bench.reconciler.recorder.close();
    sender.await;
    let bodies = kept.bodies();
    assert_eq!(bodies.len(), 2, "NoPods, once for each budget: {bodies:?}");
    for (body, uid) in bodies.iter().zip(["first-budget", "second-budget"]) {
        assert!(body.contains("NoPods") && body.contains(uid), "{body}");
    }
}
