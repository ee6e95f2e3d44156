//! persistentvolume-binder-controller: binds claims to volumes, requests volumes from provisioners, and reclaims
//! volumes whose claims were deleted.
//!
//! A binding is two references: the volume's to the claim, then the claim's to the volume. Every update contains the
//! version that was decided on, so that neither a crash between writes nor an outdated cache leads to a claim or volume
//! that is bound twice. Upstream: pkg/controller/volume/persistentvolume.

mod claim_sync;
mod decide_claim;
mod decide_volume;
mod draft;
mod host_path;
mod keys;
mod matcher;
mod metrics;
mod migration_edits;
mod names;
mod notices;
mod provision;
mod reclaim;
mod reconciler;
mod recycle;
mod recycler_pod;
mod recycling;
mod references;
mod reserved_volumes;
#[cfg(test)]
mod tests;
mod volume_index;
mod volume_sync;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use kinds::{Node, PersistentVolume, PersistentVolumeClaim, Pod, Sections, StorageClass};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Start, Verb, Write};
use crate::storage::indexes::{claims_by_volume, pods_by_claim};
use crate::storage::pvc_protection;
use claim_sync::Claims;
use matcher::Matcher;
use metrics::{Operations, Totals};
use notices::Notices;
use reconciler::{Binder, Settings};
use recycler_pod::Recyclers;
use volume_sync::Volumes;

/// Name of the event source.
const COMPONENT: &str = "persistentvolume-controller";

/// Number of claims, and of volumes, that are reconciled concurrently. Upstream has one worker for each, and reaches
/// about 30 bindings per second. Here a volume is reserved for one claim before it is written, so that several workers
/// never choose the same volume.
const WORKERS: usize = 40;

/// Minimum of the sync period: a shorter one, or zero, would reconcile waiting claims continuously.
const MIN_SYNC_PERIOD: Duration = Duration::from_millis(100);

/// Requests per second, as a multiple of other controllers' limit: a binding takes four writes and up to two reads.
const QPS_FACTOR: u16 = 5;
/// Burst of requests, as a multiple of other controllers' limit.
const BURST_FACTOR: u32 = 5;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-binder-controller",
    service_account: "persistent-volume-binder",
    prepare,
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "", resource: "persistentvolumes" },
        Write { verb: Verb::Update, group: "", resource: "persistentvolumes" },
        Write { verb: Verb::Delete, group: "", resource: "persistentvolumes" },
        Write { verb: Verb::Update, group: "", resource: "persistentvolumes/status" },
        Write { verb: Verb::Update, group: "", resource: "persistentvolumeclaims" },
        Write { verb: Verb::Update, group: "", resource: "persistentvolumeclaims/status" },
        Write { verb: Verb::Create, group: "", resource: "pods" },
        Write { verb: Verb::Delete, group: "", resource: "pods" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("claims", "PersistentVolumeClaim"), QueueKeys::of("volumes", "PersistentVolume")],
    finalizers: &[Finalizer {
        name: names::CONTROLLER_FINALIZER,
        removed: "once the storage of the released volume was deleted, or this controller no longer has to delete it",
    }],
    start,
    ..Descriptor::NONE
};

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    Recyclers::read(&context.options.values)?;
    Ok(Start::Run)
}

fn has_host_path(context: &Context) -> bool {
    context.options.values.get_bool("enable-hostpath-provisioner")
}

fn watches(builder: &mut Builder, context: &Context) {
    builder.need::<PersistentVolume>(PersistentVolume::WHOLE_WHILE_PENDING, &[]);
    builder.need::<PersistentVolumeClaim>(PersistentVolumeClaim::WHOLE_WHILE_PENDING, &[claims_by_volume()]);
    builder.need::<StorageClass>(Sections::default(), &[]);
    builder.need::<Pod>(Pod::VOLUMES, &[pods_by_claim()]);
    if has_host_path(context) {
        builder.need::<Node>(Sections::default(), &[]);
    }
}

fn start(manager: &mut Manager, context: &Context) {
    let values = &context.options.values;
    let registry = manager.registry();
    let binder = Arc::new(Binder {
        claims: registry.store::<PersistentVolumeClaim>(),
        volumes: registry.store::<PersistentVolume>(),
        classes: registry.store::<StorageClass>(),
        pods: registry.store::<Pod>(),
        nodes: has_host_path(context).then(|| registry.store::<Node>()),
        writer: manager.faster_writer(DESCRIPTOR.service_account, QPS_FACTOR, BURST_FACTOR),
        claim_queue: Queue::new(QueueOptions::named("claims")),
        volume_queue: Queue::new(QueueOptions::named("volumes")),
        matcher: Arc::new(Matcher::default()),
        operations: Operations::new(manager.metrics()),
        notices: Notices::new(manager.recorder(COMPONENT, DESCRIPTOR.service_account)),
        recycling: Default::default(),
        clock: context.clock.clone(),
        settings: Settings {
            sync_period: values.get_duration("pvclaimbinder-sync-period").max(MIN_SYNC_PERIOD),
            is_dynamic: values.get_bool("enable-dynamic-provisioning"),
            has_host_path: has_host_path(context),
            tracks_unused: pvc_protection::maintains_unused(context),
            recyclers: Recyclers::read(values).map_err(|error| format!("{error:#}")),
        },
    });
    manager.collect(Totals { volumes: binder.volumes.clone(), claims: binder.claims.clone() });
    keys::subscribe(&keys::Wiring {
        claims: &binder.claims,
        volumes: &binder.volumes,
        classes: &binder.classes,
        pods: &binder.pods,
        claim_queue: &binder.claim_queue,
        volume_queue: &binder.volume_queue,
        matcher: &binder.matcher,
    });
    let work = WorkOptions { name: DESCRIPTOR.name, workers: WORKERS };
    manager.add(work, binder.claim_queue.clone(), Arc::new(Claims(binder.clone())));
    manager.add(work, binder.volume_queue.clone(), Arc::new(Volumes(binder)));
}
