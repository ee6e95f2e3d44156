//! The devices that are allocated to a ResourceClaim, and the pods and PodGroups that may use them.

use crate::intern::{Interner, Str};
use crate::meta::Uid;
use crate::resource::published_slice::amount_entry;
use crate::scheduling::taint::Toleration;
use crate::value::resource_list::Amount;
use crate::wire::schema::{
    allocation_result, claim_consumer as consumer, device_allocation_result,
    device_request_allocation_result as result, resource_claim_status as status,
};
use crate::wire::{WireError, fields, find};

/// The allocation of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The devices.
    pub devices: Box<[AllocatedDevice]>,
    /// Names and uids of the pods that the claim is reserved for; other consumers are omitted.
    pub pods: Box<[(Str, Uid)]>,
    /// Names of the PodGroups that the claim is reserved for.
    pub groups: Box<[Str]>,
}

/// A device that is allocated to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocatedDevice {
    /// The driver that published it.
    pub driver: Str,
    /// The pool that it belongs to.
    pub pool: Str,
    /// Its name in the pool.
    pub name: Str,
    /// The device is allocated for administrative access, such as monitoring, which does not consume it.
    pub has_admin_access: bool,
    /// Consumed capacities of a device that several claims share.
    pub consumed: Box<[(Str, Amount)]>,
    /// `DeviceToleration` messages.
    tolerations: Box<[Box<[u8]>]>,
}

impl Allocation {
    /// Reads a `ResourceClaimStatus` message; `None` if nothing is allocated.
    pub(crate) fn read(interner: &Interner, status: &[u8]) -> Result<Option<Self>, WireError> {
        let mut allocation = None;
        let mut pods = Vec::new();
        let mut groups = Vec::new();
        for field in fields(status) {
            let field = field?;
            match field.number {
                status::ALLOCATION => allocation = Some(field.value.bytes()),
                status::RESERVED_FOR => match read_consumer(interner, field.value.bytes())? {
                    Consumer::Pod(name, uid) => pods.push((name, uid)),
                    Consumer::Group(name) => groups.push(name),
                    Consumer::Other => {}
                },
                _ => {}
            }
        }
        let Some(allocation) = allocation else { return Ok(None) };
        let mut devices = Vec::new();
        for field in fields(find(allocation, allocation_result::DEVICES)) {
            let field = field?;
            if field.number == device_allocation_result::RESULTS {
                devices.push(AllocatedDevice::read(interner, field.value.bytes())?);
            }
        }
        Ok(Some(Self { devices: devices.into(), pods: pods.into(), groups: groups.into() }))
    }
}

/// An object that a claim is reserved for.
enum Consumer {
    Pod(Str, Uid),
    Group(Str),
    Other,
}

fn read_consumer(interner: &Interner, message: &[u8]) -> Result<Consumer, WireError> {
    let (mut group, mut resource, mut name, mut uid) = ("", "", "", "");
    for field in fields(message) {
        let field = field?;
        match field.number {
            consumer::API_GROUP => group = field.value.str(),
            consumer::RESOURCE => resource = field.value.str(),
            consumer::NAME => name = field.value.str(),
            consumer::UID => uid = field.value.str(),
            _ => {}
        }
    }
    Ok(match (group, resource) {
        ("", "pods") => Consumer::Pod(interner.str(name), Uid::parse(uid)),
        ("scheduling.k8s.io", "podgroups") => Consumer::Group(interner.str(name)),
        _ => Consumer::Other,
    })
}

impl AllocatedDevice {
    fn read(interner: &Interner, message: &[u8]) -> Result<Self, WireError> {
        let empty = interner.str("");
        let mut driver = empty.clone();
        let mut pool = empty.clone();
        let mut name = empty;
        let mut tolerations = Vec::new();
        let mut has_admin_access = false;
        let mut consumed = Vec::new();
        for field in fields(message) {
            let field = field?;
            match field.number {
                result::DRIVER => driver = interner.str(field.value.str()),
                result::POOL => pool = interner.str(field.value.str()),
                result::DEVICE => name = interner.str(field.value.str()),
                result::ADMIN_ACCESS => has_admin_access = field.value.bool(),
                result::CONSUMED_CAPACITY => {
                    let (name, amount) = amount_entry(field.value.bytes(), |value| value)?;
                    consumed.push((interner.str(name), amount));
                }
                result::TOLERATIONS => tolerations.push(field.value.bytes().into()),
                _ => {}
            }
        }
        Ok(Self { driver, pool, name, has_admin_access, consumed: consumed.into(), tolerations: tolerations.into() })
    }

    /// Returns the tolerations at the time of the allocation; malformed ones are omitted.
    pub fn tolerations(&self) -> impl Iterator<Item = Toleration<'_>> {
        self.tolerations.iter().filter_map(|message| Toleration::decode(message).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;
    use crate::wire::schema::{device_taint, device_toleration, taint, toleration};

    #[test]
    fn device_taints_and_tolerations_have_the_field_numbers_of_core_v1() {
        let device = [
            device_toleration::KEY,
            device_toleration::OPERATOR,
            device_toleration::VALUE,
            device_toleration::EFFECT,
            device_toleration::TOLERATION_SECONDS,
        ];
        assert_eq!(
            device,
            [
                toleration::KEY,
                toleration::OPERATOR,
                toleration::VALUE,
                toleration::EFFECT,
                toleration::TOLERATION_SECONDS
            ]
        );
        let device = [device_taint::KEY, device_taint::VALUE, device_taint::EFFECT, device_taint::TIME_ADDED];
        assert_eq!(device, [taint::KEY, taint::VALUE, taint::EFFECT, taint::TIME_ADDED]);
    }

    #[test]
    fn devices_and_pods_are_decoded() {
        let mut status = Vec::new();
        for (resource, name) in [("pods", "p"), ("podgroups", "g")] {
            status.put_message(status::RESERVED_FOR, |message| {
                message.put_str(consumer::RESOURCE, resource);
                message.put_str(consumer::NAME, name);
                message.put_str(consumer::UID, "u");
            });
        }
        assert_eq!(Allocation::read(&Interner::default(), &status), Ok(None));
        status.put_message(status::ALLOCATION, |message| {
            message.put_message(allocation_result::DEVICES, |devices| {
                devices.put_message(device_allocation_result::RESULTS, |one| {
                    one.put_str(result::DRIVER, "d");
                    one.put_str(result::POOL, "p");
                    one.put_str(result::DEVICE, "gpu-0");
                    one.put_message(result::TOLERATIONS, |message| message.put_str(device_toleration::KEY, "k"));
                });
            });
        });
        let read = Allocation::read(&Interner::default(), &status).expect("well-formed").expect("allocated");
        assert_eq!(*read.pods, [("p".into(), Uid::parse("u"))]);
        let [device] = &*read.devices else { panic!("{read:?}") };
        assert_eq!((&*device.driver, &*device.pool, &*device.name), ("d", "p", "gpu-0"));
        assert_eq!(device.tolerations().map(|toleration| toleration.key).collect::<Vec<_>>(), ["k"]);
    }
}
