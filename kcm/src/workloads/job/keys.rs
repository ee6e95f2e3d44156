//! Which Jobs, and which pods that lost theirs, a change concerns.

use std::sync::Arc;

use kinds::meta::{Meta, ObjectKey};
use kinds::{Job, Kind, Pod};
use runtime::queue::Queue;
use runtime::store::{Change, Store, by_namespace, index_key};

use super::decide::has_finalizer;
use super::orphans::OrphanKey;

/// Turns changes into keys on the queues.
pub fn subscribe(
    jobs: &Arc<Store<Job>>,
    pods: &Arc<Store<Pod>>,
    queue: &Arc<Queue<ObjectKey>>,
    orphans: &Arc<Queue<OrphanKey>>,
) {
    let (jobs_queue, left) = (queue.clone(), orphans.clone());
    jobs.subscribe(move |change| {
        left_behind(change).into_iter().for_each(|job| left.add(OrphanKey::Of(job)));
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
        if let Some(orphan) = free_to_adopt(change) {
            let candidates = jobs.by_index(&by_namespace(), index_key(&*orphan.namespace));
            for job in candidates.iter().filter(|job| selects(job, orphan)) {
                pods_queue.add_coalesced(job.meta.key());
            }
        }
    });
}

/// New, gone, replaced, or with another spec.
pub fn is_urgent(change: &Change<'_, Job>) -> bool {
    match (change.old, change.new) {
        (Some(old), Some(new)) => old.meta.uid != new.meta.uid || old.meta.generation != new.meta.generation,
        _ => true,
    }
}

/// The Jobs that need their pods no more: one that is gone, even if another one has its name, and one that ended.
pub fn left_behind(change: &Change<'_, Job>) -> Vec<Arc<Job>> {
    let replaced = |old: &&Arc<Job>| change.new.is_none_or(|new| new.meta.uid != old.meta.uid);
    let gone = change.old.filter(replaced);
    let ended = change.new.filter(|new| new.is_finished());
    gone.into_iter().chain(ended).cloned().collect()
}

/// The owners of a pod, before and after, if anything about it changed.
pub fn owners(change: &Change<'_, Pod>) -> Vec<ObjectKey> {
    if let (Some(old), Some(new)) = (change.old, change.new)
        && !old.differs(new)
    {
        return Vec::new();
    }
    let mut owners: Vec<ObjectKey> =
        change.old.into_iter().chain(change.new).filter_map(|pod| owner(&pod.meta)).collect();
    owners.dedup();
    owners
}

fn owner(pod: &Meta) -> Option<ObjectKey> {
    let controller = pod.controller().filter(|controller| &*controller.kind == Job::RESOURCE.kind)?;
    Some(ObjectKey { namespace: pod.namespace.clone(), name: controller.name.clone() })
}

/// A pod with the finalizer that no Job will take from it: without a controller, or going while its Job is gone or
/// has ended.
fn may_be_orphan(pod: &Pod, jobs: &Store<Job>) -> bool {
    if !has_finalizer(pod) {
        return false;
    }
    let Some(controller) = pod.meta.controller() else { return true };
    pod.meta.is_deleting()
        && &*controller.kind == Job::RESOURCE.kind
        && jobs.get_with_uid(&pod.meta.namespace, &controller.name, &controller.uid).is_none_or(|job| job.is_finished())
}

/// A pod without a controller that some Job may want now.
fn free_to_adopt<'a>(change: &Change<'a, Pod>) -> Option<&'a Meta> {
    let new = &change.new?.meta;
    let worth_a_look = change.old.is_none_or(|old| old.meta.labels != new.labels || old.meta.controller().is_some());
    (worth_a_look && new.controller().is_none() && !new.is_deleting()).then_some(new)
}

/// An empty selector selects nothing here (client-go, listers: GetPodJobs).
fn selects(job: &Job, pod: &Meta) -> bool {
    !job.selector.is_everything() && job.selector.matches(&pod.labels)
}
