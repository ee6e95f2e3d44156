//! A StatefulSet's status: counts, revisions, conditions.

use std::collections::HashSet;
use std::time::Duration;

use jiff::Timestamp;
use kinds::condition::Condition;
use kinds::statefulset::{StatefulSetStatus, Strategy};
use kinds::{Pod, StatefulSet, Str, Time};

use super::decide::{Recreation, is_running_and_ready};
use super::identity::{self, Member};
use crate::pods::availability::is_available;
use crate::pods::status_delay::{CHANGING_COUNTS, MINOR_CHANGE};

/// Type of the condition of a Recreate update.
const PROGRESSING: &str = "Progressing";
/// Type of the condition of an update that only a user can unblock. Upstream has no such condition.
pub const ROLLOUT_BLOCKED: &str = "RolloutBlocked";
/// Reason of the condition `RolloutBlocked`.
pub const OLD_POD_NOT_READY: &str = "OldPodNotReady";
/// Time that a pod of an old revision may take to become ready before the condition `RolloutBlocked` and an event name
/// the pod.
const REPORT_DELAY: Duration = Duration::from_secs(30);

/// Pods created and deleted in this reconcile, and the state of the rollout.
#[derive(Debug, Clone, Default)]
pub struct SyncProgress {
    /// Revisions of the pods that were created.
    pub created: Vec<Str>,
    /// Pods that were deleted.
    pub deleted: HashSet<kinds::Uid>,
    /// The phase of a Recreate update.
    pub recreation: Option<Recreation>,
    /// The pod that an ordered StatefulSet waits for.
    pub waits_for: Option<Member>,
    /// The reason why the API server refused the creation of a pod or of a claim.
    pub refusal: Option<String>,
}

/// The revisions in a status.
#[derive(Debug, Clone)]
pub struct Revisions {
    /// Name of the revision of the last complete rollout.
    pub current: Str,
    /// Name of the newest revision.
    pub update: Str,
    /// Number of name collisions.
    pub collisions: i32,
}

/// Returns the status. Pods that were just created or deleted count as such immediately, because the API server has
/// confirmed the request. Upstream: pkg/controller/statefulset, updateStatus and completeUpdate.
pub fn status(
    set: &StatefulSet,
    members: &[Member],
    revisions: &Revisions,
    done: &SyncProgress,
    now: Timestamp,
) -> StatefulSetStatus {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let pods = |counts: &dyn Fn(&Pod) -> bool| members.iter().filter(|member| counts(&member.pod)).count();
    let is_ready = |pod: &Pod| is_running_and_ready(pod);
    let stays = |pod: &Pod| !pod.meta.is_deleting() && !done.deleted.contains(&pod.meta.uid);
    let of = |revision: &str| {
        pods(&|pod| stays(pod) && identity::revision(pod) == revision)
            + done.created.iter().filter(|made| ***made == *revision).count()
    };
    let mut status = StatefulSetStatus {
        observed_generation: set.meta.generation,
        replicas: number(members.len() + done.created.len()),
        ready_replicas: number(pods(&is_ready)),
        available_replicas: number(pods(&|pod| is_ready(pod) && is_available(pod, set.min_ready_seconds, now))),
        current_replicas: number(of(&revisions.current)),
        updated_replicas: number(of(&revisions.update)),
        current_revision: revisions.current.clone(),
        update_revision: revisions.update.clone(),
        collision_count: revisions.collisions,
        conditions: set.status.conditions.clone(),
    };
    match done.recreation {
        Some(Recreation::Deleting) => progress(&mut status, "True", "Deleting old revision pods", now),
        Some(Recreation::Creating) => {
            progress(&mut status, "True", "Waiting for new-revision pods to be created", now);
        }
        None => {}
    }
    let wanted = set.replicas;
    if [status.updated_replicas, status.ready_replicas, status.replicas] == [wanted; 3] {
        status.current_replicas = status.updated_replicas;
        status.current_revision = status.update_revision.clone();
        if set.strategy == Strategy::Recreate && find(&status.conditions, PROGRESSING).is_some() {
            progress(&mut status, "False", "All pods recreated successfully", now);
        }
    }
    report_block(&mut status, set, revisions, done, now);
    status
}

fn find<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| &*condition.kind == kind)
}

/// Sets a condition; its time changes with its status only.
fn set_condition(conditions: &mut Vec<Condition>, kind: &str, value: &str, reason: &str, message: &str, now: Time) {
    let since =
        find(conditions, kind).filter(|known| &*known.status == value).map_or(now, |known| known.last_transition);
    let condition = Condition {
        kind: kind.into(),
        status: value.into(),
        reason: reason.into(),
        message: message.into(),
        last_update: Time::default(),
        last_transition: since,
    };
    match conditions.iter_mut().find(|known| &*known.kind == kind) {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}

fn progress(status: &mut StatefulSetStatus, value: &str, message: &str, now: Timestamp) {
    let reason = if value == "True" { "RecreateInProgress" } else { "RecreateCompleted" };
    set_condition(&mut status.conditions, PROGRESSING, value, reason, message, Time(now.as_second()));
}

/// Returns the pod that blocks an update until a user acts. An ordered update waits until every pod is ready before it
/// replaces any. A pod of a broken old revision may never become ready (kubernetes#67250).
fn blocking<'a>(set: &StatefulSet, update: &str, waits_for: Option<&'a Member>) -> Option<&'a Member> {
    let rolls = set.strategy == Strategy::RollingUpdate && !set.parallel;
    let partition = set.rolling.as_ref().map_or(0, |rolling| rolling.partition);
    waits_for.filter(|member| {
        rolls
            && i64::from(member.ordinal) >= i64::from(set.start) + i64::from(partition)
            && identity::revision(&member.pod) != update
            && member.pod.is_active()
            && !is_running_and_ready(&member.pod)
    })
}

