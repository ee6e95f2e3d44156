//! The devices of a ResourceSlice with attributes, capacities and counters; decoded on demand, not in the cache.

use std::collections::BTreeMap;

use crate::value::resource_list::Amount;
use crate::wire::schema::{
    counter, counter_set, device, device_attribute, device_capacity, device_counter_consumption as consumption,
    quantity, resource_pool, resource_slice_spec as spec,
};
use crate::wire::{WireError, fields, find, find_str};

/// Amounts by the names of counters.
pub type Counters = BTreeMap<String, Amount>;

/// The spec of a ResourceSlice.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PublishedSlice {
    /// Name of the node that the devices belong to; empty if they do not belong to a single node.
    pub node: String,
    /// Number of slices of the pool.
    pub slices: i64,
    /// The attribute that groups the partitions of devices; empty without one.
    pub partition_attribute: String,
    /// Counters that devices share, by the name of their set.
    pub counters: BTreeMap<String, Counters>,
    /// The devices.
    pub devices: Vec<PublishedDevice>,
}

/// A device of a [`PublishedSlice`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PublishedDevice {
    /// Its name in the pool.
    pub name: String,
    /// Its attributes; `None` for an attribute whose value is not a string.
    pub attributes: BTreeMap<String, Option<String>>,
    /// Its capacities.
    pub capacity: Counters,
    /// The counters that it uses up when it is allocated, each with the name of its set.
    pub consumes: Vec<(String, Counters)>,
    /// Several claims may share it.
    pub is_shareable: bool,
}

impl PublishedSlice {
    /// Reads a `ResourceSliceSpec` message.
    ///
    /// # Errors
    /// When it is not well-formed.
    pub fn read(spec: &[u8]) -> Result<Self, WireError> {
        let mut slice = Self::default();
        for field in fields(spec) {
            let field = field?;
            match field.number {
                spec::NODE_NAME => slice.node = field.value.str().to_owned(),
                spec::PARTITION_TYPE_ATTRIBUTE => slice.partition_attribute = field.value.str().to_owned(),
                spec::POOL => slice.slices = slice_count(field.value.bytes())?,
                spec::DEVICES => slice.devices.push(PublishedDevice::read(field.value.bytes())?),
                spec::SHARED_COUNTERS => {
                    let (name, counters) =
                        read_counters(field.value.bytes(), counter_set::NAME, counter_set::COUNTERS)?;
                    slice.counters.entry(name).or_default().extend(counters);
                }
                _ => {}
            }
        }
        Ok(slice)
    }
}

fn slice_count(pool: &[u8]) -> Result<i64, WireError> {
    let mut count = 0;
    for field in fields(pool) {
        let field = field?;
        if field.number == resource_pool::RESOURCE_SLICE_COUNT {
            count = field.value.i64();
        }
    }
    Ok(count)
}

impl PublishedDevice {
    fn read(message: &[u8]) -> Result<Self, WireError> {
        let mut read = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                device::NAME => read.name = field.value.str().to_owned(),
                device::ATTRIBUTES => {
                    let (name, attribute) = entry(field.value.bytes())?;
                    read.attributes.insert(name.to_owned(), string_value(attribute)?);
                }
                device::CAPACITY => {
                    let (name, amount) =
                        amount_entry(field.value.bytes(), |value| find(value, device_capacity::VALUE))?;
                    read.capacity.insert(name.to_owned(), amount);
                }
                device::CONSUMES_COUNTERS => {
                    let (set, counters) = (consumption::COUNTER_SET, consumption::COUNTERS);
                    read.consumes.push(read_counters(field.value.bytes(), set, counters)?);
                }
                device::ALLOW_MULTIPLE_ALLOCATIONS => read.is_shareable = field.value.bool(),
                _ => {}
            }
        }
        Ok(read)
    }
}

/// Returns the value of an attribute if it is a string.
fn string_value(attribute: &[u8]) -> Result<Option<String>, WireError> {
    let mut value = None;
    for field in fields(attribute) {
        let field = field?;
        if field.number == device_attribute::STRING {
            value = Some(field.value.str().to_owned());
        }
    }
    Ok(value)
}

fn read_counters(message: &[u8], name: u32, counters: u32) -> Result<(String, Counters), WireError> {
    let (mut set, mut amounts) = (String::new(), Counters::new());
    for field in fields(message) {
        let field = field?;
        match field.number {
            number if number == name => set = field.value.str().to_owned(),
            number if number == counters => {
                let (counter, amount) = amount_entry(field.value.bytes(), |value| find(value, counter::VALUE))?;
                amounts.insert(counter.to_owned(), amount);
            }
            _ => {}
        }
    }
    Ok((set, amounts))
}

