//! service-cidr-controller: sets the condition Ready of ServiceCIDRs, the ranges from which Services get their
//! addresses, and blocks the deletion of a range while a Service needs it.
//!
//! Upstream: pkg/controller/servicecidrs.

mod decide;
mod sync;

use std::sync::{Arc, Mutex};

use kinds::{IpAddress, Sections, ServiceCidr};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use sync::Ranges;

/// Name of the controller, of its event source and of its field manager.
const NAME: &str = "service-cidr-controller";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    service_account: "service-cidrs-controller",
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "networking.k8s.io", resource: "servicecidrs" },
        Write { verb: Verb::Patch, group: "networking.k8s.io", resource: "servicecidrs/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::of("ipaddresses", "ServiceCIDR")],
    finalizers: &[Finalizer {
        name: "networking.k8s.io/service-cidr-finalizer",
        removed: "once no Service has an address that only this range contains",
    }],
    start,
    ..Descriptor::NONE
};

const WORKERS: usize = 5;

fn watches(builder: &mut Builder, _: &Context) {
    builder.need_if_served::<ServiceCidr>(Sections::default(), &[]);
    builder.need_if_served::<IpAddress>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("ipaddresses"));
    let ranges = manager.registry().store::<ServiceCidr>();
    let addresses = manager.registry().store::<IpAddress>();
    let (changed, all) = (queue.clone(), ranges.clone());
    ranges.subscribe(move |change| {
        if let Some(range) = change.new.or(change.old) {
            changed.add(range.meta.key());
        }
        // A new range may contain the addresses of one that is being deleted.
        if let (None, Some(new)) = (change.old, change.new) {
            let terminating =
                all.all().into_iter().filter(|range| range.meta.is_deleting() && decide::overlap(range, new));
            terminating.for_each(|range| changed.add(range.meta.key()));
        }
    });
    let (changed, all) = (queue.clone(), ranges.clone());
    addresses.subscribe(move |change| {
        // An update does not change the address.
        if change.old.is_some() == change.new.is_some() {
            return;
        }
        let Some(address) = change.old.or(change.new).and_then(|address| decide::service_address(address)) else {
            return;
        };
        // Only the deletion of a range depends on addresses.
        let terminating =
            all.all().into_iter().filter(|range| range.meta.is_deleting() && decide::can_allocate(range, address));
        terminating.for_each(|range| changed.add(range.meta.key()));
    });
    let reconciler = Arc::new(Ranges {
        ranges,
        addresses,
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(NAME, DESCRIPTOR.service_account),
        consistency: Consistency::default(),
        queue: queue.clone(),
        clock: context.clock.clone(),
        blocking_address: Mutex::default(),
    });
    manager.add(WorkOptions { name: NAME, workers: WORKERS }, queue, reconciler);
}
