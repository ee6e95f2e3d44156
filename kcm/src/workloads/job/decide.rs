//! Policy: the state of a Job: its pods by result, its indexes, and the condition that announces its end.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kinds::condition::Condition;
use kinds::job::{Action, JobStatus, TRACKING_FINALIZER, UncountedPods};
use kinds::pod::Phase;
use kinds::{Job, Pod, Time, Uid};

use super::backoff::{Backoff, finished_at, index_failures};
use super::indexes::Indexes;
use super::policy;

/// Condition: the Job will fail; its pods are being terminated.
pub const FAILURE_TARGET: &str = "FailureTarget";
/// Condition: the Job will be complete; its pods are being terminated.
pub const SUCCESS_CRITERIA_MET: &str = "SuccessCriteriaMet";
/// Condition: the Job failed.
pub const FAILED: &str = "Failed";
/// Condition: the Job is complete.
pub const COMPLETE: &str = "Complete";
/// Condition: the Job is suspended.
pub const SUSPENDED: &str = "Suspended";

/// The input of a decision about a Job.
#[derive(Debug, Clone)]
pub struct View<'a> {
    /// True if a Job loses its start time when it is suspended.
    pub clears_start: bool,
    /// The Job.
    pub job: &'a Job,
    /// Its pods, sorted by index.
    pub pods: &'a [Arc<Pod>],
    /// Pods that the cache still contains with the tracking finalizer, although it was removed.
    pub settled: &'a HashSet<Uid>,
    /// Failures before this reconcile.
    pub backoff: Backoff,
    /// The cache contains all known deletions (see [`runtime::handover::Handover::observe`]).
    pub are_deletions_cached: bool,
    /// The current time.
    pub now: Timestamp,
}

/// The state of a Job.
#[derive(Debug, Clone)]
pub struct JobState {
    /// The status before this reconcile; its start time is set if the Job starts now.
    pub status: JobStatus,
    /// Active pods: neither ended nor being deleted.
    pub active: Vec<Arc<Pod>>,
    /// Active pods that are ready.
    pub ready: i32,
    /// Pods that are being deleted and have not ended.
    pub terminating: i32,
    /// Pods that failed and count towards the limit, including those that are not recorded in the status yet.
    pub failed: i32,
    /// Pods or indexes that succeeded, including those that are not recorded in the status yet.
    pub succeeded: i32,
    /// The state of the indexes of an Indexed Job.
    pub indexed: Option<IndexState>,
    /// Failures since the last success.
    pub backoff: Backoff,
    /// The condition that announces the Job's end ([`FAILURE_TARGET`] or [`SUCCESS_CRITERIA_MET`]), or [`FAILED`] once
    /// the status announces a failure; otherwise `None`. [`View::outcome`] also sets [`SUCCESS_CRITERIA_MET`]
    /// once enough pods have succeeded and none is active.
    pub verdict: Option<Condition>,
    /// Time until the Job's deadline.
    pub deadline_in: Option<SignedDuration>,
}

/// The state of a Job's indexes.
#[derive(Debug, Clone, Default)]
pub struct IndexState {
    /// Completed according to the status.
    pub before: Indexes,
    /// Completed, including those that are not recorded in the status yet.
    pub completed: Indexes,
    /// Failed permanently; only with a limit per index.
    pub failed: Option<Indexes>,
    /// The last failed pod of each index, while it waits for a replacement that takes over its count of failures.
    pub waiting: BTreeMap<i32, Arc<Pod>>,
}

/// Returns the index of a pod.
pub fn index_of(pod: &Pod) -> Option<i32> {
    pod.ending.as_deref()?.index
}

/// Returns a condition with the status `True`; both of its times are `now`.
pub fn condition(kind: &str, reason: &str, message: &str, now: Timestamp) -> Condition {
    let now = Time(now.as_second());
    Condition {
        kind: kind.into(),
        status: "True".into(),
        reason: reason.into(),
        message: message.into(),
        last_update: now,
        last_transition: now,
    }
}

fn count<T>(items: &[T]) -> i32 {
    i32::try_from(items.len()).unwrap_or(i32::MAX)
}

/// Returns the pods for which `keep` is true.
fn pods_where(pods: &[Arc<Pod>], keep: impl Fn(&Pod) -> bool) -> Vec<Arc<Pod>> {
    pods.iter().filter(|pod| keep(pod)).cloned().collect()
}

