//! The status of a Deployment: its counts, its conditions, and the time at which a rollout without progress is
//! reconciled again.
//!
//! A sync starts from a copy of the status and records its actions in it (`note_*`). At its end it replaces the copy by
//! [`status`], which keeps these records. So one write per sync is enough.

use std::time::Duration;

use kinds::condition::Condition;
use kinds::deployment::{Deployment, DeploymentStatus};
use kinds::{ReplicaSet, Str, Time};

use super::decide_scale::max_unavailable;
use super::notice::Notice;
use super::sets::{Sets, sum};
use crate::pods::status_delay::CHANGING_COUNTS;

/// Condition: enough pods are available.
pub const AVAILABLE: &str = "Available";
/// Condition: the rollout makes progress or is complete.
pub const PROGRESSING: &str = "Progressing";
/// Condition: pods could not be created or deleted.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";

/// Reason: all pods are those of the newest set, and available.
pub const NEW_SET_AVAILABLE: &str = "NewReplicaSetAvailable";
/// Reason: the rollout has progressed since the last status (see [`is_progress`]).
pub const SET_UPDATED: &str = "ReplicaSetUpdated";
/// Reason: the rollout has not progressed for longer than the deadline.
pub const TIMED_OUT: &str = "ProgressDeadlineExceeded";
/// Reason: the new set was created.
pub const CREATED: &str = "NewReplicaSetCreated";
/// Reason: the new set existed already.
pub const FOUND: &str = "FoundNewReplicaSet";
/// Reason: the new set could not be created.
pub const CREATE_FAILED: &str = "ReplicaSetCreateError";
/// Reason: the Deployment was paused.
pub const PAUSED: &str = "DeploymentPaused";
/// Reason: the Deployment was resumed.
pub const RESUMED: &str = "DeploymentResumed";

/// Returns the condition of this type, if there is one.
pub fn condition<'a>(status: &'a DeploymentStatus, kind: &str) -> Option<&'a Condition> {
    status.conditions.iter().find(|condition| *condition.kind == *kind)
}

/// Returns a condition with this value; both of its times are now.
fn stamped(kind: &str, value: &str, reason: &str, message: &str, now: Time) -> Condition {
    Condition {
        kind: kind.into(),
        status: value.into(),
        reason: reason.into(),
        message: message.into(),
        last_update: now,
        last_transition: now,
    }
}

/// Sets a condition unless it exists with the same value and reason. The time of transition changes only with the
/// value. Upstream: pkg/controller/deployment/util, SetDeploymentCondition.
pub fn set_condition(status: &mut DeploymentStatus, mut new: Condition) {
    if let Some(old) = condition(status, &new.kind).filter(|old| old.status == new.status) {
        if old.reason == new.reason {
            return;
        }
        new.last_transition = old.last_transition;
    }
    remove_condition(status, &new.kind);
    status.conditions.push(new);
}

/// Removes the condition of this type.
pub fn remove_condition(status: &mut DeploymentStatus, kind: &str) {
    status.conditions.retain(|condition| *condition.kind != *kind);
}

/// Returns the seconds that a rollout may go without progress; `None` without a deadline. Upstream:
/// pkg/controller/deployment/util, HasProgressDeadline.
pub fn progress_deadline(deployment: &Deployment) -> Option<i64> {
    deployment.progress_deadline_seconds.filter(|seconds| *seconds != i32::MAX).map(i64::from)
}

/// Records in the status that the Deployment was paused or resumed, so that the pause does not count as lack of
/// progress. Upstream: pkg/controller/deployment, checkPausedConditions.
pub fn note_pause(deployment: &Deployment, status: &mut DeploymentStatus, now: Time) {
    let reason = condition(status, PROGRESSING).map(|condition| &*condition.reason);
    if progress_deadline(deployment).is_none() || reason == Some(TIMED_OUT) {
        return;
    }
    let (reason, message) = match (deployment.paused, reason == Some(PAUSED)) {
        (true, false) => (PAUSED, "Deployment is paused"),
        (false, true) => (RESUMED, "Deployment is resumed"),
        _ => return,
    };
    set_condition(status, stamped(PROGRESSING, "Unknown", reason, message, now));
}

/// Records in the status that the new set exists, if the status has no progress condition yet. Upstream:
/// pkg/controller/deployment, getNewReplicaSet.
pub fn note_found(deployment: &Deployment, status: &mut DeploymentStatus, set: &str, now: Time) {
    if progress_deadline(deployment).is_some() && condition(status, PROGRESSING).is_none() {
        let message = format!("Found new replica set {set:?}");
        set_condition(status, stamped(PROGRESSING, "True", FOUND, &message, now));
    }
}

