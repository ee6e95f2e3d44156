//! statefulset-controller: keeps pods with a name, a place and claims of their own.
//!
//! It watches StatefulSets, Pods, PersistentVolumeClaims and ControllerRevisions, creates, repairs and deletes pods in
//! order or all at once, creates claims and says whose they are, keeps the history of templates, and writes StatefulSet
//! statuses. Follows upstream pkg/controller/statefulset.

mod act;
mod decide;
mod identity;
mod keys;
mod metrics;
mod pods;
mod retention;
mod revisions;
mod status;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{ControllerRevision, PersistentVolumeClaim, Pod, Sections, StatefulSet};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::telemetry::StaleSyncs;
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use decide::Gates;
use metrics::Availability;
use sync::StatefulSets;

/// Name of the event source.
const COMPONENT: &str = "statefulset-controller";

/// Changes of pods that only move counts in the status are taken together over this time at first,
const STATUS_WINDOW: Duration = Duration::from_millis(50);
/// and over up to this time while many pods change.
const LONGEST_STATUS_WINDOW: Duration = Duration::from_millis(800);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "statefulset-controller",
    service_account: "statefulset-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "", resource: "pods" },
        Write { verb: Verb::Update, group: "", resource: "pods" },
        Write { verb: Verb::Patch, group: "", resource: "pods" },
        Write { verb: Verb::Delete, group: "", resource: "pods" },
        Write { verb: Verb::Create, group: "", resource: "persistentvolumeclaims" },
        Write { verb: Verb::Update, group: "", resource: "persistentvolumeclaims" },
        Write { verb: Verb::Create, group: "apps", resource: "controllerrevisions" },
        Write { verb: Verb::Update, group: "apps", resource: "controllerrevisions" },
        Write { verb: Verb::Patch, group: "apps", resource: "controllerrevisions" },
        Write { verb: Verb::Delete, group: "apps", resource: "controllerrevisions" },
        Write { verb: Verb::Update, group: "apps", resource: "statefulsets/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("statefulset", "StatefulSet")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Pod>(Pod::CLAIMS, &[by_controller()]);
    builder.need::<StatefulSet>(StatefulSet::TEMPLATE, &[by_namespace()]);
    builder.need::<PersistentVolumeClaim>(Sections::default(), &[]);
    builder.need::<ControllerRevision>(Sections::default(), &[by_controller()]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions {
        window: STATUS_WINDOW,
        longest_window: LONGEST_STATUS_WINDOW,
        ..QueueOptions::named("statefulset")
    });
    let gates = &context.options.gates;
    let reconciler = Arc::new(StatefulSets {
        sets: manager.registry().store::<StatefulSet>(),
        pods: manager.registry().store::<Pod>(),
        claims: manager.registry().store::<PersistentVolumeClaim>(),
        revisions: manager.registry().store::<ControllerRevision>(),
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        consistency: Arc::default(),
        memory: Arc::default(),
        queue: queue.clone(),
        clock: context.clock.clone(),
        gates: Gates {
            max_unavailable: gates.enabled("MaxUnavailableStatefulSet"),
            recreate: gates.enabled("StatefulSetRecreateStrategy"),
            semantic: gates.enabled("StatefulSetSemanticRevisionComparison"),
        },
        debouncer: Default::default(),
        looked: Default::default(),
        begun: Default::default(),
    });
    let bounded = reconciler.gates.max_unavailable;
    manager.collect(Availability { sets: reconciler.sets.clone(), bounded });
    keys::subscribe(&keys::Wiring {
        sets: &reconciler.sets,
        pods: &reconciler.pods,
        claims: &reconciler.claims,
        queue: &queue,
        consistency: &reconciler.consistency,
        memory: &reconciler.memory,
    });
    let consistency = reconciler.consistency.clone();
    manager.collect(StaleSyncs { subsystem: "statefulset_controller", kind: "StatefulSet", consistency });
    let workers = context.workers("concurrent-statefulset-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers, max_retries: None }, queue, reconciler);
}
