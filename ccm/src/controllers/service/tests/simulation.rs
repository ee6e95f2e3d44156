//! A simulated cluster for the controller: Services behind a watch that lags, writes that fail, and processes that
//! crash, on top of the mock cloud.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kinds::int_or_string::IntOrString;
use kinds::meta::{Meta, ObjectKey, Time};
use kinds::service::{Balancing, Ingress, ServicePort, ServiceType};
use kinds::{GatedPod, Service, Uid};
use provider_mock::{MockCloud, MockConfig};
use providers::{CloudError, EndpointTarget, LoadBalancers, NodeTarget, async_trait};
use runtime::events::{EventType, ObjectReference};
use runtime::lock::lock;
use runtime::metrics::Metrics;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::Change;
use runtime::tasks::Tasks;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkCounts, WorkOptions, work};

use super::crashing_cloud::{Answers, CrashingCloud, Reports};
use crate::controllers::service::annotations::AnnotationEdits;
use crate::controllers::service::audit::{Audit, AuditResult};
use crate::controllers::service::cluster::{Cluster, Refusal};
use crate::controllers::service::decide::FINALIZER;
use crate::controllers::service::keys;
use crate::controllers::service::load_balancer_state::LoadBalancerStates;
use crate::controllers::service::metrics::{Hosts, Leaks};
use crate::controllers::service::pod_conditions::PodCondition;
use crate::controllers::service::reconcile::LoadBalancerReconciler;

pub const CLUSTER: &str = "cluster";
pub const RESYNC: Duration = Duration::from_secs(1800);

/// A fault of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// The write is not applied.
    Refused,
    /// The write is applied, but its response is lost.
    Lost,
}

#[derive(Default)]
struct ServerState {
    services: BTreeMap<ObjectKey, Service>,
    version: u64,
    events: Vec<String>,
    writes: u64,
    faults: Vec<WriteFault>,
    /// Writes and counted calls (see `called`) left until the process crashes.
    dies_after: Option<u64>,
    /// The process crashes after the next counted call that fails.
    dies_on_error: bool,
    acts: u64,
    died: bool,
}

/// The state of cluster and cloud, which all processes share.
pub struct Simulation {
    pub cloud: MockCloud,
    server: Mutex<ServerState>,
    nodes: Mutex<Arc<[NodeTarget]>>,
    endpoints: Mutex<Arc<[EndpointTarget]>>,
    /// Endpoints of single Services; all others have `endpoints`.
    pub endpoints_of: Mutex<BTreeMap<String, Vec<EndpointTarget>>>,
    /// Pods with readiness gates, by name.
    pub pods: Mutex<BTreeMap<String, GatedPod>>,
    /// The Services that processes reported to the cloud.
    pub reports: Mutex<Reports>,
    /// The provider's additions to the results of the cloud.
    pub answers: Mutex<Answers>,
    /// Options of processes that start: whether they delete leaks, and the interval between two audits.
    pub audit: Mutex<(bool, Duration)>,
    /// True while a Node or EndpointSlice cannot be decoded.
    pub undecodable: AtomicBool,
    dead: AtomicBool,
    ids: AtomicU64,
}

/// Returns a Service as users write it.
pub fn service(name: &str) -> Service {
    let empty: kinds::Str = "".into();
    Service {
        meta: Meta {
            namespace: "shop".into(),
            name: name.into(),
            uid: Uid::parse("uid"),
            version: 1,
            generation: 0,
            created: Time::default(),
            deletion: Time::default(),
            labels: Arc::new([]),
            owners: Arc::new([]),
            finalizers: Arc::new([]),
        },
        annotations: Arc::new([]),
        kind: ServiceType::LoadBalancer,
        selector: Arc::new([]),
        ports: vec![port(80)],
        cluster_ips: vec!["10.0.0.1".into()],
        ip_families: vec!["IPv4".into()],
        publish_not_ready_addresses: false,
        traffic_distribution: None,
        balancing: Some(Box::new(Balancing {
            class: None,
            source_ranges: Vec::new(),
            requested_ip: empty.clone(),
            external_ips: Vec::new(),
            allocate_node_ports: true,
            client_ip_affinity: false,
            affinity_seconds: None,
            ip_family_policy: empty,
            external_local: false,
            internal_local: false,
            health_check_node_port: 0,
            ingress: Vec::new(),
        })),
    }
}

