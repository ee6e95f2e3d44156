//! Detaches a volume from a node, after a check that the node's kubelet does not use the volume, or that the detachment
//! may be forced.

use std::sync::Arc;
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{Kind, Node, Str, VolumeAttachment};
use runtime::consistency::DELETION_TIMEOUT;
use runtime::store::Store;
use runtime::worker::ReconcileError;
use runtime::write::WriteError;
use tracing::{debug, info, warn};

use super::changes::Extent;
use super::decide::{CACHE_RECHECK, ForceDetachReason};
use super::memory::SiteMemory;
use super::metrics::Operation;
use super::observe::{Place, state_of};
use super::reconcile::{AttachDetach, Recheck, Subject};
use crate::storage::lost_write::REQUEST_TIMEOUT;
use crate::storage::volume_name::{Plugin, attachment_name};

/// Pause before an object is read again that differs from a cache which is not behind.
pub const READ_RECHECK: Duration = Duration::from_secs(1);

impl AttachDetach {
    /// Detaches the volume. The node's cached status must no longer list the volume.
    pub async fn detach(
        &self,
        subject: &Subject<'_>,
        place: &Place,
        forced: Option<ForceDetachReason>,
        memory: &mut SiteMemory,
    ) -> Recheck {
        if let Some(pause) = self.pause_until_released(subject, place, forced).await? {
            return Ok(Some(pause));
        }
        memory.detach_started.get_or_insert(subject.now);
        if let Some(reason) = forced {
            warn!(volume = %subject.name, node = %place.node, ?reason, "force-detaching a volume that is still in use");
        }
        let Plugin::Csi { driver, handle } = subject.plugin else {
            info!(volume = %subject.name, node = %place.node, "volume is no longer reserved for the node");
            self.operations.forced(forced);
            memory.is_held = false;
            memory.is_attached = false;
            memory.is_abandoned = true;
            // Pods on other nodes may wait for the volume.
            self.requeue(subject.name.clone(), Extent::ALL);
            return Ok(None);
        };
        let Some(attachment) = &place.attachment else {
            return self.check_lost_creation(subject, attachment_name(driver, handle, &place.node), memory).await;
        };
        info!(volume = %subject.name, node = %place.node, attachment = %attachment.meta.name, "detaching volume");
        self.consistency.deleting(subject.key, &VolumeAttachment::RESOURCE, &attachment.meta);
        let key = attachment.meta.key();
        let deletion = self.writer.delete(&VolumeAttachment::RESOURCE, &key, &attachment.meta.uid).await;
        if deletion.as_ref().err().is_none_or(WriteError::is_lost) {
            self.operations.forced(forced);
        }
        match deletion {
            // The change may never be in the cache, because the API server's storage was restored from a backup.
            Ok(()) => Ok(Some(DELETION_TIMEOUT)),
            Err(error) if error.is_object_deleted() => Ok(Some(CACHE_RECHECK)),
            Err(error) => {
                self.consistency.not_deleting(subject.key, &attachment.meta.uid);
                self.operations.failed(Operation::Detach, subject.plugin, memory.detach_started);
                Err(error.into())
            }
        }
    }

