//! persistentvolumeclaim-protection-controller: keeps a claim that is being deleted while a pod on a node uses it, and
//! maintains the condition `Unused` of bound claims.
//!
//! Upstream: pkg/controller/volume/pvcprotection.

mod decide;
mod idle;
mod keys;
mod sync;
#[cfg(test)]
mod tests;
mod used_claims;

use std::sync::Arc;

use kinds::{PersistentVolumeClaim, Pod, Sections};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use super::indexes::pods_by_claim;
use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use crate::protection::Protection;
use idle::IdleClaims;
use keys::Keys;
use sync::{ClaimUsers, Claims};
use used_claims::UsedClaims;

const FINALIZER: &str = "kubernetes.io/pvc-protection";

/// Feature gate of the condition `Unused`.
const UNUSED_GATE: &str = "PersistentVolumeClaimUnusedSinceTime";

const QUEUE: &str = "pvcprotection";

/// Number of workers. Concurrent reconciles of claims of one namespace share one list of its pods, so more workers
/// cause fewer lists. The client's rate limit applies to the writes.
const WORKERS: usize = 64;

/// Requests per second and burst, as multiples of other controllers' limits: a read precedes most writes. With twice
/// the rate, as many claims are released per second as in upstream, whose writes are based on the cache.
const QPS_FACTOR: u16 = 2;
const BURST_FACTOR: u32 = 2;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "persistentvolumeclaim-protection-controller",
    service_account: "pvc-protection-controller",
    watches,
    writes: &[
        Write { verb: Verb::Update, group: "", resource: "persistentvolumeclaims" },
        Write { verb: Verb::Update, group: "", resource: "persistentvolumeclaims/status" },
    ],
    queues: &[QueueKeys::of(QUEUE, "PersistentVolumeClaim")],
    finalizers: &[Finalizer { name: FINALIZER, removed: "once no pod on a node uses the claim" }],
    start,
    ..Descriptor::NONE
};

/// Returns true if this process maintains the condition `Unused`.
pub(super) fn maintains_unused(context: &Context) -> bool {
    let options = &context.options;
    options.gates.enabled(UNUSED_GATE) && options.enabled().any(|controller| controller.name == DESCRIPTOR.name)
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<PersistentVolumeClaim>(Sections::default(), &[]);
    builder.need::<Pod>(Pod::VOLUMES, &[pods_by_claim()]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named(QUEUE));
    let claims = manager.registry().store::<PersistentVolumeClaim>();
    let pods = manager.registry().store::<Pod>();
    let tracks_unused = maintains_unused(context);
    let keys = Arc::new(Keys { queue: queue.clone(), tracks_unused });
    let of_claims = keys.clone();
    claims.subscribe(move |change| of_claims.claim_changed(change));
    pods.subscribe(move |change| keys.pod_changed(change));
    let writer = manager.faster_writer(DESCRIPTOR.service_account, QPS_FACTOR, BURST_FACTOR);
    let protection = Protection {
        finalizer: FINALIZER,
        adds_finalizer: true,
        objects: claims,
        users: ClaimUsers { pods, lists: sync::uncached_users(writer.clone()) },
        writer,
        consistency: Consistency::default(),
        queue: queue.clone(),
    };
    let reconciler = Arc::new(Claims {
        protection,
        clock: context.clock.clone(),
        idle: IdleClaims::default(),
        used: UsedClaims::default(),
        tracks_unused,
    });
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers: WORKERS }, queue, reconciler);
}
