//! resourcequota-controller: writes the usage of a namespace into each ResourceQuota's status.
//!
//! Admission adds to the usage when objects are created. This controller counts when a quota is new or changed, when
//! objects are added or deleted or their amounts change, and once per period. It counts from caches and from the census
//! of the kinds that quotas name, and lists nothing. Upstream: pkg/controller/resourcequota and pkg/quota.

mod amounts;
mod census;
mod decide;
mod keys;
mod recounts;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::resource_claim::{DeviceClass, ResourceClaim};
use kinds::{PersistentVolumeClaim, Pod, ResourceQuota, Sections, Service};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, by_controller, by_namespace, index_key};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::flags::Gates;
use census::Census;
use recounts::Recounts;
use sync::Quotas;

/// Initial time over which changes are coalesced.
const WINDOW: Duration = Duration::from_millis(100);
/// Maximum of the coalescing time, while many objects change.
const MAX_WINDOW: Duration = Duration::from_millis(200);

/// Longest time between two checks for a kind that a quota counts and that the server does not serve.
const UNSERVED_KIND_MAX_DELAY: Duration = Duration::from_secs(30);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "resourcequota-controller",
    service_account: "resourcequota-controller",
    watches,
    writes: &[Write { verb: Verb::Update, group: "", resource: "resourcequotas/status" }],
    queues: &[QueueKeys::of("resourcequota_primary", "ResourceQuota")],
    start,
    ..Descriptor::NONE
};

/// Index of all device classes under one value; there are few.
const CLASSES: Index<DeviceClass> = Index { name: "all", keys: |_, emit| emit(index_key(())) };

/// Returns the sections of pods to decode. The gates determine how resources of the pod itself count.
fn pod_sections(gates: &Gates) -> Sections {
    let unless = |gate: &str, sections| if gates.enabled(gate) { Sections::default() } else { sections };
    Pod::USAGE
        | unless("PodLevelResources", Pod::CONTAINER_RESOURCES_ONLY)
        | unless("PodLevelResourcesFixKubeletQOSClass", Pod::ANY_POD_RESOURCES_DECIDE)
}

fn watches(builder: &mut Builder, context: &Context) {
    builder.need::<ResourceQuota>(Sections::default(), &[by_namespace()]);
    builder.need::<Pod>(pod_sections(&context.options.gates), &[by_namespace()]);
    builder.need::<Service>(Service::BALANCING, &[by_namespace()]);
    builder.need::<PersistentVolumeClaim>(PersistentVolumeClaim::STORAGE, &[by_namespace()]);
    builder.need_if_served::<ResourceClaim>(Sections::default(), &[by_namespace(), by_controller()]);
    builder.need_if_served::<DeviceClass>(Sections::default(), &[CLASSES]);
    builder.need_named_kinds();
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions {
        window: WINDOW,
        max_window: MAX_WINDOW,
        max_delay: UNSERVED_KIND_MAX_DELAY,
        ..QueueOptions::named("resourcequota_primary")
    });
    let registry = manager.registry();
    let census = Arc::new(Census::default());
    let counted = census.clone();
    registry.every_kind().subscribe(move |change| counted.apply(change));
    let recounts = Arc::new(Recounts::default());
    let reconciler = Arc::new(Quotas {
        quotas: registry.store(),
        pods: registry.store(),
        services: registry.store(),
        volume_claims: registry.store(),
        device_claims: registry.store(),
        device_classes: registry.store(),
        every: registry.every_kind(),
        census,
        recounts: recounts.clone(),
        writer: manager.writer(DESCRIPTOR.service_account),
        queue: queue.clone(),
        clock: context.clock.clone(),
        period: context.options.values.get_duration("resource-quota-sync-period"),
    });
    keys::subscribe(registry, &queue, &recounts);
    let workers = context.workers("concurrent-resource-quota-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
