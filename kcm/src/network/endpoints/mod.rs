//! endpoints-controller: keeps the Endpoints of each Service equal to the pods that it selects.
//!
//! It watches Services, Pods, Endpoints and Namespaces, and writes Endpoints. Upstream: pkg/controller/endpoint.

mod decide;
mod initial_endpoints;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kinds::{Endpoints, Namespace, Pod, Sections, Service};
use runtime::debounce::StatusDebouncer;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use crate::network::service_endpoints::{MAX_REFUSAL_DELAY, pods};
use crate::pods::creation_gate::CreationGate;
use crate::pods::indexes::by_label;
use crate::pods::refusals::Refusals;
use sync::AllEndpoints;

/// Name of the event source.
const COMPONENT: &str = "endpoint-controller";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "endpoints-controller",
    service_account: "endpoint-controller",
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "", resource: "endpoints" },
        Write { verb: Verb::Update, group: "", resource: "endpoints" },
        Write { verb: Verb::Delete, group: "", resource: "endpoints" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("endpoint", "Service")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Service>(Sections::default(), &[]);
    builder.need::<Pod>(Pod::NETWORK, &[by_label()]);
    builder.need::<Endpoints>(Endpoints::WHOLE, &[]);
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("endpoint"));
    let registry = manager.registry();
    let (services, all_pods, endpoints) =
        (registry.store::<Service>(), registry.store::<Pod>(), registry.store::<Endpoints>());
    let reconciler = Arc::new(AllEndpoints {
        services: services.clone(),
        pods: all_pods.clone(),
        endpoints: endpoints.clone(),
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        consistency: Arc::default(),
        queue: queue.clone(),
        triggers: Default::default(),
        debouncer: StatusDebouncer::default(),
        initial_endpoints: Arc::default(),
        gate: CreationGate::new(manager.registry().store()),
        refusals: Refusals::with_max_delay(MAX_REFUSAL_DELAY),
        pace: Default::default(),
    });
    pods::subscribe(&services, &all_pods, &queue, context.options.values.get_duration("endpoint-updates-batch-period"));
    let (initial_endpoints, requeued) = (reconciler.initial_endpoints.clone(), queue.clone());
    endpoints.subscribe(move |change| {
        initial_endpoints.apply(change);
        // Differs from upstream: the deletion of Endpoints without a Service does not requeue the key. A user may have
        // replaced the Endpoints, and the reconcile would delete the new ones.
        if let (Some(deleted), None) = (change.old, change.new)
            && services.get(&deleted.meta.key()).is_some()
        {
            requeued.add(deleted.meta.key());
        }
    });
    let workers = context.workers("concurrent-endpoint-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
