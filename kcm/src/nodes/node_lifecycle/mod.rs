//! node-lifecycle-controller: detects nodes that stop sending heartbeats, sets their conditions, and taints them.
//!
//! It watches Nodes, their Leases, and Pods. A node's conditions become taints. A node without a heartbeat for its
//! grace period gets conditions with status Unknown, and its pods are marked not ready. It also gets the taint that
//! evicts its pods, at a rate that depends on the state of its zone. Upstream: pkg/controller/nodelifecycle.

mod decide_health;
mod decide_taints;
mod decide_zones;
mod keys;
mod mark_pods;
mod metrics;
mod monitor;
mod sync;
#[cfg(test)]
mod tests;
mod watch_health;

use std::sync::Arc;
use std::time::Duration;

use kinds::{Lease, Node, Pod, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::Index;
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::indexes::by_node;
use decide_health::Grace;
use decide_zones::Rates;
use keys::Loop;
use metrics::ZoneMetrics;
use monitor::{Limits, Monitor};
use sync::Nodes;

/// Name of the event source.
const COMPONENT: &str = "node-controller";

/// The number of nodes whose taints and labels are reconciled in parallel.
const WORKERS: usize = 8;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "node-lifecycle-controller",
    service_account: "node-controller",
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "nodes" },
        Write { verb: Verb::Update, group: "", resource: "nodes/status" },
        Write { verb: Verb::Patch, group: "", resource: "pods/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[
        QueueKeys::of("node_lifecycle_controller", "Node"),
        QueueKeys::other("node_lifecycle_controller_monitor"),
    ],
    start,
    ..Descriptor::NONE
};

/// Delay of events of Leases: short compared with the interval between two passes over the nodes.
const LEASE_LAG: Duration = Duration::from_millis(250);

/// Index of all nodes, for a pass over them. All of them have the index value zero.
const EVERY: Index<Node> = Index { name: "every", keys: |_, emit| emit(0) };

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Node>(Sections::default(), &[EVERY]);
    builder.need_lagging::<Lease>(Sections::default(), &[], LEASE_LAG);
    builder.need::<Pod>(Sections::default(), &[by_node()]);
}

fn start(manager: &mut Manager, context: &Context) {
    let nodes = manager.registry().store::<Node>();
    let writer = manager.writer(DESCRIPTOR.service_account);
    let queue = Queue::new(QueueOptions::named("node_lifecycle_controller"));
    keys::subscribe(&nodes, &queue);
    let reconciler = Arc::new(Nodes {
        nodes: nodes.clone(),
        writer: writer.clone(),
        queue: queue.clone(),
        clock: context.clock.clone(),
    });
    let work = |workers| WorkOptions { name: DESCRIPTOR.name, workers };
    manager.add(work(WORKERS), queue, reconciler);

    let loops = Queue::new(QueueOptions::named("node_lifecycle_controller_monitor"));
    loops.add(Loop::Monitor);
    let monitor = Arc::new(Monitor::new(
        nodes,
        manager.registry().store(),
        manager.registry().store(),
        writer,
        manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        loops.clone(),
        context.clock.clone(),
        limits(context),
        ZoneMetrics::register(manager.metrics()),
    ));
    manager.add(work(Loop::ALL), loops, monitor);
}

fn limits(context: &Context) -> Limits {
    let values = &context.options.values;
    Limits {
        period: values.get_duration("node-monitor-period"),
        grace: Grace {
            startup: values.get_duration("node-startup-grace-period"),
            running: values.get_duration("node-monitor-grace-period"),
        },
        rates: Rates {
            normal: values.get_f64("node-eviction-rate"),
            reduced: values.get_f64("secondary-node-eviction-rate"),
            large: usize::try_from(values.get_i64("large-cluster-size-threshold")).unwrap_or(0),
            threshold: values.get_f64("unhealthy-zone-threshold"),
        },
        breaker: context.options.gates.enabled("NodeControllerLeaseCircuitBreaker"),
    }
}
