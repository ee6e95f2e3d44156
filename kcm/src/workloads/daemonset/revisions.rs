//! Finds, creates, labels and numbers a DaemonSet's revisions, and removes duplicates.

use std::sync::Arc;
use std::time::Duration;

use kinds::controller_revision::Fingerprint;
use kinds::daemonset::REVISION_HASH_LABEL;
use kinds::intern::label;
use kinds::template::Template;
use kinds::{ControllerRevision, DaemonSet, Kind, Pod};
use runtime::worker::ReconcileError;
use runtime::write::WriteError;
use serde_json::json;
use tracing::info;

use super::decide::Revision;
use super::decide_revision::{RevisionsByTemplate, hash_of};
use super::state::{DaemonSets, Work};
use crate::workloads::controller_revisions::{self, CreationResult, Draft, History, Snapshot, UnmatchedRevisions};

/// The revisions of a DaemonSet.
pub struct TemplateRevisions {
    /// The hash of the current revision.
    hash: String,
    /// The revisions of other templates, oldest first.
    pub old: Vec<Arc<ControllerRevision>>,
}

impl TemplateRevisions {
    /// Returns the revision that pods should have.
    pub fn revision(&self, set: &DaemonSet) -> Revision<'_> {
        Revision { hash: &self.hash, generation: set.template_generation() }
    }
}

/// Reason to end a sync before it creates or deletes pods.
pub enum Stop {
    /// An object has changed or was deleted since it was read, or this sync has changed it: the key is requeued with
    /// backoff.
    Outdated,
    /// The creation of a revision was refused, and may be repeated after this delay.
    Refused(Duration),
    /// A read or write failed.
    Failed(ReconcileError),
}

impl From<WriteError> for Stop {
    fn from(error: WriteError) -> Self {
        if error.is_conflict() || error.is_not_found() { Self::Outdated } else { Self::Failed(error.into()) }
    }
}

impl From<ReconcileError> for Stop {
    fn from(error: ReconcileError) -> Self {
        Self::Failed(error)
    }
}

impl DaemonSets {
    /// Finds the revision of the current template, or creates it. Upstream: pkg/controller/daemon, constructHistory.
    pub async fn find_revisions(&self, work: &Work<'_>) -> Result<TemplateRevisions, Stop> {
        let Some(template) = &work.set.template else { return Err(Stop::Outdated) };
        let reference = work.set.controller_ref();
        let history = self.history(work.set, &reference);
        let revisions = history.claim::<DaemonSet>(&work.set.selector, UnmatchedRevisions::Released).await?;
        for revision in &revisions {
            if label(&revision.meta.labels, REVISION_HASH_LABEL).is_none() {
                history.label(revision, REVISION_HASH_LABEL, hash_of(revision)).await?;
            }
        }
        let (sorted, snapshot) = self.sort(work, template, &history, revisions).await?;
        let current = match (&sorted.current, snapshot) {
            (Some(current), _) => {
                self.merge_duplicates(work, &history, &sorted.duplicates, hash_of(current)).await?;
                if current.revision < sorted.number() {
                    history.renumber(current, sorted.number()).await?
                } else {
                    current.clone()
                }
            }
            (None, Some(snapshot)) => self.create_revision(work, &history, snapshot, sorted.number()).await?,
            // Impossible: `sort` returns no snapshot only if a remembered revision is the current one.
            (None, None) => return Err(Stop::Outdated),
        };
        self.memory.remember(&work.set.meta, template, &current.meta.name);
        Ok(TemplateRevisions { hash: hash_of(&current).to_owned(), old: sorted.old })
    }

