//! Tasks that one manager begins and another one finishes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use futures::future::{BoxFuture, try_join_all};
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

use crate::objects::uids;
use crate::observer::Observer;
use crate::space::{Bed, Space};

/// The future of one half of a task.
pub type StepFuture = BoxFuture<'static, Result<()>>;

/// A task that one manager begins and another one finishes.
pub struct Task {
    /// The task's name; the name of its namespace begins with it.
    pub name: &'static str,
    /// The first half: up to an intermediate state.
    pub begin: fn(Space) -> StepFuture,
    /// The second half: from there to the final state.
    pub end: fn(Space) -> StepFuture,
    /// The number of pods that are created in total.
    pub pods: usize,
}

/// A task in its own namespace.
pub struct TaskInSpace {
    /// The task.
    pub task: &'static Task,
    /// Its namespace.
    pub space: Space,
    observer: Observer,
}

impl TaskInSpace {
    /// Creates a namespace for each task.
    pub async fn create_all(bed: &Arc<Bed>, tasks: &'static [Task]) -> Result<Vec<Self>> {
        try_join_all(tasks.iter().map(async |task| {
            let space = bed.space(task.name).await?;
            let observer = Observer::start(&space, |_| Ok(())).await?;
            Ok(Self { task, space, observer })
        }))
        .await
    }

    async fn begin(&self) -> Result<()> {
        let Self { task, space, .. } = self;
        (task.begin)(space.clone()).await.with_context(|| format!("first half of {}", space.namespace))?;
        let pods = uids(&space.list::<Pod>("").await?);
        ensure!(pods.is_empty() == (task.pods == 0), "{} pods in the middle of {}", pods.len(), space.namespace);
        Ok(())
    }

    async fn end(&self) -> Result<()> {
        let Self { task, space, observer } = self;
        (task.end)(space.clone()).await.with_context(|| format!("second half of {}", space.namespace))?;
        let created = observer.current().await?.pods_ever.len();
        ensure!(created == task.pods, "{}: {created} pods were created instead of {}", space.namespace, task.pods);
        Ok(())
    }
}

/// Runs the first half of all tasks concurrently. Also fails if a task with pods has none in its intermediate state,
/// or a task without pods has some.
pub async fn begin(tasks: &[TaskInSpace]) -> Result<()> {
    try_join_all(tasks.iter().map(TaskInSpace::begin)).await.map(drop)
}

/// Runs the second half of all tasks concurrently. Also fails if the number of pods created in both halves is not the
/// task's: for instance because a pod of the intermediate state was replaced.
pub async fn end(tasks: &[TaskInSpace]) -> Result<()> {
    try_join_all(tasks.iter().map(TaskInSpace::end)).await.map(drop)
}

/// One state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectVersion {
    /// The uid, which changes when the object is deleted and recreated.
    pub uid: String,
    /// The resourceVersion. `None` for pods, because kubelets and the scheduler change them.
    pub resource_version: Option<String>,
}

/// Objects by `<kind> <namespace>/<name>`.
pub type ObjectVersions = BTreeMap<String, ObjectVersion>;

/// Reads a namespace's objects of some kinds, given as for `kubectl get`.
pub async fn versions_in(space: &Space, kinds: &str) -> Result<ObjectVersions> {
    versions(&space.kubectl(&["get", kinds, "--output=json"]).await?)
}

/// Reads the objects of some kinds in all namespaces except kube-system, where the API server itself updates objects.
pub async fn versions_everywhere(space: &Space, kinds: &str) -> Result<ObjectVersions> {
    let mut versions = versions(&space.kubectl(&["get", kinds, "--output=json", "--all-namespaces"]).await?)?;
    versions.retain(|name, _| !name.contains(" kube-system/"));
    Ok(versions)
}

fn versions(list: &str) -> Result<ObjectVersions> {
    let list: Value = serde_json::from_str(list)?;
    let mut versions = ObjectVersions::new();
    for item in list["items"].as_array().into_iter().flatten() {
        let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
        let kind = item["kind"].as_str().unwrap_or_default();
        let resource_version = (kind != "Pod").then(|| text("resourceVersion"));
        let name = format!("{kind} {}/{}", text("namespace"), text("name"));
        versions.insert(name, ObjectVersion { uid: text("uid"), resource_version });
    }
    ensure!(!versions.is_empty(), "no object was found: a comparison would prove nothing");
    Ok(versions)
}
