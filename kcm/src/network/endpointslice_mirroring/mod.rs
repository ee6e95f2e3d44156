//! endpointslice-mirroring-controller: keeps EndpointSlices equal to the Endpoints that users have written.
//!
//! It watches Endpoints, Services, EndpointSlices and Namespaces, and writes EndpointSlices. Upstream:
//! pkg/controller/endpointslicemirroring.

mod decide;
mod keys;
mod metrics;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::endpoint_slice::MIRRORED;
use kinds::{EndpointSlice, Endpoints, Namespace, Sections, Service};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::network::service_endpoints::MAX_REFUSAL_DELAY;
use crate::network::service_endpoints::slice_keys::{self, by_service};
use crate::network::service_endpoints::slice_writes::SliceWrites;
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::Refusals;
use metrics::{Counts, CountsCollector};
use sync::Mirror;

/// Name of the event source.
const COMPONENT: &str = "endpoint-slice-mirroring-controller";

/// First and longest delay after a failure. Upstream: pkg/controller/endpointslicemirroring, defaultSyncBackOff and
/// maxSyncBackOff.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(100));

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "endpointslice-mirroring-controller",
    service_account: "endpointslicemirroring-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "discovery.k8s.io", resource: "endpointslices" },
        Write { verb: Verb::Update, group: "discovery.k8s.io", resource: "endpointslices" },
        Write { verb: Verb::Delete, group: "discovery.k8s.io", resource: "endpointslices" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("endpoint_slice_mirroring", "Endpoints")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Endpoints>(Sections::default(), &[]);
    builder.need::<Service>(Sections::default(), &[]);
    builder.need::<EndpointSlice>(EndpointSlice::CONTENTS, &[by_service()]);
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let (base_delay, max_delay) = BACKOFF;
    let queue = Queue::new(QueueOptions { base_delay, max_delay, ..QueueOptions::named("endpoint_slice_mirroring") });
    let registry = manager.registry();
    let (endpoints, services, slices) =
        (registry.store::<Endpoints>(), registry.store::<Service>(), registry.store::<EndpointSlice>());
    let values = &context.options.values;
    let max_endpoints = usize::try_from(values.get_i64("mirroring-max-endpoints-per-subset")).unwrap_or(1).max(1);
    let counts = Arc::new(Counts::new(slices.clone(), max_endpoints));
    manager.collect(CountsCollector(counts.clone()));
    let reconciler = Arc::new(Mirror {
        endpoints: endpoints.clone(),
        services: services.clone(),
        writes: SliceWrites {
            slices: slices.clone(),
            writer: manager.writer(DESCRIPTOR.service_account),
            consistency: Arc::default(),
            own: Arc::default(),
            queue: queue.clone(),
            manager: MIRRORED,
            delay: values.get_duration("mirroring-endpointslice-updates-batch-period"),
            gate: CreationGate::new(manager.registry().store()),
            refusals: Refusals::with_delays(base_delay, MAX_REFUSAL_DELAY),
            pace: Default::default(),
        },
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        max_endpoints,
        counts,
    });
    keys::subscribe(&endpoints, &services, &queue);
    slice_keys::subscribe(&slices, MIRRORED, &reconciler.writes.own, &queue, reconciler.writes.delay);
    let workers = context.workers("mirroring-concurrent-service-endpoint-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
