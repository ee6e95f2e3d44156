//! Whole reconciles against a simulated API server.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use http::Method;
use jiff::Timestamp;
use kinds::job::{Action, ExitCodes, FailurePolicy, FailureRule, JobStatus, RuleCondition, UncountedPods};
use kinds::meta::ObjectKey;
use kinds::pod::Phase;
use kinds::schema::{list_meta, object_meta};
use kinds::selector::Selector;
use kinds::template::Template;
use kinds::wire::Put as _;
use kinds::{Interner, Job, Kind, Pod, Time, Uid, envelope};
use runtime::events::Recorder;
use runtime::handover::Handover;
use runtime::lock::lock;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Store, by_controller};
use runtime::testing::{NoEvents, clients, deliver, filled_store, response, writer_of};
use runtime::worker::Reconcile as _;

use super::builders::{NOW, a_job, a_pod, context, with};
use crate::pods::control::PodControl;
use crate::pods::creation_gate::CreationGate;
use crate::workloads::job::metrics::JobMetrics;
use crate::workloads::job::sync::Jobs;

/// The resourceVersion of the cached Job and of all objects in responses.
const VERSION: u64 = 9;

/// The exit code that the failure policy of [`job`] ignores.
const IGNORED_EXIT_CODE: i32 = 42;

/// Returns a started Job that creates pods.
fn job(parallelism: i32) -> Job {
    with(a_job(parallelism, Some(10)), |job| {
        job.meta.version = VERSION;
        job.selector = Selector::of_labels(&Interner::default(), [("job", "pi")]);
        job.template =
            Some(Template { labels: [("job".into(), "pi".into())].into(), meta: [].into(), spec: [].into() });
        let codes = ExitCodes { container: None, within: Some(true), values: vec![IGNORED_EXIT_CODE] };
        let rules = vec![FailureRule { action: Action::Ignore, on: RuleCondition::ExitCodes(codes) }];
        job.failure_policy = Some(FailurePolicy { rules });
        job.status.start = Time(NOW - 100);
        job.status.ready = Some(0);
        job.status.terminating = Some(0);
        job.status.uncounted = Some(Default::default());
    })
}

fn pod(name: &str, phase: Phase) -> Pod {
    let mut pod = a_pod(name, phase, None);
    pod.meta.labels = Interner::default().labels(vec![("job".into(), "pi".into())]);
    pod.ready = phase == Phase::Running;
    let ending = pod.ending.as_mut().expect("an ending");
    ending.finished = Time(NOW);
    ending.exit_codes = vec![("main".into(), if phase == Phase::Failed { IGNORED_EXIT_CODE } else { 0 })];
    pod
}

/// Returns the object that a path names.
fn named_object(path: &str) -> Vec<u8> {
    response(&Pod::RESOURCE, "default", path.split('/').nth(1).unwrap_or("new"), VERSION)
}

/// Returns a list with one pod of the Job.
fn list_response() -> Vec<u8> {
    let mut list = Vec::new();
    list.put_message(1, |meta| meta.put_str(list_meta::RESOURCE_VERSION, &VERSION.to_string()));
    list.put_message(2, |object| {
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, "late");
            meta.put_str(object_meta::NAMESPACE, "default");
            meta.put_str(object_meta::UID, "late");
            meta.put_str(object_meta::RESOURCE_VERSION, &VERSION.to_string());
            job(0).controller_ref().put(meta, object_meta::OWNER_REFERENCES);
        });
    });
    envelope::wrap_as("meta.k8s.io/v1", "PartialObjectMetadataList", &list)
}

/// The controller, its clock, and the requests that it sends.
struct Bench {
    controller: Jobs,
    pods: Arc<Store<Pod>>,
    /// The current time, in seconds.
    clock: Arc<AtomicI64>,
    requests: Arc<Mutex<Vec<String>>>,
    /// The written statuses.
    written: Arc<Mutex<Vec<JobStatus>>>,
}

