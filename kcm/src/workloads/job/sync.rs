//! One reconcile of a Job: gather, claim, manage, record, release, count.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use jiff::SignedDuration;
use kinds::job::{CompletionMode, JobStatus};
use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use kinds::{Job, Kind, Pod, Str, Uid};
use runtime::debounce::StatusDebouncer;
use runtime::events::{EventType, about};
use runtime::handover::{self, Children, Handover};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::slow_start::slow_start;
use runtime::store::{Store, by_controller, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::WriteError;
use tracing::{debug, error, info};

use super::BATCH;
use super::backoff::Backoff;
use super::claim::{claim_pods, patch, untracking};
use super::decide::{COMPLETE, View, has_finalizer, index_of};
use super::manage::{NewPod, Plan, PodChanges, SuspensionChange};
use super::metrics::{JobMetrics, Need, SyncAction};
use super::pods::new_pod;
use super::scheduling::{self, GroupError, Scheduling};
use super::track::{self, Account};
use crate::context::Clock;
use crate::pods::control::{CreateError, PodControl};
use crate::pods::refusals::{Attempt, Refusals};
use crate::pods::status_write::{StatusWrite, put_status};

/// Maximum time until a Job is reconciled again for its deadline. The API has no upper bound for deadlines, but
/// timers have one.
const MAX_TIMER: Duration = Duration::from_secs(24 * 3600);

/// The state of a Job between reconciles.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    uid: Uid,
    backoff: Backoff,
    /// Pods that the cache may still contain with the finalizer, although they no longer have it or no longer exist.
    settled: HashSet<Uid>,
}

/// The controller's state.
pub struct Jobs {
    pub jobs: Arc<Store<Job>>,
    pub control: PodControl,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    pub memory: Mutex<HashMap<ObjectKey, Memory>>,
    pub debouncer: StatusDebouncer,
    pub handover: Handover,
    pub refusals: Refusals,
    /// True if a Job loses its start time when it is suspended (gate MutableSchedulingDirectivesForSuspendedJobs).
    pub clears_start: bool,
    /// Groups of pods (gate WorkloadWithJob).
    pub scheduling: Option<Scheduling>,
    pub tally: Arc<JobMetrics>,
}

impl Reconcile for Jobs {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

/// The inputs of the creation of pods.
struct Creation<'a> {
    need: Need,
    /// The PodGroup of the pods.
    group: Option<&'a str>,
    /// The attempt, with the number of the Job's pods that use quota.
    attempt: Attempt,
    /// Nothing is created now.
    is_postponed: bool,
}

/// Returns the metrics' label for the action of a plan.
fn action_of(view: &View<'_>, plan: &Plan) -> SyncAction {
    match plan {
        Plan::Create(_) | Plan::Wait(_) => SyncAction::Created,
        Plan::Remove(_) => SyncAction::Deleted,
        Plan::Nothing if view.may_manage() && view.job.suspend => SyncAction::Deleted,
        Plan::Nothing if view.may_manage() => SyncAction::Tracking,
        Plan::Nothing | Plan::End(_) => SyncAction::Reconciling,
    }
}

