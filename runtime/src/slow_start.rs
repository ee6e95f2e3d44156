//! Slow start: one attempt first, then twice as many while all succeed (pkg/controller/replicaset, slowStartBatch).
//!
//! A thousand creations that would all fail for the same reason, for example a quota, cost one request instead.

use futures::future::join_all;

/// Size of the first batch.
const FIRST: usize = 1;

/// Runs `run` `count` times in growing batches; the attempts of a batch run concurrently. After a batch with a failure
/// no further batch begins. Returns the number of successes, and the first failure.
pub async fn slow_start<F, E>(count: usize, run: impl Fn(usize) -> F) -> (usize, Option<E>)
where
    F: Future<Output = Result<(), E>>,
{
    let (mut started, mut succeeded, mut size) = (0, 0, FIRST);
    while started < count {
        let batch = started..count.min(started + size);
        started = batch.end;
        let outcomes = join_all(batch.map(&run)).await;
        let tried = outcomes.len();
        let mut failures = outcomes.into_iter().filter_map(Result::err);
        if let Some(first) = failures.next() {
            return (succeeded + tried - 1 - failures.count(), Some(first));
        }
        succeeded += tried;
        size *= 2;
    }
    (succeeded, None)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn batches_double_and_stop_at_the_first_failure() {
        // (count, index of the first failed attempt) -> (attempts, successes)
        for (count, limit, tried, succeeded) in [
            (0, 9, 0, 0),
            (1, 9, 1, 1),
            (5, 9, 5, 5),
            (100, 0, 1, 0),
            (100, 1, 3, 1),
            (100, 2, 3, 2),
            (100, 10, 15, 10),
        ] {
            let tries = Cell::new(0);
            let (done, error) = slow_start(count, |at| {
                tries.set(tries.get() + 1);
                async move { if at < limit { Ok(()) } else { Err(at) } }
            })
            .await;
            assert_eq!((tries.get(), done), (tried, succeeded), "{count} with {limit}");
            assert_eq!(error.is_some(), done < count);
        }
    }
}