impl Bench {
    /// A controller whose requests succeed.
    async fn new(job: Job, pods: Vec<Pod>, handover: Handover) -> Self {
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let written = Arc::<Mutex<Vec<JobStatus>>>::default();
        let (sent, statuses) = (requests.clone(), written.clone());
        let clients = clients(move |method, path, body| {
            let path = path.split('?').next().unwrap_or_default();
            let path = path.rsplit_once("/namespaces/default/").map_or(path, |(_, end)| end);
            lock(&sent).push(format!("{method} {path}"));
            if path.ends_with("/status") {
                let job = Job::decode(&context(), envelope::unwrap(body).expect("protobuf")).expect("a Job");
                lock(&statuses).push(job.status);
            }
            let is_list = method == Method::GET && (path == "pods" || path.ends_with("/jobs"));
            (200, if is_list { list_response() } else { named_object(path) })
        });
        let jobs = Arc::new(filled_store(context(), vec![], []));
        deliver(&jobs, job);
        let pods: Arc<Store<Pod>> = Arc::new(filled_store(context(), vec![by_controller()], pods));
        let clock = Arc::new(AtomicI64::new(NOW));
        let time = clock.clone();
        let controller = Jobs {
            jobs,
            control: PodControl {
                pods: pods.clone(),
                writer: writer_of(clients.await),
                recorder: Recorder::new("job-controller", Arc::new(NoEvents)).0,
                consistency: Arc::default(),
                gate: CreationGate::new(Arc::new(filled_store(context(), vec![], []))),
            },
            queue: Queue::new(QueueOptions::named("test")),
            clock: Arc::new(move || Timestamp::from_second(time.load(Ordering::Relaxed)).expect("in range")),
            memory: Default::default(),
            debouncer: Default::default(),
            handover,
            refusals: Default::default(),
            clears_start: false,
            scheduling: None,
            tally: Arc::new(JobMetrics::new(&Metrics::new())),
        };
        Self { controller, pods, clock, requests, written }
    }

    /// Returns the requests of a reconcile at this number of seconds after [`NOW`].
    async fn reconcile(&self, seconds: i64) -> Vec<String> {
        self.clock.store(NOW + seconds, Ordering::Relaxed);
        self.controller.reconcile(&ObjectKey::new("default", "pi")).await.expect("no request fails");
        std::mem::take(&mut *lock(&self.requests))
    }
}

/// The counts of the status are written later, because other pods run.
#[tokio::test(start_paused = true)]
async fn ignored_failure_delays_its_replacement_while_other_pods_run() {
    let running = with(job(4), |job| (job.status.active, job.status.ready) = (4, Some(4)));
    let mut pods: Vec<Pod> = ["a", "b", "c"].map(|name| pod(name, Phase::Running)).into();
    pods.push(pod("d", Phase::Failed));
    let bench = Bench::new(running, pods, Handover::without_former_owners()).await;
    assert_eq!(bench.reconcile(0).await, ["PATCH pods/d"]);
    let mut released = pod("d", Phase::Failed);
    released.meta.finalizers = Arc::new([]);
    released.meta.version = VERSION;
    deliver(&bench.pods, released);
    for seconds in [1, 9] {
        assert!(bench.reconcile(seconds).await.is_empty(), "after {seconds} s");
    }
    assert_eq!(bench.reconcile(10).await, ["POST pods", "PUT jobs/pi/status"]);
    assert_eq!(lock(&bench.written).last().map(|status| (status.active, status.failed)), Some((4, 0)));
}

/// The previous leader recorded the pod, and the new leader's cache of pods is older than the pod. Without the
/// comparison, the pod would be counted as one that lost its finalizer, and again once the cache contains it.
#[tokio::test(start_paused = true)]
async fn new_leader_compares_a_job_with_recorded_pods_before_it_counts_them() {
    let recording = with(job(0), |job| {
        job.status.uncounted = Some(UncountedPods { succeeded: vec![], failed: vec![Uid::parse("late")] });
    });
    let bench = Bench::new(recording, vec![], Handover::default()).await;
    let sent = bench.reconcile(0).await;
    assert!(sent.contains(&"GET pods".to_owned()) && lock(&bench.written).is_empty(), "{sent:?}");
    assert!(bench.reconcile(1).await.is_empty(), "the cache does not contain the pod yet");
    let mut late = pod("late", Phase::Failed);
    late.meta.version = VERSION;
    deliver(&bench.pods, late);
    assert_eq!(bench.reconcile(2).await, ["PATCH pods/late", "PUT jobs/pi/status"]);
    assert_eq!(lock(&bench.written).iter().map(|status| status.failed).collect::<Vec<_>>(), [1]);
}
