//! One pass: list the routes, apply the differences in one call, update the nodes' conditions.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use ipnet::IpNet;
use providers::{CloudError, ErrorKind, RouteChange, Routes, async_trait};
use runtime::lock::lock;
use runtime::metrics::Counts;
use runtime::worker::Outcome;
use tokio::time::Instant;
use tracing::{debug, info, warn};

use super::decide::{self, NodeState, RouteNode};
use crate::cloud::retry::{self, LastReport};

/// Number of concurrent condition writes.
const CONCURRENT_WRITES: usize = 8;

/// Maximum delay before a failed route is retried, unless the cloud requests a longer one.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Access of a pass to the API server.
#[async_trait]
pub trait ClusterAccess: Send + Sync + 'static {
    /// Returns all nodes, oldest first, and whether the list is complete.
    fn nodes(&self) -> (Vec<RouteNode>, bool);

    /// Records a warning about a route that could not be created.
    fn warn(&self, node: &RouteNode, message: String);

    /// Writes a node's condition `NetworkUnavailable`; `created`: all of its routes exist.
    async fn set_network_condition(&self, node: &RouteNode, created: bool) -> Result<(), String>;
}

/// A change that failed.
struct Failed {
    change: RouteChange,
    failures: u32,
    until: Instant,
    problem: String,
}

/// Reconciles the cloud's routes with the nodes' pod networks.
pub struct RouteTable<S> {
    pub kubernetes: S,
    pub cloud: Arc<dyn Routes>,
    /// `--cluster-cidr`.
    pub cluster: Vec<IpNet>,
    /// `--route-reconciliation-period`.
    pub period: Duration,
    /// Passes by their trigger and result.
    pub passes: Counts<2>,
    /// Set when a node has changed since the last pass began.
    pub woken: Arc<AtomicBool>,
    failed: Mutex<HashMap<IpNet, Failed>>,
    reports: Mutex<HashMap<(String, String), LastReport>>,
}

impl<S: ClusterAccess> RouteTable<S> {
    /// Creates a table without failures.
    pub fn new(kubernetes: S, cloud: Arc<dyn Routes>, cluster: Vec<IpNet>, period: Duration) -> Self {
        let (passes, woken) = (Counts::default(), Arc::default());
        Self { kubernetes, cloud, cluster, period, passes, woken, failed: Mutex::default(), reports: Mutex::default() }
    }

    /// Runs one pass.
    pub async fn pass(&self) -> Outcome {
        let trigger = if self.woken.swap(false, Ordering::AcqRel) { "node_change" } else { "periodic" };
        let (outcome, result) = self.run().await;
        self.passes.add([("outcome", result.to_owned()), ("trigger", trigger.to_owned())]);
        outcome
    }

    /// Returns the next step, and the result of this pass in upstream's terms.
    pub(super) async fn run(&self) -> (Outcome, &'static str) {
        let routes = match self.cloud.list().await {
            Ok(routes) => routes,
            Err(error) => {
                warn!(%error, "routes not listed");
                return (Outcome::RequeueAfter(self.period.max(error.retry_after().unwrap_or_default())), "error");
            }
        };
        let (nodes, complete) = self.kubernetes.nodes();
        let plan = decide::plan(&nodes, &routes, &self.cluster, complete);
        let now = Instant::now();
        let results = self.apply(&plan.changes, now).await;
        let delay = results.iter().filter_map(|result| result.as_ref().err().map(|failed| failed.0)).min();
        let changed_conditions: Vec<_> = nodes
            .iter()
            .zip(&plan.nodes)
            .filter_map(|(node, state)| {
                Some((node, self.report_missing_routes(node, state.as_ref()?, &plan.changes, &results, now)))
            })
            .filter(|(node, created)| node.reported != Some(*created))
            .collect();
        for chunk in changed_conditions.chunks(CONCURRENT_WRITES) {
            let writes: Vec<_> =
                chunk.iter().map(|(node, created)| self.kubernetes.set_network_condition(node, *created)).collect();
            for ((node, _), result) in chunk.iter().zip(join_all(writes).await) {
                if let Err(error) = result {
                    warn!(node = node.instance.node, error, "failed to set NetworkUnavailable on node");
                }
            }
        }
        self.forget_others(&nodes);
        // The next pass is at most a period away, even if the cloud requests a longer delay: it skips the changes that
        // are still in backoff.
        let next = delay.map_or(self.period, |delay| retry::requested_delay(delay).min(self.period));
        // Upstream: route controller, recordRouteSync: a failed change does not make the pass a failed one.
        let result = if results.iter().any(Result::is_ok) { "changed" } else { "noop" };
        (Outcome::RequeueAfter(next), result)
    }

