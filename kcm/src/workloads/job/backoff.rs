//! Backoff of the replacement of failed pods: ten seconds, doubled by each further failure, ten minutes at most.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use kinds::{Pod, Time};

/// Wait after the first failure. Upstream: pkg/controller/job, DefaultJobPodFailureBackOff.
const FIRST: SignedDuration = SignedDuration::from_secs(10);

/// Maximum wait. Upstream: pkg/controller/job, MaxJobPodFailureBackOff.
const MAX: SignedDuration = SignedDuration::from_mins(10);

/// The failures that this process has observed since a Job's last success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Backoff {
    failures: i32,
    last: Option<Time>,
}

impl Backoff {
    /// Returns the state after more pods finished. Only failures after the last success count. Upstream:
    /// pkg/controller/job, newBackoffRecord.
    pub fn with(self, succeeded: &[Arc<Pod>], failed: &[Arc<Pod>]) -> Self {
        let last_success = succeeded.iter().map(|pod| finished_at(pod)).max();
        let since = failed.iter().map(|pod| finished_at(pod)).filter(|at| Some(*at) > last_success);
        let last_failure = since.clone().max();
        let failures = i32::try_from(since.count()).unwrap_or(i32::MAX);
        match (last_success, last_failure) {
            (None, None) => self,
            (None, last) => Self { failures: self.failures.saturating_add(failures), last },
            (Some(_), last) => Self { failures, last },
        }
    }

    /// Returns the remaining delay before failed pods are replaced.
    pub fn remaining(self, now: Timestamp) -> SignedDuration {
        self.last.map_or(SignedDuration::ZERO, |last| remaining(self.failures, last, now))
    }
}

/// Returns the remaining delay before the last failed pod of an index is replaced. Upstream: pkg/controller/job,
/// getRemainingTimePerIndex.
pub fn remaining_of_index(last_failed: &Pod, now: Timestamp) -> SignedDuration {
    remaining(index_failures(last_failed).saturating_add(1), finished_at(last_failed), now)
}

/// Returns the number of earlier failures of a pod's index, including ignored ones.
pub fn index_failures(pod: &Pod) -> i32 {
    pod.ending.as_deref().map_or(0, |ending| ending.failures.saturating_add(ending.ignored_failures))
}

fn remaining(failures: i32, last: Time, now: Timestamp) -> SignedDuration {
    if failures == 0 {
        return SignedDuration::ZERO;
    }
    let doublings = u32::try_from(failures - 1).unwrap_or(0).min(6);
    let wait = (FIRST * (1 << doublings)).min(MAX);
    let last = Timestamp::from_second(last.0).unwrap_or(now);
    (wait - now.duration_since(last)).max(SignedDuration::ZERO)
}

/// Returns the time at which a pod ended: the end of its last container, else the last change of its readiness, else
/// its deletion, else its creation. Upstream: pkg/controller/job, getFinishedTime.
pub fn finished_at(pod: &Pod) -> Time {
    let ending = pod.ending.as_deref();
    match ending.map(|ending| ending.finished).filter(|at| !at.is_zero()) {
        Some(at) => at,
        None if pod.meta.is_deleting() => {
            Time(pod.meta.deletion.0.saturating_sub(ending.map_or(0, |ending| ending.grace)))
        }
        None => pod.meta.created,
    }
}
