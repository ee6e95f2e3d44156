//! resourcepoolstatusrequest-controller: writes the state of a driver's device pools into ResourcePoolStatusRequests.
//!
//! It writes the status of a request once, when all slices of the requested pools are published, and deletes the
//! request an hour later. A request without a status is deleted after a day. Upstream:
//! pkg/controller/resourcepoolstatusrequest.

mod decide;
mod drivers;
mod metrics;
mod partitions;
mod sync;
mod taints;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::resource_claim::ResourceClaim;
use kinds::{DeviceTaintRule, Kind, ResourcePoolStatusRequest, ResourceSlice, Sections, Str};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, index_key};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use drivers::Drivers;
use metrics::Metrics;
use sync::Requests;

const NAME: &str = "resourcepoolstatusrequest-controller";

/// The gate with which rules taint devices.
const TAINT_RULES: &str = "DRADeviceTaintRules";

/// The queue of drivers whose slices have changed.
const DRIVERS_QUEUE: &str = "resourcepoolstatusrequest-drivers";
/// Changes of a driver's slices are coalesced over this time.
const SLICE_WINDOW: Duration = Duration::from_millis(100);
/// The window doubles up to this time while slices keep changing: each window ends with a reconcile of all requests
/// that wait for the driver.
const MAX_SLICE_WINDOW: Duration = Duration::from_secs(10);

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
    queues: &[QueueKeys::of(NAME, "ResourcePoolStatusRequest"), QueueKeys::other(DRIVERS_QUEUE)],
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

/// Index of claims by the drivers of their allocated devices.
const BY_ALLOCATED_DRIVER: Index<ResourceClaim> = Index {
    name: "allocated driver",
    keys: |claim, emit| {
        let devices = claim.allocation.iter().flat_map(|allocation| &allocation.devices);
        devices.map(|device| &device.driver).collect::<BTreeSet<_>>().into_iter().for_each(|driver| {
            emit(allocated_from(driver));
        });
    },
};

fn allocated_from(driver: &str) -> u64 {
    index_key(("allocated driver", driver))
}

fn watches(builder: &mut Builder, context: &Context) {
    builder.need::<ResourcePoolStatusRequest>(Sections::default(), &[PENDING]);
    builder.need::<ResourceSlice>(ResourceSlice::SPEC, &[BY_DRIVER]);
    builder.need::<ResourceClaim>(ResourceClaim::ALLOCATION, &[BY_ALLOCATED_DRIVER]);
    if context.options.gates.enabled(TAINT_RULES) {
        builder.need::<DeviceTaintRule>(Sections::default(), &[]);
    }
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named(NAME));
    let driver_queue = Queue::new(QueueOptions {
        window: SLICE_WINDOW,
        max_window: MAX_SLICE_WINDOW,
        ..QueueOptions::named(DRIVERS_QUEUE)
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
    let changed = driver_queue.clone();
    slices.subscribe(move |change| {
        if let Some(slice) = change.new.or(change.old) {
            changed.add_coalesced(ObjectKey { namespace: Str::default(), name: slice.driver.clone() });
        }
    });
    let drivers = Arc::new(Drivers { requests: requests.clone(), queue: queue.clone() });
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
    let work = WorkOptions { name: NAME, workers: 1 };
    manager.add(work, queue, reconciler);
    manager.add(work, driver_queue, drivers);
}
