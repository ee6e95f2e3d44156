//! The permission to list a kind. Few kinds are listed at the same time, to limit the API server's load.
//!
//! A list keeps its permit only while data arrives, and only for a limited time. An aggregated API may respond after a
//! minute, byte by byte, or never, and has any number of kinds: lists of other APIs must not wait for these.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Time without data after which a list counts as no load of the server, so that another one may begin.
const MAX_IDLE: Duration = Duration::from_secs(1);

/// Maximum time for which a list delays other lists.
const MAX_TIME: Duration = Duration::from_secs(30);

/// A permit for one list.
pub(super) struct ListPermit {
    permit: Option<OwnedSemaphorePermit>,
    /// The time at which the permit is released, whether data arrives or not.
    until: Instant,
}

impl ListPermit {
    /// Waits for a permit.
    pub(super) async fn acquire(permits: &Arc<Semaphore>) -> Self {
        let permit = permits.clone().acquire_owned().await.ok();
        Self { permit, until: Instant::now() + MAX_TIME }
    }

    /// Waits for the head of a response, or for its next data. Releases the permit if that takes too long.
    pub(super) async fn wait_for<T>(&mut self, data: impl Future<Output = T>) -> T {
        let mut data = pin!(data);
        if self.permit.is_some() {
            let now = Instant::now();
            if now < self.until
                && let Ok(data) = timeout_at(self.until.min(now + MAX_IDLE), data.as_mut()).await
            {
                return data;
            }
            self.permit = None;
        }
        data.await
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn permit_is_released_when_no_data_arrives_or_the_list_is_long() {
        let permits = Arc::new(Semaphore::new(1));
        // (seconds between data, seconds for which the permit is held)
        for (interval, held) in [(0.5, 30.0), (0.9, 30.0), (1.5, 1.0), (90.0, 1.0)] {
            let mut permit = ListPermit::acquire(&permits).await;
            let begun = Instant::now();
            let list = async {
                for _ in 0..100 {
                    permit.wait_for(sleep(Duration::from_secs_f64(interval))).await;
                }
            };
            let released = async {
                drop(permits.acquire().await);
                begun.elapsed().as_secs_f64()
            };
            let released = tokio::select! {
                () = list => panic!("the permit was kept"),
                released = released => released,
            };
            assert!((held - 0.5..held + 0.5).contains(&released), "every {interval} s: {released} s");
        }
    }
}
