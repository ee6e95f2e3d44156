//! All changes of the scenario's pods and of the replicas that its ReplicaSets request. They determine the smallest
//! number of available pods and the largest number of requested pods.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::environment::DemoEnvironment;

/// Interval of the checks of processes, and of pods that become available by time alone.
const TICK: Duration = Duration::from_millis(250);

/// Pods by image, and those that count as available for a Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Pods that are not being deleted, by image.
    pub images: BTreeMap<String, usize>,
    /// Those among them that have been Ready for long enough.
    pub available: usize,
}

impl Count {
    /// Counts at one moment; a pod is available once it has been Ready for `min_ready`.
    fn of<'a>(pods: impl IntoIterator<Item = &'a Pod>, min_ready: SignedDuration, now: Timestamp) -> Self {
        let mut count = Self::default();
        for pod in pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
            *count.images.entry(image(pod).to_owned()).or_default() += 1;
            let long_enough = |since: Timestamp| since.saturating_add(min_ready).is_ok_and(|then| then <= now);
            count.available += usize::from(ready_since(pod).is_some_and(long_enough));
        }
        count
    }

    /// Returns the number of pods that are not being deleted.
    pub fn alive(&self) -> usize {
        self.images.values().sum()
    }

    /// Returns true if there are this many pods of one image, all available, and no others.
    pub fn is_all(&self, image: &str, replicas: usize) -> bool {
        self.available == replicas && self.alive() == replicas && self.images.get(image) == Some(&replicas)
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let images: Vec<_> = self.images.iter().map(|(image, count)| format!("{count} of {image}")).collect();
        if images.is_empty() {
            f.write_str("no pods")
        } else {
            write!(f, "pods: {}; available: {}", images.join(", "), self.available)
        }
    }
}

fn image(pod: &Pod) -> &str {
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    container.and_then(|container| container.image.as_deref()).unwrap_or("no image")
}

fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready" && condition.status == "True")?;
    ready.last_transition_time.as_ref().map(|time| time.0)
}

/// The pods with one label and their ReplicaSets, watched from a point in time.
pub struct Pods<'a> {
    environment: &'a DemoEnvironment,
    min_ready: SignedDuration,
    changes: BoxStream<'static, Result<Change>>,
    pods: BTreeMap<String, Pod>,
    /// The number of pods that each ReplicaSet requests.
    sets: BTreeMap<String, i32>,
    last_reported: Count,
    /// The smallest number of available pods at any time.
    min_available: usize,
    /// The largest number of pods that the ReplicaSets requested together at any time. Pods are not counted for this: a
    /// deleted pod and its replacement belong to two ReplicaSets, and their events may arrive in either order.
    max_requested: i32,
}

/// An event of one of the two watches.
enum Change {
    Pod(WatchEvent<Pod>),
    Set(WatchEvent<ReplicaSet>),
}

impl<'a> Pods<'a> {
    /// Follows the pods and ReplicaSets with this label (`name=value`) in a namespace from now on. Pods count as
    /// available once they have been Ready for `min_ready` seconds.
    pub async fn follow(
        environment: &'a DemoEnvironment,
        namespace: &str,
        label: &str,
        min_ready: i64,
    ) -> Result<Self> {
        let (pods, pod_events) = watched::<Pod>(environment, namespace, label).await.context("watch pods")?;
        let (sets, set_events) =
            watched::<ReplicaSet>(environment, namespace, label).await.context("watch ReplicaSets")?;
        let pod_changes = pod_events.map(|event| Ok(Change::Pod(event?))).chain(ended("pods"));
        let set_changes = set_events.map(|event| Ok(Change::Set(event?))).chain(ended("ReplicaSets"));
        let min_ready = SignedDuration::from_secs(min_ready);
        let pods = pods.into_iter().map(|pod| (uid(&pod), pod)).collect::<BTreeMap<_, _>>();
        let sets = sets.into_iter().map(|set| (uid(&set), requested(&set))).collect::<BTreeMap<_, _>>();
        let last_reported = Count::of(pods.values(), min_ready, Timestamp::now());
        Ok(Self {
            environment,
            min_ready,
            changes: stream::select(pod_changes, set_changes).boxed(),
            min_available: last_reported.available,
            max_requested: sets.values().sum(),
            pods,
            sets,
            last_reported,
        })
    }

    /// Returns the current counts.
    pub fn count(&self) -> Count {
        Count::of(self.pods.values(), self.min_ready, Timestamp::now())
    }

    /// Returns the names of pods that are not being deleted, in order.
    pub fn names(&self) -> Vec<&str> {
        let alive = self.pods.values().filter(|pod| pod.metadata.deletion_timestamp.is_none());
        let mut names: Vec<_> = alive.filter_map(|pod| pod.metadata.name.as_deref()).collect();
        names.sort_unstable();
        names
    }

