//! Objects that cannot be decoded: a node may have a volume, or a pod may use it, although no record shows that.

use std::collections::HashSet;

use kinds::meta::ObjectKey;
use kinds::{Node, Str};
use runtime::store::Store;

use super::changes::Scope;
use super::observe::{Caches, NamedVolume};
use crate::storage::volume_name::{Plugin, attachment_name};

/// Undecodable objects that may attach a volume to nodes.
pub struct UndecodableAttachments<'a> {
    plugin: Plugin<'a>,
    /// VolumeAttachments of a CSI driver. If kubelets attach the volume, Nodes: only their status shows the attachment.
    keys: HashSet<ObjectKey>,
}

impl UndecodableAttachments<'_> {
    /// Returns true if one of the objects is this controller's attachment to a node, or the node itself. Attachments of
    /// other clients, whose volume cannot be known, do not count. Upstream takes those into account only at its start.
    pub fn has(&self, node: &Str) -> bool {
        if self.keys.is_empty() {
            return false;
        }
        let name: Str = match self.plugin {
            Plugin::Csi { driver, handle } => attachment_name(driver, handle, node).into(),
            Plugin::Kubelet(_) => node.clone(),
        };
        self.keys.contains(&ObjectKey::new("", name))
    }

    /// Returns the nodes in the scope that may have the volume. Visits all nodes, but only while there are such
    /// objects.
    pub fn nodes(&self, nodes: &Store<Node>, scope: &Scope) -> Vec<Str> {
        let mut names: Vec<Str> = match scope {
            _ if self.keys.is_empty() => Vec::new(),
            Scope::All => nodes.keys().into_iter().map(|key| key.name).collect(),
            Scope::Nodes(nodes) => nodes.iter().cloned().collect(),
        };
        names.retain(|node| self.has(node));
        names
    }
}

impl Caches {
    /// Returns the undecodable objects that may attach the volumes of a plugin. Must be called before the records are
    /// read: otherwise an object that becomes decodable in between would be in neither.
    pub fn undecodable_attachments<'a>(&self, plugin: Plugin<'a>) -> UndecodableAttachments<'a> {
        let keys = match plugin {
            Plugin::Csi { .. } => self.attachments.undecodable_without_record(),
            Plugin::Kubelet(_) => self.nodes.undecodable_without_record(),
        };
        UndecodableAttachments { plugin, keys }
    }

    /// Returns true if an undecodable pod may use a volume, or a pod may use it through an undecodable claim or
    /// PersistentVolume. If the claim is known, pods and claims of other namespaces do not count.
    pub fn may_have_undecodable_users(&self, volume: &NamedVolume<'_>) -> bool {
        if self.volumes.undecodable() > 0 {
            return true;
        }
        if volume.volumes.is_empty() || volume.is_defined_by_pods {
            return self.pods.undecodable() + self.claims.undecodable() > 0;
        }
        let mut claims = volume.volumes.iter().filter_map(|volume| volume.claim.as_ref());
        let count = |namespace: &str| self.pods.undecodable_in(namespace) + self.claims.undecodable_in(namespace);
        claims.any(|claim| count(&claim.namespace) > 0)
    }
}
