//! Maps changes to the Jobs to reconcile, and to the pods that may have to lose the tracking finalizer.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::{Job, Kind, Pod};
use runtime::children::{adoptable, deleted, owners_of, selects, wake_adopters};
use runtime::queue::Queue;
use runtime::store::{Change, Store};

use super::decide::has_finalizer;
use super::orphans::OrphanKey;

/// Enqueues the Jobs that changes affect. `orphans` receives the pods of [`may_be_orphan`] and the Jobs of
/// [`jobs_to_release`].
pub fn subscribe(
    jobs: &Arc<Store<Job>>,
    pods: &Arc<Store<Pod>>,
    queue: &Arc<Queue<ObjectKey>>,
    orphans: &Arc<Queue<OrphanKey>>,
) {
    let (jobs_queue, orphan_keys) = (queue.clone(), orphans.clone());
    jobs.subscribe(move |change| {
        jobs_to_release(change).into_iter().for_each(|job| orphan_keys.add(OrphanKey::PodsOf(job)));
        if let Some(job) = change.new.or(change.old) {
            if is_urgent(change) {
                jobs_queue.add(job.meta.key());
            } else {
                jobs_queue.add_coalesced(job.meta.key());
            }
        }
    });
    let (pods_queue, orphans, jobs) = (queue.clone(), orphans.clone(), jobs.clone());
    pods.subscribe(move |change| {
        for key in owners(change) {
            pods_queue.add_coalesced(key);
        }
        if let Some(pod) = change.new.filter(|pod| may_be_orphan(pod, &jobs)) {
            orphans.add(OrphanKey::Pod(pod.meta.key()));
        }
        if let Some(orphan) = adoptable(change) {
            let wake = |key| pods_queue.add_coalesced(key);
            wake_adopters(&jobs, orphan, |job| selects(&job.selector, orphan), wake);
        }
    });
}

/// Returns true for a Job that is new, deleted, replaced, or has another spec.
pub fn is_urgent(change: &Change<'_, Job>) -> bool {
    match (change.old, change.new) {
        (Some(old), Some(new)) => old.meta.uid != new.meta.uid || old.meta.generation != new.meta.generation,
        _ => true,
    }
}

/// Returns the Jobs whose pods have to lose the tracking finalizer: a Job that was deleted or replaced, and a Job that
/// has finished.
pub fn jobs_to_release(change: &Change<'_, Job>) -> Vec<Arc<Job>> {
    let finished = change.new.filter(|new| new.is_finished());
    deleted(change).into_iter().chain(finished).cloned().collect()
}

/// Returns the Jobs that control the pod before and after a change; none if the change does not matter to controllers
/// of workloads.
pub fn owners(change: &Change<'_, Pod>) -> Vec<ObjectKey> {
    if let (Some(old), Some(new)) = (change.old, change.new)
        && !old.differs_for_workloads(new)
    {
        return Vec::new();
    }
    owners_of::<Job, _>(change)
}

/// Returns true for a pod with the tracking finalizer that has no controller, or that is being deleted although its Job
/// has finished or no longer exists.
fn may_be_orphan(pod: &Pod, jobs: &Store<Job>) -> bool {
    if !has_finalizer(pod) {
        return false;
    }
    let Some(controller) = pod.meta.controller() else { return true };
    pod.meta.is_deleting()
        && &*controller.kind == Job::RESOURCE.kind
        && jobs.get_with_uid(&pod.meta.namespace, &controller.name, &controller.uid).is_none_or(|job| job.is_finished())
}