/// Returns the time since which a pod is not ready.
fn unready_since(pod: &Pod) -> Time {
    pod.ready_since.max(pod.meta.created)
}

/// Returns the time until a pod that blocks an update is reported; `None` if no pod blocks the update, or if the report
/// is due now.
pub fn report_delay(set: &StatefulSet, update: &str, waits_for: Option<&Member>, now: Timestamp) -> Option<Duration> {
    let member = blocking(set, update, waits_for)?;
    let waited = u64::try_from(now.as_second() - unready_since(&member.pod).0).unwrap_or(0);
    REPORT_DELAY.checked_sub(Duration::from_secs(waited)).filter(|left| !left.is_zero())
}

fn report_block(
    status: &mut StatefulSetStatus,
    set: &StatefulSet,
    revisions: &Revisions,
    done: &SyncProgress,
    now: Timestamp,
) {
    let waits_for = done.waits_for.as_ref();
    let block = blocking(set, &revisions.update, waits_for)
        .filter(|_| report_delay(set, &revisions.update, waits_for, now).is_none());
    match block {
        Some(member) => {
            let (pod, namespace) = (&member.pod.meta.name, &set.meta.namespace);
            let message = format!(
                "Pod {pod} of revision {} is not ready. The ordered update to revision {} replaces no pod until this \
                 pod is ready. If the pod cannot become ready, delete it: kubectl delete pod {pod} -n {namespace}",
                identity::revision(&member.pod),
                revisions.update
            );
            let now = Time(now.as_second());
            set_condition(&mut status.conditions, ROLLOUT_BLOCKED, "True", OLD_POD_NOT_READY, &message, now);
        }
        None => status.conditions.retain(|condition| &*condition.kind != ROLLOUT_BLOCKED),
    }
}

/// Returns the maximum delay of a status write, from the time at which `status` first differed from the set's status.
/// Counts that change during an update or a scaling, or only because pods are being deleted, are delayed. The end of
/// the update or scaling, an unexpected loss of a pod, and all other fields are written immediately.
pub fn delay(set: &StatefulSet, status: &StatefulSetStatus) -> Duration {
    let was = &set.status;
    let only_counts = StatefulSetStatus {
        replicas: was.replicas,
        ready_replicas: was.ready_replicas,
        available_replicas: was.available_replicas,
        current_replicas: was.current_replicas,
        updated_replicas: was.updated_replicas,
        ..status.clone()
    } == *was;
    if status == was || !only_counts {
        return Duration::ZERO;
    }
    if only_counts_deletions(was, status) {
        return MINOR_CHANGE;
    }
    let updates = still_updates(set, status);
    let is_final = [status.replicas, status.ready_replicas, status.available_replicas] == [set.replicas; 3] && !updates;
    let lost = status.ready_replicas < was.ready_replicas || status.available_replicas < was.available_replicas;
    if is_final || lost && !updates && status.replicas == set.replicas { Duration::ZERO } else { CHANGING_COUNTS }
}

/// Returns true while the controller still has pods to replace.
fn still_updates(set: &StatefulSet, status: &StatefulSetStatus) -> bool {
    let held_back = set.rolling.as_ref().map_or(0, |rolling| rolling.partition);
    match set.strategy {
        Strategy::OnDelete => false,
        Strategy::RollingUpdate if held_back > 0 => status.updated_replicas < set.replicas.saturating_sub(held_back),
        Strategy::RollingUpdate | Strategy::Recreate => status.current_revision != status.update_revision,
    }
}

/// Returns true if the only change is that pods are being deleted: they will no longer exist soon, and one write covers
/// both changes.
fn only_counts_deletions(before: &StatefulSetStatus, after: &StatefulSetStatus) -> bool {
    let same = StatefulSetStatus {
        current_replicas: before.current_replicas,
        updated_replicas: before.updated_replicas,
        ..after.clone()
    };
    same == *before
        && after.current_replicas <= before.current_replicas
        && after.updated_replicas <= before.updated_replicas
}

/// Returns the message of condition `RolloutBlocked` if it is new or has changed, for an event.
pub fn new_report<'a>(before: &StatefulSetStatus, after: &'a StatefulSetStatus) -> Option<&'a str> {
    let condition = find(&after.conditions, ROLLOUT_BLOCKED)?;
    find(&before.conditions, ROLLOUT_BLOCKED)
        .is_none_or(|known| known.message != condition.message)
        .then_some(&*condition.message)
}

/// Returns the time until the next ready pod becomes available, or `min_ready_seconds` if that time is unknown; `None`
/// if all ready pods are available. Upstream: pkg/controller, FindMinNextPodAvailabilityCheck.
pub fn next_check(
    set: &StatefulSet,
    status: &StatefulSetStatus,
    members: &[Member],
    now: Timestamp,
) -> Option<Duration> {
    if set.min_ready_seconds <= 0 || status.ready_replicas == status.available_replicas {
        return None;
    }
    let wait = i64::from(set.min_ready_seconds);
    let remaining = |pod: &Pod| {
        let at = i128::from(pod.ready_since.0 + wait) * 1_000_000_000;
        u64::try_from(at - now.as_nanosecond()).ok().filter(|nanos| *nanos > 0).map(Duration::from_nanos)
    };
    let ready = members.iter().map(|member| &member.pod).filter(|pod| pod.ready && !pod.ready_since.is_zero());
    Some(ready.filter_map(|pod| remaining(pod)).min().unwrap_or(Duration::from_secs(wait.unsigned_abs())))
}