    /// Returns `None` if the volume may be detached according to the API server. Unless the node is deleted, it must be
    /// managed, its status must not list the volume as attached, and the kubelet must have released the volume, or the
    /// reason to detach it by force must still hold. A recent response to the write that removed the volume from the
    /// status suffices; otherwise the node is read. If the volume may not be detached, the cache is behind, and the next
    /// reconcile of the volume waits for the cache: returns the pause before it.
    async fn pause_until_released(
        &self,
        subject: &Subject<'_>,
        place: &Place,
        forced: Option<ForceDetachReason>,
    ) -> Result<Option<Duration>, ReconcileError> {
        if forced.is_none() && self.memory.take_release(&place.node, subject.name) {
            return Ok(None);
        }
        let node = self.read_node(&place.node).await?;
        let Some(node) = &*node else { return Ok(None) };
        let state = state_of(Some(node));
        let volumes = node.volumes.as_deref();
        let is_forced = match forced {
            Some(ForceDetachReason::Timeout) => !state.is_ready,
            Some(ForceDetachReason::OutOfService) => state.is_out_of_service,
            None => false,
        };
        // While the status lists a volume, the kubelet may mount it; kubelets of unmanaged nodes attach volumes
        // themselves.
        let is_released = state.is_managed
            && volumes
                .is_some_and(|volumes| !volumes.lists(subject.name) && (is_forced || !volumes.uses(subject.name)));
        Ok((!is_released).then(|| self.await_node(subject, place, node)))
    }

    /// Reads a node from the API server.
    pub async fn read_node(&self, name: &Str) -> Result<Arc<Option<Node>>, ReconcileError> {
        let read = self.node_reads.get(name).await;
        read.map_err(|error| ReconcileError::new(format!("failed to read node {name} from the API server: {error}")))
    }

    /// Delays the next reconcile of a volume until the cache contains a node as it was read. Returns the pause before
    /// that reconcile.
    pub fn await_node(&self, subject: &Subject<'_>, place: &Place, read: &Node) -> Duration {
        debug!(volume = %subject.name, node = %place.node, version = read.meta.version, "waiting for the node's cache");
        self.await_read(subject, &self.caches.nodes, read.meta.version)
    }

    /// Delays the next reconcile of a volume until the cache contains an object at the version that was read. Returns
    /// the pause before that reconcile. It is not zero if the cache has the version, and yet differs from the read:
    /// the API server's storage may have been restored from a backup, which the watch has not detected yet.
    fn await_read<K: Kind>(&self, subject: &Subject<'_>, store: &Store<K>, version: u64) -> Duration {
        if self.awaits_version(subject.key, store, version) { Duration::ZERO } else { READ_RECHECK }
    }

    /// Delays the next reconcile of a key until the cache contains a version that was read. Returns false if it does.
    pub fn awaits_version<K: Kind>(&self, key: &ObjectKey, store: &Store<K>, version: u64) -> bool {
        self.consistency.wrote(key, store, version);
        let progress = store.progress();
        !progress.contains(&progress.written(version))
    }

    /// Checks whether an attachment exists after the response to its creation was lost.
    async fn check_lost_creation(&self, subject: &Subject<'_>, name: String, memory: &mut SiteMemory) -> Recheck {
        match self.writer.get(&VolumeAttachment::RESOURCE, &ObjectKey::new("", name)).await {
            Ok(response) => {
                let version = response.meta().map_err(|error| ReconcileError::new(error.to_string()))?.version;
                Ok(Some(self.await_read(subject, &self.caches.attachments, version)))
            }
            Err(error) if error.is_not_found() => {
                let elapsed = memory.uncertain_since.map_or(REQUEST_TIMEOUT, |since| since.elapsed());
                if elapsed < REQUEST_TIMEOUT {
                    return Ok(Some(REQUEST_TIMEOUT - elapsed));
                }
                memory.uncertain_since = None;
                memory.is_attached = false;
                Ok(Some(Duration::ZERO))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Records when the wait for the driver began, and reports each error of the driver once.
    pub fn await_detach(&self, subject: &Subject<'_>, place: &Place, memory: &mut SiteMemory) {
        memory.is_announced = false;
        memory.detach_started.get_or_insert(subject.now);
        if let Some(attachment) = &place.attachment
            && let Some(error) = &attachment.detach_error
            && attachment.meta.version != memory.reported_version
        {
            memory.reported_version = attachment.meta.version;
            warn!(volume = %subject.name, node = %place.node, %error, "driver failed to detach volume");
            self.operations.failed(Operation::Detach, subject.plugin, memory.detach_started);
        }
    }
}
