//! ttl-controller: annotates nodes with the time for which kubelets may cache Secrets and ConfigMaps, by cluster size.
//!
//! The value changes in steps with the number of nodes, with hysteresis. Each node gets a new value at its next change.
//! Upstream: pkg/controller/ttl.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::node::TTL;
use kinds::{Kind, Node, Sections};
use runtime::consistency::Consistency;
use runtime::lock::lock;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Cached, Store};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::Writer;
use serde_json::json;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "ttl-controller",
    service_account: "ttl-controller",
    watches,
    writes: &[Write { verb: Verb::Patch, group: "", resource: "nodes" }],
    queues: &[QueueKeys::of("ttlcontroller", "Node")],
    start,
    ..Descriptor::NONE
};

const WORKERS: usize = 5;

/// A step of cluster sizes. If the cluster has more than `max_nodes` nodes, the next step begins; if it has fewer than
/// `min_nodes`, the previous one.
struct Step {
    min_nodes: usize,
    max_nodes: usize,
    ttl_seconds: i64,
}

const STEPS: [Step; 5] = [
    Step { min_nodes: 0, max_nodes: 100, ttl_seconds: 0 },
    Step { min_nodes: 90, max_nodes: 500, ttl_seconds: 15 },
    Step { min_nodes: 450, max_nodes: 1000, ttl_seconds: 30 },
    Step { min_nodes: 900, max_nodes: 2000, ttl_seconds: 60 },
    Step { min_nodes: 1800, max_nodes: usize::MAX, ttl_seconds: 300 },
];

/// The number of nodes, and the current step, which changes by one at a time.
#[derive(Debug, Default)]
struct Size {
    nodes: usize,
    step: usize,
}

impl Size {
    fn add(&mut self) {
        self.nodes += 1;
        if self.nodes > STEPS[self.step].max_nodes {
            self.step += 1;
        }
    }

    fn remove(&mut self) {
        self.nodes = self.nodes.saturating_sub(1);
        if self.nodes < STEPS[self.step].min_nodes {
            self.step -= 1;
        }
    }

    fn ttl_seconds(&self) -> i64 {
        STEPS[self.step].ttl_seconds
    }
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Node>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, _: &Context) {
    let queue = Queue::new(QueueOptions::named("ttlcontroller"));
    let nodes = manager.registry().store::<Node>();
    let size = Arc::new(Mutex::new(Size::default()));
    let (counted, changed) = (size.clone(), queue.clone());
    nodes.subscribe(move |change| {
        let mut size = lock(&counted);
        match (change.old, change.new) {
            (None, Some(_)) => size.add(),
            (Some(_), None) => size.remove(),
            _ => {}
        }
        drop(size);
        if let Some(node) = change.new {
            changed.add(node.meta.key());
        }
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let consistency = Consistency::default();
    let reconciler = Arc::new(Ttl { nodes, size, writer, consistency, queue: queue.clone() });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: WORKERS }, queue, reconciler);
}

struct Ttl {
    nodes: Arc<Store<Node>>,
    size: Arc<Mutex<Size>>,
    writer: Writer,
    consistency: Consistency,
    queue: Arc<Queue<ObjectKey>>,
}

impl Reconcile for Ttl {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Ttl {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let node = match self.consistency.read(key, &self.nodes, self.queue.waker(key)) {
            Cached::Current(node) => node,
            Cached::Absent => return Ok(Outcome::Done),
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        let wanted = lock(&self.size).ttl_seconds();
        if node.ttl_seconds == Some(wanted) {
            return Ok(Outcome::Done);
        }
        let patch = json!({"metadata": {"uid": node.meta.uid.to_string(), "annotations": {TTL: wanted.to_string()}}});
        match self.writer.patch(&Node::RESOURCE, key, &patch).await {
            Ok(response) => {
                if let Ok(meta) = response.meta() {
                    self.consistency.wrote(key, &self.nodes, meta.version);
                }
                Ok(Outcome::Done)
            }
            // The node was deleted or replaced: the watch will deliver that.
            Err(error) if error.is_object_deleted() => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the TTL in seconds after a cluster grew to `grown` nodes and then shrank to `shrunk`.
    fn ttl_after(grown: usize, shrunk: usize) -> i64 {
        let mut size = Size::default();
        (0..grown).for_each(|_| size.add());
        (shrunk..grown).for_each(|_| size.remove());
        size.ttl_seconds()
    }

    #[test]
    fn value_follows_the_size_with_hysteresis() {
        for (grown, shrunk, expected) in [
            (1, 1, 0),
            (100, 100, 0),
            (101, 101, 15),
            (101, 90, 15),
            (101, 89, 0),
            (95, 95, 0),
            (500, 500, 15),
            (501, 501, 30),
            (501, 450, 30),
            (501, 449, 15),
            (1000, 1000, 30),
            (1001, 1001, 60),
            (1001, 899, 30),
            (2000, 2000, 60),
            (2001, 2001, 300),
            (2001, 1800, 300),
            (2001, 1799, 60),
            (2001, 0, 0),
        ] {
            assert_eq!(ttl_after(grown, shrunk), expected, "{grown} -> {shrunk}");
        }
    }
}
