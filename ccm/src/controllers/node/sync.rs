//! Initialization of a node, its labels, and the updates of all nodes from their instances.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use kinds::meta::{ObjectKey, Time};
use kinds::{Kind, Node};
use providers::{Address, CloudError, ErrorKind, Instance, InstanceFeatures, InstanceState, Instances};
use runtime::consistency::Consistency;
use runtime::events::{EventType, Recorder, about};
use runtime::queue::Queue;
use runtime::store::{Cached, Store};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{ObjectResponse, WriteError, Writer};
use serde_json::{Map, Value, json};
use tracing::{info, warn};

use super::decide::{
    addresses, has_addresses, has_provider_id, initial_labels, lacks_provider_id, missing_instance, reconciled_labels,
};
use super::decide_updates::{Changes, LabelEdits, changed_taints, changes, label_edits};
use super::keys::{self, Key};
use super::metrics::Delays;
use crate::cloud::Cloud;
use crate::cloud::instances::{Describer, describe_all, instance_ref};
use crate::cloud::taints::{self, initialized_taints, is_uninitialized};
use crate::context::Clock;

/// Delay after an error that a user or operator must fix.
const MISCONFIGURED_WAIT: Duration = Duration::from_secs(5 * 60);

pub(super) struct CloudNode {
    pub(super) cloud: Arc<Cloud>,
    pub(super) instances: Arc<dyn Instances>,
    pub(super) describer: Describer,
    pub(super) features: InstanceFeatures,
    pub(super) nodes: Arc<Store<Node>>,
    pub(super) writer: Writer,
    pub(super) recorder: Recorder,
    pub(super) consistency: Consistency,
    pub(super) queue: Arc<Queue<Key>>,
    pub(super) delays: Delays,
    pub(super) clock: Clock,
    pub(super) frequency: Duration,
    pub(super) update_workers: usize,
}

impl Reconcile for CloudNode {
    type Key = Key;

    fn begin(&self) {
        self.queue.add(Key::Updates);
    }

    fn reconcile<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        match key {
            Key::Node(node) => self.sync(node).boxed(),
            Key::Updates => self.update_nodes().boxed(),
        }
    }
}

impl CloudNode {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let node = match self.read(key) {
            Cached::Current(node) => node,
            Cached::Absent => return Ok(Outcome::Done),
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        if node.meta.is_deleting() {
            return Ok(Outcome::Done);
        }
        if !is_uninitialized(&node) {
            return self.reconcile_labels(key, &node).await;
        }
        if let Err(wait) = self.cloud.ready().await {
            return Ok(Outcome::RequeueAfter(wait));
        }
        match self.describer.describe(instance_ref(&node, &self.features.annotations)).await {
            InstanceState::Running(instance) => self.initialize(key, &node, &instance).await,
            InstanceState::Stopped => {
                info!("instance not running; the node will be initialized when it runs");
                Ok(Outcome::RequeueWithBackoff)
            }
            InstanceState::Gone => {
                info!("instance not found yet; requeued with backoff");
                let Time(created) = node.meta.created;
                if let Some(message) = missing_instance(&node, (self.clock)().as_second() - created) {
                    self.recorder.event(&about(&*node), EventType::Warning, "InstanceNotFound", message);
                }
                Ok(Outcome::RequeueWithBackoff)
            }
            InstanceState::Unknown(error) => {
                if error.is_invalid() {
                    self.recorder.event(&about(&*node), EventType::Warning, "InstanceNotFound", error.message.clone());
                }
                handle_unknown(&error)
            }
        }
    }

    fn read(&self, key: &ObjectKey) -> Cached<Node> {
        self.consistency.read(key, &self.nodes, self.queue.waker(&Key::Node(key.clone())))
    }

