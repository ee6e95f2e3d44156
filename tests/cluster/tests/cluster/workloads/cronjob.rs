//! Observable behaviour of CronJobs, and of Jobs' time to live.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{names, owner, with};
use cluster_tests::{Bed, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use control_plane::Options;
use control_plane::behaviour::{BEHAVIOUR, READY};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::robustness::scenario::Scenario;
use crate::workloads::job::{COMPLETE, job, until};

/// Time for which a CronJob changes while its Job is refused.
const OBSERVED: Duration = Duration::from_secs(8);

/// Returns a CronJob that runs once a year, whose Jobs succeed unless annotations say otherwise.
fn cron_job(name: &str, annotations: &Value, spec: Value) -> Value {
    let template = job(name, annotations, json!({}));
    let mut cron_job = json!({
        "metadata": {"name": name},
        "spec": {
            "schedule": "0 0 1 1 *", "timeZone": "Europe/Berlin",
            "jobTemplate": {"metadata": {"labels": {"app": name}}, "spec": template["spec"]},
        },
    });
    cron_job["spec"].as_object_mut().expect("an object").extend(spec.as_object().expect("an object").clone());
    cron_job
}

/// Creates a CronJob that was last reconciled in the past, so that a run is due immediately; the manager must not run
/// yet.
async fn overdue(space: &Space, name: &str, annotations: &Value, spec: Value) -> Result<()> {
    space.create::<CronJob>(cron_job(name, annotations, spec)).await?;
    let last = json!({"status": {"lastScheduleTime": "2020-06-01T00:00:00Z"}});
    space.patch_status::<CronJob>(name, last).await?;
    Ok(())
}

/// Creates a CronJob with one due run while managers run: it is suspended until its last schedule time is set.
pub async fn due_once(space: &Space, name: &str, annotations: &Value, spec: Value) -> Result<()> {
    overdue(space, name, annotations, with(spec, json!({"suspend": true}))).await?;
    space.patch::<CronJob>(name, json!({"spec": {"suspend": false}})).await?;
    Ok(())
}

pub async fn jobs(space: &Space, name: &str) -> Result<Vec<Job>> {
    let mut jobs = space.list::<Job>(name).await?;
    jobs.retain(|job| job.metadata.deletion_timestamp.is_none());
    Ok(jobs)
}

pub async fn due_run_is_created_once(space: Space) -> Result<()> {
    overdue(&space, "yearly", &json!({}), json!({})).await?;
    let manager = Manager::start(&space, &Faults::default()).await?;
    let made = eventually("the last missed run is created, and has succeeded", || async {
        let (jobs, cron_job) = (jobs(&space, "yearly").await?, space.get::<CronJob>("yearly").await?);
        ensure!(jobs.len() == 1, "{:?}", names(&jobs));
        let status = cron_job.status.context("no status")?;
        ensure!(status.active.is_none_or(|active| active.is_empty()) && status.last_successful_time.is_some());
        Ok(jobs[0].clone())
    })
    .await?;
    let annotation = made.annotations().get("batch.kubernetes.io/cronjob-scheduled-timestamp").context("no time")?;
    ensure!(annotation.ends_with("-01-01T00:00:00+01:00"), "{annotation}");
    let minutes: i64 = made.name_any().strip_prefix("yearly-").context("another name")?.parse()?;
    let last = space.get::<CronJob>("yearly").await?.status.and_then(|status| status.last_schedule_time);
    ensure!(last.context("no last time")?.0.as_second() == minutes * 60);
    ensure!(owner(&made) == "yearly");
    manager.crash().await;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    during(QUIET, "the Job is not created again", || async {
        ensure!(jobs(&space, "yearly").await?.len() == 1);
        Ok(())
    })
    .await
}

/// An hourly CronJob was not reconciled for a year: one run is created, and an event reports thousands of missed ones.
pub async fn year_of_missed_runs_leads_to_one_run(space: Space) -> Result<()> {
    let now = Timestamp::now();
    // No run is due during this test.
    let minute = (now.as_second() / 60 + 30).rem_euclid(60);
    let spec = json!({"schedule": format!("{minute} * * * *"), "timeZone": "Etc/UTC"});
    space.create::<CronJob>(cron_job("hourly", &json!({BEHAVIOUR: READY}), spec)).await?;
    let last = now.checked_sub(SignedDuration::from_hours(365 * 24))?.round(jiff::Unit::Second)?;
    space.patch_status::<CronJob>("hourly", json!({"status": {"lastScheduleTime": last.to_string()}})).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    eventually("the last missed run is created", || async {
        let status = space.get::<CronJob>("hourly").await?.status.unwrap_or_default();
        ensure!(status.active.as_ref().is_some_and(|active| active.len() == 1), "{status:?}");
        let late = now.as_second() - status.last_schedule_time.context("no time")?.0.as_second();
        ensure!((0..=3600).contains(&late), "{late} s late");
        let events = space.events("hourly").await?;
        ensure!(events.keys().any(|event| event.starts_with("Warning TooManyMissedTimes")), "{events:?}");
        Ok(())
    })
    .await?;
    during(QUIET, "no other run is created", || async {
        ensure!(jobs(&space, "hourly").await?.len() == 1);
        Ok(())
    })
    .await
}

/// A quota refuses a CronJob's Job. Changes of the CronJob that do not affect the Job do not repeat its creation.
pub async fn refused_job_is_not_repeated_by_changes_of_its_cronjob(space: Space) -> Result<()> {
    space
        .create::<ResourceQuota>(json!({"metadata": {"name": "none"}, "spec": {"hard": {"count/jobs.batch": "0"}}}))
        .await?;
    // The quota controller does not run: the test writes the status.
    let status = json!({"status": {"hard": {"count/jobs.batch": "0"}, "used": {"count/jobs.batch": "0"}}});
    space.patch_status::<ResourceQuota>("none", status).await?;
    overdue(&space, "yearly", &json!({}), json!({})).await?;
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    let refused = || {
        faults.count(|call| call.verb == Verb::Create && call.resource == "jobs" && call.namespace == space.namespace)
    };
    eventually("the creation of the Job is refused", || async {
        ensure!(refused() > 0);
        Ok(())
    })
    .await?;
    let (changes, begun) = (AtomicUsize::new(0), Instant::now());
    during(OBSERVED, "no Job is created", || async {
        let number = changes.fetch_add(1, Ordering::Relaxed).to_string();
        space.patch::<CronJob>("yearly", json!({"metadata": {"annotations": {"number": number}}})).await?;
        ensure!(jobs(&space, "yearly").await?.is_empty());
        Ok(())
    })
    .await?;
    let changes = changes.into_inner();
    // The delays double from 5 ms: 11 attempts in the first 10 seconds, and at most one in any 10 seconds after that.
    let attempts = 15 + begun.elapsed().as_secs() / 10;
    ensure!(refused() as u64 <= attempts, "{} refused creations", refused());
    ensure!(changes > 10, "only {changes} changes");
    Ok(())
}

/// The Job has another owner: it is neither counted nor adopted, and no other Job is created.
pub async fn job_of_another_owner_takes_the_name_of_a_run(space: Space) -> Result<()> {
    overdue(&space, "yearly", &json!({}), json!({"timeZone": "Etc/UTC"})).await?;
    let begun = Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC).first_of_year()?.start_of_day()?;
    let name = format!("yearly-{}", begun.timestamp().as_second() / 60);
    let foreign =
        with(job(&name, &json!({BEHAVIOUR: READY}), json!({})), json!({"metadata": {"labels": {"app": "yearly"}}}));
    space.create::<Job>(foreign).await?;
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &["--controllers=cronjob-controller"]).await?;
    eventually("the run is attempted, and the failure is reported", || async {
        ensure!(faults.count(|call| call.verb == Verb::Create && call.resource == "jobs") > 0);
        let events = space.events("yearly").await?;
        let expected = format!(
            "Warning FailedCreate Error creating job: {}/{name} exists and is not controlled by the CronJob",
            space.namespace
        );
        ensure!(events.contains_key(&expected), "{events:?}");
        Ok(())
    })
    .await?;
    during(QUIET, "the Job is left alone", || async {
        let jobs = jobs(&space, "yearly").await?;
        ensure!(jobs.len() == 1 && jobs[0].owner_references().is_empty(), "{jobs:?}");
        let status = space.get::<CronJob>("yearly").await?.status.unwrap_or_default();
        ensure!(status.active.is_none_or(|active| active.is_empty()), "it is counted");
        Ok(())
    })
    .await
}

