//! The state of a driver's pools, from slices, claims and rules.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use kinds::pool_status_request::{DeviceCounts, Pool};
use kinds::published_slice::PublishedSlice;
use kinds::resource_claim::ResourceClaim;
use kinds::wire::WireError;
use kinds::{DeviceTaintRule, ResourcePoolStatusRequest, ResourceSlice, Str, Time};

use super::partitions::{PoolDevices, PoolUse, count};
use super::taints::TaintedDevices;

/// Number of pools in a status if the request sets no limit.
const DEFAULT_LIMIT: i32 = 100;
/// Maximum length of `validationError` in bytes.
const MAX_ERROR_BYTES: usize = 256;
/// Time from the completion of a request to its deletion.
const COMPLETED_TTL: Duration = Duration::from_secs(60 * 60);
/// Age at which a request without a status is deleted.
const PENDING_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The pools of a status, and the texts that describe them.
#[derive(Debug, PartialEq, Eq)]
pub struct PoolsStatus {
    /// The pools in the status, sorted by name.
    pub pools: Vec<Pool>,
    /// Number of pools, including those beyond the limit of the request.
    pub count: usize,
    /// The message of the condition `Complete`.
    pub message: String,
}

/// Returns the time until a request is deleted.
pub fn time_left(request: &ResourcePoolStatusRequest, now: Timestamp) -> Duration {
    let (since, ttl) = match request.completed {
        Some(completed) if !completed.since.is_zero() => (completed.since, COMPLETED_TTL),
        Some(_) => (request.meta.created, COMPLETED_TTL),
        None => (request.meta.created, PENDING_TTL),
    };
    let Time(since) = since;
    let age = u64::try_from(now.as_second().saturating_sub(since)).unwrap_or(0);
    // An object without creation time is never deleted.
    if since == 0 { ttl } else { ttl.saturating_sub(Duration::from_secs(age)) }
}

/// Computes the status of a request; `None` while slices of a pool within the limit are missing, which the driver may
/// still be about to publish.
///
/// # Errors
/// When a slice is not well-formed.
pub fn pools_status<'a>(
    request: &ResourcePoolStatusRequest,
    slices: impl Iterator<Item = &'a ResourceSlice>,
    claims: impl Iterator<Item = &'a ResourceClaim>,
    rules: &[impl AsRef<DeviceTaintRule>],
) -> Result<Option<PoolsStatus>, WireError> {
    let newest = newest_slices(request, slices);
    let limit = usize::try_from(request.limit.unwrap_or(DEFAULT_LIMIT)).unwrap_or(0);
    for (_, slices) in newest.values().take(limit) {
        if count(slices.len()) < expected_slices(slices)? {
            return Ok(None);
        }
    }
    let uses = uses(&request.driver, claims);
    let tainted = TaintedDevices::new(&request.driver, rules.iter().map(AsRef::as_ref));
    let none = PoolUse::default();
    let mut pools = Vec::with_capacity(newest.len().min(limit));
    for (name, (generation, slices)) in newest.iter().take(limit) {
        let in_use = uses.get(name).unwrap_or(&none);
        pools.push(pool(request, (name, *generation), slices, in_use, &tainted)?);
    }
    let message = message(&pools);
    Ok(Some(PoolsStatus { pools, count: newest.len(), message }))
}

/// Returns the number of slices of a pool, from its first slice. Most requests that wait need nothing else, so the
/// other slices are not read.
fn expected_slices(slices: &[&ResourceSlice]) -> Result<i32, WireError> {
    let first = slices.first().and_then(|slice| slice.spec.as_deref()).unwrap_or_default();
    Ok(i32::try_from(PublishedSlice::read(first)?.slices).unwrap_or(i32::MAX))
}

/// Returns the message of the condition. As in upstream, each pool with an error counts as incomplete.
fn message(pools: &[Pool]) -> String {
    let calculated = format!("Calculated status for {} pools", pools.len());
    match pools.iter().filter(|pool| pool.error.is_some()).count() {
        0 => calculated,
        errors => format!("{calculated} ({errors} incomplete)"),
    }
}

