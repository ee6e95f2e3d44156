//! Policy: the pods to create and delete, and the resulting status.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::SignedDuration;
use kinds::condition::Condition;
use kinds::job::JobStatus;
use kinds::{Pod, Time};

use super::backoff::remaining_of_index;
use super::decide::{JobState, SUCCESS_CRITERIA_MET, SUSPENDED, View, condition, index_of};
use super::indexes::Indexes;
use super::policy;
use crate::pods::ranking::exact_rank;

/// The largest number of pods created in one reconcile, or deleted because they are surplus. If a Job ends or is
/// suspended, one reconcile deletes all its pods. Upstream: pkg/controller/job, MaxPodCreateDeletePerSync.
pub const BURST: usize = 500;

/// A pod to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NewPod {
    /// Its index.
    pub index: Option<i32>,
    /// Failures of its index so far, counted and ignored ones; only with a limit per index.
    pub failures: Option<(i32, i32)>,
}

/// The action for a Job's pods.
#[derive(Debug, Clone)]
pub enum Plan {
    /// Do nothing now.
    Nothing,
    /// The Job has succeeded or failed: delete its active pods. They keep the tracking finalizer, so that they are
    /// counted.
    End(Vec<Arc<Pod>>),
    /// Delete these pods. Their tracking finalizer is removed first, so that they are not counted.
    Remove(Vec<Arc<Pod>>),
    /// Create pods, but only after this delay.
    Wait(SignedDuration),
    /// Create these pods.
    Create(Vec<NewPod>),
}

/// Pods created and deleted in this reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PodChanges {
    /// Pods that were created.
    pub created: i32,
    /// Pods whose deletion was accepted.
    pub deleted: i32,
    /// Deleted pods that were ready.
    pub deleted_ready: i32,
}

/// A change of suspension that is reported by an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspensionChange {
    /// The Job was suspended.
    Suspended,
    /// The Job was resumed.
    Resumed,
}

/// The state of a Job after its pods were created or deleted.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The Job's status; its counts of finished pods are still the old ones.
    pub status: JobStatus,
    /// The condition that announces the Job's end, or `Failed` once the status announces a failure.
    pub verdict: Option<Condition>,
    /// The status must be written.
    pub flush: bool,
    /// Maximum delay for writing the counts of running pods; `None` if they did not change.
    pub counts: Option<Duration>,
    /// A change of suspension.
    pub suspension_change: Option<SuspensionChange>,
}

fn to_i32(items: usize) -> i32 {
    i32::try_from(items).unwrap_or(i32::MAX)
}

fn to_usize(count: i32) -> usize {
    usize::try_from(count).unwrap_or(0)
}

