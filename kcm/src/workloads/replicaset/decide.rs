//! What to do about a ReplicaSet's pods, and what to say in its status: all policy, no IO.

use std::cmp::{Ordering, Reverse};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::pod::Phase;
use kinds::replicaset::ReplicaSetStatus;
use kinds::status::Condition;
use kinds::{Pod, ReplicaSet, Str, Time};

use crate::pods::status_delay;

/// Pods created or deleted in one go at most (pkg/controller/replicaset, BurstReplicas).
pub const BURST: usize = 500;

/// Type of the condition that tells of failed creations and deletions.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";

/// What to do about the number of pods.
#[derive(Debug)]
pub enum Manage {
    /// There are as many as wanted.
    Nothing,
    /// Create so many.
    Create(usize),
    /// Delete these.
    Delete(Vec<Arc<Pod>>),
}

/// Compares the active pods with the scale (pkg/controller/replicaset, manageReplicas). `related` yields the pods of
/// all ReplicaSets of the same owner, these among them; it is only asked when pods have to be ranked.
pub fn manage(active: &[Arc<Pod>], replicas: i32, now: Timestamp, related: impl FnOnce() -> Vec<Arc<Pod>>) -> Manage {
    let wanted = usize::try_from(replicas).unwrap_or(0);
    match active.len().cmp(&wanted) {
        Ordering::Equal => Manage::Nothing,
        Ordering::Less => Manage::Create((wanted - active.len()).min(BURST)),
        Ordering::Greater => {
            let surplus = (active.len() - wanted).min(BURST);
            let mut victims = active.to_vec();
            if surplus < active.len() {
                let crowds = crowds(&related());
                victims.sort_by_cached_key(|pod| rank(pod, &crowds, now));
                victims.truncate(surplus);
            }
            Manage::Delete(victims)
        }
    }
}

/// Active pods on each node.
fn crowds(related: &[Arc<Pod>]) -> HashMap<Str, usize> {
    let mut crowds = HashMap::new();
    for pod in related.iter().filter(|pod| pod.is_active()) {
        *crowds.entry(pod.node.clone()).or_default() += 1;
    }
    crowds
}

/// What goes first: the smallest (pkg/controller, ActivePodsWithRanks). Ages count by their order of magnitude, so
/// that of pods about as old any may go.
type Rank = (bool, Phase, bool, i32, Reverse<usize>, Option<Age>, Reverse<i32>, Reverse<i32>, Age, kinds::Uid);

/// Unknown first, then young before old.
type Age = Option<u32>;

fn rank(pod: &Pod, crowds: &HashMap<Str, usize>, now: Timestamp) -> Rank {
    (
        !pod.node.is_empty(),
        pod.phase,
        pod.ready,
        pod.deletion_cost,
        Reverse(crowds.get(&pod.node).copied().unwrap_or(0)),
        pod.ready.then(|| age(pod.ready_since, now)),
        Reverse(pod.restarts),
        Reverse(pod.sidecar_restarts),
        age(pod.meta.created, now),
        pod.meta.uid.clone(),
    )
}

/// The power of two of an age in nanoseconds.
fn age(since: Time, now: Timestamp) -> Age {
    let nanos = now.as_nanosecond() - i128::from(since.0) * 1_000_000_000;
    (!since.is_zero())
        .then(|| u128::try_from(nanos).ok().filter(|nanos| *nanos > 0).map_or(0, |nanos| nanos.ilog2() + 1))
}

/// True when a pod has been ready for long enough (pkg/api/v1/pod, IsPodAvailable).
pub fn is_available(pod: &Pod, min_ready_seconds: i32, now: Timestamp) -> bool {
    let since_ready = now.as_second() - pod.ready_since.0;
    pod.ready && (min_ready_seconds == 0 || !pod.ready_since.is_zero() && since_ready >= i64::from(min_ready_seconds))
}

