//! A token bucket that limits the request rate and shares it fairly between namespaces.

use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::fair::{FairList, Turn};
use crate::lock::lock;

/// Requests per second when the configured rate is zero.
const DEFAULT_QPS: f32 = 5.0;
/// Bucket size when the configured burst is zero.
const DEFAULT_BURST: u32 = 10;

/// A client-side rate limit: bursts of `burst` requests, refilled at `qps` tokens per second.
///
/// Namespaces that wait receive tokens in turn: a thousand requests for one namespace delay a request for another one
/// by one token. Within a namespace callers are served in the order of their calls. A caller that is dropped before it
/// is served returns its token, unless a later caller has reserved one.
///
/// Follows client-go `rest.RESTClientForConfigAndClient` for the defaults and
/// `util/flowcontrol.NewTokenBucketRateLimiter` over `golang.org/x/time/rate` for the times at which tokens are handed
/// out. Upstream hands them out in the order of the calls, regardless of the namespace.
#[derive(Debug)]
pub struct TokenBucket {
    limit: Option<Limit>,
}

#[derive(Debug)]
struct Limit {
    per_second: f64,
    burst: f64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    level: Level,
    waiting: FairList<Waiter>,
}

/// The fill level of the bucket at an instant; negative if slots are reserved ahead.
#[derive(Debug, Clone, Copy)]
struct Level {
    tokens: f64,
    at: Instant,
    /// The latest slot that was reserved.
    last_slot: Instant,
}

/// A waiting caller in the list. Each caller holds a slot, the time of one future token. When the slot of a caller
/// arrives, the token goes to the caller whose turn it is, and the two exchange their slots: there are always as many
/// slots as callers.
#[derive(Debug)]
struct Waiter {
    slot: Instant,
    /// Receives the time of the token.
    served: oneshot::Sender<Instant>,
}

impl TokenBucket {
    /// Creates a full bucket of `burst` tokens that gains `qps` tokens per second.
    ///
    /// A `qps` of zero means 5, a `burst` of zero means 10, a `qps` that is negative or not a number means no limit. If
    /// tokio's time is paused, this must be called inside the runtime.
    #[must_use]
    pub fn new(qps: f32, burst: u32) -> Self {
        let qps = if qps == 0.0 { DEFAULT_QPS } else { qps };
        let burst = if burst == 0 { DEFAULT_BURST } else { burst };
        if qps.is_nan() || qps < 0.0 {
            return Self { limit: None };
        }
        let now = Instant::now();
        let level = Level { tokens: f64::from(burst), at: now, last_slot: now };
        let state = Mutex::new(State { level, waiting: FairList::default() });
        Self { limit: Some(Limit { per_second: f64::from(qps), burst: f64::from(burst), state }) }
    }

    /// Takes one token for a request about an object of `namespace` (empty for objects without one), and waits for it
    /// if necessary. Returns the time waited.
    pub async fn acquire(&self, namespace: &str) -> Duration {
        let Some(limit) = &self.limit else { return Duration::ZERO };
        let now = Instant::now();
        match limit.reserve(namespace, now) {
            None => Duration::ZERO,
            Some(place) => place.served().await.saturating_duration_since(now),
        }
    }
}

