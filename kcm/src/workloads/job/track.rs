//! Policy: counts a Job's finished pods. Each is counted exactly once, even if the process crashes at any time.
//!
//! A finished pod is first recorded in the status by its UID, then loses its finalizer, then moves into a counter. A
//! recorded pod with the finalizer is not in a counter yet; a recorded pod without it is moved into one. A success of
//! an Indexed Job is recorded by its index instead: the number of these indexes is the counter.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::condition::Condition;
use kinds::job::{Action, JobStatus};
use kinds::pod::Phase;
use kinds::{Pod, Time, Uid};

use super::decide::{
    COMPLETE, FAILED, FAILURE_TARGET, IndexState, JobState, SUCCESS_CRITERIA_MET, View, condition, index_of,
};
use super::indexes::Indexes;
use super::manage::{COUNTS_DELAY, Outcome, ensure};
use super::policy;

/// Maximum number of uncounted pods in a status, so that it stays small. Upstream: pkg/controller/job,
/// MaxUncountedPods.
const MAX_UNCOUNTED: usize = 500;

/// The status to write, and the actions after the write.
#[derive(Debug, Clone)]
pub struct Account {
    /// The status in which the finished pods are recorded, [`MAX_UNCOUNTED`] at most.
    pub status: JobStatus,
    /// Set if the status must be written before any finalizer is removed: the maximum delay of that write and of the
    /// removals.
    pub flush: Option<Duration>,
    /// Set if the counts have changed: the maximum delay of their write.
    pub counts: Option<Duration>,
    /// The maximum delay of the write of the counters after the finalizers were removed.
    pub write_delay: Duration,
    /// Pods whose finalizer may be removed after the status write.
    pub release: Vec<Arc<Pod>>,
    /// Pods that have the finalizer.
    pub tracked: HashSet<Uid>,
    /// The condition with which the Job ends once all pods are counted.
    pub end: Option<Condition>,
    /// Actions of the failure policy's rules that matched failed pods.
    pub matched_actions: Vec<Action>,
}

impl View<'_> {
    /// Records the pods that ended. Upstream: pkg/controller/job, trackJobStatusAndRemoveFinalizers, its first half.
    pub fn account(&self, state: &JobState, outcome: Outcome) -> Account {
        let Outcome { mut status, verdict, mut flush, counts, .. } = outcome;
        let tracked_pods: Vec<&Arc<Pod>> = self.pods.iter().filter(|pod| self.is_tracked(pod)).collect();
        let tracked: HashSet<Uid> = tracked_pods.iter().map(|pod| pod.meta.uid.clone()).collect();
        let recorded = self.job.status.uncounted.clone().unwrap_or_default();
        let [recorded_successes, recorded_failures] =
            [&recorded.succeeded, &recorded.failed].map(|uids| uids.iter().collect::<HashSet<&Uid>>());
        // Recorded pods cannot be lost: while other pods run, the counters can be written with the next finished pods.
        let write_delay = if status.active > 0 { COUNTS_DELAY } else { Duration::ZERO };
        let settled = settle(&mut status, &tracked).then_some(write_delay);
        let counts = counts.into_iter().chain(settled).min();
        // If a Job failed, its pods that were still running count as failed.
        let has_job_failed = verdict.as_ref().is_some_and(|verdict| &*verdict.kind != SUCCESS_CRITERIA_MET);
        let mut release = Vec::new();
        let mut completed = Vec::new();
        let mut matched_actions = Vec::new();
        let mut full = false;
        let mut urgent = flush;
        for pod in tracked_pods {
            let failed = self.is_failed(pod);
            if !self.may_release(state.indexed.as_ref(), verdict.is_some(), pod, failed) {
                continue;
            }
            release.push(pod.clone());
            // The client that deletes a pod waits until its finalizer is removed.
            urgent |= failed || pod.meta.is_deleting();
            let uncounted = status.uncounted.get_or_insert_default();
            let uid = &pod.meta.uid;
            let is_recorded_failure = recorded_failures.contains(uid);
            if pod.phase == Phase::Succeeded && !is_recorded_failure {
                match &state.indexed {
                    Some(indexed) => completed.extend(self.completed_index(indexed, pod)),
                    None if recorded_successes.contains(uid) => {}
                    None => {
                        uncounted.succeeded.push(uid.clone());
                        flush = true;
                    }
                }
            } else if (failed || has_job_failed) && !is_recorded_failure && self.is_in_range(pod) {
                let verdict_on_pod = policy::failure_verdict(self.job.failure_policy.as_ref(), pod);
                matched_actions.extend(verdict_on_pod.action);
                if verdict_on_pod.counts {
                    uncounted.failed.push(uid.clone());
                    flush = true;
                }
            }
            if completed.len() + uncounted.succeeded.len() + uncounted.failed.len() >= MAX_UNCOUNTED {
                full = true;
                break;
            }
        }
        if let Some(indexed) = &state.indexed {
            flush |= write_indexes(&mut status, indexed, completed);
        }
        let (end, decided) = self.add_verdict(&mut status, verdict);
        urgent |= full || decided || end.is_some() || self.job.meta.is_deleting();
        // A success that is not recorded yet cannot be lost, because its pod keeps the finalizer: the write may be
        // delayed.
        let flush = (flush || decided).then_some(if urgent { Duration::ZERO } else { write_delay });
        Account { status, flush, counts, write_delay, release, tracked, end: end.filter(|_| !full), matched_actions }
    }

    /// Returns the index that a successful pod completes, unless it was completed before.
    fn completed_index(&self, indexed: &IndexState, pod: &Pod) -> Option<i32> {
        index_of(pod).filter(|index| *index < self.completions() && !indexed.before.has(*index))
    }

    /// Returns true if a pod's finalizer may be removed once the pod is recorded. Upstream: pkg/controller/job,
    /// canRemoveFinalizer.
    fn may_release(&self, indexed: Option<&IndexState>, decided: bool, pod: &Pod, failed: bool) -> bool {
        if self.job.meta.is_deleting() || decided || pod.phase == Phase::Succeeded {
            return true;
        }
        let waiting = || {
            let waiting = index_of(pod).and_then(|index| indexed?.waiting.get(&index));
            waiting.is_some_and(|waiting| waiting.meta.uid == pod.meta.uid)
        };
        failed && !waiting()
    }

    /// Adds to the status the condition that announces the end of the Job. Returns the condition that ends the Job, and
    /// true if the status changed.
    fn add_verdict(&self, status: &mut JobStatus, verdict: Option<Condition>) -> (Option<Condition>, bool) {
        let Some(verdict) = verdict else { return (None, false) };
        let then = |kind| Some(condition(kind, &verdict.reason, &verdict.message, self.now));
        match &*verdict.kind {
            FAILURE_TARGET => {
                let end = then(FAILED);
                status.conditions.push(verdict);
                (end, true)
            }
            SUCCESS_CRITERIA_MET => {
                let end = then(COMPLETE);
                let new = status.true_condition(SUCCESS_CRITERIA_MET).is_none();
                if new {
                    status.conditions.push(verdict);
                }
                (end, new)
            }
            _ => (Some(verdict), false),
        }
    }
}