impl View<'_> {
    /// Returns true if pods may be created and deleted.
    pub fn may_manage(&self) -> bool {
        self.are_deletions_cached && !self.job.meta.is_deleting()
    }

    /// Compares the active pods with the desired number. Upstream: pkg/controller/job, deleteActivePods and manageJob.
    pub fn plan(&self, state: &JobState) -> Plan {
        let active = to_i32(state.active.len());
        if state.verdict.is_some() {
            return Plan::End(state.active.clone());
        }
        if !self.may_manage() {
            return Plan::Nothing;
        }
        if self.job.suspend {
            return removing(self.to_remove(state, active));
        }
        let wanted = match self.job.completions {
            // Without `completions` the Job is a work queue: after the first success, running pods continue and none
            // are added.
            None if state.succeeded > 0 => active,
            None => self.job.parallelism,
            Some(completions) => (completions - state.succeeded).min(self.job.parallelism).max(0),
        };
        let mut surplus = self.to_remove(state, (active - wanted).max(0));
        surplus.truncate(BURST);
        if !surplus.is_empty() {
            return removing(surplus);
        }
        let leaving = if self.job.replace_only_failed { state.terminating } else { 0 };
        let missing = to_usize(wanted - leaving - active);
        if missing == 0 { Plan::Nothing } else { self.creation(state, missing.min(BURST)) }
    }

    fn creation(&self, state: &JobState, missing: usize) -> Plan {
        let per_index = self.job.backoff_limit_per_index.is_some();
        let wait = state.backoff.remaining(self.now);
        if !per_index && wait > SignedDuration::ZERO {
            return Plan::Wait(wait);
        }
        let Some(indexed) = &state.indexed else { return Plan::Create(vec![NewPod::default(); missing]) };
        let mut taken = indexed.completed.union(&of_pods(&state.active, |_| true));
        if self.job.replace_only_failed {
            taken = taken.union(&of_pods(self.pods, Pod::is_terminating));
        }
        if let Some(failed) = &indexed.failed {
            taken = taken.union(failed);
        }
        let mut pods = Vec::new();
        let mut soonest: Option<SignedDuration> = None;
        for index in taken.first_missing(missing, self.completions()) {
            let replaced = indexed.waiting.get(&index);
            let wait = replaced.map_or(SignedDuration::ZERO, |pod| remaining_of_index(pod, self.now));
            if per_index && wait > SignedDuration::ZERO {
                soonest = Some(soonest.map_or(wait, |soonest| soonest.min(wait)));
                continue;
            }
            let failures = per_index.then(|| replaced.map_or((0, 0), |pod| self.failures_after(pod)));
            pods.push(NewPod { index: Some(index), failures });
        }
        match soonest {
            Some(wait) if pods.is_empty() => Plan::Wait(wait),
            _ if pods.is_empty() => Plan::Nothing,
            _ => Plan::Create(pods),
        }
    }

    /// Returns the counted and the ignored failures that the replacement of a pod takes over. Upstream:
    /// pkg/controller/job, getNewIndexFailureCounts.
    fn failures_after(&self, replaced: &Pod) -> (i32, i32) {
        let (counted, ignored) =
            replaced.ending.as_deref().map_or((0, 0), |ending| (ending.failures, ending.ignored_failures));
        let counts = policy::failure_verdict(self.job.failure_policy.as_ref(), replaced).counts;
        if counts { (counted.saturating_add(1), ignored) } else { (counted, ignored.saturating_add(1)) }
    }

    /// Returns at least this number of active pods to delete, in the order of deletion. In an Indexed Job, the result
    /// always contains the pods without a valid index, and all pods of an index except the last one in that order.
    /// Upstream: pkg/controller/job, activePodsForRemoval.
    fn to_remove(&self, state: &JobState, at_least: i32) -> Vec<Arc<Pod>> {
        if at_least <= 0 && !self.job.is_indexed() {
            return Vec::new();
        }
        let mut pods = state.active.clone();
        pods.sort_by_cached_key(|pod| exact_rank(pod));
        let mut surplus = Vec::new();
        if self.job.is_indexed() {
            // The surplus: pods without a valid index, and all pods of an index except the last in the order of
            // deletion.
            let mut served = HashSet::new();
            let mut kept = Vec::with_capacity(pods.len());
            for pod in pods.into_iter().rev() {
                let index = index_of(&pod).filter(|index| *index < self.completions());
                let stays = index.is_some_and(|index| served.insert(index));
                if stays { kept.push(pod) } else { surplus.push(pod) }
            }
            kept.reverse();
            surplus.reverse();
            pods = kept;
        }
        let more = to_usize(at_least).saturating_sub(surplus.len());
        surplus.extend(pods.into_iter().take(more));
        surplus
    }

    /// Returns the status and the verdict that follow from `pod_changes`. Upstream: pkg/controller/job, syncJob after
    /// manageJob.
    pub fn outcome(&self, state: &JobState, plan: &Plan, pod_changes: PodChanges) -> Outcome {
        let mut outcome = Outcome {
            status: state.status.clone(),
            verdict: state.verdict.clone(),
            flush: false,
            counts: None,
            suspension_change: None,
        };
        let active = to_i32(state.active.len());
        let left = active - pod_changes.deleted + pod_changes.created;
        if matches!(plan, Plan::End(_)) {
            if pod_changes.deleted != active || !self.are_deletions_cached {
                // The Job does not end yet: pods may remain, or may be missing in the cache.
                outcome.verdict = None;
            }
        } else {
            let enough = match self.job.completions {
                None => state.succeeded > 0,
                Some(completions) => state.succeeded >= completions,
            };
            if enough && left == 0 {
                let message = "Reached expected number of succeeded pods";
                outcome.verdict = Some(condition(SUCCESS_CRITERIA_MET, "CompletionsReached", message, self.now));
            } else if self.may_manage() {
                self.apply_suspension(&mut outcome);
            }
        }
        let (ready, terminating) =
            (Some(state.ready - pod_changes.deleted_ready), Some(state.terminating + pod_changes.deleted));
        let status = &mut outcome.status;
        status.active = left;
        status.ready = ready;
        status.terminating = terminating;
        outcome.counts = write_delay(&self.job.status, status);
        outcome
    }

    /// Sets the condition `Suspended` as the spec requests. If it changes, a resumption sets the start time, and a
    /// suspension deletes it if `clears_start` is true.
    fn apply_suspension(&self, outcome: &mut Outcome) {
        let conditions = &mut outcome.status.conditions;
        let (status, reason, message) = if self.job.suspend {
            ("True", "JobSuspended", "Job suspended")
        } else {
            ("False", "JobResumed", "Job resumed")
        };
        if !ensure(conditions, &Condition { status: status.into(), ..condition(SUSPENDED, reason, message, self.now) })
        {
            return;
        }
        outcome.flush = true;
        if self.job.suspend {
            outcome.suspension_change = Some(SuspensionChange::Suspended);
            if self.clears_start {
                outcome.status.start = Time::default();
            }
        } else {
            outcome.suspension_change = Some(SuspensionChange::Resumed);
            // The deadline counts from the last resumption.
            outcome.status.start = Time(self.now.as_second());
        }
    }
}

