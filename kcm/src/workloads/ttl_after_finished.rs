//! ttl-after-finished-controller: deletes finished Jobs whose TTL has expired.
//!
//! It watches Jobs. The deletions have foreground propagation. Upstream: pkg/controller/ttlafterfinished.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use kinds::meta::ObjectKey;
use kinds::{Job, Kind, Sections};
use runtime::manager::Manager;
use runtime::metrics::{Seconds, powers_of_two};
use runtime::queue::{Queue, QueueOptions};
use runtime::store::{Change, Store};
use runtime::watch::Builder;
use runtime::worker::{Outcome, Reconcile, ReconcileError, WorkOptions};
use runtime::write::{Deletion, Propagation, Writer};
use tracing::{info, warn};

use crate::context::{Clock, Context, Descriptor, QueueKeys, Verb, Write};

/// Metric of the time between the expiry of the TTL and the deletion, under upstream's name. Upstream:
/// pkg/controller/ttlafterfinished/metrics.
const LATENESS: &str = "ttl_after_finished_controller_job_deletion_duration_seconds";
const LATENESS_HELP: &str = "The time it took to delete the job since it became eligible for deletion";

/// The controller.
pub const DESCRIPTOR: Descriptor = Descriptor {
    name: "ttl-after-finished-controller",
    service_account: "ttl-after-finished-controller",
    watches,
    writes: &[Write { verb: Verb::Delete, group: "batch", resource: "jobs" }],
    queues: &[QueueKeys::of("ttl_jobs_to_delete", "Job")],
    start,
    ..Descriptor::NONE
};

fn watches(builder: &mut Builder, _: &Context) {
    builder.need::<Job>(Sections::default(), &[]);
}

fn start(manager: &mut Manager, context: &Context) {
    let queue = Queue::new(QueueOptions::named("ttl_jobs_to_delete"));
    let jobs = manager.registry().store::<Job>();
    let changed = queue.clone();
    jobs.subscribe(move |change| {
        if let Some(key) = key(change) {
            changed.add(key);
        }
    });
    let writer = manager.writer(DESCRIPTOR.service_account);
    let lateness_metric = manager.metrics().seconds(LATENESS, LATENESS_HELP, &powers_of_two(0.1, 14));
    let reconciler = Arc::new(TtlReconciler { jobs, writer, clock: context.clock.clone(), lateness: lateness_metric });
    let workers = context.workers("concurrent-ttl-after-finished-syncs");
    manager.add(WorkOptions { name: DESCRIPTOR.name, workers }, queue, reconciler);
}

// Keys

/// Returns the key of an existing Job that has to be deleted now or later, or whose finish time is unknown.
fn key(change: &Change<'_, Job>) -> Option<ObjectKey> {
    change.new.filter(|job| !matches!(decide(job, Timestamp::MIN), Ok(Verdict::Keep))).map(|job| job.meta.key())
}

// Decisions

/// The action for a Job.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// Nothing: the Job has not finished, has no TTL, or is being deleted.
    Keep,
    /// Its TTL expires after this delay.
    Wait(SignedDuration),
    /// Its TTL has expired: delete it.
    Delete,
}

/// The time at which the Job finished is unknown.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unable to find the time when the Job {0} finished: its condition Complete or Failed has no lastTransitionTime"
)]
struct UnknownFinishTime(ObjectKey);

/// Returns the action for a Job. A finish time in the future, from a clock that is ahead, is treated like any other.
/// Upstream: pkg/controller/ttlafterfinished, processTTL.
fn decide(job: &Job, now: Timestamp) -> Result<Verdict, UnknownFinishTime> {
    let (Some(ttl), Some(end), false) = (job.ttl, job.status.finished(), job.meta.is_deleting()) else {
        return Ok(Verdict::Keep);
    };
    if end.last_transition.is_zero() {
        return Err(UnknownFinishTime(job.meta.key()));
    }
    // The latest time of the API is about 26 hours after the largest `Timestamp`.
    let ended = Timestamp::from_second(end.last_transition.0).unwrap_or(Timestamp::MAX);
    let left = SignedDuration::from_secs(ttl.into()) - now.duration_since(ended);
    Ok(if left > SignedDuration::ZERO { Verdict::Wait(left) } else { Verdict::Delete })
}

