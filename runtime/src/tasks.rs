//! A set of tasks that its own tasks can add to.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, Weak};

use tokio::task::JoinSet;

use crate::lock::lock;

/// A set of tasks. When it is dropped, all of them are cancelled.
#[derive(Default)]
pub struct Tasks(Arc<Mutex<JoinSet<()>>>);

/// Starts tasks in a set. It does not keep the set alive, so that a task of the set may hold it.
#[derive(Clone)]
pub struct Spawner(Weak<Mutex<JoinSet<()>>>);

impl Tasks {
    /// Returns a handle that starts tasks in this set.
    pub fn spawner(&self) -> Spawner {
        Spawner(Arc::downgrade(&self.0))
    }

    /// Starts a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        spawn(&self.0, task);
    }

    /// Returns the number of tasks that have not ended.
    pub fn len(&self) -> usize {
        let mut tasks = lock(&self.0);
        while tasks.try_join_next().is_some() {}
        tasks.len()
    }

    /// Returns true if all tasks have ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until all tasks have ended, including those that are started during the wait.
    pub async fn finished(&self) {
        while poll_fn(|context| lock(&self.0).poll_join_next(context)).await.is_some() {}
    }

    /// Cancels all tasks and waits until they have ended.
    pub async fn shutdown(&self) {
        lock(&self.0).abort_all();
        self.finished().await;
    }
}

impl Spawner {
    /// Starts a task. Returns false if the set no longer exists.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> bool {
        self.0.upgrade().is_some_and(|tasks| {
            spawn(&tasks, task);
            true
        })
    }
}

/// Starts a task and removes those that have ended.
fn spawn(tasks: &Mutex<JoinSet<()>>, task: impl Future<Output = ()> + Send + 'static) {
    let mut tasks = lock(tasks);
    while tasks.try_join_next().is_some() {}
    tasks.spawn(task);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    /// Starts a task that starts the next one each second, and counts them.
    fn chain(spawner: Spawner, started: Arc<AtomicUsize>) {
        let next = spawner.clone();
        let task = async move {
            started.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_secs(1)).await;
            chain(next, started);
        };
        spawner.spawn(task);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_end_with_their_set_including_those_they_started() {
        let (tasks, started) = (Tasks::default(), Arc::<AtomicUsize>::default());
        chain(tasks.spawner(), started.clone());
        tokio::time::sleep(Duration::from_millis(9_500)).await;
        assert_eq!(started.load(Ordering::Relaxed), 10);
        assert_eq!(tasks.len(), 1, "tasks that have ended are removed");
        drop(tasks);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(started.load(Ordering::Relaxed), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn finished_waits_for_tasks_that_are_started_meanwhile() {
        let tasks = Tasks::default();
        let (spawner, began) = (tasks.spawner(), tokio::time::Instant::now());
        tasks.spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(spawner.spawn(tokio::time::sleep(Duration::from_secs(2))));
        });
        tasks.finished().await;
        assert_eq!(began.elapsed(), Duration::from_secs(3));
        assert!(tasks.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_cancels_tasks() {
        let tasks = Tasks::default();
        tasks.spawn(std::future::pending());
        tasks.shutdown().await;
        let spawner = tasks.spawner();
        drop(tasks);
        assert!(!spawner.spawn(async {}));
    }
}
