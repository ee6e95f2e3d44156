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
    attached: Box<[AttachedVolume]>,
    /// Positions in `attached`, sorted by name. A node may list tens of thousands of volumes.
    by_name: Box<[usize]>,
    /// Sorted.
    in_use: Box<[Str]>,
}

impl NodeVolumes {
    /// Creates the record from the lists of a node's status.
    pub fn new(is_managed: bool, attached: Vec<AttachedVolume>, mut in_use: Vec<Str>) -> Self {
        let mut by_name: Box<[usize]> = (0..attached.len()).collect();
        by_name.sort_unstable_by_key(|at| &*attached[*at].name);
        in_use.sort_unstable();
        Self { is_managed, attached: attached.into(), by_name, in_use: in_use.into() }
    }

    /// Returns `status.volumesAttached` in its order: the volumes that the attach-detach controller has attached.
    pub fn attached(&self) -> &[AttachedVolume] {
        &self.attached
    }

    /// Returns `status.volumesInUse`, sorted: the unique names of volumes that the kubelet has mounted or is about to
    /// mount.
    pub fn in_use(&self) -> &[Str] {
        &self.in_use
    }

    /// Returns true if the status lists a volume as attached.
    pub fn lists(&self, volume: &str) -> bool {
        self.by_name.binary_search_by_key(&volume, |at| &*self.attached[*at].name).is_ok()
    }

    /// Returns true if the kubelet uses a volume.
    pub fn uses(&self, volume: &str) -> bool {
        self.in_use.binary_search_by(|name| (**name).cmp(volume)).is_ok()
    }

    /// Reads the record from a `NodeStatus`. Names of volumes are unique: interning would only cost memory.
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
        Ok(Self::new(is_managed, attached, in_use))
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
        assert_eq!(&*volumes.attached()[0].device_path, "/dev/sdb");
    }

    #[test]
    fn volumes_are_found_in_long_lists_of_any_order() {
        let name = |number: u32| Str::from(format!("kubernetes.io/csi/d^{number}"));
        let entry = |number| AttachedVolume { name: name(number), device_path: "".into() };
        let numbers = || (0..1000).rev().step_by(2);
        let volumes = NodeVolumes::new(true, numbers().map(entry).collect(), numbers().map(name).collect());
        assert_eq!(volumes.attached()[0], entry(999), "the order of the status is kept");
        for number in 0..1000 {
            let is_listed = number % 2 == 1;
            assert_eq!((volumes.lists(&name(number)), volumes.uses(&name(number))), (is_listed, is_listed), "{number}");
        }
    }
}
