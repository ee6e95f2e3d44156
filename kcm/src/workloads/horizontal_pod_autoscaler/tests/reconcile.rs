//! Whole reconciles against a simulated API server, with a cache that lags behind the controller's writes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use kinds::meta::ObjectKey;
use kinds::schema::{
    cross_version_object_reference as reference, horizontal_pod_autoscaler as fields,
    horizontal_pod_autoscaler_spec as spec, object_meta,
};
use kinds::wire::{Put, find};
use kinds::{Decode, HorizontalPodAutoscaler, Kind, Pod, Sections, envelope};
use runtime::discovery::Discovery;
use runtime::events::Recorder;
use runtime::lock::lock;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::scale::Scales;
use runtime::store::{Store, by_namespace};
use runtime::testing::{NoEvents, clients, deliver, filled_store, writer_of};
use runtime::worker::{Outcome, Reconcile as _};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::super::counts::Counts;
use super::super::measure::{Measuring, MetricResponses};
use super::super::replicas::StartupPeriods;
use super::super::sync::{Autoscalers, Settings};
use super::GATES;
use crate::pods::indexes::by_label;

/// The number of pods of the target at first; more than the maximum.
const REPLICAS: i32 = 5;
const MAX_REPLICAS: i32 = 3;
const PERIOD: Duration = Duration::from_secs(15);

fn context() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

fn key() -> ObjectKey {
    ObjectKey::new("ns", "web")
}

/// Returns the autoscaler of the Deployment `web` at a version, with this status.
fn object(version: u64, status: &[u8]) -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(fields::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "web");
        meta.put_str(object_meta::NAMESPACE, "ns");
        meta.put_str(object_meta::UID, "autoscaler");
        meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
    });
    object.put_message(fields::SPEC, |message| {
        message.put_message(spec::SCALE_TARGET_REF, |target| {
            target.put_str(reference::KIND, "Deployment");
            target.put_str(reference::NAME, "web");
            target.put_str(reference::API_VERSION, "apps/v1");
        });
        message.put_int(spec::MAX_REPLICAS, MAX_REPLICAS.into());
    });
    object.put_bytes(fields::STATUS, status);
    object
}

fn autoscaler(object: &[u8]) -> HorizontalPodAutoscaler {
    HorizontalPodAutoscaler::decode(&context(), object).expect("well-formed")
}

fn discovery_of(path: &str) -> Value {
    let deployments = json!({
        "resource": "deployments", "responseKind": {"kind": "Deployment"}, "scope": "Namespaced", "verbs": ["get"],
        "subresources": [{"subresource": "scale", "responseKind": {"kind": "Scale"}, "verbs": ["get", "update"]}],
    });
    let apps = json!({
        "metadata": {"name": "apps"},
        "versions": [{"version": "v1", "freshness": "Current", "resources": [deployments]}],
    });
    let core = json!({"metadata": {}, "versions": [{"version": "v1", "freshness": "Current", "resources": []}]});
    json!({ "items": [if path.ends_with("/apis") { apps } else { core }] })
}

/// The simulated API server.
#[derive(Default)]
struct Server {
    /// All requests except discovery.
    requests: Vec<String>,
    /// The desired number of pods of the target, once it was written.
    replicas: Option<i32>,
    /// The autoscaler after the last write of its status.
    written: Vec<u8>,
    /// Writes of the status fail.
    refuses_status: bool,
}

impl Server {
    fn respond(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        if !path.contains("/namespaces/") {
            return (200, discovery_of(path).to_string().into_bytes());
        }
        self.requests.push(format!("{method} {}", path.rsplit('/').next().unwrap_or_default()));
        if path.ends_with("/scale") {
            if method == "PUT" {
                let scale: Value = serde_json::from_slice(body).expect("JSON");
                self.replicas = scale["spec"]["replicas"].as_i64().and_then(|replicas| replicas.try_into().ok());
            }
            let replicas = self.replicas.unwrap_or(REPLICAS);
            let scale = json!({
                "metadata": {"uid": "web", "resourceVersion": "1"},
                "spec": {"replicas": replicas}, "status": {"replicas": replicas, "selector": "app=web"},
            });
            return (200, scale.to_string().into_bytes());
        }
        if self.refuses_status {
            return (500, Vec::new());
        }
        let sent = envelope::unwrap(body).expect("protobuf");
        self.written = object(2, find(sent, fields::STATUS));
        (200, envelope::wrap(&HorizontalPodAutoscaler::RESOURCE, &self.written))
    }
}

/// The controller, whose cache contains version 1 of the autoscaler.
struct Bench {
    reconciler: Autoscalers,
    server: Arc<Mutex<Server>>,
    metrics: Metrics,
}

