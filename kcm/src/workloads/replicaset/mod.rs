//! replicaset-controller and replicationcontroller-controller: keep as many pods of one template running as asked.
//!
//! Each watches its kind and Pods, creates and deletes pods, adopts and releases them, and writes statuses.
//! Follows upstream pkg/controller/replicaset and pkg/controller/replication.

mod decide;
mod keys;
mod pod_set;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{Pod, ReplicaSet, ReplicationController, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::telemetry::StaleSyncs;
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, Verb, Write};
use pod_set::PodSet;
use sync::PodSets;

/// Changes of pods that only move counts in the status are taken together over this time at first,
const STATUS_WINDOW: Duration = Duration::from_millis(50);
/// and over up to this time while many pods change.
const LONGEST_STATUS_WINDOW: Duration = Duration::from_millis(200);

/// The controller of ReplicaSets.
pub const DESCRIPTOR: Descriptor =
    descriptor::<ReplicaSet>(&writes(Write { verb: Verb::Update, group: "apps", resource: "replicasets/status" }));

/// The controller of ReplicationControllers.
pub const REPLICATION_CONTROLLER: Descriptor = descriptor::<ReplicationController>(&writes(Write {
    verb: Verb::Update,
    group: "",
    resource: "replicationcontrollers/status",
}));

const fn descriptor<K: PodSet>(writes: &'static [Write]) -> Descriptor {
    Descriptor {
        name: K::CONTROLLER,
        service_account: K::SERVICE_ACCOUNT,
        watches: watches::<K>,
        writes,
        queues: K::QUEUES,
        start: start::<K>,
        ..Descriptor::NONE
    }
}

const fn writes(status: Write) -> [Write; 6] {
    [
        Write { verb: Verb::Create, group: "", resource: "pods" },
        Write { verb: Verb::Delete, group: "", resource: "pods" },
        Write { verb: Verb::Patch, group: "", resource: "pods" },
        status,
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ]
}

fn watches<K: PodSet>(builder: &mut Builder, _: &Context) {
    builder.need::<Pod>(Sections::default(), &[by_controller()]);
    builder.need::<K>(ReplicaSet::TEMPLATE, &[by_controller(), by_namespace()]);
}

fn start<K: PodSet>(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions {
        window: STATUS_WINDOW,
        longest_window: LONGEST_STATUS_WINDOW,
        ..QueueOptions::named(K::QUEUES[0].queue)
    });
    let (sets, pods) = (manager.registry().store::<K>(), manager.registry().store::<Pod>());
    let reconciler = Arc::new(PodSets {
        sets: sets.clone(),
        pods: pods.clone(),
        writer: manager.writer(K::SERVICE_ACCOUNT),
        recorder: manager.recorder(K::COMPONENT, K::SERVICE_ACCOUNT),
        consistency: Arc::default(),
        queue: queue.clone(),
        clock: context.clock.clone(),
        looked: Default::default(),
        debouncer: Default::default(),
        begun: Default::default(),
    });
    keys::subscribe(&sets, &pods, &queue, &reconciler.consistency);
    // The metric is of ReplicaSets by its name.
    if K::CONTROLLER == ReplicaSet::CONTROLLER {
        let consistency = reconciler.consistency.clone();
        manager.collect(StaleSyncs { subsystem: "replicaset_controller", kind: "ReplicaSet", consistency });
    }
    let workers = context.workers(K::WORKERS);
    manager.add(WorkOptions { name: K::CONTROLLER, workers, max_retries: None }, queue, reconciler);
}
