//! daemonset-controller: keeps one pod of a template on each node that the template allows.
//!
//! It watches DaemonSets, their revisions and pods, nodes and namespaces; it creates and deletes pods, keeps revisions
//! for rollbacks, and writes DaemonSet statuses. The policy is pure: `decide_place` assigns pods to nodes, `decide`
//! plans creations and deletions on each node, `decide_roll` replaces old pods, `decide_revision` finds the current
//! revision, `decide_unknown` limits the plans while Nodes cannot be decoded. Upstream: pkg/controller/daemon.

mod decide;
mod decide_place;
mod decide_revision;
mod decide_roll;
mod decide_unknown;
mod keys;
mod revisions;
mod state;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{ControllerRevision, DaemonSet, Namespace, Node, Pod, Sections};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::telemetry::StaleSyncs;
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::control::PodControl;
use crate::pods::creation_gate::CreationGate;
use state::DaemonSets;

/// Name of the event source.
const COMPONENT: &str = "daemonset-controller";

/// Shortest time between two reconciles for changes of pods that only change counts in the status.
const STATUS_WINDOW: Duration = Duration::from_millis(50);
/// Maximum of that time, which doubles from [`STATUS_WINDOW`] while pods keep changing.
const MAX_STATUS_WINDOW: Duration = Duration::from_millis(800);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "daemonset-controller",
    service_account: "daemon-set-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "", resource: "pods" },
        Write { verb: Verb::Delete, group: "", resource: "pods" },
        Write { verb: Verb::Patch, group: "", resource: "pods" },
        Write { verb: Verb::Update, group: "apps", resource: "daemonsets/status" },
        Write { verb: Verb::Create, group: "apps", resource: "controllerrevisions" },
        Write { verb: Verb::Update, group: "apps", resource: "controllerrevisions" },
        Write { verb: Verb::Patch, group: "apps", resource: "controllerrevisions" },
        Write { verb: Verb::Delete, group: "apps", resource: "controllerrevisions" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("daemonset", "DaemonSet")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Pod>(Pod::TARGET, &[by_controller()]);
    builder.need::<DaemonSet>(DaemonSet::TEMPLATE, &[by_namespace(), keys::ALL]);
    builder.need::<Node>(Sections::default(), &[keys::ALL_NODES]);
    builder.need::<ControllerRevision>(Sections::default(), &[by_controller()]);
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions {
        window: STATUS_WINDOW,
        max_window: MAX_STATUS_WINDOW,
        ..QueueOptions::named("daemonset")
    });
    let gate = CreationGate::new(manager.registry().store());
    let sets = manager.registry().store();
    gate.wake_on_new_namespace(&sets, &queue);
    let consistency = Arc::<Consistency>::default();
    let control = PodControl {
        pods: manager.registry().store(),
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        consistency: consistency.clone(),
        gate,
    };
    let reconciler = Arc::new(DaemonSets {
        sets,
        nodes: manager.registry().store(),
        revisions: manager.registry().store(),
        control,
        queue: queue.clone(),
        clock: context.clock.clone(),
        compares_numbers: context.options.gates.enabled("TaintTolerationComparisonOperators"),
        memory: Default::default(),
        debouncer: Default::default(),
        backoffs: Default::default(),
        handover: Default::default(),
        refusals: Default::default(),
        revision_refusals: Default::default(),
    });
    keys::subscribe(&reconciler);
    manager.collect(StaleSyncs { subsystem: "daemonset_controller", kind: "DaemonSet", consistency });
    let workers = context.workers("concurrent-daemonset-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
