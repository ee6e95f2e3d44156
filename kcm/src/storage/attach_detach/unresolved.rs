//! VolumeAttachments whose PersistentVolume is missing or undecodable, or has other storage by now.
//!
//! Only the hash in the name of such an attachment shows its volume. The volume may have another PersistentVolume, for
//! example one that was created for the same storage after the first one was deleted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

use kinds::meta::ObjectKey;
use kinds::{PersistentVolume, Str, VolumeAttachment};
use runtime::lock::lock;
use runtime::store::Store;

use crate::storage::volume_name::{Plugin, attachment_name, has_form_of_attachment, is_attachment_of, of_volume};

/// Progress of the search for an attachment's volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    /// All PersistentVolumes have to be searched.
    New,
    /// No PersistentVolume had the volume at the last search. A new or changed one may have it.
    Missing,
    /// The volume was found, and logged.
    Found,
}

/// The unresolved attachments of a driver.
#[derive(Debug, Default)]
struct OfDriver {
    /// By node and by their own names.
    attachments: BTreeMap<Str, BTreeMap<Str, Search>>,
    /// Volumes whose PersistentVolumes have been created or changed since the last search.
    changed: BTreeSet<Str>,
}

/// Names of attachments, by node.
pub type ByNode = BTreeMap<Str, BTreeSet<Str>>;

/// A search for the volumes of a driver's attachments.
#[derive(Debug, Default)]
pub struct Work {
    /// New attachments. Their volume may be that of any PersistentVolume.
    pub new: ByNode,
    /// All attachments. Their volume may be one of the changed ones.
    pub all: ByNode,
    /// The changed volumes.
    pub changed: BTreeSet<Str>,
}

/// Names of unresolved attachments, by driver.
#[derive(Debug, Default)]
pub struct Unresolved(Mutex<HashMap<Str, OfDriver>>);

impl Unresolved {
    /// Adds or removes an attachment, as the caches require. Returns true if it was added.
    pub fn update(
        &self,
        attachment: &VolumeAttachment,
        attachments: &Store<VolumeAttachment>,
        volumes: &Store<PersistentVolume>,
    ) -> bool {
        // The caches are read under the lock: of two changes at the same time, the second one is decided with both.
        let mut all = lock(&self.0);
        let (driver, node, name) = (&attachment.attacher, &attachment.node, &attachment.meta.name);
        let current = attachments.get(&attachment.meta.key());
        let is_unresolved = current.is_some_and(|current| {
            (&current.attacher, &current.node) == (driver, node) && !is_resolved(&current, volumes)
        });
        if is_unresolved {
            let of_driver = all.entry(driver.clone()).or_default();
            let names = of_driver.attachments.entry(node.clone()).or_default();
            if names.contains_key(name) {
                return false;
            }
            names.insert(name.clone(), Search::New);
        } else if let Some(of_driver) = all.get_mut(driver) {
            if let Some(names) = of_driver.attachments.get_mut(node)
                && names.remove(name).is_some()
                && names.is_empty()
            {
                of_driver.attachments.remove(node);
            }
            if of_driver.attachments.is_empty() {
                all.remove(driver);
            }
        }
        is_unresolved
    }

    /// Records a changed volume. Returns true if an unresolved attachment may belong to it.
    pub fn change(&self, driver: &str, volume: &Str) -> bool {
        let mut all = lock(&self.0);
        let of_driver = all.get_mut(driver);
        of_driver.is_some_and(|of_driver| {
            of_driver.changed.insert(volume.clone());
            true
        })
    }

    /// Returns the next search for the attachments of a driver.
    pub fn take_work(&self, driver: &str) -> Work {
        let mut drivers = lock(&self.0);
        let Some(of_driver) = drivers.get_mut(driver) else { return Work::default() };
        let mut work = Work { changed: std::mem::take(&mut of_driver.changed), ..Work::default() };
        for (node, names) in &mut of_driver.attachments {
            for (name, search) in names {
                if *search == Search::New {
                    *search = Search::Missing;
                    work.new.entry(node.clone()).or_default().insert(name.clone());
                }
                if !work.changed.is_empty() {
                    work.all.entry(node.clone()).or_default().insert(name.clone());
                }
            }
        }
        work
    }

    /// Records that the volume of an attachment was found. Returns true the first time.
    pub fn found(&self, driver: &str, node: &Str, attachment: &Str) -> bool {
        let mut all = lock(&self.0);
        let search = all
            .get_mut(driver)
            .and_then(|of_driver| of_driver.attachments.get_mut(node))
            .and_then(|names| names.get_mut(attachment));
        search.is_some_and(|search| std::mem::replace(search, Search::Found) != Search::Found)
    }

    /// Returns the nodes to which unresolved attachments attach a volume.
    pub fn nodes(&self, plugin: Plugin<'_>) -> Vec<Str> {
        let Plugin::Csi { driver, handle } = plugin else { return Vec::new() };
        let nodes = || -> Vec<Str> {
            let all = lock(&self.0);
            all.get(driver).into_iter().flat_map(|of_driver| of_driver.attachments.keys().cloned()).collect()
        };
        // The names are computed without the lock: other volumes and the watches need it, too.
        let named: Vec<(Str, String)> =
            nodes().into_iter().map(|node| (node.clone(), attachment_name(driver, handle, &node))).collect();
        if named.is_empty() {
            return Vec::new();
        }
        let all = lock(&self.0);
        let Some(of_driver) = all.get(driver) else { return Vec::new() };
        let is_attached =
            |node: &Str, name: &str| of_driver.attachments.get(node).is_some_and(|names| names.contains_key(name));
        named.into_iter().filter(|(node, name)| is_attached(node, name)).map(|(node, _)| node).collect()
    }

    /// Returns true if there are unresolved attachments of a driver.
    #[cfg(test)]
    pub fn has_driver(&self, driver: &str) -> bool {
        lock(&self.0).contains_key(driver)
    }
}

/// Returns true if the PersistentVolume or the inline source of an attachment shows its volume. Also true if its name
/// has another form: then it belongs to another client.
fn is_resolved(attachment: &VolumeAttachment, volumes: &Store<PersistentVolume>) -> bool {
    if attachment.volume.is_empty() || !has_form_of_attachment(&attachment.meta.name) {
        return true;
    }
    let volume = volumes.get(&ObjectKey::new("", attachment.volume.clone()));
    volume.as_deref().and_then(of_volume).is_some_and(|name| is_attachment_of(attachment, &name))
}
