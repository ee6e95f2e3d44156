//! resourcepoolstatusrequest-controller: writes the state of a driver's device pools into ResourcePoolStatusRequests.
//!
//! It writes the status of a request once, when all slices of the requested pools are published, and deletes the
//! request some time later. Upstream: pkg/controller/resourcepoolstatusrequest.

mod decide;
mod metrics;
mod partitions;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::resource_claim::ResourceClaim;
use kinds::{DeviceTaintRule, Kind, ResourcePoolStatusRequest, ResourceSlice, Sections};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, index_key};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use metrics::Metrics;
use sync::Requests;

const NAME: &str = "resourcepoolstatusrequest-controller";

/// The gate with which rules taint devices.
const TAINT_RULES: &str = "DRADeviceTaintRules";

/// Changes of a driver's slices are coalesced over this time.
const SLICE_WINDOW: Duration = Duration::from_millis(100);
/// Maximum of this time while slices keep changing.
const LONGEST_SLICE_WINDOW: Duration = Duration::from_secs(1);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    service_account: NAME,
    requires: &[ResourcePoolStatusRequest::RESOURCE],
    watches,
    writes: &[
        Write { verb: Verb::Update, group: "resource.k8s.io", resource: "resourcepoolstatusrequests/status" },
        Write { verb: Verb::Delete, group: "resource.k8s.io", resource: "resourcepoolstatusrequests" },
    ],
    queues: &[QueueKeys::of(NAME, "ResourcePoolStatusRequest")],
    start,
    ..Descriptor::NONE
};

/// Index of requests without a status, by their driver.
const PENDING: Index<ResourcePoolStatusRequest> = Index {
    name: "pending by driver",
    keys: |request, emit| {
        if request.completed.is_none() {
            emit(index_key(&*request.driver));
        }
    },
};

/// Index of slices by their driver.
const BY_DRIVER: Index<ResourceSlice> =
    Index { name: "driver", keys: |slice, emit| emit(index_key(("driver", &*slice.driver))) };

fn watches(builder: &mut Builder, context: &Context) {
    builder.need::<ResourcePoolStatusRequest>(Sections::default(), &[PENDING]);
    builder.need::<ResourceSlice>(ResourceSlice::SPEC, &[BY_DRIVER]);
    builder.need::<ResourceClaim>(ResourceClaim::ALLOCATION, &[]);
    if context.options.gates.enabled(TAINT_RULES) {
        builder.need::<DeviceTaintRule>(Sections::default(), &[]);
    }
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions {
        window: SLICE_WINDOW,
        longest_window: LONGEST_SLICE_WINDOW,
        ..QueueOptions::named(NAME)
    });
    let registry = manager.registry();
    let requests = registry.store::<ResourcePoolStatusRequest>();
    let slices = registry.store::<ResourceSlice>();
    let changed = queue.clone();
    requests.subscribe(move |change| {
        if let Some(request) = change.new {
            changed.add(request.meta.key());
        }
    });
    let (changed, known) = (queue.clone(), requests.clone());
    slices.subscribe(move |change| {
        let Some(slice) = change.new.or(change.old) else { return };
        for request in known.by_index(&PENDING, index_key(&*slice.driver)) {
            changed.add_coalesced(request.meta.key());
        }
    });
    let metrics = Arc::new(Metrics::default());
    manager.collect(metrics.clone());
    let reconciler = Arc::new(Requests {
        requests,
        slices,
        claims: registry.store(),
        rules: context.options.gates.enabled(TAINT_RULES).then(|| registry.store()),
        writer: manager.writer(DESCRIPTOR.service_account),
        consistency: Consistency::default(),
        queue: queue.clone(),
        clock: context.clock.clone(),
        metrics,
    });
    manager.add(WorkOptions { name: NAME, workers: 1, max_retries: None }, queue, reconciler);
}
