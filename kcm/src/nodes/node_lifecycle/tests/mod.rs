//! Tables of decisions, and of zones and heartbeats over time.

mod monitor;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kinds::lease::NODE_LEASES;
use kinds::meta::Time;
use kinds::node::NodeCondition;
use kinds::schema::{lease, lease_spec, node as n, node_condition, node_spec, node_status, object_meta, taint};
use kinds::wire::Put;
use kinds::{Decode, Kind, Lease, Node, Sections, Str};
use proptest::prelude::*;
use runtime::store::Change;
use serde_json::json;
use tokio::time::Instant;

use super::decide_health::{Grace, Health, is_unresponsive, observe, unknown_conditions};
use super::decide_taints::{
    NOT_READY, UNREACHABLE, is_excluded, labels, no_execute, no_execute_key, no_schedule, patch, zone,
};
use super::decide_zones::{Census, DisruptionChange, Pace, Rates, State, Waiting, Zone, update_disruption};
use super::keys::of_node;
use super::watch_health::{STALL, WatchHealth, WatchState};

const NOW: Time = Time(1_700_000_000);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Default)]
struct NodeFields<'a> {
    conditions: &'a [(&'a str, &'a str)],
    taints: &'a [(&'a str, &'a str)],
    labels: &'a [(&'a str, &'a str)],
    unschedulable: bool,
    heartbeat: i64,
}

fn context() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

fn node(made: &NodeFields<'_>) -> Arc<Node> {
    let mut object = Vec::new();
    object.put_message(n::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "a");
        meta.put_str(object_meta::RESOURCE_VERSION, "7");
        Time(NOW.0 - 100).put(meta, object_meta::CREATION_TIMESTAMP);
        made.labels.iter().for_each(|(key, value)| meta.put_entry(object_meta::LABELS, key, value));
    });
    object.put_message(n::SPEC, |spec| {
        spec.put_bool(node_spec::UNSCHEDULABLE, made.unschedulable);
        for (key, effect) in made.taints {
            spec.put_message(node_spec::TAINTS, |message| {
                message.put_str(taint::KEY, key);
                message.put_str(taint::EFFECT, effect);
            });
        }
    });
    object.put_message(n::STATUS, |status| {
        for (kind, set) in made.conditions {
            status.put_message(node_status::CONDITIONS, |message| {
                message.put_str(node_condition::TYPE, kind);
                message.put_str(node_condition::STATUS, set);
                Time(made.heartbeat).put(message, node_condition::LAST_HEARTBEAT_TIME);
            });
        }
    });
    Arc::new(Node::decode(&context(), &object).expect("well-formed"))
}

fn leased(version: u64, renewed: Option<i64>) -> Lease {
    let mut object = Vec::new();
    object.put_message(lease::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "a");
        meta.put_str(object_meta::NAMESPACE, NODE_LEASES);
        meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
    });
    object.put_message(lease::SPEC, |spec| {
        if let Some(renewed) = renewed {
            Time(renewed).put(spec, lease_spec::RENEW_TIME);
        }
    });
    Lease::decode(&context(), &object).expect("well-formed")
}

fn keys(taints: Option<Vec<kinds::Taint>>) -> Option<Vec<String>> {
    taints.map(|taints| taints.iter().map(|taint| format!("{}:{}", taint.key, taint.effect)).collect())
}

