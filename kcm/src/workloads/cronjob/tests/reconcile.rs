//! Reconciles of a CronJob whose run exists, but is missing in the status: a process ended after the creation. Also
//! Jobs of other namespaces.

use std::sync::{Arc, Mutex};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::Method;
use jiff::Timestamp;
use kinds::condition::Condition;
use kinds::cronjob::{ActiveJob, Concurrency, CronJobStatus};
use kinds::meta::ObjectKey;
use kinds::{CronJob, Decode, Interner, Job, Kind, Sections, Time, Uid, envelope};
use runtime::events::Recorder;
use runtime::lock::lock;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, Store, by_controller};
use runtime::testing::{KeptEvents, clients, deliver, filled_store, object, response, writer, writer_of};
use runtime::worker::{Outcome, Reconcile as _};

use super::super::sync::CronJobs;
use crate::pods::creation_gate::CreationGate;

/// The time of the run that is due, ten seconds before that of the reconciles.
const SCHEDULED: &str = "2024-01-01T03:00:00Z";

/// The name of the Job of the run that is due.
const RUN: &str = "nightly-28401300";

fn seconds(text: &str) -> Time {
    Time(text.parse::<Timestamp>().expect("a time").as_second())
}

fn context() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

fn filled<K: Kind>(indexes: Vec<Index<K>>, records: impl IntoIterator<Item = K>) -> Arc<Store<K>> {
    Arc::new(filled_store(context(), indexes, records))
}

/// Returns a CronJob that keeps no successful Jobs, with these active ones.
fn cron_job(active: &[&Job]) -> CronJob {
    let mut cron_job: CronJob = object("nightly", Sections::default());
    cron_job.meta.created = seconds("2024-01-01T00:00:30Z");
    cron_job.schedule = "0 3 * * *".into();
    cron_job.time_zone = Some("UTC".into());
    cron_job.successful_limit = Some(0);
    cron_job.status.active = active.iter().map(|job| ActiveJob::of(&job.meta)).collect();
    cron_job
}

/// Returns a running Job of the CronJob.
fn job(name: &str) -> Job {
    let mut job: Job = object(name, Sections::default());
    job.meta.owners = Interner::default().owners(&[cron_job(&[]).controller_ref()]);
    job
}

fn finished(mut job: Job) -> Job {
    job.status.completion = seconds("2024-01-01T03:00:05Z");
    job.status.conditions.push(Condition {
        kind: "Complete".into(),
        status: "True".into(),
        reason: "".into(),
        message: "".into(),
        last_update: Time::default(),
        last_transition: Time::default(),
    });
    job
}

/// The controller, and the requests that it sends.
struct Bench {
    controller: CronJobs,
    requests: Arc<Mutex<Vec<String>>>,
    /// The last written status.
    written: Arc<Mutex<Option<CronJobStatus>>>,
    events: Arc<KeptEvents>,
    sender: BoxFuture<'static, ()>,
}

impl Bench {
    async fn new(cron_job: CronJob, jobs: Vec<Job>) -> Self {
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let written = Arc::<Mutex<Option<CronJobStatus>>>::default();
        let (sent, status) = (requests.clone(), written.clone());
        let clients = clients(move |method, path, body| {
            let path = path.split('?').next().unwrap_or_default();
            let path = path.rsplit_once("/namespaces/ns/").map_or(path, |(_, end)| end);
            lock(&sent).push(format!("{method} {path}"));
            if method == Method::PUT {
                let object = envelope::unwrap(body).expect("protobuf");
                *lock(&status) = Some(CronJob::decode(&context(), object).expect("a CronJob").status);
            }
            let kind = if path.starts_with("jobs") { Job::RESOURCE } else { CronJob::RESOURCE };
            (200, response(&kind, "ns", path.split('/').nth(1).unwrap_or(RUN), 2))
        });
        let events = Arc::<KeptEvents>::default();
        let (recorder, sender) = Recorder::new("cronjob-controller", events.clone());
        let controller = CronJobs {
            cron_jobs: filled(Vec::new(), [cron_job]),
            jobs: filled(vec![by_controller()], jobs),
            writer: writer_of(clients.await),
            recorder,
            consistency: Arc::default(),
            queue: Queue::new(QueueOptions::named("test")),
            clock: Arc::new(|| "2024-01-01T03:00:10Z".parse().expect("a time")),
            skew: Metrics::new().seconds("skew", "help", &[1.0]),
            gate: CreationGate::new(filled(Vec::new(), [])),
            refusals: Default::default(),
        };
        Self { controller, requests, written, events, sender: sender.boxed() }
    }

    /// Returns the requests of a reconcile, and the active Jobs of the status that it writes.
    async fn reconcile(&self) -> (Vec<String>, Option<Vec<String>>) {
        self.controller.reconcile(&ObjectKey::new("ns", "nightly")).await.expect("no request fails");
        let active = lock(&self.written).take().map(|status| {
            let listed = status.active.iter().map(|job| job.name.to_string()).collect();
            if !status.active.is_empty() {
                assert_eq!(status.last_schedule, seconds(SCHEDULED));
            }
            listed
        });
        (std::mem::take(&mut *lock(&self.requests)), active)
    }

