//! cloud-node-controller: initializes new nodes with data of their cloud instances, and keeps their addresses, and
//! labels and taints of the provider, up to date.
//!
//! A kubelet with an external cloud provider registers its node with a taint. This controller sets the addresses first.
//! Then one patch sets provider ID and labels, and removes the taint.
//! Upstream: k8s.io/cloud-provider/controllers/node.

mod decide;
mod decide_updates;
mod keys;
mod metrics;
mod sync;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::Node;
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use self::metrics::Delays;
use self::sync::CloudNode;
use crate::cloud::instances::{Describer, node_sections};
use crate::context::{Context, Descriptor, QueueKeys, Start, Verb, Write, needs_instances};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "cloud-node-controller",
    service_account: "node-controller",
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "nodes" },
        Write { verb: Verb::Patch, group: "", resource: "nodes/status" },
    ],
    prepare,
    queues: &[QueueKeys::other("Nodes")],
    start,
    ..Descriptor::NONE
};

/// Number of nodes that are initialized concurrently, unless the command line sets another one. It can be large because
/// the requests to the cloud are batched.
const WORKERS: usize = 50;

/// First and maximum delay before a node's instance is requested again: each attempt costs a call while the cloud does
/// not list the instance yet.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(60));

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    Ok(needs_instances(context))
}

fn watches(builder: &mut Builder, context: &Context) {
    builder.need::<Node>(node_sections(context.cloud.provider()), &[keys::INITIALIZED]);
}

fn start(manager: &mut Manager, context: &Context) {
    let (base_delay, max_delay) = RETRY_DELAYS;
    let queue = Queue::new(QueueOptions { base_delay, max_delay, ..QueueOptions::named("Nodes") });
    let nodes = manager.registry().store::<Node>();
    let changed = queue.clone();
    nodes.subscribe(move |change| {
        if let Some(key) = keys::key_of_change(change) {
            changed.add(key);
        }
    });
    let Some(instances) = context.cloud.provider().instances() else { return };
    let account = DESCRIPTOR.service_account;
    let options = &context.options;
    let workers =
        if options.values.is_set("concurrent-node-syncs") { options.workers("concurrent-node-syncs") } else { WORKERS };
    let updates = options.values.get_i32("concurrent-node-status-updates");
    let reconciler = CloudNode {
        cloud: context.cloud.clone(),
        describer: Describer::new(instances.clone()),
        features: instances.instance_features(),
        instances,
        nodes,
        writer: manager.writer(account),
        recorder: manager.recorder(DESCRIPTOR.name, account),
        consistency: Consistency::default(),
        queue: queue.clone(),
        delays: Delays::register(manager.metrics()),
        clock: context.clock.clone(),
        frequency: options.values.get_duration("node-status-update-frequency"),
        update_workers: usize::try_from(updates).ok().filter(|updates| *updates > 0).unwrap_or(workers),
    };
    let options = WorkOptions { name: DESCRIPTOR.name, workers };
    manager.add(options, queue, Arc::new(reconciler));
}
