//! Workers: they take keys from a queue and reconcile them, one at a time each.
//!
//! A reconcile that fails is retried with the key's own exponential backoff until it succeeds: a quota or a webhook
//! that refused a write may allow it hours later, without a change of the object. After a terminal error, the key is
//! retried only at the next change of the object. A reconcile that panics is counted and retried like a failed one, and
//! affects no other key. If the API server returned a Retry-After, the retry is no sooner.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Semaphore;
use tracing::{Instrument, debug, error, info_span, warn};

use crate::journal::{Journal, LastResult, Notes, with_notes};
use crate::queue::{Queue, QueueKey};
use crate::stale;
use crate::stealing::reconciling;
use crate::tasks::Tasks;
use crate::text::{MAX_MESSAGE_BYTES, shortened};
use crate::write::WriteError;

/// The result of a successful reconcile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until the object changes.
    Done,
    /// Requeue the key after this time.
    RequeueAfter(Duration),
    /// Requeue the key with exponential backoff. Metrics count the reconcile as a success.
    RequeueWithBackoff,
    /// The cache does not contain this controller's last writes yet; nothing was decided. The store requeues the key
    /// when it contains these writes.
    WaitingForCache,
}

/// The reason why a reconcile failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReconcileError {
    /// The message for the log and the diagnostics page.
    pub message: String,
    /// Retrying cannot succeed until the object changes: the key is not requeued.
    pub terminal: bool,
}

impl ReconcileError {
    /// Creates an error that a retry may fix.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), terminal: false }
    }

    /// Truncates the message to the maximum length of a log line.
    fn shortened(self) -> Self {
        Self { message: shortened(self.message, MAX_MESSAGE_BYTES), ..self }
    }
}

impl fmt::Display for ReconcileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<WriteError> for ReconcileError {
    fn from(error: WriteError) -> Self {
        Self { message: error.to_string(), terminal: error.is_namespace_terminating() || error.is_invalid_name() }
    }
}

/// The identity of a unit of work.
pub trait WorkKey: QueueKey + Sync + fmt::Display + 'static {}

impl<K: QueueKey + Sync + fmt::Display + 'static> WorkKey for K {}

/// The reconciler of a controller.
pub trait Reconcile: Send + Sync + 'static {
    /// The identity of a unit of work.
    type Key: WorkKey;

    /// Prepares the reconciler. Runs once, before the first reconcile, when this process leads and the kinds that the
    /// controller reads are listed.
    fn begin(&self) {}

    /// Brings the observed state closer to the desired state of the key's object.
    fn reconcile<'a>(&'a self, key: &'a Self::Key) -> BoxFuture<'a, Result<Outcome, ReconcileError>>;
}

/// Options of a controller's workers.
#[derive(Debug, Clone, Copy)]
pub struct WorkOptions {
    /// The controller's name in logs.
    pub name: &'static str,
    /// Number of keys that are reconciled at the same time; up to twice as many while reconciles take long.
    pub workers: usize,
}

/// The numbers of a controller's reconciles by result, and their journal.
#[derive(Debug, Default)]
pub struct WorkCounts {
    /// Successful reconciles.
    pub succeeded: AtomicU64,
    /// Failed reconciles.
    pub failed: AtomicU64,
    /// Panicked reconciles, and a panic of [`Reconcile::begin`].
    pub panicked: AtomicU64,
    /// Reconciles that ended because a cache was not up to date.
    pub waiting_for_cache: AtomicU64,
    /// The last decisions and the failing keys.
    pub journal: Journal,
}

/// The state that the runs of a controller share.
struct Worker<K> {
    options: WorkOptions,
    queue: Arc<Queue<K>>,
    reconciler: Arc<dyn Reconcile<Key = K>>,
    counts: Arc<WorkCounts>,
}

