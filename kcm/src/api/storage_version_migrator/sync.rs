//! One reconcile of a running migration: record the resourceVersion at its start, then patch objects.
//!
//! A reconcile lists or patches a limited number of objects and is requeued, so that a shutdown does not wait for a
//! large migration. After a restart the objects are listed again; those that were patched before have a later version.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::{ObjectKey, Uid};
use kinds::storage_version_migration::MigrationCondition;
use kinds::{Kind, StorageVersionMigration, Time};
use runtime::consistency::Consistency;
use runtime::discovery::{Discovery, Served};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tracing::{debug, info, warn};

use super::decide::{
    Absence, ListFailure, failed_message, is_migratable, is_new, is_retriable, latest_version_error, list_failure,
    may_be_served_later, read_version, resource_name, running_message,
};
use super::pass::{ListError, Pass};
use super::true_condition;
use crate::context::Clock;

/// Maximum age of the cached discovery.
const DISCOVERY_AGE: Duration = Duration::from_secs(10);
/// The reason of the condition `Failed`.
const FAILED: &str = "StorageVersionMigrationFailed";
/// The reason of the condition `Succeeded`.
const SUCCEEDED: &str = "StorageVersionMigrationSucceeded";

/// Reconciles migrations.
pub struct Migrator {
    /// All migrations.
    pub migrations: Arc<Store<StorageVersionMigration>>,
    /// The resources that the API server serves.
    pub discovery: Arc<Discovery>,
    /// Writes migrations.
    pub writer: Writer,
    /// Lists and patches the objects that are migrated.
    pub patcher: Writer,
    /// Writes by this process that the cache does not contain yet.
    pub consistency: Consistency,
    /// The queue of migrations.
    pub queue: Arc<Queue<ObjectKey>>,
    /// The current time.
    pub clock: Clock,
    /// The migrations that are under way in this process.
    pub passes: Mutex<HashMap<ObjectKey, Pass>>,
    /// The migrations whose resource is not served, each with its UID and the time since which the resource is not
    /// served.
    pub absent: Mutex<HashMap<ObjectKey, (Uid, Time)>>,
}

impl Reconcile for Migrator {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Migrator {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let (queue, again) = (self.queue.clone(), key.clone());
        if !self.consistency.caught_up(key, &self.migrations, move || queue.add(again)) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(migration) = self.migrations.get(key) else {
            self.forget(key);
            self.consistency.forget(key);
            return Ok(Outcome::Done);
        };
        if migration.is_terminal() {
            self.forget(key);
            return Ok(Outcome::Done);
        }
        match (migration.version.is_empty(), migration.is_true("Running")) {
            (true, false) => Ok(Outcome::Done),
            (true, true) => self.record_start_version(&migration).await,
            (false, _) => self.migrate(&migration).await,
        }
    }

    /// Removes the state of a migration that has ended or was deleted.
    fn forget(&self, key: &ObjectKey) {
        self.passes().remove(key);
        self.absent().remove(key);
    }

