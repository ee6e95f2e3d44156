//! CSIDriver: the attachment of its volumes, and its support for SELinux mounts.

use crate::decode::{Decode, DecodeError};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::schema::{csi_driver as object, csi_driver_spec as spec};
use crate::wire::{fields, find};

/// A CSIDriver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsiDriver {
    /// Metadata.
    pub meta: Meta,
    /// Its volumes have to be attached to a node; true if the field is absent.
    pub attach_required: bool,
    /// Its volumes can be mounted with an SELinux context; false if the field is absent.
    pub selinux_mount: bool,
}

impl Kind for CsiDriver {
    const RESOURCE: Resource =
        Resource { group: "storage.k8s.io", version: "v1", kind: "CSIDriver", plural: "csidrivers", namespaced: false };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let meta = Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})?;
        let mut driver = Self { meta, attach_required: true, selinux_mount: false };
        for field in fields(find(object, object::SPEC)) {
            let field = field?;
            match field.number {
                spec::ATTACH_REQUIRED => driver.attach_required = field.value.bool(),
                spec::SE_LINUX_MOUNT => driver.selinux_mount = field.value.bool(),
                _ => {}
            }
        }
        Ok(driver)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
