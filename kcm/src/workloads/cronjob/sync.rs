//! One reconcile of a CronJob: history, active list, the run that is due, status.

use std::sync::Arc;

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

use super::decide::{self, Missed};
use super::schedule::{Schedule, zone};
use crate::context::Clock;

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
}

impl Reconcile for CronJobs {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

fn is_active(status: &CronJobStatus, uid: &Uid) -> bool {
    status.active.iter().any(|job| job.uid == *uid)
}

impl CronJobs {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(cron_job) = self.cron_jobs.get(key) else {
            self.consistency.forget(key);
            return Ok(Outcome::Done);
        };
        let wake = || {
            let (queue, key) = (self.queue.clone(), key.clone());
            move || queue.add(key)
        };
        if !self.consistency.caught_up(key, &self.cron_jobs, wake())
            || !self.consistency.caught_up(key, &self.jobs, wake())
        {
            return Ok(Outcome::WaitingForCache);
        }
        let jobs = self.jobs.by_index(&by_controller(), owned_by(&cron_job.meta.uid));
        let mut status = cron_job.status.clone();
        let run = self.run(&cron_job, &jobs, &mut status).await;
        if status != cron_job.status {
            match self.writer.replace(&CronJob::RESOURCE, key, Some("status"), &cron_job.status_update(&status)).await {
                Ok(answer) => {
                    if let Ok(meta) = answer.meta() {
                        self.consistency.wrote(key, &self.cron_jobs, meta.version);
                    }
                }
                // The status was computed from what is no longer true: the change that is on its way leads to another.
                Err(error) if error.is_conflict() => return Ok(Outcome::RequeueWithBackoff),
                Err(error) if error.is_not_found() => return Ok(Outcome::Done),
                Err(error) => return Err(error.into()),
            }
        }
        // Only now that the status knows what they were: whoever comes after a crash could not learn it any more.
        let there = jobs.iter().map(|job| &**job).filter(|job| !job.meta.is_deleting());
        for job in decide::history(&cron_job, there) {
            // A failure is told of, and tried again with the next change.
            self.delete(&cron_job, &job.meta, &mut status).await;
        }
        run
    }

