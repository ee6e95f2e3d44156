//! Observes every change of a namespace's pods and ReplicaSets, and checks each intermediate state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use runtime::lock::lock;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::space::{Namespaced, Space};
use crate::wait::eventually;

/// HTTP status of a watch whose first changes the server no longer has.
const EXPIRED: u16 = 410;

/// The pause after a watch has ended or could not be started.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// The pods and ReplicaSets of a namespace as of the last events. Each kind has its own watch, so the pods may be newer
/// or older than the ReplicaSets.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Pods by uid.
    pub pods: BTreeMap<String, Pod>,
    /// ReplicaSets by uid.
    pub sets: BTreeMap<String, ReplicaSet>,
    /// Uids of all pods that existed when the observer was started or later.
    pub pods_ever: BTreeSet<String>,
    /// Uids of all ReplicaSets that existed when the observer was started or later.
    pub sets_ever: BTreeSet<String>,
    states: usize,
    failure: Option<String>,
}

impl View {
    fn put_pod(&mut self, uid: String, pod: Option<Pod>) {
        self.pods_ever.insert(uid.clone());
        insert_or_remove(&mut self.pods, uid, pod);
    }

    fn put_set(&mut self, uid: String, set: Option<ReplicaSet>) {
        self.sets_ever.insert(uid.clone());
        insert_or_remove(&mut self.sets, uid, set);
    }

    fn miss(&mut self, message: &str) {
        self.failure.get_or_insert_with(|| format!("states after state {} were missed: {message}", self.states));
    }

    fn check(&mut self, check: &dyn Fn(&View) -> Result<()>) {
        self.states += 1;
        let verdict = check(self);
        self.failure = self.failure.take().or_else(|| Some(format!("state {}: {:#}", self.states, verdict.err()?)));
    }
}

/// Watches a namespace until it is dropped.
pub struct Observer {
    space: Space,
    view: Arc<Mutex<View>>,
    _watches: JoinSet<()>,
}

impl Observer {
    /// Starts watching; `check` checks every state after a change.
    pub async fn start(space: &Space, check: impl Fn(&View) -> Result<()> + Send + Sync + 'static) -> Result<Self> {
        let pods = space.api::<Pod>().list(&ListParams::default()).await?;
        let sets = space.api::<ReplicaSet>().list(&ListParams::default()).await?;
        let versions = [&pods.metadata, &sets.metadata].map(|list| list.resource_version.clone().unwrap_or_default());
        let mut first = View::default();
        pods.items.into_iter().for_each(|pod| first.put_pod(pod.uid().unwrap_or_default(), Some(pod)));
        sets.items.into_iter().for_each(|set| first.put_set(set.uid().unwrap_or_default(), Some(set)));

        let (view, check) = (Arc::new(Mutex::new(first)), Arc::new(check));
        let mut watches = JoinSet::new();
        let [pods_version, sets_version] = versions;
        let (pod_view, pod_check) = (view.clone(), check.clone());
        watches.spawn(follow(space.api::<Pod>(), pods_version, view.clone(), move |uid, pod| {
            let mut view = lock(&pod_view);
            view.put_pod(uid, pod);
            view.check(&*pod_check);
        }));
        let set_view = view.clone();
        watches.spawn(follow(space.api::<ReplicaSet>(), sets_version, view.clone(), move |uid, set| {
            let mut view = lock(&set_view);
            view.put_set(uid, set);
            view.check(&*check);
        }));
        Ok(Self { space: space.clone(), view, _watches: watches })
    }

    /// Returns the state as of the last event, which may be older than a response of the API server.
    pub fn view(&self) -> View {
        lock(&self.view).clone()
    }

    /// Waits until the view has all changes up to now, a check has failed, or states were missed. Returns the view.
    pub async fn current(&self) -> Result<View> {
        eventually("the watches have delivered all changes", || async {
            let pods = self.space.api::<Pod>().list(&ListParams::default()).await?;
            let sets = self.space.api::<ReplicaSet>().list(&ListParams::default()).await?;
            let view = self.view();
            let is_current = versions(&pods.items) == versions(view.pods.values())
                && versions(&sets.items) == versions(view.sets.values());
            ensure!(is_current || view.failure.is_some(), "the view has {} pods", view.pods.len());
            Ok(view)
        })
        .await
    }

    /// Waits like [`Observer::current`]. Fails if a check has failed, if states were missed, or if there was no state
    /// to check.
    pub async fn verdict(&self) -> Result<()> {
        let view = self.current().await?;
        match &view.failure {
            Some(failure) => Err(anyhow!("an intermediate state is wrong: {failure}")),
            None if view.states == 0 => Err(anyhow!("no change was observed: this proves nothing")),
            None => Ok(()),
        }
    }
}

/// Returns the uids of objects with their versions.
fn versions<'a, K: Namespaced + 'a>(objects: impl IntoIterator<Item = &'a K>) -> BTreeSet<(String, String)> {
    let version = |object: &K| (object.uid().unwrap_or_default(), object.resource_version().unwrap_or_default());
    objects.into_iter().map(version).collect()
}

fn insert_or_remove<K>(objects: &mut BTreeMap<String, K>, uid: String, object: Option<K>) {
    match object {
        Some(object) => drop(objects.insert(uid, object)),
        None => drop(objects.remove(&uid)),
    }
}

/// Passes every change after a version to `each`: the object, or `None` if it was deleted. When the server no longer
/// has the changes since the last version, the view fails: states were missed.
async fn follow<K: Namespaced>(
    api: Api<K>,
    mut version: String,
    view: Arc<Mutex<View>>,
    each: impl Fn(String, Option<K>),
) {
    loop {
        let changes = match api.watch(&WatchParams::default(), &version).await {
            Ok(changes) => changes,
            Err(kube::Error::Api(status)) if status.code == EXPIRED => return lock(&view).miss(&status.message),
            Err(_) => {
                sleep(RETRY_INTERVAL).await;
                continue;
            }
        };
        let mut changes = std::pin::pin!(changes);
        while let Some(Ok(change)) = changes.next().await {
            let (object, is_deleted) = match change {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark(bookmark) => {
                    version = bookmark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) if status.code == EXPIRED => return lock(&view).miss(&status.message),
                WatchEvent::Error(_) => break,
            };
            version = object.resource_version().unwrap_or_default();
            each(object.uid().unwrap_or_default(), (!is_deleted).then_some(object));
        }
        sleep(RETRY_INTERVAL).await;
    }
}