impl View<'_> {
    /// Returns `spec.completions`; 0 if it is not set.
    pub fn completions(&self) -> i32 {
        self.job.completions.unwrap_or(0)
    }

    /// Returns true if a pod still has the tracking finalizer: it is not counted yet.
    pub fn is_tracked(&self, pod: &Pod) -> bool {
        has_finalizer(pod) && !self.settled.contains(&pod.meta.uid)
    }

    /// Returns true if a pod that ended or is being deleted is not in the Job's counters yet. The cache need not
    /// contain a pod that the status records.
    pub fn has_uncounted(&self) -> bool {
        let recorded = self.job.status.uncounted.as_ref();
        recorded.is_some_and(|pods| !(pods.succeeded.is_empty() && pods.failed.is_empty()))
            || self.pods.iter().any(|pod| self.is_tracked(pod) && !pod.is_active())
    }

    /// Returns true if a pod has an index of this Job, or the Job has no indexes.
    pub fn is_in_range(&self, pod: &Pod) -> bool {
        !self.job.is_indexed() || index_of(pod).is_some_and(|index| index < self.completions())
    }

    /// Returns true if a pod counts as failed.
    pub fn is_failed(&self, pod: &Pod) -> bool {
        policy::is_failed(self.job, pod)
    }

    /// Evaluates all pods. Upstream: pkg/controller/job, syncJob up to the verdict.
    pub fn state(&self) -> JobState {
        let job = self.job;
        let mut status = job.status.clone();
        let uncounted = status.uncounted.get_or_insert_default().clone();
        let active = pods_where(self.pods, Pod::is_active);
        let (new_succeeded, new_failed) = self.newly_ended(&uncounted);
        let counted_failures =
            pods_where(&new_failed, |pod| policy::failure_verdict(job.failure_policy.as_ref(), pod).counts);
        let failed = status.failed + count(&counted_failures) + count(&uncounted.failed);
        if status.start.is_zero() && !job.suspend {
            status.start = Time(self.now.as_second());
        }
        let indexed = job.is_indexed().then(|| self.indexed(&active));
        let (verdict, deadline_in) = self.verdict(&status, failed, indexed.as_ref());
        JobState {
            ready: count(&pods_where(&active, |pod| pod.ready)),
            terminating: count(&pods_where(self.pods, Pod::is_terminating)),
            failed,
            succeeded: match &indexed {
                Some(indexed) => indexed.completed.total(),
                None => status.succeeded + count(&new_succeeded) + count(&uncounted.succeeded),
            },
            backoff: self.backoff.with(&new_succeeded, &new_failed),
            status,
            active,
            indexed,
            verdict,
            deadline_in,
        }
    }

    /// Returns the pods that succeeded, and those that failed, without the pods that are counted or recorded already,
    /// and without those that have no index of this Job. Upstream: pkg/controller/job, getNewFinishedPods.
    fn newly_ended(&self, uncounted: &UncountedPods) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
        let new = pods_where(self.pods, |pod| self.is_tracked(pod) && self.is_in_range(pod));
        let [recorded_successes, recorded_failures] =
            [&uncounted.succeeded, &uncounted.failed].map(|uids| uids.iter().collect::<HashSet<&Uid>>());
        let is_succeeded = |pod: &Pod| pod.phase == Phase::Succeeded;
        let succeeded = pods_where(&new, |pod| is_succeeded(pod) && !recorded_successes.contains(&pod.meta.uid));
        let failed = pods_where(&new, |pod| self.is_failed(pod) && !recorded_failures.contains(&pod.meta.uid));
        (succeeded, failed)
    }

    fn indexed(&self, active: &[Arc<Pod>]) -> IndexState {
        let status = &self.job.status;
        let new = |matches: &dyn Fn(&Pod) -> bool| {
            let pods = self.pods.iter().filter(|pod| has_finalizer(pod) && self.is_in_range(pod) && matches(pod));
            Indexes::of(pods.filter_map(|pod| index_of(pod)))
        };
        let before = Indexes::parse(&status.completed_indexes, self.completions());
        let completed = before.union(&new(&|pod| pod.phase == Phase::Succeeded));
        let mut indexed = IndexState { before, completed, failed: None, waiting: BTreeMap::new() };
        if let Some(limit) = self.job.backoff_limit_per_index {
            let known = status.failed_indexes.as_deref().unwrap_or_default();
            let known = Indexes::parse(known, self.completions());
            let failed = known.union(&new(&|pod| self.fails_its_index(pod, limit)));
            indexed.waiting = self.waiting(active, &indexed.completed, &failed);
            indexed.failed = Some(failed);
        }
        indexed
    }

    /// Returns true if a pod's failure makes its index fail: by a rule of the failure policy, or by the limit per
    /// index. Upstream: pkg/controller/job, isIndexFailed.
    fn fails_its_index(&self, pod: &Pod, limit: i32) -> bool {
        if !self.is_failed(pod) {
            return false;
        }
        let verdict = policy::failure_verdict(self.job.failure_policy.as_ref(), pod);
        verdict.action == Some(Action::FailIndex)
            || verdict.counts && pod.ending.as_deref().map_or(0, |ending| ending.failures) >= limit
    }

    /// Returns the failed pods that stay until they are replaced. Upstream: pkg/controller/job,
    /// getPodsWithDelayedDeletionPerIndex.
    fn waiting(&self, active: &[Arc<Pod>], completed: &Indexes, failed: &Indexes) -> BTreeMap<i32, Arc<Pod>> {
        let running = Indexes::of(active.iter().filter_map(|pod| index_of(pod)));
        let mut waiting: BTreeMap<i32, Arc<Pod>> = BTreeMap::new();
        for pod in self.pods.iter().filter(|pod| self.is_tracked(pod) && self.is_in_range(pod) && self.is_failed(pod)) {
            let Some(index) = index_of(pod) else { continue };
            if completed.has(index) || failed.has(index) || running.has(index) {
                continue;
            }
            let later = waiting.get(&index).is_none_or(|last| {
                index_failures(last) <= index_failures(pod) && finished_at(pod) >= finished_at(last)
            });
            if later {
                waiting.insert(index, pod.clone());
            }
        }
        waiting
    }

    /// Returns [`JobState::verdict`], and the time until the Job's deadline. The order of the checks is upstream's:
    /// earlier decisions, failures, success.
    fn verdict(
        &self,
        status: &JobStatus,
        failed: i32,
        indexed: Option<&IndexState>,
    ) -> (Option<Condition>, Option<SignedDuration>) {
        let (job, now) = (self.job, self.now);
        let failure = |reason: &str, message: &str| Some(condition(FAILURE_TARGET, reason, message, now));
        if let Some(met) = status.true_condition(SUCCESS_CRITERIA_MET) {
            return (Some(met.clone()), None);
        }
        if let Some(target) = status.true_condition(FAILURE_TARGET) {
            return (Some(condition(FAILED, &target.reason, &target.message, now)), None);
        }
        if let Some(message) = self.failing_pod() {
            return (failure("PodFailurePolicy", &message), None);
        }
        if failed > job.backoff_limit || self.restarted_too_often() {
            return (failure("BackoffLimitExceeded", "Job has reached the specified backoff limit"), None);
        }
        let mut deadline_in = None;
        if let Some(deadline) = job.active_deadline.filter(|_| !job.suspend && !status.start.is_zero()) {
            let began = Timestamp::from_second(status.start.0).unwrap_or(now);
            let left = SignedDuration::from_secs(deadline).saturating_sub(now.duration_since(began));
            if left <= SignedDuration::ZERO {
                return (failure("DeadlineExceeded", "Job was active longer than specified deadline"), None);
            }
            deadline_in = Some(left);
        }
        let Some(indexed) = indexed else { return (None, deadline_in) };
        if let Some(failed) = &indexed.failed {
            if job.max_failed_indexes.is_some_and(|max| failed.total() > max) {
                let message = "Job has exceeded the specified maximal number of failed indexes";
                return (failure("MaxFailedIndexesExceeded", message), deadline_in);
            }
            if !failed.is_empty() && failed.total() + indexed.completed.total() >= self.completions() {
                return (failure("FailedIndexes", "Job has failed indexes"), deadline_in);
            }
        }
        let success = policy::succeeded(&job.success_policy, self.completions(), &indexed.completed);
        (success.map(|message| condition(SUCCESS_CRITERIA_MET, "SuccessPolicy", &message, now)), deadline_in)
    }

    /// Returns the condition's message if a pod's failure fails the whole Job.
    fn failing_pod(&self) -> Option<String> {
        let policy = Some(self.job.failure_policy.as_ref()?);
        self.pods.iter().filter(|pod| self.is_failed(pod)).find_map(|pod| policy::failure_verdict(policy, pod).fail_job)
    }

    /// Returns true if containers were restarted in place too often. Upstream: pkg/controller/job,
    /// pastBackoffLimitOnFailure.
    fn restarted_too_often(&self) -> bool {
        if !self.job.restarts_in_place {
            return false;
        }
        let unfinished = self.pods.iter().filter(|pod| matches!(pod.phase, Phase::Running | Phase::Pending));
        let restarts = unfinished.filter_map(|pod| pod.ending.as_deref()).map(|ending| ending.restarts);
        restarts.fold(0, i32::saturating_add) >= self.job.backoff_limit.max(1)
    }
}

/// Returns true if the cached pod has the tracking finalizer.
pub fn has_finalizer(pod: &Pod) -> bool {
    pod.meta.finalizers.iter().any(|finalizer| &**finalizer == TRACKING_FINALIZER)
}
