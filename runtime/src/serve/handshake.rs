//! A limit on the steps of TLS handshakes, so that they do not delay other tasks of the thread.
//!
//! Any client can start a handshake. One of its steps computes a signature, which takes milliseconds with a large RSA
//! key. The Lease is renewed on the same thread: if hundreds of clients connect at the same time, its renewal must not
//! wait for all of their steps.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::ready;

use tokio::sync::Semaphore;

/// Maximum number of steps before the other ready tasks of the thread run.
const MAX_STEPS: usize = 4;

/// The limit that all handshakes of a server share.
#[derive(Clone)]
pub(super) struct StepLimit(Arc<Semaphore>);

impl StepLimit {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_STEPS)))
    }

    /// Runs a handshake. Each of its steps needs a permit. A handshake that waits for its client holds none.
    pub(super) async fn run<F: Future>(&self, handshake: F) -> F::Output {
        let mut handshake = pin!(handshake);
        let mut acquiring = None;
        poll_fn(|context| {
            let acquire = acquiring.get_or_insert_with(|| Box::pin(self.0.clone().acquire_owned()));
            let permit = ready!(acquire.as_mut().poll(context));
            acquiring = None;
            let step = handshake.as_mut().poll(context);
            // The new task runs after all tasks that are ready now, and only then releases the permit.
            tokio::spawn(async move { drop(permit) });
            step
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use futures::future::join_all;

    use super::*;

    /// A handshake of many steps that never waits for its client.
    async fn busy(steps: Arc<AtomicUsize>) {
        let mut left = 50;
        poll_fn(|context| {
            steps.fetch_add(1, Ordering::Relaxed);
            left -= 1;
            if left == 0 {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    #[tokio::test]
    async fn other_task_runs_after_few_steps_of_many_handshakes() {
        let (limit, steps) = (StepLimit::new(), Arc::new(AtomicUsize::new(0)));
        let handshakes: Vec<_> = (0..200)
            .map(|_| {
                let (limit, steps) = (limit.clone(), steps.clone());
                tokio::spawn(async move { limit.run(busy(steps)).await })
            })
            .collect();
        for _ in 0..20 {
            tokio::task::yield_now().await;
            let before = steps.load(Ordering::Relaxed);
            let counted = steps.clone();
            let after = tokio::spawn(async move { counted.load(Ordering::Relaxed) }).await.expect("it ends");
            assert!(after - before <= MAX_STEPS, "{} steps", after - before);
        }
        let ended = join_all(handshakes).await;
        assert!(ended.into_iter().all(|ended| ended.is_ok()));
        assert_eq!(steps.load(Ordering::Relaxed), 200 * 50);
    }

    #[tokio::test]
    async fn handshakes_that_wait_for_their_clients_hold_no_permit() {
        let limit = StepLimit::new();
        let waiting: Vec<_> = (0..MAX_STEPS * 2)
            .map(|_| {
                let limit = limit.clone();
                tokio::spawn(async move { limit.run(std::future::pending::<()>()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(limit.run(async { "done" }).await, "done");
        waiting.iter().for_each(|waiting| waiting.abort());
    }
}
