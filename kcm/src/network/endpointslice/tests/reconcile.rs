//! Reconciles of Services: without slices of their own, with failed writes, and with delayed removals.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::Method;
use kinds::endpoint_slice::FROM_PODS;
use kinds::ip::Family;
use kinds::meta::ObjectKey;
use kinds::schema::object_meta;
use kinds::service::ServiceType;
use kinds::wire::Put as _;
use kinds::{Decode, EndpointSlice, Interner, Kind, Node, Pod, Sections, Service, Time, envelope};
use runtime::events::Recorder;
use runtime::lock::lock;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store};
use runtime::testing::{KeptEvents, NoEvents, deliver_undecodable, filled_store, object, writer};
use runtime::worker::{Outcome, Reconcile as _};

use super::super::sync::EndpointSlices;
use super::builders::{Fixture, service};
use crate::network::service_endpoints::slice_keys::by_service;
use crate::network::service_endpoints::slice_writes::SliceWrites;
use crate::pods::creation_gate::CreationGate;
use crate::pods::indexes::by_label;

fn filled<K: Kind>(indexes: Vec<Index<K>>, records: impl IntoIterator<Item = K>) -> Arc<Store<K>> {
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    Arc::new(filled_store(decode, indexes, records))
}

async fn controller(service: Service) -> EndpointSlices {
    EndpointSlices {
        services: filled(Vec::new(), [service]),
        pods: filled(Vec::new(), []),
        nodes: filled(Vec::new(), []),
        writes: SliceWrites {
            slices: filled(vec![by_service()], []),
            writer: writer(|method, path| panic!("{method} {path} is sent")).await,
            consistency: Arc::default(),
            own: Arc::default(),
            queue: Queue::new(QueueOptions::named("test")),
            manager: "test",
            delay: Duration::ZERO,
            gate: CreationGate::new(filled(Vec::new(), [])),
            refusals: Default::default(),
            pace: Default::default(),
        },
        recorder: Recorder::new("endpointslice-controller", Arc::new(NoEvents)).0,
        triggers: Default::default(),
        topology: Arc::default(),
        debouncer: Default::default(),
        metrics: Arc::default(),
        max_endpoints: 100,
        stranded: Arc::default(),
        compared: Default::default(),
        former: Default::default(),
    }
}

#[tokio::test]
async fn service_without_own_slices_is_not_requeued_by_changes_of_nodes() {
    let external = Service { kind: ServiceType::ExternalName, ..service() };
    let unselected = Service { selector: Interner::default().labels(Vec::new()), ..service() };
    for (name, service) in [("ExternalName", external), ("no selector", unselected)] {
        let key = service.meta.key();
        let controller = controller(service).await;
        controller.topology.set(&key, [(Family::V4, [("a".into(), 1)].into())].into());
        lock(&controller.stranded).insert(key.clone());
        controller.reconcile(&key).await.expect(name);
        assert!(!controller.topology.is_allocated(&key), "{name}");
        assert!(lock(&controller.stranded).is_empty(), "{name}");
    }
}

#[tokio::test]
async fn recorded_writes_of_a_deleted_service_are_forgotten() {
    let controller = controller(service()).await;
    let [deleted, other_namespace, other] = [("ns", "deleted"), ("other", "deleted"), ("ns", "other")]
        .map(|(namespace, name)| ObjectKey::new(namespace, name));
    let writes = &controller.writes;
    for key in [&deleted, &other_namespace, &other] {
        writes.consistency.wrote(key, &writes.slices, 9);
        assert!(!writes.caught_up(key), "{key}: the cache does not contain the write yet");
    }
    controller.reconcile(&deleted).await.expect("the Service does not exist");
    assert!(writes.caught_up(&deleted), "a new Service with this name does not wait");
    assert!(!writes.caught_up(&other_namespace) && !writes.caught_up(&other));
}

#[tokio::test]
async fn surplus_slices_of_a_service_that_is_being_deleted_are_updated_and_deleted() {
    let mut ending = service();
    ending.meta.deletion = Time(1);
    let remaining = Fixture::new(service(), [1]).pods.into_values().collect();
    let (controller, requests) = controller_of(ending, [1, 2, 3, 4], remaining, |_| None).await;
    let outcome = controller.reconcile(&service().meta.key()).await.expect("nothing is refused");
    assert!(matches!(outcome, Outcome::Done), "{outcome:?}");
    assert_eq!(*lock(&requests), [Method::PUT, Method::DELETE]);
}

const FORBIDDEN: &str = r#"{"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}"#;