impl Limit {
    /// Takes a token. Returns the caller's place in the list if the bucket is empty.
    fn reserve(&self, namespace: &str, now: Instant) -> Option<Place<'_>> {
        let mut state = lock(&self.state);
        let mut next = state.level.advanced(now, self.per_second, self.burst);
        next.tokens -= 1.0;
        let wait = Duration::try_from_secs_f64((-next.tokens).max(0.0) / self.per_second).unwrap_or(Duration::MAX);
        let slot = now.checked_add(wait).unwrap_or(next.last_slot);
        next.last_slot = slot;
        state.level = next;
        if slot <= now {
            return None;
        }
        let (served, token) = oneshot::channel();
        let turn = state.waiting.push(namespace, Waiter { slot, served });
        Some(Place { limit: self, turn, token })
    }

    /// Hands the token of `slot` to the caller whose turn it is. Returns the slot that the caller at `turn` has now;
    /// `None` if it was served.
    fn hand_out(&self, slot: Instant, turn: Turn) -> Option<Instant> {
        let mut state = lock(&self.state);
        // A caller that was served in the meantime has given its slot away.
        state.waiting.get_mut(turn)?;
        let (_, first) = state.waiting.pop()?;
        // A caller that was dropped has left the list, so there is a receiver.
        let _ = first.served.send(slot);
        let waiter = state.waiting.get_mut(turn)?;
        waiter.slot = first.slot;
        Some(first.slot)
    }

    fn leave(&self, turn: Turn, now: Instant) {
        let mut state = lock(&self.state);
        let Some(Waiter { slot, .. }) = state.waiting.remove(turn) else { return };
        let later = state.level.last_slot.saturating_duration_since(slot);
        let tokens = 1.0 - later.as_secs_f64() * self.per_second;
        if slot <= now || tokens <= 0.0 {
            return;
        }
        let mut next = state.level.advanced(now, self.per_second, self.burst);
        next.tokens = (next.tokens + tokens).min(self.burst);
        if slot == next.last_slot {
            let step = Duration::from_secs_f64(1.0 / self.per_second);
            next.last_slot = slot.checked_sub(step).map_or(now, |previous| previous.max(now));
        }
        state.level = next;
    }
}

impl Level {
    fn advanced(self, now: Instant, per_second: f64, burst: f64) -> Self {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * per_second;
        Self { tokens: (self.tokens + gained).min(burst), at: self.at.max(now), last_slot: self.last_slot }
    }
}

/// The place of a caller in the list. If it is dropped before the caller is served, its token returns to the bucket,
/// unless a later caller has reserved one.
struct Place<'a> {
    limit: &'a Limit,
    turn: Turn,
    token: oneshot::Receiver<Instant>,
}

