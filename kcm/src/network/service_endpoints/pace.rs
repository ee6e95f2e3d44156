//! The pace of writes while the pods of a Service change faster than they are written.
//!
//! The slices of a batch are written concurrently, and the next batch is decided as soon as the cache contains them.
//! Without a gap this leads to up to twice as many writes as upstream, which writes slices in sequence and begins the
//! next batch only with the next change. The gap is the sum of the writes' times: on average, less than one write of a
//! Service is in flight. It applies only to changes that arrive during a batch; changes that arrive one by one are
//! never delayed.

use std::future::Future;
use std::sync::Mutex;
use std::time::Duration;

use runtime::lock::lock;
use tokio::time::Instant;

/// Maximum cooldown. Only an API server that is overloaded by writes takes longer for the writes of a batch; with a
/// cooldown of 200 ms, a churn of many Services then caused 1.6 times as many writes as upstream's.
const MAX_COOLDOWN: Duration = Duration::from_millis(500);

/// The time that the writes of one batch took in sum.
#[derive(Debug, Default)]
pub struct Pace(Mutex<Duration>);

impl Pace {
    /// Runs a write of the batch.
    pub async fn add<T>(&self, write: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        let written = write.await;
        *lock(&self.0) += begun.elapsed();
        written
    }

    /// Returns the cooldown of the Service after the batch.
    pub fn cooldown(&self) -> Duration {
        MAX_COOLDOWN.min(*lock(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn cooldown_is_the_sum_of_concurrent_writes_within_its_bound() {
        // (milliseconds of each of these concurrent writes, cooldown)
        for (writes, expected) in
            [(&[][..], 0), (&[20], 20), (&[20, 30, 10], 60), (&[2000], 500), (&[190, 190, 190], 500)]
        {
            let pace = Pace::default();
            let write = |millis: &u64| pace.add(tokio::time::sleep(Duration::from_millis(*millis)));
            join_all(writes.iter().map(write)).await;
            let cooldown = pace.cooldown().as_millis() as u64;
            // The paused clock rounds each sleep up by at most a millisecond.
            assert!((expected..=expected + 3).contains(&cooldown), "{cooldown} ms after {writes:?}");
        }
    }
}
