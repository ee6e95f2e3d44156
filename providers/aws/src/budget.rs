//! Rate limit of calls to AWS: a token bucket for each class of calls. A throttled call empties the bucket for all
//! calls of its class.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Maximum pause after a throttled call.
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Pause after the first throttled call, if the response names none.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Tokens that are refilled over time. Each call takes one, in the order of the requests.
#[derive(Debug)]
pub(crate) struct Budget {
    every: Duration,
    burst: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The time at which the bucket is full if no more tokens are taken.
    full: Instant,
    /// Number of consecutive throttled calls.
    throttles: u32,
}

impl Budget {
    /// Creates a full bucket of `burst` tokens that is refilled with `per_second` tokens a second.
    pub(crate) fn new(per_second: f64, burst: u32) -> Self {
        let state = Mutex::new(State { full: Instant::now(), throttles: 0 });
        Self { every: Duration::from_secs_f64(1.0 / per_second), burst, state }
    }

    /// Waits for a token.
    pub(crate) async fn take(&self) {
        let due = self.reserve(Instant::now());
        sleep_until(due).await;
    }

    /// Takes a token and returns the time from which it may be used.
    fn reserve(&self, now: Instant) -> Instant {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.full = state.full.max(now) + self.every;
        let spare = self.every * self.burst;
        (state.full - spare.min(state.full - now)).max(now)
    }

    /// Records that AWS throttled a call: no later call gets a token during the pause that the response names
    /// (`after`), or else during a pause that doubles each time; at most [`MAX_PAUSE`]. Returns the pause.
    pub(crate) fn throttled(&self, after: Option<Duration>) -> Duration {
        self.pause(Instant::now(), after)
    }

    fn pause(&self, now: Instant, after: Option<Duration>) -> Duration {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let own = FIRST_PAUSE * 2_u32.pow(state.throttles.min(10));
        state.throttles = state.throttles.saturating_add(1);
        let pause = after.unwrap_or(own).min(MAX_PAUSE);
        state.full = state.full.max(now + pause + self.every * self.burst);
        pause
    }

    /// Lets the next pause be the shortest again: AWS did not throttle the last call.
    pub(crate) fn clear_throttles(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).throttles = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn budget_allows_a_burst_and_then_the_rate() {
        let budget = Budget::new(10.0, 3);
        let now = Instant::now() + SECOND;
        let waits: Vec<u128> = (0..5).map(|_| (budget.reserve(now) - now).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 100, 200]);
        let later = now + SECOND;
        assert_eq!(budget.reserve(later), later, "no token was refilled");
    }

    #[test]
    fn repeated_throttles_lengthen_the_pause() {
        let budget = Budget::new(10.0, 3);
        let now = Instant::now() + SECOND;
        assert_eq!(budget.pause(now, None), FIRST_PAUSE);
        assert!(budget.reserve(now) >= now + FIRST_PAUSE);
        assert_eq!(budget.pause(now, None), FIRST_PAUSE * 2);
        assert_eq!(budget.pause(now, Some(SECOND * 3)), SECOND * 3);
        assert!(budget.reserve(now) >= now + SECOND * 3);
        (0..20).for_each(|_| assert!(budget.pause(now, None) <= MAX_PAUSE));
        budget.clear_throttles();
        assert_eq!(budget.pause(now, None), FIRST_PAUSE);
    }
}
