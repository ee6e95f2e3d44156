//! resourceclaim-controller: creates the ResourceClaims that pods and PodGroups request with templates, reserves
//! allocated claims for pods that were bound without the scheduler, and releases claims that are no longer used.
//!
//! The scheduler allocates. A claim is created before the status that names it is written. If the process ends in
//! between, the owner reference and annotation of the claim identify it. Each decision to release is repeated on the
//! claim that the API server returns, and each write contains its version. Upstream: pkg/controller/resourceclaim.

mod claim_sync;
mod decide;
mod deleted;
mod entry;
mod group_sync;
mod indexes;
mod keys;
mod metrics;
mod names;
mod pod_sync;
mod reconciler;
mod takeover;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use kinds::claim_state::DELETE_PROTECTION;
use kinds::{Kind, Namespace, Pod, PodGroup, ResourceClaim, ResourceClaimTemplate, Sections};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{by_controller, by_namespace};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::Refusals;
use decide::Gates;
use deleted::DeletedUids;
use indexes::{groups_by_claim, groups_by_template, pods_by_claim, pods_by_group, pods_by_template};
use keys::Keys;
use metrics::Totals;
use reconciler::ResourceClaims;
use takeover::Takeover;

/// Name of the event source.
const COMPONENT: &str = "resource_claim";
const QUEUE: &str = "resource_claim";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "resourceclaim-controller",
    service_account: "resource-claim-controller",
    requires: &[ResourceClaim::RESOURCE, ResourceClaimTemplate::RESOURCE],
    watches,
    writes: &[
        Write { verb: Verb::Create, group: "resource.k8s.io", resource: "resourceclaims" },
        Write { verb: Verb::Update, group: "resource.k8s.io", resource: "resourceclaims" },
        Write { verb: Verb::Delete, group: "resource.k8s.io", resource: "resourceclaims" },
        Write { verb: Verb::Update, group: "resource.k8s.io", resource: "resourceclaims/status" },
        Write { verb: Verb::Patch, group: "", resource: "pods/status" },
        Write { verb: Verb::Patch, group: "scheduling.k8s.io", resource: "podgroups/status" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[QueueKeys::other(QUEUE)],
    finalizers: &[Finalizer { name: DELETE_PROTECTION, removed: "once the claim is not reserved for a consumer" }],
    start,
    ..Descriptor::NONE
};

fn gates(context: &Context) -> Gates {
    let enabled = |gate| context.options.gates.enabled(gate);
    Gates {
        admin_access: enabled("DRAAdminAccess"),
        prioritized_list: enabled("DRAPrioritizedList"),
        groups: enabled("GenericWorkload"),
        group_claims: enabled("DRAWorkloadResourceClaims"),
    }
}

fn watches(builder: &mut Builder, context: &Context) {
    let gates = gates(context);
    builder.need::<Pod>(Pod::DEVICES, &[pods_by_claim(), pods_by_template(), pods_by_group(), by_namespace()]);
    builder.need::<ResourceClaim>(ResourceClaim::STATE, &[by_controller()]);
    builder.need::<ResourceClaimTemplate>(Sections::default(), &[]);
    builder.need::<Namespace>(Sections::default(), &[]);
    if gates.groups {
        builder.need_if_served::<PodGroup>(Sections::default(), &[groups_by_claim(), groups_by_template()]);
    }
}

fn start(manager: &mut Manager, context: &Context) {
    let gates = gates(context);
    let queue = Queue::new(QueueOptions::named(QUEUE));
    let registry = manager.registry();
    let keys = Arc::new(Keys {
        pods: registry.store(),
        claims: registry.store(),
        groups: gates.groups.then(|| registry.store()),
        gates,
        queue: queue.clone(),
        deleted: Arc::new(DeletedUids::default()),
    });
    let gate = CreationGate::new(registry.store());
    let woken = keys.clone();
    gate.on_new_namespace(&keys.pods, move |pod| woken.pod_updated(pod));
    let templates = registry.store::<ResourceClaimTemplate>();
    keys::subscribe(&keys, &templates);
    let totals = Arc::new(Totals::default());
    let counted = totals.clone();
    keys.claims.subscribe(move |change| counted.claim_changed(change));
    manager.collect(totals);
    let reconciler = Arc::new(ResourceClaims {
        templates,
        created: metrics::register_creations(manager.metrics()),
        writer: manager.writer(DESCRIPTOR.service_account),
        recorder: manager.recorder(COMPONENT, DESCRIPTOR.service_account),
        takeover: Takeover::default(),
        pod_writes: Consistency::default(),
        group_writes: Consistency::default(),
        claim_writes: Consistency::default(),
        gate,
        pod_refusals: Refusals::default(),
        group_refusals: Refusals::default(),
        keys,
    });
    let workers = context.workers("concurrent-resourceclaim-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