/// Returns the controller of a Service whose only slice is full. One pod of the slice is no longer ready, and one
/// further pod needs a second slice. The server refuses one method with this code and body. The requests' methods are
/// recorded.
async fn controller_of_a_full_slice(
    refused: Method,
    code: u16,
    body: &'static str,
) -> (EndpointSlices, Arc<Mutex<Vec<Method>>>) {
    let mut pods: Vec<_> = Fixture::new(service(), [1, 2, 3]).pods.into_values().collect();
    pods[0].ready = false;
    controller_of(service(), [1, 2], pods, move |method| (*method == refused).then(|| (code, body.as_bytes().to_vec())))
        .await
}

/// Returns the controller of a Service with these pods, whose slices have at most two endpoints each, of the pods with
/// the numbers `in_slices`. `refuse` returns the status and body of a response that is not a success. The requests'
/// methods are recorded.
async fn controller_of(
    service: Service,
    in_slices: impl IntoIterator<Item = u8>,
    mut pods: Vec<Pod>,
    refuse: impl Fn(&Method) -> Option<(u16, Vec<u8>)> + Send + Sync + 'static,
) -> (EndpointSlices, Arc<Mutex<Vec<Method>>>) {
    let key = service.meta.key();
    let mut fixture = Fixture::new(service.clone(), in_slices);
    fixture.max_endpoints = 2;
    fixture.settle();
    let slices: Vec<EndpointSlice> = fixture.slices.iter().map(|slice| (**slice).clone()).collect();
    pods.iter_mut().for_each(|pod| pod.meta.labels = service.selector.clone());
    let mut node: Node = object("node", Sections::default());
    node.meta.namespace = "".into();
    let requests = Arc::<Mutex<Vec<Method>>>::default();
    let sent = requests.clone();
    let writer = writer(move |method, _| {
        lock(&sent).push(method.clone());
        if let Some(refusal) = refuse(method) {
            return refusal;
        }
        let mut written = Vec::new();
        written.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, "web-001");
            meta.put_str(object_meta::RESOURCE_VERSION, "2");
        });
        (200, envelope::wrap(&EndpointSlice::RESOURCE, &written))
    });
    let mut controller = controller(service).await;
    controller.pods = filled(vec![by_label()], pods);
    controller.nodes = filled(Vec::new(), [node]);
    controller.writes.slices = filled(vec![by_service()], slices);
    controller.writes.writer = writer.await;
    controller.writes.manager = FROM_PODS;
    controller.max_endpoints = 2;
    lock(&controller.compared).insert(key);
    (controller, requests)
}

#[tokio::test(start_paused = true)]
async fn endpoints_are_updated_while_the_creation_of_another_slice_is_refused() {
    let key = service().meta.key();
    let (controller, requests) = controller_of_a_full_slice(Method::POST, 403, FORBIDDEN).await;
    controller.reconcile(&key).await.expect_err("the creation is refused");
    assert_eq!(std::mem::take(&mut *lock(&requests)), [Method::POST, Method::PUT]);
    // The cache does not contain the update, and this second controller has no record of it.
    let (mut later, requests) = controller_of_a_full_slice(Method::POST, 403, FORBIDDEN).await;
    later.writes.refusals = controller.writes.refusals;
    let outcome = later.reconcile(&key).await.expect("nothing else is refused");
    assert!(matches!(outcome, Outcome::RequeueAfter(left) if !left.is_zero()), "{outcome:?}");
    assert_eq!(std::mem::take(&mut *lock(&requests)), [Method::PUT], "the creation waits for its backoff");
    assert_eq!(later.writes.refusals.count(&key), 1, "an update does not end the backoff");
}

#[tokio::test(start_paused = true)]
async fn each_failed_write_is_reported_and_counts_as_an_error() {
    const CONFLICT: &str = r#"{"kind": "Status", "code": 409, "reason": "Conflict", "message": "it was modified"}"#;
    const MISSING: &str = r#"{"kind": "Status", "code": 404, "reason": "NotFound", "message": "it was deleted"}"#;
    let of_update = |why: &str| format!("failed to update web-001 EndpointSlice for Service ns/web: {why}");
    for (refused, code, refusal, message) in [
        (Method::PUT, 409, CONFLICT, of_update("it was modified")),
        (Method::PUT, 404, MISSING, of_update("it was deleted")),
        (Method::POST, 403, FORBIDDEN, "failed to create EndpointSlice for Service ns/web: no".to_owned()),
    ] {
        let (mut controller, _) = controller_of_a_full_slice(refused, code, refusal).await;
        let events = Arc::<KeptEvents>::default();
        let (recorder, sender) = Recorder::new("endpoint-slice-controller", events.clone());
        controller.recorder = recorder;
        let metrics = Metrics::new();
        metrics.collect(controller.metrics.clone());
        controller.reconcile(&service().meta.key()).await.expect_err("a write is refused");
        controller.recorder.close();
        sender.await;
        let bodies = events.bodies();
        assert_eq!(bodies.len(), 1, "{bodies:?}");
        let expected = format!("Error updating Endpoint Slices for Service ns/web: {message}");
        assert!(bodies[0].contains("FailedToUpdateEndpointSlices") && bodies[0].contains(&expected), "{bodies:?}");
        let text = metrics.text();
        let syncs = |result: &str, count| format!("endpoint_slice_controller_syncs{{result=\"{result}\"}} {count}");
        assert!(text.contains(&syncs("error", 1)) && text.contains(&syncs("success", 0)), "{text}");
    }
}

