//! Writes of a history: revisions are created, renumbered, labelled, adopted, released and deleted.

use std::sync::Arc;
use std::time::Duration;

use kinds::controller_revision::{Fingerprint, NewRevision};
use kinds::envelope::ApiStatus;
use kinds::meta::{Meta, ObjectKey, OwnerRef};
use kinds::selector::Selector;
use kinds::{ControllerRevision, Kind};
use runtime::consistency::Consistency;
use runtime::controller_ref::Owner;
use runtime::store::{Store, by_controller, orphans_in, owned_by};
use runtime::worker::ReconcileError;
use runtime::write::{ObjectResponse, WriteError, Writer};
use tracing::debug;

use super::{Snapshot, by_number, hash, revision_name};
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::{Attempt, Refusals};

/// The history of one workload, with the client and caches to change it.
#[derive(Clone, Copy)]
pub struct History<'a> {
    /// The workload.
    pub owner: &'a Meta,
    /// The controller reference of its revisions.
    pub reference: &'a OwnerRef,
    /// All revisions; indexed by controller.
    pub revisions: &'a Arc<Store<ControllerRevision>>,
    /// The controller's own writes that the cache may not contain yet.
    pub consistency: &'a Consistency,
    /// The controller's client.
    pub writer: &'a Writer,
    /// Namespaces that are being deleted, in which nothing can be created.
    pub gate: &'a CreationGate,
    /// Refused creations of revisions.
    pub refusals: &'a Refusals,
}

/// Treatment of a workload's revisions that no longer match its selector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnmatchedRevisions {
    /// Such revisions are ignored, as for a StatefulSet.
    Ignored,
    /// Such revisions are released, as for a DaemonSet.
    Released,
}

/// A revision before its creation.
#[derive(Debug, Clone)]
pub struct Draft {
    /// Its labels, including that with the hash.
    pub labels: Vec<(String, String)>,
    /// Its annotations.
    pub annotations: Vec<(String, String)>,
    /// The patch that restores the template.
    pub data: Vec<u8>,
    /// Its number in the history.
    pub revision: i64,
}

impl Draft {
    /// Creates a draft with the labels of the snapshot's template and one more label.
    pub fn new(snapshot: Snapshot, label: (&str, String), revision: i64) -> Self {
        let mut labels = snapshot.labels;
        labels.retain(|(key, _)| key != label.0);
        labels.push((label.0.to_owned(), label.1));
        Self { labels, annotations: snapshot.annotations, data: snapshot.data, revision }
    }
}

/// The result of the creation of a revision.
#[derive(Debug)]
pub enum CreationResult {
    /// The revision was created.
    New(Arc<ControllerRevision>),
    /// The revision exists already with the same name and data: a previous leader created it, or the response was lost.
    Existing(Arc<ControllerRevision>),
    /// A revision with this name and other data exists.
    Taken,
}