pub fn port(number: i32) -> ServicePort {
    ServicePort {
        name: number.to_string().into(),
        protocol: "TCP".into(),
        app_protocol: None,
        port: number,
        target_port: IntOrString::Int(8080),
        node_port: 30_000 + number,
    }
}

pub fn annotated(service: &mut Service, annotations: &[(&str, &str)]) {
    service.annotations = annotations.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
}

fn edit_annotations(service: &mut Service, edits: &AnnotationEdits) {
    let kept = service.annotations.iter().filter(|(name, _)| !edits.contains_key(&**name)).cloned();
    let set = edits.iter().filter_map(|(name, value)| Some((name.as_str().into(), value.as_deref()?.into())));
    service.annotations = kept.chain(set).collect();
}

pub fn key(name: &str) -> ObjectKey {
    ObjectKey::new("shop", name)
}

pub fn node(name: &str) -> NodeTarget {
    NodeTarget { name: name.into(), provider_id: Some(format!("mock://mock-1/{name}")), ..NodeTarget::default() }
}

impl Simulation {
    pub fn new(config: MockConfig) -> Arc<Self> {
        let cloud = MockCloud::new(config).expect("a configuration that works");
        Arc::new(Self {
            cloud,
            server: Mutex::default(),
            nodes: Mutex::new(Arc::new([node("node-0"), node("node-1")])),
            endpoints: Mutex::new(Arc::new([])),
            endpoints_of: Mutex::default(),
            pods: Mutex::default(),
            reports: Mutex::default(),
            answers: Mutex::default(),
            audit: Mutex::default(),
            undecodable: AtomicBool::new(false),
            dead: AtomicBool::new(false),
            ids: AtomicU64::new(0),
        })
    }

