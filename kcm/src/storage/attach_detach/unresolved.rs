//! VolumeAttachments whose PersistentVolume is missing or undecodable, or has other storage by now.
//!
//! Only the hash in the name of such an attachment shows its volume. The volume may have another PersistentVolume, for
//! example one that was created for the same storage after the first one was deleted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::{PersistentVolume, Str, VolumeAttachment};
use runtime::lock::lock;
use runtime::store::Change;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use tracing::info;

use super::changes::Extent;
use super::indexes;
use super::observe::Caches;
use super::reconcile::AttachDetach;
use crate::storage::volume_name::{Plugin, attachment_name, has_form_of_attachment, is_attachment_of, of_volume};

/// Pause before the volumes of attachments are searched among all PersistentVolumes: many may be created in this time.
const RESOLUTION_PAUSE: Duration = Duration::from_secs(5);

/// The attachments of a driver: their names by node.
type ByNode = BTreeMap<Str, BTreeSet<Str>>;

/// Names of unresolved attachments, by driver.
#[derive(Debug, Default)]
pub struct Unresolved(Mutex<HashMap<Str, ByNode>>);

impl Unresolved {
    /// Adds or removes an attachment, as the caches require. Returns true if it is unresolved.
    fn update(&self, attachment: &VolumeAttachment, caches: &Caches) -> bool {
        // The caches are read under the lock: of two changes at the same time, the second one is decided with both.
        let mut all = lock(&self.0);
        let (driver, node, name) = (&attachment.attacher, &attachment.node, &attachment.meta.name);
        let current = caches.attachments.get(&attachment.meta.key());
        let is_unresolved = current.is_some_and(|current| {
            (&current.attacher, &current.node) == (driver, node) && !is_resolved(&current, caches)
        });
        if is_unresolved {
            all.entry(driver.clone()).or_default().entry(node.clone()).or_default().insert(name.clone());
        } else if let Some(by_node) = all.get_mut(driver) {
            if let Some(names) = by_node.get_mut(node)
                && names.remove(name)
                && names.is_empty()
            {
                by_node.remove(node);
            }
            if by_node.is_empty() {
                all.remove(driver);
            }
        }
        is_unresolved
    }

    /// Returns the nodes to which unresolved attachments attach a volume.
    pub fn nodes(&self, plugin: Plugin<'_>) -> Vec<Str> {
        let Plugin::Csi { driver, handle } = plugin else { return Vec::new() };
        let all = lock(&self.0);
        let by_node = all.get(driver).into_iter().flatten();
        let attached = by_node.filter(|(node, names)| names.contains(&*attachment_name(driver, handle, node)));
        attached.map(|(node, _)| node.clone()).collect()
    }

    /// Returns true if there are unresolved attachments of a driver.
    pub fn has_driver(&self, driver: &str) -> bool {
        lock(&self.0).contains_key(driver)
    }
}

/// Returns true if the PersistentVolume or the inline source of an attachment shows its volume. Also true if its name
/// has another form: then it belongs to another client.
fn is_resolved(attachment: &VolumeAttachment, caches: &Caches) -> bool {
    if attachment.volume.is_empty() || !has_form_of_attachment(&attachment.meta.name) {
        return true;
    }
    let volume = caches.volumes.get(&ObjectKey::new("", attachment.volume.clone()));
    volume.as_deref().and_then(of_volume).is_some_and(|name| is_attachment_of(attachment, &name))
}

/// Applies a change of an attachment.
pub fn apply_attachment(shared: &AttachDetach, change: &Change<'_, VolumeAttachment>) {
    for attachment in [change.old, change.new].into_iter().flatten() {
        resolve_later(shared, attachment);
    }
}

/// Applies a change of a PersistentVolume: its attachments, and those that may belong to its volume.
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
    if let Some(Plugin::Csi { driver, .. }) = new.as_deref().and_then(Plugin::of)
        && shared.caches.unresolved.has_driver(driver)
    {
        shared.driver_queue.add_after(driver.into(), RESOLUTION_PAUSE);
    }
}

fn resolve_later(shared: &AttachDetach, attachment: &VolumeAttachment) {
    if shared.caches.unresolved.update(attachment, &shared.caches) {
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
    /// Requeues the volumes to which unresolved attachments belong: no object of such a volume may have changed, and no
    /// pod may use it. Visits all PersistentVolumes, but only while a driver has such attachments.
    async fn resolve(&self, driver: &str) {
        if !self.caches.unresolved.has_driver(driver) {
            return;
        }
        let mut names = BTreeSet::new();
        self.caches.volumes.any(|volume| {
            names.extend(of_volume(volume).filter(|name| is_of_driver(name, driver)));
            false
        });
        for name in names {
            let Some(plugin) = Plugin::of(&name) else { continue };
            if !self.caches.unresolved.nodes(plugin).is_empty() {
                info!(volume = %name, "found an attachment that names another PersistentVolume");
                self.requeue(name, Extent::ALL);
            }
            tokio::task::yield_now().await;
        }
    }
}

fn is_of_driver(volume: &str, name: &str) -> bool {
    matches!(Plugin::of(volume), Some(Plugin::Csi { driver, .. }) if driver == name)
}
