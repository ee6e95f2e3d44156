//! replicaset-controller and replicationcontroller-controller: keep the desired number of pods of one template running.
//!
//! Each watches its kind, Pods and Namespaces, creates and deletes pods, adopts and releases them, and writes statuses.
//! Upstream: pkg/controller/replicaset and pkg/controller/replication.

mod decide;
mod keys;
mod metrics;
mod pod_set;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{Namespace, Pod, ReplicaSet, ReplicationController, Sections};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::telemetry::StaleSyncs;
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, Verb, Write};
use crate::pods::control::PodControl;
use crate::pods::creation_gate::CreationGate;
use decide::Gates;
use metrics::DeletionAges;
use pod_set::PodSet;
use sync::PodSets;

/// Shortest time between two reconciles for changes of pods that only change counts in the status.
const STATUS_WINDOW: Duration = Duration::from_millis(50);
/// Maximum of [`STATUS_WINDOW`], reached while many pods change.
const MAX_STATUS_WINDOW: Duration = Duration::from_millis(200);

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
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start<K: PodSet>(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions {
        window: STATUS_WINDOW,
        max_window: MAX_STATUS_WINDOW,
        ..QueueOptions::named(K::QUEUES[0].queue)
    });
    let (sets, pods) = (manager.registry().store::<K>(), manager.registry().store::<Pod>());
    let gate = CreationGate::new(manager.registry().store());
    gate.wake_on_new_namespace(&sets, &queue);
    let consistency = Arc::<Consistency>::default();
    let gates = &context.options.gates;
    // The two metrics below are named after ReplicaSets: ReplicationControllers are not counted in them.
    let is_replica_set = K::CONTROLLER == ReplicaSet::CONTROLLER;
    let reconciler = Arc::new(PodSets {
        sets: sets.clone(),
        control: PodControl {
            pods: pods.clone(),
            writer: manager.writer(K::SERVICE_ACCOUNT),
            recorder: manager.recorder(K::COMPONENT, K::SERVICE_ACCOUNT),
            consistency: consistency.clone(),
            gate,
        },
        queue: queue.clone(),
        clock: context.clock.clone(),
        gates: Gates {
            deletion_cost: gates.enabled("PodDeletionCost"),
            terminating_replicas: gates.enabled("DeploymentReplicaSetTerminatingReplicas"),
        },
        deletion_ages: is_replica_set.then(|| DeletionAges::register(manager.metrics())),
        handover: Default::default(),
        refusals: Default::default(),
        debouncer: Default::default(),
    });
    keys::subscribe(&sets, &pods, &queue, &consistency);
    if is_replica_set {
        manager.collect(StaleSyncs { subsystem: "replicaset_controller", kind: "ReplicaSet", consistency });
    }
    let workers = context.workers(K::WORKERS);
    manager.add(WorkOptions { name: K::CONTROLLER, workers }, queue, reconciler);
}
