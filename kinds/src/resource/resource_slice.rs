//! ResourceSlice: the devices of a pool, and their taints.

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::{Interner, Str};
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::scheduling::taint::Taint;
use crate::wire::schema::{device, resource_pool, resource_slice as object, resource_slice_spec as spec};
use crate::wire::{WireError, fields, find};

/// A part of a pool of devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceSlice {
    /// Metadata.
    pub meta: Meta,
    /// The driver that publishes it.
    pub driver: Str,
    /// The pool that it is a part of.
    pub pool: Str,
    /// The pool's generation: slices of an older generation than the newest one are ignored.
    pub generation: i64,
    /// The devices.
    pub devices: Box<[Device]>,
    /// The spec's message, for [`PublishedSlice`]; only with section [`ResourceSlice::SPEC`].
    ///
    /// [`PublishedSlice`]: crate::resource::published_slice::PublishedSlice
    pub spec: Option<Box<[u8]>>,
}

impl ResourceSlice {
    /// Section: the whole spec.
    pub const SPEC: Sections = Sections(1 << 0);
}

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its name in the pool.
    pub name: Str,
    /// Its taints.
    pub taints: Box<[Taint]>,
}

impl Device {
    fn read(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let mut name = interner.str("");
        let mut taints = Vec::new();
        for field in fields(message) {
            let field = field?;
            match field.number {
                device::NAME => name = interner.str(field.value.str()),
                // Taints of devices have the same encoding as those of nodes.
                device::TAINTS => taints.push(Taint::decode(interner, field.value.bytes())?),
                _ => {}
            }
        }
        Ok(Self { name, taints: taints.into() })
    }
}

impl Kind for ResourceSlice {
    const RESOURCE: Resource = Resource {
        group: "resource.k8s.io",
        version: "v1",
        kind: "ResourceSlice",
        plural: "resourceslices",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let interner = &context.interner;
        let empty = interner.str("");
        let mut driver = empty.clone();
        let mut pool = empty;
        let mut generation = 0;
        let mut devices = Vec::new();
        let spec = find(object, object::SPEC);
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::DRIVER => driver = interner.str(field.value.str()),
                spec::POOL => {
                    for field in fields(field.value.bytes()) {
                        let field = field?;
                        match field.number {
                            resource_pool::NAME => pool = interner.str(field.value.str()),
                            resource_pool::GENERATION => generation = field.value.i64(),
                            _ => {}
                        }
                    }
                }
                spec::DEVICES => devices.push(Device::read(interner, field.value.bytes())?),
                _ => {}
            }
        }
        let meta = Meta::decode(interner, find(object, object::METADATA), |_, _| {})?;
        let spec = context.sections.contains(Self::SPEC).then(|| spec.into());
        Ok(Self { meta, driver, pool, generation, devices: devices.into(), spec })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}
