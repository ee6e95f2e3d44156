//! garbage-collector-controller: deletes objects that have lost all their owners.
//!
//! It watches the metadata of every kind, keeps a graph of owners and dependents, and deletes objects none of whose
//! owners exists. It also implements foreground deletion and orphaning. An object is deleted only after, for each
//! owner, a watch has delivered its deletion, an uncached read has found that it does not exist or is being deleted
//! in the foreground, or its name cannot be that of an object. Upstream: pkg/controller/garbagecollector.

mod decide;
mod dump;
mod graph;
mod identity;
mod keys;
mod owner_path;
mod owner_reads;
mod patch;
mod sync;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use kinds::Uid;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::manager::Manager;
use runtime::metrics::counters;
use runtime::queue::{Queue, QueueOptions};
use runtime::watch::{Builder, EveryKind};
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, Finalizer, QueueKeys, Start, Verb, Write};
use keys::CheckKey;
use sync::{Collector, GraphUpdater, Orphaner};

/// Name of the event source.
const COMPONENT: &str = "garbage-collector-controller";

/// Multiple of `--kube-api-qps`: a deletion may need a read, too. Upstream: cmd/kube-controller-manager/app, core.go.
const QPS_FACTOR: u16 = 2;

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "garbage-collector-controller",
    service_account: "generic-garbage-collector",
    prepare,
    watches,
    writes: &[
        Write { verb: Verb::Delete, group: "*", resource: "*" },
        Write { verb: Verb::Patch, group: "*", resource: "*" },
        Write { verb: Verb::Create, group: "", resource: "events" },
        Write { verb: Verb::Patch, group: "", resource: "events" },
    ],
    queues: &[
        QueueKeys::other("garbage_collector_attempt_to_delete"),
        QueueKeys::other("garbage_collector_attempt_to_orphan"),
    ],
    finalizers: &[
        Finalizer { name: "foregroundDeletion", removed: "once all dependents that block the deletion are deleted" },
        Finalizer { name: "orphan", removed: "once the dependents are orphaned" },
    ],
    start,
    ..Descriptor::NONE
};

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    Ok(if context.options.values.get_bool("enable-garbage-collector") {
        Start::Run
    } else {
        Start::Skip("--enable-garbage-collector is false")
    })
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need_every_kind(&[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let checks = Queue::new(QueueOptions::named("garbage_collector_attempt_to_delete"));
    let orphans = Queue::new(QueueOptions::named("garbage_collector_attempt_to_orphan"));
    let recorder = manager.recorder(COMPONENT, DESCRIPTOR.service_account);
    let updater = Arc::new(GraphUpdater::new(checks.clone(), orphans.clone(), recorder));
    let kinds = manager.registry().every_kind();
    let watcher = updater.clone();
    kinds.subscribe(move |change| watcher.apply_event(change));
    manager.collect(SyncErrors(kinds.clone()));
    let page_source = updater.clone();
    manager.add_page(format!("/debug/controllers/{}/graph", DESCRIPTOR.name), dump::GRAPHVIZ, move |query| {
        let uids = query.iter().filter(|(name, _)| name == "uid").map(|(_, uid)| Uid::parse(uid)).collect::<Vec<_>>();
        dump::draw(&page_source.graph(), &uids)
    });
    let collector = Arc::new(Collector {
        updater,
        kinds,
        discovery: manager.discovery(),
        writer: manager.faster_writer(DESCRIPTOR.service_account, QPS_FACTOR, 1),
        merge_only_kinds: Default::default(),
    });
    checks.add(CheckKey::Begin);
    let workers = context.workers("concurrent-gc-syncs");
    let options = WorkOptions { name: DESCRIPTOR.name, workers };
    manager.add(options, orphans, Arc::new(Orphaner(collector.clone())));
    manager.add(options, checks, collector);
}

/// Failures to read the served kinds, under upstream's name. Upstream: pkg/controller/garbagecollector/metrics.
struct SyncErrors(Arc<EveryKind>);

impl fmt::Debug for SyncErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncErrors")
    }
}

impl prometheus_client::collector::Collector for SyncErrors {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (name, help) =
            ("garbagecollector_controller_resources_sync_error", "Number of garbage collector resources sync errors");
        counters(&mut encoder, name, help, [([], self.0.failures() as f64)])
    }
}
