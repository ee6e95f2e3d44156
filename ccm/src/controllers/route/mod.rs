//! node-route-controller: keeps the cloud's routes to the nodes' pod networks up to date.
//!
//! The controller watches Nodes, lists and changes routes through the provider, and writes the condition
//! `NetworkUnavailable`. Follows upstream cloud-provider, controllers/route.

mod decide;
mod kubernetes;
mod sync;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::anyhow;
use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::Node;
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::QueueKey;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::by_namespace;
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};

use crate::cloud::Cloud;
use crate::cloud::instances::node_sections;
use crate::context::{Context, Descriptor, QueueKeys, Start, Verb, Write};
use kubernetes::Kubernetes;
use sync::RouteTable;

/// Name of the event source, in upstream's spelling.
const COMPONENT: &str = "route_controller";

/// Time over which changes of nodes are batched.
const WINDOW: Duration = Duration::from_secs(1);

/// The maximum of [`WINDOW`], reached while nodes keep changing. Upstream: route controller, minRouteResyncInterval.
const MAX_WINDOW: Duration = Duration::from_secs(10);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "node-route-controller",
    service_account: "route-controller",
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "nodes/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    prepare,
    queues: &[QueueKeys::other("Routes")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, context: &Context) {
    builder.need::<Node>(node_sections(context.cloud.provider()), &[by_namespace()]);
}

/// Upstream: cloud-provider/app, startRouteController.
fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    if !context.options.values.get_bool("configure-cloud-routes") {
        return Ok(Start::Skip("--configure-cloud-routes is false"));
    }
    if context.cloud.provider().routes().is_none() {
        return Ok(Start::Skip("the cloud provider does not support routes"));
    }
    let networks = decide::cluster_networks(context.options.values.get_str("cluster-cidr"));
    networks.map(|_| Start::Run).map_err(|error| anyhow!("{error}; or pass --configure-cloud-routes=false"))
}

fn start(manager: &mut Manager, context: &Context) {
    let values = &context.options.values;
    // `prepare` has checked the provider's routes and the networks.
    let Some(routes) = context.cloud.provider().routes() else { return };
    let cluster = decide::cluster_networks(values.get_str("cluster-cidr")).unwrap_or_default();
    let queue = Queue::new(QueueOptions { window: WINDOW, max_window: MAX_WINDOW, ..QueueOptions::named("Routes") });
    let nodes = manager.registry().store::<Node>();
    let (changed, woken) = (queue.clone(), Arc::new(AtomicBool::new(false)));
    let wakes = woken.clone();
    nodes.subscribe(move |change| {
        if kubernetes::routes_differ(change) {
            wakes.store(true, Ordering::Release);
            changed.add_coalesced(Pass);
        }
    });
    let account = DESCRIPTOR.service_account;
    let instances = context.cloud.provider().instances();
    let kubernetes = Kubernetes {
        nodes,
        annotations: instances.map(|instances| instances.instance_features().annotations).unwrap_or_default(),
        writer: manager.writer(account),
        recorder: manager.recorder(COMPONENT, account),
        consistency: Consistency::default(),
        clock: context.clock.clone(),
    };
    let period = values.get_duration("route-reconciliation-period").max(WINDOW);
    let mut table = RouteTable::new(kubernetes, routes, cluster, period);
    table.woken = woken;
    table.passes = manager.metrics().counts(
        "route_controller_route_sync",
        "A metric counting the number of route reconciles with the cloud provider, labeled by the trigger (periodic or node_change) and the outcome (error if the reconcile failed, changed if at least one route was created or deleted, otherwise noop).",
    );
    let reconciler = Arc::new(NodeRoutes { table, cloud: context.cloud.clone(), queue: queue.clone() });
    let name = DESCRIPTOR.name;
    manager.add(WorkOptions { name, workers: 1 }, queue, reconciler);
}

/// The only key: all nodes and routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Pass;

impl QueueKey for Pass {}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(routes)")
    }
}

struct NodeRoutes {
    table: RouteTable<Kubernetes>,
    cloud: Arc<Cloud>,
    queue: Arc<Queue<Pass>>,
}

impl Reconcile for NodeRoutes {
    type Key = Pass;

    fn begin(&self) {
        self.queue.add(Pass);
    }

    fn reconcile<'a>(&'a self, _: &'a Pass) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            if let Err(wait) = self.cloud.ready().await {
                return Ok(Outcome::RequeueAfter(wait));
            }
            Ok(self.table.pass().await)
        }
        .boxed()
    }
}
