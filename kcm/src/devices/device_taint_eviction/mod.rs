//! device-taint-eviction-controller: deletes pods whose devices have a `NoExecute` taint that their ResourceClaims do
//! not tolerate, or no longer tolerate, and reports the progress in the status of DeviceTaintRules.
//!
//! Taints come from the slices that drivers publish, and from rules. The time of a toleration counts from the addition
//! of the taint, so that the next leader continues a countdown. Upstream: pkg/controller/devicetainteviction.

mod decide;
mod keys;
mod metrics;
mod pending;
mod rules;
mod subscriptions;
mod sync;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::resource_claim::ResourceClaim;
use kinds::{DeviceTaintRule, Pod, ResourceSlice, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Verb, Write};
use sync::Evictions;

/// Name of the controller, of its event source and of its field manager.
const NAME: &str = "device-taint-eviction-controller";

/// The shortest time between two updates of the status of a rule whose spec has not changed. Upstream:
/// pkg/controller/devicetainteviction, ruleStatusPeriod.
const STATUS_PERIOD: Duration = Duration::from_secs(10);

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    service_account: NAME,
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "", resource: "pods/status" },
        Write { verb: Verb::Delete, group: "", resource: "pods" },
        Write { verb: Verb::Patch, group: "resource.k8s.io", resource: "devicetaintrules/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::other(NAME)],
    start,
    ..Descriptor::NONE
};

/// The gate with which claims may be reserved for PodGroups.
const GROUP_CLAIMS: &str = "DRAWorkloadResourceClaims";

/// The gate with which rules taint devices.
const TAINT_RULES: &str = "DRADeviceTaintRules";

fn watches(builder: &mut Builder, context: &Context) {
    let has_groups = context.options.gates.enabled(GROUP_CLAIMS);
    builder.need::<Pod>(Pod::DEVICES, if has_groups { &[keys::MEMBERS] } else { &[] });
    builder.need_if_served::<ResourceClaim>(ResourceClaim::ALLOCATION, &[keys::ALLOCATED, keys::CLAIMS_OF_POOL]);
    builder.need_if_served::<ResourceSlice>(Sections::default(), &[keys::SLICES, keys::SLICES_OF_POOL]);
    if context.options.gates.enabled(TAINT_RULES) {
        builder.need_if_served::<DeviceTaintRule>(Sections::default(), &[keys::RULES]);
    }
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named(NAME));
    let has_groups = context.options.gates.enabled(GROUP_CLAIMS);
    let recorder = manager.recorder(NAME, DESCRIPTOR.service_account);
    let registry = manager.registry();
    let evictions = Arc::new(Evictions {
        pods: registry.store(),
        claims: registry.store(),
        slices: registry.store(),
        rules: context.options.gates.enabled(TAINT_RULES).then(|| registry.store()),
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder,
        queue: queue.clone(),
        clock: context.clock.clone(),
        pending: Arc::default(),
        evicted: Arc::default(),
        deletions: metrics::Deletions::register(manager.metrics()),
        members: keys::Members(has_groups.then(|| registry.store())),
    });
    subscriptions::subscribe(&evictions);
    let workers = context.workers("concurrent-device-taint-eviction-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, evictions);
}
