//! One round: tags the instances of Nodes without a current checksum, and removes the tags of deleted Nodes' instances.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kinds::meta::{ObjectKey, Time};
use kinds::{Kind, Node, Uid};
use providers::{CloudError, Tagging};
use runtime::lock::lock;
use runtime::queue::QueueKey;
use runtime::store::{Change, Index, Store, index_key};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use serde_json::json;
use tracing::{info, warn};

use super::metrics::TaggingMetrics;
use crate::cloud::Cloud;
use crate::context::Clock;

/// The label with the checksum of the instance's tags. Upstream: cloud-provider-aws, taggingControllerLabelKey.
pub(super) const TAGS_LABEL: &str = "k8s.io/cloud-provider-aws";

/// Age of a Node up to which a missing instance is retried. Upstream: cloud-provider-aws, pkg/controllers/tagging.
const MISSING_INSTANCE_RETRY_AGE: Duration = Duration::from_secs(5 * 60);

/// Maximum number of attempts to remove the tags of a deleted Node's instance. No later event triggers another one.
const MAX_UNTAG_ATTEMPTS: u32 = 10;

/// Number of concurrent Node writes.
const CONCURRENT_WRITES: usize = 8;

/// Index of Nodes by their instances.
pub(super) const BY_INSTANCE: Index<Node> = Index {
    name: "instance",
    keys: |node, emit| {
        if let Some(id) = instance(node) {
            emit(index_key(&id));
        }
    },
};

/// The only key: all pending work.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Round;

impl QueueKey for Round {}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("all instances whose tags have to be added or removed")
    }
}

/// Pending work.
pub(super) struct Pending {
    checksum: String,
    tagging: Arc<dyn Tagging>,
    work: Mutex<PendingWork>,
}

#[derive(Default)]
struct PendingWork {
    /// Nodes whose label with the checksum is missing or outdated, with their instances.
    tag: BTreeMap<ObjectKey, (Uid, String)>,
    /// Nodes whose instance can never be tagged, with that instance.
    terminal: BTreeMap<ObjectKey, String>,
    /// Instances of deleted Nodes, with the number of attempts.
    untag: BTreeMap<String, u32>,
}

impl Pending {
    pub(super) fn new(checksum: String, tagging: Arc<dyn Tagging>) -> Self {
        Self { checksum, tagging, work: Mutex::default() }
    }

    /// Returns the instance of a Node, if the Node has one and its kind can have tags.
    fn taggable(&self, node: &Node) -> Option<String> {
        instance(node).filter(|id| self.tagging.has_tags(id))
    }

    fn work(&self) -> MutexGuard<'_, PendingWork> {
        lock(&self.work)
    }

    /// Adds the work that a change of a Node requires. Returns true if it is new: a heartbeat of a Node whose instance
    /// could not be tagged must not end the backoff.
    pub(super) fn apply(&self, change: &Change<'_, Node>) -> bool {
        let mut work = self.work();
        match (change.new, change.old) {
            (Some(node), _) if self.has_current_label(node) => {
                work.tag.remove(&node.meta.key());
                false
            }
            (Some(node), _) => match self.taggable(node) {
                Some(id) if work.terminal.get(&node.meta.key()) != Some(&id) => {
                    let pending = (node.meta.uid.clone(), id);
                    let known = work.tag.insert(node.meta.key(), pending.clone());
                    known != Some(pending)
                }
                _ => false,
            },
            (None, Some(deleted)) => {
                work.tag.remove(&deleted.meta.key());
                work.terminal.remove(&deleted.meta.key());
                self.taggable(deleted).is_some_and(|id| work.untag.insert(id, 0).is_none())
            }
            (None, None) => false,
        }
    }

    /// Ignores a Node until it has another instance.
    pub(super) fn give_up(&self, node: ObjectKey, instance: String) {
        let mut work = self.work();
        work.tag.remove(&node);
        work.terminal.insert(node, instance);
    }

    fn has_current_label(&self, node: &Node) -> bool {
        node.meta.labels.iter().any(|(key, value)| **key == *TAGS_LABEL && **value == *self.checksum)
    }
}

/// Returns the provider ID of a Node's instance; `None` until it is set.
fn instance(node: &Node) -> Option<String> {
    node.cloud.as_ref().map(|cloud| cloud.provider_id.to_string()).filter(|id| !id.is_empty())
}

/// Returns true if a call is retried after this error; a missing instance only if its Node is new.
pub(super) fn is_retried(error: &CloudError, is_new_node: bool) -> bool {
    if error.is_not_found() { is_new_node } else { !error.is_invalid() }
}

pub(super) struct Tagger {
    pub(super) cloud: Arc<Cloud>,
    pub(super) tagging: Arc<dyn Tagging>,
    pub(super) tags: BTreeMap<String, String>,
    pub(super) pending: Arc<Pending>,
    pub(super) nodes: Arc<Store<Node>>,
    pub(super) writer: Writer,
    pub(super) metrics: TaggingMetrics,
    pub(super) clock: Clock,
}

