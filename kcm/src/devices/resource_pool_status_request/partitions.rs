//! Devices of a pool by partition type, and shareable devices.
//!
//! Upstream: pkg/controller/resourcepoolstatusrequest, views.go.

use std::collections::{BTreeMap, BTreeSet};

use kinds::pool_status_request::{Partition, Shareable, SharedCapacity};
use kinds::published_slice::{Counters, PublishedDevice, PublishedSlice};
use kinds::resource_list::Amount;
use kinds::{ResourcePoolStatusRequest, Str};

/// Maximum number of entries of a list in the status.
const MAX_ENTRIES: usize = 32;

type CounterSets = BTreeMap<String, Counters>;

/// A device with the attribute that groups it, and that attribute's value.
struct GroupedDevice {
    device: PublishedDevice,
    attribute: String,
    kind: Option<String>,
}

/// The use of a pool's devices by claims.
#[derive(Debug, Default)]
pub struct PoolUse {
    /// Devices that are allocated to a claim without admin access.
    pub devices: BTreeSet<Str>,
    /// Consumed shared capacities.
    pub consumed: Counters,
}

/// The devices of a complete pool.
pub struct PoolDevices<'a> {
    /// Driver and pool, as errors name them.
    name: String,
    devices: Vec<GroupedDevice>,
    counters: CounterSets,
    in_use: &'a PoolUse,
}

/// Devices of one partition type.
struct Group<'a> {
    total: usize,
    cost: String,
    unused: Vec<&'a PublishedDevice>,
}

impl<'a> PoolDevices<'a> {
    /// Groups the devices of a pool. The attribute that the request names is used only if no slice with devices names
    /// one.
    pub fn new(
        request: &ResourcePoolStatusRequest,
        pool: &str,
        slices: Vec<PublishedSlice>,
        in_use: &'a PoolUse,
    ) -> Self {
        let is_declared = slices.iter().any(|slice| !slice.partition_attribute.is_empty() && !slice.devices.is_empty());
        let default = request.partition_attribute.as_deref().filter(|_| !is_declared).unwrap_or_default();
        let (mut devices, mut counters) = (Vec::new(), CounterSets::new());
        for slice in slices {
            let attribute = Some(&*slice.partition_attribute).filter(|name| !name.is_empty()).unwrap_or(default);
            for device in slice.devices {
                let kind = partition_type(&request.driver, &device, attribute);
                devices.push(GroupedDevice { kind, attribute: attribute.to_owned(), device });
            }
            for (set, amounts) in slice.counters {
                counters.entry(set).or_default().extend(amounts);
            }
        }
        Self { name: format!("{}/{pool}", request.driver), devices, counters, in_use }
    }

    fn is_used(&self, device: &PublishedDevice) -> bool {
        self.in_use.devices.contains(&*device.name)
    }

    /// Returns the devices by partition type; empty if no attribute groups them.
    ///
    /// # Errors
    /// The reason why the devices cannot be grouped, for users.
    pub fn partitions(&self) -> Result<Vec<Partition>, String> {
        let pool = &self.name;
        if self.devices.iter().all(|grouped| grouped.attribute.is_empty()) {
            return Ok(Vec::new());
        }
        if self.counters.is_empty() {
            return Err(format!(
                "PartitionTypeMissing: pool {pool} declares partitionTypeAttribute but publishes no sharedCounters"
            ));
        }
        let groups = self.groups()?;
        if groups.len() > MAX_ENTRIES {
            let groups = groups.len();
            return Err(format!(
                "PartitionSummaryOverCap: pool {pool} has {groups} partition types, exceeding the maximum of {MAX_ENTRIES}"
            ));
        }
        let baseline = self.unused_counters();
        let partition = |((attribute, kind), group): ((&str, &str), Group<'_>)| Partition {
            attribute: attribute.to_owned(),
            kind: kind.to_owned(),
            total: count(group.total),
            allocatable: count(fitting(&group.unused, baseline.clone())),
        };
        Ok(groups.into_iter().map(partition).collect())
    }