pub async fn crash_leads_to_no_second_run(space: Space) -> Result<()> {
    overdue(&space, "crashing", &json!({BEHAVIOUR: READY}), json!({})).await?;
    let faults = Faults::script([Rule::on(Verb::Create, "jobs", Effect::CrashBeforeResponse)]);
    let manager = Manager::start(&space, &faults).await?;
    faults.crashes().await;
    manager.crash().await;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    eventually("the Job is listed", || async {
        let status = space.get::<CronJob>("crashing").await?.status.context("no status")?;
        ensure!(status.active.as_ref().is_some_and(|active| active.len() == 1), "{status:?}");
        Ok(())
    })
    .await?;
    ensure!(jobs(&space, "crashing").await?.len() == 1);
    Ok(())
}

/// Creates a CronJob whose first run is still active, and makes a second run due.
async fn due_again(space: &Space, name: &str, policy: &str) -> Result<Manager> {
    overdue(space, name, &json!({BEHAVIOUR: READY}), json!({"concurrencyPolicy": policy})).await?;
    let manager = Manager::start(space, &Faults::default()).await?;
    eventually("the first run is listed", || async {
        let status = space.get::<CronJob>(name).await?.status.unwrap_or_default();
        ensure!(status.active.as_ref().is_some_and(|active| active.len() == 1), "{status:?}");
        Ok(())
    })
    .await?;
    space.patch_status::<CronJob>(name, json!({"status": {"lastScheduleTime": "2020-06-01T00:00:00Z"}})).await?;
    space.patch::<CronJob>(name, json!({"spec": {"schedule": "0 0 2 1 *"}})).await?;
    // A new schedule only requeues the CronJob for its next run; any other change reconciles it immediately.
    space.patch::<CronJob>(name, json!({"spec": {"failedJobsHistoryLimit": 2}})).await?;
    Ok(manager)
}