impl Bench {
    async fn new() -> Self {
        let server = Arc::<Mutex<Server>>::default();
        let responding = server.clone();
        let clients = clients(move |method, path, body| lock(&responding).respond(method.as_str(), path, body)).await;
        let autoscalers = Arc::new(filled_store(context(), vec![], []));
        deliver(&autoscalers, autoscaler(&object(1, &[])));
        let pods: Store<Pod> = filled_store(context(), vec![by_label(), by_namespace()], []);
        let counts = Arc::new(Counts::new(autoscalers.clone()));
        let metrics = Metrics::default();
        metrics.collect(counts.clone());
        let discovery = Arc::new(Discovery::new(clients.clone()));
        let writer = writer_of(clients);
        let reconciler = Autoscalers {
            autoscalers,
            pods: Arc::new(pods),
            measuring: Measuring {
                responses: MetricResponses::new(writer.clone(), Duration::ZERO),
                scales: Scales { discovery, watched: Default::default(), writer },
                startup_periods: StartupPeriods {
                    cpu_initialization: Duration::ZERO,
                    initial_readiness: Duration::ZERO,
                },
                gates: GATES,
            },
            overlaps: Default::default(),
            memories: Default::default(),
            scales: Default::default(),
            recorder: Recorder::new("controllermanager", Arc::new(NoEvents)).0,
            queue: Queue::new(QueueOptions::named("test")),
            counts,
            clock: Arc::new(|| Timestamp::from_second(1_000).expect("in range")),
            settings: Settings { period: PERIOD, window: Duration::ZERO, tolerance: 0.1 },
            start: Instant::now(),
            interner: Default::default(),
        };
        Self { reconciler, server, metrics }
    }

    async fn reconcile(&self) -> Outcome {
        self.reconciler.reconcile(&key()).await.expect("no error")
    }

    /// Returns the requests since the last call.
    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.server).requests)
    }

    /// Returns the number of reconciles that were skipped because of the cache.
    fn skips(&self) -> String {
        let name = "horizontal_pod_autoscaler_controller_stale_sync_skips_total";
        let text = self.metrics.text();
        let line = text.lines().find(|line| line.starts_with(name)).expect("the metric");
        line.rsplit(' ').next().unwrap_or_default().to_owned()
    }
}

#[tokio::test]
async fn autoscaler_waits_until_the_cache_contains_its_written_status() {
    let bench = Bench::new().await;
    assert_eq!(bench.reconcile().await, Outcome::RequeueAfter(PERIOD));
    assert_eq!(bench.requests(), ["GET scale", "PUT scale", "PUT status"]);

    assert_eq!(bench.reconcile().await, Outcome::WaitingForCache);
    assert!(bench.reconciler.queue.is_empty(), "it is requeued by the cache, not by time");
    let written = autoscaler(&lock(&bench.server).written);
    deliver(&bench.reconciler.autoscalers, written);
    assert_eq!(bench.reconciler.queue.len(), 1, "the delivered status requeues it");
    // A target within its bounds is scaled by metrics only, and this autoscaler has none.
    bench.reconciler.reconcile(&key()).await.expect_err("no metric");
    assert!(!bench.requests().contains(&"PUT scale".to_owned()), "the target was scaled before");
}

#[tokio::test]
async fn rescale_is_counted_although_the_status_cannot_be_written() {
    let bench = Bench::new().await;
    lock(&bench.server).refuses_status = true;
    bench.reconciler.reconcile(&key()).await.expect_err("the status is not written");
    assert_eq!(lock(&bench.server).replicas, Some(MAX_REPLICAS));
    let line =
        "horizontal_pod_autoscaler_controller_reconciliations_total{action=\"scale_down\",error=\"internal\"} 1.0";
    let text = bench.metrics.text();
    assert!(text.lines().any(|found| found == line), "{text}");
}

#[tokio::test]
async fn nothing_is_requested_or_decided_on_an_outdated_autoscaler() {
    let bench = Bench::new().await;
    bench.reconcile().await;
    bench.requests();
    // A user scales the target: the decision about it needs the status that this controller wrote.
    lock(&bench.server).replicas = Some(MAX_REPLICAS + 1);
    for _ in 0..3 {
        assert_eq!(bench.reconcile().await, Outcome::WaitingForCache);
    }
    assert_eq!(bench.requests(), Vec::<String>::new());
    assert_eq!(bench.skips(), "3.0");
    let written = autoscaler(&lock(&bench.server).written);
    deliver(&bench.reconciler.autoscalers, written);
    bench.reconcile().await;
    assert!(bench.requests().contains(&"PUT scale".to_owned()));
    assert_eq!(lock(&bench.server).replicas, Some(MAX_REPLICAS));
}