impl History<'_> {
    fn key(&self, name: &str) -> ObjectKey {
        ObjectKey::new(self.owner.namespace.clone(), name)
    }

    fn wrote(&self, version: u64) {
        self.consistency.wrote(&self.owner.key(), self.revisions, version);
    }

    /// Returns the workload's revisions, oldest first. Matching revisions without a controller are adopted; `unmatched`
    /// decides whether the workload's revisions that do not match are released. `K` is the workload's kind.
    ///
    /// # Errors
    /// When a revision could not be adopted or released.
    pub async fn claim<K: Kind>(
        &self,
        selector: &Selector,
        unmatched: UnmatchedRevisions,
    ) -> Result<Vec<Arc<ControllerRevision>>, ReconcileError> {
        let mut children = self.revisions.by_index(&by_controller(), owned_by(&self.owner.namespace, &self.owner.uid));
        children.extend(self.revisions.by_index(&by_controller(), orphans_in(&self.owner.namespace)));
        if unmatched == UnmatchedRevisions::Ignored {
            children.retain(|revision| selector.matches(&revision.meta.labels));
        }
        let owner = Owner { meta: self.owner, reference: self.reference.clone(), writer: self.writer };
        let claimed = owner.claim::<K, _>(children, |revision| selector.matches(&revision.meta.labels)).await;
        claimed.written.into_iter().for_each(|version| self.wrote(version));
        if !claimed.errors.is_empty() {
            return Err(ReconcileError::new(claimed.errors.join(", ")));
        }
        let mut revisions = claimed.children;
        revisions.sort_by(|a, b| by_number(a, b));
        Ok(revisions)
    }

    /// Returns the remaining backoff after a refused creation of a revision; `None` if one may be created now.
    pub fn refused_before(&self) -> Option<Duration> {
        let waiting = self.refusals.waiting(&self.owner.key(), &Attempt::new(self.owner, 1, 0))?;
        debug!(
            reason = waiting.message, left = ?waiting.left,
            "not creating a revision yet: the last attempt was refused"
        );
        Some(waiting.left)
    }

    /// Reads the workload from the API server, for a revision of its template.
    ///
    /// # Errors
    /// When the read fails, or the workload no longer exists, even if another one has its name.
    pub async fn snapshot<K: Kind>(&self) -> Result<Snapshot, ReconcileError> {
        let key = self.owner.key();
        let object = self.writer.get_json(&K::RESOURCE, &key).await?;
        let snapshot = Snapshot::read(object).map_err(ReconcileError::new)?;
        if snapshot.uid != self.owner.uid {
            let kind = K::RESOURCE.kind;
            let wanted = &self.owner.uid;
            let message = format!("original {kind} {key} is gone: got uid {}, wanted {wanted}", snapshot.uid);
            return Err(ReconcileError::new(message));
        }
        Ok(snapshot)
    }

    /// Creates a revision whose name ends with a hash of its data and of the number of collisions. If a revision with
    /// other data has the name, the number of collisions increases and the creation is repeated. Upstream:
    /// pkg/controller/history, CreateControllerRevision.
    ///
    /// # Errors
    /// When the creation fails for another reason.
    pub async fn create(&self, draft: &Draft, collisions: &mut i32) -> Result<Arc<ControllerRevision>, WriteError> {
        loop {
            match self.create_named(draft, &hash(&draft.data, Some(*collisions))).await? {
                CreationResult::New(revision) | CreationResult::Existing(revision) => return Ok(revision),
                CreationResult::Taken => *collisions += 1,
            }
        }
    }

    /// Creates a revision whose name is that of the workload followed by `hash`.
    ///
    /// # Errors
    /// When the creation fails, except because the name is taken, or when the revision with this name cannot be read.
    pub async fn create_named(&self, draft: &Draft, hash: &str) -> Result<CreationResult, WriteError> {
        let name = revision_name(&self.owner.name, hash);
        let object = NewRevision {
            name: &name,
            namespace: &self.owner.namespace,
            labels: &draft.labels,
            annotations: &draft.annotations,
            owner: self.reference,
            data: &draft.data,
            revision: draft.revision,
        };
        let resource = &ControllerRevision::RESOURCE;
        match self.writer.create(resource, &self.owner.namespace, &object.encode(), true).await {
            Ok(response) => {
                let created: ControllerRevision = response.decode(self.revisions.decoding())?;
                self.wrote(created.meta.version);
                self.refusals.forget(&self.owner.key());
                Ok(CreationResult::New(Arc::new(created)))
            }
            Err(error) if error.is_already_exists() => {
                let known: ControllerRevision =
                    self.writer.get(resource, &self.key(&name)).await?.decode(self.revisions.decoding())?;
                if known.data != Fingerprint::of(&draft.data) {
                    return Ok(CreationResult::Taken);
                }
                self.wrote(known.meta.version);
                Ok(CreationResult::Existing(Arc::new(known)))
            }
            Err(error) => {
                if error.is_namespace_terminating() {
                    self.gate.close(&self.owner.namespace);
                } else {
                    self.refusals.failed(&self.owner.key(), Attempt::new(self.owner, 1, 0), &error);
                }
                Err(error)
            }
        }
    }

    /// Returns the data of a revision, byte for byte.
    ///
    /// # Errors
    /// When the revision cannot be read from the API server.
    pub async fn data(&self, revision: &str) -> Result<Vec<u8>, WriteError> {
        let response = self.writer.get(&ControllerRevision::RESOURCE, &self.key(revision)).await?;
        Ok(ControllerRevision::data_of(response.object()?).to_vec())
    }

    /// Changes the number of a revision.
    ///
    /// # Errors
    /// When a request fails. A conflict if the revision changes at the same time, or another one has its name.
    pub async fn renumber(
        &self,
        revision: &ControllerRevision,
        number: i64,
    ) -> Result<Arc<ControllerRevision>, WriteError> {
        let resource = &ControllerRevision::RESOURCE;
        let key = revision.meta.key();
        let current = self.read(revision).await?;
        let object = ControllerRevision::renumbered(current.object()?, number).map_err(kinds::DecodeError::from)?;
        let renumbered: ControllerRevision =
            self.writer.replace(resource, &key, None, &object).await?.decode(self.revisions.decoding())?;
        self.wrote(renumbered.meta.version);
        Ok(Arc::new(renumbered))
    }

    /// Reads a revision from the API server.
    ///
    /// # Errors
    /// When the read fails. A conflict if another one has its name.
    async fn read(&self, revision: &ControllerRevision) -> Result<ObjectResponse, WriteError> {
        let current = self.writer.get(&ControllerRevision::RESOURCE, &revision.meta.key()).await?;
        if current.meta()?.uid == revision.meta.uid {
            return Ok(current);
        }
        Err(WriteError::Refused(ApiStatus {
            code: 409,
            reason: "Conflict".to_owned(),
            message: format!("ControllerRevision {} was replaced by another one", revision.meta.key()),
            ..ApiStatus::default()
        }))
    }

    /// Adds a label to a revision.
    ///
    /// # Errors
    /// When a request fails. A conflict if the revision changes at the same time, or another one has its name.
    pub async fn label(&self, revision: &ControllerRevision, key: &str, value: &str) -> Result<(), WriteError> {
        let resource = &ControllerRevision::RESOURCE;
        let name = revision.meta.key();
        let current = self.read(revision).await?;
        let object = ControllerRevision::labelled(current.object()?, key, value).map_err(kinds::DecodeError::from)?;
        let labelled = self.writer.replace(resource, &name, None, &object).await?.meta()?;
        self.wrote(labelled.version);
        Ok(())
    }

    /// Deletes a revision. Succeeds if it no longer exists, or another one has its name.
    ///
    /// # Errors
    /// When the request fails for another reason.
    pub async fn delete(&self, revision: &ControllerRevision) -> Result<(), WriteError> {
        match self.writer.delete(&ControllerRevision::RESOURCE, &revision.meta.key(), &revision.meta.uid).await {
            Err(error) if !error.is_object_deleted() => Err(error),
            _ => Ok(()),
        }
    }
}
