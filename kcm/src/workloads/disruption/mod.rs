//! disruption-controller: writes for each PodDisruptionBudget the number of its pods that may be evicted now.
//!
//! The eviction API reads the number from the budget's status and decrements it; this controller recounts when pods
//! change. It also withdraws announced disruptions: it sets the condition `DisruptionTarget` to false on pods that were
//! not evicted. Upstream: pkg/controller/disruption.

mod announced;
mod decide;
mod keys;
mod owners;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{Deployment, Pod, PodDisruptionBudget, ReplicaSet, ReplicationController, Sections, StatefulSet};
use runtime::debounce::StatusDebouncer;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::scale::Scales;
use runtime::store::by_namespace;
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::indexes::by_label;
use announced::AnnouncedDisruptions;
use owners::Owners;
use sync::Budgets;

/// Name of the event source. Upstream: pkg/controller/disruption, NewDisruptionControllerInternal.
const COMPONENT: &str = "controllermanager";

/// Minimum time over which changes of pods are coalesced if they cannot lower the number of allowed disruptions.
const STATUS_WINDOW: Duration = Duration::from_millis(50);
/// Maximum of that time, which doubles from [`STATUS_WINDOW`] while pods keep changing.
const MAX_STATUS_WINDOW: Duration = Duration::from_millis(400);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "disruption-controller",
    service_account: "disruption-controller",
    watches,
    writes: &[
        Write { verb: Verb::Update, group: "policy", resource: "poddisruptionbudgets/status" },
        Write { verb: Verb::Patch, group: "", resource: "pods/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("disruption", "PodDisruptionBudget"), QueueKeys::of("stale_pod_disruption", "Pod")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<PodDisruptionBudget>(Sections::default(), &[by_namespace()]);
    builder.need::<Pod>(Pod::DISRUPTION, &[by_namespace(), by_label()]);
    builder.need::<ReplicationController>(Sections::default(), &[]);
    builder.need::<ReplicaSet>(Sections::default(), &[]);
    builder.need::<Deployment>(Sections::default(), &[]);
    builder.need::<StatefulSet>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions {
        window: STATUS_WINDOW,
        max_window: MAX_STATUS_WINDOW,
        ..QueueOptions::named("disruption")
    });
    let announced_queue = Queue::new(QueueOptions::named("stale_pod_disruption"));
    let writer = manager.writer(DESCRIPTOR.service_account);
    let recorder = manager.recorder(COMPONENT, DESCRIPTOR.service_account);
    let registry = manager.registry();
    let (budgets, pods) = (registry.store::<PodDisruptionBudget>(), registry.store::<Pod>());
    let owners = Owners {
        replication_controllers: registry.store(),
        replica_sets: registry.store(),
        deployments: registry.store(),
        stateful_sets: registry.store(),
        scales: Scales { discovery: manager.discovery(), watched: registry.watched(), writer: writer.clone() },
    };
    let reconciler = Arc::new(Budgets {
        budgets: budgets.clone(),
        pods: pods.clone(),
        owners,
        writer: writer.clone(),
        recorder: recorder.clone(),
        queue: queue.clone(),
        clock: context.clock.clone(),
        recorded_events: Default::default(),
        debouncer: StatusDebouncer::default(),
    });
    let announced = Arc::new(AnnouncedDisruptions { pods: pods.clone(), writer, clock: context.clock.clone() });
    keys::subscribe(&budgets, &pods, &queue, &announced_queue, &recorder);
    let work = WorkOptions { name: DESCRIPTOR.name, workers: 1 };
    let workers = context.workers("concurrent-disruption-syncs");
    manager.add(WorkOptions { workers, ..work }, queue, reconciler);
    manager.add(work, announced_queue, announced);
}