#[test]
fn no_schedule_taints_follow_conditions() {
    const MEMORY: &str = "node.kubernetes.io/memory-pressure";
    const NETWORK: &str = "node.kubernetes.io/network-unavailable";
    const CLOSED: &str = "node.kubernetes.io/unschedulable";
    for (conditions, unschedulable, taints, expected) in [
        (&[("Ready", "True")][..], false, &[][..], None),
        (&[], false, &[], None),
        (&[("Ready", "False")], false, &[], Some(vec![NOT_READY])),
        (&[("Ready", "Unknown")], false, &[], Some(vec![UNREACHABLE])),
        (&[("Ready", "Unknown")], false, &[(UNREACHABLE, "NoSchedule")], None),
        (&[("Ready", "Unknown")], false, &[(NOT_READY, "NoSchedule")], Some(vec![UNREACHABLE])),
        (&[("Ready", "True")], false, &[(NOT_READY, "NoSchedule")], Some(vec![])),
        (&[("Ready", "True"), ("NetworkUnavailable", "True")], false, &[], Some(vec![NETWORK])),
        (&[("Ready", "Unknown"), ("NetworkUnavailable", "True")], false, &[], Some(vec![UNREACHABLE, NETWORK])),
        (&[("NetworkUnavailable", "True"), ("Ready", "Unknown")], false, &[], Some(vec![NETWORK, UNREACHABLE])),
        (&[("Ready", "True"), ("MemoryPressure", "True")], true, &[], Some(vec![MEMORY, CLOSED])),
        (&[("Ready", "True"), ("MemoryPressure", "Unknown")], false, &[], None),
        (&[("Ready", "True")], false, &[(CLOSED, "NoSchedule")], Some(vec![])),
        (&[("Ready", "True")], false, &[("own", "NoSchedule"), (NOT_READY, "NoExecute")], None),
    ] {
        let made = node(&NodeFields { conditions, unschedulable, taints, ..NodeFields::default() });
        let expected = expected.map(|keys| keys.iter().map(|key| format!("{key}:NoSchedule")).collect::<Vec<_>>());
        assert_eq!(keys(no_schedule(&made, NOW)), expected, "{conditions:?} {taints:?}");
    }
}

