//! Reactions to a failed cloud call: its retry, and whether it is reported again.

use std::time::Duration;

use providers::{CloudError, ErrorKind};
use tokio::time::Instant;

/// Maximum delay after failures (upstream: service controller, maxRetryDelay).
pub const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// First delay after a failure (upstream: service controller, minRetryDelay).
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// First delay if an operator must act.
const OPERATORS_WAIT: Duration = Duration::from_secs(30);

/// First delay after a conflict with another client.
const CONFLICT_WAIT: Duration = Duration::from_secs(1);

/// The delay if a provider requests none.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// Time after which the same message is reported again (events last an hour).
const SAY_AGAIN: Duration = Duration::from_secs(300);

/// Returns the delay before the retry of a call with this number of consecutive failures, including the last one;
/// `None`: no retry before a change.
pub fn retry_after(kind: ErrorKind, failures: u32) -> Option<Duration> {
    let grown = |first: Duration| {
        let doublings = failures.saturating_sub(1).min(16);
        (first * 2u32.pow(doublings)).min(LONGEST_WAIT)
    };
    match kind {
        ErrorKind::Invalid => None,
        ErrorKind::Throttled { after: Some(after) } => Some(again_after(after)),
        ErrorKind::Denied | ErrorKind::Quota => Some(grown(OPERATORS_WAIT)),
        ErrorKind::Conflict => Some(grown(CONFLICT_WAIT)),
        ErrorKind::Throttled { after: None } | ErrorKind::NotFound | ErrorKind::Transient => Some(grown(FIRST_WAIT)),
    }
}

/// Returns the delay that a provider requests, limited so that it is not a hot loop.
pub fn again_after(asked: Duration) -> Duration {
    asked.max(SHORTEST_WAIT)
}

/// Returns an error's message without the request's ID, so that equal errors have equal messages.
pub fn words(error: &CloudError) -> String {
    format!("{}: {}", error.operation, error.message)
}

/// The last reported failure, and its time.
#[derive(Debug, Clone, Default)]
pub struct Told(Option<(String, Instant)>);

impl Told {
    /// Reports whether a failure has to be reported: not if it is the same as before, unless that was long ago.
    pub fn tells(&mut self, message: &str, now: Instant) -> bool {
        let told = self.0.as_ref().is_some_and(|(said, at)| said == message && now < *at + SAY_AGAIN);
        if !told {
            self.0 = Some((message.to_owned(), now));
        }
        !told
    }

    /// Reports whether nothing was reported.
    pub fn is_blank(&self) -> bool {
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
            (throttled(700), 5, Some(0.7)),
            (throttled(0), 1, Some(0.1)),
            (ErrorKind::Denied, 1, Some(30.0)),
            (ErrorKind::Quota, 5, Some(300.0)),
            (ErrorKind::Conflict, 2, Some(2.0)),
        ] {
            assert_eq!(seconds(kind, failures), expected, "{} {failures}", kind.as_str());
        }
        assert!(again_after(Duration::ZERO) > Duration::ZERO, "no hot loop");
    }

    #[tokio::test(start_paused = true)]
    async fn equal_failures_are_reported_once() {
        let mut told = Told::default();
        assert!(told.tells("a", Instant::now()) && !told.tells("a", Instant::now()));
        assert!(told.tells("b", Instant::now()) && told.tells("a", Instant::now()));
        tokio::time::advance(SAY_AGAIN).await;
        assert!(told.tells("a", Instant::now()), "its event may have expired");
    }
}