fn write_indexes(status: &mut JobStatus, indexed: &IndexState, new: Vec<i32>) -> bool {
    let completed = indexed.completed.union(&Indexes::of(new));
    let text = completed.to_string().into_boxed_str();
    let failed = indexed.failed.as_ref().map(|failed| failed.to_string().into_boxed_str());
    let changed = text != status.completed_indexes || failed != status.failed_indexes;
    status.succeeded = completed.total();
    status.completed_indexes = text;
    status.failed_indexes = failed;
    changed
}

/// Moves recorded pods without finalizer into the counters. Returns true if there were any. Upstream:
/// pkg/controller/job, cleanUncountedPodsWithoutFinalizers.
pub fn settle(status: &mut JobStatus, tracked: &HashSet<Uid>) -> bool {
    let uncounted = status.uncounted.get_or_insert_default();
    let mut moved = false;
    for (pods, counter) in
        [(&mut uncounted.succeeded, &mut status.succeeded), (&mut uncounted.failed, &mut status.failed)]
    {
        let before = pods.len();
        pods.retain(|uid| tracked.contains(uid));
        *counter += i32::try_from(before - pods.len()).unwrap_or(i32::MAX);
        moved |= pods.len() != before;
    }
    moved
}

/// Finishes a Job if no pod has to be counted or waited for. Returns true if it did. Upstream: pkg/controller/job,
/// enactJobFinished.
pub fn finish(status: &mut JobStatus, end: Option<&Condition>, now: Timestamp) -> bool {
    let left = status.uncounted.as_ref().is_some_and(|pods| !(pods.succeeded.is_empty() && pods.failed.is_empty()));
    let Some(end) = end.filter(|_| !left && status.terminating.unwrap_or(0) == 0) else { return false };
    ensure(&mut status.conditions, &condition(&end.kind, &end.reason, &end.message, now));
    if &*end.kind == COMPLETE {
        status.completion = Time(now.as_second());
    }
    true
}

/// Returns the reason of the event for a failed Job. Reasons are a fixed set: if another client wrote a condition with
/// another reason, the reason of the event is `Failed`.
pub fn failure_reason(reason: &str) -> &'static str {
    const REASONS: [&str; 5] =
        ["PodFailurePolicy", "BackoffLimitExceeded", "DeadlineExceeded", "MaxFailedIndexesExceeded", "FailedIndexes"];
    REASONS.into_iter().find(|known| *known == reason).unwrap_or("Failed")
}
