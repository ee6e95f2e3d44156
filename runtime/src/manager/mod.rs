//! The manager of a process: its watches, leadership, controllers and shutdown.
//!
//! Stores are filled from the start, even while another process leads (warm standby). The workers of a controller start
//! when this process leads and the kinds that the controller reads are listed. At shutdown, workers finish their
//! current keys, events are sent, and the lease is released.

mod long_runs;
mod startup;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use prometheus_client::collector::Collector;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{error, info, warn};

use crate::client::rate::TokenBucket;
use crate::client::{Clients, Identity, ServiceAccountToken};
use crate::diagnostics::{Explainer, FinalizerOwner, ReportedController};
use crate::discovery::Discovery;
use crate::election::{Candidacy, Election, ElectionConfig, ElectionError, Lost};
use crate::events::Recorder;
use crate::fence::Fence;
use crate::metrics::Metrics;
use crate::page::Page;
use crate::queue::{Queue, QueueStats, QueueView, Queues};
use crate::stall::Heartbeat;
use crate::tasks::Tasks;
use crate::watch::{Reads, Registry};
use crate::worker::{Reconcile, WorkCounts, WorkKey, WorkOptions, work};
use crate::write::Writer;
use long_runs::{Views, described, report_long_runs};
use startup::{Start, Waiting, start_workers};

/// Time in which cancelled tasks have to end. A task that blocks its thread does not end.
const CANCELLATION_TIMEOUT: Duration = Duration::from_secs(2);

/// Options of a manager.
#[derive(Debug, Clone)]
pub struct ManagerOptions {
    /// The only namespace to watch and manage; `None`: all.
    pub namespace: Option<String>,
    /// The lease to hold while working; `None`: start working immediately.
    pub election: Option<ElectionConfig>,
    /// Each controller writes under its own service account in `kube-system`, instead of the process's identity.
    pub service_accounts: bool,
    /// Requests per second of each writer; the lists and watches of caches are not limited by it.
    pub qps: f32,
    /// Burst of requests of each writer.
    pub burst: u32,
    /// Minimum time between the starts of two controllers.
    pub start_interval: Duration,
    /// Maximum time for workers and events at shutdown; zero: unlimited. The release of the lease, which follows, may
    /// take up to the renew deadline.
    pub shutdown_timeout: Duration,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            namespace: None,
            election: None,
            service_accounts: false,
            qps: 20.0,
            burst: 30,
            start_interval: Duration::ZERO,
            shutdown_timeout: Duration::from_secs(10),
        }
    }
}

/// The reason why a manager ended.
#[derive(Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// A shutdown was requested.
    Shutdown,
    /// Another process leads, or may lead: this process must exit immediately.
    LeaseLost(Lost),
    /// A defect ended a watch: its store is out of date, and this process must exit.
    WatchEnded,
    /// A defect stopped the threads of the controllers: this process must exit.
    Stalled,
}

/// Waits until a watch ends, which happens only because of a defect.
async fn wait_for_ended_watch(watches: &mut JoinSet<()>) {
    match watches.join_next().await {
        Some(ended) => error!(panicked = ended.is_err(), "watch ended: this is a defect"),
        None => std::future::pending().await,
    }
}

/// Minimum duration of the runs that are logged when the controllers stall: one of them probably blocks a thread.
const MIN_REPORTED_RUN: Duration = Duration::from_secs(60);

/// Waits until the threads of the controllers no longer run tasks, which happens only because of a defect.
async fn wait_for_stall(heartbeat: &Heartbeat, views: &Views) {
    let stall = heartbeat.stalled().await;
    error!(%stall, runs = described(views, MIN_REPORTED_RUN), "controllers stalled: this is a defect");
}

/// A controller of the manager.
struct RegisteredController {
    name: &'static str,
    /// Starts its workers.
    start: Start,
    /// Closes its queue.
    close: Box<dyn Fn() + Send + Sync>,
    stats: Arc<dyn QueueStats>,
    view: Arc<dyn QueueView>,
    workers: usize,
    counts: Arc<WorkCounts>,
    /// The kinds that must be listed before its workers start; `None`: all.
    reads: Option<Reads>,
}

