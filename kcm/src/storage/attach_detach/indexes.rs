//! Indexes of nodes and VolumeAttachments by volume.

use kinds::{Node, VolumeAttachment};
use runtime::store::{Index, index_key};

use crate::storage::volume_name::is_attached_by_kubelet;

/// Returns the index of nodes by the volumes that their status lists as attached. A volume that a kubelet attaches has no
/// VolumeAttachment: its index has the nodes that use it, too. Needs [`Node::VOLUMES`]; look up by [`listed_volume`].
pub const fn nodes_by_attached_volume() -> Index<Node> {
    Index {
        name: "attached-volume",
        keys: |node, emit| {
            if let Some(volumes) = &node.volumes {
                volumes.attached().iter().for_each(|volume| emit(listed_volume(&volume.name)));
                let by_kubelet = volumes.in_use().iter().filter(|name| is_attached_by_kubelet(name));
                by_kubelet.for_each(|name| emit(listed_volume(name)));
            }
        },
    }
}

/// Returns the key of all nodes that list or use a volume, by its unique name.
pub fn listed_volume(name: &str) -> u64 {
    index_key(("attached-volume", name))
}

/// Returns the index of VolumeAttachments by their volume. Look up by [`of_volume`] or [`of_inline_volume`].
pub const fn attachments_by_volume() -> Index<VolumeAttachment> {
    Index {
        name: "attached-volume",
        keys: |attachment, emit| {
            if !attachment.volume.is_empty() {
                emit(of_volume(&attachment.volume));
            }
            if let Some((driver, handle)) = attachment.inline.as_deref().and_then(kinds::persistent_volume::Source::csi)
            {
                emit(of_inline_volume(driver, handle));
            }
        },
    }
}

/// Returns the key of all attachments of a PersistentVolume.
pub fn of_volume(name: &str) -> u64 {
    index_key(("persistent-volume", name))
}

/// Returns the key of all attachments of a volume that pods define themselves.
pub fn of_inline_volume(driver: &str, handle: &str) -> u64 {
    index_key(("inline", driver, handle))
}
