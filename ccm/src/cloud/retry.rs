//! Delays after failed cloud calls, and the suppression of repeated reports.

use std::time::Duration;

use providers::{CloudError, ErrorKind};
use tokio::time::Instant;

/// Maximum of the backoff; a cloud that throttles may request a longer delay. Upstream: service controller,
/// maxRetryDelay.
pub const MAX_WAIT: Duration = Duration::from_secs(300);

/// First delay after a failure. Upstream: service controller, minRetryDelay.
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// First delay if an operator must act.
const FIRST_WAIT_FOR_OPERATOR: Duration = Duration::from_secs(30);

/// First delay after a conflict with another client.
const CONFLICT_WAIT: Duration = Duration::from_secs(1);

/// Minimum delay after the first throttled call for which the cloud requests a delay; it doubles with each further
/// failure.
const FIRST_THROTTLE_WAIT: Duration = Duration::from_millis(500);

/// Limit of this minimum. It is low, because targets are not updated before the end of the delay.
const MAX_THROTTLE_WAIT: Duration = Duration::from_secs(30);

/// Minimum delay that a provider can request.
const MIN_WAIT: Duration = Duration::from_millis(100);

/// Time after which the same message is reported again (events last an hour).
const REPORT_INTERVAL: Duration = Duration::from_secs(300);

/// Returns the delay before the retry of a call with this number of consecutive failures, including the last one;
/// `None`: no retry before the object of the call changes.
pub fn retry_after(kind: ErrorKind, failures: u32) -> Option<Duration> {
    let backoff = |first: Duration| {
        let doublings = failures.saturating_sub(1).min(16);
        (first * 2u32.pow(doublings)).min(MAX_WAIT)
    };
    match kind {
        ErrorKind::Invalid => None,
        // After any successful call, the provider requests a short delay again, even if calls of another kind are still
        // throttled. The minimum grows with the failures of this call.
        ErrorKind::Throttled { after: Some(after) } => {
            Some(requested_delay(after).max(backoff(FIRST_THROTTLE_WAIT).min(MAX_THROTTLE_WAIT)))
        }
        ErrorKind::Denied | ErrorKind::Quota => Some(backoff(FIRST_WAIT_FOR_OPERATOR)),
        ErrorKind::Conflict => Some(backoff(CONFLICT_WAIT)),
        ErrorKind::Throttled { after: None } | ErrorKind::NotFound | ErrorKind::Transient => Some(backoff(FIRST_WAIT)),
    }
}

/// Returns the delay that a provider requests, but at least [`MIN_WAIT`], so that there is no hot loop.
pub fn requested_delay(requested: Duration) -> Duration {
    requested.max(MIN_WAIT)
}

/// Returns an error's message without the request's ID, so that equal errors have equal messages.
pub fn message(error: &CloudError) -> String {
    format!("{}: {}", error.operation, error.message)
}

/// The last reported failure, and its time.
#[derive(Debug, Clone, Default)]
pub struct LastReport(Option<(String, Instant)>);

impl LastReport {
    /// Records a failure, and returns true if it has to be reported. The last reported failure is not reported again
    /// for 5 minutes.
    pub fn update(&mut self, message: &str, now: Instant) -> bool {
        let is_repeated = self.0.as_ref().is_some_and(|(last, at)| last == message && now < *at + REPORT_INTERVAL);
        if !is_repeated {
            self.0 = Some((message.to_owned(), now));
        }
        !is_repeated
    }

    /// Returns true if no failure has been reported.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_calls_are_retried_by_kind() {
        let seconds = |kind, failures| retry_after(kind, failures).map(|wait| wait.as_secs_f64());
        let throttled = |millis| ErrorKind::Throttled { after: Some(Duration::from_millis(millis)) };
        for (kind, failures, expected) in [
            (ErrorKind::Invalid, 1, None),
            (ErrorKind::Transient, 1, Some(5.0)),
            (ErrorKind::Transient, 3, Some(20.0)),
            (ErrorKind::Transient, 7, Some(300.0)),
            (ErrorKind::Transient, u32::MAX, Some(300.0)),
            (ErrorKind::Throttled { after: None }, 2, Some(10.0)),
            (throttled(700), 1, Some(0.7)),
            (throttled(700), 5, Some(8.0)),
            (throttled(700), u32::MAX, Some(30.0)),
            (throttled(45_000), 9, Some(45.0)),
            (throttled(0), 1, Some(0.5)),
            (ErrorKind::Denied, 1, Some(30.0)),
            (ErrorKind::Quota, 5, Some(300.0)),
            (ErrorKind::Conflict, 2, Some(2.0)),
        ] {
            assert_eq!(seconds(kind, failures), expected, "{} {failures}", kind.as_str());
        }
        assert!(requested_delay(Duration::ZERO) > Duration::ZERO, "no hot loop");
    }

    #[tokio::test(start_paused = true)]
    async fn equal_failures_are_reported_once() {
        let mut report = LastReport::default();
        assert!(report.update("a", Instant::now()) && !report.update("a", Instant::now()));
        assert!(report.update("b", Instant::now()) && report.update("a", Instant::now()));
        tokio::time::advance(REPORT_INTERVAL).await;
        assert!(report.update("a", Instant::now()), "its event may have expired");
    }
}