impl Jobs {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.is_caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(job) = self.jobs.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        if let Some(manager) = &job.managed_by {
            debug!(%manager, "the Job is managed by another controller");
            return Ok(Outcome::Done);
        }
        self.remember(key, &job.meta.uid, |_| {});
        if job.is_finished() {
            self.forget(key);
            return Ok(Outcome::Done);
        }
        if matches!(job.completion_mode, CompletionMode::Unknown(_)) {
            let message = "Skipped Job sync because completion mode is unknown".to_owned();
            self.control.recorder.event(&about(&*job), EventType::Warning, "UnknownCompletionMode", message);
            return Ok(Outcome::Done);
        }
        if let Selector::Invalid(why) = &job.selector {
            error!(reason = why, "skipping a Job with an invalid selector");
            return Ok(Outcome::Done);
        }
        let mut action = SyncAction::Reconciling;
        let started = Instant::now();
        let ended = self.work(key, &job, &mut action).await;
        if !matches!(ended, Ok(Outcome::WaitingForCache)) {
            // Upstream counts a conflict as an error.
            let good = matches!(ended, Ok(Outcome::Done | Outcome::RequeueAfter(_)));
            self.tally.synced(&job, action, good, started.elapsed());
        }
        ended
    }

    /// Manages the pods of a Job that is not finished; `action` is set for the metrics.
    async fn work(&self, key: &ObjectKey, job: &Arc<Job>, action: &mut SyncAction) -> Result<Outcome, ReconcileError> {
        if self.control.consistency.take_lost(key) {
            self.handover.require(&job.meta);
            // Pods that the cache does not contain yet would not be counted, and the Job may be outdated, too.
            return self.compare(key, job).await;
        }
        let observed = self.handover.observe(&self.children(job), |pods| {
            let owned = pods.by_index(&by_controller(), owned_by(&job.meta.namespace, &job.meta.uid));
            [owned, pods.by_index(&by_controller(), orphans_in(&job.meta.namespace))].concat()
        });
        let are_deletions_cached = observed.are_deletions_cached;
        if !are_deletions_cached {
            self.queue.add_after(key.clone(), handover::RECHECK_DELAY);
        }
        let mut pods = self.claim(key, job, observed.children).await?;
        if !self.is_caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        pods.sort_by_key(|pod| index_of(pod).unwrap_or(-1));
        let memory = self.remember(key, &job.meta.uid, |memory| {
            let shown: HashSet<&Uid> = pods.iter().filter(|pod| has_finalizer(pod)).map(|pod| &pod.meta.uid).collect();
            memory.settled.retain(|uid| shown.contains(uid));
        });
        let settled = &memory.settled;
        let backoff = memory.backoff;
        let now = (self.clock)();
        let clears_start = self.clears_start;
        let view = View { job, pods: &pods, settled, backoff, are_deletions_cached, clears_start, now };
        let state = view.state();
        let plan = view.plan(&state);
        let acts = view.has_uncounted() || !matches!(plan, Plan::Nothing | Plan::Wait(_));
        if acts && self.handover.is_due(&job.meta) {
            // The API server may have more pods than the cache from which `pods` were read.
            return self.compare(key, job).await;
        }
        let missing = if let Plan::Create(new) = &plan { new.len() } else { 0 };
        let owned = pods.iter().filter(|pod| !pod.is_terminal()).count();
        let attempt = Attempt::new(&job.meta, missing, owned);
        let is_postponed = self.is_postponed(key, &plan, &attempt);
        if is_postponed && self.scheduling.is_some() && scheduling::is_new(job, !pods.is_empty()) {
            // No status is written: with a start time the Job would no longer count as new, and would never get a
            // group.
            return Ok(Outcome::Done);
        }
        let group = if is_postponed { None } else { self.group(key, job, &pods, &plan, &attempt).await? };
        self.requeue_for_timers(key, state.deadline_in, &plan);
        *action = action_of(&view, &plan);
        let need = Need::of(job, state.failed, state.terminating);
        let creation = Creation { need, group: group.as_deref(), attempt, is_postponed };
        let (pod_changes, failure) = self.act(key, job, &plan, creation).await;
        let outcome = view.outcome(&state, &plan, pod_changes);
        if let Some(suspension_change) = outcome.suspension_change {
            self.record_suspension_change(job, suspension_change);
        }
        let account = view.account(&state, outcome);
        if let Err(stopped) = self.track(key, job, account, state.backoff).await {
            return stopped;
        }
        failure.map_or(Ok(Outcome::Done), |failure| Err(ReconcileError::new(failure)))
    }

    /// Requeues the key for the Job's deadline, and for the end of the wait that the plan contains.
    fn requeue_for_timers(&self, key: &ObjectKey, deadline_in: Option<SignedDuration>, plan: &Plan) {
        if let Some(deadline) = deadline_in {
            self.queue.add_after(key.clone(), timer(deadline));
        }
        if let Plan::Wait(wait) = plan {
            self.queue.add_after(key.clone(), timer(*wait).max(BATCH));
        }
    }

    /// Returns true if nothing is created for a Job now: its namespace is being deleted, or the same attempt was
    /// refused and its backoff has not ended. In the second case the key is requeued for the end of the backoff.
    fn is_postponed(&self, key: &ObjectKey, plan: &Plan, attempt: &Attempt) -> bool {
        if !self.control.gate.is_open(&key.namespace) {
            debug!("not creating pods: the namespace is being deleted");
            return true;
        }
        let creates = matches!(plan, Plan::Create(_)) || self.scheduling.is_some();
        let waiting = self.refusals.waiting(key, attempt).filter(|_| creates);
        if let Some(waiting) = &waiting {
            debug!(
                reason = waiting.message, left = ?waiting.left,
                "not creating pods yet: the last attempt was refused"
            );
            self.queue.add_after(key.clone(), waiting.left);
        }
        waiting.is_some()
    }

    /// Returns the PodGroup of the Job's pods, if they have one.
    async fn group(
        &self,
        key: &ObjectKey,
        job: &Job,
        pods: &[Arc<Pod>],
        plan: &Plan,
        attempt: &Attempt,
    ) -> Result<Option<Str>, ReconcileError> {
        let Some(scheduling) = &self.scheduling else { return Ok(None) };
        let has_pods = !pods.is_empty();
        let creates_pods = matches!(plan, Plan::Create(_));
        scheduling.ensure_group(key, job, has_pods, creates_pods).await.map_err(|error| {
            if let GroupError::Refused(message) = &error {
                self.refusals.refused(key, attempt.clone(), message.clone());
            }
            ReconcileError::new(error.to_string())
        })
    }

    /// Returns the Job's pods after adopting and releasing some.
    async fn claim(
        &self,
        key: &ObjectKey,
        job: &Job,
        children: Vec<Arc<Pod>>,
    ) -> Result<Vec<Arc<Pod>>, ReconcileError> {
        let claimed = claim_pods(&self.control.writer, job, children).await;
        for version in claimed.written {
            self.control.consistency.wrote(key, &self.control.pods, version);
        }
        if claimed.errors.is_empty() { Ok(claimed.pods) } else { Err(ReconcileError::new(claimed.errors.join(", "))) }
    }

    /// Records an event about a Job that was suspended or resumed.
    fn record_suspension_change(&self, job: &Job, suspension_change: SuspensionChange) {
        let (reason, message) = match suspension_change {
            SuspensionChange::Suspended => ("Suspended", "Job suspended"),
            SuspensionChange::Resumed => ("Resumed", "Job resumed"),
        };
        self.control.recorder.event(&about(job), EventType::Normal, reason, message.to_owned());
    }

    /// Writes the status, removes finalizers, and counts the pods. `Err` contains the result with which the reconcile
    /// ends early. Upstream: pkg/controller/job, trackJobStatusAndRemoveFinalizers.
    async fn track(
        &self,
        key: &ObjectKey,
        job: &Arc<Job>,
        account: Account,
        backoff: Backoff,
    ) -> Result<(), Result<Outcome, ReconcileError>> {
        let Account { mut status, flush, counts, write_delay, release, mut tracked, end, matched_actions } = account;
        let mut job = job.clone();
        match flush.into_iter().chain(counts).min().map(|write_delay| self.waits(key, write_delay)) {
            Some(false) => {
                self.debouncer.forget(key);
                job = self.write(key, &job, &status).await?;
                self.remember(key, &job.meta.uid, |memory| memory.backoff = backoff);
            }
            // Pods that are not recorded in the status must keep their finalizer.
            Some(true) if flush.is_some() => return Ok(()),
            Some(true) | None => {}
        }
        for action in matched_actions {
            self.tally.rule_matched(action);
        }
        let failure = self.release(key, &job, &release, &mut tracked).await;
        if failure.is_none() {
            // Failures that the failure policy ignores may cause no status write: then they are recorded only here. If
            // a removal fails, they are not: pods that keep their finalizer count as new failures in the next
            // reconcile.
            self.remember(key, &job.meta.uid, |memory| memory.backoff = backoff);
        }
        let moved = track::settle(&mut status, &tracked);
        if let Some(failure) = failure {
            if moved {
                self.write(key, &job, &status).await?;
            }
            return Err(Err(failure.into()));
        }
        let ended = track::finish(&mut status, end.as_ref(), (self.clock)());
        if ended || moved && !self.waits(key, write_delay) {
            self.debouncer.forget(key);
            self.write(key, &job, &status).await?;
        }
        if let Some(end) = end.filter(|_| ended) {
            self.tally.finished(&job, &end.kind, &end.reason);
            let record = |kind, reason: &'static str, message: &str| {
                self.control.recorder.event(&about(&*job), kind, reason, message.to_owned());
            };
            if &*end.kind == COMPLETE {
                if job.completions.is_some_and(|completions| status.succeeded > completions) {
                    let message = "Too many succeeded pods running after completion count reached";
                    record(EventType::Warning, "TooManySucceededPods", message);
                }
                record(EventType::Normal, "Completed", "Job completed");
            } else {
                record(EventType::Warning, track::failure_reason(&end.reason), &end.message);
            }
        }
        Ok(())
    }

    /// Returns true if the write of counts is delayed. The Job is requeued for the end of the delay.
    fn waits(&self, key: &ObjectKey, write_delay: Duration) -> bool {
        let wait = self.debouncer.wait(key, write_delay);
        if let Some(wait) = wait {
            self.queue.add_after(key.clone(), wait);
        }
        wait.is_some()
    }

    /// Writes a status. Returns the Job that results; `Err` contains the result with which the reconcile ends early.
    async fn write(
        &self,
        key: &ObjectKey,
        job: &Job,
        status: &JobStatus,
    ) -> Result<Arc<Job>, Result<Outcome, ReconcileError>> {
        let PodControl { writer, consistency, .. } = &self.control;
        let written = put_status(writer, consistency, &self.jobs, key, &job.status_update(status)).await;
        let decoded = match written {
            Ok(StatusWrite::Written(response)) => response.decode(self.jobs.decoding()).map_err(WriteError::from),
            Ok(StatusWrite::Outdated) => return Err(Ok(Outcome::RequeueWithBackoff)),
            Ok(StatusWrite::Deleted) => return Err(Ok(Outcome::Done)),
            Err(error) => Err(error),
        };
        match decoded {
            Ok(written) => {
                self.tally.counted(job, &job.status, status);
                Ok(Arc::new(written))
            }
            Err(error) => {
                if error.is_lost() {
                    consistency.lost(key);
                }
                Err(Err(error.into()))
            }
        }
    }

    /// Removes the finalizer from pods concurrently, and their uids from `tracked`. Returns the first failure.
    async fn release(
        &self,
        key: &ObjectKey,
        job: &Job,
        pods: &[Arc<Pod>],
        tracked: &mut HashSet<Uid>,
    ) -> Option<WriteError> {
        let released = join_all(pods.iter().map(|pod| patch(&self.control.writer, pod, untracking(pod)))).await;
        let mut failure = None;
        for (pod, released) in pods.iter().zip(released) {
            let uid = &pod.meta.uid;
            match released {
                Ok(Some(version)) => {
                    self.control.consistency.wrote(key, &self.control.pods, version);
                    // For the queue of orphans: the cache may not contain the release of this pod yet.
                    self.control.pods.wrote(&pod.meta.key(), version);
                }
                Ok(None) => {}
                // The pod no longer exists, or another pod has its name.
                Err(error) if error.is_object_deleted() => {
                    self.remember(key, &job.meta.uid, |memory| {
                        memory.settled.insert(uid.clone());
                    });
                }
                Err(error) => {
                    failure.get_or_insert(error);
                    continue;
                }
            }
            tracked.remove(uid);
        }
        failure
    }

    /// Creates and deletes pods as planned. Returns the changes, and the first failure.
    async fn act(
        &self,
        key: &ObjectKey,
        job: &Job,
        plan: &Plan,
        creation: Creation<'_>,
    ) -> (PodChanges, Option<String>) {
        match plan {
            Plan::Nothing | Plan::Wait(_) => (PodChanges::default(), None),
            Plan::End(pods) => self.delete(key, job, pods, false).await,
            Plan::Remove(pods) => {
                if let Err(why) = self.control.check_decodable(&key.namespace)
                    && !job.suspend
                {
                    return (PodChanges::default(), Some(why));
                }
                self.delete(key, job, pods, true).await
            }
            Plan::Create(pods) => self.create(key, job, pods, creation).await,
        }
    }

    /// Deletes pods concurrently. Pods that must not be counted lose their finalizer first.
    async fn delete(
        &self,
        key: &ObjectKey,
        job: &Job,
        pods: &[Arc<Pod>],
        uncounted: bool,
    ) -> (PodChanges, Option<String>) {
        debug!(count = pods.len(), uncounted, "deleting pods");
        let deletions = join_all(pods.iter().map(|pod| self.delete_one(key, job, pod, uncounted))).await;
        let mut pod_changes = PodChanges::default();
        let mut failure = None;
        for (pod, deleted) in pods.iter().zip(deletions) {
            match deleted {
                Ok(()) => {
                    pod_changes.deleted += 1;
                    pod_changes.deleted_ready += i32::from(pod.ready);
                }
                Err(error) => {
                    failure.get_or_insert_with(|| error.to_string());
                }
            }
        }
        (pod_changes, failure)
    }

    async fn delete_one(&self, key: &ObjectKey, job: &Job, pod: &Pod, uncounted: bool) -> Result<(), WriteError> {
        let control = &self.control;
        if uncounted && has_finalizer(pod) {
            match patch(&control.writer, pod, untracking(pod)).await {
                Ok(version) => {
                    if let Some(version) = version {
                        control.consistency.wrote(key, &control.pods, version);
                    }
                }
                Err(error) if error.is_object_deleted() => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        control.delete(key, job, pod).await?;
        if !uncounted {
            // The pod exists until its finalizer is removed, and is counted before that: its deletion need not be
            // awaited.
            control.consistency.not_deleting(key, &pod.meta.uid);
        }
        Ok(())
    }

    /// Creates pods with a slow start, unless nothing is created now ([`Creation::is_postponed`]).
    async fn create(
        &self,
        key: &ObjectKey,
        job: &Job,
        pods: &[NewPod],
        Creation { need, group, attempt, is_postponed }: Creation<'_>,
    ) -> (PodChanges, Option<String>) {
        let Some(template) = job.template.as_ref().filter(|template| !template.labels.is_empty()) else {
            return (PodChanges::default(), Some("unable to create pods, no labels".to_owned()));
        };
        if is_postponed {
            return (PodChanges::default(), None);
        }
        debug!(count = pods.len(), "too few pods; creating");
        let create = |at: usize| async move {
            let created = self.control.create(key, job, &new_pod(job, key, template, pods[at], group)).await;
            self.tally.record_creation(need, &created);
            created
        };
        let (created, error) = slow_start(pods.len(), create).await;
        match &error {
            None => self.refusals.forget(key),
            Some(error) => {
                info!(created, skipped = pods.len() - created, "could not create all pods");
                if let CreateError::Failed(error) = error {
                    self.refusals.failed(key, attempt.after(created), error);
                }
            }
        }
        let created = i32::try_from(created).unwrap_or(i32::MAX);
        let failure = error.and_then(CreateError::into_failure).map(|error| error.to_string());
        (PodChanges { created, ..PodChanges::default() }, failure)
    }

    /// Returns true if the caches contain all writes of this process for a key. If not, the key is requeued once they
    /// do.
    fn is_caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || self.queue.waker(key);
        let consistency = &self.control.consistency;
        consistency.caught_up(key, &self.jobs, wake()) && consistency.caught_up(key, &self.control.pods, wake())
    }

    fn children<'a>(&'a self, job: &'a Job) -> Children<'a, Pod> {
        let control = &self.control;
        Children {
            owner: &job.meta,
            selector: &job.selector,
            store: &control.pods,
            consistency: &control.consistency,
            writer: &control.writer,
        }
    }

    /// Compares the Job and its pods with those on the API server, and requeues the key once the cache is up to date:
    /// the records of this reconcile may be outdated.
    async fn compare(&self, key: &ObjectKey, job: &Job) -> Result<Outcome, ReconcileError> {
        let control = &self.control;
        let fresh = match control.writer.get(&Job::RESOURCE, key).await {
            Err(error) if error.is_not_found() => {
                // The watch will deliver the deletion of the Job, which requeues the key earlier.
                self.queue.add_after(key.clone(), handover::RECHECK_DELAY);
                return Ok(Outcome::WaitingForCache);
            }
            fresh => fresh?.meta().map_err(|error| ReconcileError::new(error.to_string()))?,
        };
        let children = self.children(job);
        let missing = self.handover.compare(&self.jobs, &children).await?;
        control.consistency.wrote(key, &self.jobs, fresh.version);
        // Such a pod lost its finalizer when it was counted, or must not be counted.
        self.remember(key, &job.meta.uid, |memory| {
            memory.settled.extend(missing.iter().map(|pod| pod.meta.uid.clone()));
        });
        self.queue.add_after(key.clone(), self.handover.delay_after_compare(&children, self.is_caught_up(key)));
        Ok(Outcome::WaitingForCache)
    }

    /// Changes the memory of a Job, and returns a copy. The memory is empty if the Job is new or has another UID.
    fn remember(&self, key: &ObjectKey, uid: &Uid, change: impl FnOnce(&mut Memory)) -> Memory {
        let mut memory = self.memory();
        let known = memory.entry(key.clone()).or_default();
        if known.uid != *uid {
            *known = Memory { uid: uid.clone(), ..Memory::default() };
        }
        change(known);
        known.clone()
    }

    fn forget(&self, key: &ObjectKey) {
        self.control.consistency.forget(key);
        self.scheduling.iter().for_each(|scheduling| scheduling.forget(key));
        self.handover.forget(key);
        self.refusals.forget(key);
        self.memory().remove(key);
        self.debouncer.forget(key);
    }

    fn memory(&self) -> MutexGuard<'_, HashMap<ObjectKey, Memory>> {
        lock(&self.memory)
    }
}

/// Returns the delay of a timer: zero if the time is in the past, and [`MAX_TIMER`] at most.
fn timer(left: SignedDuration) -> Duration {
    Duration::try_from(left).unwrap_or_default().min(MAX_TIMER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_of_the_longest_deadline_stays_within_the_clocks_range() {
        let rows = [(-1, 0), (0, 0), (60, 60), (i64::MAX, 24 * 3600)];
        for (left, expected) in rows {
            assert_eq!(timer(SignedDuration::from_secs(left)), Duration::from_secs(expected), "{left}");
        }
        assert!(std::time::Instant::now().checked_add(timer(SignedDuration::MAX)).is_some());
    }
}