    fn absent(&self) -> MutexGuard<'_, HashMap<ObjectKey, (Uid, Time)>> {
        lock(&self.absent)
    }

    /// Returns the time since which the resource of a migration is not served.
    fn absent_since(&self, migration: &StorageVersionMigration) -> Time {
        let uid = &migration.meta.uid;
        let mut absent = self.absent();
        let entry = absent.entry(migration.meta.key()).or_insert_with(|| (uid.clone(), self.now()));
        if entry.0 != *uid {
            *entry = (uid.clone(), self.now());
        }
        entry.1
    }

    fn passes(&self) -> MutexGuard<'_, HashMap<ObjectKey, Pass>> {
        lock(&self.passes)
    }

    fn now(&self) -> Time {
        Time((self.clock)().as_second())
    }

    /// Finds the resource of a migration; `None` if it is not served.
    ///
    /// # Errors
    /// When it is not served and may be served later, or discovery fails.
    async fn served(&self, migration: &StorageVersionMigration) -> Result<Option<Served>, ReconcileError> {
        let snapshot = self.discovery.no_older_than(DISCOVERY_AGE).await;
        let snapshot = snapshot.map_err(|error| ReconcileError::new(error.to_string()))?;
        let served = snapshot.of_group_resource(&migration.group, &migration.resource);
        if served.is_some() {
            self.absent().remove(&migration.meta.key());
            return Ok(served);
        }
        let absence = Absence {
            created: migration.meta.created,
            since: self.absent_since(migration),
            is_unavailable: snapshot.has_failed(&migration.group),
        };
        if may_be_served_later(absence, self.now()) {
            return Err(ReconcileError::new("the API server does not serve the migration's resource; retrying"));
        }
        Ok(None)
    }

    /// Writes the current resourceVersion to the status: objects that are written later need no migration.
    async fn record_start_version(&self, migration: &StorageVersionMigration) -> Result<Outcome, ReconcileError> {
        let Some(Served { resource, verbs, .. }) = self.served(migration).await? else {
            return self.fail(migration, "resource does not exist in discovery".to_owned()).await;
        };
        let name = resource_name(&resource);
        if !is_migratable(verbs) {
            let message = format!("resource {name:?} does not support discovery operations: [update patch list]");
            return self.fail(migration, message).await;
        }
        let version = self.patcher.latest_version_text(&resource).await;
        let version = version.map_err(|error| latest_version_error(&name, error))?;
        if let Err(problem) = read_version(&version) {
            let message = format!("latest resourceVersion for {name} is not valid: {problem}");
            return self.fail(migration, message).await;
        }
        let mut migration = migration.clone();
        migration.version = version.into();
        self.write(&migration).await
    }

    async fn migrate(&self, migration: &StorageVersionMigration) -> Result<Outcome, ReconcileError> {
        let version = match read_version(&migration.version) {
            Ok(version) => version,
            Err(problem) => {
                let error = format!("error comparing resource versions between GC and SVM resource: {problem}");
                return self.fail(migration, failed_message(None, &error)).await;
            }
        };
        let Some(Served { resource, .. }) = self.served(migration).await? else {
            return self.fail(migration, failed_message(None, "unable to obtain GVR from discovery")).await;
        };
        let key = migration.meta.key();
        let known = self.passes().remove(&key);
        let known = known.filter(|pass| pass.is_of(migration, version));
        let mut pass = known.unwrap_or_else(|| Pass::new(migration.meta.uid.clone(), version));
        match pass.list_pages(&self.patcher, &resource).await {
            Ok(()) => {}
            Err(ListError::Version(problem)) => return self.fail(migration, failed_message(None, &problem)).await,
            Err(ListError::Request(error)) => {
                if list_failure(&error) == ListFailure::Fatal && !is_new(migration.meta.created, self.now()) {
                    return self.fail(migration, failed_message(None, &error.to_string())).await;
                }
                self.passes().insert(key, pass);
                return Err(error.into());
            }
        }
        if !pass.is_listed() {
            self.passes().insert(key, pass);
            return Ok(Outcome::RequeueAfter(Duration::ZERO));
        }
        let patched = pass.patch_batch(&self.patcher, &resource).await;
        let outcome = match &patched {
            Ok(()) if pass.is_complete() => return self.succeed(migration, pass).await,
            Ok(()) => Ok(Outcome::RequeueAfter(Duration::ZERO)),
            Err(error) if is_retriable(error) => {
                let message = running_message(Some(pass.objects()), Some(&error.to_string()));
                self.report_transient(migration, error, message).await;
                Err(ReconcileError::new(error.to_string()))
            }
            Err(error) => return self.fail_pass(migration, &pass, &error.to_string()).await,
        };
        self.passes().insert(key, pass);
        outcome
    }

    async fn succeed(&self, migration: &StorageVersionMigration, pass: Pass) -> Result<Outcome, ReconcileError> {
        let objects = pass.objects();
        let mut ended = migration.clone();
        ended.set_condition(self.running(running_message(Some(objects), None)));
        ended.set_condition(true_condition("Succeeded", SUCCEEDED, "Migration completed".to_owned(), self.now()));
        info!(migration = &*migration.meta.name, objects = objects.1, "all stored objects are migrated");
        // The pass is kept, so that a retry of this write does not list the objects again.
        self.passes().insert(migration.meta.key(), pass);
        self.write(&ended).await
    }

    /// Ends a migration with the condition `Failed`.
    async fn fail(&self, migration: &StorageVersionMigration, message: String) -> Result<Outcome, ReconcileError> {
        warn!(migration = &*migration.meta.name, error = message, "migration failed");
        let mut failed = migration.clone();
        failed.set_condition(true_condition("Failed", FAILED, message, self.now()));
        self.write(&failed).await
    }

    async fn fail_pass(
        &self,
        migration: &StorageVersionMigration,
        pass: &Pass,
        error: &str,
    ) -> Result<Outcome, ReconcileError> {
        let mut running = migration.clone();
        running.set_condition(self.running(running_message(Some(pass.objects()), None)));
        self.fail(&running, failed_message(Some(pass.objects()), error)).await
    }

    /// Reports a transient error in the status. The migration continues whether or not that succeeds.
    async fn report_transient(&self, migration: &StorageVersionMigration, error: &WriteError, message: String) {
        let mut running = migration.clone();
        if matches!(error, WriteError::NotLeading) || !running.set_condition(self.running(message)) {
            return;
        }
        if let Err(error) = self.write(&running).await {
            debug!(migration = &*migration.meta.name, %error, "cannot report a transient error");
        }
    }

    fn running(&self, message: String) -> MigrationCondition {
        true_condition("Running", "MigrationRunning", message, self.now())
    }

    async fn write(&self, migration: &StorageVersionMigration) -> Result<Outcome, ReconcileError> {
        let resource = &StorageVersionMigration::RESOURCE;
        let key = migration.meta.key();
        let unreadable = |error: &dyn std::fmt::Display| ReconcileError::new(error.to_string());
        let object = migration.to_object().map_err(|error| unreadable(&error))?;
        match self.writer.replace(resource, &key, Some("status"), &object).await {
            Ok(response) => {
                let version = response.meta().map_err(|error| unreadable(&error))?.version;
                self.consistency.wrote(&key, &self.migrations, version);
                Ok(Outcome::Done)
            }
            Err(error) if error.is_object_deleted() => Ok(Outcome::Done),
            // The runner or another client has changed the migration, which is read again.
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) => Err(error.into()),
        }
    }
}
