//! What follows from a call that the cloud refused: when it is made again, and whether people are told once more.

use std::time::Duration;

use providers::{CloudError, ErrorKind};
use tokio::time::Instant;

/// Longest wait after failures (upstream: service controller, maxRetryDelay).
pub const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// First wait after a failure (upstream: service controller, minRetryDelay).
const FIRST_WAIT: Duration = Duration::from_secs(5);

/// First wait when an operator must do something first.
const OPERATORS_WAIT: Duration = Duration::from_secs(30);

/// First wait when somebody else was at it.
const CONFLICT_WAIT: Duration = Duration::from_secs(1);

/// A provider that says "at once" is asked again after this.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

/// The same is said again after this time (events last an hour).
const SAY_AGAIN: Duration = Duration::from_secs(300);

/// When a call is made again that has failed so many times in a row, this one included; `None`: not before something
/// changes.
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

/// The time after which a provider wants to be called again, kept from being a hot loop.
pub fn again_after(asked: Duration) -> Duration {
    asked.max(SHORTEST_WAIT)
}

/// What an error says to people, the same words for the same error: without the request's id.
pub fn words(error: &CloudError) -> String {
    format!("{}: {}", error.operation, error.message)
}

/// What was last said about a failure, and when.
#[derive(Debug, Clone, Default)]
pub struct Told(Option<(String, Instant)>);

impl Told {
    /// Whether a failure is to be told of: not when it is the same as before, unless that was long ago.
    pub fn tells(&mut self, message: &str, now: Instant) -> bool {
        let told = self.0.as_ref().is_some_and(|(said, at)| said == message && now < *at + SAY_AGAIN);
        if !told {
            self.0 = Some((message.to_owned(), now));
        }
        !told
    }

    /// Whether nothing was said.
    pub fn is_blank(&self) -> bool {
        self.0.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_calls_are_made_again_by_kind() {
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
    async fn the_same_is_not_said_all_the_time() {
        let mut told = Told::default();
        assert!(told.tells("a", Instant::now()) && !told.tells("a", Instant::now()));
        assert!(told.tells("b", Instant::now()) && told.tells("a", Instant::now()));
        tokio::time::advance(SAY_AGAIN).await;
        assert!(told.tells("a", Instant::now()), "by now its event may be gone");
    }
}