impl Reconcile for Tagger {
    type Key = Round;

    fn reconcile<'a>(&'a self, _: &'a Round) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async move {
            if let Err(wait) = self.cloud.ready().await {
                return Ok(Outcome::RequeueAfter(wait));
            }
            // Remove tags first, then add them: the instance of a recreated Node has them in the end.
            let (retry_untag, retry_tag) = (self.untag().await, self.tag().await);
            Ok(if retry_untag || retry_tag { Outcome::RequeueWithBackoff } else { Outcome::Done })
        }
        .boxed()
    }
}

impl Tagger {
    /// Tags the instances of Nodes without a current checksum, in one call to the provider. Returns true if a retry is
    /// needed.
    async fn tag(&self) -> bool {
        let keys: Vec<ObjectKey> = self.pending.work().tag.keys().cloned().collect();
        let (mut nodes, mut instances) = (Vec::new(), Vec::new());
        for node in keys.iter().filter_map(|key| self.nodes.get(key)).filter(|node| !node.meta.is_deleting()) {
            if let Some(id) = instance(&node) {
                instances.push(id);
                nodes.push(node);
            }
        }
        if instances.is_empty() {
            return false;
        }
        let results = self.tagging.tag(&instances, &self.tags).await;
        let (mut needs_retry, mut tagged) = (false, Vec::new());
        for ((node, id), result) in nodes.into_iter().zip(instances).zip(results) {
            let Err(error) = result else {
                tagged.push(node);
                continue;
            };
            let will_retry = is_retried(&error, self.is_new(&node));
            self.metrics.failed(will_retry);
            warn!(node = &*node.meta.name, instance = id, %error, retry = will_retry, "instance not tagged");
            if will_retry {
                needs_retry = true;
            } else {
                self.pending.give_up(node.meta.key(), id);
            }
        }
        let records = stream::iter(tagged)
            .map(|node| async move { self.record_tags(&node).await })
            .buffer_unordered(CONCURRENT_WRITES);
        let failures = records.filter(|is_recorded| std::future::ready(!is_recorded)).count().await;
        needs_retry || failures > 0
    }

    /// Sets the label with the checksum on a Node whose instance is tagged. Returns false if a retry is needed.
    async fn record_tags(&self, node: &Node) -> bool {
        let key = node.meta.key();
        let labels = json!({ TAGS_LABEL: self.pending.checksum });
        let patch = json!({"metadata": {"uid": node.meta.uid.to_string(), "labels": labels}});
        match self.writer.patch(&Node::RESOURCE, &key, &patch).await {
            Err(error) if !error.is_not_found() => {
                warn!(node = &*node.meta.name, %error, "tags not recorded on node");
                false
            }
            written => {
                self.pending.work().tag.remove(&key);
                if written.is_ok() && !node.meta.labels.iter().any(|(key, _)| **key == *TAGS_LABEL) {
                    self.metrics.tagged(self.age(node));
                }
                true
            }
        }
    }

    /// Removes the tags of deleted Nodes' instances. Returns true if a retry is needed.
    async fn untag(&self) -> bool {
        let instances: Vec<String> = self.pending.work().untag.keys().cloned().collect();
        let (recreated, instances): (Vec<_>, Vec<_>) = instances.into_iter().partition(|id| self.has_node(id));
        for id in recreated {
            self.pending.work().untag.remove(&id);
        }
        if instances.is_empty() {
            return false;
        }
        let results = self.tagging.untag(&instances, &self.tags).await;
        let mut work = self.pending.work();
        for (id, result) in instances.into_iter().zip(results) {
            let attempts = work.untag.get(&id).copied().unwrap_or_default() + 1;
            match result {
                Err(error) if is_retried(&error, false) => {
                    let will_retry = attempts < MAX_UNTAG_ATTEMPTS;
                    self.metrics.failed(will_retry);
                    warn!(instance = id, %error, retry = will_retry, "tags not removed from instance");
                    if will_retry {
                        work.untag.insert(id, attempts);
                        continue;
                    }
                }
                Err(error) if error.is_not_found() => {
                    info!(instance = id, "instance no longer exists; no tags to remove");
                }
                Err(error) => {
                    self.metrics.failed(false);
                    warn!(instance = id, %error, retry = false, "tags not removed from instance");
                }
                Ok(()) => info!(instance = id, "tags removed from instance"),
            }
            work.untag.remove(&id);
        }
        !work.untag.is_empty()
    }

    fn has_node(&self, instance: &str) -> bool {
        let nodes = self.nodes.by_index(&BY_INSTANCE, index_key(instance));
        nodes.iter().any(|node| self::instance(node).as_deref() == Some(instance))
    }

    fn is_new(&self, node: &Node) -> bool {
        self.age(node) < MISSING_INSTANCE_RETRY_AGE.as_secs().cast_signed()
    }

    /// Returns the age in seconds.
    fn age(&self, node: &Node) -> i64 {
        let Time(created) = node.meta.created;
        (self.clock)().as_second() - created
    }
}
