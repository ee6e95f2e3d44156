//! The pace of writes while the pods of a Service change faster than they are written.
//!
//! The slices of a batch are written concurrently, and the next batch is decided as soon as the cache contains them.
//! Without a gap this leads to up to twice as many writes as in upstream, which writes slices in sequence and computes
//! all endpoints of the Service before each batch. The gap, or cooldown, is the usual duration of a write, times the
//! number of writes in the batch plus one. The measured duration of the batch is not used: a write that happened to be
//! slow has delayed its changes already, and a gap of the same length would delay the next ones again. The gap applies
//! only to changes that arrive during a batch; changes that arrive one by one are never delayed.

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use runtime::lock::lock;
use tokio::time::Instant;

/// Minimum cooldown, also until the usual duration is known.
const MIN_COOLDOWN: Duration = Duration::from_millis(10);

/// Number of writes that are added to those of the batch. With two, the median lag of a Service of 250 pods with a
/// hundred changes a second was longer than with upstream's manager; without any, up to 1.4 times as many slices were
/// written.
const ADDED_WRITES: u32 = 1;

/// Maximum cooldown. Only an API server that is overloaded by writes needs more time for a batch. In a measurement with
/// a maximum of 200 ms, many changing Services caused 1.6 times as many writes on such an API server as with upstream.
const MAX_COOLDOWN: Duration = Duration::from_millis(500);

/// One write changes the usual duration by at most an eighth of it, or by at most this time if that is longer.
const MIN_STEP: Duration = Duration::from_millis(1);

/// The usual duration of this controller's writes: approximately the median of the latest ones. After a change of the
/// load, the estimate is right again within about twenty writes; a single slow write hardly changes it.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Duration>);

impl Pace {
    /// Runs a write of a batch, and adapts the usual duration.
    pub async fn add<T>(&self, write: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let written = write.await;
        self.took(begun.elapsed());
        written
    }

    /// Adapts the usual duration to the duration of a write.
    fn took(&self, duration: Duration) {
        let mut usual = lock(&self.0);
        let step = MIN_STEP.max(*usual / 8);
        *usual = duration.clamp(usual.saturating_sub(step), *usual + step);
    }

    /// Returns the cooldown of a Service after a batch of this number of writes.
    pub fn cooldown(&self, writes: usize) -> Duration {
        if writes == 0 {
            return Duration::ZERO;
        }
        let usual = *lock(&self.0);
        let writes = u32::try_from(writes).unwrap_or(u32::MAX).saturating_add(ADDED_WRITES);
        usual.saturating_mul(writes).clamp(MIN_COOLDOWN, MAX_COOLDOWN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    #[test]
    fn cooldown_is_the_usual_time_of_the_writes_and_of_one_more_within_its_bounds() {
        // (milliseconds of each earlier write, number of writes of the batch, cooldown)
        for (earlier, writes, expected) in [
            (&[][..], 0, 0),
            (&[], 1, 10),
            (&[3; 30], 1, 10),
            (&[10; 30], 1, 20),
            (&[10; 30], 5, 60),
            (&[10; 30], usize::MAX, 500),
            (&[100; 90], 2, 300),
            (&[900; 90], 1, 500),
        ] {
            let pace = Pace::default();
            earlier.iter().for_each(|took| pace.took(millis(*took)));
            assert_eq!(pace.cooldown(writes).as_millis(), expected, "{writes} after {earlier:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_write_hardly_changes_the_cooldown() {
        let pace = Pace::default();
        for duration in [millis(40); 60] {
            pace.add(tokio::time::sleep(duration)).await;
        }
        let before = pace.cooldown(1);
        pace.add(tokio::time::sleep(Duration::from_secs(30))).await;
        assert!(pace.cooldown(1) <= before + before / 8 + millis(1), "{before:?}, then {:?}", pace.cooldown(1));
    }

    /// Returns the durations of writes in milliseconds: mostly 6 to 13, and every fiftieth up to 150 more.
    fn durations() -> impl Iterator<Item = u64> {
        let mut seed = 7_u64;
        std::iter::repeat_with(move || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = seed >> 33;
            6 + random % 8 + if random.is_multiple_of(50) { random / 50 % 150 } else { 0 }
        })
    }

    /// Writes a change every ten milliseconds, for a hundred seconds, in batches of one write. `gap` returns the
    /// milliseconds between two batches. Returns the median and the 99th percentile of the lag, and the number of
    /// writes.
    fn simulate(mut gap: impl FnMut(u64) -> u64) -> (u64, u64, usize) {
        let (mut lags, mut writes, mut now) = (Vec::new(), 0, 0);
        let mut changes = (0..100_000_u64).step_by(10).peekable();
        let mut durations = durations();
        while let Some(next) = changes.peek() {
            now = now.max(*next);
            let duration = durations.next().expect("endless");
            let end = now + duration;
            while let Some(change) = changes.next_if(|change| *change <= now) {
                lags.push(end - change);
            }
            writes += 1;
            // A change that arrives after the write is written immediately.
            let waits = changes.peek().is_some_and(|change| *change <= end);
            now = end + if waits { gap(duration) } else { 0 };
        }
        lags.sort_unstable();
        (lags[lags.len() / 2], lags[lags.len() * 99 / 100], writes)
    }

    /// The alternative is a gap as long as the writes of the batch itself.
    #[test]
    fn usual_duration_as_gap_causes_fewer_writes_and_shorter_long_lags_than_the_duration_of_the_batch() {
        let (other_median, other_worst, other_writes) = simulate(|duration| duration.min(500));
        let pace = Pace::default();
        let (median, worst, writes) = simulate(|duration| {
            pace.took(millis(duration));
            pace.cooldown(1).as_millis() as u64
        });
        assert!(worst * 4 < other_worst * 3, "99th percentile: {worst} ms, alternative: {other_worst} ms");
        assert!(writes * 4 < other_writes * 3, "{writes} writes, alternative: {other_writes}");
        // Upstream's median at this rate is 43 ms.
        assert!(median < other_median + 15 && median < 30, "median: {median} ms, alternative: {other_median} ms");
    }
}
