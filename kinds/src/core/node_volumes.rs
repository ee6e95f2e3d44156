//! The volumes of a node: those that a controller has attached to it, and those that its kubelet uses.

use crate::intern::Str;
use crate::wire::schema::{attached_volume, node_status};
use crate::wire::{WireError, fields};

/// Annotation of a node whose volumes are attached by the attach-detach controller and not by its kubelet. Only its
/// presence counts.
pub const CONTROLLER_ATTACHES: &str = "volumes.kubernetes.io/controller-managed-attach-detach";

/// An entry of `status.volumesAttached`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachedVolume {
    /// Unique name of the volume.
    pub name: Str,
    /// Path of its device; often empty.
    pub device_path: Str,
}

/// The volumes of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeVolumes {
    /// The node has the annotation [`CONTROLLER_ATTACHES`].
    pub is_managed: bool,
    /// `status.volumesAttached`: attached to the node, by the attach-detach controller.
    pub attached: Box<[AttachedVolume]>,
    /// `status.volumesInUse`: mounted or about to be mounted, by the kubelet. Unique names.
    pub in_use: Box<[Str]>,
}

impl NodeVolumes {
    /// Reports whether the status lists a volume as attached.
    pub fn lists(&self, volume: &str) -> bool {
        self.attached.iter().any(|attached| &*attached.name == volume)
    }

    /// Reports whether the kubelet uses a volume.
    pub fn uses(&self, volume: &str) -> bool {
        self.in_use.iter().any(|name| &**name == volume)
    }

    /// Reads them from a `NodeStatus`. Names of volumes are unique, so that interning them would only cost memory.
    pub(crate) fn read(is_managed: bool, status: &[u8]) -> Result<Self, WireError> {
        let (mut attached, mut in_use) = (Vec::new(), Vec::new());
        for field in fields(status) {
            let field = field?;
            match field.number {
                node_status::VOLUMES_ATTACHED => {
                    let mut volume = AttachedVolume { name: "".into(), device_path: "".into() };
                    for part in fields(field.value.bytes()) {
                        let part = part?;
                        match part.number {
                            attached_volume::NAME => volume.name = part.value.str().into(),
                            attached_volume::DEVICE_PATH => volume.device_path = part.value.str().into(),
                            _ => {}
                        }
                    }
                    attached.push(volume);
                }
                node_status::VOLUMES_IN_USE => in_use.push(Str::from(field.value.str())),
                _ => {}
            }
        }
        Ok(Self { is_managed, attached: attached.into(), in_use: in_use.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    #[test]
    fn volumes_are_read_from_the_status() {
        let mut status = Vec::new();
        status.put_str(node_status::VOLUMES_IN_USE, "kubernetes.io/csi/d^1");
        status.put_message(node_status::VOLUMES_ATTACHED, |volume| {
            volume.put_str(attached_volume::NAME, "kubernetes.io/csi/d^2");
            volume.put_str(attached_volume::DEVICE_PATH, "/dev/sdb");
        });
        let volumes = NodeVolumes::read(true, &status).expect("well-formed");
        assert!(volumes.is_managed && volumes.uses("kubernetes.io/csi/d^1") && volumes.lists("kubernetes.io/csi/d^2"));
        assert!(!volumes.uses("kubernetes.io/csi/d^2") && !volumes.lists("kubernetes.io/csi/d^1"));
        assert_eq!(&*volumes.attached[0].device_path, "/dev/sdb");
    }
}