/// Returns the seconds since the TTL of a Job expired; zero if it has none.
fn lateness(job: &Job, now: Timestamp) -> f64 {
    let due = job.status.finished().zip(job.ttl).map(|(end, ttl)| end.last_transition.0 + i64::from(ttl));
    let due = due.and_then(|due| Timestamp::from_second(due).ok()).unwrap_or(now);
    now.duration_since(due).as_secs_f64().max(0.0)
}

// Sync

struct TtlReconciler {
    jobs: Arc<Store<Job>>,
    writer: Writer,
    clock: Clock,
    lateness: Seconds,
}

impl Reconcile for TtlReconciler {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl TtlReconciler {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(job) = self.jobs.get(key) else { return Ok(Outcome::Done) };
        if let Some(outcome) = self.outcome(&job)? {
            return Ok(outcome);
        }
        // The TTL may have been raised, or the Job replaced: the decision is repeated after an uncached read.
        let fresh = match self.writer.get(&Job::RESOURCE, key).await {
            Err(error) if error.is_not_found() => return Ok(Outcome::Done),
            response => response?,
        };
        let fresh =
            fresh.decode::<Job>(self.jobs.decoding()).map_err(|error| ReconcileError::new(error.to_string()))?;
        if let Some(outcome) = self.outcome(&fresh)? {
            return Ok(outcome);
        }
        info!(job = %key, "deleting finished Job: TTL expired");
        let deletion = Deletion { uid: &fresh.meta.uid, version: None, propagation: Propagation::Foreground };
        match self.writer.delete_object(&Job::RESOURCE, key, deletion).await {
            Ok(()) => {
                self.lateness.observe(lateness(&fresh, (self.clock)()));
                Ok(Outcome::Done)
            }
            // The metric does not measure deletions by other clients.
            Err(error) if error.is_object_deleted() => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the outcome for a Job that is not to be deleted now.
    fn outcome(&self, job: &Job) -> Result<Option<Outcome>, ReconcileError> {
        let now = (self.clock)();
        // Terminal: only a change of the Job can correct it, and that enqueues the key.
        let decided = decide(job, now).map_err(|error| ReconcileError { message: error.to_string(), terminal: true });
        match decided? {
            Verdict::Keep => Ok(Some(Outcome::Done)),
            Verdict::Delete => Ok(None),
            Verdict::Wait(left) => {
                if job.status.finished().is_some_and(|end| end.last_transition.0 > now.as_second()) {
                    warn!(
                        job = %job.meta.key(),
                        "the finish time of the Job is in the future, because clocks differ; deleting it later"
                    );
                }
                Ok(Some(Outcome::RequeueAfter(Duration::try_from(left).unwrap_or_default())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kinds::schema::{job as f, job_condition as c, job_spec as s, job_status as t, object_meta as m};
    use kinds::wire::Put;
    use kinds::{Decode, Time, envelope};
    use runtime::metrics::Metrics;
    use runtime::testing::{filled_store, writer};

    use super::*;

    const NOW: i64 = 1_700_000_000;

    fn context() -> Decode {
        Decode { interner: Arc::default(), sections: Sections::default() }
    }

    fn job(ttl: Option<i64>, end: Option<(&str, i64)>, deleting: bool) -> Job {
        Job::decode(&context(), &object(ttl, end, deleting)).expect("well-formed")
    }

    fn object(ttl: Option<i64>, end: Option<(&str, i64)>, deleting: bool) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(f::METADATA, |meta| {
            meta.put_str(m::NAME, "pi");
            meta.put_str(m::NAMESPACE, "default");
            meta.put_str(m::RESOURCE_VERSION, "1");
            if deleting {
                Time(NOW).put(meta, m::DELETION_TIMESTAMP);
            }
        });
        object.put_message(f::SPEC, |spec| {
            if let Some(ttl) = ttl {
                spec.put_int(s::TTL_SECONDS_AFTER_FINISHED, ttl);
            }
        });
        object.put_message(f::STATUS, |status| {
            if let Some((kind, at)) = end {
                status.put_message(t::CONDITIONS, |condition| {
                    condition.put_str(c::TYPE, kind);
                    condition.put_str(c::STATUS, "True");
                    Time(at).put(condition, c::LAST_TRANSITION_TIME);
                });
            }
        });
        object
    }

    #[test]
    fn jobs_are_deleted_when_their_ttl_expires() {
        let now = Timestamp::from_second(NOW).expect("in range");
        let wait = |seconds| Ok(Verdict::Wait(SignedDuration::from_secs(seconds)));
        for (ttl, end, deleting, expected) in [
            (None, Some(("Complete", NOW - 100)), false, Ok(Verdict::Keep)),
            (Some(10), None, false, Ok(Verdict::Keep)),
            (Some(10), Some(("Suspended", NOW - 100)), false, Ok(Verdict::Keep)),
            (Some(10), Some(("Complete", NOW - 100)), true, Ok(Verdict::Keep)),
            (Some(0), Some(("Complete", NOW)), false, Ok(Verdict::Delete)),
            (Some(10), Some(("Failed", NOW - 10)), false, Ok(Verdict::Delete)),
            (Some(10), Some(("Failed", NOW - 9)), false, wait(1)),
            (Some(10), Some(("Complete", NOW + 5)), false, wait(15)),
            (Some(10), Some(("Complete", 0)), false, Err(UnknownFinishTime(ObjectKey::new("default", "pi")))),
        ] {
            assert_eq!(decide(&job(ttl, end, deleting), now), expected, "{ttl:?} {end:?} {deleting}");
        }
    }

    #[test]
    fn job_with_the_latest_possible_finish_time_is_kept() {
        // 9999-12-31T23:59:59Z
        let end = 253_402_300_799;
        let decided =
            decide(&job(Some(0), Some(("Complete", end)), false), Timestamp::from_second(NOW).expect("in range"));
        assert!(matches!(decided, Ok(Verdict::Wait(left)) if left.as_hours() > 1_000_000), "{decided:?}");
    }

    #[tokio::test]
    async fn only_own_deletions_are_measured() {
        let metrics = Metrics::default();
        let lateness = metrics.seconds(LATENESS, LATENESS_HELP, &[1.0]);
        let expired = || object(Some(10), Some(("Complete", NOW - 100)), false);
        let writer = writer(move |method, _| match method.as_str() {
            "GET" => (200, envelope::wrap(&Job::RESOURCE, &expired())),
            _ => (404, br#"{"kind":"Status","code":404,"reason":"NotFound"}"#.to_vec()),
        });
        let cached = job(Some(10), Some(("Complete", NOW - 100)), false);
        let reconciler = TtlReconciler {
            jobs: Arc::new(filled_store(context(), vec![], [cached])),
            writer: writer.await,
            clock: Arc::new(|| Timestamp::from_second(NOW).expect("in range")),
            lateness,
        };
        let outcome = reconciler.reconcile(&ObjectKey::new("default", "pi")).await.expect("no error");
        assert_eq!(outcome, Outcome::Done);
        let count = format!("{LATENESS}_count 0");
        assert!(metrics.text().lines().any(|line| line == count), "{}", metrics.text());
    }

    #[test]
    fn only_jobs_with_a_ttl_are_reconciled() {
        for (ttl, end, expected) in
            [(None, Some(("Complete", NOW)), false), (Some(10), None, false), (Some(10), Some(("Complete", NOW)), true)]
        {
            let job = Arc::new(job(ttl, end, false));
            assert_eq!(key(&Change { old: None, new: Some(&job) }).is_some(), expected);
            assert_eq!(key(&Change { old: Some(&job), new: None }), None);
        }
    }

    #[test]
    fn lateness_is_counted_from_the_expiry() {
        let now = Timestamp::from_second(NOW).unwrap();
        for (ttl, ended, expected) in [(Some(10), NOW - 10, 0.0), (Some(10), NOW - 70, 60.0), (Some(10), NOW, 0.0)] {
            assert_eq!(lateness(&job(ttl, Some(("Complete", ended)), false), now), expected, "{ttl:?} {ended}");
        }
        assert_eq!(lateness(&job(None, Some(("Complete", NOW - 9)), false), now), 0.0);
    }
}
