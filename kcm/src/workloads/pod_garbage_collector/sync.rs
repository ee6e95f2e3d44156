//! Lists the pods that may have to be deleted, and deletes those for which there is a reason.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kinds::meta::{ObjectKey, Uid};
use kinds::{Kind, Node, Pod, Str, Time};
use runtime::lock::lock;
use runtime::queue::{Queue, QueueKey};
use runtime::stale;
use runtime::store::{Store, index_key};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tracing::{error, info};

use super::ENDING;
use super::decide::{self, Census, Reason};
use super::metrics::Counts;
use crate::context::Clock;
use crate::pods::indexes::{by_node, on_node};

/// Interval between two passes.
const PERIOD: Duration = Duration::from_secs(20);

/// Time for which a node must be missing in the cache before it is read from the API server.
const QUARANTINE: Duration = Duration::from_secs(40);

/// Maximum number of pods that are deleted concurrently; the rate limit applies, too.
const MAX_CONCURRENT_DELETIONS: usize = 20;

/// A key of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Task {
    /// Check all pods that may have to be deleted.
    CheckAll,
    /// Check whether this node was deleted.
    Missing(Str),
}

impl QueueKey for Task {}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CheckAll => f.write_str("all pods"),
            Self::Missing(node) => write!(f, "node {node}"),
        }
    }
}

/// The controller's state.
pub struct PodGc {
    pub pods: Arc<Store<Pod>>,
    pub nodes: Arc<Store<Node>>,
    pub census: Arc<Census>,
    pub counts: Counts,
    pub threshold: i32,
    pub writer: Writer,
    pub queue: Arc<Queue<Task>>,
    pub clock: Clock,
    /// Pods that were force-deleted and are still in the cache, with the time of the attempt.
    pub forced: Mutex<HashMap<Uid, Time>>,
}

impl Reconcile for PodGc {
    type Key = Task;

    fn reconcile<'a>(&'a self, task: &'a Task) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            match task {
                Task::CheckAll => {
                    self.check_all().await;
                    Ok(Outcome::RequeueAfter(PERIOD))
                }
                Task::Missing(node) => {
                    self.check_missing_node(node).await;
                    Ok(Outcome::Done)
                }
            }
        }
        .boxed()
    }
}

impl PodGc {
    /// Removes the entry of a deleted pod.
    pub fn forget(&self, uid: &Uid) {
        self.forced().remove(uid);
    }

    fn forced(&self) -> std::sync::MutexGuard<'_, HashMap<Uid, Time>> {
        lock(&self.forced)
    }

    async fn check_all(&self) {
        let surplus = decide::surplus(self.census.finished(), self.threshold);
        if surplus > 0 {
            let finished = self.pods.by_index(&ENDING, index_key("finished"));
            info!(surplus, "deleting finished pods");
            self.force_delete_all(decide::first_deleted(finished, surplus), |_| Some(Reason::Terminated)).await;
        }
        let deleting = self.pods.by_index(&ENDING, index_key("deleting"));
        self.force_delete_all(deleting, |pod| decide::stuck(pod, self.node(&pod.node).as_deref())).await;
        for node in self.census.missing(|node| self.node(node).is_some()) {
            self.queue.add_after(Task::Missing(node), QUARANTINE);
        }
    }

    fn node(&self, name: &Str) -> Option<Arc<Node>> {
        self.nodes.get(&ObjectKey::new("", name.clone()))
    }

    /// Deletes the pods of a node that does not exist on the API server either. If the node cannot be read, the next
    /// pass checks it again.
    async fn check_missing_node(&self, node: &Str) {
        if self.node(node).is_some() {
            return;
        }
        match self.writer.get_meta(&Node::RESOURCE, &ObjectKey::new("", node.clone())).await {
            Err(error) if error.is_not_found() => {
                let orphans = self.pods.by_index(&by_node(), on_node(node));
                self.force_delete_all(orphans, |_| Some(Reason::Orphaned)).await;
            }
            Err(error) => error!(%error, %node, "node could not be read from the API server"),
            Ok(_) => {}
        }
    }

    /// Force-deletes the pods for which `why` returns a reason, except those with a recent attempt. The deletion of a
    /// pod depends only on the records of this pod and of its node: other pods and nodes that cannot be decoded do not
    /// delay it.
    async fn force_delete_all(&self, pods: Vec<Arc<Pod>>, why: impl Fn(&Pod) -> Option<Reason>) {
        let force_delete = async |pod: Arc<Pod>| {
            let uid = &pod.meta.uid;
            let Some(pod) = self.pods.get_with_uid(&pod.meta.namespace, &pod.meta.name, uid) else { return };
            let Some(reason) = why(&pod).filter(|_| self.is_due(uid)) else { return };
            self.force_delete_and_record(pod, reason).await;
        };
        let force_delete = |pod| stale::separately(force_delete(pod));
        stream::iter(pods).for_each_concurrent(MAX_CONCURRENT_DELETIONS, force_delete).await;
    }

    fn is_due(&self, uid: &Uid) -> bool {
        self.forced().get(uid).is_none_or(|since| decide::is_due_again(*since, self.now()))
    }

    fn now(&self) -> Time {
        Time((self.clock)().as_second())
    }

    async fn force_delete_and_record(&self, pod: Arc<Pod>, reason: Reason) {
        let key = pod.meta.key();
        let uid = &pod.meta.uid;
        let why = reason.as_str();
        self.forced().insert(uid.clone(), self.now());
        let ended = self.force_delete(&pod, reason).await;
        let is_deleted = |error: &WriteError| error.is_object_deleted();
        let failed = ended.as_ref().is_err_and(|error| !is_deleted(error));
        self.counts.count(&key.namespace, reason, failed);
        // If the cache no longer has the pod, no deletion event will remove its entry.
        if ended.is_err() || self.pods.get_with_uid(&key.namespace, &key.name, uid).is_none() {
            self.forget(uid);
        }
        match ended {
            Ok(()) => info!(pod = %key, reason = why, "force-deleted pod"),
            // The pod no longer exists, or another pod has its name.
            Err(error) if is_deleted(&error) => {}
            Err(error) => error!(pod = %key, reason = why, %error, "pod could not be force-deleted"),
        }
    }

    /// Marks the pod as failed unless it has ended, for controllers that count pods, and then deletes it without a
    /// grace period. Writes nothing if the deletion would be refused: the pod may be running.
    async fn force_delete(&self, pod: &Pod, reason: Reason) -> Result<(), WriteError> {
        let key = pod.meta.key();
        self.writer.check_deletion(&key)?;
        if let Some(patch) = decide::failure(pod, reason, (self.clock)()) {
            self.writer.patch_status(&Pod::RESOURCE, &key, &patch).await?;
        }
        self.writer.delete_immediately(&Pod::RESOURCE, &key, &pod.meta.uid).await
    }
}
