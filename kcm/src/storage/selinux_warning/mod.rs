//! selinux-warning-controller: warns of pods that may use the same volume with different SELinux labels.
//!
//! A volume is mounted on a node with one label. Two pods on the same node cannot use the volume if their labels
//! differ, or if one relabels the files and the other mounts with a label. All pods are compared, whether or not they
//! run on the same node. The controller writes only events. Upstream: pkg/controller/volume/selinuxwarning.

mod keys;
mod label;
mod metrics;
mod sync;
mod used_volumes;

use std::sync::Arc;

use kinds::{CsiDriver, PersistentVolume, PersistentVolumeClaim, Pod, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use super::indexes::pods_by_claim;
use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use metrics::ConflictGauges;
use sync::SelinuxWarnings;
use used_volumes::UsedVolumes;

/// Name of the queue and of the event source.
const SELINUX_WARNING: &str = "selinux_warning";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "selinux-warning-controller",
    service_account: "selinux-warning-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of(SELINUX_WARNING, "Pod")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Pod>(Pod::VOLUMES | Pod::SELINUX, &[pods_by_claim()]);
    builder.need::<PersistentVolumeClaim>(Sections::default(), &[]);
    builder.need::<PersistentVolume>(Sections::default(), &[]);
    builder.need::<CsiDriver>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, _: &Context) {
    let queue = Queue::new(QueueOptions::named(SELINUX_WARNING));
    let registry = manager.registry();
    let reconciler = Arc::new(SelinuxWarnings {
        pods: registry.store::<Pod>(),
        claims: registry.store::<PersistentVolumeClaim>(),
        volumes: registry.store::<PersistentVolume>(),
        drivers: registry.store::<CsiDriver>(),
        used: Arc::<UsedVolumes>::default(),
        recorder: manager.recorder(SELINUX_WARNING, DESCRIPTOR.service_account),
    });
    keys::subscribe(&reconciler, &queue);
    manager.metrics().collect(ConflictGauges(reconciler.used.clone()));
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: 1 }, queue, reconciler);
}
