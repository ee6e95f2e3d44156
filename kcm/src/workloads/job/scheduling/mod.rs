//! Scheduling of a Job's pods as a group: its Workload and its PodGroup (gate WorkloadWithJob).
//!
//! The names of both objects are computed, so that no cache of all Workloads is needed: the objects are read from the
//! API server when the Job's spec or its PodGroup has changed. If the last read is older than [`MAX_AGE`], they are
//! also read when pods are created, or if the Job's parent may resize the PodGroup. A Job's *parent* is the object that
//! controls the Job, for example a CronJob or a JobSet. Upstream: pkg/controller/job, job_scheduling_manager.go.

mod compile;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::pod_group_workload::{ControllerRef, controller_ref};
use kinds::schema::{object_meta, workload};
use kinds::wire::find;
use kinds::{Job, Kind, PodGroup, Resource, Str, Uid};
use runtime::events::{EventType, Recorder, about};
use runtime::lock::lock;
use runtime::store::{Store, WriteVersion};
use runtime::write::{WriteError, Writer};
use serde_json::Value;
use tokio::time::Instant;
use tracing::debug;

use compile::Mode;

use super::decide::SUSPENDED;
use crate::pods::creation_gate::CreationGate;

const WORKLOADS: Resource = Resource {
    group: "scheduling.k8s.io",
    version: "v1beta1",
    kind: "Workload",
    plural: "workloads",
    namespaced: true,
};
const GROUPS: Resource = PodGroup::RESOURCE;

/// Age up to which a [`CheckedGroup`] is reused while pods of the Job are created, or if the Job's parent may resize
/// the group. A change of the Workload or of the Job's annotations does not change the Job's generation: only a new
/// check detects such a change.
const MAX_AGE: Duration = Duration::from_secs(30);

/// A PodGroup as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    name: Str,
    version: WriteVersion,
}

/// The PodGroup of a Job, as of the last time that it was compared with the spec.
#[derive(Debug, Clone)]
struct CheckedGroup {
    uid: Uid,
    generation: i64,
    checked: Instant,
    group: GroupResult,
}

/// The reason why the group of a Job's pods could not be ensured.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The API server refused to create the Workload or the PodGroup.
    #[error("{0}")]
    Refused(String),
    /// Another reason.
    #[error("{0}")]
    Other(String),
}

impl From<String> for GroupError {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}

impl From<&str> for GroupError {
    fn from(message: &str) -> Self {
        Self::Other(message.to_owned())
    }
}

/// Workloads and PodGroups of Jobs.
pub struct Scheduling {
    groups: Arc<Store<PodGroup>>,
    writer: Writer,
    recorder: Recorder,
    /// Namespaces that are being deleted, in which nothing can be created.
    gate: CreationGate,
    known: Mutex<HashMap<ObjectKey, CheckedGroup>>,
}

/// The group of a Job's pods.
#[derive(Debug, Clone, Default)]
struct GroupResult {
    group: Option<Group>,
    /// The Job's parent decides on the size of the group.
    is_delegated: bool,
    /// The name of the parent's Workload, if there is one.
    parents_workload: Option<Str>,
}

impl Scheduling {
    /// Creates the state for all Jobs, with the Job controller's client.
    pub fn new(groups: Arc<Store<PodGroup>>, writer: Writer, recorder: Recorder, gate: CreationGate) -> Self {
        Self { groups, writer, recorder, gate, known: Mutex::default() }
    }