pub async fn overlapping_runs_are_forbidden_or_replaced(space: Space) -> Result<()> {
    let forbidding = due_again(&space, "forbid", "Forbid").await?;
    eventually("the run is skipped", || async {
        let events = space.events("forbid").await?;
        ensure!(events.keys().any(|event| event.starts_with("Normal JobAlreadyActive")), "{events:?}");
        Ok(())
    })
    .await?;
    ensure!(jobs(&space, "forbid").await?.len() == 1);
    drop(forbidding);
    let _replacing = due_again(&space, "replace", "Replace").await?;
    eventually("the old Job is replaced", || async {
        let events = space.events("replace").await?;
        ensure!(
            events.keys().any(|event| event.starts_with("Normal SuccessfulDelete Deleted job replace-")),
            "{events:?}"
        );
        let (jobs, cron_job) = (jobs(&space, "replace").await?, space.get::<CronJob>("replace").await?);
        let active = cron_job.status.and_then(|status| status.active).unwrap_or_default();
        let listed: Vec<_> = active.iter().filter_map(|job| job.name.clone()).collect();
        ensure!(names(&jobs) == listed && listed.len() == 1, "{:?} {listed:?}", names(&jobs));
        Ok(())
    })
    .await
}

/// A run was deleted while no manager ran, and another Job got its name.
pub async fn job_with_the_name_of_a_deleted_run_is_not_replaced(space: Space) -> Result<()> {
    overdue(&space, "replace", &json!({BEHAVIOUR: READY}), json!({"concurrencyPolicy": "Replace"})).await?;
    space.create::<Job>(job("other", &json!({BEHAVIOUR: READY}), json!({}))).await?;
    let deleted = json!({
        "apiVersion": "batch/v1", "kind": "Job", "namespace": space.namespace, "name": "other",
        "uid": "11111111-2222-4333-8444-555555555555",
    });
    space.patch_status::<CronJob>("replace", json!({"status": {"active": [deleted]}})).await?;
    let _manager = Manager::start_with(&space, &Faults::default(), &["--controllers=cronjob-controller"]).await?;
    eventually("the run went missing, and the next one is created", || async {
        let events = space.events("replace").await?;
        ensure!(events.keys().any(|event| event.starts_with("Normal MissingJob")), "{events:?}");
        ensure!(jobs(&space, "replace").await?.len() == 1);
        Ok(())
    })
    .await?;
    during(QUIET, "the other Job is left alone", || async {
        ensure!(space.get::<Job>("other").await?.metadata.deletion_timestamp.is_none());
        Ok(())
    })
    .await
}

pub async fn suspended_and_late_cronjobs_start_nothing(space: Space) -> Result<()> {
    overdue(&space, "suspended", &json!({}), json!({"suspend": true})).await?;
    overdue(&space, "late", &json!({}), json!({"startingDeadlineSeconds": 10})).await?;
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    faults.until_watching(&["cronjobs"]).await?;
    during(QUIET, "nothing is started", || async {
        ensure!(space.list::<Job>("").await?.is_empty());
        Ok(())
    })
    .await
}

