//! service-lb-controller: reconciles the cloud's load balancers with Services of type LoadBalancer.
//!
//! Watches Services and Nodes, and EndpointSlices if the provider may have endpoints as targets. Calls the provider,
//! keeps a finalizer on a Service while its cloud resources may exist, and writes `status.loadBalancer`.
//! Upstream: cloud-provider, controllers/service.

mod annotations;
mod audit;
mod cluster;
mod decide;
mod decide_action;
mod deletion;
mod follow;
pub mod forecast;
mod keys;
mod live_cluster;
mod load_balancer_state;
mod metrics;
mod pod_conditions;
mod readiness_gates;
mod reconcile;
mod records;
mod targets;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{EndpointSlice, GatedPod, Node, Sections, Service};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::by_namespace;
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use tokio::time::Instant;
use tracing::warn;

use crate::cloud::Cloud;
use crate::cloud::retry::{self, MAX_WAIT};
use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Start, Verb, Write};
use audit::Audit;
use keys::Key;
use live_cluster::Kubernetes;
use load_balancer_state::LoadBalancerStates;
use metrics::{Hosts, Leaks};
use reconcile::LoadBalancerReconciler;
use records::ConfigMaps;

/// Name of the event source.
const COMPONENT: &str = "service-controller";

/// Interval between two checks of a load balancer for drift, before jitter.
const RESYNC: Duration = Duration::from_secs(30 * 60);

/// Minimum time between two updates of a Service's endpoints: the first change is sent immediately, and those that
/// follow within this time are sent in one batch.
const ENDPOINT_BATCH_WINDOW: Duration = Duration::from_millis(100);

/// Maximum of the window while changes keep arriving: a terminating pod waits no longer than this for its
/// deregistration. A long rollout needs two calls a second, which the limits of clouds permit.
const MAX_ENDPOINT_BATCH_WINDOW: Duration = Duration::from_millis(500);

/// Minimum interval between two audits, even if the command line sets a shorter one. While the cloud deletes leaked
/// resources, the next audit follows after the delay that the provider requests.
const MIN_AUDIT_PERIOD: Duration = Duration::from_secs(1);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "service-lb-controller",
    service_account: "service-controller",
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "services/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
        // Granted by separate roles: one for readiness gates, one for the records of providers.
        Write { verb: Verb::Patch, group: "", resource: "pods/status" },
        Write { verb: Verb::Create, group: "", resource: "configmaps" },
        Write { verb: Verb::Patch, group: "", resource: "configmaps" },
    ],
    prepare,
    queues: &[QueueKeys::of("service", "Service")],
    finalizers: &[Finalizer {
        name: "service.kubernetes.io/load-balancer-cleanup",
        removed: "once the cloud reports that the load balancer no longer exists",
    }],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, context: &Context) {
    builder.need::<Service>(Service::BALANCING, &[]);
    builder.need::<Node>(Node::CLOUD, &[by_namespace()]);
    if with_endpoints(context) {
        builder.need::<EndpointSlice>(EndpointSlice::TARGETS, &[targets::BY_SERVICE]);
    }
    if gates(context).is_some() {
        builder.need::<EndpointSlice>(EndpointSlice::TARGETS, &[targets::BY_POD]);
        builder.need::<GatedPod>(Sections::default(), &[by_namespace()]);
    }
}

/// Returns the prefix of the pod conditions to set, or `None` if readiness gates are off.
fn gates(context: &Context) -> Option<&'static str> {
    let features = context.cloud.provider().load_balancers()?.features();
    let wanted = features.endpoint_targets && context.options.values.get_bool("load-balancer-readiness-gates");
    features.gates.filter(|_| wanted)
}

fn with_endpoints(context: &Context) -> bool {
    context.cloud.provider().load_balancers().is_some_and(|balancers| balancers.features().endpoint_targets)
}

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    Ok(match context.cloud.provider().load_balancers() {
        Some(_) => Start::Run,
        None => Start::Skip("the cloud provider does not support external load balancers"),
    })
}