type NewestSlices<'a> = BTreeMap<Str, (i64, Vec<&'a ResourceSlice>)>;

/// Returns the slices of the newest generation of each requested pool.
fn newest_slices<'a>(
    request: &ResourcePoolStatusRequest,
    slices: impl Iterator<Item = &'a ResourceSlice>,
) -> NewestSlices<'a> {
    let mut newest = NewestSlices::new();
    let is_requested = |slice: &&ResourceSlice| {
        slice.driver == request.driver && request.pool.as_ref().is_none_or(|pool| *pool == slice.pool)
    };
    for slice in slices.filter(is_requested) {
        let (generation, known) = newest.entry(slice.pool.clone()).or_insert_with(|| (slice.generation, Vec::new()));
        if slice.generation > *generation {
            (*generation, *known) = (slice.generation, Vec::new());
        }
        if slice.generation == *generation {
            known.push(slice);
        }
    }
    newest
}

/// Returns the devices of a driver that are in use, and their consumed capacities, by pool. Devices that are allocated
/// with admin access do not count, because they can be allocated to other claims, too.
fn uses<'a>(driver: &str, claims: impl Iterator<Item = &'a ResourceClaim>) -> BTreeMap<Str, PoolUse> {
    let mut uses: BTreeMap<Str, PoolUse> = BTreeMap::new();
    let devices = claims.filter_map(|claim| claim.allocation.as_ref()).flat_map(|allocation| &allocation.devices);
    for device in devices.filter(|device| *device.driver == *driver && !device.has_admin_access) {
        let of_pool = uses.entry(device.pool.clone()).or_default();
        of_pool.devices.insert(device.name.clone());
        for (name, amount) in &device.consumed {
            let sum = of_pool.consumed.entry(name.to_string()).or_insert(kinds::resource_list::Amount::ZERO);
            *sum = sum.plus(*amount);
        }
    }
    uses
}

fn pool(
    request: &ResourcePoolStatusRequest,
    (name, generation): (&Str, i64),
    slices: &[&ResourceSlice],
    in_use: &PoolUse,
    tainted: &TaintedDevices<'_>,
) -> Result<Pool, WireError> {
    let published: Vec<PublishedSlice> = slices
        .iter()
        .map(|slice| PublishedSlice::read(slice.spec.as_deref().unwrap_or_default()))
        .collect::<Result<_, _>>()?;
    let node = published.first().map(|slice| slice.node.clone()).filter(|node| !node.is_empty());
    let mut pool = Pool {
        driver: request.driver.clone(),
        name: name.clone(),
        generation,
        node: node.filter(|node| published.iter().all(|slice| slice.node == *node)),
        devices: None,
        error: None,
        partitions: Vec::new(),
        shareable: None,
    };
    pool.devices = Some(device_counts(name, slices, in_use, tainted));
    let devices = PoolDevices::new(request, name, published, in_use);
    let partitions = devices.partitions();
    let shareable = devices.shareable();
    let mut error = None;
    match partitions {
        Ok(partitions) => pool.partitions = partitions,
        Err(problem) => error = Some(problem),
    }
    match shareable {
        Ok(shareable) => pool.shareable = shareable,
        Err(problem) => {
            pool.partitions.clear();
            error = error.or(Some(problem));
        }
    }
    pool.error = error.map(shortened);
    Ok(pool)
}

/// Counts the devices of a complete pool.
fn device_counts(
    pool: &str,
    slices: &[&ResourceSlice],
    in_use: &PoolUse,
    tainted: &TaintedDevices<'_>,
) -> DeviceCounts {
    let devices = || slices.iter().flat_map(|slice| &slice.devices);
    DeviceCounts {
        slices: count(slices.len()),
        total: count(devices().count()),
        allocated: count(in_use.devices.len()),
        unavailable: count(devices().filter(|device| tainted.contains(pool, device)).count()),
    }
}

/// Truncates a text to the limit of the API.
fn shortened(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_ERROR_BYTES));
    text
}
