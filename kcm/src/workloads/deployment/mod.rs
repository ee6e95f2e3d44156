//! deployment-controller: keeps ReplicaSets so that a Deployment's pods follow its template and scale.
//!
//! It never scales beyond the strategy's surge, removes no more available pods than the strategy allows, and keeps a
//! history for rollbacks. The policy is pure: `decide` chooses the mode of a sync, `decide_revision` computes
//! revisions and rollbacks, `decide_scale` numbers of pods, `decide_status` the status. Upstream:
//! pkg/controller/deployment.

mod decide;
mod decide_revision;
mod decide_scale;
mod decide_status;
mod keys;
mod notice;
mod sets;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{Deployment, Namespace, Pod, ReplicaSet, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::creation_gate::CreationGate;
use sync::Deployments;

/// Name of the event source.
const COMPONENT: &str = "deployment-controller";

/// Shortest time between two reconciles for changes of only the statuses of the Deployment and its ReplicaSets.
const STATUS_WINDOW: Duration = Duration::from_millis(50);
/// Maximum of that time, which doubles from [`STATUS_WINDOW`] while the statuses keep changing.
const MAX_STATUS_WINDOW: Duration = Duration::from_millis(200);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "deployment-controller",
    service_account: "deployment-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "apps", resource: "replicasets" },
        Write { verb: Verb::Update, group: "apps", resource: "replicasets" },
        Write { verb: Verb::Patch, group: "apps", resource: "replicasets" },
        Write { verb: Verb::Delete, group: "apps", resource: "replicasets" },
        Write { verb: Verb::Update, group: "apps", resource: "deployments" },
        Write { verb: Verb::Update, group: "apps", resource: "deployments/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("deployment", "Deployment")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Deployment>(Deployment::TEMPLATE, &[by_namespace()]);
    builder.need::<ReplicaSet>(ReplicaSet::TEMPLATE, &[by_controller()]);
    builder.need::<Pod>(Sections::default(), &[by_controller()]);
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions {
        window: STATUS_WINDOW,
        max_window: MAX_STATUS_WINDOW,
        ..QueueOptions::named("deployment")
    });
    let registry = manager.registry();
    let (deployments, sets, pods) = (registry.store::<Deployment>(), registry.store(), registry.store());
    let gate = CreationGate::new(registry.store());
    gate.wake_on_new_namespace(&deployments, &queue);
    let reconciler = Arc::new(Deployments {
        deployments: deployments.clone(),
        sets: sets.clone(),
        pods: pods.clone(),
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        consistency: Arc::default(),
        queue: queue.clone(),
        clock: context.clock.clone(),
        debouncer: Default::default(),
        gate,
        refusals: Default::default(),
        counts_terminating: context.options.gates.enabled("DeploymentReplicaSetTerminatingReplicas"),
    });
    keys::subscribe(&deployments, &sets, &pods, &queue, &reconciler.consistency);
    let workers = context.workers("concurrent-deployment-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
