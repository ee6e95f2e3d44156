//! CSINode: the CSI drivers of a node.

use std::sync::Arc;

use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::wire::schema::{csi_node as object, csi_node_driver, csi_node_spec as spec};
use crate::wire::{fields, find, find_str};

/// A CSINode. It has the name of its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CsiNode {
    /// Metadata.
    pub meta: Meta,
    /// Names of the drivers that are registered on the node.
    pub drivers: Arc<[Str]>,
}

impl Kind for CsiNode {
    const RESOURCE: Resource =
        Resource { group: "storage.k8s.io", version: "v1", kind: "CSINode", plural: "csinodes", namespaced: false };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let meta = Meta::decode(&context.interner, find(object, object::METADATA), |_, _| {})?;
        let mut drivers = Vec::new();
        for field in fields(find(object, object::SPEC)) {
            let field = field?;
            if field.number == spec::DRIVERS {
                let name = find_str(field.value.bytes(), csi_node_driver::NAME);
                drivers.push(context.interner.str(name));
            }
        }
        Ok(Self { meta, drivers: context.interner.list(&drivers) })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