    /// Applies the changes that are not in backoff; each result is a success, or the delay and the reason.
    async fn apply(&self, changes: &[RouteChange], now: Instant) -> Vec<Result<(), (Duration, String)>> {
        let in_backoff = |change: &RouteChange| {
            let failed = lock(&self.failed);
            let failed = failed.get(&change.destination()).filter(|failed| failed.change == *change)?;
            (now < failed.until).then(|| (failed.until - now, failed.problem.clone()))
        };
        let mut results: Vec<_> = changes.iter().map(|change| in_backoff(change).map_or(Ok(()), Err)).collect();
        let due: Vec<usize> = (0..changes.len()).filter(|at| results[*at].is_ok()).collect();
        if due.is_empty() {
            return results;
        }
        let due_changes: Vec<_> = due.iter().map(|at| changes[*at].clone()).collect();
        let mut returned = self.cloud.apply(&due_changes).await.into_iter();
        for (at, change) in due.into_iter().zip(&due_changes) {
            let result = returned.next().unwrap_or_else(|| {
                Err(CloudError::new(
                    ErrorKind::Transient,
                    "ApplyRoutes",
                    "the provider returned no result for this change",
                ))
            });
            results[at] = self.record_result(change, result, now);
        }
        results
    }

    fn record_result(
        &self,
        change: &RouteChange,
        result: Result<(), CloudError>,
        now: Instant,
    ) -> Result<(), (Duration, String)> {
        let mut failed = lock(&self.failed);
        let destination = change.destination();
        let Err(error) = result else {
            failed.remove(&destination);
            match change {
                RouteChange::Set(spec) => info!(%destination, node = spec.instance.node, "route created"),
                RouteChange::Remove(route) => info!(%destination, route = route.name, "route deleted"),
            }
            return Ok(());
        };
        let before = failed.get(&destination).filter(|failed| failed.change == *change);
        let failures = before.map_or(0, |failed| failed.failures).saturating_add(1);
        warn!(%destination, %error, failures, "route not changed");
        let wait = match error.retry_after() {
            Some(after) => retry::requested_delay(after),
            None => retry::retry_after(error.kind, failures).unwrap_or(MAX_PAUSE).min(MAX_PAUSE),
        };
        let problem = retry::message(&error);
        let change = change.clone();
        failed.insert(destination, Failed { change, failures, until: now + wait, problem: problem.clone() });
        Err((wait, problem))
    }

    /// Returns true if all of a node's routes exist; records warnings about missing ones. Upstream: route controller,
    /// reconcile.
    fn report_missing_routes(
        &self,
        node: &RouteNode,
        state: &NodeState,
        changes: &[RouteChange],
        results: &[Result<(), (Duration, String)>],
        now: Instant,
    ) -> bool {
        let failed = state.needs.iter().filter_map(|at| {
            let (_, problem) = results[*at].as_ref().err()?;
            Some((changes[*at].destination().to_string(), problem.clone()))
        });
        let failed: Vec<_> = failed.chain(state.terminal.iter().cloned()).collect();
        for (cidr, problem) in &failed {
            let hint = &node.uid;
            let name = &node.instance.node;
            let message = format!("Could not create route {hint} {cidr} for node {name}: {problem}");
            let mut reports = lock(&self.reports);
            if reports.entry((hint.clone(), cidr.clone())).or_default().update(&message, now) {
                self.kubernetes.warn(node, message);
            }
        }
        debug!(
            node = node.instance.node,
            failed = failed.len(),
            without_pod_cidrs = state.without_pod_cidrs,
            "checked routes of node"
        );
        failed.is_empty() && !state.without_pod_cidrs
    }

    /// Removes the reports of deleted nodes, and failures whose backoff ended long ago.
    fn forget_others(&self, nodes: &[RouteNode]) {
        let mut reports = lock(&self.reports);
        if !reports.is_empty() {
            let existing: HashSet<&str> = nodes.iter().map(|node| node.uid.as_str()).collect();
            reports.retain(|(uid, _), _| existing.contains(uid.as_str()));
        }
        let now = Instant::now();
        let mut failed = lock(&self.failed);
        failed.retain(|_, failed| now < failed.until + 2 * MAX_PAUSE);
    }
}
