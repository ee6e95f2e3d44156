//! The node for which a DaemonSet created a pod, from the pod's affinity.

use super::Pod;
use crate::decode::Decode;
use crate::scheduling::placement;

impl Pod {
    /// Returns the node that the pod is bound to, or else the node that its affinity selects. The latter is known only
    /// with section [`Pod::TARGET`]. Upstream: pkg/controller/daemon/util, GetTargetNodeName.
    pub fn target_node(&self) -> Option<&str> {
        if self.node.is_empty() { self.target.as_deref().map(|node| &**node) } else { Some(&self.node) }
    }

    /// Reads the target of an unbound pod, if its controller is a DaemonSet, or if it has no controller, because a
    /// DaemonSet may adopt it.
    pub(super) fn read_target(&mut self, context: &Decode, spec: &[u8]) {
        let may_have_target = self.meta.controller().is_none_or(|controller| &*controller.kind == "DaemonSet");
        if self.node.is_empty() && may_have_target && context.sections.contains(Self::TARGET) {
            self.target = placement::target_node(spec).map(|node| Box::new(context.interner.str(node)));
        }
    }
}