    /// Watches the pods until `reached` returns true, and prints each change. The caller's step has the deadline.
    pub async fn until(&mut self, mut reached: impl FnMut(&Count) -> bool) -> Result<()> {
        loop {
            let count = self.count();
            self.min_available = self.min_available.min(count.available);
            self.max_requested = self.max_requested.max(self.sets.values().sum());
            if count != self.last_reported {
                self.environment.report_event(&count.to_string());
                self.last_reported = count.clone();
            }
            if reached(&count) {
                return Ok(());
            }
            if let Ok(change) = tokio::time::timeout(TICK, self.changes.next()).await {
                self.apply(change.context("both watches ended")??)?;
            } else {
                self.environment.cluster.check()?;
            }
        }
    }

    fn apply(&mut self, change: Change) -> Result<()> {
        match change {
            Change::Pod(event) => apply_event(&mut self.pods, event, Pod::clone),
            Change::Set(event) => apply_event(&mut self.sets, event, requested),
        }
    }

    /// Fails if at any moment fewer pods were available, or more were requested, than allowed; otherwise returns a
    /// summary.
    pub fn check_limits(&self, min_available: usize, max_requested: i32) -> Result<String> {
        ensure!(
            self.min_available >= min_available,
            "at one time only {} pods were available, and {min_available} are required",
            self.min_available
        );
        ensure!(
            self.max_requested <= max_requested,
            "at one time {} pods were requested, and {max_requested} are allowed",
            self.max_requested
        );
        Ok(format!(
            "never fewer than {} available (allowed: {min_available}), never more than {} pods requested (allowed: \
             {max_requested})",
            self.min_available, self.max_requested
        ))
    }
}

/// Returns the objects of a kind with a label, then their changes.
async fn watched<K>(
    environment: &DemoEnvironment,
    namespace: &str,
    label: &str,
) -> Result<(Vec<K>, BoxStream<'static, kube::Result<WatchEvent<K>>>)>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug
        + Send
        + 'static,
{
    let api: Api<K> = Api::namespaced(environment.client.clone(), namespace);
    let list = api.list(&ListParams::default().labels(label)).await?;
    let version = list.metadata.resource_version.context("the list has no version")?;
    let events = api.watch(&WatchParams::default().labels(label), &version).await?.boxed();
    Ok((list.items, events))
}

/// Ends a stream with an error: the end of one watch must be detected although the other one continues.
fn ended(what: &str) -> impl Stream<Item = Result<Change>> + use<> {
    let error = anyhow!("the watch of the {what} ended");
    stream::once(async { Err(error) })
}

/// Applies an event to the known objects, of which `fields` returns the part that is kept.
fn apply_event<K: ResourceExt, T>(
    known: &mut BTreeMap<String, T>,
    event: WatchEvent<K>,
    fields: impl Fn(&K) -> T,
) -> Result<()> {
    match event {
        WatchEvent::Added(object) | WatchEvent::Modified(object) => {
            known.insert(uid(&object), fields(&object));
        }
        WatchEvent::Deleted(object) => {
            known.remove(&uid(&object));
        }
        WatchEvent::Bookmark(_) => {}
        WatchEvent::Error(status) => bail!("the watch failed: {}", status.message),
    }
    Ok(())
}

fn uid(object: &impl ResourceExt) -> String {
    object.uid().unwrap_or_default()
}

fn requested(set: &ReplicaSet) -> i32 {
    set.spec.replicas.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(image: &str, ready_since: Option<i64>, deleting: bool) -> Pod {
        let time = |second: i64| Timestamp::from_second(second).unwrap().to_string();
        serde_json::from_value(json!({
            "metadata": { "deletionTimestamp": deleting.then(|| time(0)) },
            "spec": { "containers": [{ "name": "main", "image": image }] },
            "status": { "conditions": ready_since.map(|second| {
                json!([{ "type": "Ready", "status": "True", "lastTransitionTime": time(second) }])
            }) },
        }))
        .unwrap()
    }

    #[test]
    fn pod_is_available_after_min_ready() {
        let pods = [
            pod("old", Some(10), false),
            pod("old", Some(10), true),
            pod("new", Some(97), false),
            pod("new", Some(98), false),
            pod("new", None, false),
        ];
        let count = |min_ready| {
            Count::of(&pods, SignedDuration::from_secs(min_ready), Timestamp::from_second(100).unwrap()).to_string()
        };
        assert_eq!(count(0), "pods: 3 of new, 1 of old; available: 3");
        assert_eq!(count(3), "pods: 3 of new, 1 of old; available: 2");
        assert_eq!(count(1000), "pods: 3 of new, 1 of old; available: 0");
        assert_eq!(Count::default().to_string(), "no pods");
    }

    #[test]
    fn is_all_requires_available_pods_of_one_image_and_no_others() {
        let is_all = |pods: &[Pod]| Count::of(pods, SignedDuration::ZERO, Timestamp::now()).is_all("new", 1);
        assert!(is_all(&[pod("new", Some(1), false)]));
        assert!(is_all(&[pod("new", Some(1), false), pod("old", Some(1), true)]));
        assert!(!is_all(&[pod("new", None, false)]));
        assert!(!is_all(&[pod("new", Some(1), false), pod("old", None, false)]));
        assert!(!is_all(&[pod("old", Some(1), false)]));
    }
}
