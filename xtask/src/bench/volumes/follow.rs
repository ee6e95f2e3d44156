//! A list and watch of one kind that restarts when a watch ends.

use std::collections::HashSet;
use std::fmt::Debug;
use std::time::Duration;

use anyhow::Result;
use futures::StreamExt;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

/// A change of an object; objects of a kind are distinguished by their names.
pub enum Change<K> {
    /// The object was created or changed, or was listed.
    Applied(K),
    /// The object with this name no longer exists.
    Deleted(String),
}

/// The pause after a failed list.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// A task that is aborted when this value is dropped.
pub struct Task(JoinHandle<()>);

impl Task {
    /// Spawns a task.
    pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(work))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Calls `apply` with every existing object, and then with every change, in order.
///
/// # Errors
/// When the objects cannot be listed at the beginning.
pub async fn follow<K>(api: Api<K>, mut apply: impl FnMut(Change<K>) + Send + 'static) -> Result<Task>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut names = HashSet::new();
    let mut version = relist(&api, &mut names, &mut apply).await?;
    Ok(Task::spawn(async move {
        loop {
            if watch(&api, &mut version, &mut names, &mut apply).await {
                continue;
            }
            match relist(&api, &mut names, &mut apply).await {
                Ok(relisted) => version = relisted,
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    }))
}

/// Lists all objects; returns the list's version.
async fn relist<K>(
    api: &Api<K>,
    names: &mut HashSet<String>,
    apply: &mut (impl FnMut(Change<K>) + Send),
) -> Result<String>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let list = api.list(&ListParams::default()).await?;
    let version = list.metadata.resource_version.unwrap_or_default();
    let present: HashSet<String> = list.items.iter().map(ResourceExt::name_any).collect();
    for name in names.difference(&present) {
        apply(Change::Deleted(name.clone()));
    }
    list.items.into_iter().for_each(|object| apply(Change::Applied(object)));
    *names = present;
    Ok(version)
}

/// Applies one watch's events; returns true if the next watch can continue at `version`.
async fn watch<K>(
    api: &Api<K>,
    version: &mut String,
    names: &mut HashSet<String>,
    apply: &mut (impl FnMut(Change<K>) + Send),
) -> bool
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let Ok(events) = api.watch(&WatchParams::default(), version).await else { return false };
    let mut events = events.boxed();
    while let Some(event) = events.next().await {
        match event {
            Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)) => {
                *version = object.resource_version().unwrap_or_default();
                names.insert(object.name_any());
                apply(Change::Applied(object));
            }
            Ok(WatchEvent::Deleted(object)) => {
                *version = object.resource_version().unwrap_or_default();
                names.remove(&object.name_any());
                apply(Change::Deleted(object.name_any()));
            }
            Ok(WatchEvent::Bookmark(bookmark)) => *version = bookmark.metadata.resource_version,
            Ok(WatchEvent::Error(_)) | Err(_) => return false,
        }
    }
    true
}
