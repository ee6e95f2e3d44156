//! Policy: the due run of a CronJob, the missed runs, and the finished Jobs to delete.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use kinds::meta::Meta;
use kinds::{CronJob, Job, Time};

use super::schedule::{Schedule, ScheduleError, zone};

/// Addition to each wait for a run, because clocks differ. Upstream: pkg/controller/cronjob, nextScheduleDelta.
const MARGIN: SignedDuration = SignedDuration::from_millis(100);

/// Number of due runs above which the user gets a warning.
const MAX_FEW_RUNS: i64 = 100;

/// The approximate number of runs that were due since [`ScheduleState::since`]. If several were due, all except the
/// last are missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissedRuns {
    /// None or one is due.
    None,
    /// Two to a hundred are due.
    Few,
    /// More than a hundred are due.
    Many,
}

/// The schedule has no further run, or two of its runs are less than a second apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("time difference between two schedules is less than 1 second")]
pub struct NeverDue;

/// The state of a schedule at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleState {
    /// The time from which runs were counted.
    pub since: Timestamp,
    /// The last run that was due, if one was.
    pub last: Option<Timestamp>,
    /// The number of runs that were due after `since`.
    pub missed: MissedRuns,
}

/// Parses a CronJob's schedule in its time zone, or in this process's if it has none or an unknown one. A schedule that
/// contains a time zone is used unchanged. Upstream: pkg/controller/cronjob, formatSchedule.
pub fn schedule(cron_job: &CronJob) -> Result<Schedule, ScheduleError> {
    let named = cron_job.time_zone.as_deref().filter(|_| !names_zone(cron_job)).and_then(zone);
    Schedule::parse(&cron_job.schedule, named.unwrap_or_else(TimeZone::system))
}

/// Returns true if the schedule itself contains a time zone, which the API no longer accepts.
pub fn names_zone(cron_job: &CronJob) -> bool {
    cron_job.schedule.contains("TZ")
}

fn timestamp(time: Time) -> Timestamp {
    Timestamp::from_second(time.0).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// Returns the last run that was due. If several runs were due, they are not all enumerated: the first two runs give
/// the interval, and the search begins one to two intervals before `now`. Without `with_deadline`, the deadline for a
/// late start is ignored. Upstream: pkg/controller/cronjob, mostRecentScheduleTime.
pub fn due(
    cron_job: &CronJob,
    schedule: &Schedule,
    now: Timestamp,
    with_deadline: bool,
) -> Result<ScheduleState, NeverDue> {
    let known = cron_job.status.last_schedule;
    let mut since = timestamp(if known.is_zero() { cron_job.meta.created } else { known });
    if let Some(deadline) = cron_job.starting_deadline.filter(|_| with_deadline) {
        since = since.max(now.checked_sub(SignedDuration::from_secs(deadline)).unwrap_or(since));
    }
    let first = schedule.next(since).ok_or(NeverDue)?;
    if now < first {
        return Ok(ScheduleState { since, last: None, missed: MissedRuns::None });
    }
    let second = schedule.next(first).ok_or(NeverDue)?;
    if now < second {
        return Ok(ScheduleState { since, last: Some(first), missed: MissedRuns::None });
    }
    let distance = second.duration_since(first).as_secs();
    if distance < 1 {
        return Err(NeverDue);
    }
    let missed = now.duration_since(first).as_secs() / distance + 1;
    let mut last = None;
    let mut next =
        first.checked_add(SignedDuration::from_secs((missed - 2) * distance)).ok().and_then(|at| schedule.next(at));
    while let Some(at) = next.filter(|at| *at <= now) {
        last = Some(at);
        next = schedule.next(at);
    }
    Ok(ScheduleState { since, last, missed: if missed > MAX_FEW_RUNS { MissedRuns::Many } else { MissedRuns::Few } })
}

/// Returns the time until the next run; `None` if there is none. Upstream: pkg/controller/cronjob,
/// nextScheduleTimeDuration.
pub fn until_next(cron_job: &CronJob, schedule: &Schedule, now: Timestamp) -> Option<Duration> {
    let from = match due(cron_job, schedule, now, false) {
        Ok(ScheduleState { last: Some(last), .. }) => last,
        Ok(ScheduleState { since, missed: MissedRuns::None, .. }) => since,
        Ok(_) | Err(NeverDue) => now,
    };
    let wait = schedule.next(from)?.duration_since(now) + MARGIN;
    Some(Duration::try_from(wait).unwrap_or_default())
}

/// Returns the name of the Job of a run. It is the same for every leader, so that no run is started twice.
pub fn job_name(cron_job: &Meta, scheduled: Timestamp) -> String {
    format!("{}-{}", cron_job.name, scheduled.as_second() / 60)
}

/// Returns a time in a zone as RFC 3339 with whole seconds; an offset of zero is `Z`.
pub fn rfc3339(at: Timestamp, zone: &TimeZone) -> String {
    let zoned = at.to_zoned(zone.clone());
    if zoned.offset().seconds() == 0 {
        zoned.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    } else {
        zoned.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    }
}

/// Returns the message of the event `MissSchedule`, with the time in the format of Go's RFC1123Z.
pub fn missed_message(scheduled: Timestamp) -> String {
    format!("Missed scheduled time to start a job: {}", scheduled.strftime("%a, %d %b %Y %H:%M:%S +0000"))
}

/// Returns the Jobs to delete so that `limit` of these finished Jobs remain. Jobs that started first are deleted first,
/// in the order of their names if they started together. Upstream: pkg/controller/cronjob, removeOldestJobs.
pub fn surplus_jobs(mut ended: Vec<&Job>, limit: Option<i32>) -> Vec<&Job> {
    let Some(limit) = limit else { return Vec::new() };
    let surplus = ended.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
    // A Job that has not started counts as the newest.
    let age = |job: &Job| (job.status.start.is_zero(), job.status.start);
    ended.sort_by(|a, b| age(a).cmp(&age(b)).then_with(|| a.meta.name.cmp(&b.meta.name)));
    ended.truncate(surplus);
    ended
}

/// Returns the finished Jobs that are to be deleted.
pub fn history<'a>(cron_job: &CronJob, jobs: impl Iterator<Item = &'a Job> + Clone) -> Vec<&'a Job> {
    let ended = |how: &'static str| {
        jobs.clone().filter(move |job| job.status.finished().is_some_and(|end| &*end.kind == how)).collect()
    };
    let mut surplus = surplus_jobs(ended("Complete"), cron_job.successful_limit);
    surplus.extend(surplus_jobs(ended("Failed"), cron_job.failed_limit));
    surplus
}
