//! Warnings about reconciles that do not end.
//!
//! A run that waits forever, or computes forever, occupies one worker. The others continue, so that neither the health
//! checks nor the stall detection fail, but the key of the run is never reconciled again. Upstream shows such a run
//! only in `workqueue_longest_running_processor_seconds`, without its key.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use crate::queue::QueueView;

/// Time between two checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Duration after which a run is reported: longer than the deadline of any request to the API server.
const LONG: Duration = Duration::from_secs(120);

/// The queue of each controller, by the controller's name.
pub(super) type Views = Vec<(&'static str, Arc<dyn QueueView>)>;

/// The runs that were reported, each by its controller, key and start.
#[derive(Default)]
struct LongRuns {
    reported: HashSet<(&'static str, String, Instant)>,
}

impl LongRuns {
    /// Returns the runs that have become long since the last check, with their durations.
    fn check(&mut self, views: &Views) -> Vec<(&'static str, String, Duration)> {
        let now = Instant::now();
        let mut long = HashSet::new();
        for (controller, view) in views {
            match view.long_runs(LONG) {
                Some(runs) => long.extend(runs.into_iter().map(|(key, since)| (*controller, key, since))),
                None => long.extend(self.reported.iter().filter(|(other, ..)| other == controller).cloned()),
            }
        }
        let new = long.difference(&self.reported).cloned();
        let new = new.map(|(controller, key, since)| (controller, key, now - since)).collect();
        self.reported = long;
        new
    }
}

/// Logs a warning, once per run, when a reconcile takes a long time. Does not return.
///
/// Poll it on another thread than the controllers' threads, because a controller may block these.
pub(super) async fn report_long_runs(views: Views) {
    let mut long_runs = LongRuns::default();
    loop {
        sleep(CHECK_INTERVAL).await;
        for (controller, key, duration) in long_runs.check(&views) {
            warn!(controller, %key, ?duration, "reconcile has not ended: its key waits until it does");
        }
    }
}

/// Returns the runs that have lasted for at least `min`, as text, for the log of a stall.
pub(super) fn described(views: &Views, min: Duration) -> String {
    let runs = views.iter().flat_map(|(controller, view)| {
        let runs = view.long_runs(min).unwrap_or_default();
        runs.into_iter().map(move |(key, since)| format!("{controller} {key} ({:?})", since.elapsed()))
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::FutureExt as _;

    use super::*;
    use crate::queue::{Queue, QueueOptions, Waiting};

    #[tokio::test(start_paused = true)]
    async fn run_is_reported_once_when_it_takes_long() {
        let queue = Queue::<String>::new(QueueOptions::named("test"));
        let views: Views = vec![("test-controller", queue.clone())];
        let mut long_runs = LongRuns::default();
        let next = || queue.next().now_or_never().flatten().expect("a ready key");
        queue.add("hangs".to_owned());
        queue.add("waits".to_owned());
        assert_eq!(next(), "hangs");
        tokio::time::advance(LONG - Duration::from_secs(1)).await;
        assert_eq!(next(), "waits");
        assert_eq!(long_runs.check(&views), []);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(described(&views, LONG), "test-controller hangs (120s)");
        assert_eq!(long_runs.check(&views), [("test-controller", "hangs".to_owned(), LONG)]);
        assert_eq!(long_runs.check(&views), [], "it was reported");
        queue.done(&"hangs".to_owned());
        queue.done(&"waits".to_owned());
        assert_eq!(long_runs.check(&views), []);
        queue.add("hangs".to_owned());
        next();
        tokio::time::advance(LONG).await;
        assert_eq!(long_runs.check(&views).len(), 1, "the next run is another one");
    }

    /// A queue whose lock another thread may hold.
    struct Locked(Arc<Queue<String>>, AtomicBool);

    impl QueueView for Locked {
        fn name(&self) -> &'static str {
            "test"
        }

        fn waiting(&self) -> Vec<Waiting<String>> {
            Vec::new()
        }

        fn long_runs(&self, min: Duration) -> Option<Vec<(String, Instant)>> {
            if self.1.load(Ordering::Relaxed) { None } else { QueueView::long_runs(&*self.0, min) }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn run_is_not_reported_again_after_a_check_without_the_lock() {
        let view = Arc::new(Locked(Queue::new(QueueOptions::named("test")), AtomicBool::default()));
        let views: Views = vec![("test-controller", view.clone())];
        let mut long_runs = LongRuns::default();
        view.0.add("hangs".to_owned());
        assert!(view.0.next().now_or_never().is_some());
        tokio::time::advance(LONG).await;
        assert_eq!(long_runs.check(&views).len(), 1);
        view.1.store(true, Ordering::Relaxed);
        assert_eq!(long_runs.check(&views), []);
        view.1.store(false, Ordering::Relaxed);
        assert_eq!(long_runs.check(&views), [], "it was reported");
    }

    #[tokio::test(start_paused = true)]
    async fn key_that_waits_for_a_worker_is_not_a_long_run() {
        let queue = Queue::<String>::new(QueueOptions::named("test"));
        let views: Views = vec![("test-controller", queue.clone())];
        queue.add("ready".to_owned());
        tokio::time::advance(LONG).await;
        assert_eq!(described(&views, Duration::ZERO), "");
    }
}
