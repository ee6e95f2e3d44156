//! Finds the volumes of unresolved attachments among the PersistentVolumes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::{PersistentVolume, Str, VolumeAttachment};
use runtime::store::Change;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use tracing::info;

use super::changes::Extent;
use super::indexes;
use super::reconcile::AttachDetach;
use super::unresolved::{ByNode, Work};
use crate::storage::volume_name::{Plugin, attachment_name, of_volume};

/// Pause before the volumes of attachments are searched among the PersistentVolumes: many attachments and
/// PersistentVolumes may be created in this time.
const RESOLUTION_PAUSE: Duration = Duration::from_secs(5);

/// Applies a change of an attachment.
pub fn apply_attachment(shared: &AttachDetach, change: &Change<'_, VolumeAttachment>) {
    for attachment in [change.old, change.new].into_iter().flatten() {
        resolve_later(shared, attachment);
    }
}

/// Applies a change of a PersistentVolume to its attachments, and to the unresolved ones that may belong to its volume.
pub fn apply_volume(shared: &AttachDetach, change: &Change<'_, PersistentVolume>) {
    let Some(volume) = change.new.or(change.old) else { return };
    let name_of = |volume: Option<&Arc<PersistentVolume>>| volume.and_then(|volume| of_volume(volume));
    let (old, new) = (name_of(change.old), name_of(change.new));
    if old == new {
        return;
    }
    let index = indexes::attachments_by_volume();
    let attachments = shared.caches.attachments.by_index(&index, indexes::of_volume(&volume.meta.name));
    attachments.iter().for_each(|attachment| resolve_later(shared, attachment));
    let Some(new) = new else { return };
    if let Some(Plugin::Csi { driver, .. }) = Plugin::of(&new)
        && shared.caches.unresolved.change(driver, &new)
    {
        shared.driver_queue.add_after(driver.into(), RESOLUTION_PAUSE);
    }
}

fn resolve_later(shared: &AttachDetach, attachment: &VolumeAttachment) {
    if shared.caches.unresolved.update(attachment, &shared.caches.attachments, &shared.caches.volumes) {
        shared.driver_queue.add_after(attachment.attacher.clone(), RESOLUTION_PAUSE);
    }
}

/// Finds the volumes of a driver's unresolved attachments, by the driver's name.
pub struct Drivers(pub Arc<AttachDetach>);

impl Reconcile for Drivers {
    type Key = Str;

    fn reconcile<'a>(&'a self, key: &'a Str) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.0.resolve(key).map(|()| Ok(Outcome::Done)).boxed()
    }
}

impl AttachDetach {
    /// Requeues the volumes to which unresolved attachments belong. Nothing else requeues such a volume if no object of
    /// it changes and no pod uses it. Visits all PersistentVolumes once for each attachment, later only changed ones.
    async fn resolve(&self, driver: &str) {
        let Work { new, all, changed } = self.caches.unresolved.take_work(driver);
        if !new.is_empty() {
            let volumes = self.caches.volumes.all();
            let names = volumes.iter().filter_map(|volume| of_volume(volume));
            self.requeue_attached(driver, names.collect(), &new).await;
        }
        self.requeue_attached(driver, changed, &all).await;
    }

    /// Requeues those of the volumes to which attachments of the driver belong.
    async fn requeue_attached(&self, driver: &str, volumes: BTreeSet<Str>, attachments: &ByNode) {
        #[cfg(test)]
        self.memory.visit(volumes.len());
        for volume in volumes {
            let Some(Plugin::Csi { driver: of_driver, handle }) = Plugin::of(&volume) else { continue };
            if of_driver != driver {
                continue;
            }
            let mut is_attached = false;
            for (node, names) in attachments {
                let Some(attachment) = names.get(&*attachment_name(driver, handle, node)) else { continue };
                is_attached = true;
                if self.caches.unresolved.found(driver, node, attachment) {
                    info!(%volume, %node, %attachment, "found an attachment that names another PersistentVolume");
                }
            }
            if is_attached {
                self.requeue(volume, Extent::ALL);
            }
            tokio::task::yield_now().await;
        }
    }
}