    fn server(&self) -> MutexGuard<'_, ServerState> {
        lock(&self.server)
    }

    /// Creates a Service as a user does. Returns false if one with this name exists.
    pub fn create(&self, mut service: Service) -> bool {
        let key = service.meta.key();
        let mut server = self.server();
        if server.services.contains_key(&key) {
            return false;
        }
        service.meta.uid = Uid::parse(&format!("uid-{}", self.ids.fetch_add(1, Ordering::SeqCst)));
        server.version += 1;
        service.meta.version = server.version;
        server.services.insert(key, service);
        true
    }

    /// Changes a Service as another client does. Returns true if it exists.
    pub fn change(&self, key: &ObjectKey, change: impl FnOnce(&mut Service)) -> bool {
        let mut server = self.server();
        server.version += 1;
        let version = server.version;
        let Some(service) = server.services.get_mut(key) else { return false };
        change(service);
        service.meta.version = version;
        if service.meta.is_deleting() && service.meta.finalizers.is_empty() {
            server.services.remove(key);
        }
        true
    }

    /// Deletes a Service as a user does.
    pub fn delete(&self, key: &ObjectKey) -> bool {
        self.change(key, |service| service.meta.deletion = Time(1))
    }

    pub fn services(&self) -> BTreeMap<ObjectKey, Service> {
        self.server().services.clone()
    }

    pub fn get(&self, key: &ObjectKey) -> Option<Service> {
        self.server().services.get(key).cloned()
    }

    pub fn set_nodes(&self, nodes: Vec<NodeTarget>) {
        *lock(&self.nodes) = nodes.into();
    }

    pub fn nodes(&self) -> Arc<[NodeTarget]> {
        lock(&self.nodes).clone()
    }

    pub fn set_endpoints(&self, endpoints: Vec<EndpointTarget>) {
        *lock(&self.endpoints) = endpoints.into();
    }

    /// Removes and returns the events so far, as `Type Reason Service: message`.
    pub fn take_events(&self) -> Vec<String> {
        std::mem::take(&mut self.server().events)
    }

    pub fn writes(&self) -> u64 {
        self.server().writes
    }

    pub fn add_fault(&self, fault: WriteFault) {
        self.server().faults.push(fault);
    }

    pub fn clear_faults(&self) {
        self.server().faults.clear();
        self.cloud.clear_faults();
    }

    /// Lets the process crash right after its `n`-th write or counted call from now; 1 is the next one.
    pub fn die_after(&self, n: u64) {
        self.server().dies_after = Some(n);
    }

    /// Lets the process crash after the next counted call for which the cloud returns an error.
    pub fn die_on_error(&self) {
        self.server().dies_on_error = true;
    }

    /// Returns the number of writes and counted calls so far.
    pub fn acts(&self) -> u64 {
        self.server().acts
    }

    /// Returns true if a process has crashed as scripted.
    pub fn died(&self) -> bool {
        self.server().died
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Counts a write or call of the process. Never returns if the process crashes after that write or call.
    async fn acted(&self) {
        let last = {
            let mut server = self.server();
            server.acts += 1;
            if let Some(left) = &mut server.dies_after {
                *left -= 1;
            }
            server.dies_after.take_if(|left| *left == 0).is_some()
        };
        if last {
            self.server().died = true;
            self.dead.store(true, Ordering::SeqCst);
        }
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// Like `acted`, for a call that changes a load balancer. Only such calls are counted.
    pub async fn called<T>(&self, result: &Result<T, CloudError>) {
        if result.is_err() && std::mem::take(&mut self.server().dies_on_error) {
            self.server().dies_after = Some(1);
        }
        self.acted().await;
    }

    async fn write(&self, read: &Service, change: impl FnOnce(&mut Service)) -> Result<(), Refusal> {
        tokio::time::sleep(Duration::from_millis(2)).await;
        let fault = {
            let mut server = self.server();
            server.writes += 1;
            server.faults.pop()
        };
        if fault == Some(WriteFault::Refused) {
            return Err(Refusal::Failed("as scripted: refused".into()));
        }
        let key = read.meta.key();
        if self.get(&key).is_none_or(|service| service.meta.uid != read.meta.uid) {
            return Err(Refusal::Deleted);
        }
        self.change(&key, change);
        self.acted().await;
        match fault {
            Some(_) => Err(Refusal::Failed("as scripted: the response was lost".into())),
            None => Ok(()),
        }
    }
}

/// One process of the controller, until it crashes: its cache and its queue.
pub struct Process {
    pub sim: Arc<Simulation>,
    pub queue: Arc<Queue<String>>,
    pub balancers: Arc<LoadBalancerReconciler<ProcessCache>>,
    audit: Audit,
    tasks: Tasks,
}

/// The cache of one process.
pub struct ProcessCache {
    sim: Arc<Simulation>,
    cached: Mutex<BTreeMap<ObjectKey, Arc<Service>>>,
    /// Services that this process has written since the cache was last updated.
    written: Mutex<BTreeSet<ObjectKey>>,
}

impl ProcessCache {
    /// Delivers the current state of a Service by the watch.
    fn refresh(&self, key: &ObjectKey) {
        match self.sim.get(key) {
            Some(service) => lock(&self.cached).insert(key.clone(), Arc::new(service)),
            None => lock(&self.cached).remove(key),
        };
        lock(&self.written).remove(key);
    }
}

#[async_trait]
impl Cluster for ProcessCache {
    fn service(&self, key: &ObjectKey) -> Option<Arc<Service>> {
        lock(&self.cached).get(key).cloned()
    }

    fn services(&self) -> Vec<Arc<Service>> {
        lock(&self.cached).values().cloned().collect()
    }

    fn nodes(&self) -> Arc<[NodeTarget]> {
        self.sim.nodes()
    }

    fn decodes_all(&self) -> bool {
        !self.sim.undecodable.load(Ordering::Relaxed)
    }

    fn endpoints(&self, service: &Service) -> Option<Arc<[EndpointTarget]>> {
        if let Some(own) = lock(&self.sim.endpoints_of).get(&*service.meta.name) {
            return Some(own.clone().into());
        }
        Some(lock(&self.sim.endpoints).clone())
    }

    fn pod(&self, _: &str, name: &str) -> Option<Arc<GatedPod>> {
        lock(&self.sim.pods).get(name).cloned().map(Arc::new)
    }

    fn gated_pods(&self, _: &str) -> Vec<Arc<GatedPod>> {
        lock(&self.sim.pods).values().cloned().map(Arc::new).collect()
    }

    async fn set_pod_condition(&self, pod: &GatedPod, condition: &PodCondition) -> Result<(), Refusal> {
        let mut pods = lock(&self.sim.pods);
        let pod = pods.get_mut(&*pod.meta.name).ok_or(Refusal::Deleted)?;
        for gate in pod.gates.iter_mut().filter(|gate| *gate.condition == condition.condition) {
            (gate.status, gate.reason, gate.message) =
                (condition.status, condition.reason.as_str().into(), condition.message.as_str().into());
        }
        Ok(())
    }

    fn record_event(&self, about: &ObjectReference, kind: EventType, reason: &'static str, message: String) {
        let text = format!("{} {reason} {}: {message}", kind.as_str(), about.name);
        self.sim.server().events.push(text);
    }

    async fn has_finalizer(&self, service: &Service) -> Result<bool, Refusal> {
        let now = self.sim.get(&service.meta.key()).filter(|now| now.meta.uid == service.meta.uid);
        let now = now.ok_or(Refusal::Deleted)?;
        Ok(!now.meta.is_deleting() && now.meta.finalizers.iter().any(|finalizer| &**finalizer == FINALIZER))
    }

    async fn list_uncached(&self) -> Result<Vec<(ObjectKey, Uid)>, Refusal> {
        Ok(self.sim.services().into_iter().map(|(key, service)| (key, service.meta.uid)).collect())
    }

    async fn add_finalizer(&self, service: &Service) -> Result<(), Refusal> {
        let changed = |now: &Service| now.meta.uid == service.meta.uid && now.meta.version != service.meta.version;
        if self.sim.get(&service.meta.key()).as_ref().is_some_and(changed) {
            return Err(Refusal::Changed);
        }
        if self.sim.get(&service.meta.key()).is_some_and(|now| now.meta.is_deleting()) {
            return Err(Refusal::Failed("no finalizer can be added to an object that is being deleted".into()));
        }
        lock(&self.written).insert(service.meta.key());
        let add = |service: &mut Service| {
            let others = service.meta.finalizers.iter().cloned();
            service.meta.finalizers = others.chain([FINALIZER.into()]).collect();
        };
        self.sim.write(service, add).await
    }

    async fn publish(
        &self,
        service: &Service,
        ingress: Option<&[Ingress]>,
        annotations: &AnnotationEdits,
    ) -> Result<(), Refusal> {
        lock(&self.written).insert(service.meta.key());
        let set = |service: &mut Service| {
            edit_annotations(service, annotations);
            if let Some((settings, ingress)) = service.balancing.as_mut().zip(ingress) {
                settings.ingress = ingress.to_vec();
            }
        };
        self.sim.write(service, set).await
    }

    async fn release(
        &self,
        service: &Service,
        clear_status: bool,
        annotations: &AnnotationEdits,
    ) -> Result<(), Refusal> {
        lock(&self.written).insert(service.meta.key());
        let free = |service: &mut Service| {
            edit_annotations(service, annotations);
            let others = service.meta.finalizers.iter().filter(|finalizer| &***finalizer != FINALIZER);
            service.meta.finalizers = others.cloned().collect();
            if let Some(settings) = service.balancing.as_mut().filter(|_| clear_status) {
                settings.ingress.clear();
            }
        };
        self.sim.write(service, free).await
    }
}

/// Reconciles Services by name; the binary uses keys.
struct ByName(Arc<LoadBalancerReconciler<ProcessCache>>);

impl Reconcile for ByName {
    type Key = String;

    fn begin(&self) {
        self.0.report_existing();
    }

    fn reconcile<'a>(&'a self, name: &'a String) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            let key = key(name);
            let cache = &self.0.kubernetes;
            if lock(&cache.written).contains(&key) {
                // A reconcile waits until the cache contains its writes: here they arrive immediately.
                cache.refresh(&key);
            }
            self.0.sync(&key).await
        }
        .boxed()
    }
}

