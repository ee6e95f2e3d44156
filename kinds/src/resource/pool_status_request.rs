//! ResourcePoolStatusRequest: a request for the state of a driver's pools. A controller writes the state once, to the
//! status.

use crate::decode::{Decode, DecodeError};
use crate::intern::Str;
use crate::kind::{Kind, Resource};
use crate::meta::{Meta, Parts};
use crate::value::resource_list::Amount;
use crate::value::time::Time;
use crate::wire::schema::{
    condition, partition_type_status, pool_status, pool_status_request as object, pool_status_request_spec as spec,
    pool_status_request_status as status, quantity, shareable_capacity_status, shareable_summary_status,
};
use crate::wire::{Put, WireError, fields, find, splice};

/// The conditions that end a request.
const END_CONDITIONS: [&str; 2] = ["Complete", "Failed"];

/// A ResourcePoolStatusRequest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourcePoolStatusRequest {
    /// Metadata.
    pub meta: Meta,
    /// The driver whose pools are requested.
    pub driver: Str,
    /// Name of the requested pool; `None`: all pools of the driver.
    pub pool: Option<Str>,
    /// Maximum number of pools in the status.
    pub limit: Option<i32>,
    /// The attribute that groups devices by partition type in pools that name no such attribute.
    pub partition_attribute: Option<Str>,
    /// The status, once it is set.
    pub completed: Option<CompletedStatus>,
    /// The object's message, without managed fields.
    raw: Box<[u8]>,
}

/// The status of a completed request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletedStatus {
    /// Time of the condition `Complete` or `Failed`; zero if there is none.
    pub since: Time,
}

/// Numbers of slices and devices of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Number of slices.
    pub slices: i32,
    /// All devices.
    pub total: i32,
    /// Devices that are allocated to a claim without admin access.
    pub allocated: i32,
    /// Devices with a taint that keeps pods away.
    pub unavailable: i32,
}

/// Numbers of devices of one partition type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partition {
    /// The grouping attribute.
    pub attribute: String,
    /// Its value.
    pub kind: String,
    /// Number of devices.
    pub total: i32,
    /// Number of devices that can still be allocated.
    pub allocatable: i32,
}

/// One capacity of shareable devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedCapacity {
    /// Its name.
    pub name: String,
    /// The sum over all devices.
    pub total: Amount,
    /// The part that claims use.
    pub consumed: Amount,
    /// The part that is still free.
    pub available: Amount,
}

/// Devices that several claims may share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shareable {
    /// Devices that no claim uses.
    pub fully_available: i32,
    /// Devices that some claim uses.
    pub partially_available: i32,
    /// Their capacities, sorted by name.
    pub capacity: Vec<SharedCapacity>,
}

/// The state of one pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The driver.
    pub driver: Str,
    /// The pool's name.
    pub name: Str,
    /// Its newest generation.
    pub generation: i64,
    /// The node that has all devices of the pool; `None` if there is no such node.
    pub node: Option<String>,
    /// Numbers of devices; `None` while slices are missing.
    pub devices: Option<DeviceCounts>,
    /// The problem with the pool, if there is one.
    pub error: Option<String>,
    /// Devices by partition type.
    pub partitions: Vec<Partition>,
    /// Shareable devices, if there are any.
    pub shareable: Option<Shareable>,
}

impl Pool {
    fn put(&self, out: &mut Vec<u8>) {
        out.put_message(status::POOLS, |pool| {
            pool.put_str(pool_status::DRIVER, &self.driver);
            pool.put_str(pool_status::POOL_NAME, &self.name);
            if let Some(node) = &self.node {
                pool.put_str(pool_status::NODE_NAME, node);
            }
            if let Some(devices) = self.devices {
                let available = devices.total.saturating_sub(devices.allocated).saturating_sub(devices.unavailable);
                pool.put_int(pool_status::TOTAL_DEVICES, devices.total.into());
                pool.put_int(pool_status::ALLOCATED_DEVICES, devices.allocated.into());
                pool.put_int(pool_status::AVAILABLE_DEVICES, available.max(0).into());
                pool.put_int(pool_status::UNAVAILABLE_DEVICES, devices.unavailable.into());
                pool.put_int(pool_status::RESOURCE_SLICE_COUNT, devices.slices.into());
            }
            pool.put_int(pool_status::GENERATION, self.generation);
            if let Some(error) = &self.error {
                pool.put_str(pool_status::VALIDATION_ERROR, error);
            }
            for partition in &self.partitions {
                pool.put_message(pool_status::PARTITION_SUMMARY, |message| {
                    message.put_str(partition_type_status::TYPE, &partition.kind);
                    message.put_int(partition_type_status::TOTAL, partition.total.into());
                    message.put_int(partition_type_status::ALLOCATABLE, partition.allocatable.into());
                    message.put_str(partition_type_status::ATTRIBUTE, &partition.attribute);
                });
            }
            if let Some(shareable) = &self.shareable {
                pool.put_message(pool_status::SHAREABLE_SUMMARY, |message| shareable.put(message));
            }
        });
    }
}

