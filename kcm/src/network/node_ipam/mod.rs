//! node-ipam-controller: allocates a pod CIDR to every node, or one of each family.
//!
//! It runs with `--allocate-node-cidrs`. A node keeps the ranges that it has; a range is free again when its node is
//! deleted. Upstream: pkg/controller/nodeipam.

pub mod config;
mod metrics;
mod pool;
mod range;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex};

use kinds::{Node, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;
use tracing::warn;

use crate::context::{Context, Descriptor, QueueKeys, Start, Verb, Write};
use metrics::Usage;
use pool::Pool;
use sync::Allocator;

/// Name of the event source.
const COMPONENT: &str = "cidrAllocator";

/// The number of nodes that are reconciled in parallel.
const WORKERS: usize = 30;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "node-ipam-controller",
    service_account: "node-controller",
    prepare,
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "nodes" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("cidrallocator_node", "Node")],
    start,
    ..Descriptor::NONE
};

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    Ok(match config::read(&context.options.values)? {
        Some(config) => {
            for ignored in &config.ignored_services {
                warn!(range = ignored, "--service-cluster-ip-range has a part that is not a range; ignoring it");
            }
            Start::Run
        }
        None => Start::Skip("--allocate-node-cidrs is false"),
    })
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Node>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let config = config::read(&context.options.values).ok().flatten();
    let config = config.expect("`prepare` has read the same flags, and skips the controller without ranges");
    let queue = Queue::new(QueueOptions::named("cidrallocator_node"));
    let nodes = manager.registry().store::<Node>();
    let pool = Arc::new(Mutex::new(Pool::new(&config)));
    sync::subscribe(&nodes, &queue, &pool);
    manager.collect(Usage(pool.clone()));
    let allocator = Arc::new(Allocator {
        nodes,
        pool,
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        queue: queue.clone(),
        listed: Default::default(),
        unconfirmed: Default::default(),
    });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: WORKERS }, queue, allocator);
}
