//! taint-eviction-controller: deletes pods that do not, or no longer, tolerate `NoExecute` taints of their node.
//!
//! For a pod that tolerates them for a time, a countdown begins when this process first observes pod and taints
//! together. A change of the tolerated time to another finite time does not change a running countdown. Upstream:
//! pkg/controller/tainteviction.

mod countdown;
mod decide;
mod keys;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kinds::{Node, Pod, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::indexes::by_node;
use countdown::Countdowns;
use sync::{Deletions, Evictions};

/// Name of the event source.
const COMPONENT: &str = "taint-eviction-controller";

/// The number of pods that are reconciled in parallel.
const WORKERS: usize = 8;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "taint-eviction-controller",
    service_account: "node-controller",
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "pods/status" },
        Write { verb: Verb::Delete, group: "", resource: "pods" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("noexec_taint_pod", "Pod")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Node>(Sections::default(), &[]);
    builder.need::<Pod>(Pod::TOLERATIONS, &[by_node()]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("noexec_taint_pod"));
    let (nodes, pods) = (manager.registry().store::<Node>(), manager.registry().store::<Pod>());
    let countdowns = Arc::new(Countdowns::default());
    keys::subscribe(&nodes, &pods, &queue, &countdowns);
    let reconciler = Arc::new(Evictions {
        nodes,
        pods,
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        clock: context.clock.clone(),
        countdowns,
        compares_numbers: context.options.gates.enabled("TaintTolerationComparisonOperators"),
        node_reads: Default::default(),
        deletions: Deletions::register(manager.metrics()),
    });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: WORKERS }, queue, reconciler);
}