/// The API server refuses such CronJobs: they are written to etcd, as if by another version.
pub async fn invalid_cronjobs_are_reported_and_start_nothing(_: Space) -> Result<()> {
    let extra_apiserver_flags = vec!["--storage-media-type=application/json".to_owned()];
    let bed = Bed::without_accounts(Options { scheduler: false, extra_apiserver_flags, ..Options::default() }).await?;
    let space = Arc::new(bed).space("invalid").await?;
    for (name, field, value) in [("schedule", "schedule", "* * * * * *"), ("zone", "timeZone", "Moon/Tycho")] {
        overdue(&space, name, &json!({}), json!({})).await?;
        let key = format!("/registry/cronjobs/{}/{name}", space.namespace);
        space.bed.cluster.edit_stored(&key, |stored| stored["spec"][field] = value.into()).await?;
        eventually("the API server has the invalid value", || async {
            let stored = serde_json::to_value(space.get::<CronJob>(name).await?.spec)?;
            ensure!(stored[field] == value, "{stored}");
            Ok(())
        })
        .await?;
    }
    let _manager = Manager::start(&space, &Faults::default()).await?;
    for (name, reason) in [("schedule", "UnparseableSchedule"), ("zone", "UnknownTimeZone")] {
        eventually("the invalid value is reported", || async {
            let events = space.events(name).await?;
            ensure!(events.keys().any(|event| event.starts_with(&format!("Warning {reason} "))), "{events:?}");
            Ok(())
        })
        .await?;
    }
    during(QUIET, "nothing is started", || async {
        ensure!(space.list::<Job>("").await?.is_empty());
        Ok(())
    })
    .await
}

pub async fn finished_jobs_are_deleted_after_their_ttl(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Job>(job("brief", &json!({}), json!({"ttlSecondsAfterFinished": 1}))).await?;
    space.create::<Job>(job("kept", &json!({}), json!({}))).await?;
    eventually("the Job is deleted, or waits for the deletion of its dependents", || async {
        let brief = space.api::<Job>().get_opt("brief").await?;
        let foreground = |job: &Job| job.finalizers().iter().any(|finalizer| finalizer == "foregroundDeletion");
        ensure!(brief.is_none_or(|job| job.metadata.deletion_timestamp.is_some() && foreground(&job)));
        Ok(())
    })
    .await?;
    space.get::<Job>("kept").await?;
    Ok(())
}

/// Two CronJobs with one due run each: one keeps its finished Job, the other one deletes it.
async fn scenario(space: Space) -> Result<()> {
    for (name, kept) in [("kept", 1), ("spent", 0)] {
        due_once(&space, name, &json!({}), json!({"successfulJobsHistoryLimit": kept})).await?;
        eventually(format!("{name} has run"), || async {
            let status = space.get::<CronJob>(name).await?.status.unwrap_or_default();
            ensure!(status.active.as_ref().is_none_or(Vec::is_empty), "{status:?}");
            ensure!(status.last_schedule_time.is_some() && status.last_successful_time.is_some(), "{status:?}");
            let jobs = jobs(&space, name).await?;
            ensure!(jobs.len() == kept, "{:?}", names(&jobs));
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Two Jobs of one pod each, one of which is deleted. Writes for each Job: its creation, a pod, the pod's release and
/// three statuses; for each CronJob: two statuses.
pub const SCENARIO: Scenario = Scenario {
    name: "cronjob",
    flags: &["--controllers=cronjob-controller,job-controller"],
    kind: "cronjobs",
    run: |space| Box::pin(scenario(space)),
    pods: 2,
    writes: 2 + 1 + 2 * 5 + 2 * 2,
    fails: &[("create jobs ", 1), ("update cronjobs/status ", 1), ("update cronjobs/status ", 2), ("delete jobs ", 1)],
    ..Scenario::EMPTY
};

/// Creates a Job that is deleted after its TTL. The deletion waits for the Job's dependents, and the garbage collector
/// does not run: the test removes the Job's finalizer.
async fn brief(space: Space) -> Result<()> {
    space.create::<Job>(job("brief", &json!({}), json!({"ttlSecondsAfterFinished": 1}))).await?;
    space.create::<Job>(job("kept", &json!({}), json!({}))).await?;
    until(&space, "kept", &COMPLETE).await?;
    eventually("the Job is being deleted", || async {
        let brief: Job = space.get("brief").await?;
        ensure!(brief.metadata.deletion_timestamp.is_some(), "{:?}", brief.status);
        Ok(())
    })
    .await?;
    space.patch::<Job>("brief", json!({"metadata": {"finalizers": null}})).await?;
    eventually("the Job is deleted", || async {
        ensure!(names(&space.list::<Job>("").await?) == ["kept"]);
        Ok(())
    })
    .await
}

/// Two Jobs of one pod each; writes: a pod, its release and three statuses for each, and one deletion.
pub const BRIEF: Scenario = Scenario {
    name: "ttl_after_finished",
    flags: &["--controllers=ttl-after-finished-controller,job-controller"],
    kind: "jobs",
    run: |space| Box::pin(brief(space)),
    pods: 2,
    writes: 2 * 5 + 1,
    fails: &[("delete jobs ", 1)],
    ..Scenario::EMPTY
};
