//! One pass: list the routes once, make the difference in one call, tell each node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use ipnet::IpNet;
use providers::{CloudError, ErrorKind, RouteChange, Routes, async_trait};
use runtime::metrics::Counts;
use runtime::worker::Outcome;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::decide::{self, Fate, RouteNode};
use crate::cloud::retry::{self, Told};

/// Conditions that are written at the same time.
const AT_ONCE: usize = 8;

/// The longest time for which a route that failed is left alone: the next attempt may be the one.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Kubernetes, as one pass sees it.
#[async_trait]
pub trait Surroundings: Send + Sync + 'static {
    /// All nodes, oldest first, and whether that is really all of them.
    fn nodes(&self) -> (Vec<RouteNode>, bool);

    /// Warns of a route that could not be made.
    fn warn(&self, node: &RouteNode, message: String);

    /// Writes a node's condition: its routes are there, or not.
    async fn tell(&self, node: &RouteNode, created: bool) -> Result<(), String>;
}

/// A change that failed.
struct Failed {
    change: RouteChange,
    failures: u32,
    until: Instant,
    words: String,
}

/// Keeps routes as the nodes ask for them.
pub struct RouteTable<S> {
    pub kubernetes: S,
    pub cloud: Arc<dyn Routes>,
    /// `--cluster-cidr`.
    pub cluster: Vec<IpNet>,
    /// `--route-reconciliation-period`.
    pub period: Duration,
    /// Passes by what began them and what they did.
    pub passes: Counts<2>,
    /// Set when a node has changed since the last pass began.
    pub woken: Arc<AtomicBool>,
    failed: Mutex<HashMap<IpNet, Failed>>,
    told: Mutex<HashMap<(String, String), Told>>,
}

impl<S: Surroundings> RouteTable<S> {
    /// A table that nothing was done for yet.
    pub fn new(kubernetes: S, cloud: Arc<dyn Routes>, cluster: Vec<IpNet>, period: Duration) -> Self {
        let (passes, woken) = (Counts::default(), Arc::default());
        Self { kubernetes, cloud, cluster, period, passes, woken, failed: Mutex::default(), told: Mutex::default() }
    }

    /// Makes one pass.
    pub async fn pass(&self) -> Outcome {
        let trigger = if self.woken.swap(false, Ordering::AcqRel) { "node_change" } else { "periodic" };
        let (outcome, result) = self.run().await;
        self.passes.add([("outcome", result.to_owned()), ("trigger", trigger.to_owned())]);
        outcome
    }

    /// What to do next, and what this pass did in one of upstream's words.
    async fn run(&self) -> (Outcome, &'static str) {
        let routes = match self.cloud.list().await {
            Ok(routes) => routes,
            Err(error) => {
                warn!(%error, "routes could not be listed");
                return (Outcome::RequeueAfter(self.period.max(error.retry_after().unwrap_or_default())), "error");
            }
        };
        let (nodes, complete) = self.kubernetes.nodes();
        let plan = decide::plan(&nodes, &routes, &self.cluster, complete);
        let now = Instant::now();
        let results = self.apply(&plan.changes, now).await;
        let again = results.iter().filter_map(|result| result.as_ref().err().map(|failed| failed.0)).min();
        let outcomes: Vec<_> = nodes
            .iter()
            .zip(&plan.nodes)
            .filter_map(|(node, fate)| Some((node, self.outcome(node, fate.as_ref()?, &plan.changes, &results, now))))
            .filter(|(node, created)| node.told != Some(*created))
            .collect();
        let mut failed = results.iter().any(Result::is_err);
        for some in outcomes.chunks(AT_ONCE) {
            let told: Vec<_> = some.iter().map(|(node, created)| self.kubernetes.tell(node, *created)).collect();
            for error in join_all(told).await.into_iter().filter_map(Result::err) {
                failed = true;
                warn!(error, "a node could not be told of its routes");
            }
        }
        self.forget_others(&nodes);
        // What the cloud asked to wait for is not waited for longer than that.
        let next = again.map_or(self.period, |again| retry::again_after(again).min(self.period));
        let result = match failed {
            true => "error",
            false if plan.changes.is_empty() => "noop",
            false => "changed",
        };
        (Outcome::RequeueAfter(next), result)
    }