/// Controllers that share stores, connections and leadership.
///
/// All tasks run on the runtime in which the manager was created: watches, workers, events. [`Manager::run`] itself,
/// which renews the Lease, may be polled on another one, so that it does not depend on the threads of the controllers.
/// In this case the other runtime must be the
/// [`ConnectOptions::control_runtime`](crate::client::ConnectOptions::control_runtime) of the clients.
pub struct Manager {
    runtime: Handle,
    heartbeat: Heartbeat,
    clients: Arc<Clients>,
    registry: Arc<Registry>,
    discovery: Arc<Discovery>,
    options: ManagerOptions,
    election: Option<Election>,
    fence: Fence,
    recorders: Vec<Recorder>,
    /// The tasks that send events.
    events: JoinSet<()>,
    controllers: Vec<RegisteredController>,
    metrics: Arc<Metrics>,
    pages: Vec<Page>,
}

impl Manager {
    /// Creates a manager without controllers. Must run inside the tokio runtime of its tasks.
    ///
    /// # Errors
    /// When the configuration of the election is invalid.
    pub fn new(clients: Arc<Clients>, registry: Registry, options: ManagerOptions) -> Result<Self, ElectionError> {
        let (election, fence) = match &options.election {
            Some(config) => {
                let (election, fence) = Election::new(clients.control.clone(), config.clone())?;
                (Some(election), fence)
            }
            None => (None, Fence::open()),
        };
        Ok(Self {
            runtime: Handle::current(),
            heartbeat: Heartbeat::default(),
            discovery: Arc::new(Discovery::new(clients.clone())),
            clients,
            registry: Arc::new(registry),
            options,
            election,
            fence,
            recorders: Vec::new(),
            events: JoinSet::new(),
            controllers: Vec::new(),
            metrics: Arc::new(Metrics::new()),
            pages: Vec::new(),
        })
    }

    /// Returns the registry of stores.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the discovery of the API server's resources.
    pub fn discovery(&self) -> Arc<Discovery> {
        self.discovery.clone()
    }

    /// Returns the only namespace that is managed; `None`: all.
    pub fn namespace(&self) -> Option<&str> {
        self.options.namespace.as_deref()
    }

    /// Returns the state of this process's leadership, for health and metrics.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Returns the runtime of the controllers' tasks.
    pub fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Returns the heartbeat of the controllers' threads, for the health check.
    pub fn heartbeat(&self) -> &Heartbeat {
        &self.heartbeat
    }

    /// Returns a writer for a controller, by the name of its service account. Each writer has its own rate limit.
    pub fn writer(&self, service_account: &str) -> Writer {
        self.faster_writer(service_account, 1, 1)
    }

    /// Like [`Manager::writer`]; `qps` and `burst` are factors for the other controllers' rate and burst.
    pub fn faster_writer(&self, service_account: &str, qps: u16, burst: u32) -> Writer {
        let (qps, burst) = (self.options.qps * f32::from(qps), self.options.burst.saturating_mul(burst));
        self.writer_with_bucket(self.identity(service_account), self.fence.clone(), TokenBucket::new(qps, burst))
    }

    /// Returns a writer with the process's own identity, even if controllers use service accounts: for objects on which
    /// the service accounts depend.
    pub fn own_writer(&self) -> Writer {
        self.writer_as(Identity::Own, self.fence.clone())
    }

    /// Creates a recorder for events of `component`, written under a controller's service account. Events have a
    /// separate rate limit, so that they never delay the work that they report.
    pub fn recorder(&mut self, component: &'static str, service_account: &str) -> Recorder {
        self.recorder_for(component, self.writer(service_account))
    }

    /// Records `LeaderElection` events on the lease, under the process's own identity.
    pub fn record_leadership(&mut self, component: &'static str) {
        // The fence is always open for these events, because they are recorded when leadership begins and ends.
        let writer = self.writer_as(Identity::Own, Fence::open());
        let recorder = self.recorder_for(component, writer);
        self.election = self.election.take().map(|election| election.recording(recorder));
    }

