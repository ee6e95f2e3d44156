//! replicaset-controller: keeps as many pods of one template running as asked.
//!
//! It watches ReplicaSets and Pods, creates and deletes pods, adopts and releases them, and writes ReplicaSet statuses.
//! Follows upstream pkg/controller/replicaset.

mod decide;
mod keys;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{Pod, ReplicaSet, Sections};
use runtime::controller::WorkOptions;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::watch::Builder;

use crate::controllers::{Descriptor, Settings, Verb, Write};
use sync::ReplicaSets;

/// Name of the event source.
const COMPONENT: &str = "replicaset-controller";

/// Changes of pods that only move counts in the status are taken together over this time at first,
const STATUS_WINDOW: Duration = Duration::from_millis(50);
/// and over up to this time while many pods change.
const LONGEST_STATUS_WINDOW: Duration = Duration::from_millis(200);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "replicaset-controller",
    service_account: "replicaset-controller",
    needs,
    writes: &[
        Write { verb: Verb::Create, group: "", resource: "pods" },
        Write { verb: Verb::Delete, group: "", resource: "pods" },
        Write { verb: Verb::Patch, group: "", resource: "pods" },
        Write { verb: Verb::Update, group: "apps", resource: "replicasets/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    start,
};

fn needs(needs: &mut Builder) {
    needs.need::<Pod>(Sections::default(), &[by_controller()]);
    needs.need::<ReplicaSet>(ReplicaSet::TEMPLATE, &[by_controller(), by_namespace()]);
}

fn start(manager: &mut Manager, settings: &Settings) {
    let queue = Queue::new(QueueOptions {
        window: STATUS_WINDOW,
        longest_window: LONGEST_STATUS_WINDOW,
        ..QueueOptions::named("replicaset")
    });
    let (sets, pods) = (manager.registry().store::<ReplicaSet>(), manager.registry().store::<Pod>());
    let reconciler = Arc::new(ReplicaSets {
        sets: sets.clone(),
        pods: pods.clone(),
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        expectations: Arc::default(),
        queue: queue.clone(),
        clock: settings.clock.clone(),
        looked: Default::default(),
        lazy: Default::default(),
        begun: Default::default(),
    });
    keys::subscribe(&sets, &pods, &queue, &reconciler.expectations);
    let workers = settings.workers("concurrent-replicaset-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers, max_retries: None }, queue, reconciler);
}
