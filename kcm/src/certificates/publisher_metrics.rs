//! Metrics of the publishers of certificates: syncs by the API server's response. Upstream:
//! pkg/controller/certificates.

use std::time::Duration;

use runtime::metrics::{Counts, Histograms, Metrics, powers_of_two};
use runtime::worker::{Outcome, ReconcileError};
use runtime::write::WriteError;
use tokio::time::Instant;

/// The code of a successful sync.
const SUCCESS: u16 = 200;

/// The code of an error that is not a response of the API server.
const LOCAL_ERROR: u16 = 500;

/// The write that a published object needs.
#[derive(Debug, PartialEq, Eq)]
pub enum Plan {
    /// The object has the desired content.
    Nothing,
    /// The object does not exist.
    Create,
    /// The object's content differs.
    Update,
}

/// A sync of a publisher that failed, or whose write was based on an outdated cache.
#[derive(Debug)]
pub struct Failure {
    code: u16,
    ended: Result<Outcome, ReconcileError>,
}

impl Failure {
    /// Creates the failure of a write that was based on an outdated cache: it is counted and retried, and not reported as
    /// an error.
    pub fn outdated(error: &WriteError) -> Self {
        Self { code: code_of(error), ended: Ok(Outcome::RequeueWithBackoff) }
    }
}

fn code_of(error: &WriteError) -> u16 {
    error.refused().map_or(LOCAL_ERROR, |status| status.code)
}

impl From<WriteError> for Failure {
    fn from(error: WriteError) -> Self {
        if error.is_conflict() || error.is_already_exists() {
            return Self::outdated(&error);
        }
        Self { code: code_of(&error), ended: Err(error.into()) }
    }
}

impl From<ReconcileError> for Failure {
    fn from(error: ReconcileError) -> Self {
        Self { code: LOCAL_ERROR, ended: Err(error) }
    }
}

/// The metrics of one publisher: number and duration of its syncs, by code.
pub struct Syncs {
    total: Counts<1>,
    duration: Histograms<1>,
}

impl Syncs {
    /// Registers the metrics; `help` describes the counter and the histogram.
    pub fn register(metrics: &Metrics, subsystem: &str, help: [&str; 2]) -> Self {
        Self {
            total: metrics.counts(&format!("{subsystem}_sync"), help[0]),
            duration: metrics.histograms(
                &format!("{subsystem}_sync_duration_seconds"),
                help[1],
                powers_of_two(0.001, 15),
            ),
        }
    }

    /// Runs a sync and counts it, unless it only waits for a cache.
    ///
    /// # Errors
    /// The error of the sync.
    pub async fn count(&self, sync: impl Future<Output = Result<Outcome, Failure>>) -> Result<Outcome, ReconcileError> {
        let started = Instant::now();
        let (code, ended) = match sync.await {
            Ok(Outcome::WaitingForCache) => return Ok(Outcome::WaitingForCache),
            Ok(outcome) => (SUCCESS, Ok(outcome)),
            Err(Failure { code, ended }) => (code, ended),
        };
        self.record(code, started.elapsed());
        ended
    }

    fn record(&self, code: u16, duration: Duration) {
        let label = || [("code", code.to_string())];
        self.total.add(label());
        self.duration.observe(label(), duration.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use kinds::envelope::ApiStatus;

    use super::*;

    fn refused(code: u16, reason: &str) -> Failure {
        WriteError::Refused(ApiStatus { code, reason: reason.to_owned(), ..ApiStatus::default() }).into()
    }

    #[tokio::test]
    async fn sync_is_counted_by_the_servers_code_and_local_failures_as_500() {
        let retried = || Ok(Outcome::RequeueWithBackoff);
        // (name, sync, code in the metrics, result; `None`: an error)
        let cases = [
            ("success", Ok(Outcome::Done), Some(200), Some(Ok(Outcome::Done))),
            ("forbidden", Err(refused(403, "Forbidden")), Some(403), None),
            ("conflict", Err(refused(409, "Conflict")), Some(409), Some(retried())),
            ("name is taken", Err(refused(409, "AlreadyExists")), Some(409), Some(retried())),
            ("local failure", Err(ReconcileError::new("the object cannot be rewritten").into()), Some(500), None),
            ("not leading", Err(WriteError::NotLeading.into()), Some(500), None),
            ("stale cache", Ok(Outcome::WaitingForCache), None, Some(Ok(Outcome::WaitingForCache))),
        ];
        for (name, sync, code, expected) in cases {
            let metrics = Metrics::new();
            let syncs = Syncs::register(&metrics, "publisher", ["syncs", "durations"]);
            let ended = syncs.count(async { sync }).await;
            match expected {
                Some(expected) => assert_eq!(ended, expected, "{name}"),
                None => assert!(ended.is_err(), "{name}: {ended:?}"),
            }
            let text = metrics.text();
            let counted: Vec<&str> = text.lines().filter(|line| line.starts_with("publisher_sync_total")).collect();
            let wanted: Vec<String> =
                code.iter().map(|code| format!("publisher_sync_total{{code=\"{code}\"}} 1")).collect();
            assert_eq!(counted, wanted, "{name}");
        }
    }
}
