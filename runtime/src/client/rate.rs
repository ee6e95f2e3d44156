//! A token bucket that limits the request rate: each caller reserves the next free slot and sleeps until then.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// Requests per second when the configured rate is zero.
const DEFAULT_QPS: f32 = 5.0;
/// Bucket size when the configured burst is zero.
const DEFAULT_BURST: u32 = 10;

/// A client-side rate limit: bursts of `burst` requests, refilled at `qps` tokens per second.
///
/// Callers are served in the order of their reservations. A caller that is dropped before its turn returns its token,
/// less the tokens reserved after it.
///
/// Follows client-go `rest.RESTClientForConfigAndClient` for the defaults and
/// `util/flowcontrol.NewTokenBucketRateLimiter` over `golang.org/x/time/rate` for the waiting.
#[derive(Debug)]
pub struct TokenBucket {
    limit: Option<Limit>,
}

#[derive(Debug)]
struct Limit {
    per_second: f64,
    burst: f64,
    level: Mutex<Level>,
}

/// The fill level of the bucket at an instant; negative if slots are reserved ahead.
#[derive(Debug, Clone, Copy)]
struct Level {
    tokens: f64,
    at: Instant,
    /// The latest slot handed out.
    last_slot: Instant,
}

impl TokenBucket {
    /// Creates a full bucket of `burst` tokens that gains `qps` tokens per second.
    ///
    /// A `qps` of zero means 5, a `burst` of zero means 10, a `qps` that is negative or not a number means no limit.
    /// Must be called inside a tokio runtime only if its time is paused.
    #[must_use]
    pub fn new(qps: f32, burst: u32) -> Self {
        let qps = if qps == 0.0 { DEFAULT_QPS } else { qps };
        let burst = if burst == 0 { DEFAULT_BURST } else { burst };
        if qps.is_nan() || qps < 0.0 {
            return Self { limit: None };
        }
        let now = Instant::now();
        Self {
            limit: Some(Limit {
                per_second: f64::from(qps),
                burst: f64::from(burst),
                level: Mutex::new(Level { tokens: f64::from(burst), at: now, last_slot: now }),
            }),
        }
    }

    /// Takes one token and waits for it if necessary. Returns the time waited.
    pub async fn acquire(&self) -> Duration {
        let Some(limit) = &self.limit else {
            return Duration::ZERO;
        };
        let reservation = limit.reserve(Instant::now());
        let wait = reservation.slot - reservation.made;
        if !wait.is_zero() {
            tokio::time::sleep_until(reservation.slot).await;
        }
        reservation.keep();
        wait
    }
}

impl Limit {
    fn reserve(&self, now: Instant) -> Reservation<'_> {
        let mut level = self.level();
        let mut next = level.advanced(now, self.per_second, self.burst);
        next.tokens -= 1.0;
        let wait = Duration::try_from_secs_f64((-next.tokens).max(0.0) / self.per_second).unwrap_or(Duration::MAX);
        let slot = now.checked_add(wait).unwrap_or(next.last_slot);
        next.last_slot = slot;
        *level = next;
        Reservation { limit: self, made: now, slot, kept: false }
    }

    fn give_back(&self, slot: Instant, now: Instant) {
        let mut level = self.level();
        let later = level.last_slot.saturating_duration_since(slot);
        let tokens = 1.0 - later.as_secs_f64() * self.per_second;
        if slot <= now || tokens <= 0.0 {
            return;
        }
        let mut next = level.advanced(now, self.per_second, self.burst);
        next.tokens = (next.tokens + tokens).min(self.burst);
        if slot == next.last_slot {
            let step = Duration::from_secs_f64(1.0 / self.per_second);
            next.last_slot = slot.checked_sub(step).map_or(now, |previous| previous.max(now));
        }
        *level = next;
    }

    fn level(&self) -> std::sync::MutexGuard<'_, Level> {
        self.level.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Level {
    fn advanced(self, now: Instant, per_second: f64, burst: f64) -> Self {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * per_second;
        Self { tokens: (self.tokens + gained).min(burst), at: self.at.max(now), last_slot: self.last_slot }
    }
}

/// A slot in the future. If it is dropped before `keep`, it returns to the bucket.
struct Reservation<'a> {
    limit: &'a Limit,
    made: Instant,
    slot: Instant,
    kept: bool,
}

impl Reservation<'_> {
    fn keep(mut self) {
        self.kept = true;
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.limit.give_back(self.slot, Instant::now());
        }
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
                let reported = bucket.acquire().await;
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
        let waits = futures::future::join_all((0..5).map(|_| bucket.acquire())).await;
        assert_eq!(waits, [0, 0, 100, 200, 300].map(Duration::from_millis).to_vec());
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_reservation_returns_its_token() {
        let bucket = TokenBucket::new(10.0, 1);
        bucket.acquire().await;
        {
            let mut left = Box::pin(bucket.acquire());
            assert!((&mut left).now_or_never().is_none());
        }
        let wait = bucket.acquire().await;
        assert_eq!(wait, Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_reservation_before_others_stays_spent() {
        let bucket = TokenBucket::new(10.0, 1);
        bucket.acquire().await;
        let mut first = Box::pin(bucket.acquire());
        let mut second = Box::pin(bucket.acquire());
        assert!((&mut first).now_or_never().is_none());
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        assert_eq!(bucket.acquire().await, Duration::from_millis(300));
        drop(second);
    }

    proptest::proptest! {
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
                    bucket.acquire().await;
                    passed += 1;
                    let most = f64::from(burst)
                        + start.elapsed().as_secs_f64() * f64::from(qps)
                        + 1e-6;
                    assert!(f64::from(passed) <= most, "{passed} passed, at most {most}");
                }
            });
        }
    }
}
