//! Runs one migration of a resource at a time.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::storage_version_migration::MigrationCondition;
use kinds::{DecodeError, Kind, StorageVersionMigration, Time};
use runtime::consistency::Consistency;
use runtime::queue::Queue;
use runtime::store::Store;
use runtime::text::api_time;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tracing::info;

use super::crd::{self, Step};
use super::decide::{NextMigrations, next_migrations, running_message};
use super::{BY_RESOURCE, GroupResource, of_resource, true_condition};
use crate::context::Clock;

/// Reconciles resources: marks the next migration as running, and one that has ended as no longer running.
pub struct Runner {
    /// All migrations.
    pub migrations: Arc<Store<StorageVersionMigration>>,
    /// Writes migrations and definitions of custom resources.
    pub writer: Writer,
    /// Writes by this process that the cache does not contain yet, by resource.
    pub consistency: Consistency,
    /// The queue of resources.
    pub queue: Arc<Queue<GroupResource>>,
    /// The current time.
    pub clock: Clock,
}

impl Reconcile for Runner {
    type Key = GroupResource;

    fn reconcile<'a>(&'a self, key: &'a GroupResource) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Runner {
    async fn sync(&self, resource: &GroupResource) -> Result<Outcome, ReconcileError> {
        let key = ObjectKey { namespace: resource.group.clone(), name: resource.resource.clone() };
        let (queue, requeued) = (self.queue.clone(), resource.clone());
        if !self.consistency.caught_up(&key, &self.migrations, move || queue.add(requeued)) {
            return Ok(Outcome::WaitingForCache);
        }
        let mut migrations = self.migrations.by_index(&BY_RESOURCE, of_resource(resource));
        migrations.retain(|migration| GroupResource::of(migration) == *resource);
        if migrations.is_empty() {
            self.consistency.forget(&key);
        }
        let actions = next_migrations(migrations);
        let written = self.write(resource, &key, actions).await;
        match written {
            // The migration or the definition has changed since it was read: both are read again.
            Err(error) if error.is_conflict() && !error.is_object_deleted() => Ok(Outcome::RequeueWithBackoff),
            Err(error) if !error.is_object_deleted() => Err(error.into()),
            _ => Ok(Outcome::Done),
        }
    }

    async fn write(
        &self,
        resource: &GroupResource,
        key: &ObjectKey,
        actions: NextMigrations,
    ) -> Result<(), WriteError> {
        for migration in actions.ended {
            let step = if migration.is_true("Succeeded") { Step::Succeeded } else { Step::Failed };
            crd::report_step(&self.writer, resource, step, &self.timestamp()).await?;
            let completed = MigrationCondition {
                status: "False".into(),
                generation: migration.meta.generation,
                ..true_condition("Running", "MigrationCompleted", "Migration completed".to_owned(), self.now())
            };
            self.set(key, migration, completed).await?;
        }
        if let Some(next) = actions.next {
            info!(migration = &*next.meta.name, %resource, "starting migration of stored objects");
            crd::report_step(&self.writer, resource, Step::Begin(&next.meta.name), &self.timestamp()).await?;
            let running = true_condition("Running", "MigrationRunning", running_message(None, None), self.now());
            self.set(key, next, running).await?;
        }
        Ok(())
    }

    async fn set(
        &self,
        key: &ObjectKey,
        migration: Arc<StorageVersionMigration>,
        condition: MigrationCondition,
    ) -> Result<(), WriteError> {
        let mut migration = Arc::unwrap_or_clone(migration);
        if !migration.set_condition(condition) {
            return Ok(());
        }
        let object = migration.to_object().map_err(DecodeError::from)?;
        let resource = &StorageVersionMigration::RESOURCE;
        let response = self.writer.replace(resource, &migration.meta.key(), Some("status"), &object).await?;
        self.consistency.wrote(key, &self.migrations, response.meta()?.version);
        Ok(())
    }

    fn now(&self) -> Time {
        Time((self.clock)().as_second())
    }

    fn timestamp(&self) -> String {
        api_time((self.clock)())
    }
}