    /// Splits the revisions by template. Reads the template from the API server only if its revision is not remembered.
    async fn sort(
        &self,
        work: &Work<'_>,
        template: &Template,
        history: &History<'_>,
        revisions: Vec<Arc<ControllerRevision>>,
    ) -> Result<(RevisionsByTemplate, Option<Snapshot>), Stop> {
        let recalled = self.memory.recall(&work.set.meta, template);
        let known = recalled.and_then(|name| revisions.iter().find(|revision| revision.meta.name == name));
        if let Some(data) = known.map(|revision| revision.data) {
            return Ok((RevisionsByTemplate::by(revisions, data), None));
        }
        if let Some(left) = history.refused_before() {
            return Err(Stop::Refused(left));
        }
        let snapshot = history.snapshot::<DaemonSet>().await?;
        if snapshot.generation != work.set.meta.generation {
            return Err(Stop::Outdated);
        }
        Ok((RevisionsByTemplate::by(revisions, Fingerprint::of(&snapshot.data)), Some(snapshot)))
    }

    /// Creates a revision of the current template. Upstream: pkg/controller/daemon, snapshot.
    async fn create_revision(
        &self,
        work: &Work<'_>,
        history: &History<'_>,
        snapshot: Snapshot,
        number: i64,
    ) -> Result<Arc<ControllerRevision>, Stop> {
        let hash = controller_revisions::hash(&snapshot.data, work.set.status.collision_count);
        let draft = Draft::new(snapshot, (REVISION_HASH_LABEL, hash.clone()), number);
        match history.create_named(&draft, &hash).await? {
            CreationResult::New(revision) | CreationResult::Existing(revision) => Ok(revision),
            CreationResult::Taken => Err(self.count_collision(work).await?),
        }
    }

    /// Increments the collision count in the status, because the name of the new revision belongs to a revision of
    /// another template. The next attempt then has another hash.
    async fn count_collision(&self, work: &Work<'_>) -> Result<Stop, Stop> {
        let resource = &DaemonSet::RESOURCE;
        let known = work.set.status.collision_count;
        let fresh = self.control.writer.get(resource, work.key).await?;
        let fresh: DaemonSet = fresh.decode(self.sets.decoding()).map_err(WriteError::from)?;
        if fresh.status.collision_count != known {
            return Ok(Stop::Outdated);
        }
        let mut status = fresh.status.clone();
        status.collision_count = Some(known.unwrap_or(0) + 1);
        let response =
            self.control.writer.replace(resource, work.key, Some("status"), &fresh.status_update(&status)).await?;
        if let Ok(meta) = response.meta() {
            self.control.consistency.wrote(work.key, &self.sets, meta.version);
        }
        info!(collisions = status.collision_count, "the name of the new revision is taken");
        Ok(Stop::Outdated)
    }

    /// Merges revisions of the same template: labels all pods with the hash of the current revision, and deletes the
    /// duplicates. Without the labels, pods of the duplicates would be replaced. Upstream: pkg/controller/daemon,
    /// dedupCurHistories.
    async fn merge_duplicates(
        &self,
        work: &Work<'_>,
        history: &History<'_>,
        duplicates: &[Arc<ControllerRevision>],
        hash: &str,
    ) -> Result<(), Stop> {
        if duplicates.is_empty() {
            return Ok(());
        }
        let other = |pod: &&Arc<Pod>| label(&pod.meta.labels, REVISION_HASH_LABEL) != Some(hash);
        for pod in work.pods.iter().filter(other) {
            let patch = json!({"metadata": {
                "uid": pod.meta.uid.to_string(), "labels": {REVISION_HASH_LABEL: hash},
            }});
            match self.control.writer.merge_patch(&Pod::RESOURCE, &pod.meta.key(), &patch).await {
                Ok(response) => {
                    let version = response.meta().map_err(WriteError::from)?.version;
                    self.control.consistency.wrote(work.key, &self.control.pods, version);
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => return Err(error.into()),
            }
        }
        for duplicate in duplicates {
            history.delete(duplicate).await?;
        }
        // The labels of the pods have changed: the next reconcile makes the decisions.
        Err(Stop::Outdated)
    }
}