fn start(manager: &mut Manager, context: &Context) {
    let Some(balancers) = context.cloud.provider().load_balancers() else { return };
    let queue = Queue::new(QueueOptions {
        base_delay: Duration::from_secs(5),
        max_delay: MAX_WAIT,
        window: ENDPOINT_BATCH_WINDOW,
        max_window: MAX_ENDPOINT_BATCH_WINDOW,
        ..QueueOptions::named("service")
    });
    let (services, nodes) = (manager.registry().store::<Service>(), manager.registry().store::<Node>());
    keys::subscribe(&services, &nodes, &queue);
    let account = DESCRIPTOR.service_account;
    context.cloud.provider().keep_records(Arc::new(ConfigMaps { writer: manager.writer(account) }));
    let slices = with_endpoints(context).then(|| manager.registry().store::<EndpointSlice>());
    let pods = gates(context).map(|prefix| (manager.registry().store::<GatedPod>(), prefix));
    let kubernetes = Kubernetes {
        services,
        nodes,
        slices: slices.clone(),
        pods: pods.clone(),
        pod_consistency: Consistency::default(),
        clock: context.clock.clone(),
        writer: manager.writer(account),
        recorder: manager.recorder(COMPONENT, account),
        consistency: Consistency::default(),
        gathered: Mutex::default(),
    };
    let reconciler = Arc::new(ServiceReconciler {
        balancers: LoadBalancerReconciler {
            kubernetes,
            cloud: balancers,
            cluster: context.options.values.get_str("cluster-name").to_owned(),
            resync: RESYNC,
            states: LoadBalancerStates::default(),
            hosts: Hosts::register(manager.metrics()),
        },
        audit: Audit {
            collects: context.options.values.get_bool("collect-leaked-load-balancers"),
            every: context.options.values.get_duration("load-balancer-audit-period").max(MIN_AUDIT_PERIOD),
            counted: Leaks::register(manager.metrics()),
            suspects: Mutex::default(),
            deleting: Mutex::default(),
        },
        cloud: context.cloud.clone(),
        queue: queue.clone(),
    });
    let services = manager.registry().store::<Service>();
    keys::subscribe_others(&services, &queue, &reconciler, |own| &own.balancers.states);
    if let Some(slices) = slices {
        keys::subscribe_slices(&slices, &queue, &reconciler, |own| &own.balancers.states);
        if let Some((pods, prefix)) = pods {
            keys::subscribe_pods((&pods, prefix), &slices, &queue, &reconciler, |own| &own.balancers.states);
        }
    }
    let workers = usize::try_from(context.options.values.get_i64("concurrent-service-syncs")).unwrap_or(0).max(1);
    let name = DESCRIPTOR.name;
    manager.add(WorkOptions { name, workers }, queue, reconciler);
}

struct ServiceReconciler {
    balancers: LoadBalancerReconciler<Kubernetes>,
    audit: Audit,
    cloud: Arc<Cloud>,
    queue: Arc<Queue<Key>>,
}

impl Reconcile for ServiceReconciler {
    type Key = Key;

    fn begin(&self) {
        self.balancers.report_existing();
        self.queue.add_background(Key::Leaks);
    }

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            if let Err(wait) = self.cloud.ready().await {
                return Ok(Outcome::RequeueAfter(wait));
            }
            match key {
                Key::Service(key) => self.service(key).await,
                Key::Nodes => Ok(self.gather_nodes()),
                Key::Leaks => Ok(self.run_audit().await),
            }
        }
        .boxed()
    }
}

impl ServiceReconciler {
    async fn service(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let wake = self.queue.waker(&Key::Service(key.clone()));
        if !self.balancers.kubernetes.caught_up(key, wake) {
            return Ok(Outcome::WaitingForCache);
        }
        let outcome = self.balancers.sync(key).await;
        self.balancers.kubernetes.forget_if_deleted(key);
        outcome
    }

    /// Gathers the nodes. If they changed, requeues the Services whose load balancers have nodes as targets.
    fn gather_nodes(&self) -> Outcome {
        let begun = Instant::now();
        if self.balancers.kubernetes.gather_nodes() {
            for key in self.balancers.states.with_nodes() {
                self.queue.add(Key::Service(key));
            }
        }
        self.balancers.hosts.record_pass(begun.elapsed());
        Outcome::Done
    }

    async fn run_audit(&self) -> Outcome {
        match self.audit.run(&self.balancers.audit_scope()).await {
            Ok(audited) => Outcome::RequeueAfter(audited.retry_after.unwrap_or(self.audit.every)),
            Err(error) => {
                warn!(%error, "audit for leaked cloud resources failed");
                Outcome::RequeueAfter(retry::retry_after(error.kind, u32::MAX).unwrap_or(MAX_WAIT))
            }
        }
    }
}
