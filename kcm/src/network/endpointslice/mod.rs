//! endpointslice-controller: keeps the EndpointSlices of each Service equal to the pods that it selects.
//!
//! It watches Services, Pods, Nodes, EndpointSlices and Namespaces, and writes EndpointSlices. Upstream:
//! pkg/controller/endpointslice and k8s.io/endpointslice.

mod decide;
mod decision;
mod desired;
mod hints;
mod metrics;
mod pack;
mod sync;
#[cfg(test)]
mod tests;
mod topology;

use std::sync::Arc;
use std::time::Duration;

use kinds::endpoint_slice::FROM_PODS;
use kinds::{EndpointSlice, Namespace, Node, Pod, Sections, Service};
use runtime::debounce::StatusDebouncer;
use runtime::lock::lock;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::network::service_endpoints::slice_keys::{self, by_service};
use crate::network::service_endpoints::slice_writes::SliceWrites;
use crate::network::service_endpoints::{MAX_REFUSAL_DELAY, pods};
use crate::pods::creation_gate::CreationGate;
use crate::pods::indexes::by_label;
use crate::pods::refusals::Refusals;
use sync::EndpointSlices;

/// Name of the event source.
const COMPONENT: &str = "endpoint-slice-controller";

/// First and longest delay after a failure. Upstream: pkg/controller/endpointslice, defaultSyncBackOff and
/// maxSyncBackOff.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(1000));

/// The minimum delay between another client's change of a slice and the sync of its Service. Upstream:
/// pkg/controller/endpointslice, endpointSliceChangeMinSyncDelay.
const SLICE_CHANGE_DELAY: Duration = Duration::from_secs(1);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "endpointslice-controller",
    service_account: "endpointslice-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "discovery.k8s.io", resource: "endpointslices" },
        Write { verb: Verb::Update, group: "discovery.k8s.io", resource: "endpointslices" },
        Write { verb: Verb::Delete, group: "discovery.k8s.io", resource: "endpointslices" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("endpoint_slice", "Service")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Service>(Sections::default(), &[]);
    builder.need::<Pod>(Pod::NETWORK, &[by_label()]);
    builder.need::<Node>(Node::CPU, &[]);
    builder.need::<EndpointSlice>(EndpointSlice::CONTENTS, &[by_service()]);
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let (base_delay, max_delay) = BACKOFF;
    let queue = Queue::new(QueueOptions { base_delay, max_delay, ..QueueOptions::named("endpoint_slice") });
    let registry = manager.registry();
    let (services, all_pods) = (registry.store::<Service>(), registry.store::<Pod>());
    let (nodes, slices) = (registry.store::<Node>(), registry.store::<EndpointSlice>());
    let batch = context.options.values.get_duration("endpointslice-updates-batch-period");
    let reconciler = Arc::new(EndpointSlices {
        services: services.clone(),
        pods: all_pods.clone(),
        nodes: nodes.clone(),
        writes: SliceWrites {
            slices: slices.clone(),
            writer: manager.writer(DESCRIPTOR.service_account),
            consistency: Arc::default(),
            own: Arc::default(),
            queue: queue.clone(),
            manager: FROM_PODS,
            delay: SLICE_CHANGE_DELAY.max(batch),
            gate: CreationGate::new(manager.registry().store()),
            refusals: Refusals::with_delays(base_delay, MAX_REFUSAL_DELAY),
            pace: Default::default(),
        },
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        triggers: Default::default(),
        topology: Arc::default(),
        debouncer: StatusDebouncer::default(),
        metrics: Arc::default(),
        max_endpoints: usize::try_from(context.options.values.get_i64("max-endpoints-per-slice")).unwrap_or(1).max(1),
        stranded: Arc::default(),
        compared: Default::default(),
        former: Default::default(),
    });
    pods::subscribe(&services, &all_pods, &queue, batch);
    slice_keys::subscribe(&slices, FROM_PODS, &reconciler.writes.own, &queue, reconciler.writes.delay);
    let (topology, stranded, woken) = (reconciler.topology.clone(), reconciler.stranded.clone(), queue.clone());
    nodes.subscribe(move |change| {
        topology.apply(change).into_iter().for_each(|key| woken.add(key));
        if change.old.is_none() {
            lock(&stranded).drain().for_each(|key| woken.add(key));
        }
    });
    let workers = context.workers("concurrent-service-endpoint-syncs");
    manager.collect(reconciler.metrics.clone());
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
