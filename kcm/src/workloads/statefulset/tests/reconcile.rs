//! Whole reconciles against a simulated API server.

use std::sync::Mutex;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kinds::meta::{ObjectKey, OwnerRef};
use kinds::pod::Claims;
use kinds::schema::{controller_revision, label_selector, persistent_volume_claim, pod_template_spec};
use kinds::statefulset::Retention;
use kinds::{ControllerRevision, PersistentVolumeClaim, envelope};
use runtime::events::Recorder;
use runtime::handover::Handover;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Store, by_controller, by_namespace};
use runtime::testing::{KeptEvents, deliver, deliver_deletion, filled_store, writer};
use runtime::worker::{Outcome, Reconcile as _, ReconcileError};

use super::*;
use crate::pods::creation_gate::CreationGate;
use crate::workloads::statefulset::state::StatefulSets;

/// The resourceVersion of all objects in responses.
const WRITTEN: u64 = 9;

/// The revision of the template.
const REVISION: &str = "web-b";

fn context() -> Decode {
    Decode { interner: Arc::default(), sections: StatefulSet::TEMPLATE }
}

fn put_meta(object: &mut Vec<u8>, name: &str, version: u64) {
    object.put_message(stateful_set::METADATA, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, name);
        meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
        meta.put_int(object_meta::GENERATION, 3);
    });
}

fn decoded<K: Kind>(name: &str) -> K {
    let mut object = Vec::new();
    put_meta(&mut object, name, 7);
    K::decode(&context(), &object).expect("well-formed")
}

/// A StatefulSet that was created in this leadership term, whose pods have one claim each, and whose status names its
/// revision.
fn web(replicas: i32) -> StatefulSet {
    let mut object = Vec::new();
    put_meta(&mut object, "web", 7);
    object.put_message(stateful_set::SPEC, |spec| {
        spec.put_int(stateful_set_spec::REPLICAS, replicas.into());
        spec.put_message(stateful_set_spec::SELECTOR, |selector| {
            selector.put_entry(label_selector::MATCH_LABELS, "app", "web");
        });
        spec.put_message(stateful_set_spec::TEMPLATE, |template| {
            template.put_message(pod_template_spec::METADATA, |meta| meta.put_entry(object_meta::LABELS, "app", "web"));
        });
        spec.put_message(stateful_set_spec::VOLUME_CLAIM_TEMPLATES, |claim| {
            claim.put_message(persistent_volume_claim::METADATA, |meta| meta.put_str(object_meta::NAME, "data"));
        });
    });
    let mut set = StatefulSet::decode(&context(), &object).expect("well-formed");
    set.rolling = Some(Rolling::default());
    set.meta.created = Time(i64::MAX);
    set.status.observed_generation = 3;
    set.status.current_revision = REVISION.into();
    set.status.update_revision = REVISION.into();
    set
}

fn owner() -> OwnerRef {
    web(1).controller_ref()
}

/// Returns a ready pod with all that its ordinal needs.
fn complete(ordinal: i32) -> Pod {
    let interner = Interner::default();
    let mut pod = pod(ordinal, REVISION);
    let labels = pod.meta.labels.iter().cloned().chain([("app".into(), "web".into())]);
    pod.meta.labels = interner.labels(labels.collect());
    pod.meta.owners = interner.owners(&[owner()]);
    let claim = format!("data-web-{ordinal}");
    pod.claims = Some(Box::new(Claims { volumes: [("data".into(), claim.as_str().into())].into() }));
    pod
}

fn claim(ordinal: i32) -> PersistentVolumeClaim {
    decoded(&format!("data-web-{ordinal}"))
}

fn revision() -> ControllerRevision {
    let mut object = Vec::new();
    put_meta(&mut object, REVISION, 7);
    object.put_int(controller_revision::REVISION, 1);
    let mut revision = ControllerRevision::decode(&context(), &object).expect("well-formed");
    let interner = Interner::default();
    revision.meta.labels = interner.labels(vec![("app".into(), "web".into())]);
    revision.meta.owners = interner.owners(&[owner()]);
    revision
}

/// Returns the method of a request, and the part of its path that begins with the resource.
fn short(method: &http::Method, path: &str) -> String {
    let path = path.rsplit_once("/namespaces/ns/").map_or(path, |(_, end)| end);
    format!("{method} {}", path.split('?').next().unwrap_or_default())
}

