//! pod-garbage-collector-controller: deletes pods that no kubelet will terminate, and the oldest of too many finished
//! ones.
//!
//! Every twenty seconds it deletes finished pods beyond the threshold, terminating pods that are on out-of-service
//! nodes or were never bound, and pods of deleted nodes. Upstream: pkg/controller/podgc.

mod decide;
mod metrics;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use kinds::{Node, Pod, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, index_key};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::indexes::by_node;
use decide::Census;
use metrics::Counts;
use sync::{PodGc, Task};

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "pod-garbage-collector-controller",
    service_account: "pod-garbage-collector",
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "pods/status" },
        Write { verb: Verb::Delete, group: "", resource: "pods" },
    ],
    queues: &[QueueKeys::other("orphaned_pods_nodes")],
    start,
    ..Descriptor::NONE
};

/// Index of pods that have ended, all under one key, and of pods that are being deleted, all under another.
const ENDING: Index<Pod> = Index {
    name: "ending",
    keys: |pod, emit| {
        if pod.is_terminal() {
            emit(index_key("finished"));
        }
        if pod.meta.is_deleting() {
            emit(index_key("deleting"));
        }
    },
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Pod>(Pod::DISRUPTION, &[ENDING, by_node()]);
    builder.need::<Node>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("orphaned_pods_nodes"));
    let pods = manager.registry().store::<Pod>();
    let census = Arc::new(Census::default());
    let counts = Counts::default();
    manager.collect(counts.clone());
    let (counted, reconciler) = (
        census.clone(),
        Arc::new(PodGc {
            pods: pods.clone(),
            nodes: manager.registry().store::<Node>(),
            census,
            counts,
            threshold: context.options.values.get_i32("terminated-pod-gc-threshold"),
            writer: manager.writer(DESCRIPTOR.service_account),
            queue: queue.clone(),
            clock: context.clock.clone(),
            forced: Default::default(),
        }),
    );
    let forgets = reconciler.clone();
    pods.subscribe(move |change| {
        counted.apply(change.old.map(|pod| &**pod), change.new.map(|pod| &**pod));
        if let Some(old) = change.old.filter(|old| change.new.is_none_or(|new| new.meta.uid != old.meta.uid)) {
            forgets.forget(&old.meta.uid);
        }
    });
    queue.add(Task::CheckAll);
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}

impl Census {
    /// Returns the number of finished pods.
    fn finished(&self) -> usize {
        self.finished.load(Ordering::Relaxed)
    }
}
