//! Maps changes to the keys of the CronJobs that they affect.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::meta::{Meta, ObjectKey};
use kinds::{CronJob, Job, Kind};
use runtime::events::{EventType, about};
use runtime::queue::Queue;
use runtime::store::{Change, Store};

use super::decide::{schedule, until_next};
use super::schedule::Schedule;
use super::sync::CronJobs;

/// Enqueues the CronJobs that changes affect.
pub fn subscribe(
    cron_jobs: &Arc<Store<CronJob>>,
    jobs: &Arc<Store<Job>>,
    queue: &Arc<Queue<ObjectKey>>,
    reconciler: &Arc<CronJobs>,
) {
    let (cron_queue, reconciler) = (queue.clone(), reconciler.clone());
    cron_jobs.subscribe(move |change| {
        let Some(cron_job) = change.new.or(change.old) else { return };
        let key = cron_job.meta.key();
        if !is_rescheduled(change) {
            cron_queue.add(key);
            return;
        }
        match schedule(cron_job) {
            Ok(schedule) => cron_queue.add_after(key, reconcile_after(cron_job, &schedule, (reconciler.clock)())),
            Err(_) => {
                let message = format!("unparseable schedule for cronjob: {}", cron_job.schedule);
                let about = about(&**cron_job);
                reconciler.recorder.event(&about, EventType::Warning, "UnParseableCronJobSchedule", message);
            }
        }
    });
    let queue = queue.clone();
    jobs.subscribe(move |change| owners(change).into_iter().for_each(|key| queue.add(key)));
}

/// Returns the delay after which a CronJob with a new schedule is reconciled: the time until its next run. If the
/// schedule has no next run, the CronJob is reconciled now, which records an event.
pub fn reconcile_after(cron_job: &CronJob, schedule: &Schedule, now: Timestamp) -> Duration {
    until_next(cron_job, schedule, now).unwrap_or(Duration::ZERO)
}

/// Returns true if the schedule or the time zone of a CronJob changed.
pub fn is_rescheduled(change: &Change<'_, CronJob>) -> bool {
    let (Some(old), Some(new)) = (change.old, change.new) else { return false };
    old.meta.uid == new.meta.uid && (&old.schedule, &old.time_zone) != (&new.schedule, &new.time_zone)
}

/// Returns the old and the new owner of a Job.
pub fn owners(change: &Change<'_, Job>) -> Vec<ObjectKey> {
    let mut owners: Vec<ObjectKey> =
        change.old.into_iter().chain(change.new).filter_map(|job| owner(&job.meta)).collect();
    owners.dedup();
    owners
}

fn owner(job: &Meta) -> Option<ObjectKey> {
    let controller = job.controller().filter(|controller| &*controller.kind == CronJob::RESOURCE.kind)?;
    Some(ObjectKey { namespace: job.namespace.clone(), name: controller.name.clone() })
}