impl Place<'_> {
    /// Waits for a token. Returns the time of the token.
    async fn served(mut self) -> Instant {
        let slot = lock(&self.limit.state).waiting.get_mut(self.turn).map(|waiter| waiter.slot);
        let mut due = pin!(sleep_until(slot.unwrap_or_else(Instant::now)));
        loop {
            tokio::select! {
                biased;
                token = &mut self.token => return token.unwrap_or_else(|_| Instant::now()),
                () = &mut due => {
                    let now = due.deadline();
                    if let Some(slot) = self.limit.hand_out(now, self.turn) {
                        due.as_mut().reset(slot.max(now));
                    }
                }
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.limit.leave(self.turn, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn waits_follow_rate_and_burst() {
        // (qps, burst, idle seconds before, waits of the requests in milliseconds)
        let table: &[(f32, u32, u64, &[u64])] = &[
            (10.0, 1, 0, &[0, 100, 100, 100]),
            (10.0, 3, 0, &[0, 0, 0, 100, 100]),
            (10.0, 2, 60, &[0, 0, 100]),
            (0.5, 1, 0, &[0, 2000, 2000]),
            (0.0, 1, 0, &[0, 200, 200]),
            (10.0, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 100]),
            (-1.0, 1, 0, &[0, 0, 0, 0]),
            (f32::NAN, 1, 0, &[0, 0]),
        ];
        for (qps, burst, rest, waits) in table {
            let bucket = TokenBucket::new(*qps, *burst);
            tokio::time::advance(Duration::from_secs(*rest)).await;
            let mut seen = Vec::new();
            for _ in *waits {
                let started = Instant::now();
                let reported = bucket.acquire("").await;
                let slept = started.elapsed();
                // The timer rounds up to its next millisecond.
                assert!(slept >= reported && slept <= reported + Duration::from_millis(2));
                seen.push((reported.as_secs_f64() * 1000.0).round());
            }
            for (at, (seen, wanted)) in seen.iter().zip(*waits).enumerate() {
                assert!(
                    (seen - *wanted as f64).abs() <= 2.0,
                    "qps {qps} burst {burst} request {at}: waited {seen} ms, want {wanted} ms"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_callers_get_consecutive_slots() {
        let bucket = TokenBucket::new(10.0, 2);
        let waits = futures::future::join_all((0..5).map(|_| bucket.acquire(""))).await;
        assert_eq!(waits, [0, 0, 100, 200, 300].map(Duration::from_millis).to_vec());
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_reservation_returns_its_token() {
        let bucket = TokenBucket::new(10.0, 1);
        bucket.acquire("").await;
        {
            let mut left = Box::pin(bucket.acquire(""));
            assert!((&mut left).now_or_never().is_none());
        }
        let wait = bucket.acquire("").await;
        assert_eq!(wait, Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_reservation_before_others_stays_spent() {
        let bucket = TokenBucket::new(10.0, 1);
        bucket.acquire("").await;
        let mut first = Box::pin(bucket.acquire(""));
        let mut second = Box::pin(bucket.acquire(""));
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert_eq!(bucket.acquire("").await, Duration::from_millis(300));
        drop(second);
    }

    #[tokio::test(start_paused = true)]
    async fn namespace_with_many_requests_delays_another_by_one_token() {
        let bucket = TokenBucket::new(10.0, 1);
        bucket.acquire("busy").await;
        let busy = futures::future::join_all((0..50).map(|_| bucket.acquire("busy")));
        let other = async {
            tokio::time::sleep(Duration::from_millis(950)).await;
            let mut waits = Vec::new();
            for _ in 0..3 {
                waits.push(bucket.acquire("other").await);
            }
            waits
        };
        let (mut busy, other) = futures::future::join(busy, other).await;
        assert!(other.iter().all(|wait| *wait <= Duration::from_millis(202)), "{other:?}");
        busy.sort();
        let total = busy.last().copied().unwrap_or_default();
        assert!((Duration::from_millis(5200)..=Duration::from_millis(5310)).contains(&total), "{total:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_leave_the_list_do_not_delay_others() {
        let bucket = TokenBucket::new(10.0, 1);
        bucket.acquire("").await;
        let mut left: Vec<_> = (0..9).map(|_| Box::pin(bucket.acquire("a"))).collect();
        let mut stayed = Box::pin(bucket.acquire("b"));
        for caller in &mut left {
            assert!(caller.now_or_never().is_none());
        }
        assert!((&mut stayed).now_or_never().is_none());
        drop(left);
        assert!(stayed.await <= Duration::from_millis(1000));
    }

    proptest::proptest! {
        /// Callers of several namespaces, some of which leave: tokens never come faster than the rate, and no caller
        /// that stays waits forever.
        #[test]
        fn every_caller_is_served_within_the_rate(
            callers in proptest::collection::vec((0u64..400, 0usize..4, proptest::option::of(0u64..600)), 1..60),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let (bucket, start) = (TokenBucket::new(20.0, 3), Instant::now());
                let callers = callers.iter().map(|(begin, namespace, patience)| {
                    let bucket = &bucket;
                    async move {
                        tokio::time::sleep(Duration::from_millis(*begin)).await;
                        let served = bucket.acquire(["a", "b", "c", ""][*namespace]);
                        let patience = Duration::from_millis(patience.unwrap_or(60_000));
                        tokio::time::timeout(patience, served).await.ok().map(|_| start.elapsed())
                    }
                });
                let mut times: Vec<Duration> = futures::future::join_all(callers).await.into_iter().flatten().collect();
                times.sort();
                for (before, time) in times.iter().enumerate() {
                    let max = 3.0 + (time.as_secs_f64() + 0.002) * 20.0;
                    assert!(before as f64 + 1.0 <= max + 1e-6, "{} served after {time:?}", before + 1);
                }
                assert!(times.last().is_none_or(|last| *last < Duration::from_secs(10)), "{times:?}");
            });
        }

        #[test]
        fn bucket_grants_at_most_burst_plus_rate(
            qps in 1u32..200,
            burst in 1u32..50,
            pauses in proptest::collection::vec(0u64..300, 1..60),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let bucket = TokenBucket::new(qps as f32, burst);
                let start = Instant::now();
                let mut passed = 0u32;
                for pause in pauses {
                    tokio::time::advance(Duration::from_millis(pause)).await;
                    bucket.acquire("").await;
                    passed += 1;
                    let max = f64::from(burst)
                        + start.elapsed().as_secs_f64() * f64::from(qps)
                        + 1e-6;
                    assert!(f64::from(passed) <= max, "{passed} passed, at most {max}");
                }
            });
        }
    }
}