/// Returns key and value of an entry in a map whose values are messages.
fn entry(message: &[u8]) -> Result<(&str, &[u8]), WireError> {
    let mut key = "";
    let mut value = &[][..];
    for field in fields(message) {
        let field = field?;
        match field.number {
            1 => key = field.value.str(),
            2 => value = field.value.bytes(),
            _ => {}
        }
    }
    Ok((key, value))
}

/// Returns key and amount of an entry in a map whose values contain a `Quantity`; `quantity_of` finds it in a value. An
/// amount that is invalid, or too large to compare exactly, counts as zero.
pub(crate) fn amount_entry(message: &[u8], quantity_of: impl Fn(&[u8]) -> &[u8]) -> Result<(&str, Amount), WireError> {
    let (key, value) = entry(message)?;
    let text = find_str(quantity_of(value), quantity::STRING);
    Ok((key, Amount::parse(text).unwrap_or(Amount::ZERO)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Put;

    fn put_amount(out: &mut Vec<u8>, number: u32, name: &str, amount: &str, inner: Option<u32>) {
        out.put_message(number, |entry| {
            entry.put_str(1, name);
            entry.put_message(2, |value| match inner {
                Some(inner) => value.put_message(inner, |message| message.put_str(quantity::STRING, amount)),
                None => value.put_str(quantity::STRING, amount),
            });
        });
    }

    #[test]
    fn slice_is_read_with_devices_and_counters() {
        let mut spec = Vec::new();
        spec.put_str(spec::NODE_NAME, "node");
        spec.put_message(spec::POOL, |pool| pool.put_int(resource_pool::RESOURCE_SLICE_COUNT, 2));
        spec.put_str(spec::PARTITION_TYPE_ATTRIBUTE, "d/profile");
        spec.put_message(spec::SHARED_COUNTERS, |set| {
            set.put_str(counter_set::NAME, "memory");
            put_amount(set, counter_set::COUNTERS, "bytes", "80Gi", Some(counter::VALUE));
        });
        spec.put_message(spec::DEVICES, |one| {
            one.put_str(device::NAME, "gpu-0");
            one.put_message(device::ATTRIBUTES, |entry| {
                entry.put_str(1, "profile");
                entry.put_message(2, |value| value.put_str(device_attribute::STRING, "full"));
            });
            one.put_message(device::ATTRIBUTES, |entry| {
                entry.put_str(1, "index");
                entry.put_message(2, |value| value.put_int(2, 1));
            });
            put_amount(one, device::CAPACITY, "memory", "1500m", Some(device_capacity::VALUE));
            one.put_message(device::CONSUMES_COUNTERS, |cost| {
                cost.put_str(consumption::COUNTER_SET, "memory");
                put_amount(cost, consumption::COUNTERS, "bytes", "40Gi", Some(counter::VALUE));
            });
            one.put_bool(device::ALLOW_MULTIPLE_ALLOCATIONS, true);
        });
        let slice = PublishedSlice::read(&spec).expect("well-formed");
        assert_eq!((&*slice.node, slice.slices, &*slice.partition_attribute), ("node", 2, "d/profile"));
        assert_eq!(slice.counters["memory"]["bytes"].to_string(), "80Gi");
        let [gpu] = &*slice.devices else { panic!("{slice:?}") };
        assert_eq!((&*gpu.name, gpu.is_shareable), ("gpu-0", true));
        assert_eq!(gpu.attributes["profile"].as_deref(), Some("full"));
        assert_eq!(gpu.attributes["index"], None);
        assert_eq!(gpu.capacity["memory"].to_string(), "1500m");
        assert_eq!((&*gpu.consumes[0].0, gpu.consumes[0].1["bytes"].to_string()), ("memory", "40Gi".to_owned()));
    }

    #[test]
    fn invalid_amount_counts_as_zero() {
        let mut message = Vec::new();
        for amount in ["", "x", "1e40"] {
            message.clear();
            message.put_str(1, "memory");
            message.put_message(2, |value| value.put_str(quantity::STRING, amount));
            assert_eq!(amount_entry(&message, |value| value), Ok(("memory", Amount::ZERO)), "{amount}");
        }
    }
}
