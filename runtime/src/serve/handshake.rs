//! Handshakes that leave the thread to others.
//!
//! A step of a handshake computes signatures, with a large RSA key for milliseconds, and needs no credentials. The Lease is
//! renewed on the same thread. If hundreds of clients connect at the same time, its renewal must not wait for all of their
//! steps.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::ready;

use tokio::sync::Semaphore;

/// Number of steps between two turns of any other task of the runtime.
const STEPS_PER_TURN: usize = 4;

/// The pace of all handshakes of a server.
#[derive(Clone)]
pub(super) struct Pace(Arc<Semaphore>);

impl Pace {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(STEPS_PER_TURN)))
    }

    /// Runs a handshake. Each of its steps waits for its turn; the waits for the client take no turn.
    pub(super) async fn run<F: Future>(&self, handshake: F) -> F::Output {
        let mut handshake = pin!(handshake);
        let mut acquiring = None;
        poll_fn(|context| {
            let turn = acquiring.get_or_insert_with(|| Box::pin(self.0.clone().acquire_owned()));
            let permit = ready!(turn.as_mut().poll(context));
            acquiring = None;
            let step = handshake.as_mut().poll(context);
            // The turn ends when all tasks that are ready now have run: the new task is behind them.
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
        let (pace, steps) = (Pace::new(), Arc::new(AtomicUsize::new(0)));
        let handshakes: Vec<_> = (0..200)
            .map(|_| {
                let (pace, steps) = (pace.clone(), steps.clone());
                tokio::spawn(async move { pace.run(busy(steps)).await })
            })
            .collect();
        for _ in 0..20 {
            tokio::task::yield_now().await;
            let before = steps.load(Ordering::Relaxed);
            let counted = steps.clone();
            let after = tokio::spawn(async move { counted.load(Ordering::Relaxed) }).await.expect("it ends");
            assert!(after - before <= STEPS_PER_TURN, "{} steps", after - before);
        }
        let ended = join_all(handshakes).await;
        assert!(ended.into_iter().all(|ended| ended.is_ok()));
        assert_eq!(steps.load(Ordering::Relaxed), 200 * 50);
    }

    #[tokio::test]
    async fn handshakes_that_wait_for_their_clients_take_no_turn() {
        let pace = Pace::new();
        let waiting: Vec<_> = (0..STEPS_PER_TURN * 2)
            .map(|_| {
                let pace = pace.clone();
                tokio::spawn(async move { pace.run(std::future::pending::<()>()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(pace.run(async { "done" }).await, "done");
        waiting.iter().for_each(|waiting| waiting.abort());
    }
}
