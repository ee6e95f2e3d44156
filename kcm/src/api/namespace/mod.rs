//! namespace-controller: empties namespaces that are being deleted, and removes their finalizer.
//!
//! Pods are deleted first, then everything else that discovery lists. Conditions report the remaining objects and the
//! reasons. A group that does not respond is named in a condition and blocks the namespace, but not the deletion of
//! other objects. Upstream: pkg/controller/namespace.

mod decide;
mod early;
mod sync;
mod tally;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use kinds::{Namespace, Sections};
use runtime::manager::Manager;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Verb, Write};
use sync::Namespaces;

/// Grace period before a deletion begins, in which all API servers receive it and begin to refuse new objects.
/// Upstream: pkg/controller/namespace, namespaceDeletionGracePeriod.
const GRACE: Duration = Duration::from_secs(5);

/// Maximum delay after a failure. Upstream: pkg/controller/namespace, nsControllerRateLimiter.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Multiples of `--kube-api-qps` and `--kube-api-burst`: a deletion sends many requests in a burst. Upstream:
/// cmd/kube-controller-manager/app, core.go.
const QPS_FACTOR: u16 = 20;
const BURST_FACTOR: u32 = 100;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "namespace-controller",
    service_account: "namespace-controller",
    watches,
    writes: &[
        Write { verb: Verb::Delete, group: "*", resource: "*" },
        Write { verb: Verb::Update, group: "", resource: "namespaces/status" },
        Write { verb: Verb::Update, group: "", resource: "namespaces/finalize" },
    ],
    queues: &[QueueKeys::of("namespace", "Namespace")],
    finalizers: &[Finalizer { name: "kubernetes", removed: "once the namespace is empty" }],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Namespace>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions { max_delay: MAX_BACKOFF, ..QueueOptions::named("namespace") });
    let namespaces = manager.registry().store::<Namespace>();
    let reconciler = Arc::new(Namespaces {
        namespaces: namespaces.clone(),
        discovery: manager.discovery(),
        watched: manager.registry().watched(),
        queue: queue.clone(),
        writer: manager.faster_writer(DESCRIPTOR.service_account, QPS_FACTOR, BURST_FACTOR),
        clock: context.clock.clone(),
        sync_period: context.options.values.get_duration("namespace-sync-period"),
        deletions: Default::default(),
    });
    let (added, known) = (queue.clone(), reconciler.clone());
    namespaces.subscribe(move |change| {
        if let Some(old) = change.old.filter(|old| change.new.is_none_or(|new| new.meta.uid != old.meta.uid)) {
            known.deletions.forget(&old.meta.uid);
        }
        if let Some(namespace) = change.new.filter(|namespace| namespace.meta.is_deleting()) {
            if known.deletions.begin(&namespace.meta.uid) {
                added.add(namespace.meta.key());
            }
            added.add_after(namespace.meta.key(), GRACE);
        }
    });
    let workers = context.workers("concurrent-namespace-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}