/// The status (pkg/controller/replicaset, calculateStatus). `terminating` is absent where the kind does not tell it;
/// `failure` is what kept pods from being created or deleted.
pub fn status(
    set: &ReplicaSet,
    active: &[Arc<Pod>],
    terminating: Option<usize>,
    failure: Option<&str>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let count = |counts: &dyn Fn(&Pod) -> bool| {
        i32::try_from(active.iter().filter(|pod| counts(pod)).count()).unwrap_or(i32::MAX)
    };
    let wanted = set.template.as_ref().map_or(&[][..], |template| &template.labels);
    let has_all_labels = |pod: &Pod| wanted.iter().all(|label| pod.meta.labels.contains(label));
    ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: count(&has_all_labels),
        ready_replicas: count(&|pod| pod.ready),
        available_replicas: count(&|pod| is_available(pod, set.min_ready_seconds, now)),
        terminating_replicas: terminating.and_then(|count| i32::try_from(count).ok()),
        observed_generation: set.meta.generation,
        conditions: conditions(set, active.len(), failure, now),
    }
}

/// The failure condition comes with the first failure and goes with the first success; others stay.
fn conditions(set: &ReplicaSet, active: usize, failure: Option<&str>, now: Timestamp) -> Vec<Condition> {
    let mut conditions = set.status.conditions.clone();
    let known = conditions.iter().any(|condition| &*condition.kind == REPLICA_FAILURE);
    match failure {
        Some(message) if !known => conditions.push(Condition {
            kind: REPLICA_FAILURE.into(),
            status: "True".into(),
            reason: failure_reason(active, set.replicas).into(),
            message: message.into(),
            last_update: Time::default(),
            last_transition: Time(now.as_second()),
        }),
        None if known => conditions.retain(|condition| &*condition.kind != REPLICA_FAILURE),
        _ => {}
    }
    conditions
}

fn failure_reason(active: usize, replicas: i32) -> &'static str {
    match i64::try_from(active).unwrap_or(i64::MAX).cmp(&i64::from(replicas)) {
        Ordering::Less => "FailedCreate",
        Ordering::Greater => "FailedDelete",
        Ordering::Equal => "",
    }
}

/// How long a status may wait to be written, from when it first differed from the set's. What a Deployment decides on
/// goes at once when all pods are there, and when pods are lost that it counts on; while more pods are coming, it waits
/// for some of them.
pub fn patience(set: &ReplicaSet, status: &ReplicaSetStatus) -> Duration {
    let was = &set.status;
    let arrived = arrived(set, status);
    let is_settled = status.replicas == set.replicas && status.available_replicas == set.replicas;
    let emptied = set.replicas == 0 && status.replicas == 0 && was.replicas > 0;
    if *status == *was || status.conditions != was.conditions || arrived < 0 || emptied {
        Duration::ZERO
    } else if status.differs_only_in_terminating(was) {
        status_delay::MINOR_CHANGE
    } else if is_settled && arrived == 0 {
        status_delay::for_pods(0, status.terminating_replicas.unwrap_or(0)).min(status_delay::MINOR_CHANGE)
    } else if arrived > 0 {
        status_delay::for_pods(arrived, set.replicas - counted(set, status))
    } else {
        status_delay::MINOR_CHANGE
    }
}

/// True when pods are lost that a Deployment counts on.
pub fn is_loss(set: &ReplicaSet, status: &ReplicaSetStatus) -> bool {
    arrived(set, status) < 0
}

/// How many more pods a Deployment would count on than the set's status tells.
fn arrived(set: &ReplicaSet, status: &ReplicaSetStatus) -> i32 {
    counted(set, status) - counted(set, &set.status)
}

/// A Deployment counts available pods up to the scale only.
fn counted(set: &ReplicaSet, status: &ReplicaSetStatus) -> i32 {
    status.available_replicas.min(set.replicas)
}

/// When to look again because a ready pod will have become available (pkg/controller, FindMinNextPodAvailabilityCheck).
pub fn next_check(
    status: &ReplicaSetStatus,
    active: &[Arc<Pod>],
    min_ready_seconds: i32,
    now: Timestamp,
) -> Option<Duration> {
    if min_ready_seconds <= 0 || status.ready_replicas == status.available_replicas {
        return None;
    }
    let remaining = |pod: &Arc<Pod>| {
        let at = i128::from(pod.ready_since.0 + i64::from(min_ready_seconds)) * 1_000_000_000;
        u64::try_from(at - now.as_nanosecond()).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos)
    };
    let soonest = active.iter().filter(|pod| pod.ready && !pod.ready_since.is_zero()).filter_map(remaining).min();
    Some(soonest.unwrap_or(Duration::from_secs(u64::try_from(min_ready_seconds).unwrap_or(0))))
}