impl Process {
    /// Starts a process whose cache contains all Services.
    pub fn start(sim: &Arc<Simulation>, workers: usize) -> Self {
        let cloud = sim.cloud.provider(CLUSTER).load_balancers().expect("the mock has load balancers");
        Self::over(sim, workers, cloud)
    }

    /// Like `start`, with another cloud.
    pub fn over(sim: &Arc<Simulation>, workers: usize, cloud: Arc<dyn LoadBalancers>) -> Self {
        sim.dead.store(false, Ordering::SeqCst);
        sim.server().dies_after = None;
        sim.server().dies_on_error = false;
        let cached = sim.services().into_iter().map(|(key, service)| (key, Arc::new(service))).collect();
        let cache = ProcessCache { sim: sim.clone(), cached: Mutex::new(cached), written: Mutex::default() };
        // Copied first: the guard would otherwise be held until the end of the next statement.
        let (collects, every) = *lock(&sim.audit);
        let balancers = Arc::new(LoadBalancerReconciler {
            kubernetes: cache,
            cloud: Arc::new(CrashingCloud { cloud, sim: sim.clone() }),
            cluster: CLUSTER.into(),
            resync: RESYNC,
            states: LoadBalancerStates::default(),
            hosts: Hosts::register(&Metrics::default()),
        });
        let audit = Audit {
            collects,
            every,
            counted: Leaks::register(&Metrics::default()),
            suspects: Mutex::default(),
            deleting: Mutex::default(),
        };
        let queue = Queue::new(QueueOptions {
            base_delay: Duration::from_secs(5),
            max_delay: Duration::from_secs(300),
            ..QueueOptions::named("service")
        });
        let tasks = Tasks::default();
        let options = WorkOptions { name: "service", workers };
        work(options, &queue, Arc::new(ByName(balancers.clone())), &Arc::new(WorkCounts::default()), &tasks);
        for key in sim.services().into_keys() {
            queue.add(key.name.to_string());
        }
        Self { sim: sim.clone(), queue, balancers, audit, tasks }
    }

