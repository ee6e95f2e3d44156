//! Tables for the statuses of requests.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::device_taint_rule::DeviceSelector;
use kinds::meta::ObjectKey;
use kinds::pool_status_request::{CompletedStatus, Pool};
use kinds::published_slice::{Counters, PublishedDevice, PublishedSlice};
use kinds::resource_claim::ResourceClaim;
use kinds::resource_list::Amount;
use kinds::schema as f;
use kinds::schema::object_meta;
use kinds::wire::Put;
use kinds::{Decode, DeviceTaintRule, Kind, ResourcePoolStatusRequest, ResourceSlice, Sections, Time};
use proptest::prelude::*;
use runtime::queue::{Queue, QueueOptions};
use runtime::testing::{CpuTime, filled_store};
use runtime::worker::Reconcile;

use super::decide::{PoolsStatus, pools_status, time_left};
use super::drivers::Drivers;
use super::partitions::{PoolDevices, PoolUse};
use super::taints::TaintedDevices;
use super::{BY_ALLOCATED_DRIVER, PENDING, allocated_from};

fn decode<K: Kind>(name: &str, sections: Sections, fill: impl FnOnce(&mut Vec<u8>)) -> K {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
    });
    fill(&mut object);
    K::decode(&Decode { interner: Arc::default(), sections }, &object).expect("well-formed")
}

fn request() -> ResourcePoolStatusRequest {
    decode("request", Sections::default(), |object| {
        object.put_message(f::pool_status_request::SPEC, |spec| {
            spec.put_str(f::pool_status_request_spec::DRIVER, "d");
        });
    })
}

fn edited(edit: impl FnOnce(&mut ResourcePoolStatusRequest)) -> ResourcePoolStatusRequest {
    let mut request = request();
    edit(&mut request);
    request
}

/// A device: its name, partition type, cost of the counter `memory`, taint effect, and shareable capacity.
#[derive(Clone, Copy, Default)]
struct Device<'a> {
    name: &'a str,
    kind: &'a str,
    cost: &'a str,
    taint: &'a str,
    capacity: &'a str,
}

/// A slice of a pool of the driver `d`.
#[derive(Clone, Copy)]
struct Slice<'a> {
    pool: &'a str,
    generation: i64,
    slices: i64,
    node: &'a str,
    attribute: &'a str,
    counter: &'a str,
    devices: &'a [Device<'a>],
}

const SLICE: Slice<'_> =
    Slice { pool: "p", generation: 1, slices: 1, node: "", attribute: "", counter: "", devices: &[] };

fn put_amount(out: &mut Vec<u8>, number: u32, name: &str, amount: &str) {
    out.put_message(number, |entry| {
        entry.put_str(1, name);
        entry.put_message(2, |value| value.put_message(1, |quantity| quantity.put_str(f::quantity::STRING, amount)));
    });
}

fn put_device(spec: &mut Vec<u8>, device: &Device<'_>) {
    spec.put_message(f::resource_slice_spec::DEVICES, |message| {
        message.put_str(f::device::NAME, device.name);
        if !device.kind.is_empty() {
            message.put_message(f::device::ATTRIBUTES, |entry| {
                entry.put_str(1, "profile");
                entry.put_message(2, |value| value.put_str(f::device_attribute::STRING, device.kind));
            });
        }
        if !device.cost.is_empty() {
            message.put_message(f::device::CONSUMES_COUNTERS, |cost| {
                cost.put_str(f::device_counter_consumption::COUNTER_SET, "set");
                put_amount(cost, f::device_counter_consumption::COUNTERS, "memory", device.cost);
            });
        }
        if !device.taint.is_empty() {
            message.put_message(f::device::TAINTS, |taint| taint.put_str(f::device_taint::EFFECT, device.taint));
        }
        if !device.capacity.is_empty() {
            message.put_bool(f::device::ALLOW_MULTIPLE_ALLOCATIONS, true);
            put_amount(message, f::device::CAPACITY, "memory", device.capacity);
        }
    });
}