    /// Makes the changes that do not rest; each result is good, or the time until it is tried again and why.
    async fn apply(&self, changes: &[RouteChange], now: Instant) -> Vec<Result<(), (Duration, String)>> {
        let resting = |change: &RouteChange| {
            let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
            let failed = failed.get(&change.destination()).filter(|failed| failed.change == *change)?;
            (now < failed.until).then(|| (failed.until - now, failed.words.clone()))
        };
        let mut results: Vec<_> = changes.iter().map(|change| resting(change).map_or(Ok(()), Err)).collect();
        let due: Vec<usize> = (0..changes.len()).filter(|at| results[*at].is_ok()).collect();
        if due.is_empty() {
            return results;
        }
        let asked: Vec<_> = due.iter().map(|at| changes[*at].clone()).collect();
        let mut answers = self.cloud.apply(&asked).await.into_iter();
        for (at, change) in due.into_iter().zip(&asked) {
            let answer = answers.next().unwrap_or_else(|| {
                Err(CloudError::new(ErrorKind::Transient, "ApplyRoutes", "the provider did not answer for this change"))
            });
            results[at] = self.note(change, answer, now);
        }
        results
    }

    fn note(
        &self,
        change: &RouteChange,
        answer: Result<(), CloudError>,
        now: Instant,
    ) -> Result<(), (Duration, String)> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        let destination = change.destination();
        let Err(error) = answer else {
            failed.remove(&destination);
            match change {
                RouteChange::Set(spec) => info!(%destination, node = spec.instance.node, "route created"),
                RouteChange::Remove(route) => info!(%destination, route = route.name, "route deleted"),
            }
            return Ok(());
        };
        let before = failed.get(&destination).filter(|failed| failed.change == *change);
        let failures = before.map_or(0, |failed| failed.failures).saturating_add(1);
        warn!(%destination, %error, failures, "a route could not be changed");
        let wait = match error.retry_after() {
            Some(after) => retry::again_after(after),
            None => retry::retry_after(error.kind, failures).unwrap_or(LONGEST_PAUSE).min(LONGEST_PAUSE),
        };
        let words = retry::words(&error);
        let change = change.clone();
        failed.insert(destination, Failed { change, failures, until: now + wait, words: words.clone() });
        Err((wait, words))
    }

    /// Whether all of a node's routes are there; warns of those that are not (upstream: route controller, reconcile).
    fn outcome(
        &self,
        node: &RouteNode,
        fate: &Fate,
        changes: &[RouteChange],
        results: &[Result<(), (Duration, String)>],
        now: Instant,
    ) -> bool {
        let failed = fate.needs.iter().filter_map(|at| {
            let (_, words) = results[*at].as_ref().err()?;
            Some((changes[*at].destination().to_string(), words.clone()))
        });
        let failed: Vec<_> = failed.chain(fate.terminal.iter().cloned()).collect();
        for (cidr, words) in &failed {
            let hint = &node.uid;
            let name = &node.instance.node;
            let message = format!("Could not create route {hint} {cidr} for node {name}: {words}");
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.entry((hint.clone(), cidr.clone())).or_default().tells(&message, now) {
                self.kubernetes.warn(node, message);
            }
        }
        debug!(node = node.instance.node, failed = failed.len(), bare = fate.bare, "looked at a node's routes");
        failed.is_empty() && !fate.bare
    }

    /// Forgets what was said about nodes that are gone, and failures of routes that nobody wants.
    fn forget_others(&self, nodes: &[RouteNode]) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if !told.is_empty() {
            told.retain(|(uid, _), _| nodes.iter().any(|node| node.uid == *uid));
        }
        let now = Instant::now();
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.retain(|_, failed| now < failed.until + 2 * LONGEST_PAUSE);
    }
}
