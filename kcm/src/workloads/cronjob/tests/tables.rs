//! Tables of CronJob decisions.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use kinds::schema::{cron_job as f, cron_job_spec as s, cron_job_status as t, job as j, job_status, object_meta as m};
use kinds::wire::Put;
use kinds::{CronJob, Decode, Job, Kind, Sections, Time};

use super::super::decide::{
    MissedRuns, NeverDue, due, job_name, missed_message, rfc3339, schedule, surplus_jobs, until_next,
};
use super::super::keys::reconcile_after;
use super::super::schedule::zone;

fn at(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn decode<K: Kind>(object: &[u8]) -> K {
    K::decode(&Decode { interner: Arc::default(), sections: Sections::default() }, object).expect("well-formed")
}

fn cron_job(text: &str, created: &str, last: Option<&str>, deadline: Option<i64>) -> CronJob {
    let mut object = Vec::new();
    object.put_message(f::METADATA, |meta| {
        meta.put_str(m::NAME, "nightly");
        meta.put_str(m::RESOURCE_VERSION, "1");
        Time(at(created).as_second()).put(meta, m::CREATION_TIMESTAMP);
    });
    object.put_message(f::SPEC, |spec| {
        spec.put_str(s::SCHEDULE, text);
        spec.put_str(s::TIME_ZONE, "UTC");
        if let Some(deadline) = deadline {
            spec.put_int(s::STARTING_DEADLINE_SECONDS, deadline);
        }
    });
    object.put_message(f::STATUS, |status| {
        if let Some(last) = last {
            Time(at(last).as_second()).put(status, t::LAST_SCHEDULE_TIME);
        }
    });
    decode(&object)
}

#[test]
fn last_due_run_is_found_without_enumerating_all_runs() {
    const CREATED: &str = "2024-01-01T00:00:30Z";
    for (text, last, deadline, now, expected, missed) in [
        ("0 * * * *", None, None, "2024-01-01T00:30:00Z", None, MissedRuns::None),
        ("0 * * * *", None, None, "2024-01-01T01:00:00Z", Some("2024-01-01T01:00:00Z"), MissedRuns::None),
        ("0 * * * *", None, None, "2024-01-01T01:30:00Z", Some("2024-01-01T01:00:00Z"), MissedRuns::None),
        ("0 * * * *", None, None, "2024-01-01T04:30:00Z", Some("2024-01-01T04:00:00Z"), MissedRuns::Few),
        ("0 * * * *", Some("2024-01-01T04:00:00Z"), None, "2024-01-01T04:30:00Z", None, MissedRuns::None),
        ("0 * * * *", None, Some(60), "2024-01-01T04:30:00Z", None, MissedRuns::None),
        ("0 * * * *", None, Some(3600), "2024-01-01T04:30:00Z", Some("2024-01-01T04:00:00Z"), MissedRuns::None),
        ("* * * * *", None, None, "2025-01-01T00:00:00Z", Some("2025-01-01T00:00:00Z"), MissedRuns::Many),
        ("30 6-16/4 * * 1-5", None, None, "2024-06-03T12:00:00Z", Some("2024-06-03T10:30:00Z"), MissedRuns::Many),
        // A Sunday. As in upstream, the search begins less than two intervals ago; the interval is that of the first
        // two runs, four hours. Friday's run is older and is not found.
        ("30 6-16/4 * * 1-5", None, None, "2024-06-02T12:00:00Z", None, MissedRuns::Many),
        ("0 0 1 1 *", None, None, "2026-06-01T00:00:00Z", Some("2026-01-01T00:00:00Z"), MissedRuns::Few),
        ("@every 1h", None, None, "2024-01-01T03:10:00Z", Some("2024-01-01T03:00:30Z"), MissedRuns::Few),
    ] {
        let cron_job = cron_job(text, CREATED, last, deadline);
        let found = due(&cron_job, &schedule(&cron_job).expect("a schedule"), at(now), true).expect("is due some day");
        assert_eq!((found.last, found.missed), (expected.map(at), missed), "{text} at {now}");
    }
}

#[test]
fn schedule_that_is_never_due_is_detected() {
    let never = cron_job("0 0 31 2 *", "2024-01-01T00:00:00Z", None, None);
    let read = schedule(&never).expect("a schedule");
    assert_eq!(due(&never, &read, at("2024-06-01T00:00:00Z"), true), Err(NeverDue));
    assert_eq!(until_next(&never, &read, at("2024-06-01T00:00:00Z")), None);
}

#[test]
fn wait_ends_shortly_after_the_next_run() {
    for (last, now, seconds) in [
        (None, "2024-01-01T00:30:00Z", 1800),
        (Some("2024-01-01T03:00:00Z"), "2024-01-01T03:00:01Z", 3599),
        (None, "2024-01-01T05:59:00Z", 60),
    ] {
        let cron_job = cron_job("0 * * * *", "2024-01-01T00:00:30Z", last, None);
        let wait = until_next(&cron_job, &schedule(&cron_job).expect("a schedule"), at(now));
        assert_eq!(wait, Some(Duration::from_millis(seconds * 1000 + 100)), "{last:?} at {now}");
    }
}

#[test]
fn names_and_times_equal_those_of_upstream() {
    let cron_job = cron_job("* * * * *", "2024-01-01T00:00:00Z", None, None);
    assert_eq!(job_name(&cron_job.meta, at("2024-01-01T03:04:00Z")), "nightly-28401304");
    let berlin = zone("Europe/Berlin").expect("a zone");
    assert_eq!(rfc3339(at("2024-07-01T03:04:00Z"), &berlin), "2024-07-01T05:04:00+02:00");
    assert_eq!(rfc3339(at("2024-07-01T03:04:00Z"), &TimeZone::UTC), "2024-07-01T03:04:00Z");
    for name in ["Nowhere", "../etc", "/etc/localtime"] {
        assert!(zone(name).is_none(), "{name}");
    }
}

#[test]
fn oldest_jobs_are_deleted_first_and_unstarted_ones_last() {
    let job = |name: &str, start: i64| {
        let mut object = Vec::new();
        object.put_message(j::METADATA, |meta| {
            meta.put_str(m::NAME, name);
            meta.put_str(m::RESOURCE_VERSION, "1");
        });
        object.put_message(j::STATUS, |status| {
            if start > 0 {
                Time(start).put(status, job_status::START_TIME);
            }
        });
        decode::<Job>(&object)
    };
    let jobs = [job("c", 5), job("d", 0), job("b", 5), job("a", 9)];
    for (limit, expected) in
        [(None, vec![]), (Some(4), vec![]), (Some(2), vec!["b", "c"]), (Some(0), vec!["b", "c", "a", "d"])]
    {
        let deleted: Vec<&str> = surplus_jobs(jobs.iter().collect(), limit).iter().map(|job| &*job.meta.name).collect();
        assert_eq!(deleted, expected, "{limit:?}");
    }
}

#[test]
fn missed_run_is_reported_with_upstreams_time_format() {
    let message = missed_message(at("2006-01-02T15:04:00Z"));
    assert_eq!(message, "Missed scheduled time to start a job: Mon, 02 Jan 2006 15:04:00 +0000");
}

#[test]
fn new_schedule_that_is_never_due_is_reconciled_now() {
    let now = at("2026-01-01T00:00:00Z");
    let wait = |text: &str| {
        let cron_job = cron_job(text, "2025-12-31T00:00:00Z", None, None);
        reconcile_after(&cron_job, &schedule(&cron_job).expect("parseable"), now)
    };
    assert_eq!(wait("0 0 31 2 *"), Duration::ZERO, "the 31st of February");
    assert!(wait("0 1 * * *") >= Duration::from_secs(3600));
}