/// Returns the response to a request: the object that its path names.
fn response(request: &str) -> Vec<u8> {
    let name = request.split('/').nth(1).unwrap_or("new");
    let mut object = Vec::new();
    put_meta(&mut object, name, WRITTEN);
    envelope::wrap(&Pod::RESOURCE, &object)
}

/// The controller with its caches, and the requests that it sends.
struct Bench {
    reconciler: StatefulSets,
    requests: Arc<Mutex<Vec<String>>>,
    events: Arc<KeptEvents>,
    sender: BoxFuture<'static, ()>,
}

impl Bench {
    /// A controller whose requests succeed, except those in `refusals`, which get the status code given there.
    async fn new(
        set: StatefulSet,
        pods: Vec<Pod>,
        claims: Vec<PersistentVolumeClaim>,
        refusals: &[(&'static str, u16)],
    ) -> Self {
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let sent = requests.clone();
        let refusals = refusals.to_vec();
        let writer = writer(move |method, path| {
            let request = short(method, path);
            let refusal = refusals.iter().find(|(refused, _)| *refused == request).map(|(_, code)| *code);
            let body = match refusal {
                Some(409) if method == http::Method::POST => {
                    br#"{"kind": "Status", "code": 409, "reason": "AlreadyExists"}"#.to_vec()
                }
                Some(403) => br#"{"kind": "Status", "code": 403, "reason": "Forbidden"}"#.to_vec(),
                Some(_) => Vec::new(),
                None => response(&request),
            };
            sent.lock().expect("the requests").push(request);
            (refusal.unwrap_or(200), body)
        })
        .await;
        let events = Arc::<KeptEvents>::default();
        let (recorder, sender) = Recorder::new("statefulset-controller", events.clone());
        let store = |pods| -> Arc<Store<Pod>> { Arc::new(filled_store(context(), vec![by_controller()], pods)) };
        let reconciler = StatefulSets {
            sets: Arc::new(filled_store(context(), vec![by_namespace()], [set])),
            pods: store(pods),
            claims: Arc::new(filled_store(context(), vec![], claims)),
            revisions: Arc::new(filled_store(context(), vec![by_controller()], [revision()])),
            writer,
            recorder,
            consistency: Arc::default(),
            memory: Default::default(),
            queue: Queue::new(QueueOptions::named("test")),
            clock: Arc::new(now),
            gates: GATES,
            debouncer: Default::default(),
            unavailable: Arc::default(),
            gate: CreationGate::new(Arc::new(filled_store(context(), vec![], []))),
            handover: Handover::without_former_owners(),
            refusals: Default::default(),
            revision_refusals: Default::default(),
        };
        Self { reconciler, requests, events, sender: sender.boxed() }
    }

    async fn reconcile(&self) -> Result<Outcome, ReconcileError> {
        self.reconciler.reconcile(&ObjectKey::new("ns", "web")).await
    }

    /// Returns the requests except those for the status, and the events, each without its error.
    async fn end(self) -> (Vec<String>, Vec<String>) {
        self.reconciler.recorder.close();
        self.sender.await;
        let mut requests = self.requests.lock().expect("the requests").clone();
        requests.retain(|request| !request.ends_with("/status"));
        let events = self.events.bodies();
        let line = |body: &String| {
            let event: serde_json::Value = serde_json::from_str(body).expect("JSON");
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            let message = text("message");
            let message = message.split(" error: ").next().unwrap_or_default();
            format!("{} {} {message}", text("type"), text("reason"))
        };
        (requests, events.iter().map(line).collect())
    }
}

#[tokio::test]
async fn each_write_of_a_pod_and_its_claim_is_recorded() {
    let (make_claim, make_pod) = ("POST persistentvolumeclaims", "POST pods");
    let claim_made = "Normal SuccessfulCreate Create Claim data-web-0 Pod web-0 in StatefulSet web success";
    let claim_refused = "Warning FailedCreate Create Claim data-web-0 for Pod web-0 in StatefulSet web failed";
    let pod_made = "Normal SuccessfulCreate Create Pod web-0 in StatefulSet web successful";
    let pod_refused = "Warning FailedCreate Create Pod web-0 in StatefulSet web failed";
    let pod_changed = "Normal SuccessfulUpdate Update Pod web-0 in StatefulSet web successful";
    let change_refused = "Warning FailedUpdate Update Pod web-0 in StatefulSet web failed";
    let pod_deleted = "Normal SuccessfulDelete Delete Pod web-0 in StatefulSet web successful";
    let deletion_refused = "Warning FailedDelete Delete Pod web-0 in StatefulSet web failed";
    let mut ending_claim = claim(0);
    ending_claim.meta.deletion = Time(NOW);
    let without_name = || {
        let mut pod = complete(0);
        let labels = pod.meta.labels.iter().filter(|(key, _)| &**key != identity::NAME_LABEL).cloned();
        pod.meta.labels = Interner::default().labels(labels.collect());
        pod
    };
    let without_volume = || Pod { claims: None, ..complete(0) };
    let pending = || Pod { ready: false, phase: Phase::Pending, ..complete(0) };
    let (read_pod, put_pod) = ("GET pods/web-0", "PUT pods/web-0");
    for (name, replicas, pods, claims, refusals, is_ok, requests, events) in [
        (
            "a pod and its claim",
            1,
            vec![],
            vec![],
            vec![],
            true,
            vec![make_claim, make_pod],
            vec![claim_made, pod_made],
        ),
        ("a pod with an old claim", 1, vec![], vec![claim(0)], vec![], true, vec![make_pod], vec![pod_made]),
        ("a pod that exists", 1, vec![], vec![claim(0)], vec![(make_pod, 409)], false, vec![make_pod], vec![]),
        (
            "a claim that is refused",
            1,
            vec![],
            vec![],
            vec![(make_claim, 500)],
            false,
            vec![make_claim],
            vec![claim_refused, pod_refused],
        ),
        ("a claim that is being deleted", 1, vec![], vec![ending_claim], vec![], false, vec![], vec![pod_refused]),
        (
            "a pod that is refused",
            1,
            vec![],
            vec![],
            vec![(make_pod, 500)],
            false,
            vec![make_claim, make_pod],
            vec![claim_made, pod_refused],
        ),
        ("nothing to do", 1, vec![complete(0)], vec![claim(0)], vec![], true, vec![], vec![]),
        (
            "another identity",
            1,
            vec![without_name()],
            vec![claim(0)],
            vec![],
            true,
            vec![read_pod, put_pod],
            vec![pod_changed],
        ),
        (
            "an identity that is refused",
            1,
            vec![without_name()],
            vec![claim(0)],
            vec![(put_pod, 500)],
            false,
            vec![read_pod, put_pod],
            vec![change_refused],
        ),
        (
            "a pod without its volume",
            1,
            vec![without_volume()],
            vec![claim(0)],
            vec![],
            true,
            vec![read_pod, put_pod],
            vec![pod_changed],
        ),
        ("a lost claim", 1, vec![pending()], vec![], vec![], true, vec![make_claim], vec![claim_made]),
        (
            "a pod without its volume and claim",
            1,
            vec![without_volume()],
            vec![],
            vec![],
            true,
            vec![make_claim, read_pod, put_pod],
            vec![claim_made, pod_changed],
        ),
        (
            "a pod without its volume, and a claim that is refused",
            1,
            vec![without_volume()],
            vec![],
            vec![(make_claim, 500)],
            false,
            vec![make_claim],
            vec![claim_refused, change_refused],
        ),
        (
            "a lost claim that is refused",
            1,
            vec![pending()],
            vec![],
            vec![(make_claim, 500)],
            false,
            vec![make_claim],
            vec![claim_refused],
        ),
        (
            "a surplus pod",
            0,
            vec![complete(0)],
            vec![claim(0)],
            vec![],
            true,
            vec!["DELETE pods/web-0"],
            vec![pod_deleted],
        ),
        (
            "a deletion that is refused",
            0,
            vec![complete(0)],
            vec![claim(0)],
            vec![("DELETE pods/web-0", 500)],
            false,
            vec!["DELETE pods/web-0"],
            vec![deletion_refused],
        ),
    ] {
        let bench = Bench::new(web(replicas), pods, claims, &refusals).await;
        let outcome = bench.reconcile().await;
        assert_eq!(outcome.is_ok(), is_ok, "{name}: {outcome:?}");
        let (sent, recorded) = bench.end().await;
        assert_eq!((sent, recorded), (owned(&requests), owned(&events)), "{name}");
    }
}

fn owned(lines: &[&str]) -> Vec<String> {
    lines.iter().map(|line| (*line).to_owned()).collect()
}

#[tokio::test]
async fn set_that_is_being_deleted_neither_creates_nor_adopts() {
    let mut ending = web(3);
    ending.meta.deletion = Time(NOW);
    let mut orphan = complete(1);
    orphan.meta.owners = Interner::default().owners(&[]);
    let bench = Bench::new(ending, vec![complete(0), orphan], vec![], &[]).await;
    let _ = bench.reconcile().await;
    let (sent, recorded) = bench.end().await;
    assert_eq!((sent, recorded), (vec![], vec![]));
}

#[tokio::test]
async fn orphans_with_a_name_of_the_set_are_adopted_and_members_without_its_labels_released() {
    let interner = Interner::default();
    let orphan = |ordinal| {
        let mut pod = complete(ordinal);
        pod.meta.owners = interner.owners(&[]);
        pod
    };
    let mut other = orphan(2);
    other.meta.name = "db-2".into();
    let mut foreign = orphan(3);
    foreign.meta.labels = interner.labels(vec![("app".into(), "other".into())]);
    let mut released = complete(4);
    released.meta.labels = interner.labels(vec![("app".into(), "other".into())]);
    let mut renamed = complete(5);
    renamed.meta.name = "db-5".into();
    let pods = vec![complete(0), orphan(1), other, foreign, released, renamed];
    let bench = Bench::new(web(5), pods, vec![claim(0), claim(1)], &[]).await;
    let _ = bench.reconcile().await;
    let (mut sent, _) = bench.end().await;
    sent.retain(|request| request.starts_with("PATCH"));
    sent.sort();
    assert_eq!(sent, ["PATCH pods/db-5", "PATCH pods/web-1", "PATCH pods/web-4"]);
}

#[tokio::test]
async fn revision_without_a_controller_is_adopted() {
    let bench = Bench::new(web(1), vec![complete(0)], vec![claim(0)], &[]).await;
    let mut orphan = revision();
    orphan.meta.owners = Interner::default().owners(&[]);
    orphan.meta.version = 8;
    deliver(&bench.reconciler.revisions, orphan);
    bench.reconcile().await.expect("it is adopted");
    let (mut sent, _) = bench.end().await;
    sent.retain(|request| request.starts_with("PATCH"));
    assert_eq!(sent, [format!("PATCH controllerrevisions/{REVISION}")]);
}

#[tokio::test]
async fn claims_get_their_owners_and_missing_ones_are_created() {
    let deleted = Retention { when_deleted: true, when_scaled: false };
    let (read, write) = ("GET persistentvolumeclaims/data-web-0", "PUT persistentvolumeclaims/data-web-0");
    let named = |retention: Retention, owners: &[OwnerRef]| {
        let mut set = web(1);
        let mut claim = claim(0);
        set.retention = retention;
        claim.meta.owners = Interner::default().owners(owners);
        (set, claim)
    };
    for (name, (set, claim), is_missing, expected) in [
        ("kept", named(Retention::default(), &[]), false, vec![]),
        ("deleted with the set", named(deleted, &[]), false, vec![read, write]),
        ("owned already", named(deleted, &[owner()]), false, vec![]),
        ("missing", named(deleted, &[]), true, vec!["POST persistentvolumeclaims"]),
    ] {
        let claims = if is_missing { vec![] } else { vec![claim] };
        let phase = if is_missing { Phase::Pending } else { Phase::Running };
        let pod = Pod { phase, ready: !is_missing, ..complete(0) };
        let bench = Bench::new(set, vec![pod], claims, &[]).await;
        bench.reconcile().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let (sent, _) = bench.end().await;
        assert_eq!(sent, owned(&expected), "{name}");
    }
}

#[tokio::test]
async fn claim_of_another_controller_is_reported_while_its_pod_is_created_or_pending() {
    let foreign = OwnerRef { kind: "Database".into(), name: "db".into(), uid: Uid::parse("db"), ..owner() };
    let conflict = "Warning ConflictingController PersistentVolumeClaim data-web-0 has a conflicting OwnerReference that \
                    acts as a manging controller, the retention policy is ignored for this claim";
    let created = "Normal SuccessfulCreate Create Pod web-0 in StatefulSet web successful";
    let deleted = Retention { when_deleted: true, when_scaled: false };
    let (pending, running) = (Pod { ready: false, phase: Phase::Pending, ..complete(0) }, complete(0));
    for (name, parallel, retention, pods, expected) in [
        ("no pod", false, deleted, vec![], vec![conflict, created]),
        ("pending", false, deleted, vec![pending.clone()], vec![conflict]),
        ("pending, parallel", true, deleted, vec![pending.clone()], vec![conflict]),
        ("pending, and claims are kept", false, Retention::default(), vec![pending], vec![]),
        ("running", false, deleted, vec![running], vec![]),
    ] {
        let (mut set, mut claim) = (web(1), claim(0));
        set.retention = retention;
        set.parallel = parallel;
        claim.meta.owners = Interner::default().owners(std::slice::from_ref(&foreign));
        let bench = Bench::new(set, pods, vec![claim], &[]).await;
        bench.reconcile().await.unwrap_or_else(|error| panic!("{name}: {error:?}"));
        let (sent, recorded) = bench.end().await;
        assert_eq!(recorded, owned(&expected), "{name}");
        assert!(sent.iter().all(|request| request == "POST pods"), "{name}: {sent:?}");
    }
}

#[tokio::test]
async fn set_waits_until_its_cache_contains_the_created_pod() {
    let bench = Bench::new(web(1), vec![], vec![claim(0)], &[]).await;
    bench.reconcile().await.expect("a pod is created");
    let outcome = bench.reconcile().await;
    assert!(matches!(outcome, Ok(Outcome::WaitingForCache)), "{outcome:?}");
    let mut made = complete(0);
    made.meta.version = WRITTEN;
    deliver(&bench.reconciler.pods, made);
    let mut reported = web(1);
    reported.meta.version = WRITTEN;
    deliver(&bench.reconciler.sets, reported);
    bench.reconcile().await.expect("the pod exists");
    let (sent, _) = bench.end().await;
    assert_eq!(sent, ["POST pods"]);
}

#[tokio::test]
async fn status_write_that_fails_is_repeated() {
    let put = "PUT statefulsets/web/status";
    for (code, expected) in [(500, "failed"), (409, "computed again"), (404, "done, as the set is deleted")] {
        let bench = Bench::new(web(1), vec![complete(0)], vec![claim(0)], &[(put, code)]).await;
        let outcome = match bench.reconcile().await {
            Err(_) => "failed",
            Ok(Outcome::RequeueWithBackoff) => "computed again",
            Ok(Outcome::Done) => "done, as the set is deleted",
            Ok(_) => "another outcome",
        };
        assert_eq!(outcome, expected, "{code}");
        let requests = bench.requests.lock().expect("the requests").clone();
        assert_eq!(requests, [put], "{code}");
    }
}

#[tokio::test]
async fn backoff_of_a_refused_pod_continues_while_the_pod_before_it_flaps() {
    let bench = Bench::new(web(2), vec![complete(0)], vec![claim(0), claim(1)], &[("POST pods", 403)]).await;
    let key = ObjectKey::new("ns", "web");
    let refusals = &bench.reconciler.refusals;
    bench.reconcile().await.expect_err("the pod is refused");
    assert_eq!(refusals.count(&key), 1);
    let mut reported = web(2);
    reported.meta.version = WRITTEN;
    deliver(&bench.reconciler.sets, reported);
    for (version, ready) in [(8, false), (9, true), (10, false)] {
        let mut flapping = complete(0);
        flapping.meta.version = version;
        flapping.ready = ready;
        deliver(&bench.reconciler.pods, flapping);
        let _ = bench.reconcile().await;
        assert!(refusals.count(&key) > 0, "forgotten while the first pod is ready: {ready}");
    }
}

/// If a StatefulSet is deleted during a reconcile, the watch handles the deletion before the reconcile records the
/// revision.
#[tokio::test]
async fn last_reconcile_removes_the_recorded_revision_of_a_deleted_statefulset() {
    let set = web(1);
    let (meta, template) = (set.meta.clone(), set.template.clone().expect("a template"));
    let bench = Bench::new(set, vec![complete(0)], vec![claim(0)], &[]).await;
    bench.reconcile().await.expect("no request fails");
    let recall = || bench.reconciler.memory.recall(&meta, &template);
    assert_eq!(recall().as_deref(), Some(REVISION));
    deliver_deletion(&bench.reconciler.sets, &meta.key());
    // The version of the deletion, which the cache reaches before the last reconcile.
    let mut other = web(1);
    other.meta.name = "other".into();
    other.meta.version = WRITTEN;
    deliver(&bench.reconciler.sets, other);
    bench.reconcile().await.expect("there is no such StatefulSet");
    assert_eq!(recall(), None);
}
