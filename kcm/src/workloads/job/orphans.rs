//! Removes the tracking finalizer from pods that no Job will count, so that they can be deleted.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::{ObjectKey, OwnerRef};
use kinds::{Job, Kind, Pod, Uid};
use runtime::lock::lock;
use runtime::queue::{Queue, QueueKey};
use runtime::store::{Store, by_controller, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;

use super::claim::{patch, untracking};
use super::decide::has_finalizer;

/// Delay of the next check of a pod whose Job exists on the API server but not in the cache. If that Job is deleted
/// before the cache contains it, its deletion does not requeue the pod.
pub const RECHECK_DELAY: Duration = Duration::from_secs(30);

/// Maximum number of remembered UIDs of deleted Jobs.
const REMEMBERED: usize = 1024;

/// A key of the queue.
#[derive(Debug, Clone)]
pub enum OrphanKey {
    /// One pod.
    Pod(ObjectKey),
    /// The pods of a Job that was deleted or has finished. Compared by uid.
    PodsOf(Arc<Job>),
}

impl PartialEq for OrphanKey {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Pod(a), Self::Pod(b)) => a == b,
            (Self::PodsOf(a), Self::PodsOf(b)) => a.meta.uid == b.meta.uid,
            _ => false,
        }
    }
}

impl Eq for OrphanKey {}

impl Hash for OrphanKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Self::Pod(key) => key.hash(state),
            Self::PodsOf(job) => job.meta.uid.hash(state),
        }
    }
}

impl QueueKey for OrphanKey {
    fn namespace(&self) -> &str {
        match self {
            Self::Pod(key) => &key.namespace,
            Self::PodsOf(job) => &job.meta.namespace,
        }
    }
}

impl fmt::Display for OrphanKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(key) => write!(f, "pod {key}"),
            Self::PodsOf(job) => write!(f, "pods of {}", job.meta.key()),
        }
    }
}

/// The controller's state.
pub struct Orphans {
    pub jobs: Arc<Store<Job>>,
    pub pods: Arc<Store<Pod>>,
    pub writer: Writer,
    pub queue: Arc<Queue<OrphanKey>>,
    /// UIDs of Jobs whose deletion the API server confirmed.
    pub deleted_jobs: Mutex<HashSet<Uid>>,
}

impl Reconcile for Orphans {
    type Key = OrphanKey;

    fn reconcile<'a>(&'a self, key: &'a OrphanKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Orphans {
    async fn sync(&self, key: &OrphanKey) -> Result<Outcome, ReconcileError> {
        let pods: Vec<Arc<Pod>> = match key {
            OrphanKey::Pod(key) => self.pods.get(key).into_iter().collect(),
            OrphanKey::PodsOf(job) => {
                let mut pods = self.pods.by_index(&by_controller(), owned_by(&job.meta.namespace, &job.meta.uid));
                let orphans = self.pods.by_index(&by_controller(), orphans_in(&job.meta.namespace));
                pods.extend(orphans.into_iter().filter(|pod| job.selector.matches(&pod.meta.labels)));
                pods
            }
        };
        let mut failed = None;
        for pod in pods.iter().filter(|pod| has_finalizer(pod)).filter_map(|pod| self.read_settled(pod)) {
            if let Err(error) = self.release(&pod).await {
                failed = Some(error);
            }
        }
        failed.map_or(Ok(Outcome::Done), Err)
    }

    /// Reads a pod again. Returns `None` if the pod no longer exists, or no longer has the finalizer. Also returns
    /// `None` if the cache does not contain this process's last write of the pod yet, which is mostly the removal of
    /// the finalizer: the pod is requeued once the cache contains that write.
    fn read_settled(&self, pod: &Pod) -> Option<Arc<Pod>> {
        let key = pod.meta.key();
        let current = self.pods.read_settled(&key, self.queue.waker(&OrphanKey::Pod(key.clone()))).current();
        current.filter(|current| current.meta.uid == pod.meta.uid && has_finalizer(current))
    }

    /// Removes the tracking finalizer from a pod if no Job will count it. Upstream: pkg/controller/job,
    /// handleSingleOrphanPod.
    async fn release(&self, pod: &Pod) -> Result<(), ReconcileError> {
        if let Some(controller) = pod.meta.controller()
            && self.is_needed(pod, controller).await?
        {
            return Ok(());
        }
        match patch(&self.writer, pod, untracking(pod)).await {
            Ok(_) => Ok(()),
            // The pod no longer exists, or another pod has its name.
            Err(error) if error.is_object_deleted() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true if a pod's controller is not a Job, is a Job that will count the pod, or is a Job that another
    /// controller manages. Requeues the pod if the Job exists on the API server but not in the cache.
    async fn is_needed(&self, pod: &Pod, controller: &OwnerRef) -> Result<bool, ReconcileError> {
        if (&*controller.kind, &*controller.api_version) != (Job::RESOURCE.kind, "batch/v1") {
            return Ok(true);
        }
        let (namespace, uid) = (&pod.meta.namespace, &controller.uid);
        if let Some(job) = self.jobs.get_with_uid(namespace, &controller.name, uid) {
            return Ok(job.managed_by.is_some() || !job.is_finished());
        }
        if self.deleted_jobs().contains(uid) {
            return Ok(false);
        }
        // The cache of pods may be newer than that of Jobs: if the finalizer were removed too early, the pod would
        // never be counted.
        let key = ObjectKey { namespace: namespace.clone(), name: controller.name.clone() };
        match self.writer.get(&Job::RESOURCE, &key).await {
            Ok(response) if response.meta().map_err(|error| ReconcileError::new(error.to_string()))?.uid == *uid => {
                self.queue.add_after(OrphanKey::Pod(pod.meta.key()), RECHECK_DELAY);
                Ok(true)
            }
            Err(error) if !error.is_not_found() && !error.is_invalid_name() => Err(error.into()),
            Ok(_) | Err(_) => {
                let mut deleted_jobs = self.deleted_jobs();
                if deleted_jobs.len() >= REMEMBERED {
                    deleted_jobs.clear();
                }
                deleted_jobs.insert(uid.clone());
                Ok(false)
            }
        }
    }

    fn deleted_jobs(&self) -> std::sync::MutexGuard<'_, HashSet<Uid>> {
        lock(&self.deleted_jobs)
    }
}
