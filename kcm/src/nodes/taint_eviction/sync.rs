//! One reconcile of a pod on a tainted node: decide, confirm with an uncached read, and delete.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{Kind, Node, Pod, Str};
use runtime::events::{EventType, ObjectReference, Recorder};
use runtime::lock::lock;
use runtime::metrics::{Count, Metrics, Seconds};
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tokio::time::Instant;
use tracing::{info, warn};

use super::countdown::{Countdowns, Stage};
use super::decide::{Decision, ToleratedTime, decide, no_execute_taints, tolerated_time};
use crate::context::Clock;
use crate::pods::disruption_target;

/// Maximum age of an uncached read of a node that is used for further pods on it.
const NODE_READ_MAX_AGE: Duration = Duration::from_secs(1);

/// The time within which the cache reflects a deletion. A pod that the cache contains even after that, without a
/// deletion timestamp, is deleted again: e.g. the storage of the API server was restored from a backup.
const DELETION_MAX_LAG: Duration = Duration::from_secs(60);

/// The time and result of an uncached read of a node; `None`: the node does not exist.
type NodeRead = (Instant, Option<Arc<Node>>);

/// Metrics of deletions and their delay, under upstream's names. Upstream: pkg/controller/tainteviction/metrics.
pub struct Deletions {
    total: Count,
    latency: Seconds,
}

impl Deletions {
    /// Registers the metrics.
    pub fn register(metrics: &Metrics) -> Self {
        const BOUNDS: [f64; 12] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];
        Self {
            total: metrics.count(
                "taint_eviction_controller_pod_deletions",
                "Total number of Pods deleted by TaintEvictionController since its start.",
            ),
            latency: metrics.seconds(
                "taint_eviction_controller_pod_deletion_duration_seconds",
                "Latency, in seconds, between the time when a taint effect has been activated for the Pod and its deletion via TaintEvictionController.",
                &BOUNDS,
            ),
        }
    }

    /// Records a pod's deletion, and its delay after it was due.
    fn done(&self, late: Duration) {
        self.total.add();
        self.latency.observe(late.as_secs_f64());
    }
}

/// The controller's state.
pub struct Evictions {
    pub nodes: Arc<Store<Node>>,
    pub pods: Arc<Store<Pod>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub clock: Clock,
    pub countdowns: Arc<Countdowns>,
    /// True if the operators `Lt` and `Gt` of tolerations are supported.
    pub compares_numbers: bool,
    /// The last uncached reads, by node.
    pub node_reads: Mutex<HashMap<Str, NodeRead>>,
    /// The metrics.
    pub deletions: Deletions,
}

impl Reconcile for Evictions {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Evictions {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let pod = self.pods.get(key);
        let countdown = self.countdowns.get(key);
        if let Some(countdown) = &countdown
            && pod.as_ref().is_none_or(|pod| pod.meta.uid != countdown.uid)
        {
            self.stop(key);
        }
        let Some(pod) = pod.filter(|pod| !pod.node.is_empty()) else { return Ok(Outcome::Done) };
        let running = countdown.filter(|countdown| countdown.uid == pod.meta.uid).map(|countdown| countdown.stage);
        if pod.meta.is_deleting() {
            return Ok(Outcome::Done);
        }
        let now = Instant::now();
        let running = match running {
            Some(Stage::Deleted(at)) if now < at + DELETION_MAX_LAG => {
                return Ok(Outcome::RequeueAfter(at + DELETION_MAX_LAG - now));
            }
            Some(Stage::Deleted(_)) => Some(Stage::Announced(now)),
            running => running,
        };
        let decision = match self.nodes.get(&ObjectKey { namespace: "".into(), name: pod.node.clone() }) {
            Some(node) => decide(self.tolerated_time(&node, &pod), running.as_ref(), now),
            // A pod whose node does not exist is ignored, unless its eviction has already begun.
            None => match &running {
                None => Decision::Stay,
                Some(stage) => decide(ToleratedTime::For(Duration::ZERO), Some(stage), now),
            },
        };
        match decision {
            Decision::Stay => {
                self.stop(key);
                Ok(Outcome::Done)
            }
            Decision::Wait(until) => {
                self.countdowns.set(key, &pod.meta.uid, Stage::Until(until));
                Ok(Outcome::RequeueAfter(until.saturating_duration_since(now)))
            }
            Decision::Evict => self.evict(key, &pod, running.as_ref()).await,
        }
    }

