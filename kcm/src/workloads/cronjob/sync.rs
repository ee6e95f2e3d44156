//! One reconcile of a CronJob: update the active list, start the run that is due, write the status, delete old Jobs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kinds::cronjob::{ActiveJob, Concurrency, CronJobStatus};
use kinds::meta::{Meta, ObjectKey};
use kinds::{CronJob, Job, Kind, Time, Uid};
use runtime::consistency::Consistency;
use runtime::events::{EventType, Recorder, about};
use runtime::metrics::Seconds;
use runtime::queue::Queue;
use runtime::store::{Store, by_controller, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{Deletion, Propagation, WriteError, Writer};
use tracing::debug;

use super::decide::{self, MissedRuns};
use super::schedule::{Schedule, zone};
use crate::context::Clock;
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::{Attempt, Refusals};
use crate::pods::status_write::{StatusWrite, put_status};

/// The controller's state.
pub struct CronJobs {
    pub cron_jobs: Arc<Store<CronJob>>,
    pub jobs: Arc<Store<Job>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Arc<Consistency>,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    pub skew: Seconds,
    pub gate: CreationGate,
    pub refusals: Refusals,
}

/// The result of an attempt to start the run that is due.
enum RunStart {
    /// The run was started, or must not start: the CronJob is requeued for its next run.
    Done,
    /// The namespace is being deleted: the CronJob is not requeued.
    NamespaceTerminating,
    /// The same attempt was refused, and its backoff has not ended: the next attempt is due after this delay.
    Refused(Duration),
}

impl Reconcile for CronJobs {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

/// Returns the uids of the active list as a set, in which many Jobs can be looked up.
fn active_uids(status: &CronJobStatus) -> HashSet<Uid> {
    status.active.iter().map(|job| job.uid.clone()).collect()
}

fn is_active(status: &CronJobStatus, uid: &Uid) -> bool {
    status.active.iter().any(|job| job.uid == *uid)
}

fn list_as_active(status: &mut CronJobStatus, job: &Meta, scheduled: Timestamp) {
    status.active.push(ActiveJob::of(job));
    status.last_schedule = Time(scheduled.as_second());
}

impl CronJobs {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.is_caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(cron_job) = self.cron_jobs.get(key) else {
            self.consistency.forget(key);
            self.refusals.forget(key);
            return Ok(Outcome::Done);
        };
        let jobs = self.jobs.by_index(&by_controller(), owned_by(&cron_job.meta.namespace, &cron_job.meta.uid));
        if !self.is_list_current(key, &cron_job, &jobs).await? {
            // The active list may lack a Job: then a second Job could run in parallel.
            let is_caught_up = self.is_caught_up(key);
            // With backoff: after the server's storage was restored, the cache seems to be caught up until the watch
            // has listed all CronJobs again.
            return Ok(if is_caught_up { Outcome::RequeueWithBackoff } else { Outcome::WaitingForCache });
        }
        let mut status = cron_job.status.clone();
        let run = self.run(&cron_job, &jobs, &mut status).await;
        if status != cron_job.status {
            let body = cron_job.status_update(&status);
            match put_status(&self.writer, &self.consistency, &self.cron_jobs, key, &body).await? {
                StatusWrite::Written(_) => {}
                StatusWrite::Outdated => return Ok(Outcome::RequeueWithBackoff),
                StatusWrite::Deleted => return Ok(Outcome::Done),
            }
        }
        // Jobs are deleted after the status write. Otherwise, if this process ended between the deletion and the write,
        // the next leader could not record their results. A Job that the write has added to the active list is kept:
        // the next reconcile records that it has finished.
        let listed = active_uids(&status);
        let existing = jobs.iter().map(|job| &**job);
        let existing = existing.filter(|job| !job.meta.is_deleting() && !listed.contains(&job.meta.uid));
        for job in decide::history(&cron_job, existing) {
            // A failure is recorded as an event; the next reconcile repeats the deletion.
            self.delete(&cron_job, &job.meta, &mut status).await;
        }
        run
    }

    /// Returns true if the caches contain all writes of this process for a key. If not, the key is requeued once they
    /// do.
    fn is_caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || self.queue.waker(key);
        self.consistency.caught_up(key, &self.cron_jobs, wake()) && self.consistency.caught_up(key, &self.jobs, wake())
    }

    /// Reads the CronJob from the API server if a running Job is missing in its active list. Returns false if the list
    /// on the API server has the Job: then the key waits until the cache contains that version. Otherwise records an
    /// event.
    async fn is_list_current(
        &self,
        key: &ObjectKey,
        cron_job: &CronJob,
        jobs: &[Arc<Job>],
    ) -> Result<bool, ReconcileError> {
        let listed = active_uids(&cron_job.status);
        let is_unlisted = |job: &&Arc<Job>| job.status.finished().is_none() && !listed.contains(&job.meta.uid);
        let unlisted: Vec<_> = jobs.iter().filter(is_unlisted).collect();
        if unlisted.is_empty() {
            return Ok(true);
        }
        let fresh = self.writer.get(&CronJob::RESOURCE, key).await?;
        let fresh = fresh.decode::<CronJob>(self.cron_jobs.decoding());
        let fresh = fresh.map_err(|error| ReconcileError::new(error.to_string()))?;
        let listed = active_uids(&fresh.status);
        if unlisted.iter().any(|job| listed.contains(&job.meta.uid)) {
            self.consistency.wrote(key, &self.cron_jobs, fresh.meta.version);
            return Ok(false);
        }
        for job in unlisted {
            let message = format!("Saw a job that the controller did not create or forgot: {}", job.meta.name);
            self.warn(cron_job, "UnexpectedJob", message);
        }
        Ok(true)
    }

    /// Updates the active list and starts the run that is due. Upstream: pkg/controller/cronjob, syncCronJob.
    async fn run(
        &self,
        cron_job: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> Result<Outcome, ReconcileError> {
        let now = (self.clock)();
        self.remove_finished(cron_job, jobs, status);
        self.remove_missing(cron_job, jobs, status).await?;
        if cron_job.meta.is_deleting() {
            return Ok(Outcome::Done);
        }
        if let Some(name) = cron_job.time_zone.as_deref().filter(|name| zone(name).is_none()) {
            self.warn(cron_job, "UnknownTimeZone", format!("invalid timeZone: {name:?}: unknown time zone {name}"));
            return Ok(Outcome::Done);
        }
        if cron_job.suspend {
            self.refusals.forget(&cron_job.meta.key());
            return Ok(Outcome::Done);
        }
        if decide::names_zone(cron_job) {
            let message = format!(
                "CRON_TZ or TZ used in schedule {:?} is not officially supported, see \
                 https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details",
                cron_job.schedule
            );
            self.warn(cron_job, "UnsupportedSchedule", message);
        }
        let schedule = match decide::schedule(cron_job) {
            Ok(schedule) => schedule,
            Err(error) => {
                let message = format!("unparseable schedule: {:?} : {error}", cron_job.schedule);
                self.warn(cron_job, "UnparseableSchedule", message);
                return Ok(Outcome::Done);
            }
        };
        let due = match decide::due(&with_status(cron_job, status), &schedule, now, true) {
            Ok(due) => due,
            Err(error) => {
                let message = format!("invalid schedule: {} : {error}", cron_job.schedule);
                self.warn(cron_job, "InvalidSchedule", message);
                return Ok(Outcome::Done);
            }
        };
        let Some(scheduled) = due.last else { return Ok(self.requeue_for_next_run(cron_job, status, &schedule, now)) };
        if due.missed == MissedRuns::Many {
            let message =
                "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.warn(cron_job, "TooManyMissedTimes", message.to_owned());
        }
        Ok(match self.start_run(cron_job, jobs, status, scheduled, now).await? {
            RunStart::Done => self.requeue_for_next_run(cron_job, status, &schedule, now),
            RunStart::NamespaceTerminating => Outcome::Done,
            RunStart::Refused(left) => Outcome::RequeueAfter(left),
        })
    }

    /// Creates the Job of a run that is due, unless the run must not start or the same attempt was refused and its
    /// backoff has not ended. If the Job exists already, but is missing in the status, it is added to the active list,
    /// even if it has finished: an earlier process ended after it had created the Job and before it wrote the status.
    /// The next reconcile records that the Job has finished.
    async fn start_run(
        &self,
        cron_job: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
        scheduled: Timestamp,
        now: Timestamp,
    ) -> Result<RunStart, ReconcileError> {
        if !self.may_start(cron_job, status, scheduled, now) {
            return Ok(RunStart::Done);
        }
        let name = decide::job_name(&cron_job.meta, scheduled);
        let existing = jobs.iter().find(|job| *job.meta.name == *name);
        let attempt = Attempt::new(&cron_job.meta, 1, jobs.len());
        if existing.is_none() {
            if !self.gate.is_open(&cron_job.meta.namespace) {
                debug!("not creating the Job: the namespace is being deleted");
                return Ok(RunStart::NamespaceTerminating);
            }
            if let Some(waiting) = self.refusals.waiting(&cron_job.meta.key(), &attempt) {
                debug!(
                    reason = waiting.message, left = ?waiting.left,
                    "not creating the Job yet: the last attempt was refused"
                );
                return Ok(RunStart::Refused(waiting.left));
            }
        }
        if cron_job.concurrency == Concurrency::Replace {
            self.delete_active(cron_job, status).await?;
        }
        match existing {
            Some(job) => list_as_active(status, &job.meta, scheduled),
            None => self.create(cron_job, status, scheduled, attempt).await?,
        }
        Ok(RunStart::Done)
    }

    fn requeue_for_next_run(
        &self,
        cron_job: &CronJob,
        status: &CronJobStatus,
        schedule: &Schedule,
        now: Timestamp,
    ) -> Outcome {
        // Refusals belong to one run: the creation of the next Job is not delayed by them.
        self.refusals.forget(&cron_job.meta.key());
        decide::until_next(&with_status(cron_job, status), schedule, now).map_or(Outcome::Done, Outcome::RequeueAfter)
    }

    /// Removes finished Jobs from the active list, and records the last success.
    fn remove_finished(&self, cron_job: &CronJob, jobs: &[Arc<Job>], status: &mut CronJobStatus) {
        let listed = active_uids(status);
        let mut finished = HashSet::new();
        for job in jobs {
            let Some(end) = job.status.finished() else { continue };
            if listed.contains(&job.meta.uid) && finished.insert(job.meta.uid.clone()) {
                let message = format!("Saw completed job: {}, condition: {}", job.meta.name, end.kind);
                self.recorder.event(&about(cron_job), EventType::Normal, "SawCompletedJob", message);
            }
            if job.status.true_condition("Complete").is_some() {
                status.last_successful = status.last_successful.max(job.status.completion);
            }
        }
        status.active.retain(|active| !finished.contains(&active.uid));
    }

    /// Removes Jobs from the active list that do not exist in the CronJob's namespace. An entry that refers to another
    /// namespace is removed, too: otherwise a user who may write the status could have this controller delete any Job.
    async fn remove_missing(
        &self,
        cron_job: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> Result<(), ReconcileError> {
        let cached: HashSet<&Uid> = jobs.iter().map(|job| &job.meta.uid).collect();
        for active in status.active.clone() {
            if cached.contains(&active.uid) {
                continue;
            }
            let key = ObjectKey { namespace: cron_job.meta.namespace.clone(), name: active.name.clone() };
            match self.writer.get(&Job::RESOURCE, &key).await.and_then(|response| Ok(response.meta()?)) {
                Ok(job) if job.uid == active.uid => {}
                Err(error) if !error.is_not_found() => return Err(error.into()),
                // The Job no longer exists, or another one has its name.
                Ok(_) | Err(_) => {
                    let message = format!("Active job went missing: {}", active.name);
                    self.recorder.event(&about(cron_job), EventType::Normal, "MissingJob", message);
                    status.active.retain(|known| known.uid != active.uid);
                }
            }
        }
        Ok(())
    }

    /// Returns false if a run is too late, was started already, or must not overlap with another.
    fn may_start(&self, cron_job: &CronJob, status: &CronJobStatus, scheduled: Timestamp, now: Timestamp) -> bool {
        let late = now.duration_since(scheduled);
        if cron_job.starting_deadline.is_some_and(|deadline| late > jiff::SignedDuration::from_secs(deadline)) {
            self.warn(cron_job, "MissSchedule", decide::missed_message(scheduled));
            return false;
        }
        let name = decide::job_name(&cron_job.meta, scheduled);
        if status.active.iter().any(|job| *job.name == *name) || status.last_schedule == Time(scheduled.as_second()) {
            debug!(name, "run was started already");
            return false;
        }
        if cron_job.concurrency == Concurrency::Forbid && !status.active.is_empty() {
            let message = "Not starting job because prior execution is running and concurrency policy is Forbid";
            self.recorder.event(&about(cron_job), EventType::Normal, "JobAlreadyActive", message.to_owned());
            return false;
        }
        true
    }

    /// Deletes all Jobs of the active list.
    async fn delete_active(&self, cron_job: &CronJob, status: &mut CronJobStatus) -> Result<(), ReconcileError> {
        for active in status.active.clone() {
            let key = ObjectKey { namespace: cron_job.meta.namespace.clone(), name: active.name };
            let job = self.writer.get(&Job::RESOURCE, &key).await.and_then(|response| Ok(response.meta()?));
            let job = job.inspect_err(|error| self.warn(cron_job, "FailedGet", format!("Get job: {error}")))?;
            if job.uid != active.uid {
                // The run's Job was deleted, and another Job has its name.
                status.active.retain(|known| known.uid != active.uid);
                continue;
            }
            if !self.delete(cron_job, &job, status).await {
                return Err(ReconcileError::new(format!("could not replace job {key}")));
            }
        }
        Ok(())
    }

    /// Deletes a Job with its pods, and its entry in the active list. Returns true if it was deleted.
    async fn delete(&self, cron_job: &CronJob, job: &Meta, status: &mut CronJobStatus) -> bool {
        let deletion = Deletion { uid: &job.uid, version: None, propagation: Propagation::Background };
        match self.writer.delete_object(&Job::RESOURCE, &job.key(), deletion).await {
            Ok(_) => {}
            // The Job is already deleted, but the cache still contains it.
            Err(error) if error.is_object_deleted() => {
                status.active.retain(|active| active.uid != job.uid);
                return true;
            }
            Err(error) => {
                self.warn(cron_job, "FailedDelete", format!("Deleted job: {error}"));
                return false;
            }
        }
        status.active.retain(|active| active.uid != job.uid);
        let message = format!("Deleted job {}", job.name);
        self.recorder.event(&about(cron_job), EventType::Normal, "SuccessfulDelete", message);
        true
    }

    /// Creates the Job of a run and adds it to the active list. If the CronJob already owns a Job with that name that
    /// is missing in the list, adds that Job.
    async fn create(
        &self,
        cron_job: &CronJob,
        status: &mut CronJobStatus,
        scheduled: Timestamp,
        attempt: Attempt,
    ) -> Result<(), ReconcileError> {
        let name = decide::job_name(&cron_job.meta, scheduled);
        let zone = zone(cron_job.time_zone.as_deref().unwrap_or_default()).unwrap_or(jiff::tz::TimeZone::UTC);
        let body = cron_job.job(&name, &decide::rfc3339(scheduled, &zone), &cron_job.controller_ref());
        let created = self.writer.create(&Job::RESOURCE, &cron_job.meta.namespace, &body, false).await;
        let job = match created.and_then(|response| Ok(response.meta()?)) {
            Ok(job) => {
                let message = format!("Created job {}", job.name);
                self.recorder.event(&about(cron_job), EventType::Normal, "SuccessfulCreate", message);
                self.skew.observe((job.created.0 - scheduled.as_second()) as f64);
                self.refusals.forget(&cron_job.meta.key());
                job
            }
            Err(error) if error.is_already_exists() => {
                let key = ObjectKey::new(cron_job.meta.namespace.clone(), name);
                let job = self.writer.get(&Job::RESOURCE, &key).await.and_then(|response| Ok(response.meta()?))?;
                if !job.is_controlled_by(&cron_job.meta.uid) {
                    // Differs from upstream, which records no event, and starts no later run until the CronJob or one
                    // of its Jobs changes.
                    let message = format!("Error creating job: {key} exists and is not controlled by the CronJob");
                    self.warn(cron_job, "FailedCreate", message);
                    return Ok(());
                }
                if is_active(status, &job.uid) {
                    return Ok(());
                }
                job
            }
            Err(error) => {
                if error.is_namespace_terminating() {
                    self.gate.close(&cron_job.meta.namespace);
                } else {
                    self.warn(cron_job, "FailedCreate", format!("Error creating job: {error}"));
                    self.refusals.failed(&cron_job.meta.key(), attempt, &error);
                }
                return Err(WriteError::into(error));
            }
        };
        self.consistency.wrote(&cron_job.meta.key(), &self.jobs, job.version);
        list_as_active(status, &job, scheduled);
        Ok(())
    }

    fn warn(&self, cron_job: &CronJob, reason: &'static str, message: String) {
        self.recorder.event(&about(cron_job), EventType::Warning, reason, message);
    }
}

fn with_status(cron_job: &CronJob, status: &CronJobStatus) -> CronJob {
    let mut cron_job = cron_job.clone();
    cron_job.status = status.clone();
    cron_job
}