/// Starts to reconcile a controller's keys until its queue is closed; runs that have begun are finished.
///
/// One task takes the keys, and each run is a task of its own: a controller without work takes the memory of one task.
/// The workers are compiled once for each kind of keys, not for each controller.
pub fn work<K: WorkKey>(
    options: WorkOptions,
    queue: &Arc<Queue<K>>,
    reconciler: Arc<dyn Reconcile<Key = K>>,
    counts: &Arc<WorkCounts>,
    tasks: &Tasks,
) {
    let workers = options.workers.max(1);
    queue.set_workers(workers);
    // Twice as many as workers, because the queue hands out keys of further namespaces while runs take long.
    let places = Arc::new(Semaphore::new(workers * 2));
    let (queue, counts) = (queue.clone(), counts.clone());
    let worker = Arc::new(Worker { options, queue, reconciler, counts });
    let spawner = tasks.spawner();
    tasks.spawn(async move {
        // The preparation runs on a thread of the controllers, because it may read a whole cache.
        let begun = std::panic::catch_unwind(AssertUnwindSafe(|| worker.reconciler.begin()));
        if begun.is_err() {
            worker.counts.panicked.fetch_add(1, Ordering::Relaxed);
            error!(
                controller = worker.options.name,
                "the preparation of a controller panicked; it reconciles unprepared"
            );
        }
        while let Ok(place) = places.clone().acquire_owned().await
            && let Some(key) = worker.queue.next().await
        {
            let worker = worker.clone();
            spawner.spawn(async move {
                worker.run(key).await;
                drop(place);
            });
        }
    });
}

impl<K: WorkKey> Worker<K> {
    /// Reconciles a key and records the result.
    async fn run(&self, key: K) {
        let notes = Arc::new(Mutex::new(Notes::default()));
        let started = Instant::now();
        let span = info_span!("reconcile", controller = self.options.name, %key);
        let reconcile = stale::noting(async { self.reconciler.reconcile(&key).await });
        let run = with_notes(&notes, reconciling(reconcile));
        let outcome = AssertUnwindSafe(run).catch_unwind().instrument(span.clone()).await;
        let min_delay = Notes::retry_after(&notes);
        let settled = || settle(&self.queue, &self.counts, (&key, min_delay), outcome);
        let (ended, error) = span.in_scope(settled);
        self.counts.journal.record(key.to_string(), ended, started.elapsed(), Notes::take(&notes), error);
        match ended {
            LastResult::WaitingForCache => self.queue.waiting_for_cache(&key),
            _ => self.queue.done(&key),
        }
    }
}

/// The outcome of a reconcile, its error, or its panic.
type RunResult = Result<Result<Outcome, ReconcileError>, Box<dyn std::any::Any + Send>>;