    fn tolerated_time(&self, node: &Node, pod: &Pod) -> ToleratedTime {
        tolerated_time(no_execute_taints(&node.taints), pod.tolerations.as_ref(), self.compares_numbers)
    }

    /// Removes the eviction of a pod. Records an event if its countdown was running.
    fn stop(&self, key: &ObjectKey) {
        if self.countdowns.stop(key) {
            self.event(key, format!("Cancelling deletion of Pod {key}"));
        }
    }

    fn event(&self, key: &ObjectKey, message: String) {
        let about = ObjectReference {
            api_version: "v1".into(),
            kind: Pod::RESOURCE.kind.into(),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            ..ObjectReference::default()
        };
        self.recorder.event(&about, EventType::Normal, "TaintManagerEviction", message);
    }

    async fn evict(&self, key: &ObjectKey, pod: &Pod, running: Option<&Stage>) -> Result<Outcome, ReconcileError> {
        self.writer.check_deletion(key)?;
        let now = Instant::now();
        // A pod that no longer tolerates its node's taints is due now, even if its countdown has not ended.
        let due = match running {
            Some(Stage::Until(end)) => now.min(*end),
            Some(Stage::Announced(due)) => *due,
            _ => now,
        };
        if let Some(node) = self.read_node(&pod.node).await?
            && decide(self.tolerated_time(&node, pod), running, Instant::now()) != Decision::Evict
        {
            warn!(pod = %key, node = %pod.node, "taints of the node on the API server differ from the cache: waiting for the cache");
            return Ok(Outcome::RequeueAfter(NODE_READ_MAX_AGE));
        }
        if !matches!(running, Some(Stage::Announced(_))) {
            if matches!(running, Some(Stage::Until(end)) if *end > Instant::now()) {
                self.event(key, format!("Cancelling deletion of Pod {key}"));
            }
            info!(pod = %key, node = %pod.node, "deleting pod: it does not, or no longer, tolerate its node's taints");
            self.event(key, format!("Marking for deletion Pod {key}"));
            self.countdowns.set(key, &pod.meta.uid, Stage::Announced(due));
        }
        match self.delete(key, pod).await {
            Ok(()) => {
                self.deletions.done(due.elapsed());
                self.countdowns.set(key, &pod.meta.uid, Stage::Deleted(Instant::now()));
                Ok(Outcome::RequeueAfter(DELETION_MAX_LAG))
            }
            // The cache may have removed the pod before its eviction was added to `countdowns`: then no later change
            // of the pod removes the eviction.
            Err(error) if error.is_not_found() => {
                self.countdowns.stop(key);
                Ok(Outcome::Done)
            }
            Err(error) if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets the pod's condition `DisruptionTarget`, and deletes the pod.
    async fn delete(&self, key: &ObjectKey, pod: &Pod) -> Result<(), WriteError> {
        let live = self.writer.get(&Pod::RESOURCE, key).await?;
        let patch = disruption_target::patch(
            live.object()?,
            &pod.meta.uid,
            "DeletionByTaintManager",
            "Taint manager: deleting due to NoExecute taint",
            (self.clock)(),
        );
        if let Some(patch) = patch.map_err(kinds::DecodeError::from)? {
            self.writer.patch_status(&Pod::RESOURCE, key, &patch).await?;
        }
        self.writer.delete(&Pod::RESOURCE, key, &pod.meta.uid).await
    }

    /// Returns the node as the API server had it at most [`NODE_READ_MAX_AGE`] ago; `None` if it did not exist. The
    /// cache alone does not suffice: with a stalled watch, pods that may stay would be evicted.
    async fn read_node(&self, name: &Str) -> Result<Option<Arc<Node>>, WriteError> {
        let node_reads = || lock(&self.node_reads);
        let now = Instant::now();
        let fresh = |(at, _): &NodeRead| now.saturating_duration_since(*at) < NODE_READ_MAX_AGE;
        if let Some((_, node)) = node_reads().get(name).filter(|read| fresh(read)) {
            return Ok(node.clone());
        }
        let key = ObjectKey { namespace: "".into(), name: name.clone() };
        let node = match self.writer.get(&Node::RESOURCE, &key).await {
            Ok(response) => Some(Arc::new(response.decode(self.nodes.decoding())?)),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        let mut node_reads = node_reads();
        node_reads.retain(|_, read| fresh(read));
        node_reads.insert(name.clone(), (now, node.clone()));
        Ok(node)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use kinds::envelope;
    use runtime::testing::{NoEvents, deliver_deletion, filled_store, object, writer};

    use super::super::tests::{context, encoded_node};
    use super::*;
    use crate::pods::indexes::by_node;

    fn tainted_node() -> Vec<u8> {
        encoded_node(&[("k", "NoExecute")])
    }

    /// The controller, with the pod `ns/p` on a tainted node. The responses to deletions have the statuses `deletions`,
    /// the last one repeatedly; each is counted.
    async fn evictions(deletions: &[u16], metrics: &Metrics) -> (Evictions, Arc<Mutex<usize>>) {
        let sent = Arc::<Mutex<usize>>::default();
        let counted = sent.clone();
        let mut statuses: VecDeque<u16> = deletions.iter().copied().collect();
        let last = statuses.pop_back().unwrap_or(200);
        let statuses = Mutex::new(statuses);
        let writer = writer(move |method, path| {
            let status = match method.as_str() {
                "DELETE" => {
                    *lock(&counted) += 1;
                    lock(&statuses).pop_front().unwrap_or(last)
                }
                _ => 200,
            };
            let object = if path.contains("/nodes/") { tainted_node() } else { Vec::new() };
            (status, envelope::wrap(&Node::RESOURCE, &object))
        });
        let pod = Pod { node: "a".into(), ..object("p", Pod::TOLERATIONS) };
        let node = Node::decode(&context(), &tainted_node()).expect("well-formed");
        let evictions = Evictions {
            nodes: Arc::new(filled_store(context(), vec![], [node])),
            pods: Arc::new(filled_store(context(), vec![by_node()], [pod])),
            writer: writer.await,
            recorder: Recorder::new("test", Arc::new(NoEvents)).0,
            clock: Arc::new(|| jiff::Timestamp::UNIX_EPOCH),
            countdowns: Arc::default(),
            compares_numbers: false,
            node_reads: Mutex::default(),
            deletions: Deletions::register(metrics),
        };
        (evictions, sent)
    }

    #[tokio::test(start_paused = true)]
    async fn pod_that_the_cache_still_contains_a_minute_after_its_deletion_is_deleted_again() {
        let (evictions, sent) = evictions(&[200], &Metrics::new()).await;
        let key = ObjectKey::new("ns", "p");
        for (seconds, expected) in [(0, 1), (1, 1), (58, 1), (1, 2), (1, 2), (59, 3)] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            let outcome = evictions.sync(&key).await;
            assert!(matches!(outcome, Ok(Outcome::RequeueAfter(_))), "{outcome:?}");
            assert_eq!(*lock(&sent), expected, "{seconds} s later");
        }
        deliver_deletion(&evictions.pods, &key);
        assert_eq!(evictions.sync(&key).await, Ok(Outcome::Done));
        assert!(evictions.countdowns.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn eviction_of_a_pod_that_no_longer_exists_is_removed() {
        let (evictions, _) = evictions(&[404], &Metrics::new()).await;
        assert_eq!(evictions.sync(&ObjectKey::new("ns", "p")).await, Ok(Outcome::Done));
        assert!(evictions.countdowns.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn delay_of_a_deletion_includes_failed_attempts() {
        let metrics = Metrics::new();
        let (evictions, _) = evictions(&[500, 500, 200], &metrics).await;
        let key = ObjectKey::new("ns", "p");
        for _ in 0..2 {
            evictions.sync(&key).await.expect_err("the server fails");
            tokio::time::advance(Duration::from_secs(20)).await;
        }
        evictions.sync(&key).await.expect("deleted");
        let text = metrics.text();
        assert!(text.contains("taint_eviction_controller_pod_deletion_duration_seconds_sum 40.0"), "{text}");
    }
}