    /// Adds controllers that wait only for the kinds that they read: the kinds in `declared`, and the kinds whose
    /// stores `start` gets from the registry. Controllers that are added in another way wait for all kinds.
    pub fn add_with_reads(&mut self, declared: Reads, start: impl FnOnce(&mut Self)) {
        self.registry.take_used();
        let first = self.controllers.len();
        start(self);
        let reads = declared.and(self.registry.take_used());
        for controller in &mut self.controllers[first..] {
            controller.reads = Some(reads.clone());
        }
    }

    /// Adds a controller.
    pub fn add<K: WorkKey>(
        &mut self,
        options: WorkOptions,
        queue: Arc<Queue<K>>,
        reconciler: Arc<dyn Reconcile<Key = K>>,
    ) {
        let counts = Arc::new(WorkCounts::default());
        let (closed, stats, view, counted) = (queue.clone(), queue.clone(), queue.clone(), counts.clone());
        self.controllers.push(RegisteredController {
            name: options.name,
            start: Box::new(move |tasks| work(options, &queue, reconciler, &counted, tasks)),
            close: Box::new(move || closed.close()),
            stats,
            view,
            workers: options.workers.max(1),
            counts,
            reads: None,
        });
    }

    /// Adds metrics of a controller.
    pub fn collect(&self, source: impl Collector) {
        self.metrics.collect(source);
    }

    /// Returns the registry of metrics; controllers add their own when they start.
    pub fn metrics(&self) -> &Arc<Metrics> {
        &self.metrics
    }