/// Returns a pod of the Service on a node that is not in the cache.
fn stranded_pod() -> Pod {
    let mut pod = Fixture::new(service(), [4]).pods.remove(&4).expect("a pod");
    pod.meta.labels = service().selector;
    pod.node = "gone".into();
    pod
}

/// Upstream: k8s.io/endpointslice, reconciler.go. The pod on the missing node is reported, with the failed write if one
/// failed.
#[tokio::test(start_paused = true)]
async fn pods_on_missing_nodes_are_reported_together_with_a_failed_write() {
    for (refused, starts) in [
        (
            Method::PUT,
            "[skipping Pod web-4 for Service ns/web: Node gone Not Found, failed to update web-001 EndpointSlice",
        ),
        (Method::PATCH, "skipping Pod web-4 for Service ns/web: Node gone Not Found"),
    ] {
        let (mut controller, _) = controller_of_a_full_slice(refused, 409, "{}").await;
        let mut pods: Vec<_> = controller.pods.all().iter().map(|pod| (**pod).clone()).collect();
        pods.push(stranded_pod());
        controller.pods = filled(vec![by_label()], pods);
        let failed = controller.reconcile(&service().meta.key()).await.expect_err("a pod is left out").message;
        assert!(failed.starts_with(starts), "{failed}");
    }
}

#[tokio::test(start_paused = true)]
async fn service_waits_only_for_undecodable_nodes_of_its_pods() {
    // (undecodable node, requests)
    for (undecodable, sent) in [("other", &[Method::POST, Method::PUT][..]), ("gone", &[])] {
        let (mut controller, requests) = controller_of_a_full_slice(Method::DELETE, 409, "{}").await;
        let mut pods: Vec<_> = controller.pods.all().iter().map(|pod| (**pod).clone()).collect();
        pods.push(stranded_pod());
        controller.pods = filled(vec![by_label()], pods);
        deliver_undecodable(&controller.nodes, ObjectKey::new("", undecodable));
        let failed = controller.reconcile(&service().meta.key()).await.expect_err("the node is missing").message;
        assert_eq!(*lock(&requests), sent, "{undecodable}: {failed}");
    }
}

#[tokio::test(start_paused = true)]
async fn delayed_removal_is_counted_when_it_is_written() {
    let key = service().meta.key();
    let mut fixture = Fixture::new(service(), [1, 2]);
    fixture.pods.values_mut().for_each(|pod| pod.meta.labels = service().selector);
    fixture.pods.get_mut(&1).expect("a pod").ready = false;
    fixture.settle();
    fixture.pods.remove(&1);
    let (mut controller, requests) = controller_of_a_full_slice(Method::POST, 403, FORBIDDEN).await;
    controller.writes.slices = filled(vec![by_service()], fixture.slices.iter().map(|slice| (**slice).clone()));
    controller.pods = filled(vec![by_label()], fixture.pods.into_values());
    let metrics = Metrics::new();
    metrics.collect(controller.metrics.clone());
    for _ in 0..3 {
        let outcome = controller.reconcile(&key).await.expect("nothing is refused");
        assert!(matches!(outcome, Outcome::RequeueAfter(_)), "{outcome:?}");
    }
    assert!(lock(&requests).is_empty() && !metrics.text().contains("per_sync_count"), "{}", metrics.text());
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(controller.reconcile(&key).await, Ok(Outcome::Done));
    assert_eq!(std::mem::take(&mut *lock(&requests)), [Method::PUT]);
    let text = metrics.text();
    for line in [
        "endpoint_slice_controller_endpoints_removed_per_sync_sum{} 1.0",
        "endpoint_slice_controller_endpoints_removed_per_sync_count{} 1",
        "endpoint_slice_controller_endpointslices_changed_per_sync_count{topology=\"Disabled\",traffic_distribution=\"\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}