/// Records in the status that the new set was created. Upstream: pkg/controller/deployment, getNewReplicaSet.
pub fn note_created(deployment: &Deployment, status: &mut DeploymentStatus, set: &str, now: Time) {
    if progress_deadline(deployment).is_some() {
        let message = format!("Created new replica set {set:?}");
        set_condition(status, stamped(PROGRESSING, "True", CREATED, &message, now));
    }
}

/// Records in the status that the new set could not be created, and returns the event about it. The caller writes this
/// status, not the result of [`status`]. Upstream: pkg/controller/deployment, getNewReplicaSet.
pub fn note_create_failed(
    deployment: &Deployment,
    status: &mut DeploymentStatus,
    set: &str,
    error: &str,
    now: Time,
) -> Notice {
    let message = format!("Failed to create new replica set {set:?}: {error}");
    if progress_deadline(deployment).is_some() {
        set_condition(status, stamped(PROGRESSING, "False", CREATE_FAILED, &message, now));
    }
    Notice { warning: true, reason: CREATE_FAILED, message }
}

/// Records in the status that the name of the new set belongs to another one, so that the next name differs. The caller
/// writes this status, not the result of [`status`]. Upstream: pkg/controller/deployment, getNewReplicaSet.
pub fn note_collision(status: &mut DeploymentStatus) {
    status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
}

/// Returns true if all desired pods are new and available, and no others are left. Upstream:
/// pkg/controller/deployment/util, DeploymentComplete.
pub fn is_complete(deployment: &Deployment, status: &DeploymentStatus) -> bool {
    let counts = [status.updated_replicas, status.replicas, status.available_replicas];
    counts == [deployment.replicas; 3] && status.observed_generation >= deployment.meta.generation
}

/// Returns true if there was progress between two statuses: more new pods, fewer old ones, more ready ones, or more
/// available ones. Upstream: pkg/controller/deployment/util, DeploymentProgressing.
pub fn is_progress(before: &DeploymentStatus, after: &DeploymentStatus) -> bool {
    let old_pods = |status: &DeploymentStatus| status.replicas - status.updated_replicas;
    after.updated_replicas > before.updated_replicas
        || old_pods(after) < old_pods(before)
        || after.ready_replicas > before.ready_replicas
        || after.available_replicas > before.available_replicas
}

/// Returns true if the last progress is older than the deadline. A rollout that was completed once does not
/// time out. Upstream: pkg/controller/deployment/util, DeploymentTimedOut.
pub fn is_timed_out(deployment: &Deployment, status: &DeploymentStatus, now: Time) -> bool {
    let (Some(deadline), Some(condition)) = (progress_deadline(deployment), condition(status, PROGRESSING)) else {
        return false;
    };
    match &*condition.reason {
        NEW_SET_AVAILABLE => false,
        TIMED_OUT => true,
        _ => condition.last_update.0 + deadline < now.0,
    }
}

