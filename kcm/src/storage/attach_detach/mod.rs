//! persistentvolume-attach-detach-controller: attaches volumes to the nodes whose pods use them, and detaches them
//! afterwards.
//!
//! The API objects are the state: a VolumeAttachment exists from before the driver attaches a volume until after the
//! driver has detached it. A node's status lists the volumes that its kubelet may mount. A reconcile of a volume
//! derives everything else from the caches, so that a crash between any two writes loses nothing. Upstream:
//! pkg/controller/volume/attachdetach; driven by events instead of a loop.
//!
//! Order of the writes, which kubelets rely on:
//!
//! - Attach: create the VolumeAttachment; wait for the driver; list the volume in the node's status.
//! - Detach: remove the volume from the node's status; check with the API server that the kubelet does not use the
//!   volume, or that the detachment may be forced; delete the VolumeAttachment; wait until it no longer exists.
//!
//! A volume for one node is attached only if it certainly is not attached to another node.

mod attach;
mod backoff;
mod changes;
mod decide;
mod decide_wait;
mod definitions;
mod detach;
mod indexes;
mod keys;
mod memory;
mod messages;
mod metrics;
mod node_list;
mod node_status;
mod observe;
mod reconcile;
mod resolve;
#[cfg(test)]
mod tests;
mod totals;
mod undecodable;
mod unresolved;

use std::sync::Arc;
use std::time::Duration;

use kinds::{CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, Sections, VolumeAttachment};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::pods::indexes::by_node;
use crate::storage::indexes::pods_by_claim;
use crate::storage::inline_volume::pods_by_inline_volume;
use metrics::Operations;
use node_status::NodeStatuses;
use observe::{Caches, uncached_nodes};
use reconcile::{AttachDetach, Settings, Volumes};
use resolve::Drivers;
use totals::Totals;

/// Name of the event source.
const COMPONENT: &str = "attachdetach-controller";
const VOLUMES: &str = "attachdetach_volumes";
const NODES: &str = "attachdetach_nodes";
const DRIVERS: &str = "attachdetach_drivers";

/// Volumes that are reconciled at the same time. Upstream sets no limit.
const VOLUME_WORKERS: usize = 50;
/// Nodes whose status is written at the same time. Upstream writes one after the other.
const NODE_WORKERS: usize = 20;

/// First pause after a failure.
const BASE_DELAY: Duration = Duration::from_millis(500);
/// Maximum pause after failures.
const MAX_DELAY: Duration = Duration::from_secs(122);

/// Multiple of the requests per second of other controllers: the move of a volume to another node takes up to four
/// writes and a read.
const QPS_FACTOR: u16 = 5;
/// Multiple of the burst of requests of other controllers.
const BURST_FACTOR: u32 = 5;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolume-attach-detach-controller",
    service_account: "attachdetach-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "storage.k8s.io", resource: "volumeattachments" },
        Write { verb: Verb::Delete, group: "storage.k8s.io", resource: "volumeattachments" },
        Write { verb: Verb::Patch, group: "", resource: "nodes/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::other(VOLUMES), QueueKeys::of(NODES, "Node"), QueueKeys::other(DRIVERS)],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    let pods = [pods_by_claim(), indexes::pods_by_claim_and_node(), pods_by_inline_volume(), by_node()];
    builder.need::<Pod>(Pod::VOLUMES, &pods);
    builder.need::<Node>(Node::VOLUMES, &[indexes::nodes_by_attached_volume()]);
    builder.need::<PersistentVolumeClaim>(Sections::default(), &[]);
    builder.need::<PersistentVolume>(Sections::default(), &[crate::storage::volume_name::volumes_by_unique_name()]);
    builder.need::<VolumeAttachment>(Sections::default(), &[indexes::attachments_by_volume()]);
    builder.need::<CsiDriver>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let values = &context.options.values;
    let registry = manager.registry();
    let caches = Caches {
        pods: registry.store(),
        nodes: registry.store(),
        claims: registry.store(),
        volumes: registry.store(),
        attachments: registry.store(),
        drivers: registry.store(),
        unresolved: Default::default(),
    };
    let is_synced = !values.get_bool("disable-attach-detach-reconcile-sync");
    let options = |name| QueueOptions { base_delay: BASE_DELAY, max_delay: MAX_DELAY, ..QueueOptions::named(name) };
    let writer = manager.faster_writer(DESCRIPTOR.service_account, QPS_FACTOR, BURST_FACTOR);
    let shared = Arc::new(AttachDetach {
        node_reads: uncached_nodes(writer.clone(), caches.nodes.clone()),
        caches,
        memory: Default::default(),
        consistency: Default::default(),
        writer,
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        volume_queue: Queue::new(options(VOLUMES)),
        node_queue: Queue::new(QueueOptions::named(NODES)),
        driver_queue: Queue::new(QueueOptions::named(DRIVERS)),
        operations: Operations::new(manager.metrics()),
        settings: Settings {
            is_timeout_disabled: values.get_bool("disable-force-detach-on-timeout"),
            sync_period: is_synced.then(|| values.get_duration("attach-detach-reconcile-sync-period")),
        },
        term: Default::default(),
    });
    manager.collect(Totals(shared.clone()));
    keys::subscribe(&shared);
    let work = |workers| WorkOptions { name: DESCRIPTOR.name, workers };
    manager.add(work(VOLUME_WORKERS), shared.volume_queue.clone(), Arc::new(Volumes(shared.clone())));
    manager.add(work(NODE_WORKERS), shared.node_queue.clone(), Arc::new(NodeStatuses(shared.clone())));
    manager.add(work(1), shared.driver_queue.clone(), Arc::new(Drivers(shared)));
}