    /// Returns the names of the controllers.
    pub fn controllers(&self) -> impl Iterator<Item = &'static str> {
        self.controllers.iter().map(|controller| controller.name)
    }

    /// Returns the names of the controllers and the counts of their workers, for metrics.
    pub fn work_counts(&self) -> Vec<(&'static str, Arc<WorkCounts>)> {
        self.controllers.iter().map(|controller| (controller.name, controller.counts.clone())).collect()
    }

    /// Returns the recorders of events, for metrics.
    pub fn recorders(&self) -> &[Recorder] {
        &self.recorders
    }

    /// Returns the clients, for metrics.
    pub fn clients(&self) -> &Clients {
        &self.clients
    }

    /// Returns the metrics of all queues.
    pub fn queues(&self) -> Queues {
        Queues::new(self.controllers.iter().map(|controller| controller.stats.clone()))
    }

    /// Adds a debug page of a controller, served to authorized users. `make` gets the names and values of the query. It
    /// must not block.
    pub fn add_page(
        &mut self,
        path: String,
        media_type: &'static str,
        make: impl Fn(&[(String, String)]) -> String + Send + Sync + 'static,
    ) {
        self.pages.push(Page { path, media_type, make: Arc::new(make) });
    }

    /// Returns the pages that controllers added.
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }

    /// Returns the diagnostics of this process. `kinds` maps a queue name to the kind of its keys; `finalizers` names
    /// the owners of finalizers, the most specific first.
    pub fn explainer(
        &self,
        component: &'static str,
        kinds: Vec<(&'static str, &'static str)>,
        finalizers: Vec<FinalizerOwner>,
    ) -> Explainer {
        let reported = |running: &RegisteredController| ReportedController {
            name: running.name,
            workers: running.workers,
            queue: running.view.clone(),
            counts: running.counts.clone(),
        };
        Explainer {
            component,
            kinds,
            finalizers,
            controllers: self.controllers.iter().map(reported).collect(),
            sources: self.registry.sources(),
            every: self.registry.every_kind_if_any(),
            stores: self.registry.stats(),
            fence: self.fence.clone(),
        }
    }

    /// Starts the watches and the heartbeat on the runtime of the controllers. Starts the reports of long runs and the
    /// candidacy of a coordinated election on the current one.
    fn start_watches(&self) -> JoinSet<()> {
        let mut watches = JoinSet::new();
        let namespace = self.options.namespace.as_deref();
        {
            let _entered = self.runtime.enter();
            self.registry.start(&self.clients, namespace, &mut watches);
            self.registry.start_every_kind(&self.clients, &self.discovery, namespace, &mut watches);
            watches.spawn(self.heartbeat.clone().beat());
        }
        watches.spawn(report_long_runs(self.views()));
        if let Some((config, versions)) = self.options.election.as_ref().and_then(|c| Some((c, c.coordinated.clone()?)))
        {
            // The candidacy is aborted together with the watches.
            watches.spawn(Candidacy::new(self.clients.control.clone(), config, versions).run());
        }
        watches
    }

    /// Runs until `shutdown` completes, the lease is lost, a watch ends because of a defect, or the threads of the
    /// controllers stall. Dropping the future stops everything immediately, like a crash.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) -> ExitReason {
        let mut watches = self.start_watches();
        let (heartbeat, views) = (self.heartbeat.clone(), self.views());
        tokio::pin!(shutdown);
        if let Some(election) = &mut self.election {
            tokio::select! {
                () = election.acquire() => {}
                () = &mut shutdown => return self.shut_down(Tasks::default()).await,
                () = wait_for_ended_watch(&mut watches) => return ExitReason::WatchEnded,
                () = wait_for_stall(&heartbeat, &views) => return ExitReason::Stalled,
            }
        }
        let workers = Tasks::default();
        let (starts, interval) = (self.take_starts(), self.options.start_interval);
        let (registry, runtime) = (self.registry.clone(), self.runtime.clone());
        let hold = async {
            match &mut self.election {
                Some(election) => election.hold().await,
                None => std::future::pending().await,
            }
        };
        let ended = tokio::select! {
            lost = hold => Some(ExitReason::LeaseLost(lost)),
            () = &mut shutdown => None,
            () = wait_for_ended_watch(&mut watches) => Some(ExitReason::WatchEnded),
            () = wait_for_stall(&heartbeat, &views) => Some(ExitReason::Stalled),
            () = start_workers(&registry, starts, interval, (&runtime, &workers)) => None,
        };
        match ended {
            Some(ended) => ended,
            None => {
                tokio::select! {
                    ended = self.shut_down(workers) => ended,
                    () = wait_for_stall(&heartbeat, &views) => ExitReason::Stalled,
                }
            }
        }
    }

    fn views(&self) -> Views {
        self.controllers.iter().map(|controller| (controller.name, controller.view.clone())).collect()
    }

    /// Removes and returns the start of each controller, with the kinds that it waits for.
    fn take_starts(&mut self) -> Vec<Waiting> {
        let starts = self.controllers.iter_mut().map(|running| Waiting {
            name: running.name,
            reads: running.reads.clone(),
            start: std::mem::replace(&mut running.start, Box::new(|_| {})),
        });
        starts.collect()
    }

    /// Shuts down in order: stops the workers, sends the queued events, and releases the lease.
    async fn shut_down(mut self, workers: Tasks) -> ExitReason {
        let longest = self.options.shutdown_timeout;
        let deadline = Instant::now() + if longest.is_zero() { Duration::from_secs(u32::MAX.into()) } else { longest };
        for controller in &self.controllers {
            (controller.close)();
        }
        let hold = async {
            match &mut self.election {
                Some(election) => election.hold().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            finished = timeout_at(deadline, workers.finished()) => {
                if finished.is_err() {
                    warn!(left = workers.len(), timeout = ?longest, "workers did not finish in time; cancelling them");
                }
            }
            // Workers may finish their keys only as long as this process leads.
            lost = hold => warn!(left = workers.len(), ?lost, "lost the leader lease during the shutdown; cancelling workers"),
        }
        if timeout(CANCELLATION_TIMEOUT, workers.shutdown()).await.is_err() {
            // The Lease is not released: the run may continue until the process ends.
            error!(left = workers.len(), "workers block their threads: ending without them");
            return ExitReason::Stalled;
        }
        for controller in &self.controllers {
            let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
            let counts = &controller.counts;
            info!(
                controller = controller.name,
                succeeded = count(&counts.succeeded),
                failed = count(&counts.failed),
                panicked = count(&counts.panicked),
                waiting_for_cache = count(&counts.waiting_for_cache),
                "controller stopped"
            );
        }
        self.election.iter().for_each(Election::resign);
        self.recorders.iter().for_each(Recorder::close);
        if timeout_at(deadline, async { while self.events.join_next().await.is_some() {} }).await.is_err() {
            warn!("not all events could be sent in time");
            if timeout(CANCELLATION_TIMEOUT, self.events.shutdown()).await.is_err() {
                return ExitReason::Stalled;
            }
        }
        if let Some(election) = self.election.take() {
            election.release().await;
        }
        ExitReason::Shutdown
    }

    fn identity(&self, service_account: &str) -> Identity {
        if self.options.service_accounts {
            Identity::ServiceAccount(Arc::new(ServiceAccountToken::new(self.clients.control.clone(), service_account)))
        } else {
            Identity::Own
        }
    }

    fn writer_as(&self, identity: Identity, fence: Fence) -> Writer {
        self.writer_with_bucket(identity, fence, TokenBucket::new(self.options.qps, self.options.burst))
    }

    fn writer_with_bucket(&self, identity: Identity, fence: Fence, bucket: TokenBucket) -> Writer {
        Writer::new(self.clients.clone(), identity, Arc::new(bucket), fence)
    }

    fn recorder_for(&mut self, component: &'static str, writer: Writer) -> Recorder {
        let (recorder, sender) = Recorder::new(component, Arc::new(writer));
        self.events.spawn(sender);
        self.recorders.push(recorder.clone());
        recorder
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::future::{BoxFuture, FutureExt as _};
    use tokio::time::sleep;

    use super::*;
    use crate::election::simulation::{LeaseServer, candidate};
    use crate::queue::QueueOptions;
    use crate::testing;
    use crate::watch::Builder;
    use crate::worker::{Outcome, ReconcileError};

    /// Longer than a Lease lasts without a renewal.
    const LONG_RECONCILE: Duration = Duration::from_secs(60);

    /// A reconcile that takes [`LONG_RECONCILE`], and then records whether this process may still write.
    struct SlowReconcile {
        fence: Fence,
        may_write_at_end: Mutex<Option<bool>>,
    }

    impl Reconcile for SlowReconcile {
        type Key = String;
        fn reconcile<'a>(&'a self, _: &'a String) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
            async {
                sleep(LONG_RECONCILE).await;
                *self.may_write_at_end.lock().expect("the result") = Some(self.fence.holds());
                Ok(Outcome::Done)
            }
            .boxed()
        }
    }

    /// Runs a manager that leads on `server`, and requests its shutdown while a reconcile runs. Returns true if the
    /// process could write at the end of the reconcile; `None` if the reconcile was cancelled.
    async fn shut_down_during_reconcile(server: &Arc<LeaseServer>) -> Option<bool> {
        let clients = testing::clients(|_, _, _| (500, Vec::new())).await;
        // The time for workers is unlimited.
        let options = ManagerOptions { shutdown_timeout: Duration::ZERO, ..ManagerOptions::default() };
        let mut manager = Manager::new(clients, Builder::default().build(), options).expect("a manager");
        let (election, fence) = candidate(server, "us");
        manager.election = Some(election);
        manager.fence = fence.clone();
        let reconciler = Arc::new(SlowReconcile { fence, may_write_at_end: Mutex::default() });
        let queue = Queue::new(QueueOptions::named("test"));
        queue.add("key".to_owned());
        manager.add(WorkOptions { name: "test", workers: 1 }, queue, reconciler.clone());
        let ended = manager.run(sleep(Duration::from_secs(5))).await;
        assert_eq!(ended, ExitReason::Shutdown);
        *reconciler.may_write_at_end.lock().expect("the result")
    }

    #[tokio::test(start_paused = true)]
    async fn lease_is_renewed_until_workers_have_finished() {
        let server = LeaseServer::new();
        assert_eq!(shut_down_during_reconcile(&server).await, Some(true));
        assert_eq!(server.holder(), "", "the Lease was not released");
    }

    #[tokio::test(start_paused = true)]
    async fn workers_are_cancelled_when_the_lease_is_lost_during_the_shutdown() {
        let server = LeaseServer::new();
        let other_leads = async {
            sleep(Duration::from_secs(20)).await;
            let mut lease = server.lease();
            lease.spec.as_mut().expect("a spec").holder_identity = Some("other".to_owned());
            server.put(Some(lease));
        };
        let (may_write_at_end, ()) = tokio::join!(shut_down_during_reconcile(&server), other_leads);
        assert_eq!(may_write_at_end, None, "the reconcile continued without the Lease");
        assert_eq!(server.holder(), "other");
    }
}