    /// Returns the events.
    async fn end(self) -> Vec<String> {
        self.controller.recorder.close();
        self.sender.await;
        let line = |body: String| {
            let event: serde_json::Value = serde_json::from_str(&body).expect("JSON");
            let text = |field: &str| event[field].as_str().unwrap_or_default().to_owned();
            format!("{} {}", text("reason"), text("message"))
        };
        self.events.bodies().into_iter().map(line).collect()
    }
}

/// Upstream: pkg/controller/cronjob, syncCronJob: the name is taken, and the Job is listed as active.
#[tokio::test]
async fn finished_run_of_a_crashed_process_is_listed_and_then_reported() {
    let bench = Bench::new(cron_job(&[]), vec![finished(job(RUN))]).await;
    let (put, delete) = ("PUT cronjobs/nightly/status".to_owned(), format!("DELETE jobs/{RUN}"));
    assert_eq!(bench.reconcile().await, (vec![put.clone()], Some(vec![RUN.to_owned()])));
    let mut listed = cron_job(&[&job(RUN)]);
    listed.status.last_schedule = seconds(SCHEDULED);
    listed.meta.version = 2;
    deliver(&bench.controller.cron_jobs, listed);
    assert_eq!(bench.reconcile().await, (vec![put, delete], Some(Vec::new())));
    let expected = [
        format!("SawCompletedJob Saw completed job: {RUN}, condition: Complete"),
        format!("SuccessfulDelete Deleted job {RUN}"),
    ];
    assert_eq!(bench.end().await, expected);
}

#[tokio::test]
async fn existing_run_is_listed_only_if_it_may_start() {
    let other = || job("nightly-1");
    let (get, put) = ("GET cronjobs/nightly", "PUT cronjobs/nightly/status");
    let unexpected = format!("UnexpectedJob Saw a job that the controller did not create or forgot: {RUN}");
    let unexpected = &*unexpected;
    let busy = "JobAlreadyActive Not starting job because prior execution is running and concurrency policy is Forbid";
    let replaced = "SuccessfulDelete Deleted job nightly-1";
    let replacing = vec![get, "GET jobs/nightly-1", "DELETE jobs/nightly-1", put];
    // (policy, requests, active Jobs of the written status, events)
    for (concurrency, requests, active, events) in [
        (Concurrency::Forbid, vec![get], None, vec![unexpected, busy]),
        (Concurrency::Replace, replacing, Some(vec![RUN]), vec![unexpected, replaced]),
        (Concurrency::Allow, vec![get, put], Some(vec!["nightly-1", RUN]), vec![unexpected]),
    ] {
        let mut given = cron_job(&[&other()]);
        given.concurrency = concurrency;
        let bench = Bench::new(given, vec![other(), job(RUN)]).await;
        let (sent, listed) = bench.reconcile().await;
        assert_eq!(sent, requests, "{concurrency:?}");
        let active = active.map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(listed, active, "{concurrency:?}");
        assert_eq!(bench.end().await, events, "{concurrency:?}");
    }
}

/// A tenant who learns the UID of another tenant's CronJob can write Jobs that refer to that CronJob.
#[tokio::test]
async fn job_of_another_namespace_that_refers_to_the_cronjob_is_not_its_run() {
    let mut foreign = finished(job(RUN));
    foreign.meta.namespace = "tenant".into();
    let bench = Bench::new(cron_job(&[]), vec![foreign]).await;
    let expected = vec!["POST jobs".to_owned(), "PUT cronjobs/nightly/status".to_owned()];
    assert_eq!(bench.reconcile().await, (expected, Some(vec![RUN.to_owned()])));
    assert_eq!(bench.end().await, [format!("SuccessfulCreate Created job {RUN}")]);
}

/// A user who may write the status of a CronJob must not be able to have Jobs of other namespaces deleted.
#[tokio::test]
async fn active_job_of_another_namespace_counts_as_missing() {
    let mut foreign = job("database");
    foreign.meta.namespace = "victim".into();
    foreign.meta.uid = Uid::parse("its-uid");
    let mut given = cron_job(&[&foreign]);
    given.concurrency = Concurrency::Replace;
    let bench = Bench::new(given, Vec::new()).await;
    let (sent, active) = bench.reconcile().await;
    assert_eq!(sent, ["GET jobs/database", "POST jobs", "PUT cronjobs/nightly/status"]);
    assert_eq!(active, Some(vec![RUN.to_owned()]));
    let events = bench.end().await;
    assert_eq!(events[0], "MissingJob Active job went missing: database");
}

/// The active list on the API server has the run, the cached one does not. After the server's storage was restored, the
/// cache seems to contain the server's version: each reconcile sends the request again until the next list.
#[tokio::test]
async fn outdated_active_list_is_read_again_with_backoff() {
    let listed = cron_job(&[&job(RUN)]);
    let body = envelope::wrap(&CronJob::RESOURCE, &listed.status_update(&listed.status));
    for (cached_version, expected) in [(0, Outcome::WaitingForCache), (9, Outcome::RequeueWithBackoff)] {
        let mut bench = Bench::new(cron_job(&[]), vec![job(RUN)]).await;
        let body = body.clone();
        bench.controller.writer = writer(move |_, _| (200, body.clone())).await;
        let mut other = cron_job(&[]);
        other.meta.name = "other".into();
        other.meta.version = cached_version;
        deliver(&bench.controller.cron_jobs, other);
        for _ in 0..2 {
            let outcome = bench.controller.reconcile(&ObjectKey::new("ns", "nightly")).await;
            assert_eq!(outcome.expect("no request fails"), expected);
        }
    }
}
