//! The node that a pod without a node is meant for, as a DaemonSet says it in the pod's affinity.

use super::Pod;
use crate::decode::Decode;
use crate::scheduling::placement;

impl Pod {
    /// The node it is bound to, or else aimed at (pkg/controller/daemon/util, GetTargetNodeName). The latter is only
    /// known with [`Pod::TARGET`].
    pub fn target_node(&self) -> Option<&str> {
        if self.node.is_empty() { self.target.as_deref().map(|node| &**node) } else { Some(&self.node) }
    }

    /// Only a DaemonSet's pods, and those that may become such, are ever aimed.
    pub(super) fn read_target(&mut self, context: &Decode, spec: &[u8]) {
        let may_be_aimed = self.meta.controller().is_none_or(|controller| &*controller.kind == "DaemonSet");
        if self.node.is_empty() && may_be_aimed && context.sections.contains(Self::TARGET) {
            self.target = placement::target(spec).map(|node| Box::new(context.interner.str(node)));
        }
    }
}
