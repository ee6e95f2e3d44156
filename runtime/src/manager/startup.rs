//! The start of the controllers' workers, once the kinds that they read are listed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::runtime::Handle;
use tokio::time::Instant;
use tracing::{debug, error, info};

use crate::tasks::Tasks;
use crate::watch::{Reads, Registry};

/// Interval between log lines about controllers that wait for their kinds to be listed.
const WAIT_REPORT: Duration = Duration::from_secs(60);

/// Starts the workers of a controller as tasks.
pub(super) type Start = Box<dyn FnOnce(&Tasks) + Send>;

/// The workers of a controller that waits for its kinds to be listed.
pub(super) struct Waiting {
    pub(super) name: &'static str,
    pub(super) reads: Option<Reads>,
    pub(super) start: Start,
}

/// Starts the workers of each controller as soon as the kinds that it reads are listed, as upstream's controllers wait
/// for their own informers. After each start it waits for a random time between `interval` and twice `interval`. The
/// workers run on `runtime`. Does not return.
pub(super) async fn start_workers(
    registry: &Registry,
    waiting: Vec<Waiting>,
    interval: Duration,
    (runtime, workers): (&Handle, &Tasks),
) {
    let started = Instant::now();
    let mut names: BTreeMap<_, _> = waiting.iter().map(|waiting| (waiting.name, waiting.reads.clone())).collect();
    let synced = |waiting: Waiting| async move {
        registry.synced(waiting.reads.as_ref()).await;
        waiting
    };
    let mut ready: FuturesUnordered<_> = waiting.into_iter().map(synced).collect();
    let mut report = tokio::time::interval_at(started + WAIT_REPORT, WAIT_REPORT);
    while !ready.is_empty() {
        tokio::select! {
            Some(Waiting { name, start, .. }) = ready.next() => {
                debug!(controller = name, seconds = started.elapsed().as_secs_f64(), "workers started");
                {
                    let _entered = runtime.enter();
                    start(workers);
                }
                names.remove(name);
                tokio::time::sleep(interval.mul_f64(rand::random_range(1.0..2.0))).await;
            }
            _ = report.tick() => report_waiting(registry, &names),
        }
    }
    info!(seconds = started.elapsed().as_secs_f64(), "all controllers started");
    std::future::pending().await
}

/// Logs the kinds that keep controllers from starting.
fn report_waiting(registry: &Registry, waiting: &BTreeMap<&'static str, Option<Reads>>) {
    let missing: BTreeSet<String> = waiting.values().flat_map(|reads| registry.not_synced(reads.as_ref())).collect();
    let missing = missing.into_iter().collect::<Vec<_>>().join(",");
    let controllers = waiting.keys().copied().collect::<Vec<_>>().join(",");
    error!(controllers, missing, "controllers cannot start: kinds that they read are not listed");
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::{Arc, Mutex};

    use kinds::{Node, Pod, Sections};
    use tokio::time::timeout;

    use super::*;
    use crate::watch::Builder;

    #[tokio::test(start_paused = true)]
    async fn controller_starts_when_its_own_kinds_are_listed() {
        let (mut pods, mut nodes, mut all) = (Builder::default(), Builder::default(), Builder::default());
        pods.need::<Pod>(Sections::default(), &[]);
        nodes.need::<Node>(Sections::default(), &[]);
        all.need::<Pod>(Sections::default(), &[]).need::<Node>(Sections::default(), &[]);
        let all_reads = all.reads();
        let registry = all.build();
        let started = Arc::new(Mutex::new(Vec::new()));
        let waiting =
            [("pods", Some(pods.reads())), ("nodes", Some(nodes.reads())), ("all", None)].map(|(name, reads)| {
                let started = started.clone();
                Waiting { name, reads, start: Box::new(move |_| started.lock().expect("the names").push(name)) }
            });
        let workers = Tasks::default();
        let runtime = Handle::current();
        let mut running = pin!(start_workers(&registry, waiting.into(), Duration::ZERO, (&runtime, &workers)));
        registry.store::<Node>().progress().set_synced();
        timeout(WAIT_REPORT * 3, &mut running).await.expect_err("it waits until pods are listed");
        assert_eq!(*started.lock().expect("the names"), ["nodes"]);
        assert_eq!(registry.not_synced(Some(&pods.reads())), ["pods"]);
        assert_eq!(
            registry.take_used().and(pods.reads()),
            all_reads,
            "a kind counts as read when its store was requested"
        );
        registry.store::<Pod>().progress().set_synced();
        timeout(Duration::from_secs(1), &mut running).await.expect_err("it never returns");
        assert_eq!(started.lock().expect("the names").len(), 3);
    }
}