    /// Initializes a node. Writes the addresses first, so that a node without the taint has them.
    async fn initialize(&self, key: &ObjectKey, node: &Node, instance: &Instance) -> Result<Outcome, ReconcileError> {
        if lacks_provider_id(node, instance) {
            return Err(ReconcileError::new("the cloud provider has no provider ID for this node; it stays tainted"));
        }
        let wanted = match addresses(node, instance) {
            Ok(wanted) => wanted,
            Err(bad) => {
                let message = format!("provided node ip for node {:?} is not valid: {}", node.meta.name, bad.0);
                warn!(problem = message, "the node stays tainted");
                self.recorder.event(&about(node), EventType::Warning, "InvalidProvidedNodeIP", message);
                return Ok(Outcome::RequeueAfter(MISCONFIGURED_WAIT));
            }
        };
        let mut version = node.meta.version;
        if let Some(wanted) = wanted.filter(|wanted| !has_addresses(node, wanted)) {
            // The write is bound to the version: the next patch replaces all taints, and relies on the version that
            // this write returns.
            match self.write_addresses(node, &wanted, Some(version)).await {
                Ok(response) => version = self.wrote(key, &response).unwrap_or(version),
                Err(error) => return handle_failed_write(error),
            }
        }
        let (labels, left_out) = initial_labels(&node.meta.labels, instance);
        if !left_out.is_empty() {
            warn!(
                labels = left_out.join(","),
                "labels of the cloud provider not set: the node has other values, or the labels are reserved or invalid"
            );
        }
        let mut labels: LabelEdits = labels.into_iter().map(|(key, value)| (key, Some(value))).collect();
        labels.extend(label_edits(&node.meta.labels, instance, self.features.labels));
        let changed_taints = changed_taints(&node.taints, instance, self.features.taints);
        let taints = initialized_taints(changed_taints.as_deref().unwrap_or(&node.taints));
        let mut spec = Map::from_iter([("taints".to_owned(), taints)]);
        if !has_provider_id(node) {
            spec.insert("providerID".into(), json!(instance.provider_id));
        }
        let mut metadata = json!({"uid": node.meta.uid.to_string(), "resourceVersion": version.to_string()});
        if !labels.is_empty() {
            metadata["labels"] = json!(labels);
        }
        match self.writer.patch(&Node::RESOURCE, key, &json!({"metadata": metadata, "spec": spec})).await {
            Ok(response) => self.wrote(key, &response),
            Err(error) => return handle_failed_write(error),
        };
        let Time(created) = node.meta.created;
        self.delays.observe(((self.clock)().as_second() - created).max(0));
        self.recorder.event(&about(node), EventType::Normal, "Synced", "Node synced successfully".into());
        Ok(Outcome::Done)
    }

    async fn reconcile_labels(&self, key: &ObjectKey, node: &Node) -> Result<Outcome, ReconcileError> {
        let labels = reconciled_labels(&node.meta.labels);
        if labels.is_empty() {
            return Ok(Outcome::Done);
        }
        let patch = json!({"metadata": {"uid": node.meta.uid.to_string(), "labels": labels}});
        match self.writer.patch(&Node::RESOURCE, key, &patch).await {
            Ok(response) => {
                self.wrote(key, &response);
                Ok(Outcome::Done)
            }
            Err(error) => handle_failed_write(error),
        }
    }

    /// Writes addresses. If a version is given, the write fails if the node has changed since.
    async fn write_addresses(
        &self,
        node: &Node,
        wanted: &[Address],
        version: Option<u64>,
    ) -> Result<ObjectResponse, WriteError> {
        // A strategic merge would combine several addresses of one type: the list is replaced instead.
        let entries = wanted.iter().map(|wanted| json!({"type": wanted.kind.as_str(), "address": wanted.address}));
        let list: Value = std::iter::once(json!({"$patch": "replace"})).chain(entries).collect();
        let mut patch = json!({"metadata": {"uid": node.meta.uid.to_string()}, "status": {"addresses": list}});
        if let Some(version) = version {
            patch["metadata"]["resourceVersion"] = json!(version.to_string());
        }
        self.writer.patch_status(&Node::RESOURCE, &node.meta.key(), &patch).await
    }

    /// Records a write; returns its version.
    fn wrote(&self, key: &ObjectKey, response: &ObjectResponse) -> Option<u64> {
        let version = response.meta().ok()?.version;
        self.consistency.wrote(key, &self.nodes, version);
        Some(version)
    }

