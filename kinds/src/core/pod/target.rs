//! The node that a DaemonSet selects for a pod by the pod's affinity.

use super::Pod;
use crate::decode::Decode;
use crate::scheduling::placement;

impl Pod {
    /// Returns the node that it is bound to, or else the one that its affinity selects (pkg/controller/daemon/util,
    /// GetTargetNodeName). The latter is known only with [`Pod::TARGET`].
    pub fn target_node(&self) -> Option<&str> {
        if self.node.is_empty() { self.target.as_deref().map(|node| &**node) } else { Some(&self.node) }
    }

    /// Reads the target only of a DaemonSet's pods, and of those that may become such.
    pub(super) fn read_target(&mut self, context: &Decode, spec: &[u8]) {
        let may_be_aimed = self.meta.controller().is_none_or(|controller| &*controller.kind == "DaemonSet");
        if self.node.is_empty() && may_be_aimed && context.sections.contains(Self::TARGET) {
            self.target = placement::target(spec).map(|node| Box::new(context.interner.str(node)));
        }
    }
}