#[test]
fn not_ready_and_unreachable_taints_are_mutually_exclusive() {
    let own = ("own", "NoExecute");
    let down = (NOT_READY, "NoExecute");
    let unreachable = (UNREACHABLE, "NoExecute");
    for (taints, wanted, expected) in [
        (&[own][..], None, None),
        (&[own, down], None, Some(vec!["own:NoExecute"])),
        (&[down, unreachable], None, Some(vec![])),
        (&[(NOT_READY, "NoSchedule")], None, None),
        (&[own], Some(UNREACHABLE), Some(vec!["own:NoExecute", "node.kubernetes.io/unreachable:NoExecute"])),
        (&[unreachable], Some(UNREACHABLE), None),
        (&[down], Some(UNREACHABLE), Some(vec!["node.kubernetes.io/unreachable:NoExecute"])),
        (&[unreachable, down], Some(NOT_READY), Some(vec!["node.kubernetes.io/not-ready:NoExecute"])),
    ] {
        let made = node(&NodeFields { taints, ..NodeFields::default() });
        let found = keys(no_execute(&made, wanted, NOW));
        let expected = expected.map(|keys| keys.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(found, expected, "{taints:?} {wanted:?}");
    }
    assert_eq!(
        [no_execute_key("True"), no_execute_key("False"), no_execute_key("Unknown")],
        [None, Some(NOT_READY), Some(UNREACHABLE)]
    );
}

#[test]
fn older_labels_follow_newer_ones() {
    const OS: (&str, &str) = ("kubernetes.io/os", "linux");
    for (existing, expected) in [
        (&[][..], vec![]),
        (&[OS], vec![("beta.kubernetes.io/os", "linux")]),
        (&[OS, ("beta.kubernetes.io/os", "windows")], vec![("beta.kubernetes.io/os", "linux")]),
        (&[OS, ("beta.kubernetes.io/os", "linux")], vec![]),
        (&[("beta.kubernetes.io/os", "windows")], vec![]),
        (
            &[OS, ("kubernetes.io/arch", "arm64")],
            vec![("beta.kubernetes.io/os", "linux"), ("beta.kubernetes.io/arch", "arm64")],
        ),
    ] {
        assert_eq!(labels(&node(&NodeFields { labels: existing, ..NodeFields::default() })), expected, "{existing:?}");
    }
}

#[test]
fn patch_is_valid_for_its_version_only() {
    let made = node(&NodeFields { conditions: &[("Ready", "False")], ..NodeFields::default() });
    let taints = no_schedule(&made, NOW).expect("one is missing");
    assert_eq!(
        patch(&made, Some(&taints), &[("l", "v")]),
        json!({
            "metadata": {"resourceVersion": "7", "labels": {"l": "v"}},
            "spec": {"taints": [{"key": NOT_READY, "effect": "NoSchedule", "timeAdded": "2023-11-14T22:13:20Z"}]},
        })
    );
    assert_eq!(patch(&made, Some(&[]), &[])["spec"], json!({"taints": null}));
    assert_eq!(patch(&made, None, &[]), json!({"metadata": {"resourceVersion": "7"}}));
}

#[test]
fn zones_are_named_by_either_label() {
    const REGION: (&str, &str) = ("topology.kubernetes.io/region", "r");
    for (labels, expected) in [
        (&[][..], ""),
        (&[REGION], "r:\0:"),
        (&[REGION, ("topology.kubernetes.io/zone", "z")], "r:\0:z"),
        (&[REGION, ("failure-domain.beta.kubernetes.io/region", "old")], "old:\0:"),
        (&[("failure-domain.beta.kubernetes.io/zone", "z")], ":\0:z"),
    ] {
        assert_eq!(&*zone(&node(&NodeFields { labels, ..NodeFields::default() })), expected);
    }
    let labels = &[("node.kubernetes.io/exclude-disruption", "")][..];
    assert!(is_excluded(&node(&NodeFields { labels, ..NodeFields::default() })));
}

#[test]
fn heartbeat_does_not_requeue_a_node() {
    let ready = NodeFields { conditions: &[("Ready", "True")], heartbeat: 1, ..NodeFields::default() };
    let old = node(&ready);
    let is_requeued = |made: &NodeFields<'_>| of_node(&Change { old: Some(&old), new: Some(&node(made)) }).is_some();
    assert!(!is_requeued(&NodeFields { heartbeat: 2, ..ready }));
    assert!(is_requeued(&NodeFields { conditions: &[("Ready", "False")], ..ready }));
    assert!(is_requeued(&NodeFields { taints: &[("k", "NoSchedule")], ..ready }));
    assert!(is_requeued(&NodeFields { labels: &[("k", "v")], ..ready }));
    assert!(is_requeued(&NodeFields { unschedulable: true, ..ready }));
    assert!(of_node(&Change { old: None, new: Some(&old) }).is_some());
    assert!(of_node(&Change { old: Some(&old), new: None }).is_none());
}

const GRACE: Grace = Grace { startup: Duration::from_secs(60), running: Duration::from_secs(40) };

/// An observation of a node: seconds that passed, heartbeat of its Ready condition, renewal of its Lease (and its
/// version); and whether it is unresponsive then.
type Observation = (u64, Option<i64>, Option<i64>, bool);

#[test]
fn missing_heartbeat_is_measured_by_the_clock_of_this_process() {
    let histories: &[(&str, u64, &[Observation])] = &[
        ("never reported, young", 10, &[(0, None, None, false), (50, None, None, false), (51, None, None, true)]),
        ("never reported, old", 100, &[(0, None, None, true)]),
        (
            "never reported, but renews",
            100,
            &[(0, None, Some(1), false), (59, None, Some(1), false), (2, None, Some(1), true)],
        ),
        ("known from before", 1000, &[(0, Some(1), None, false), (40, Some(1), None, false), (1, Some(1), None, true)]),
        (
            "heartbeats in the status suffice",
            9,
            &[
                (0, Some(1), Some(1), false),
                (40, Some(2), Some(1), false),
                (40, Some(3), Some(1), false),
                (41, Some(3), Some(1), true),
            ],
        ),
        (
            "renewals of the Lease suffice",
            9,
            &[
                (0, Some(1), Some(1), false),
                (40, Some(1), Some(2), false),
                (40, Some(1), Some(3), false),
                (41, Some(1), Some(3), true),
            ],
        ),
        ("an older Lease is not a heartbeat", 9, &[(0, Some(1), Some(5), false), (41, Some(1), Some(4), true)]),
        (
            "the first status is a heartbeat",
            100,
            &[(0, None, None, true), (1, Some(1), None, false), (41, Some(1), None, true)],
        ),
        (
            "a removed status is not a heartbeat",
            9,
            &[(0, Some(1), None, false), (30, None, None, false), (31, None, None, true)],
        ),
        ("heartbeats resume", 9, &[(0, Some(1), None, false), (41, Some(1), None, true), (9, Some(2), None, false)]),
    ];
    for (what, age, observations) in histories {
        let (mut now, mut health): (Instant, Option<Health>) = (Instant::now() + Duration::from_secs(1000), None);
        for (passed, heartbeat, renewed, expected) in *observations {
            now += SECOND * u32::try_from(*passed).expect("small");
            let ready = heartbeat.map(|heartbeat| NodeCondition {
                kind: "Ready".into(),
                status: "True".into(),
                heartbeat: Time(heartbeat),
                transition: Time(0),
            });
            let lease = renewed.map(|renewed| leased(renewed.unsigned_abs(), Some(renewed)));
            let seen = observe(health, ready.as_ref(), lease.as_ref(), Duration::from_secs(*age), now);
            assert_eq!(is_unresponsive(&seen, GRACE, now), *expected, "{what} after {passed} s");
            health = Some(seen);
        }
    }
}

#[test]
fn lease_without_a_time_is_one_heartbeat() {
    let now = Instant::now();
    let first = observe(None, None, Some(&leased(3, None)), Duration::ZERO, now);
    assert!(!first.is_renewed_by(&leased(4, Some(9))));
    let timed = observe(None, None, Some(&leased(3, Some(1))), Duration::ZERO, now);
    assert!(timed.is_renewed_by(&leased(4, Some(2))) && !timed.is_renewed_by(&leased(4, None)));
}

#[test]
fn unresponsive_node_gets_four_unknown_conditions() {
    let edits = unknown_conditions(&node(&NodeFields::default()), NOW);
    let written: Vec<_> = edits.iter().map(|edit| (edit.kind, edit.reason, edit.heartbeat)).collect();
    let never = |kind| (kind, "NodeStatusNeverUpdated", Some(Time(NOW.0 - 100)));
    assert_eq!(written, ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"].map(never));

    let conditions = &[("Ready", "False"), ("MemoryPressure", "Unknown"), ("NetworkUnavailable", "True")][..];
    let edits = unknown_conditions(&node(&NodeFields { conditions, ..NodeFields::default() }), NOW);
    let written: Vec<_> = edits.iter().map(|edit| (edit.kind, edit.reason, edit.transition)).collect();
    assert_eq!(
        written,
        [
            ("Ready", "NodeStatusUnknown", NOW),
            ("DiskPressure", "NodeStatusNeverUpdated", NOW),
            ("PIDPressure", "NodeStatusNeverUpdated", NOW),
        ]
    );
    assert!(
        unknown_conditions(&node(&NodeFields { conditions: &[("Ready", "Unknown")], ..NodeFields::default() }), NOW)
            .is_empty()
    );
}

#[test]
fn state_of_a_zone_follows_from_its_nodes() {
    for (size, ready, expected) in [
        (0, 0, State::Initial),
        (1, 0, State::Full),
        (9, 0, State::Full),
        (2, 1, State::Normal),
        (4, 1, State::Partial),
        (3, 1, State::Normal),
        (9, 4, State::Partial),
        (9, 5, State::Normal),
        (20, 9, State::Partial),
        (20, 10, State::Normal),
    ] {
        assert_eq!(Census { size, ready }.state(0.55), expected, "{ready} of {size}");
    }
}

const RATES: Rates = Rates { normal: 0.1, reduced: 0.01, large: 50, threshold: 0.55 };

/// Zones by name, with the size and the ready nodes of each.
type Count<'a> = &'a [(&'a str, usize, usize)];

fn census(count: Count<'_>) -> BTreeMap<Str, Census> {
    count.iter().map(|(name, size, ready)| (Str::from(*name), Census { size: *size, ready: *ready })).collect()
}

/// Returns the seconds until the next node of a zone may be tainted after one was; `None`: it is never tainted.
fn wait(zone: &Zone, now: Instant) -> Option<u64> {
    let mut pace = zone.pace;
    pace.wait(now)?;
    pace.take();
    pace.wait(now).map(|wait| wait.as_secs())
}

/// A census, its consequence, and the minimum waits of the zones after it.
type Step<'a> = (Count<'a>, DisruptionChange, &'a [Option<u64>]);

#[test]
fn loss_and_return_of_all_nodes_stop_and_resume_evictions() {
    let histories: &[(&str, &[Step<'_>])] = &[
        (
            "one zone of two fails",
            &[
                (&[("a", 3, 3), ("b", 3, 3)], DisruptionChange::None, &[Some(10), Some(10)]),
                (&[("a", 3, 0), ("b", 3, 3)], DisruptionChange::None, &[Some(10), Some(10)]),
            ],
        ),
        (
            "all fail and one returns",
            &[
                (&[("a", 3, 3), ("b", 3, 3)], DisruptionChange::None, &[Some(10), Some(10)]),
                (&[("a", 3, 0), ("b", 3, 0)], DisruptionChange::AllFailed, &[None, None]),
                (&[("a", 3, 0), ("b", 3, 0)], DisruptionChange::None, &[None, None]),
                (&[("a", 3, 0), ("b", 3, 1)], DisruptionChange::SomeRecovered, &[Some(10), Some(10)]),
                (&[("a", 3, 3), ("b", 3, 3)], DisruptionChange::None, &[Some(10), Some(10)]),
            ],
        ),
        ("all are failed from the start", &[(&[("a", 3, 0), ("b", 1, 0)], DisruptionChange::AllFailed, &[None, None])]),
        (
            "a new zone of ready nodes",
            &[
                (&[("a", 3, 0)], DisruptionChange::AllFailed, &[None]),
                (&[("a", 3, 0), ("b", 1, 1)], DisruptionChange::SomeRecovered, &[Some(10), Some(10)]),
            ],
        ),
        (
            "a new zone of failed nodes",
            &[
                (&[("a", 3, 0)], DisruptionChange::AllFailed, &[None]),
                (&[("a", 3, 0), ("b", 1, 0)], DisruptionChange::None, &[None, None]),
            ],
        ),
        (
            "most of a small zone",
            &[(&[("a", 9, 4)], DisruptionChange::None, &[None]), (&[("a", 9, 5)], DisruptionChange::None, &[Some(10)])],
        ),
        ("most of a large zone", &[(&[("a", 100, 45)], DisruptionChange::None, &[Some(100)])]),
        ("a zone of fifty is not large", &[(&[("a", 50, 20)], DisruptionChange::None, &[None])]),
        (
            "a partially disrupted zone becomes large",
            &[
                (&[("a", 50, 20)], DisruptionChange::None, &[None]),
                (&[("a", 60, 20)], DisruptionChange::None, &[None]),
                (&[("a", 60, 60)], DisruptionChange::None, &[Some(10)]),
                (&[("a", 60, 20)], DisruptionChange::None, &[Some(100)]),
            ],
        ),
        (
            "a partially disrupted large zone shrinks",
            &[
                (&[("a", 51, 20)], DisruptionChange::None, &[Some(100)]),
                (&[("a", 40, 10)], DisruptionChange::None, &[Some(100)]),
                (&[("a", 0, 0), ("b", 1, 1)], DisruptionChange::None, &[Some(100), Some(10)]),
            ],
        ),
        (
            "a failed zone counts again after all had failed",
            &[
                (&[("a", 3, 0), ("b", 3, 0)], DisruptionChange::AllFailed, &[None, None]),
                (&[("a", 3, 0), ("b", 3, 3)], DisruptionChange::SomeRecovered, &[Some(10), Some(10)]),
            ],
        ),
        (
            "a zone that does not count",
            &[
                (&[("a", 0, 0)], DisruptionChange::None, &[Some(10)]),
                (&[("a", 0, 0), ("b", 1, 0)], DisruptionChange::AllFailed, &[None, None]),
            ],
        ),
    ];
    for (what, history) in histories {
        let mut zones: BTreeMap<Str, Zone> = BTreeMap::new();
        let mut now = Instant::now();
        for (count, expected, waits) in *history {
            now += SECOND * 1000;
            let census = census(count);
            for name in census.keys() {
                zones.entry(name.clone()).or_insert_with(|| Zone::new(&RATES, now));
            }
            assert_eq!(update_disruption(&mut zones, &census, &RATES, now), *expected, "{what}: {count:?}");
            let found: Vec<_> = zones.values().map(|zone| wait(zone, now)).collect();
            // The expected waits are minimums: a bucket that has just begun to fill has a longer wait.
            assert_eq!(
                found.iter().map(Option::is_some).collect::<Vec<_>>(),
                waits.iter().map(Option::is_some).collect::<Vec<_>>(),
                "{what}: {count:?}"
            );
            for (found, expected) in found.iter().zip(*waits) {
                assert!(found.zip(*expected).is_none_or(|(found, expected)| found >= expected), "{what}: {found:?}");
            }
        }
    }
}

#[test]
fn bucket_returns_one_token_at_its_rate() {
    let begun = Instant::now();
    let mut pace = Pace::new(0.1, begun);
    assert_eq!(pace.wait(begun), Some(Duration::ZERO));
    pace.take();
    let wait = pace.wait(begun).expect("the bucket fills");
    assert!(wait >= SECOND * 10 && wait < SECOND * 11);
    assert_eq!(pace.wait(begun + wait), Some(Duration::ZERO));
    pace.take();
    pace.give_back();
    assert_eq!(pace.wait(begun + wait), Some(Duration::ZERO), "an unused token");
    assert_eq!(pace.wait(begun + SECOND * 1000), Some(Duration::ZERO));
    pace.take();
    assert!(
        pace.wait(begun + SECOND * 1000).is_some_and(|wait| wait >= SECOND * 10),
        "the bucket holds one token only"
    );

    let later = begun + SECOND * 2000;
    pace.set_rate(0.0, later);
    assert_eq!(pace.wait(later + SECOND * 100), None);
    pace.set_rate(0.1, later);
    assert!(pace.wait(later).is_some_and(|wait| wait >= SECOND * 10), "after a rate of zero the bucket is empty");
    let full = later + SECOND * 20;
    pace.set_rate(0.5, full);
    assert_eq!(pace.wait(full), Some(Duration::ZERO), "a full bucket stays full");
}

#[test]
fn wait_for_a_token_is_valid_at_any_rate() {
    let begun = Instant::now();
    for (rate, expected) in [
        (1e-30, Some(Duration::MAX)),
        (f64::MIN_POSITIVE, Some(Duration::MAX)),
        (f64::NAN, Some(Duration::MAX)),
        (f64::INFINITY, Some(Duration::ZERO)),
        (-1.0, None),
    ] {
        let mut pace = Pace::new(rate, begun);
        pace.wait(begun);
        pace.take();
        assert_eq!(pace.wait(begun + SECOND), expected, "{rate}");
    }
}

/// The second of a check, the version that the watch has reached then, and the conclusion.
type Check = (u64, u64, WatchState);

#[test]
fn watch_is_stalled_when_its_version_does_not_change_and_recovers_once() {
    use WatchState::{Current, JustRecovered, Stalled};
    let histories: [(&str, u64, &[Check]); 6] = [
        (
            "a stall of 35 s",
            5,
            &[
                (5, 5, Current),
                (10, 6, Current),
                (30, 6, Current),
                (35, 6, Stalled),
                (40, 6, Stalled),
                (45, 7, JustRecovered),
                (50, 7, Current),
            ],
        ),
        ("a paused process", 5, &[(5, 6, Current), (5 + STALL.as_secs() + 6, 7, JustRecovered), (40, 8, Current)]),
        ("a long period", 30, &[(30, 6, Current), (60, 7, Current), (90, 8, Current), (120, 9, Current)]),
        (
            "a very long period",
            300,
            &[(300, 6, Current), (600, 7, Current), (900, 7, Stalled), (1200, 8, JustRecovered)],
        ),
        (
            "a stall in long periods",
            30,
            &[(30, 6, Current), (60, 6, Stalled), (90, 7, JustRecovered), (120, 8, Current)],
        ),
        ("a moving watch that is late", 5, &[(22, 6, Current), (44, 7, Current), (66, 8, Current)]),
    ];
    for (what, period, checks) in histories {
        let begun = Instant::now();
        let mut health = WatchHealth::new(5, begun);
        for (second, version, expected) in checks {
            let now = begun + Duration::from_secs(*second);
            assert_eq!(health.check(*version, Duration::from_secs(period), now), *expected, "{what} after {second} s");
            health.end_pass(now);
        }
    }
}

/// A pass that marks the pods of many nodes may take longer than [`STALL`].
#[test]
fn long_pass_is_not_a_stall() {
    let begun = Instant::now();
    let mut health = WatchHealth::new(5, begun);
    for pass in 1..20 {
        let now = begun + SECOND * (65 * pass - 60);
        assert_eq!(health.check(5 + u64::from(pass), SECOND * 5, now), WatchState::Current, "pass {pass}");
        health.end_pass(now + SECOND * 60);
    }
}

#[test]
fn waiting_node_is_listed_once_in_the_order_of_arrival() {
    let [a, b]: [Str; 2] = ["a".into(), "b".into()];
    let mut waiting = Waiting::default();
    for name in [&a, &b, &a] {
        waiting.add(name);
    }
    assert_eq!(waiting.first(), Some(&a));
    waiting.remove(&a);
    assert_eq!(waiting.first(), Some(&b));
    waiting.add(&a);
    waiting.remove(&b);
    waiting.remove(&b);
    assert_eq!(waiting.first(), Some(&a));
    waiting.remove(&a);
    assert!(waiting.is_empty() && waiting.first().is_none());
}

proptest! {
    /// For any history of failing and returning zones, the tokens never exceed the normal rate, and while no node is
    /// ready there is none.
    #[test]
    fn nodes_are_never_tainted_faster_than_the_rate(
        steps in proptest::collection::vec((1u64..40, 0usize..4, 0usize..4), 1..60)
    ) {
        let begun = Instant::now();
        let (mut now, mut zones) = (begun, BTreeMap::<Str, Zone>::new());
        let mut given: BTreeMap<Str, Vec<Instant>> = BTreeMap::new();
        for (passed, a, b) in steps {
            now += Duration::from_secs(passed);
            let census = census(&[("a", 3, a.min(3)), ("b", 3, b.min(3))]);
            for name in census.keys() {
                zones.entry(name.clone()).or_insert_with(|| Zone::new(&RATES, now));
            }
            update_disruption(&mut zones, &census, &RATES, now);
            let all_failed = a == 0 && b == 0;
            for (name, zone) in &mut zones {
                if zone.pace.wait(now).is_some_and(|wait| wait.is_zero()) {
                    prop_assert!(!all_failed);
                    zone.pace.take();
                    let before = given.entry(name.clone()).or_default();
                    if let Some(last) = before.last() {
                        prop_assert!(now.duration_since(*last) >= SECOND * 10, "{:?}", now.duration_since(*last));
                    }
                    before.push(now);
                }
            }
        }
    }
}