/// Maximum delay for writing counts while pods start or run; equal to the time over which syncs are coalesced.
/// Upstream: pkg/controller/job, SyncJobBatchPeriod.
pub const COUNTS_DELAY: Duration = Duration::from_secs(1);

/// Returns the maximum delay for writing counts of running pods; `None` if they did not change. These are written
/// immediately: a new start time; the counts when all pods are ready or have ended; the loss of a ready pod. All other
/// changes are delayed: pods that start, are being deleted, or end while others run.
fn write_delay(was: &JobStatus, status: &JobStatus) -> Option<Duration> {
    let counts = |status: &JobStatus| (status.active, status.ready, status.terminating);
    if counts(was) == counts(status) {
        return None;
    }
    let terminating = |status: &JobStatus| status.terminating.unwrap_or(0);
    let some_ended = 0 < status.active && status.active < was.active && terminating(was) == 0;
    let is_settled = status.ready == Some(status.active) && terminating(status) == 0 && !some_ended;
    let lost = status.active == was.active && status.ready < was.ready;
    Some(if was.start != status.start || is_settled || lost { Duration::ZERO } else { COUNTS_DELAY })
}

/// Sets a condition. Returns true if it changed. A false condition is not added. Upstream: pkg/controller/job,
/// ensureJobConditionStatus.
pub fn ensure(conditions: &mut Vec<Condition>, new: &Condition) -> bool {
    match conditions.iter_mut().find(|known| known.kind == new.kind) {
        Some(known) => {
            let same = (&known.status, &known.reason, &known.message) == (&new.status, &new.reason, &new.message);
            if !same {
                *known = new.clone();
            }
            !same
        }
        None if &*new.status == "False" => false,
        None => {
            conditions.push(new.clone());
            true
        }
    }
}

fn removing(pods: Vec<Arc<Pod>>) -> Plan {
    if pods.is_empty() { Plan::Nothing } else { Plan::Remove(pods) }
}

fn of_pods(pods: &[Arc<Pod>], which: impl Fn(&Pod) -> bool) -> Indexes {
    Indexes::of(pods.iter().filter(|pod| which(pod)).filter_map(|pod| index_of(pod)))
}
