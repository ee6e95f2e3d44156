//! statefulset-controller: keeps pods with a stable name, ordinal and claims.
//!
//! It watches StatefulSets, Pods, PersistentVolumeClaims, ControllerRevisions and Namespaces, and creates, repairs and
//! deletes pods in order or concurrently. It also adopts and releases pods, creates claims and sets their owners, keeps
//! the history of templates, and writes StatefulSet statuses. Upstream: pkg/controller/statefulset.

mod act;
mod decide;
mod identity;
mod keys;
mod metrics;
mod pods;
mod retention;
mod revisions;
mod state;
mod status;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{ControllerRevision, Namespace, PersistentVolumeClaim, Pod, Sections, StatefulSet};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::telemetry::StaleSyncs;
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::creation_gate::CreationGate;
use decide::Gates;
use metrics::Availability;
use state::StatefulSets;

/// Name of the event source.
const COMPONENT: &str = "statefulset-controller";

/// Shortest time between two reconciles for changes of pods that only change counts in the status.
const STATUS_WINDOW: Duration = Duration::from_millis(50);
/// Maximum of that time, which doubles from [`STATUS_WINDOW`] while pods keep changing.
const MAX_STATUS_WINDOW: Duration = Duration::from_millis(800);

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
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions {
        window: STATUS_WINDOW,
        max_window: MAX_STATUS_WINDOW,
        ..QueueOptions::named("statefulset")
    });
    let gates = &context.options.gates;
    let gate = CreationGate::new(manager.registry().store());
    gate.wake_on_new_namespace(&manager.registry().store::<StatefulSet>(), &queue);
    let reconciler = Arc::new(StatefulSets {
        sets: manager.registry().store::<StatefulSet>(),
        pods: manager.registry().store::<Pod>(),
        claims: manager.registry().store::<PersistentVolumeClaim>(),
        revisions: manager.registry().store::<ControllerRevision>(),
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        consistency: Arc::default(),
        memory: Default::default(),
        queue: queue.clone(),
        clock: context.clock.clone(),
        gates: Gates {
            max_unavailable: gates.enabled("MaxUnavailableStatefulSet"),
            recreate: gates.enabled("StatefulSetRecreateStrategy"),
            semantic: gates.enabled("StatefulSetSemanticRevisionComparison"),
        },
        debouncer: Default::default(),
        unavailable: Arc::default(),
        gate,
        handover: Default::default(),
        refusals: Default::default(),
        revision_refusals: Default::default(),
    });
    let bounded = reconciler.gates.max_unavailable;
    let (sets, unavailable) = (reconciler.sets.clone(), reconciler.unavailable.clone());
    manager.collect(Availability { sets, bounded, unavailable });
    keys::subscribe(&keys::Wiring {
        sets: &reconciler.sets,
        pods: &reconciler.pods,
        claims: &reconciler.claims,
        queue: &queue,
        consistency: &reconciler.consistency,
    });
    let consistency = reconciler.consistency.clone();
    manager.collect(StaleSyncs { subsystem: "statefulset_controller", kind: "StatefulSet", consistency });
    let workers = context.workers("concurrent-statefulset-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