impl Shareable {
    fn put(&self, message: &mut Vec<u8>) {
        message.put_int(shareable_summary_status::FULLY_AVAILABLE_DEVICES, self.fully_available.into());
        message.put_int(shareable_summary_status::PARTIALLY_AVAILABLE_DEVICES, self.partially_available.into());
        for capacity in &self.capacity {
            message.put_message(shareable_summary_status::CAPACITY, |message| {
                message.put_str(shareable_capacity_status::NAME, &capacity.name);
                for (number, amount) in [
                    (shareable_capacity_status::TOTAL, capacity.total),
                    (shareable_capacity_status::CONSUMED, capacity.consumed),
                    (shareable_capacity_status::AVAILABLE, capacity.available),
                ] {
                    message.put_message(number, |message| message.put_str(quantity::STRING, &amount.to_string()));
                }
            });
        }
    }
}

impl ResourcePoolStatusRequest {
    /// Returns the object for a PUT of its status with these pools, `count` as the number of all pools that match, and
    /// the condition `Complete` with this message.
    ///
    /// # Errors
    /// When the object that was read is not well-formed.
    pub fn with_pools(&self, pools: &[Pool], count: usize, message: &str, now: Time) -> Result<Vec<u8>, WireError> {
        let mut status = Vec::new();
        pools.iter().for_each(|pool| pool.put(&mut status));
        status.put_message(status::CONDITIONS, |complete| {
            complete.put_str(condition::TYPE, END_CONDITIONS[0]);
            complete.put_str(condition::STATUS, "True");
            now.put(complete, condition::LAST_TRANSITION_TIME);
            complete.put_str(condition::REASON, "CalculationComplete");
            complete.put_str(condition::MESSAGE, message);
        });
        status.put_int(status::POOL_COUNT, i32::try_from(count).unwrap_or(i32::MAX).into());
        splice::edited(
            &self.raw,
            &[],
            |field| field.number != object::STATUS,
            |out| out.put_bytes(object::STATUS, &status),
        )
    }
}

impl CompletedStatus {
    fn read(status: &[u8]) -> Result<Self, WireError> {
        let mut completed = Self { since: Time::default() };
        for field in fields(status) {
            let field = field?;
            let message = field.value.bytes();
            let is_end = || END_CONDITIONS.iter().any(|end| find(message, condition::TYPE) == end.as_bytes());
            if field.number == status::CONDITIONS && completed.since.is_zero() && is_end() {
                completed.since = Time::decode(find(message, condition::LAST_TRANSITION_TIME))?;
            }
        }
        Ok(completed)
    }
}

impl Kind for ResourcePoolStatusRequest {
    const RESOURCE: Resource = Resource {
        group: "resource.k8s.io",
        version: "v1alpha3",
        kind: "ResourcePoolStatusRequest",
        plural: "resourcepoolstatusrequests",
        namespaced: false,
    };

    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError> {
        let interner = &context.interner;
        let Parts { meta, spec, .. } = Parts::read(object)?;
        let mut read = Self {
            meta: Meta::decode(interner, meta, |_, _| {})?,
            driver: interner.str(""),
            pool: None,
            limit: None,
            partition_attribute: None,
            completed: None,
            raw: splice::trimmed(object)?.into(),
        };
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::DRIVER => read.driver = interner.str(field.value.str()),
                spec::POOL_NAME => read.pool = Some(interner.str(field.value.str())).filter(|pool| !pool.is_empty()),
                spec::LIMIT => read.limit = Some(field.value.i32()),
                spec::DEFAULT_PARTITION_TYPE_ATTRIBUTE => {
                    read.partition_attribute = Some(interner.str(field.value.str()));
                }
                _ => {}
            }
        }
        for field in fields(object) {
            let field = field?;
            if field.number == object::STATUS {
                read.completed = Some(CompletedStatus::read(field.value.bytes())?);
            }
        }
        Ok(read)
    }

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::decode::Sections;
    use crate::wire::schema::object_meta;

    fn decode(object: &[u8]) -> ResourcePoolStatusRequest {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        ResourcePoolStatusRequest::decode(&context, object).expect("well-formed")
    }

    #[test]
    fn status_is_written_once_and_read_back() {
        let mut object = Vec::new();
        object.put_message(object::METADATA, |meta| {
            meta.put_str(object_meta::NAME, "r");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
        });
        object.put_message(object::SPEC, |spec| {
            spec.put_str(spec::DRIVER, "d");
            spec.put_int(spec::LIMIT, 3);
            spec.put_str(99, "unknown");
        });
        let request = decode(&object);
        assert_eq!((&*request.driver, request.limit, &request.pool, request.completed), ("d", Some(3), &None, None));
        let counts = DeviceCounts { slices: 1, total: 4, allocated: 3, unavailable: 2 };
        let pool = Pool {
            driver: "d".into(),
            name: "p".into(),
            generation: 1,
            node: Some("n".to_owned()),
            devices: Some(counts),
            error: None,
            partitions: Vec::new(),
            shareable: Some(Shareable::default()),
        };
        let put = request.with_pools(&[pool], 2, "Calculated status for 1 pools", Time(9)).expect("well-formed");
        assert_eq!(find(find(&put, object::SPEC), 99), b"unknown");
        assert_eq!(decode(&put).completed, Some(CompletedStatus { since: Time(9) }));
        let available = fields(find(find(&put, object::STATUS), status::POOLS)).flatten();
        let available: Vec<i64> = available
            .filter(|field| field.number == pool_status::AVAILABLE_DEVICES)
            .map(|field| field.value.i64())
            .collect();
        assert_eq!(available, [0], "never negative");
    }
}
