//! Indexes of nodes, pods and VolumeAttachments by volume.

use kinds::{Node, Pod, VolumeAttachment};
use runtime::store::{Index, index_key};

use crate::storage::volume_name::is_attached_by_kubelet;

/// Returns the index of nodes by the volumes that their status lists as attached. Volumes that kubelets attach have no
/// VolumeAttachment: for them the index also contains the nodes that use them. Needs [`Node::VOLUMES`]; look up by
/// [`listed_volume`].
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

/// Returns the index of pods by the claims behind their volumes and their node. Needs [`Pod::VOLUMES`]; look up by
/// [`using_claim_on`].
pub const fn pods_by_claim_and_node() -> Index<Pod> {
    Index {
        name: "claim-and-node",
        keys: |pod, emit| {
            if !pod.node.is_empty() {
                let claims = pod.volumes.iter().flat_map(|volumes| &volumes.claims);
                claims.for_each(|volume| emit(using_claim_on(&pod.meta.namespace, &volume.claim, &pod.node)));
            }
        },
    }
}

/// Returns the key of the pods on a node that use a claim.
pub fn using_claim_on(namespace: &str, claim: &str, node: &str) -> u64 {
    index_key(("claim-and-node", namespace, claim, node))
}

/// Returns the index of VolumeAttachments by their volume. Look up by [`of_volume`], [`of_volume_on`] or
/// [`of_inline_volume`].
pub const fn attachments_by_volume() -> Index<VolumeAttachment> {
    Index {
        name: "attached-volume",
        keys: |attachment, emit| {
            if !attachment.volume.is_empty() {
                emit(of_volume(&attachment.volume));
                emit(of_volume_on(&attachment.volume, &attachment.node));
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

/// Returns the key of all attachments of a PersistentVolume to a node.
pub fn of_volume_on(name: &str, node: &str) -> u64 {
    index_key(("persistent-volume-on-node", name, node))
}

/// Returns the key of all attachments of a volume that pods define themselves.
pub fn of_inline_volume(driver: &str, handle: &str) -> u64 {
    index_key(("inline", driver, handle))
}
