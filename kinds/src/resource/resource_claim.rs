//! ResourceClaim and DeviceClass: numbers of claimed devices per class, and the extended resources of classes.

use std::collections::BTreeMap;

use crate::decode::{Decode, DecodeError, Sections};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::Meta;
use crate::resource::claim_state::{ClaimState, ENTRY_ANNOTATION};
use crate::resource::device_allocation::Allocation;
use crate::wire::schema::{
    device_claim, device_class as class, device_class_spec, device_request as request, device_sub_request as sub,
    exact_device_request as exact, resource_claim as object, resource_claim_spec as spec,
};
use crate::wire::{WireError, fields, find};

/// The annotation of a claim that was created for the extended resources of a pod.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";

/// Maximum number of devices per claim; a request for all devices counts as this number (api/resource/v1,
/// AllocationResultsMaxSize).
const MAX_DEVICES: i64 = 32;

/// A ResourceClaim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceClaim {
    /// Metadata.
    pub meta: Meta,
    /// Device classes with the maximum number of devices of each, sorted by class.
    pub devices: Box<[(Str, i64)]>,
    /// It was created for the extended resources of the pod that owns it.
    pub for_extended_resources: bool,
    /// The allocated devices, if any; only with section [`ResourceClaim::ALLOCATION`].
    pub allocation: Option<Box<Allocation>>,
    /// Its allocation and consumers; only with section [`ResourceClaim::STATE`].
    pub state: Option<Box<ClaimState>>,
}

impl ResourceClaim {
    /// Section: the allocated devices.
    pub const ALLOCATION: Sections = Sections(1 << 0);
    /// Section: its allocation and consumers.
    pub const STATE: Sections = Sections(1 << 1);

    /// Adds the devices of a request. Of several alternatives, the maximum per class counts. Upstream:
    /// pkg/quota/v1/evaluator/core, claimEvaluator.Usage.
    fn read_request(devices: &mut BTreeMap<Str, i64>, context: &Decode, message: &[u8]) -> Result<(), WireError> {
        let mut max_by_class: BTreeMap<Str, i64> = BTreeMap::new();
        for field in fields(message) {
            let field = field?;
            let requested = match field.number {
                request::EXACTLY => requested_devices(context, field.value.bytes(), EXACT)?,
                request::FIRST_AVAILABLE => requested_devices(context, field.value.bytes(), SUB)?,
                _ => continue,
            };
            let known = max_by_class.entry(requested.0).or_default();
            *known = (*known).max(requested.1);
        }
        for (class, count) in max_by_class {
            let known = devices.entry(class).or_default();
            *known = known.saturating_add(count);
        }
        Ok(())
    }
}

/// The field numbers of a request's class, mode and count.
type RequestFields = (u32, u32, u32);
const EXACT: RequestFields = (exact::DEVICE_CLASS_NAME, exact::ALLOCATION_MODE, exact::COUNT);
const SUB: RequestFields = (sub::DEVICE_CLASS_NAME, sub::ALLOCATION_MODE, sub::COUNT);

fn requested_devices(
    context: &Decode,
    message: &[u8],
    (class, mode, count): RequestFields,
) -> Result<(Str, i64), WireError> {
    let (mut name, mut allocation_mode, mut amount) = ("", "", 0);
    for field in fields(message) {
        let field = field?;
        match field.number {
            number if number == class => name = field.value.str(),
            number if number == mode => allocation_mode = field.value.str(),
            number if number == count => amount = field.value.i64(),
            _ => {}
        }
    }
    let devices = match allocation_mode {
        "ExactCount" => amount,
        "All" => MAX_DEVICES,
        _ => 0,
    };
    Ok((context.interner.str(name), devices))
}

impl Kind for ResourceClaim {
    const RESOURCE: Resource = Resource {
        group: "resource.k8s.io",
        version: "v1",
        kind: "ResourceClaim",
        plural: "resourceclaims",
        namespaced: true,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let mut for_extended_resources = false;
        let mut entry = None;
        let meta = Meta::decode(&context.interner, find(object, object::METADATA), |key, value| {
            for_extended_resources |= key == EXTENDED && value == "true";
            if key == ENTRY_ANNOTATION {
                entry = Some(context.interner.str(value));
            }
        })?;
        let mut devices = BTreeMap::new();
        for field in fields(find(find(object, object::SPEC), spec::DEVICES)) {
            let field = field?;
            if field.number == device_claim::REQUESTS {
                Self::read_request(&mut devices, context, field.value.bytes())?;
            }
        }
        let allocation = if context.sections.contains(Self::ALLOCATION) {
            Allocation::read(&context.interner, find(object, object::STATUS))?.map(Box::new)
        } else {
            None
        };
        let state = if context.sections.contains(Self::STATE) {
            let (spec, status) = (find(object, object::SPEC), find(object, object::STATUS));
            Some(Box::new(ClaimState::read(&context.interner, entry, spec, status)?))
        } else {
            None
        };
        Ok(Self { meta, devices: devices.into_iter().collect(), for_extended_resources, allocation, state })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

/// A DeviceClass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceClass {
    /// Metadata.
    pub meta: Meta,
    /// The extended resource that its devices provide, if there is one.
    pub extended_resource: Option<Str>,
}

impl Kind for DeviceClass {
    const RESOURCE: Resource = Resource {
        group: "resource.k8s.io",
        version: "v1",
        kind: "DeviceClass",
        plural: "deviceclasses",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let name = find(find(object, class::SPEC), device_class_spec::EXTENDED_RESOURCE_NAME);
        let name = std::str::from_utf8(name).unwrap_or_default();
        Ok(Self {
            meta: Meta::decode(&context.interner, find(object, class::METADATA), |_, _| {})?,
            extended_resource: (!name.is_empty()).then(|| context.interner.str(name)),
        })
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::wire::Put;
    use crate::wire::schema::object_meta;

    fn put(out: &mut Vec<u8>, number: u32, (class, mode, count): RequestFields, requested: (&str, &str, i64)) {
        out.put_message(number, |message| {
            message.put_str(class, requested.0);
            message.put_str(mode, requested.1);
            message.put_int(count, requested.2);
        });
    }

    #[test]
    fn requests_add_up_and_alternatives_do_not() {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "claim");
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.put_entry(object_meta::ANNOTATIONS, EXTENDED, "true");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_message(spec::DEVICES, |devices| {
                devices.put_message(device_claim::REQUESTS, |one| {
                    put(one, request::EXACTLY, EXACT, ("gpu", "ExactCount", 2));
                });
                devices.put_message(device_claim::REQUESTS, |other| {
                    put(other, request::FIRST_AVAILABLE, SUB, ("gpu", "ExactCount", 1));
                    put(other, request::FIRST_AVAILABLE, SUB, ("gpu", "ExactCount", 4));
                    put(other, request::FIRST_AVAILABLE, SUB, ("nic", "All", 0));
                });
            });
        });
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        let claim = ResourceClaim::decode(&context, &object).expect("well-formed");
        assert_eq!(*claim.devices, [("gpu".into(), 6), ("nic".into(), 32)]);
        assert!(claim.for_extended_resources);
    }
}