/// Returns the status at the end of a sync. `noted` is the Deployment's status with the conditions of this sync. The
/// conditions about progress and failures are updated only with `rollout`. No write is needed if the status equals the
/// Deployment's and the revision annotation does not change. Upstream: pkg/controller/deployment, calculateStatus and
/// syncRolloutStatus.
pub fn status(
    deployment: &Deployment,
    noted: &DeploymentStatus,
    sets: &Sets,
    rollout: bool,
    now: Time,
) -> DeploymentStatus {
    let total = |count: fn(&ReplicaSet) -> i32| sum(sets.all().map(|set| count(set)));
    let available = total(|set| set.status.available_replicas);
    let mut status = DeploymentStatus {
        observed_generation: deployment.meta.generation,
        replicas: total(|set| set.status.replicas),
        updated_replicas: sets.new.as_ref().map_or(0, |new| new.status.replicas),
        ready_replicas: total(|set| set.status.ready_replicas),
        available_replicas: available,
        unavailable_replicas: sets.total().saturating_sub(available).max(0),
        terminating_replicas: terminating(sets),
        collision_count: noted.collision_count,
        conditions: noted.conditions.clone(),
    };
    let enough = available >= deployment.replicas - max_unavailable(deployment);
    let (value, reason, message) = if enough {
        ("True", "MinimumReplicasAvailable", "Deployment has minimum availability.")
    } else {
        ("False", "MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
    };
    set_condition(&mut status, stamped(AVAILABLE, value, reason, message, now));
    if rollout {
        judge_progress(deployment, noted, &mut status, sets, now);
        match replica_failure(sets) {
            Some(failure) => set_condition(&mut status, failure),
            None => remove_condition(&mut status, REPLICA_FAILURE),
        }
    }
    status
}

/// Returns the maximum delay of a status write, from the time at which the status first differed from the Deployment's.
/// Changing counts are delayed. A final state, a changed condition and a new observed generation are not, because users
/// and tools wait for them (kubectl rollout status).
pub fn write_delay(deployment: &Deployment, status: &DeploymentStatus) -> Duration {
    let was = &deployment.status;
    let urgent_fields = |status: &DeploymentStatus| {
        let mut conditions = status.conditions.clone();
        for condition in &mut conditions {
            // The time of the last progress is not compared: it is written together with the counts.
            condition.last_update = Time::default();
            // Reasons that only report a rollout in progress are not distinguished: they, too, are written together
            // with the counts.
            if [CREATED, FOUND, SET_UPDATED].contains(&&*condition.reason) {
                condition.reason = SET_UPDATED.into();
                condition.message = "".into();
            }
        }
        conditions.sort_by(|a, b| a.kind.cmp(&b.kind));
        (status.observed_generation, status.collision_count, conditions)
    };
    let is_urgent = urgent_fields(status) != urgent_fields(was) || is_complete(deployment, status);
    // The number of terminating pods varies during a rollout; it is zero at its end.
    let still_terminates = status.differs_only_in_terminating(was) && status.terminating_replicas.unwrap_or(0) > 0;
    if status == was || is_urgent && !still_terminates { Duration::ZERO } else { CHANGING_COUNTS }
}

fn judge_progress(
    deployment: &Deployment,
    noted: &DeploymentStatus,
    status: &mut DeploymentStatus,
    sets: &Sets,
    now: Time,
) {
    if progress_deadline(deployment).is_none() {
        remove_condition(status, PROGRESSING);
        return;
    }
    let current = condition(noted, PROGRESSING);
    let was_complete = current.is_some_and(|condition| *condition.reason == *NEW_SET_AVAILABLE);
    if was_complete && status.replicas == status.updated_replicas {
        return;
    }
    let subject = match &sets.new {
        Some(new) => format!("ReplicaSet {:?}", new.meta.name),
        None => format!("Deployment {:?}", deployment.meta.name),
    };
    let stamp = |value, reason, what: &str| stamped(PROGRESSING, value, reason, &format!("{subject} {what}"), now);
    if is_complete(deployment, status) {
        set_condition(status, stamp("True", NEW_SET_AVAILABLE, "has successfully progressed."));
    } else if is_progress(&deployment.status, status) {
        let mut updated = stamp("True", SET_UPDATED, "is progressing.");
        if let Some(current) = current.filter(|current| *current.status == *"True") {
            updated.last_transition = current.last_transition;
        }
        // The condition is replaced even with the same reason: its update time is that of the last progress.
        remove_condition(status, PROGRESSING);
        status.conditions.push(updated);
    } else if is_timed_out(deployment, status, now) {
        set_condition(status, stamp("False", TIMED_OUT, "has timed out progressing."));
    }
}

/// Returns the number of terminating pods of all sets. A set that was never synced counts as zero; `None` if a synced
/// set does not have the number. Upstream: pkg/controller/deployment/util, GetTerminatingReplicaCountForReplicaSets.
fn terminating(sets: &Sets) -> Option<i32> {
    let counted =
        sets.all().filter(|set| set.status.observed_generation != 0 || set.status.terminating_replicas.is_some());
    counted
        .map(|set| set.status.terminating_replicas)
        .try_fold(0_i32, |total, count| Some(total.saturating_add(count?)))
}

/// Returns the first failure that a set reports, the new one's before those of old ones. Upstream:
/// pkg/controller/deployment, getReplicaFailures.
fn replica_failure(sets: &Sets) -> Option<Condition> {
    let mut conditions = sets.new.iter().chain(&sets.old).flat_map(|set| &set.status.conditions);
    let failure = conditions.find(|condition| *condition.kind == *REPLICA_FAILURE)?;
    Some(Condition { kind: Str::from(REPLICA_FAILURE), last_update: failure.last_transition, ..failure.clone() })
}

/// Returns the time after which a rollout is reconciled without a change: one second after its deadline. `status` is
/// that at the end of the sync. Upstream: pkg/controller/deployment, requeueStuckDeployment.
///
/// Differs from upstream: a rollout that was completed once is not reconciled again, because it cannot time out.
/// Upstream requeues it continuously while one of its pods is not available.
pub fn recheck_after(deployment: &Deployment, status: &DeploymentStatus, now: Time) -> Option<Duration> {
    let deadline = progress_deadline(deployment)?;
    let current = condition(status, PROGRESSING)?;
    if is_complete(deployment, status) || [TIMED_OUT, NEW_SET_AVAILABLE].contains(&&*current.reason) {
        return None;
    }
    let left = (current.last_update.0 + deadline - now.0).max(0);
    // Times are whole seconds, and the deadline must lie strictly in the past.
    Some(Duration::from_secs(left.unsigned_abs() + 1))
}
