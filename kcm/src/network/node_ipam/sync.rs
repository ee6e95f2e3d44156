//! One reconcile of a node without ranges: reserve ranges, write them into the node.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use ipnet::IpNet;
use kinds::meta::ObjectKey;
use kinds::{Kind, Node};
use runtime::events::{EventType, Recorder, about};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::store::{Cached, Store};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use serde_json::json;
use tokio::sync::OnceCell;
use tracing::{error, info};

use super::pool::Pool;

/// The controller's state.
pub struct Allocator {
    pub nodes: Arc<Store<Node>>,
    pub pool: Arc<Mutex<Pool>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub queue: Arc<Queue<ObjectKey>>,
    /// Set once all nodes were listed from the API server.
    pub listed: OnceCell<()>,
    /// Nodes of that list that were missing in the cache, until the cache has reached their versions.
    pub unconfirmed: Mutex<Vec<Node>>,
}

fn record_ranges(pool: &mut Pool, node: &Node) {
    if let Err(problem) = pool.record(node) {
        error!(
            node = %node.meta.name, %problem,
            "range of the node is not reserved: correct --cluster-cidr, or recreate the Node"
        );
    }
}

/// Keeps the pool equal to the ranges of nodes, and enqueues nodes without ranges.
pub fn subscribe(nodes: &Arc<Store<Node>>, queue: &Arc<Queue<ObjectKey>>, pool: &Arc<Mutex<Pool>>) {
    let (queue, pool) = (queue.clone(), pool.clone());
    nodes.subscribe(move |change| match (change.old, change.new) {
        (old, Some(new)) => {
            if old.is_none_or(|old| old.pod_cidrs != new.pod_cidrs || old.meta.uid != new.meta.uid) {
                record_ranges(&mut lock(&pool), new);
            }
            if new.pod_cidrs.is_empty() {
                queue.add(new.meta.key());
            }
        }
        (Some(old), None) => lock(&pool).release(&old.meta.name, &old.meta.uid),
        (None, None) => {}
    });
}

impl Reconcile for Allocator {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Allocator {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let node = match self.nodes.read_settled(key, self.queue.waker(key)) {
            Cached::Current(node) => node,
            Cached::Absent => return Ok(Outcome::Done),
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        if node.meta.is_deleting() || !node.pod_cidrs.is_empty() {
            return Ok(Outcome::Done);
        }
        self.listed.get_or_try_init(|| self.list()).await?;
        self.release_deleted();
        let ranges = lock(&self.pool).reserve(&key.name, &node.meta.uid);
        let ranges = ranges.map_err(|problem| {
            self.record_event(&node, "CIDRNotAvailable");
            ReconcileError::new(problem.to_string())
        })?;
        self.assign(key, &node, &ranges).await
    }

    /// Records the ranges of the nodes on the API server: at the start of a leadership term, the cache may not contain
    /// the last allocations of the previous leader.
    async fn list(&self) -> Result<(), ReconcileError> {
        let mut unreadable = 0;
        let listed =
            self.writer.list_each(&Node::RESOURCE, "", |object| match Node::decode(self.nodes.decoding(), object) {
                Ok(node) => {
                    record_ranges(&mut lock(&self.pool), &node);
                    if !self.is_in_cache(&node) {
                        lock(&self.unconfirmed).push(node);
                    }
                }
                Err(_) => unreadable += 1,
            });
        listed.await?;
        if unreadable > 0 {
            return Err(ReconcileError::new(format!(
                "{unreadable} nodes cannot be decoded: their ranges are not known"
            )));
        }
        Ok(())
    }

    /// Frees the ranges of nodes that were deleted before the list was recorded: the cache will report no deletion. A
    /// node that cannot be decoded is missing in the cache, too: it keeps its ranges until it can be.
    fn release_deleted(&self) {
        let reached = self.nodes.progress().version();
        let mut unconfirmed = lock(&self.unconfirmed);
        let is_known = |node: &mut Node| node.meta.version <= reached && !self.nodes.is_undecodable(&node.meta.key());
        for node in unconfirmed.extract_if(.., is_known) {
            if !self.is_in_cache(&node) {
                lock(&self.pool).release(&node.meta.name, &node.meta.uid);
            }
        }
    }

    fn is_in_cache(&self, node: &Node) -> bool {
        self.nodes.get_with_uid("", &node.meta.name, &node.meta.uid).is_some()
    }