fn slice(of: &Slice<'_>) -> ResourceSlice {
    decode("slice", ResourceSlice::SPEC, |object| {
        object.put_message(f::resource_slice::SPEC, |spec| {
            use f::resource_slice_spec as s;
            spec.put_str(s::DRIVER, "d");
            spec.put_message(s::POOL, |message| {
                message.put_str(f::resource_pool::NAME, of.pool);
                message.put_int(f::resource_pool::GENERATION, of.generation);
                message.put_int(f::resource_pool::RESOURCE_SLICE_COUNT, of.slices);
            });
            spec.put_str(s::NODE_NAME, of.node);
            spec.put_str(s::PARTITION_TYPE_ATTRIBUTE, of.attribute);
            if !of.counter.is_empty() {
                spec.put_message(s::SHARED_COUNTERS, |set| {
                    set.put_str(f::counter_set::NAME, "set");
                    put_amount(set, f::counter_set::COUNTERS, "memory", of.counter);
                });
            }
            of.devices.iter().for_each(|device| put_device(spec, device));
        });
    })
}

/// Returns a claim with an allocated device of pool `p`: its name, administrative access, and consumed capacity.
fn claim(device: &str, has_admin_access: bool, consumed: &str) -> ResourceClaim {
    decode("claim", ResourceClaim::ALLOCATION, |object| {
        object.put_message(f::resource_claim::STATUS, |status| {
            status.put_message(f::resource_claim_status::ALLOCATION, |allocation| {
                allocation.put_message(f::allocation_result::DEVICES, |devices| {
                    devices.put_message(f::device_allocation_result::RESULTS, |result| {
                        use f::device_request_allocation_result as r;
                        result.put_str(r::DRIVER, "d");
                        result.put_str(r::POOL, "p");
                        result.put_str(r::DEVICE, device);
                        result.put_bool(r::ADMIN_ACCESS, has_admin_access);
                        if !consumed.is_empty() {
                            result.put_message(r::CONSUMED_CAPACITY, |entry| {
                                entry.put_str(1, "memory");
                                entry.put_message(2, |value| value.put_str(f::quantity::STRING, consumed));
                            });
                        }
                    });
                });
            });
        });
    })
}

fn rule(device: Option<&str>, effect: &str) -> Arc<DeviceTaintRule> {
    Arc::new(decode("rule", Sections::default(), |object| {
        object.put_message(f::device_taint_rule::SPEC, |spec| {
            if let Some(device) = device {
                spec.put_message(f::device_taint_rule_spec::DEVICE_SELECTOR, |selector| {
                    selector.put_str(f::device_taint_selector::DEVICE, device);
                });
            }
            spec.put_message(f::device_taint_rule_spec::TAINT, |taint| taint.put_str(f::device_taint::EFFECT, effect));
        });
    }))
}

fn status_of(slices: &[Slice<'_>], claims: &[ResourceClaim], rules: &[Arc<DeviceTaintRule>]) -> Option<PoolsStatus> {
    let slices: Vec<ResourceSlice> = slices.iter().map(slice).collect();
    pools_status(&request(), slices.iter(), claims.iter(), rules).expect("well-formed")
}

fn only_pool(slices: &[Slice<'_>], claims: &[ResourceClaim], rules: &[Arc<DeviceTaintRule>]) -> Pool {
    let mut pools = status_of(slices, claims, rules).expect("complete").pools;
    assert_eq!(pools.len(), 1);
    pools.remove(0)
}

fn plain<'a>(names: &[&'a str]) -> Vec<Device<'a>> {
    names.iter().map(|name| Device { name, ..Device::default() }).collect()
}