/// Counts and logs the result of a reconcile, and requeues its key. Returns the result for the journal, with the error.
fn settle<K: QueueKey + fmt::Display>(
    queue: &Queue<K>,
    counts: &WorkCounts,
    (key, min_delay): (&K, Duration),
    result: RunResult,
) -> (LastResult, Option<String>) {
    let count = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
    let result = result.map(|ended| ended.map_err(ReconcileError::shortened));
    match result {
        Ok(Ok(outcome)) => {
            match outcome {
                Outcome::WaitingForCache => {
                    count(&counts.waiting_for_cache);
                    debug!("waiting for the cache to catch up");
                    return (LastResult::WaitingForCache, None);
                }
                Outcome::RequeueWithBackoff => queue.add_rate_limited_after(key.clone(), min_delay),
                Outcome::RequeueAfter(delay) => {
                    queue.forget(key);
                    queue.add_after(key.clone(), delay);
                }
                Outcome::Done => queue.forget(key),
            }
            count(&counts.succeeded);
            let ended = match outcome {
                Outcome::RequeueWithBackoff => LastResult::RequeueWithBackoff,
                Outcome::RequeueAfter(delay) => LastResult::RequeueAfter(delay),
                Outcome::Done | Outcome::WaitingForCache => LastResult::Done,
            };
            (ended, None)
        }
        Ok(Err(error)) if error.terminal => {
            count(&counts.failed);
            debug!(%error, "reconcile failed; retried at the next change");
            queue.forget(key);
            (LastResult::Dropped, Some(error.message))
        }
        Ok(Err(error)) => {
            count(&counts.failed);
            warn!(%error, "reconcile failed; requeued with backoff");
            queue.add_rate_limited_after(key.clone(), min_delay);
            (LastResult::Failed, Some(error.message))
        }
        Err(panic) => {
            count(&counts.panicked);
            let text = panic_text(&*panic);
            error!(panic = text, "reconcile panicked; requeued with backoff");
            queue.add_rate_limited_after(key.clone(), min_delay);
            (LastResult::Panicked, Some(format!("it panicked: {text}")))
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::queue::QueueOptions;

    /// A script of outcomes and a record of the calls.
    struct Scripted {
        script: Mutex<Vec<RunResult>>,
        calls: Mutex<Vec<tokio::time::Instant>>,
    }

    impl Reconcile for Scripted {
        type Key = String;
        fn reconcile<'a>(&'a self, _: &'a String) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
            async {
                self.calls.lock().unwrap().push(tokio::time::Instant::now());
                let next = self.script.lock().unwrap().pop();
                match next {
                    Some(Ok(outcome)) => outcome,
                    Some(Err(_)) => panic!("as scripted"),
                    None => Ok(Outcome::Done),
                }
            }
            .boxed()
        }
    }

    /// Runs a script (first entry first) for one key to its end; returns the calls and the counts.
    async fn play(mut script: Vec<RunResult>) -> (usize, [u64; 4]) {
        script.reverse();
        let reconciler = Arc::new(Scripted { script: Mutex::new(script), calls: Mutex::default() });
        let queue = Queue::new(QueueOptions::named("test"));
        let counts = Arc::new(WorkCounts::default());
        let tasks = Tasks::default();
        work(WorkOptions { name: "test", workers: 2 }, &queue, reconciler.clone(), &counts, &tasks);
        queue.add("key".to_owned());
        tokio::time::sleep(Duration::from_secs(5000)).await;
        queue.close();
        tasks.finished().await;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let calls = reconciler.calls.lock().unwrap().len();
        (
            calls,
            [load(&counts.succeeded), load(&counts.failed), load(&counts.panicked), load(&counts.waiting_for_cache)],
        )
    }

    fn failure(terminal: bool) -> RunResult {
        Ok(Err(ReconcileError { message: "as scripted".to_owned(), terminal }))
    }

    #[tokio::test(start_paused = true)]
    async fn each_outcome_requeues_as_documented() {
        assert_eq!(play(vec![Ok(Ok(Outcome::Done))]).await, (1, [1, 0, 0, 0]));
        assert_eq!(play(vec![Ok(Ok(Outcome::RequeueAfter(Duration::from_secs(60))))]).await, (2, [2, 0, 0, 0]));
        assert_eq!(play(vec![Ok(Ok(Outcome::RequeueWithBackoff))]).await, (2, [2, 0, 0, 0]));
        assert_eq!(play(vec![Ok(Ok(Outcome::WaitingForCache))]).await, (1, [0, 0, 0, 1]));
        assert_eq!(play(vec![failure(false), failure(false)]).await, (3, [1, 2, 0, 0]));
        assert_eq!(play(vec![failure(true)]).await, (1, [0, 1, 0, 0]));
        assert_eq!(play(vec![Err(Box::new("as scripted"))]).await, (2, [1, 0, 1, 0]));
    }

    #[tokio::test(start_paused = true)]
    async fn failed_key_is_requeued_no_sooner_than_the_server_requested() {
        struct Overloaded(Mutex<Vec<tokio::time::Instant>>);
        impl Reconcile for Overloaded {
            type Key = String;
            fn reconcile<'a>(&'a self, _: &'a String) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
                async {
                    self.0.lock().unwrap().push(tokio::time::Instant::now());
                    crate::journal::note_retry_after(Duration::from_secs(7));
                    crate::journal::note_retry_after(Duration::from_secs(1));
                    Err(ReconcileError::new("too many requests"))
                }
                .boxed()
            }
        }
        let reconciler = Arc::new(Overloaded(Mutex::default()));
        let queue = Queue::new(QueueOptions::named("test"));
        let tasks = Tasks::default();
        work(WorkOptions { name: "test", workers: 1 }, &queue, reconciler.clone(), &Arc::default(), &tasks);
        queue.add("key".to_owned());
        tokio::time::sleep(Duration::from_secs(30)).await;
        queue.close();
        let calls = reconciler.0.lock().unwrap().clone();
        assert_eq!(calls.len(), 5, "at 0, 7, 14, 21 and 28 seconds");
        assert!(calls.windows(2).all(|pair| (pair[1] - pair[0]).as_secs() == 7));
    }

    /// A write to an object of the namespace `slow` takes minutes, another one 10 ms. Records the most concurrent runs
    /// of the slow namespace, and the time of each other run.
    #[derive(Default)]
    struct SlowNamespace {
        slow: AtomicU64,
        max: AtomicU64,
        others: Mutex<Vec<tokio::time::Instant>>,
    }

    impl Reconcile for SlowNamespace {
        type Key = kinds::meta::ObjectKey;
        fn reconcile<'a>(&'a self, key: &'a Self::Key) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
            async {
                if &*key.namespace == "slow" {
                    let now = self.slow.fetch_add(1, Ordering::Relaxed) + 1;
                    self.max.fetch_max(now, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_secs(300)).await;
                    self.slow.fetch_sub(1, Ordering::Relaxed);
                } else {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    self.others.lock().unwrap().push(tokio::time::Instant::now());
                }
                Ok(Outcome::Done)
            }
            .boxed()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn slow_namespace_does_not_occupy_all_workers() {
        use kinds::meta::ObjectKey;
        for workers in [1_usize, 2, 5] {
            let (reconciler, queue) = (Arc::<SlowNamespace>::default(), Queue::new(QueueOptions::named("test")));
            let tasks = Tasks::default();
            let options = WorkOptions { name: "test", workers };
            work(options, &queue, reconciler.clone(), &Arc::default(), &tasks);
            for number in 0..100 {
                queue.add(ObjectKey::new("slow", number.to_string()));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
            let started = tokio::time::Instant::now();
            for number in 0..20 {
                queue.add(ObjectKey::new("other", number.to_string()));
            }
            tokio::time::sleep(Duration::from_secs(60)).await;
            let others = reconciler.others.lock().unwrap().clone();
            assert_eq!(others.len(), 20, "{workers} workers");
            let last = others.last().map(|at| at.duration_since(started)).unwrap_or_default();
            assert!(last < Duration::from_secs(2), "the last run of the other namespace ended after {last:?}");
            assert_eq!(reconciler.max.load(Ordering::Relaxed), workers as u64);
            // While a spare place is free, a new key does not wait.
            let started = tokio::time::Instant::now();
            queue.add(ObjectKey::new("third", "a"));
            tokio::time::sleep(Duration::from_secs(1)).await;
            let third = reconciler.others.lock().unwrap().last().copied().expect("a run");
            assert!(third >= started && third - started < Duration::from_millis(50), "{:?}", third - started);
            queue.close();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn controller_without_work_has_one_task() {
        let (reconciler, queue) = (Arc::<SlowNamespace>::default(), Queue::new(QueueOptions::named("test")));
        let tasks = Tasks::default();
        let options = WorkOptions { name: "test", workers: 5 };
        work(options, &queue, reconciler.clone(), &Arc::default(), &tasks);
        for number in 0..20 {
            queue.add(kinds::meta::ObjectKey::new("other", number.to_string()));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(tasks.len(), 6);
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((tasks.len(), reconciler.others.lock().unwrap().len()), (1, 20));
    }

    /// A reconciler that adds a key to the queue of another controller, and blocks its own thread until that controller
    /// has run.
    struct Blocking {
        other: Arc<Queue<String>>,
        ran: Mutex<std::sync::mpsc::Receiver<()>>,
    }

    impl Reconcile for Blocking {
        type Key = String;
        fn reconcile<'a>(&'a self, _: &'a String) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
            async {
                self.other.add("key".to_owned());
                let ran = self.ran.lock().unwrap().recv_timeout(Duration::from_secs(30));
                ran.map(|()| Outcome::Done)
                    .map_err(|_| ReconcileError::new("the other controller waits for this thread"))
            }
            .boxed()
        }
    }

    struct Waking(Mutex<std::sync::mpsc::Sender<()>>);

    impl Reconcile for Waking {
        type Key = String;
        fn reconcile<'a>(&'a self, _: &'a String) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
            async {
                let _ = self.0.lock().unwrap().send(());
                Ok(Outcome::Done)
            }
            .boxed()
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn controller_does_not_wait_for_the_thread_of_a_reconcile_that_added_its_key() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (queue, other) = (Queue::new(QueueOptions::named("test")), Queue::new(QueueOptions::named("other")));
        let blocking = Arc::new(Blocking { other: other.clone(), ran: Mutex::new(receiver) });
        let (counts, tasks) = (Arc::new(WorkCounts::default()), Tasks::default());
        let options = |name| WorkOptions { name, workers: 1 };
        work(options("other"), &other, Arc::new(Waking(Mutex::new(sender))), &Arc::default(), &tasks);
        work(options("test"), &queue, blocking, &counts, &tasks);
        // The dispatchers wait for keys before the first one is added.
        tokio::time::sleep(Duration::from_millis(50)).await;
        queue.add("key".to_owned());
        let ended = || counts.succeeded.load(Ordering::Relaxed) + counts.failed.load(Ordering::Relaxed);
        while ended() == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(counts.succeeded.load(Ordering::Relaxed), 1, "it waited for the end of the other reconcile");
        queue.close();
        other.close();
        tasks.finished().await;
    }

    #[tokio::test(start_paused = true)]
    async fn key_is_retried_until_it_succeeds() {
        let refused = (0..20).map(|_| failure(false)).collect();
        assert_eq!(play(refused).await, (21, [1, 20, 0, 0]));
    }
}
