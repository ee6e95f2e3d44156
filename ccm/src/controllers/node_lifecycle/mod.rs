//! cloud-node-lifecycle-controller: marks nodes whose instances do not run, and deletes nodes whose instances do not
//! exist.
//!
//! Each round calls the cloud once, for all nodes that are not ready. Follows upstream
//! k8s.io/cloud-provider/controllers/nodelifecycle.

mod decide;
mod metrics;
mod missing_instances;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kinds::Node;
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, index_key};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use self::metrics::Rounds;
use self::sync::Lifecycle;
use crate::cloud::instances::node_sections;
use crate::cloud::taints::is_shut_down;
use crate::context::{Context, Descriptor, QueueKeys, Start, Verb, Write, needs_instances};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "cloud-node-lifecycle-controller",
    service_account: "node-controller",
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "nodes" },
        Write { verb: Verb::Delete, group: "", resource: "nodes" },
    ],
    prepare,
    queues: &[QueueKeys::other("NodeLifecycle")],
    start,
    ..Descriptor::NONE
};

/// Index of nodes that are not ready, or marked as shut down: a round processes only these.
const TO_CHECK: Index<Node> = Index {
    name: "not ready or shut down",
    keys: |node, emit| {
        if node.ready() != Some("True") || is_shut_down(node) {
            emit(to_check());
        }
    },
};

/// Returns the only key of [`TO_CHECK`].
fn to_check() -> u64 {
    index_key("to check")
}

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    Ok(needs_instances(context))
}

fn watches(builder: &mut Builder, context: &Context) {
    builder.need::<Node>(node_sections(context.cloud.provider()), &[TO_CHECK]);
}

fn start(manager: &mut Manager, context: &Context) {
    let Some(instances) = context.cloud.provider().instances() else { return };
    let queue = Queue::new(QueueOptions::named("NodeLifecycle"));
    let nodes = manager.registry().store::<Node>();
    let consistency = Arc::new(Consistency::default());
    let writes = consistency.clone();
    nodes.subscribe(move |change| {
        if let (Some(deleted), None) = (change.old, change.new) {
            writes.forget(&deleted.meta.key());
        }
    });
    let account = DESCRIPTOR.service_account;
    let reconciler = Lifecycle {
        cloud: context.cloud.clone(),
        annotations: instances.instance_features().annotations,
        instances,
        nodes,
        writer: manager.writer(account),
        recorder: manager.recorder(DESCRIPTOR.name, account),
        consistency,
        missing: Default::default(),
        queue: queue.clone(),
        rounds: Rounds::register(manager.metrics()),
        clock: context.clock.clone(),
        period: context.options.values.get_duration("node-monitor-period"),
        workers: context.options.workers("concurrent-node-lifecycle-syncs"),
    };
    let options = WorkOptions { name: DESCRIPTOR.name, workers: 1 };
    manager.add(options, queue, Arc::new(reconciler));
}
