//! Writes the attached volumes to the status of a node. In this process, nothing else writes that list.
//!
//! A write is refused unless the list still is the one in the cache, so that it cannot undo a write of another client.
//! A write that removes a volume which kubelets attach themselves is also refused if the kubelet has changed other
//! fields of the node meanwhile. The next write waits until the cache contains this one. Before a removed volume is
//! detached, the node has to be read; the response to a write saves that read.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::node_volumes::AttachedVolume;
use kinds::{Kind, Node, Str};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{ObjectResponse, WriteError};
use serde_json::{Value, json};
use tokio::time::Instant;
use tracing::debug;

use super::changes::Extent;
use super::memory::NodeWrite;
use super::node_list::removed;
use super::reconcile::AttachDetach;
use crate::storage::volume_name::is_attached_by_kubelet;

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
        let current = node.as_deref().map_or(&[][..], attached_to);
        let recheck = self.release_unlisted(name, current).map_or(Outcome::Done, Outcome::RequeueAfter);
        let Some(node) = &node else {
            self.memory.not_due(name);
            self.consistency.forget(&key);
            return Ok(recheck);
        };
        let started = Instant::now();
        let list = match self.memory.begin_write(name, current, started) {
            NodeWrite::None => return Ok(recheck),
            NodeWrite::After(pause) => return Ok(Outcome::RequeueAfter(pause)),
            NodeWrite::Now(list) => list,
        };
        debug!(node = %name, volumes = list.len(), "writing attached volumes");
        let removed = removed(current, &list);
        let has_removed = !removed.is_empty();
        let patch = patch(node, (current, &list), needs_unchanged_node(node, &removed));
        match self.writer.json_patch_status(&Node::RESOURCE, &key, &patch, has_removed).await {
            Ok(response) => {
                let version = response.meta().map_err(|error| ReconcileError::new(error.to_string()))?.version;
                let released = if has_removed { self.released(&response, removed) } else { Vec::new() };
                self.memory.written(name, started.elapsed(), released);
                if version == node.meta.version {
                    self.release_unlisted(name, &list);
                    return Ok(Outcome::Done);
                }
                // The write counts as under way until the cache contains it. The next reconcile waits for that: if
                // another client reverts the list, the cache may show no change of it, so that nothing else adds this
                // node.
                self.consistency.wrote(&key, &self.caches.nodes, version);
                Ok(Outcome::RequeueAfter(Duration::ZERO))
            }
            Err(error) if error.is_lost() => {
                self.consistency.lost(&key);
                self.memory.lose_write(name, current);
                Err(error.into())
            }
            Err(error) => {
                self.release_unlisted(name, current);
                let is_outdated = error.is_invalid() || error.is_conflict() || error.is_object_deleted();
                if is_outdated { self.await_outdated(&key, node, &error).await } else { Err(error.into()) }
            }
        }
    }

    /// Records that no write is under way, and requeues the volumes that waited for that. If the API server may still
    /// make an earlier write, only returns the time until this has to be repeated.
    fn release_unlisted(&self, name: &Str, current: &[AttachedVolume]) -> Option<Duration> {
        let (volumes, recheck) = self.memory.end_write(name, current);
        for volume in volumes {
            self.requeue(volume, Extent::of_nodes([name.clone()]));
        }
        recheck
    }

    /// Returns the volumes that a write has removed from a node's list and that its kubelet does not use according to
    /// the response.
    fn released(&self, response: &ObjectResponse, mut removed: Vec<Str>) -> Vec<Str> {
        let node = response.decode::<Node>(self.caches.nodes.decoding()).ok();
        let Some(volumes) = node.and_then(|node| node.volumes).filter(|volumes| volumes.is_managed) else {
            return Vec::new();
        };
        removed.retain(|name| !volumes.uses(name) && !volumes.lists(name));
        removed
    }

    /// Handles a refused write. If the node has changed or was replaced, the next write waits for the cache.
    ///
    /// # Errors
    /// The node cannot be read; or the cache is up to date, and the API server refuses the list itself.
    async fn await_outdated(
        &self,
        key: &ObjectKey,
        cached: &Node,
        error: &WriteError,
    ) -> Result<Outcome, ReconcileError> {
        let read = self.read_node(&cached.meta.name).await?;
        let Some(read) = &*read else { return Ok(Outcome::RequeueWithBackoff) };
        let is_same = read.meta.uid == cached.meta.uid && attached_to(read) == attached_to(cached);
        if !is_same || read.meta.version != cached.meta.version {
            // If the cache is not behind, it contains the version, and yet differs: the API server's storage may have
            // been restored from a backup.
            let is_behind = self.awaits_version(key, &self.caches.nodes, read.meta.version);
            return Ok(if is_behind { Outcome::RequeueAfter(Duration::ZERO) } else { Outcome::RequeueWithBackoff });
        }
        if !error.is_invalid() {
            return Ok(Outcome::RequeueWithBackoff);
        }
        Err(ReconcileError::new(format!("the API server refuses the list of attached volumes: {error}")))
    }

    /// Reads the node's version after a write without a response, so that no write is made before the cache contains
    /// it.
    async fn await_unknown_write(&self, key: &ObjectKey) -> Result<(), ReconcileError> {
        match self.writer.get(&Node::RESOURCE, key).await {
            Ok(response) => {
                let version = response.meta().map_err(|error| ReconcileError::new(error.to_string()))?.version;
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

fn attached_to(node: &Node) -> &[AttachedVolume] {
    node.volumes.as_ref().map_or(&[], |volumes| volumes.attached())
}

/// Returns true if a list without these volumes may be written only if the node has not changed.
///
/// A volume that kubelets attach has no VolumeAttachment: only the node's status shows that the node has the volume.
/// If this process crashes after the write, the next leader may give the volume to another node. The write must
/// therefore fail if the kubelet has begun to use the volume.
fn needs_unchanged_node(node: &Node, removed: &[Str]) -> bool {
    let is_unused = |name: &&Str| node.volumes.as_ref().is_some_and(|volumes| !volumes.uses(name));
    removed.iter().filter(is_unused).any(|name| is_attached_by_kubelet(name))
}

/// Returns the JSON Patch that replaces the list of a node's attached volumes. The patch fails unless the list still
/// is `current`; with `is_unchanged`, it also fails if anything else of the node has changed.
fn patch(node: &Node, (current, list): (&[AttachedVolume], &[AttachedVolume]), is_unchanged: bool) -> Value {
    const LIST: &str = "/status/volumesAttached";
    let change = match list {
        [] => json!({"op": "remove", "path": LIST}),
        list => json!({"op": "add", "path": LIST, "value": entries(list)}),
    };
    // A missing list equals null.
    let mut operations = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": node.meta.uid.to_string()}),
        json!({"op": "test", "path": LIST, "value": entries(current)}),
    ];
    if is_unchanged {
        let version = node.meta.version.to_string();
        operations.push(json!({"op": "test", "path": "/metadata/resourceVersion", "value": version}));
    }
    operations.push(change);
    operations.into()
}

/// Returns the list as JSON; null if it is empty, because the API server leaves an empty list out.
fn entries(list: &[AttachedVolume]) -> Value {
    let entry = |volume: &AttachedVolume| json!({"name": &*volume.name, "devicePath": &*volume.device_path});
    if list.is_empty() { Value::Null } else { list.iter().map(entry).collect() }
}