    /// Reads the instances of all initialized nodes in one call, and writes what changed.
    async fn update_nodes(&self) -> Result<Outcome, ReconcileError> {
        if let Err(wait) = self.cloud.ready().await {
            return Ok(Outcome::RequeueAfter(wait));
        }
        let nodes = self.nodes.by_index(&keys::INITIALIZED, keys::initialized());
        let requested: Vec<_> = nodes.iter().map(|node| instance_ref(node, &self.features.annotations)).collect();
        let states = describe_all(&*self.instances, &requested).await;
        let mut unknown: Option<(usize, CloudError)> = None;
        let mut changed = Vec::new();
        for (node, state) in nodes.iter().zip(states) {
            match state {
                InstanceState::Running(instance) => {
                    let changes = changes(node, &instance, &self.features);
                    if let Err(bad) = &changes.addresses {
                        warn!(node = &*node.meta.name, problem = bad.0, "node addresses not changed");
                    }
                    if !changes.is_empty() {
                        changed.push((node.clone(), instance));
                    }
                }
                InstanceState::Stopped | InstanceState::Gone => {}
                InstanceState::Unknown(error) => unknown = Some((unknown.map_or(0, |(count, _)| count) + 1, error)),
            }
        }
        if let Some((count, error)) = unknown {
            warn!(count, %error, "instances of nodes could not be read from the cloud");
        }
        stream::iter(changed)
            .for_each_concurrent(self.update_workers, async |(node, instance)| self.update_node(&node, &instance).await)
            .await;
        Ok(Outcome::RequeueAfter(self.frequency))
    }

    /// Writes the changes of a node after its instance was read. The node is read again, because it may have changed in
    /// the meantime.
    async fn update_node(&self, node: &Node, instance: &Instance) {
        let Some(current) = self.read(&node.meta.key()).current() else { return };
        if current.meta.uid != node.meta.uid || is_uninitialized(&current) {
            return;
        }
        match self.write_changes(&current, changes(&current, instance, &self.features)).await {
            Ok(()) => {}
            Err(error) if error.is_object_deleted() => {}
            Err(error) => warn!(node = &*node.meta.name, %error, "node not updated; retried in the next round"),
        }
    }

    /// Writes the changes of an initialized node. If the write of labels and taints fails, the addresses are written
    /// nevertheless.
    async fn write_changes(&self, node: &Node, changes: Changes) -> Result<(), WriteError> {
        // Labels and taints are written before the addresses: the patch replaces all taints, so it is valid only for
        // the version that the taints were read from.
        let labelled = self.write_labels_and_taints(node, &changes).await;
        if let Ok(Some(wanted)) = &changes.addresses {
            let response = self.write_addresses(node, wanted, None).await?;
            self.wrote(&node.meta.key(), &response);
        }
        labelled
    }

    async fn write_labels_and_taints(&self, node: &Node, changes: &Changes) -> Result<(), WriteError> {
        if changes.labels.is_empty() && changes.taints.is_none() {
            return Ok(());
        }
        let mut patch = json!({"metadata": {"uid": node.meta.uid.to_string()}});
        if !changes.labels.is_empty() {
            patch["metadata"]["labels"] = json!(changes.labels);
        }
        if let Some(taints) = &changes.taints {
            patch["metadata"]["resourceVersion"] = json!(node.meta.version.to_string());
            patch["spec"] = json!({"taints": taints::list(taints.iter())});
        }
        let key = node.meta.key();
        let response = self.writer.patch(&Node::RESOURCE, &key, &patch).await?;
        self.wrote(&key, &response);
        info!(node = &*node.meta.name, "labels and taints of the node updated from its instance");
        Ok(())
    }
}

/// Handles a node whose instance state is unknown.
fn handle_unknown(error: &CloudError) -> Result<Outcome, ReconcileError> {
    match error.kind {
        ErrorKind::Throttled { after: Some(after) } => Ok(Outcome::RequeueAfter(after)),
        ErrorKind::Invalid => {
            warn!(%error, "the cloud cannot identify the node's instance; the node stays tainted");
            Ok(Outcome::RequeueAfter(MISCONFIGURED_WAIT))
        }
        _ => Err(ReconcileError::new(format!("the node's instance could not be read from the cloud: {error}"))),
    }
}

/// Handles a failed write. The API server may have executed it nevertheless.
fn handle_failed_write(error: WriteError) -> Result<Outcome, ReconcileError> {
    match error {
        error if error.is_not_found() => Ok(Outcome::Done),
        error if error.is_conflict() => Ok(Outcome::RequeueWithBackoff),
        error => Err(error.into()),
    }
}