    /// Removes the entry of a Job that was deleted or has finished.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.known).remove(key);
    }

    /// Creates or resizes the PodGroup of a Job's pods if necessary, and returns its name; `None` if the pods are
    /// scheduled one by one. `has_pods`: the Job has pods already. `creates_pods`: this reconcile will create pods.
    ///
    /// # Errors
    /// When a read or write failed, the Workload has an unexpected form, or the Job was deleted or replaced.
    pub async fn ensure_group(
        &self,
        key: &ObjectKey,
        job: &Job,
        has_pods: bool,
        creates_pods: bool,
    ) -> Result<Option<Str>, GroupError> {
        let known = lock(&self.known).get(key).cloned();
        let is_current = |known: &CheckedGroup| {
            let may_be_old = !creates_pods && !known.group.is_delegated;
            let is_recent = may_be_old || known.checked.elapsed() < MAX_AGE;
            let is_unchanged = known.group.group.as_ref().is_none_or(|group| !self.has_changed(key, group));
            known.uid == job.meta.uid && known.generation == job.meta.generation && is_recent && is_unchanged
        };
        let parents_workload = match known {
            Some(known) if is_current(&known) => return Ok(known.group.group.map(|group| group.name)),
            known => known.and_then(|known| known.group.parents_workload),
        };
        let checked = Instant::now();
        let ensured = self.ensure(key, job, has_pods, parents_workload).await;
        let message = |why| format!("ensuring Workload and PodGroup for Job {}/{}: {why}", key.namespace, key.name);
        let group = ensured.map_err(|error| match error {
            GroupError::Refused(why) => GroupError::Refused(message(why)),
            GroupError::Other(why) => GroupError::Other(message(why)),
        })?;
        let name = group.group.as_ref().map(|group| group.name.clone());
        let uid = job.meta.uid.clone();
        let generation = job.meta.generation;
        lock(&self.known).insert(key.clone(), CheckedGroup { uid, generation, checked, group });
        Ok(name)
    }

    /// Returns true if, according to the cache, the group of a Job was deleted or written since it was read.
    fn has_changed(&self, job: &ObjectKey, group: &Group) -> bool {
        let key = ObjectKey { namespace: job.namespace.clone(), name: group.name.clone() };
        match self.groups.get(&key) {
            Some(cached) => cached.meta.version > group.version.version(),
            None => self.groups.progress().contains(&group.version),
        }
    }

    /// Creates or resizes the objects of a Job. `parents_workload` is the name of the parent's Workload at the last
    /// check.
    async fn ensure(
        &self,
        key: &ObjectKey,
        job: &Job,
        has_pods: bool,
        parents_workload: Option<Str>,
    ) -> Result<GroupResult, GroupError> {
        let fresh = found(self.writer.get_json(&Job::RESOURCE, key).await)?;
        let is_same = |fresh: &Value| fresh["metadata"]["uid"] == job.meta.uid.to_string();
        // A Job that only the cache still contains would otherwise get pods without the group that they belong to.
        let fresh = fresh.filter(is_same).ok_or("the Job was deleted or replaced")?;
        let is_new = compile::is_new(&fresh, has_pods);
        let (workload, template, is_delegated) = match compile::mode(&fresh) {
            Mode::None => return Ok(GroupResult::default()),
            Mode::Both => match self.ensure_workload(key, job, &fresh, is_new).await? {
                Some(workload) => (workload, None, false),
                None => return Ok(GroupResult::default()),
            },
            Mode::GroupOnly(template) => match self.workload_of_parent(key, &fresh, parents_workload).await? {
                Some(workload) => (workload, Some(template), true),
                None => return Ok(GroupResult { is_delegated: true, ..GroupResult::default() }),
            },
        };
        let parents_workload = workload["metadata"]["name"].as_str().filter(|_| is_delegated).map(Str::from);
        let ungrouped = GroupResult { group: None, is_delegated, parents_workload };
        let templates = workload["spec"]["podGroupTemplates"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_named = |found: &&Value| {
            template.as_ref().filter(|name| !name.is_empty()).is_none_or(|name| found["name"] == name.as_str())
        };
        let Some(template) = templates.iter().find(is_named) else {
            debug!(job = %key, "the parent's Workload lacks the requested PodGroupTemplate; pods are not grouped");
            return Ok(ungrouped);
        };
        let group = self.ensure_pod_group(key, job, (&fresh, &workload, template), (is_new, !is_delegated)).await?;
        let size = if is_delegated {
            template["schedulingPolicy"]["gang"]["minCount"].as_i64()
        } else {
            compile::gang_size(&fresh)
        };
        if let Some(size) = size {
            let resized = compile::workload_resize(&workload, size).filter(|_| !is_delegated);
            self.patch(&WORKLOADS, &workload, resized).await?;
            if let Some(group) = &group {
                self.patch(&GROUPS, group, compile::group_resize(group, size)).await?;
            }
        }
        let Some(group) = group else { return Ok(ungrouped) };
        let text = |field: &str| group["metadata"][field].as_str().unwrap_or_default();
        let version = self.groups.progress().written(text("resourceVersion").parse().unwrap_or(0));
        Ok(GroupResult { group: Some(Group { name: text("name").into(), version }), ..ungrouped })
    }

    /// Reads or creates the Workload of a Job; `None` if there is none and the Job is not new.
    async fn ensure_workload(
        &self,
        key: &ObjectKey,
        job: &Job,
        fresh: &Value,
        is_new: bool,
    ) -> Result<Option<Value>, GroupError> {
        let name = compile::workload_name(&key.name, &job.meta.uid.to_string());
        let (namespace, job_name) = (&key.namespace, &key.name);
        let known = found(self.writer.get_json(&WORKLOADS, &ObjectKey::new(namespace.clone(), &*name)).await)?;
        if let Some(known) = known.filter(|known| compile::is_controlled_by(known, fresh)) {
            let count = known["spec"]["podGroupTemplates"].as_array().map_or(0, Vec::len);
            if count != 1 {
                let message = format!(
                    "workload {namespace}/{name} for job {namespace}/{job_name} has {count} PodGroupTemplates, want exactly 1"
                );
                return Err(message.into());
            }
            return Ok(Some(known));
        }
        if !is_new {
            return Ok(None);
        }
        let workload = compile::workload(fresh, &name);
        let created = self.create(&WORKLOADS, key, workload).await;
        match &created {
            Ok(_) => self.record(
                job,
                EventType::Normal,
                "WorkloadCreated",
                format!("Created Workload {name} for Job {job_name}"),
            ),
            Err(error) => {
                let message = format!("Failed to create Workload for Job {job_name}: {error}");
                self.record(job, EventType::Warning, "FailedWorkloadCreate", message);
            }
        }
        created.map(Some)
    }

    /// Finds the Workload of a Job's parent: first by `name`, then among all Workloads of the namespace.
    async fn workload_of_parent(
        &self,
        key: &ObjectKey,
        fresh: &Value,
        name: Option<Str>,
    ) -> Result<Option<Value>, String> {
        let Some(parent) = compile::parent(fresh) else { return Ok(None) };
        if let Some(name) = name
            && let Some(workload) = self.workload_of(key, &parent, &name).await?
        {
            return Ok(Some(workload));
        }
        // There may be many Workloads: only the name of the first match is kept.
        let mut found = None;
        let visit = |object: &[u8]| {
            if found.is_none() && controller_ref(object).as_ref() == Some(&parent) {
                let meta = find(object, workload::METADATA);
                found = std::str::from_utf8(find(meta, object_meta::NAME)).ok().map(Str::from);
            }
        };
        self.writer.list_each(&WORKLOADS, &key.namespace, visit).await.map_err(|error| error.to_string())?;
        let found = match found {
            Some(name) => self.workload_of(key, &parent, &name).await?,
            None => None,
        };
        if found.is_none() {
            debug!(job = %key, "the Workload of the Job's parent does not exist; pods are not grouped");
        }
        Ok(found)
    }

    /// Reads a Workload by its name; `None` if it does not exist, or is not the parent's.
    async fn workload_of(&self, job: &ObjectKey, parent: &ControllerRef, name: &Str) -> Result<Option<Value>, String> {
        let key = ObjectKey { namespace: job.namespace.clone(), name: name.clone() };
        let workload = found(self.writer.get_json(&WORKLOADS, &key).await)?;
        Ok(workload.filter(|workload| compile::is_of_parent(workload, parent)))
    }

    /// Reads or creates the PodGroup of a Job; `None` if there is none and the Job is not new.
    async fn ensure_pod_group(
        &self,
        key: &ObjectKey,
        job: &Job,
        (fresh, workload, template): (&Value, &Value, &Value),
        (is_new, is_own): (bool, bool),
    ) -> Result<Option<Value>, GroupError> {
        let group = compile::group(fresh, workload, template, is_own);
        let name = group["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let known = found(self.writer.get_json(&GROUPS, &ObjectKey::new(key.namespace.clone(), &*name)).await)?;
        if let Some(known) = known.filter(|known| compile::is_controlled_by(known, fresh)) {
            return Ok(Some(known));
        }
        if !is_new {
            return Ok(None);
        }
        let created = self.create(&GROUPS, key, group).await?;
        let message = format!("Created PodGroup {name} for Job {}", key.name);
        self.record(job, EventType::Normal, "PodGroupCreated", message);
        Ok(Some(created))
    }

    async fn create(&self, resource: &Resource, key: &ObjectKey, mut object: Value) -> Result<Value, GroupError> {
        let created = self.writer.create_json(resource, &key.namespace, &object).await;
        let created = created.map_err(|error| {
            if error.is_namespace_terminating() {
                self.gate.close(&key.namespace);
            }
            if error.is_denied() {
                GroupError::Refused(error.to_string())
            } else {
                GroupError::Other(error.to_string())
            }
        })?;
        let meta = created.meta().map_err(|error| error.to_string())?;
        object["metadata"]["uid"] = meta.uid.to_string().into();
        object["metadata"]["resourceVersion"] = meta.version.to_string().into();
        Ok(object)
    }

    async fn patch(&self, resource: &Resource, object: &Value, patch: Option<Value>) -> Result<(), String> {
        let Some(patch) = patch else { return Ok(()) };
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
        let key = ObjectKey::new(text("namespace"), text("name"));
        self.writer.patch(resource, &key, &patch).await.map(drop).map_err(|error| error.to_string())
    }

    fn record(&self, job: &Job, kind: EventType, reason: &'static str, message: String) {
        self.recorder.event(&about(job), kind, reason, message);
    }
}

/// Returns true if a Job has never started according to its cached status: it may still get a group. A Job that was
/// created suspended has the condition `Suspended` before it starts, and does not count as new. Upstream:
/// pkg/controller/job, isNewJob.
pub fn is_new(job: &Job, has_pods: bool) -> bool {
    let status = &job.status;
    let was_suspended = status.conditions.iter().any(|condition| *condition.kind == *SUSPENDED);
    !(has_pods || !status.start.is_zero() || status.succeeded != 0 || status.failed != 0 || was_suspended)
}

/// Returns the object that was read, or `None` if it does not exist.
fn found(read: Result<Value, WriteError>) -> Result<Option<Value>, String> {
    match read {
        Err(error) if error.is_not_found() => Ok(None),
        read => read.map(Some).map_err(|error| error.to_string()),
    }
}