    /// Runs one audit.
    pub async fn audit(&self) -> AuditResult {
        self.audit.run(&self.balancers.audit_scope()).await.expect("the audit failed")
    }

    /// Runs two audits. Returns the number of leaks that both found.
    pub async fn leaks(&self) -> usize {
        self.audit().await;
        self.audit().await.leaks
    }

    /// Delivers the current state of a Service by the watch.
    pub fn deliver(&self, key: &ObjectKey) {
        let cache = &self.balancers.kubernetes;
        let old = cache.service(key);
        cache.refresh(key);
        let new = cache.service(key);
        self.queue.add(key.name.to_string());
        let change = Change { old: old.as_ref(), new: new.as_ref() };
        for key in keys::referring(&change, &self.balancers.states) {
            self.queue.add(key.name.to_string());
        }
    }

    /// Delivers a change of a Service's endpoints by the watch.
    pub fn endpoints_changed(&self, key: &ObjectKey) {
        for key in self.balancers.states.with_endpoints_of(key) {
            self.queue.add(key.name.to_string());
        }
    }

    /// Delivers the current state of all Services by the watch.
    pub fn deliver_all(&self) {
        let known: Vec<_> = lock(&self.balancers.kubernetes.cached).keys().cloned().collect();
        for key in self.sim.services().into_keys().chain(known) {
            self.deliver(&key);
        }
    }

    /// Delivers a change of the nodes: the Services with nodes as targets are requeued.
    pub fn nodes_changed(&self) {
        for key in self.balancers.states.with_nodes() {
            self.queue.add(key.name.to_string());
        }
    }

    /// Stops the process without a graceful shutdown.
    pub async fn crash(self) {
        self.tasks.shutdown().await;
    }
}

/// Lets time pass.
pub async fn pass(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

/// Returns a ready endpoint with this last byte of its address.
pub(super) fn endpoint(last: u8) -> EndpointTarget {
    EndpointTarget {
        port_name: "80".into(),
        address: [10, 1, 0, last].into(),
        port: 8080,
        node: None,
        provider_id: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: None,
    }
}
