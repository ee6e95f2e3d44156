//! Policy: the pods of a ReplicaSet, and its status.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::condition::Condition;
use kinds::replicaset::ReplicaSetStatus;
use kinds::{Pod, ReplicaSet, Time};

use crate::pods::availability::is_available;
use crate::pods::ranking::Ranking;
use crate::pods::status_delay;

/// The largest number of pods created or deleted in one reconcile. Upstream: pkg/controller/replicaset, BurstReplicas.
pub const BURST: usize = 500;

/// Type of the condition for failed creations and deletions.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";

/// The feature gates that the decisions depend on.
#[derive(Debug, Clone, Copy)]
pub struct Gates {
    /// PodDeletionCost: the pods' annotation with the deletion cost is a criterion of the order of deletion.
    pub deletion_cost: bool,
    /// DeploymentReplicaSetTerminatingReplicas: the status has the number of terminating pods.
    pub terminating_replicas: bool,
}

/// The action that brings the number of pods to the scale.
#[derive(Debug)]
pub enum Manage {
    /// The number of active pods equals the scale.
    Nothing,
    /// Create this number of pods.
    Create(usize),
    /// Delete these pods.
    Delete(Vec<Arc<Pod>>),
}

/// Compares the active pods with the scale. `ranking` is called only if some of the pods are deleted and others stay.
/// Upstream: pkg/controller/replicaset, manageReplicas.
pub fn manage(active: &[Arc<Pod>], replicas: i32, ranking: impl FnOnce() -> Ranking) -> Manage {
    let wanted = usize::try_from(replicas).unwrap_or(0);
    match active.len().cmp(&wanted) {
        Ordering::Equal => Manage::Nothing,
        Ordering::Less => Manage::Create((wanted - active.len()).min(BURST)),
        Ordering::Greater => {
            let surplus = (active.len() - wanted).min(BURST);
            let pods = active.to_vec();
            Manage::Delete(if surplus < pods.len() { ranking().first(pods, surplus) } else { pods })
        }
    }
}

/// Returns the status. `terminating` is `None` if the kind has no such field or its gate is off; `failure` is the
/// reason why pods could not be created or deleted. Upstream: pkg/controller/replicaset, calculateStatus.
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
    // Labels are sorted. A template and its pods may have tens of thousands of labels.
    let has_all_labels = |pod: &Pod| wanted.iter().all(|label| pod.meta.labels.binary_search(label).is_ok());
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

/// Returns the conditions: the failure condition is set with the first failure and removed with the first success;
/// other conditions stay.
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

/// Returns the maximum delay of a status write, from the time at which `status` first differed from the set's status.
///
/// Written immediately: changed conditions; lost and newly available pods, on which a Deployment acts; the deletion of
/// the last active pod of a set that is scaled to zero; and each change while all pods are available and none is
/// terminating, for which users and tools wait after a rollout. Changes that occur during a write are combined in the
/// next one. Gains after a loss may wait longer (see `StatusDebouncer::wait_damped`).
pub fn write_delay(set: &ReplicaSet, status: &ReplicaSetStatus) -> Duration {
    let was = &set.status;
    let available_change = available_change(set, status);
    let is_settled = status.replicas == set.replicas && status.available_replicas == set.replicas;
    let emptied = set.replicas == 0 && status.replicas == 0 && was.replicas > 0;
    if *status == *was || status.conditions != was.conditions || available_change != 0 || emptied {
        Duration::ZERO
    } else if status.differs_only_in_terminating(was) {
        if is_settled && status.terminating_replicas == Some(0) { Duration::ZERO } else { status_delay::MINOR_CHANGE }
    } else if is_settled {
        status_delay::for_pods(status.terminating_replicas.unwrap_or(0))
    } else {
        status_delay::MINOR_CHANGE
    }
}

/// Returns true if a Deployment now counts fewer available pods.
pub fn is_loss(set: &ReplicaSet, status: &ReplicaSetStatus) -> bool {
    available_change(set, status) < 0
}

/// Returns the change of the number of available pods since the set's status, as a Deployment counts them; negative if
/// pods were lost.
fn available_change(set: &ReplicaSet, status: &ReplicaSetStatus) -> i32 {
    counted(set, status) - counted(set, &set.status)
}

/// Returns the number of available pods that a Deployment counts: at most the scale.
fn counted(set: &ReplicaSet, status: &ReplicaSetStatus) -> i32 {
    status.available_replicas.min(set.replicas)
}

/// Returns the time until the next ready pod becomes available, or `min_ready_seconds` if that time is unknown; `None`
/// if all ready pods are available. Upstream: pkg/controller, FindMinNextPodAvailabilityCheck.
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