    async fn assign(&self, key: &ObjectKey, node: &Node, ranges: &[IpNet]) -> Result<Outcome, ReconcileError> {
        let texts: Vec<String> = ranges.iter().map(ToString::to_string).collect();
        // The pool reserves no range for a node that has ranges on the API server, all of them outside of the cluster's
        // ranges. The cache may not contain these yet.
        let Some(first) = texts.first() else {
            return Err(ReconcileError::new("the ranges of the node are not known yet"));
        };
        let patch = json!({
            "metadata": { "uid": node.meta.uid.to_string() },
            "spec": { "podCIDR": first, "podCIDRs": texts },
        });
        match self.writer.patch(&Node::RESOURCE, key, &patch).await {
            Ok(response) => {
                info!(node = %key, ranges = texts.join(","), "set node PodCIDR");
                self.nodes.wrote(key, response.meta().map_or(0, |meta| meta.version));
                Ok(Outcome::Done)
            }
            Err(error) if error.is_not_found() => {
                self.release(key, node);
                Ok(Outcome::Done)
            }
            Err(error) => {
                self.record_event(node, "CIDRAssignmentFailed");
                // If a response was lost, that write may have been executed: the ranges stay reserved for this node, and
                // are written again.
                if error.is_lost() {
                    lock(&self.pool).record_lost_write(&key.name, &node.meta.uid);
                } else if !lock(&self.pool).has_lost_write(&key.name, &node.meta.uid) {
                    self.release(key, node);
                }
                Err(error.into())
            }
        }
    }

    /// Frees the ranges that were reserved for a node, unless the node has got them in the meantime.
    fn release(&self, key: &ObjectKey, node: &Node) {
        let mut pool = lock(&self.pool);
        pool.release(&key.name, &node.meta.uid);
        if let Some(now) = self.nodes.get(key).filter(|now| now.meta.uid == node.meta.uid) {
            record_ranges(&mut pool, &now);
        }
    }

    fn record_event(&self, node: &Node, reason: &'static str) {
        let message = format!("Node {} status is now: {reason}", node.meta.name);
        self.recorder.event(&about(node), EventType::Normal, reason, message);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use kinds::envelope;
    use kinds::wire::Put as _;
    use runtime::queue::QueueOptions;
    use runtime::testing::{NoEvents, deliver, deliver_undecodable, filled_store, writer};

    use super::super::tests::{config, context, encoded_node};
    use super::*;

    fn encoded(name: &str, version: u64, ranges: &[&str]) -> Vec<u8> {
        encoded_node((name, name, version), ranges)
    }

    fn node(name: &str, version: u64) -> Node {
        Node::decode(&context(), &encoded(name, version, &[])).expect("well-formed")
    }

    /// The controller with one range, and two nodes without ranges in its cache. `listed` are the nodes of the first
    /// list; the writes have the statuses `patches`, then 200.
    async fn allocator(listed: Vec<Vec<u8>>, patches: &[u16]) -> Allocator {
        let patches: Mutex<VecDeque<u16>> = Mutex::new(patches.iter().copied().collect());
        let writer = writer(move |method, _| {
            if method.as_str() == "PATCH" {
                let status = lock(&patches).pop_front().unwrap_or(200);
                return (status, envelope::wrap(&Node::RESOURCE, &encoded("a", 9, &[])));
            }
            let mut list = Vec::new();
            list.put_message(1, |_| {});
            listed.iter().for_each(|node| list.put_bytes(2, node));
            (200, envelope::wrap_as("v1", "NodeList", &list))
        });
        Allocator {
            nodes: Arc::new(filled_store(context(), vec![], [node("a", 1), node("b", 1)])),
            pool: Arc::new(Mutex::new(Pool::new(&config(&[("10.0.0.0/24", 24)], &[])))),
            writer: writer.await,
            recorder: Recorder::new("test", Arc::new(NoEvents)).0,
            queue: Queue::new(QueueOptions::named("test")),
            listed: OnceCell::new(),
            unconfirmed: Mutex::default(),
        }
    }

    #[tokio::test]
    async fn range_whose_write_was_lost_is_kept_when_a_retry_is_refused() {
        for (patches, is_free) in [(&[429][..], true), (&[504, 429], false), (&[504, 429, 429], false)] {
            let allocator = allocator(Vec::new(), patches).await;
            for _ in patches {
                allocator.sync(&ObjectKey::new("", "a")).await.expect_err("not written");
            }
            let other = allocator.sync(&ObjectKey::new("", "b")).await;
            assert_eq!(other.is_ok(), is_free, "{patches:?}: {other:?}");
        }
    }

    #[tokio::test]
    async fn range_of_a_node_that_was_deleted_during_the_list_is_free_once_the_cache_is_up_to_date() {
        let allocator = allocator(vec![encoded("old", 5, &["10.0.0.0/24"])], &[]).await;
        let key = ObjectKey::new("", "a");
        deliver(&allocator.nodes, node("b", 4));
        allocator.sync(&key).await.expect_err("the cache may not contain the old node yet");
        deliver(&allocator.nodes, node("b", 6));
        assert_eq!(allocator.sync(&key).await, Ok(Outcome::Done));
    }

    #[tokio::test]
    async fn node_that_cannot_be_decoded_keeps_its_own_range_and_no_other() {
        for (undecodable, is_free) in [("another", true), ("old", false)] {
            let allocator = allocator(vec![encoded("old", 5, &["10.0.0.0/24"])], &[]).await;
            deliver_undecodable(&allocator.nodes, ObjectKey::new("", undecodable));
            deliver(&allocator.nodes, node("b", 6));
            let assigned = allocator.sync(&ObjectKey::new("", "a")).await;
            assert_eq!(assigned.is_ok(), is_free, "{undecodable}: {assigned:?}");
        }
    }
}
