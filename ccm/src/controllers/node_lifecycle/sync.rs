//! One round over the nodes that are not ready, or that are marked as shut down.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kinds::meta::{ObjectKey, Time};
use kinds::{Kind, Node, Uid};
use providers::{InstanceState, Instances};
use runtime::consistency::Consistency;
use runtime::events::{EventType, Recorder, about};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::stale;
use runtime::store::Store;
use runtime::wake::Wake;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use tokio::time::Instant;
use tracing::{info, warn};

use super::decide::{Facts, Verdict, needs_instance_state, verdict};
use super::metrics::Rounds;
use super::missing_instances::MissingInstances;
use super::{TO_CHECK, to_check};
use crate::cloud::Cloud;
use crate::cloud::instances::{describe_all, instance_ref};
use crate::cloud::taints::{is_shut_down, shutdown_patch, started_patch};
use crate::context::Clock;

pub(super) struct Lifecycle {
    pub(super) cloud: Arc<Cloud>,
    pub(super) instances: Arc<dyn Instances>,
    /// Prefixes of the node annotations that the provider reads.
    pub(super) annotations: Vec<String>,
    pub(super) nodes: Arc<Store<Node>>,
    pub(super) writer: Writer,
    pub(super) recorder: Recorder,
    pub(super) consistency: Arc<Consistency>,
    pub(super) missing: Mutex<MissingInstances>,
    pub(super) queue: Arc<Queue<&'static str>>,
    pub(super) rounds: Rounds,
    pub(super) clock: Clock,
    pub(super) period: Duration,
    pub(super) workers: usize,
}

/// The only key: a round over the nodes of [`TO_CHECK`].
pub(super) const ROUND: &str = "all nodes that are not ready, or marked as shut down";

impl Reconcile for Lifecycle {
    type Key = &'static str;

    fn begin(&self) {
        self.queue.add(ROUND);
    }

    fn reconcile<'a>(&'a self, _: &'a &'static str) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.round().boxed()
    }
}

impl Lifecycle {
    async fn round(&self) -> Result<Outcome, ReconcileError> {
        if let Err(wait) = self.cloud.ready().await {
            return Ok(Outcome::RequeueAfter(wait));
        }
        let begun = Instant::now();
        let nodes = self.nodes_to_check();
        // Whether a node's state is requested is decided only once: the states are returned in the order of the
        // requests, and are assigned to these nodes below.
        let nodes = nodes.into_iter().map(|node| (needs_instance_state(&self.facts(&node)), node));
        let nodes: Vec<(bool, Arc<Node>)> = nodes.collect();
        let requested: Vec<_> = nodes
            .iter()
            .filter(|(is_needed, _)| *is_needed)
            .map(|(_, node)| instance_ref(node, &self.annotations))
            .collect();
        let mut states = describe_all(&*self.instances, &requested).await.into_iter();
        states.as_slice().iter().for_each(|state| self.rounds.count_calls(state));
        let decided: Vec<_> = nodes
            .into_iter()
            .map(|(is_needed, node)| {
                let state = is_needed.then(|| states.next()).flatten();
                let verdict = self.decide(&node, state.as_ref());
                (node, verdict)
            })
            .filter(|(_, verdict)| !matches!(verdict, Verdict::Leave))
            .collect();
        stream::iter(decided)
            .for_each_concurrent(self.workers, async |(node, verdict)| self.act(&node, verdict).await)
            .await;
        self.rounds.observe_duration(begun.elapsed());
        Ok(Outcome::RequeueAfter(self.period))
    }

    /// Returns the nodes that may need an action, without those whose last write is not in the cache yet.
    fn nodes_to_check(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.nodes.by_index(&TO_CHECK, to_check());
        let existing: HashSet<&Uid> = nodes.iter().map(|node| &node.meta.uid).collect();
        self.missing().retain(|known| existing.contains(known));
        nodes.retain(|node| !node.meta.is_deleting() && !self.missing().is_deleted(&node.meta.uid));
        let read = |node: Arc<Node>| {
            let current = self.consistency.read(&node.meta.key(), &self.nodes, Wake::none()).current();
            current.filter(|current| current.meta.uid == node.meta.uid && !current.meta.is_deleting())
        };
        nodes.into_iter().filter_map(read).collect()
    }

    fn missing(&self) -> MutexGuard<'_, MissingInstances> {
        lock(&self.missing)
    }

    fn facts(&self, node: &Node) -> Facts {
        let Time(created) = node.meta.created;
        let seconds = (self.clock)().as_second().saturating_sub(created);
        Facts {
            ready: node.ready() == Some("True"),
            shut_down: is_shut_down(node),
            age: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            missing: None,
        }
    }

    fn decide(&self, node: &Node, state: Option<&InstanceState>) -> Verdict {
        let mut facts = self.facts(node);
        match state {
            Some(InstanceState::Gone) => {
                facts.missing = Some(self.missing().report_missing(&node.meta.uid, Instant::now()))
            }
            Some(InstanceState::Unknown(error)) => {
                warn!(node = &*node.meta.name, %error, "the node's instance could not be read from the cloud");
            }
            Some(InstanceState::Running(_) | InstanceState::Stopped) | None => self.missing().reset(&node.meta.uid),
        }
        verdict(&facts, state)
    }

    async fn act(&self, node: &Node, verdict: Verdict) {
        let key = node.meta.key();
        match verdict {
            Verdict::Leave => {}
            Verdict::Suspect => {
                info!(
                    node = &*key.name,
                    "instance not found in the cloud; waiting for confirmation or for the minimum age of the node"
                );
            }
            Verdict::MarkShutDown => self.mark(&key, &shutdown_patch(node)).await,
            Verdict::MarkStarted => self.mark(&key, &started_patch(node)).await,
            // A node that cannot be decoded does not delay the deletions of others.
            Verdict::Delete => stale::separately(self.delete(&key, node)).await,
        }
    }

    async fn mark(&self, key: &ObjectKey, patch: &serde_json::Value) {
        match self.writer.patch(&Node::RESOURCE, key, patch).await {
            Ok(response) => {
                if let Ok(meta) = response.meta() {
                    self.consistency.wrote(key, &self.nodes, meta.version);
                }
            }
            // The node was changed or deleted since it was read: the next round handles that.
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => warn!(node = &*key.name, %error, "shutdown taint not changed"),
        }
    }

    async fn delete(&self, key: &ObjectKey, node: &Node) {
        let name = &key.name;
        let Some(node) = self.nodes.get_with_uid("", name, &node.meta.uid) else { return };
        // If the newest state of this node cannot be decoded, it may be ready, and is not deleted.
        if let Err(error) = self.writer.check_deletion(key) {
            warn!(node = &**name, %error, "node not deleted");
            return;
        }
        info!(node = &**name, "deleting node: its instance no longer exists");
        self.missing().mark_deleting(&node.meta.uid);
        let message = format!("Deleting node {name} because it does not exist in the cloud provider");
        self.recorder.event(&about(&*node), EventType::Normal, "DeletingNode", message);
        match self.writer.delete(&Node::RESOURCE, key, &node.meta.uid).await {
            Ok(()) => {}
            Err(error) if error.is_object_deleted() => {}
            Err(error) => {
                // The count restarts: absence is confirmed again before the next attempt.
                self.missing().reset(&node.meta.uid);
                let message = format!("Failed deleting node {name}: {error}");
                warn!(node = &**name, %error, "node not deleted");
                self.recorder.event(&about(&*node), EventType::Warning, "DeletingNodeFailed", message);
            }
        }
    }
}