#[test]
fn devices_are_counted_once_each() {
    let four = plain(&["a", "b", "c", "d"]);
    let of = Slice { devices: &four, ..SLICE };
    let tainted = |effect: &'static str| -> Vec<Device<'_>> {
        let taint =
            |(at, device): (usize, &Device<'static>)| Device { taint: if at < 2 { effect } else { "" }, ..*device };
        plain(&["a", "b", "c", "d"]).iter().enumerate().map(taint).collect()
    };
    let (no_schedule, none) = (tainted("NoSchedule"), tainted("None"));
    let (no_schedule, none) = (Slice { devices: &no_schedule, ..SLICE }, Slice { devices: &none, ..SLICE });
    for (name, slice, claims, rules, expected) in [
        ("unused", of, vec![], vec![], (4, 0, 0)),
        ("three claims of one device", of, vec![claim("a", false, ""); 3], vec![], (4, 1, 0)),
        ("admin access", of, vec![claim("a", true, "")], vec![], (4, 0, 0)),
        ("taint", no_schedule, vec![], vec![], (4, 0, 2)),
        ("taint without effect", none, vec![], vec![], (4, 0, 0)),
        ("rule", of, vec![], vec![rule(Some("a"), "NoExecute")], (4, 0, 1)),
        ("rule and taint of one device", no_schedule, vec![], vec![rule(Some("a"), "NoSchedule")], (4, 0, 2)),
        ("rule without effect", of, vec![], vec![rule(Some("a"), "None")], (4, 0, 0)),
        ("rule without selector", of, vec![], vec![rule(None, "NoExecute")], (4, 0, 0)),
    ] {
        let counts = only_pool(&[slice], &claims, &rules).devices.expect("complete");
        assert_eq!((counts.total, counts.allocated, counts.unavailable), expected, "{name}");
    }
}

proptest! {
    #[test]
    fn tainted_devices_are_those_that_rules_select(
        selectors in prop::collection::vec(
            prop::option::of([prop::option::of("[a-c]"), prop::option::of("[a-c]"), prop::option::of("[a-c]")]),
            0..6,
        ),
    ) {
        let rules: Vec<DeviceTaintRule> = selectors
            .into_iter()
            .map(|selector| {
                let mut rule = DeviceTaintRule::clone(&rule(None, "NoSchedule"));
                rule.selector = selector.map(|names| {
                    let [driver, pool, device] = names.map(|name| name.map(|name| name.as_str().into()));
                    DeviceSelector { driver, pool, device }
                });
                rule
            })
            .collect();
        let published = slice(&Slice { devices: &plain(&["a", "b", "c"]), ..SLICE });
        for (driver, pool) in ["a", "b", "c"].into_iter().flat_map(|driver| ["a", "b", "c"].map(|pool| (driver, pool))) {
            let tainted = TaintedDevices::new(driver, rules.iter());
            for device in &published.devices {
                let is_selected = rules.iter().any(|rule| rule.selects(driver, pool, &device.name));
                prop_assert_eq!(tainted.contains(pool, device), is_selected, "{} {} {:?}", driver, pool, device);
            }
        }
    }
}

/// A comparison of each device with each rule would be ten billion comparisons.
#[test]
fn many_devices_and_rules_are_counted_in_time() {
    const MANY: usize = 100_000;
    let names: Vec<String> = (0..MANY).map(|number| format!("device-{number}")).collect();
    let devices = plain(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let named = |name: &String| {
        let mut rule = DeviceTaintRule::clone(&rule(None, "NoExecute"));
        rule.selector =
            Some(DeviceSelector { device: Some(format!("{name}-0").as_str().into()), ..Default::default() });
        Arc::new(rule)
    };
    let mut rules: Vec<Arc<DeviceTaintRule>> = names.iter().map(named).collect();
    rules.push(rule(Some("device-7"), "NoExecute"));
    let started = CpuTime::now();
    let counts = only_pool(&[Slice { devices: &devices, ..SLICE }], &[], &rules).devices.expect("complete");
    assert_eq!((counts.total, counts.unavailable), (100_000, 1));
    assert!(started.elapsed() < Duration::from_secs(60), "{:?}", started.elapsed());
}

#[test]
fn only_slices_of_the_newest_generation_count() {
    let (old, new) = (plain(&["a", "b"]), plain(&["c"]));
    let old = Slice { devices: &old, ..SLICE };
    let new = Slice { devices: &new, generation: 2, ..SLICE };
    for slices in [[old, new], [new, old]] {
        let pool = only_pool(&slices, &[], &[]);
        assert_eq!((pool.generation, pool.devices.expect("complete").total), (2, 1));
    }
}

#[test]
fn node_is_named_only_if_all_slices_agree() {
    for (name, nodes, expected) in [
        ("same", ["n", "n"], Some("n")),
        ("different", ["n", "m"], None),
        ("one without", ["n", ""], None),
        ("none", ["", ""], None),
    ] {
        let slices = nodes.map(|node| Slice { node, slices: 2, ..SLICE });
        assert_eq!(only_pool(&slices, &[], &[]).node.as_deref(), expected, "{name}");
    }
}

#[test]
fn request_waits_for_missing_slices_of_the_pools_that_it_returns() {
    let incomplete = Slice { pool: "q", slices: 2, ..SLICE };
    assert_eq!(status_of(&[SLICE, incomplete], &[], &[]), None);
    let slices = [slice(&SLICE), slice(&incomplete)];
    let limited = edited(|request| request.limit = Some(1));
    let status =
        |request| pools_status(request, slices.iter(), [].iter(), &[] as &[Arc<DeviceTaintRule>]).expect("well-formed");
    let beyond_limit = status(&limited).expect("the incomplete pool is cut off");
    assert_eq!((beyond_limit.pools.len(), beyond_limit.count), (1, 2));
    assert_eq!(beyond_limit.message, "Calculated status for 1 pools");
    let named = edited(|request| request.pool = Some("p".into()));
    assert_eq!(status(&named).expect("the other pool does not matter").count, 1);
    let other = edited(|request| request.driver = "other".into());
    assert_eq!(status(&other).expect("it has no pools").message, "Calculated status for 0 pools");
}

#[test]
fn waiting_request_reads_one_slice_of_each_pool() {
    let first = slice(&Slice { slices: 3, ..SLICE });
    let unreadable = ResourceSlice { spec: Some(Box::from(&b"\xff"[..])), ..first.clone() };
    let status =
        |slices: &[ResourceSlice]| pools_status(&request(), slices.iter(), [].iter(), &[] as &[Arc<DeviceTaintRule>]);
    assert_eq!(status(&[first.clone(), unreadable.clone()]), Ok(None));
    assert!(status(&[first.clone(), unreadable, first]).is_err(), "all slices are published, and read");
}

#[test]
fn claims_are_found_by_the_drivers_of_their_devices() {
    let decode = Decode { interner: Arc::default(), sections: ResourceClaim::ALLOCATION };
    let claims = filled_store(decode, vec![BY_ALLOCATED_DRIVER], [claim("a", false, "")]);
    let found = |driver| claims.by_index(&BY_ALLOCATED_DRIVER, allocated_from(driver)).len();
    assert_eq!((found("d"), found("other")), (1, 0));
}

#[tokio::test]
async fn change_of_a_driver_requeues_only_requests_that_wait_for_it() {
    let named = |name: &str, edit: fn(&mut ResourcePoolStatusRequest)| {
        edited(|request| {
            request.meta.name = name.into();
            edit(request);
        })
    };
    let requests = [
        named("waiting", |_| {}),
        named("other", |request| request.driver = "other".into()),
        named("completed", |request| request.completed = Some(CompletedStatus { since: Time(1) })),
    ];
    let decode = Decode { interner: Arc::default(), sections: Sections::default() };
    let queue = Queue::new(QueueOptions::named("test"));
    let drivers = Drivers { requests: Arc::new(filled_store(decode, vec![PENDING], requests)), queue: queue.clone() };
    drivers.reconcile(&ObjectKey::new("", "d")).await.expect("it cannot fail");
    let keys: Vec<String> = queue.waiting().into_iter().map(|waiting| waiting.key.name.to_string()).collect();
    assert_eq!(keys, ["waiting"]);
}

const PARTITIONS: [Device<'_>; 3] = [
    Device { name: "full", kind: "Full", cost: "80Gi", taint: "", capacity: "" },
    Device { name: "half-0", kind: "Half", cost: "40Gi", taint: "", capacity: "" },
    Device { name: "half-1", kind: "Half", cost: "40Gi", taint: "", capacity: "" },
];
const PARTITIONED: Slice<'_> = Slice { attribute: "d/profile", counter: "80Gi", devices: &PARTITIONS, ..SLICE };

#[test]
fn devices_in_use_reduce_the_allocatable_partitions() {
    for (name, used, expected) in [
        ("unused", &[][..], [("Full", 1, 1), ("Half", 2, 2)]),
        ("half used", &["half-0"], [("Full", 1, 0), ("Half", 2, 1)]),
        ("full used", &["full"], [("Full", 1, 0), ("Half", 2, 0)]),
        ("used twice", &["half-0", "half-0"], [("Full", 1, 0), ("Half", 2, 1)]),
        ("overcommitted", &["full", "half-0"], [("Full", 1, 0), ("Half", 2, 0)]),
    ] {
        let claims: Vec<ResourceClaim> = used.iter().map(|device| claim(device, false, "")).collect();
        let pool = only_pool(&[PARTITIONED], &claims, &[]);
        let found: Vec<_> =
            pool.partitions.iter().map(|group| (&*group.kind, group.total, group.allocatable)).collect();
        assert_eq!(found, expected, "{name}");
        assert!(pool.partitions.iter().all(|group| group.attribute == "d/profile"), "{name}");
    }
}

#[test]
fn invalid_partitions_are_reported_and_device_counts_are_kept() {
    let untyped = [Device { kind: "", ..PARTITIONS[0] }];
    let different = [PARTITIONS[1], Device { cost: "20Gi", ..PARTITIONS[2] }];
    let names: Vec<String> = (0..33).map(|number| format!("kind-{number}")).collect();
    let many: Vec<Device<'_>> = names.iter().map(|name| Device { name, kind: name, ..PARTITIONS[1] }).collect();
    for (slice, expected) in [
        (
            Slice { counter: "", ..PARTITIONED },
            "PartitionTypeMissing: pool d/p declares partitionTypeAttribute but publishes no sharedCounters",
        ),
        (
            Slice { devices: &untyped, ..PARTITIONED },
            "PartitionTypeMissing: device \"full\" in pool d/p does not carry partition type attribute \"d/profile\"",
        ),
        (
            Slice { devices: &different, ..PARTITIONED },
            "PartitionCostMismatch: devices of partition type \"Half\" in pool d/p consume different counters",
        ),
        (
            Slice { devices: &many, ..PARTITIONED },
            "PartitionSummaryOverCap: pool d/p has 33 partition types, exceeding the maximum of 32",
        ),
    ] {
        let status = status_of(&[slice], &[], &[]).expect("complete");
        let pool = &status.pools[0];
        assert_eq!(pool.error.as_deref(), Some(expected));
        assert!(pool.partitions.is_empty() && pool.devices.is_some(), "{expected}");
        assert_eq!(status.message, "Calculated status for 1 pools (1 incomplete)");
    }
}

#[test]
fn attribute_of_the_request_counts_only_if_no_slice_names_one() {
    let bare = [Device { kind: "", ..PARTITIONS[0] }];
    let request = edited(|request| request.partition_attribute = Some("d/profile".into()));
    for (name, slices, expected) in [
        ("none named", vec![Slice { attribute: "", ..PARTITIONED }], Ok(2)),
        ("named", vec![PARTITIONED], Ok(2)),
        ("lacks it", vec![Slice { attribute: "", devices: &bare, ..PARTITIONED }], Err("PartitionTypeMissing")),
        (
            "named by another slice",
            vec![
                Slice { slices: 2, ..PARTITIONED },
                Slice { slices: 2, attribute: "", counter: "", devices: &bare, ..PARTITIONED },
            ],
            Ok(2),
        ),
    ] {
        let slices: Vec<ResourceSlice> = slices.iter().map(slice).collect();
        let rules: [Arc<DeviceTaintRule>; 0] = [];
        let status = pools_status(&request, slices.iter(), [].iter(), &rules).expect("well-formed").expect("complete");
        let pool = &status.pools[0];
        let problem = pool.error.as_deref().map(|error| error.split(':').next().unwrap_or_default());
        assert_eq!(problem.map_or(Ok(pool.partitions.len()), Err), expected, "{name}");
    }
}

#[test]
fn shareable_devices_are_summed_up() {
    let shared = |name| Device { name, capacity: "10Gi", ..Device::default() };
    let devices = [shared("a"), shared("b"), Device { name: "c", ..Device::default() }];
    let slice = Slice { devices: &devices, ..SLICE };
    let claims = [claim("a", false, "4Gi"), claim("a", false, "1Gi"), claim("b", true, "10Gi")];
    let shareable = only_pool(&[slice], &claims, &[]).shareable.expect("two devices");
    assert_eq!((shareable.fully_available, shareable.partially_available), (1, 1));
    let amounts: Vec<_> = shareable
        .capacity
        .iter()
        .map(|capacity| [capacity.total, capacity.consumed, capacity.available].map(|amount| amount.to_string()))
        .collect();
    assert_eq!(amounts, [["20Gi", "5Gi", "15Gi"].map(str::to_owned)]);
    let overused = only_pool(&[slice], &[claim("a", false, "30Gi")], &[]).shareable.expect("two devices");
    assert_eq!(overused.capacity[0].available.to_string(), "0");
    assert_eq!(only_pool(&[PARTITIONED], &[], &[]).shareable, None);
}

#[test]
fn long_error_is_cut_at_256_bytes() {
    let pool = "ö".repeat(200);
    let slice = Slice { pool: &pool, counter: "", ..PARTITIONED };
    let error = only_pool(&[slice], &[], &[]).error.expect("the pool has an error");
    assert!(error.len() <= 256 && error.len() > 250, "{}", error.len());
}

#[test]
fn requests_are_deleted_an_hour_after_their_status_or_a_day_without_one() {
    const HOUR: i64 = 3600;
    let now = Timestamp::from_second(1_000_000).expect("in range");
    let age = |hours: i64| Time(1_000_000 - hours * HOUR);
    let since = |since| Some(CompletedStatus { since });
    for (name, created, completed, expected) in [
        ("new", age(0), None, 24),
        ("pending", age(23), None, 1),
        ("pending too long", age(25), None, 0),
        ("completed", age(30), since(age(0)), 1),
        ("completed long ago", age(30), since(age(2)), 0),
        ("completed without condition", age(2), since(Time(0)), 0),
        ("of unknown age", Time(0), None, 24),
        ("created in the future", age(-5), None, 24),
    ] {
        let request = edited(|request| {
            request.completed = completed;
            request.meta.created = created;
        });
        assert_eq!(time_left(&request, now), Duration::from_secs(expected * 3600), "{name}");
    }
}

/// A device with a capacity and counters, each as `<name>=<amount>`; counters begin with their set and a slash.
fn published(name: &str, attributes: &[(&str, &str)], costs: &[&str], capacity: &[&str]) -> PublishedDevice {
    let amount = |text: &str| {
        let (name, amount) = text.split_once('=').expect("a name and an amount");
        (name.to_owned(), Amount::parse(amount).expect("an amount"))
    };
    let cost = |text: &&str| {
        let (set, counter) = text.split_once('/').expect("a set");
        (set.to_owned(), Counters::from([amount(counter)]))
    };
    PublishedDevice {
        name: name.to_owned(),
        attributes: attributes.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect(),
        capacity: capacity.iter().map(|text| amount(text)).collect(),
        consumes: costs.iter().map(cost).collect(),
        is_shareable: !capacity.is_empty(),
    }
}

/// A slice that groups its devices by an attribute, and has 160 of the counter `memory` and 8 `cores`.
fn published_slice(attribute: &str, devices: Vec<PublishedDevice>) -> PublishedSlice {
    let amount = |text: &str| Amount::parse(text).expect("an amount");
    let set = |name: &str, amount| (name.to_owned(), Counters::from([(name.to_owned(), amount)]));
    let counters = [set("memory", amount("160")), set("cores", amount("8"))].into();
    PublishedSlice { partition_attribute: attribute.to_owned(), counters, devices, ..PublishedSlice::default() }
}

/// Attribute, type, number and allocatable number of each partition type.
fn partitions(slices: Vec<PublishedSlice>) -> Result<Vec<(String, String, i32, i32)>, String> {
    let in_use = PoolUse::default();
    let found = PoolDevices::new(&request(), "p", slices, &in_use).partitions()?;
    Ok(found
        .into_iter()
        .map(|group| (group.attribute.to_string(), group.kind.to_string(), group.total, group.allocatable))
        .collect())
}

#[test]
fn scarcest_counter_limits_the_allocatable_partitions() {
    let full = |name| published(name, &[("profile", "Full")], &["memory/memory=80", "cores/cores=8"], &[]);
    let found = partitions(vec![published_slice("d/profile", vec![full("a"), full("b")])]);
    assert_eq!(found, Ok(vec![("d/profile".to_owned(), "Full".to_owned(), 2, 1)]));
}

#[test]
fn slices_of_a_pool_may_group_by_different_attributes() {
    let by_profile = published("a", &[("profile", "Full")], &["memory/memory=80"], &[]);
    let by_class = published("b", &[("class", "A")], &["memory/memory=40"], &[]);
    let slices = vec![published_slice("d/profile", vec![by_profile]), published_slice("d/class", vec![by_class])];
    let expected = [("d/class", "A", 1, 1), ("d/profile", "Full", 1, 1)];
    let expected = expected.map(|(attribute, kind, total, left)| (attribute.to_owned(), kind.to_owned(), total, left));
    assert_eq!(partitions(slices), Ok(expected.into()));
}

#[test]
fn devices_without_a_grouping_attribute_have_no_partitions() {
    let device = published("a", &[("profile", "Full")], &["memory/memory=80"], &[]);
    assert_eq!(partitions(vec![published_slice("", vec![device])]), Ok(vec![]));
}

#[test]
fn partition_type_is_a_text_attribute_of_the_drivers_or_the_named_domain() {
    let both = [("profile", "Bare"), ("d/profile", "Explicit"), ("other.com/x", "Other"), ("bare", "Bare")];
    for (attribute, expected) in [
        ("d/profile", Some("Explicit")),
        ("d/bare", Some("Bare")),
        ("other.com/x", Some("Other")),
        ("other.com/bare", None),
        ("d/missing", None),
        ("d/number", None),
    ] {
        let mut device = published("a", &both, &["memory/memory=80"], &[]);
        device.attributes.insert("number".to_owned(), None);
        let found = partitions(vec![published_slice(attribute, vec![device])]);
        match expected {
            Some(kind) => assert_eq!(found.expect(attribute)[0].1, kind, "{attribute}"),
            None => assert!(found.expect_err(attribute).starts_with("PartitionTypeMissing"), "{attribute}"),
        }
    }
}

#[test]
fn each_capacity_is_summed_up_and_a_partition_may_be_shareable() {
    let shared = |name, capacity: &[&str]| published(name, &[("profile", "Full")], &["memory/memory=80"], capacity);
    let devices = vec![shared("a", &["memory=10", "bandwidth=4"]), shared("b", &["memory=20"])];
    let mut in_use = PoolUse::default();
    in_use.consumed.insert("bandwidth".to_owned(), Amount::parse("1").expect("an amount"));
    in_use.devices.insert("a".into());
    let pool = PoolDevices::new(&request(), "p", vec![published_slice("d/profile", devices)], &in_use);
    let shareable = pool.shareable().expect("few capacities").expect("two devices");
    assert_eq!((shareable.fully_available, shareable.partially_available), (1, 1));
    let sums: Vec<_> = shareable
        .capacity
        .iter()
        .map(|sum| (&*sum.name, [sum.total, sum.consumed, sum.available].map(|amount| amount.to_string())))
        .collect();
    let expected = [("bandwidth", ["4", "1", "3"]), ("memory", ["30", "0", "30"])];
    assert_eq!(sums, expected.map(|(name, amounts)| (name, amounts.map(str::to_owned))));
    assert_eq!(pool.partitions().expect("one type")[0].total, 2);
}
