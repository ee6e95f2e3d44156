//! storage-version-migrator-controller: writes all objects of a resource again, so that they are stored in the current
//! version and with the current encryption key.
//!
//! A StorageVersionMigration names the resource. One migration of a resource runs at a time; when it begins, the
//! resourceVersion that the API server has reached is recorded in its status. Each object with this resourceVersion or
//! an earlier one gets an empty patch, which makes the API server store it again. The definition of a custom resource
//! reports the migration in a condition. After a success its stored versions are reduced to the current one. Upstream:
//! pkg/controller/storageversionmigrator.

mod crd;
mod decide;
mod pass;
mod runner;
mod sync;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use anyhow::bail;
use kinds::storage_version_migration::MigrationCondition;
use kinds::{Kind, Sections, StorageVersionMigration, Str, Time};
use runtime::consistency::Consistency;
use runtime::manager::Manager;
use runtime::queue::QueueKey;
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Index, index_key};
use runtime::watch::Builder;
use runtime::worker::WorkOptions;

use crate::context::{Context, Descriptor, QueueKeys, Start, Verb, Write};
use crate::flags::Options;
use runner::Runner;
use sync::Migrator;

const NAME: &str = "storage-version-migrator-controller";
const RUNNER_QUEUE: &str = "migration-runner-controller";

/// Multiples of `--kube-api-qps` and `--kube-api-burst` for patches. Upstream: cmd/kube-controller-manager/app,
/// storageversionmigrator.go.
const PATCHES_QPS_FACTOR: u16 = 20;
const PATCHES_BURST_FACTOR: u32 = 100;

/// Maximum number of migrations that run at the same time, each of another resource.
const WORKERS: usize = 5;

/// The gates that must be on.
const GATES: [&str; 2] = ["StorageVersionMigrator", "InformerResourceVersion"];

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: NAME,
    service_account: NAME,
    requires: &[StorageVersionMigration::RESOURCE],
    prepare,
    watches,
    writes: &[
        Write { verb: Verb::Patch, group: "*", resource: "*" },
        Write { verb: Verb::Patch, group: "apiextensions.k8s.io", resource: "customresourcedefinitions/status" },
        Write { verb: Verb::Update, group: "storagemigration.k8s.io", resource: "storageversionmigrations/status" },
    ],
    queues: &[QueueKeys::of(NAME, "StorageVersionMigration"), QueueKeys::other(RUNNER_QUEUE)],
    start,
    ..Descriptor::NONE
};

fn prepare(context: &mut Context) -> anyhow::Result<Start> {
    start_of(&context.options)
}

/// Decides whether the migrator starts. Without the garbage collector, the process exits with an error, as upstream's
/// does. Only upstream's migrator needs the collector's cache, but every command line that is accepted here must also
/// be accepted by upstream. Upstream: cmd/kube-controller-manager/app, newSVMController.
fn start_of(options: &Options) -> anyhow::Result<Start> {
    if !GATES.iter().all(|gate| options.gates.enabled(gate)) {
        return Ok(Start::Skip("gate StorageVersionMigrator or InformerResourceVersion is off"));
    }
    if !options.values.get_bool("enable-garbage-collector") {
        bail!(
            "--enable-garbage-collector=false: the migrator requires the garbage collector; set it to true, or add \
             -{NAME} to --controllers"
        );
    }
    Ok(Start::Run)
}

/// A resource without its version.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct GroupResource {
    /// API group; empty for the core group.
    group: Str,
    /// Plural name.
    resource: Str,
}

impl GroupResource {
    fn of(migration: &StorageVersionMigration) -> Self {
        Self { group: migration.group.clone(), resource: migration.resource.clone() }
    }
}

impl QueueKey for GroupResource {}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { group, resource } = self;
        if group.is_empty() { f.write_str(resource) } else { write!(f, "{resource}.{group}") }
    }
}

/// Migrations by their resource. Look up by [`of_resource`].
const BY_RESOURCE: Index<StorageVersionMigration> =
    Index { name: "resource", keys: |migration, emit| emit(of_resource(&GroupResource::of(migration))) };

fn of_resource(resource: &GroupResource) -> u64 {
    index_key(("resource", &*resource.group, &*resource.resource))
}

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<StorageVersionMigration>(Sections::default(), &[BY_RESOURCE]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named(NAME));
    let runner_queue = Queue::new(QueueOptions::named(RUNNER_QUEUE));
    let migrations = manager.registry().store::<StorageVersionMigration>();
    let (changed, resources) = (queue.clone(), runner_queue.clone());
    migrations.subscribe(move |change| {
        let Some(migration) = change.new.or(change.old) else { return };
        resources.add(GroupResource::of(migration));
        changed.add(migration.meta.key());
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let runner = Arc::new(Runner {
        migrations: migrations.clone(),
        writer: writer.clone(),
        consistency: Consistency::default(),
        queue: runner_queue.clone(),
        clock: context.clock.clone(),
    });
    let migrator = Arc::new(Migrator {
        migrations,
        discovery: manager.discovery(),
        writer,
        patcher: manager.faster_writer(DESCRIPTOR.service_account, PATCHES_QPS_FACTOR, PATCHES_BURST_FACTOR),
        consistency: Consistency::default(),
        queue: queue.clone(),
        clock: context.clock.clone(),
        passes: Default::default(),
        absent: Default::default(),
    });
    manager.add(WorkOptions { name: NAME, workers: 1 }, runner_queue, runner);
    manager.add(WorkOptions { name: NAME, workers: WORKERS }, queue, migrator);
}

/// Returns a condition with status True.
fn true_condition(kind: &str, reason: &str, message: String, now: Time) -> MigrationCondition {
    MigrationCondition {
        kind: kind.into(),
        status: "True".into(),
        reason: reason.into(),
        message: message.into(),
        generation: 0,
        since: now,
    }
}