    fn groups(&self) -> Result<BTreeMap<(&str, &str), Group<'_>>, String> {
        let pool = &self.name;
        let mut groups: BTreeMap<(&str, &str), Group<'_>> = BTreeMap::new();
        let is_partition =
            |grouped: &&GroupedDevice| !grouped.device.consumes.is_empty() && !grouped.attribute.is_empty();
        for GroupedDevice { device, attribute, kind } in self.devices.iter().filter(is_partition) {
            let name = &device.name;
            let kind = kind.as_deref().ok_or_else(|| {
                format!(
                    "PartitionTypeMissing: device {name:?} in pool {pool} does not carry partition type attribute {attribute:?}"
                )
            })?;
            let cost = cost(device);
            let group = groups.entry((attribute, kind)).or_insert_with(|| Group {
                total: 0,
                cost: cost.clone(),
                unused: Vec::new(),
            });
            if group.cost != cost {
                return Err(format!(
                    "PartitionCostMismatch: devices of partition type {kind:?} in pool {pool} consume different counters"
                ));
            }
            group.total += 1;
            if !self.is_used(device) {
                group.unused.push(device);
            }
        }
        Ok(groups)
    }

    /// Returns the counters that are left after each device in use is deducted once.
    fn unused_counters(&self) -> CounterSets {
        let mut left = self.counters.clone();
        for grouped in self.devices.iter().filter(|grouped| self.is_used(&grouped.device)) {
            deduct(&mut left, &grouped.device);
        }
        left
    }

    /// Returns the sums over shareable devices; `None` if there are none.
    ///
    /// # Errors
    /// The reason why they cannot be listed, for users.
    pub fn shareable(&self) -> Result<Option<Shareable>, String> {
        let shareable = || self.devices.iter().map(|grouped| &grouped.device).filter(|device| device.is_shareable);
        if shareable().next().is_none() {
            return Ok(None);
        }
        let mut totals = Counters::new();
        for (name, amount) in shareable().flat_map(|device| &device.capacity) {
            let sum = totals.entry(name.clone()).or_insert(Amount::ZERO);
            *sum = sum.plus(*amount);
        }
        if totals.len() > MAX_ENTRIES {
            let pool = &self.name;
            let keys = totals.len();
            return Err(format!(
                "ShareableSummaryOverCap: pool {pool} has {keys} shareable capacity keys, exceeding the maximum of {MAX_ENTRIES}"
            ));
        }
        let used = shareable().filter(|device| self.is_used(device)).count();
        let capacity = |(name, total): (String, Amount)| {
            let consumed = self.in_use.consumed.get(&name).copied().unwrap_or(Amount::ZERO);
            SharedCapacity { name, total, consumed, available: total.minus(consumed).max(Amount::ZERO) }
        };
        Ok(Some(Shareable {
            fully_available: count(shareable().count() - used),
            partially_available: count(used),
            capacity: totals.into_iter().map(capacity).collect(),
        }))
    }
}

/// Returns the value of the grouping attribute. A device may have it under its full name or, if the domain is the
/// driver's, without the domain; the full name takes precedence.
fn partition_type(driver: &str, device: &PublishedDevice, attribute: &str) -> Option<String> {
    let unqualified = || attribute.strip_prefix(driver)?.strip_prefix('/');
    let value = device.attributes.get(attribute).or_else(|| device.attributes.get(unqualified()?));
    value.filter(|_| !attribute.is_empty()).cloned().flatten()
}

/// Returns the counters that a device consumes, as a text, to compare devices. As in upstream, amounts are compared as
/// their canonical strings, in which `1Gi` and `1073741824` differ.
fn cost(device: &PublishedDevice) -> String {
    let of_set = |(set, counters): &(String, Counters)| {
        counters.iter().map(|(name, amount)| format!("{set}/{name}={amount}")).collect::<Vec<_>>()
    };
    let mut parts: Vec<String> = device.consumes.iter().flat_map(of_set).collect();
    parts.sort_unstable();
    parts.join(",")
}

/// Returns the number of devices that fit into the counters, if they are taken in this order.
fn fitting(devices: &[&PublishedDevice], mut left: CounterSets) -> usize {
    let mut fit = 0;
    for device in devices {
        if fits(&left, device) {
            deduct(&mut left, device);
            fit += 1;
        }
    }
    fit
}

fn fits(left: &CounterSets, device: &PublishedDevice) -> bool {
    let mut costs = device.consumes.iter().flat_map(|(set, counters)| counters.iter().map(move |cost| (set, cost)));
    costs.all(|(set, (name, amount))| left.get(set).and_then(|set| set.get(name)).is_some_and(|have| have >= amount))
}

fn deduct(left: &mut CounterSets, device: &PublishedDevice) {
    for (set, counters) in &device.consumes {
        for (name, amount) in counters {
            if let Some(have) = left.get_mut(set).and_then(|set| set.get_mut(name)) {
                *have = have.minus(*amount);
            }
        }
    }
}

/// Converts a number to the API's type.
pub fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
