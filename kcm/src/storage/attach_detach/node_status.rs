//! Writes the attached volumes to the status of a node: the only writer of that list.
//!
//! A write is refused unless the list still is the one in the cache, so that it cannot undo another write of the list.
//! The kubelet's writes of other fields are no conflict. The next write waits until the cache contains this one. Its
//! response is the read of the node that precedes the detachment of a removed volume.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::node_volumes::AttachedVolume;
use kinds::{Kind, Node, Str};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::ObjectResponse;
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::debug;

use super::memory::NodeWrite;
use super::node_list::removed;
use super::reconcile::AttachDetach;

/// Reconciles the status of nodes by their names.
pub struct NodeStatuses(pub Arc<AttachDetach>);

impl Reconcile for NodeStatuses {
    type Key = Str;

    fn reconcile<'a>(&'a self, key: &'a Str) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.0.sync_node(key).boxed()
    }
}

impl AttachDetach {
    async fn sync_node(&self, name: &Str) -> Result<Outcome, ReconcileError> {
        let key = ObjectKey::new("", name.clone());
        if self.consistency.take_lost(&key) {
            self.await_unknown_write(&key).await?;
        }
        if !self.consistency.caught_up(&key, &self.caches.nodes, self.node_queue.waker(name)) {
            return Ok(Outcome::WaitingForCache);
        }
        let node = self.caches.node(name);
        let current = node.as_ref().and_then(|node| node.volumes.as_ref()).map_or(&[][..], |volumes| &volumes.attached);
        self.release_unlisted(name, current);
        let Some(node) = &node else {
            self.consistency.forget(&key);
            return Ok(Outcome::Done);
        };
        let started = Instant::now();
        let list = match self.memory.begin_write(name, current, started) {
            NodeWrite::None => return Ok(Outcome::Done),
            NodeWrite::After(pause) => return Ok(Outcome::RequeueAfter(pause)),
            NodeWrite::Now(list) => list,
        };
        debug!(node = %name, volumes = list.len(), "writing attached volumes");
        let removed = removed(current, &list);
        let has_removed = !removed.is_empty();
        match self.writer.json_patch_status(&Node::RESOURCE, &key, &patch(node, current, &list), has_removed).await {
            Ok(answer) => {
                let version = answer.meta().map_err(|error| ReconcileError::new(error.to_string()))?.version;
                let released = if has_removed { self.released(&answer, removed) } else { Vec::new() };
                self.memory.written(name, started.elapsed(), released);
                if version == node.meta.version {
                    self.release_unlisted(name, &list);
                    return Ok(Outcome::Done);
                }
                // The write counts as under way until the node's event arrives, which adds the key again.
                self.consistency.wrote(&key, &self.caches.nodes, version);
                Ok(Outcome::Done)
            }
            Err(error) if error.is_lost() => {
                self.consistency.lost(&key);
                Err(error.into())
            }
            Err(error) => {
                self.release_unlisted(name, current);
                // Another write of the list came first: the cache will contain it soon.
                let is_outdated = error.is_invalid() || error.is_conflict() || error.is_object_deleted();
                if is_outdated { Ok(Outcome::RequeueWithBackoff) } else { Err(error.into()) }
            }
        }
    }

    /// Notes that no write is under way, and requeues the volumes that waited for that.
    fn release_unlisted(&self, name: &Str, current: &[AttachedVolume]) {
        let is_listed = |volume: &Str| current.iter().any(|entry| entry.name == *volume);
        let ended = self.memory.end_write(name);
        ended.into_iter().filter(|volume| !is_listed(volume)).for_each(|volume| self.volume_queue.add(volume));
    }

    /// Returns the volumes of a node, of those that a write has removed from its list, that its kubelet does not use
    /// according to the response.
    fn released(&self, response: &ObjectResponse, mut removed: Vec<Str>) -> Vec<Str> {
        let node = response.decode::<Node>(self.caches.nodes.decoding()).ok();
        let Some(volumes) = node.and_then(|node| node.volumes).filter(|volumes| volumes.is_managed) else {
            return Vec::new();
        };
        removed.retain(|name| !volumes.uses(name) && !volumes.lists(name));
        removed
    }

    /// Waits for the version of the node after a write without a response.
    async fn await_unknown_write(&self, key: &ObjectKey) -> Result<(), ReconcileError> {
        match self.writer.get(&Node::RESOURCE, key).await {
            Ok(answer) => {
                let version = answer.meta().map_err(|error| ReconcileError::new(error.to_string()))?.version;
                self.consistency.wrote(key, &self.caches.nodes, version);
                Ok(())
            }
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => {
                self.consistency.lost(key);
                Err(error.into())
            }
        }
    }
}

/// Returns the JSON Patch that replaces the list of a node's attached volumes, if it still is `current`.
fn patch(node: &Node, current: &[AttachedVolume], list: &[AttachedVolume]) -> Value {
    const LIST: &str = "/status/volumesAttached";
    let change = match list {
        [] => json!({"op": "remove", "path": LIST}),
        list => json!({"op": "add", "path": LIST, "value": entries(list)}),
    };
    // A list that is missing equals null.
    json!([
        {"op": "test", "path": "/metadata/uid", "value": node.meta.uid.to_string()},
        {"op": "test", "path": LIST, "value": entries(current)},
        change,
    ])
}

/// Returns the list as JSON; null if it is empty, because the API server leaves an empty list out.
fn entries(list: &[AttachedVolume]) -> Value {
    let entry = |volume: &AttachedVolume| json!({"name": &*volume.name, "devicePath": &*volume.device_path});
    if list.is_empty() { Value::Null } else { list.iter().map(entry).collect() }
}