    /// Brings the active list up to date and starts what is due (pkg/controller/cronjob, syncCronJob).
    async fn run(
        &self,
        cron_job: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> Result<Outcome, ReconcileError> {
        let now = (self.clock)();
        self.follow(cron_job, jobs, status).await?;
        self.find_missing(cron_job, jobs, status).await?;
        if cron_job.meta.is_deleting() {
            return Ok(Outcome::Done);
        }
        if let Some(name) = cron_job.time_zone.as_deref().filter(|name| zone(name).is_none()) {
            self.warn(cron_job, "UnknownTimeZone", format!("invalid timeZone: {name:?}: unknown time zone {name}"));
            return Ok(Outcome::Done);
        }
        if cron_job.suspend {
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
        let Some(scheduled) = due.last else { return Ok(self.later(cron_job, status, &schedule, now)) };
        if due.missed == Missed::Many {
            let message =
                "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.warn(cron_job, "TooManyMissedTimes", message.to_owned());
        }
        let name = decide::job_name(&cron_job.meta, scheduled);
        if let Some(job) = jobs.iter().find(|job| *job.meta.name == *name) {
            // Made before, and the status never told of it.
            if job.status.finished().is_none() && !is_active(status, &job.meta.uid) {
                status.active.push(ActiveJob::of(&job.meta));
            }
            status.last_schedule = Time(scheduled.as_second());
        } else if self.may_start(cron_job, status, scheduled, now) {
            if cron_job.concurrency == Concurrency::Replace {
                self.replace(cron_job, status).await?;
            }
            if !self.create(cron_job, status, scheduled).await? {
                return Ok(Outcome::Done);
            }
        }
        Ok(self.later(cron_job, status, &schedule, now))
    }

    fn later(&self, cron_job: &CronJob, status: &CronJobStatus, schedule: &Schedule, now: Timestamp) -> Outcome {
        decide::until_next(&with_status(cron_job, status), schedule, now).map_or(Outcome::Done, Outcome::RequeueAfter)
    }

    /// Takes ended Jobs from the active list, and learns of the last success.
    async fn follow(
        &self,
        cron_job: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> Result<(), ReconcileError> {
        for job in jobs {
            let listed = is_active(status, &job.meta.uid);
            match job.status.finished() {
                None if !listed => {
                    let fresh = self.writer.get(&CronJob::RESOURCE, &cron_job.meta.key()).await?;
                    let fresh = fresh.decode::<CronJob>(self.cron_jobs.decoding());
                    let fresh = fresh.map_err(|error| ReconcileError::new(error.to_string()))?;
                    if !is_active(&fresh.status, &job.meta.uid) {
                        let name = &job.meta.name;
                        let message = format!("Saw a job that the controller did not create or forgot: {name}");
                        self.warn(cron_job, "UnexpectedJob", message);
                    }
                }
                None => {}
                Some(end) => {
                    if listed {
                        status.active.retain(|active| active.uid != job.meta.uid);
                        let message = format!("Saw completed job: {}, condition: {}", job.meta.name, end.kind);
                        self.recorder.event(&about(cron_job), EventType::Normal, "SawCompletedJob", message);
                    }
                    if job.status.is_true("Complete").is_some() {
                        status.last_successful = status.last_successful.max(job.status.completion);
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes Jobs from the active list that the server itself does not know.
    async fn find_missing(
        &self,
        cron_job: &CronJob,
        jobs: &[Arc<Job>],
        status: &mut CronJobStatus,
    ) -> Result<(), ReconcileError> {
        for active in status.active.clone() {
            if jobs.iter().any(|job| job.meta.uid == active.uid) {
                continue;
            }
            let key = ObjectKey { namespace: active.namespace.clone(), name: active.name.clone() };
            match self.writer.get(&Job::RESOURCE, &key).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {
                    let message = format!("Active job went missing: {}", active.name);
                    self.recorder.event(&about(cron_job), EventType::Normal, "MissingJob", message);
                    status.active.retain(|known| known.uid != active.uid);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// False when a run is too late, was made already, or must not overlap with another.
    fn may_start(&self, cron_job: &CronJob, status: &CronJobStatus, scheduled: Timestamp, now: Timestamp) -> bool {
        let late = now.duration_since(scheduled);
        if cron_job.starting_deadline.is_some_and(|deadline| late > jiff::SignedDuration::from_secs(deadline)) {
            let at = scheduled.strftime("%a, %d %b %Y %H:%M:%S UTC");
            self.warn(cron_job, "MissSchedule", format!("Missed scheduled time to start a job: {at}"));
            return false;
        }
        let name = decide::job_name(&cron_job.meta, scheduled);
        if status.active.iter().any(|job| *job.name == *name) || status.last_schedule == Time(scheduled.as_second()) {
            debug!(name, "this run was made already");
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
    async fn replace(&self, cron_job: &CronJob, status: &mut CronJobStatus) -> Result<(), ReconcileError> {
        for active in status.active.clone() {
            let key = ObjectKey { namespace: active.namespace, name: active.name };
            let job = self.writer.get(&Job::RESOURCE, &key).await.and_then(|answer| Ok(answer.meta()?));
            let job = job.inspect_err(|error| self.warn(cron_job, "FailedGet", format!("Get job: {error}")))?;
            if !self.delete(cron_job, &job, status).await {
                return Err(ReconcileError::new(format!("could not replace job {key}")));
            }
        }
        Ok(())
    }

    /// Deletes a Job, its pods after it, and its entry in the active list; answers whether.
    async fn delete(&self, cron_job: &CronJob, job: &Meta, status: &mut CronJobStatus) -> bool {
        let deletion = Deletion { uid: &job.uid, version: None, propagation: Propagation::Background };
        if let Err(error) = self.writer.delete_object(&Job::RESOURCE, &job.key(), deletion).await {
            self.warn(cron_job, "FailedDelete", format!("Deleted job: {error}"));
            return false;
        }
        status.active.retain(|active| active.uid != job.uid);
        let message = format!("Deleted job {}", job.name);
        self.recorder.event(&about(cron_job), EventType::Normal, "SuccessfulDelete", message);
        true
    }

    /// Makes the Job of a run and lists it; answers false when it is not ours to list. A Job of that name that is ours
    /// was made before, and the status never told of it.
    async fn create(
        &self,
        cron_job: &CronJob,
        status: &mut CronJobStatus,
        scheduled: Timestamp,
    ) -> Result<bool, ReconcileError> {
        let name = decide::job_name(&cron_job.meta, scheduled);
        let zone = zone(cron_job.time_zone.as_deref().unwrap_or_default()).unwrap_or(jiff::tz::TimeZone::UTC);
        let body = cron_job.job(&name, &decide::rfc3339(scheduled, &zone), &cron_job.controller_ref());
        let created = self.writer.create(&Job::RESOURCE, &cron_job.meta.namespace, &body, false).await;
        let job = match created.and_then(|answer| Ok(answer.meta()?)) {
            Ok(job) => {
                let message = format!("Created job {}", job.name);
                self.recorder.event(&about(cron_job), EventType::Normal, "SuccessfulCreate", message);
                self.skew.observe((job.created.0 - scheduled.as_second()) as f64);
                job
            }
            Err(error) if error.is_already_exists() => {
                let key = ObjectKey::new(cron_job.meta.namespace.clone(), name);
                let job = self.writer.get(&Job::RESOURCE, &key).await.and_then(|answer| Ok(answer.meta()?))?;
                if !job.is_controlled_by(&cron_job.meta.uid) || is_active(status, &job.uid) {
                    return Ok(false);
                }
                job
            }
            Err(error) => {
                if !error.is_namespace_terminating() {
                    self.warn(cron_job, "FailedCreate", format!("Error creating job: {error}"));
                }
                return Err(WriteError::into(error));
            }
        };
        self.consistency.wrote(&cron_job.meta.key(), &self.jobs, job.version);
        status.active.push(ActiveJob::of(&job));
        status.last_schedule = Time(scheduled.as_second());
        Ok(true)
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
