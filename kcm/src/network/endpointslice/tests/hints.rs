//! Hints of endpoints, in upstream's cases and others.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::endpoint_slice::{Contents, Hints};
use kinds::ip::Family;
use kinds::node::NodeCondition;
use kinds::{Node, Sections, Service, Str, Time};
use runtime::events::EventType;
use runtime::store::Change;

use super::super::hints::{exchange, hints_of};
use super::super::topology::{Allocation, EndpointsByZone, Shares, Topology};
use super::builders::{Fixture, labels, service};

/// Returns a fixture with the pods 1 to `pods`, spread over the zones in turn.
fn fixture(service: Service, pods: u8, zones: &[&str]) -> Fixture {
    let mut fixture = Fixture::new(service, 1..=pods);
    for (zone, node) in zones.iter().zip(["node-0", "node-1", "node-2"]) {
        fixture.nodes.insert(node.into(), Some((*zone).into()));
    }
    for (number, pod) in &mut fixture.pods {
        pod.node = format!("node-{}", usize::from(*number - 1) % zones.len()).into();
    }
    fixture
}

fn shares(zones: &[(&str, i64)]) -> Option<Shares> {
    Shares::of(&zones.iter().map(|(zone, cpu)| ((*zone).into(), *cpu)).collect())
}

fn topology() -> Service {
    Service { annotations: labels(&[("service.kubernetes.io/topology-mode", "Auto")]), ..service() }
}

/// Returns the number of endpoints for each zone.
fn counts(fixture: &Fixture) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for endpoint in fixture.slices.iter().flat_map(|slice| &slice.contents.endpoints) {
        for zone in endpoint.hints.iter().flat_map(|hints| &hints.zones) {
            *counts.entry(zone.to_string()).or_default() += 1;
        }
    }
    counts
}

#[test]
fn traffic_distribution_sets_hints_for_zone_and_node() {
    for (distribution, expected) in [
        (None, "10.0.0.1 ++-"),
        (Some("PreferClose"), "10.0.0.1 ++- a|"),
        (Some("PreferSameZone"), "10.0.0.1 ++- a|"),
        (Some("PreferSameNode"), "10.0.0.1 ++- a|node-0"),
        (Some("Sometimes"), "10.0.0.1 ++-"),
    ] {
        let service = Service { traffic_distribution: distribution.map(Into::into), ..service() };
        let mut fixture = fixture(service, 1, &["a"]);
        fixture.settle();
        assert_eq!(fixture.shown(), [[expected]], "{distribution:?}");
        assert_eq!((fixture.settle(), fixture.counted()), (0, 1));
        fixture.service.traffic_distribution = None;
        assert_eq!(fixture.settle(), usize::from(expected.ends_with('|') || expected.ends_with("-0")));
        assert_eq!(fixture.shown(), [["10.0.0.1 ++-"]]);
    }
}

#[test]
fn endpoints_that_are_not_ready_get_no_hints() {
    let service = Service { traffic_distribution: Some("PreferClose".into()), ..service() };
    let mut fixture = fixture(service, 2, &["a"]);
    fixture.pods.get_mut(&1).expect("the pod exists").ready = false;
    fixture.settle();
    assert_eq!(fixture.shown(), [["10.0.0.1 ---", "10.0.0.2 ++- a|"]]);
}

#[test]
fn hints_of_ready_endpoints_are_corrected() {
    let distributed = |value: &str| Service { traffic_distribution: Some(value.into()), ..service() };
    // (trafficDistribution, whether the endpoint is ready, writes, endpoint after)
    for (distribution, is_ready, writes, expected) in [
        ("PreferClose", true, 1, "10.0.0.1 ++- a|"),
        ("PreferClose", false, 0, "10.0.0.1 --- b|"),
        ("Sometimes", true, 1, "10.0.0.1 ++-"),
    ] {
        let mut fixture = fixture(distributed(distribution), 1, &["a"]);
        fixture.pods.get_mut(&1).expect("the pod exists").ready = is_ready;
        fixture.settle();
        let mut contents: Contents = fixture.slices[0].contents.clone();
        contents.endpoints[0].hints = Some(Box::new(Hints { zones: vec!["b".into()], nodes: Vec::new() }));
        fixture.slices[0] = fixture.slice("web-001", &contents);
        assert_eq!(fixture.settle(), writes, "{distribution} {is_ready}");
        assert_eq!(fixture.shown(), [[expected]]);
    }
}

#[test]
fn without_zones_only_nodes_are_hints() {
    for (distribution, expected) in [("PreferClose", "10.0.0.1 ++-"), ("PreferSameNode", "10.0.0.1 ++- |node-0")] {
        let service = Service { traffic_distribution: Some(distribution.into()), ..service() };
        let mut fixture = fixture(service, 1, &["a"]);
        fixture.nodes.insert("node-0".into(), None);
        fixture.settle();
        assert_eq!(fixture.shown(), [[expected]], "{distribution}");
    }
}

#[test]
fn endpoints_that_are_not_ready_are_not_allocated_to_zones() {
    let mut fixture = fixture(topology(), 4, &["a", "b"]);
    fixture.shares = shares(&[("a", 450), ("b", 550)]);
    for number in [3, 4] {
        fixture.pods.get_mut(&number).expect("the pod exists").ready = false;
    }
    assert_eq!(fixture.decide().allocated[&Family::V4], by_zone(&[("a", 1), ("b", 1)]));
    fixture.settle();
    assert_eq!(fixture.shown(), [["10.0.0.1 ++- a|", "10.0.0.2 ++- b|", "10.0.0.3 ---", "10.0.0.4 ---"]]);
}

#[test]
fn zones_get_endpoints_by_their_share() {
    for (max, pods, zones, cpu, expected) in [
        (6, &["a", "b", "c"][..], &[("a", 1000), ("b", 1000), ("c", 1000)][..], &[2, 2, 2][..]),
        (9, &["a", "b", "c"], &[("a", 4000), ("b", 4000), ("c", 1000)], &[4, 4, 1]),
        (4, &["a", "b"], &[("a", 1000), ("b", 1000)], &[2, 2]),
        (10, &["a"], &[("a", 1000), ("b", 1000)], &[5, 5]),
        (9, &["a"], &[("a", 1000), ("b", 1000), ("c", 1000)], &[3, 3, 3]),
    ]
    .into_iter()
    .flat_map(|(pods, zones, cpu, expected)| [100, 4].map(|max| (max, pods, zones, cpu, expected)))
    {
        let mut fixture = fixture(topology(), pods, zones);
        fixture.max_endpoints = max;
        fixture.shares = shares(cpu);
        let decision = fixture.decide();
        let (kind, reason, message) = &decision.events[0];
        assert_eq!((*kind, *reason), (EventType::Normal, "TopologyAwareHintsEnabled"));
        assert_eq!(message, "Topology Aware Hints has been enabled, addressType: IPv4");
        fixture.apply(&decision.now);
        assert_eq!(counts(&fixture).into_values().collect::<Vec<_>>(), expected, "{pods} {cpu:?}");
        assert_eq!(decision.allocated[&Family::V4].values().copied().collect::<Vec<_>>(), expected);
        fixture.was_allocated = true;
        let again = fixture.decide();
        assert_eq!((again.now.writes() + again.later.writes(), again.events.len()), (0, 0));
        assert_eq!(again.allocated, decision.allocated);
    }
}

#[test]
fn reason_for_missing_hints_is_reported_and_old_hints_are_removed() {
    let enough = &[("a", 1000), ("b", 1000)][..];
    for (pods, zones, cpu, expected) in [
        (
            4,
            &["a", "b"][..],
            &[("a", 1000)][..],
            "Insufficient Node information: allocatable CPU or zone not specified on one or more nodes, addressType: IPv4",
        ),
        (1, &["a", "b"], enough, "Insufficient number of endpoints (1 endpoints, 2 zones), addressType: IPv4"),
        (4, &["a", ""], enough, "One or more endpoints do not have a zone specified, addressType: IPv4"),
        (
            3,
            &["a", "b"],
            &[("a", 10), ("b", 1000), ("c", 990)],
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold (3 endpoints, 3 zones), addressType: IPv4",
        ),
    ] {
        let mut fixture = fixture(topology(), pods, zones);
        fixture.shares = shares(enough);
        fixture.settle();
        fixture.shares = shares(cpu);
        fixture.was_allocated = true;
        let decision = fixture.decide();
        assert_eq!(decision.events.len(), 1, "{expected}");
        let (kind, reason, message) = &decision.events[0];
        assert_eq!((*kind, *reason, &**message), (EventType::Warning, "TopologyAwareHintsDisabled", expected));
        assert!(decision.allocated.is_empty());
        fixture.apply(&decision.now);
        assert!(counts(&fixture).is_empty(), "{expected}");
        assert_eq!((fixture.settle(), fixture.counted()), (0, fixture.slices.len()), "{expected}");
    }
}

#[test]
fn removed_annotation_is_reported_once_and_annotations_take_precedence() {
    let mut fixture = fixture(topology(), 4, &["a", "b"]);
    fixture.shares = shares(&[("a", 1000), ("b", 1000)]);
    fixture.service.traffic_distribution = Some("PreferSameNode".into());
    fixture.settle();
    assert!(fixture.shown().concat().iter().all(|text| text.ends_with('|')), "zones only: {:?}", fixture.shown());
    fixture.was_allocated = true;
    fixture.service.annotations = labels(&[]);
    fixture.service.traffic_distribution = None;
    let decision = fixture.decide();
    let messages: Vec<_> = decision.events.iter().map(|(_, _, message)| &**message).collect();
    assert_eq!(messages, ["Topology Aware Hints has been disabled, addressType: IPv4"]);
    fixture.apply(&decision.now);
    assert!(counts(&fixture).is_empty());
    fixture.was_allocated = false;
    assert!(fixture.decide().events.is_empty());
}

#[test]
fn overload_is_detected_when_shares_change() {
    let even = shares(&[("a", 1000), ("b", 1000)]);
    for (allocated, shares, expected) in [
        (&[("a", 5), ("b", 5)][..], even.clone(), false),
        (&[("a", 6), ("b", 5)], even.clone(), false),
        (&[("a", 7), ("b", 3)], even.clone(), true),
        (&[("a", 10)], even, true),
        (&[("a", 5), ("b", 5)], None, true),
        (&[], None, false),
    ] {
        let allocated = allocated.iter().map(|(zone, count)| ((*zone).into(), *count)).collect();
        assert_eq!(Shares::is_overloaded(shares.as_ref(), &allocated), expected, "{allocated:?}");
    }
}

fn node(name: &str, zone: &str, cpu_millis: i64, ready: &str, role: &str) -> Node {
    let mut node: Node = runtime::testing::object(name, Sections::default());
    let given = [("topology.kubernetes.io/zone", zone), (role, "")];
    let given: Vec<_> = given.into_iter().filter(|(key, _)| !key.is_empty()).collect();
    node.meta.labels = labels(&given);
    node.cpu_millis = cpu_millis;
    let ready = NodeCondition { kind: "Ready".into(), status: ready.into(), heartbeat: Time(1), transition: Time(1) };
    node.conditions = [ready].into();
    node
}

/// Upstream: k8s.io/endpointslice/topologycache, SetNodes.
#[test]
fn shares_are_those_of_ready_workers_if_each_has_a_zone_and_cpu() {
    const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
    let ready = |zone, cpu| (zone, cpu, "True", "");
    for (nodes, expected) in [
        (vec![], None),
        (vec![ready("a", 1000)], None),
        (vec![ready("a", 1000), ready("a", 1000)], None),
        (vec![ready("a", 1000), ready("b", 1000)], shares(&[("a", 1), ("b", 1)])),
        (vec![("a", 1000, "False", ""), ready("b", 1000)], None),
        (vec![ready("a", 1000), ("b", 1000, "True", CONTROL_PLANE)], None),
        (vec![ready("a", 1000), ready("b", 1000), ("b", 1000, "False", "")], shares(&[("a", 1), ("b", 1)])),
        (vec![ready("a", 1000), ready("b", 1000), ("b", 9, "True", CONTROL_PLANE)], shares(&[("a", 1), ("b", 1)])),
        (vec![ready("a", 1000), ready("b", 1000), ready("", 1000)], None),
        (vec![ready("a", 1000), ready("b", 1000), ready("b", 0)], None),
        (
            vec![ready("a", 3000), ready("a", 2000), ready("b", 3000), ready("b", 1500), ready("c", 500)],
            shares(&[("a", 5000), ("b", 4500), ("c", 500)]),
        ),
    ] {
        let topology = Topology::default();
        let nodes = nodes.iter().enumerate();
        let nodes: Vec<Arc<Node>> = nodes
            .map(|(at, (zone, cpu, ready, role))| Arc::new(node(&at.to_string(), zone, *cpu, ready, role)))
            .collect();
        for node in &nodes {
            topology.apply(&Change { old: None, new: Some(node) });
        }
        assert_eq!(topology.shares(), expected, "{nodes:?}");
        for node in &nodes {
            topology.apply(&Change { old: Some(node), new: None });
        }
        assert_eq!(topology.shares(), None, "all nodes are deleted");
    }
}

fn by_zone(zones: &[(&str, usize)]) -> EndpointsByZone {
    zones.iter().map(|(zone, count)| ((*zone).into(), *count)).collect()
}

/// Upstream: k8s.io/endpointslice/topologycache, getGivingAndReceivingZones.
#[test]
fn zones_with_the_largest_surplus_give_to_those_that_lack_most() {
    // (ideal numbers of a, b and c, allocated, given, received)
    for (desired, allocated, giving, receiving) in [
        ([1.2, 1.1, 1.0], &[("a", 1), ("b", 1), ("c", 1)][..], &[][..], &[][..]),
        ([5.1, 5.1, 5.8], &[("a", 16)], &[("a", 10)], &[("b", 5), ("c", 5)]),
        ([5.0, 5.6, 5.4], &[("a", 16)], &[("a", 11)], &[("b", 6), ("c", 5)]),
        ([5.0, 5.6, 5.4], &[("b", 8), ("c", 8)], &[("b", 2), ("c", 3)], &[("a", 5)]),
        ([5.0, 5.0, 5.0], &[("a", 6), ("b", 6), ("c", 6)], &[], &[]),
    ] {
        let allocations = ["a", "b", "c"].into_iter().zip(desired);
        let allocations = allocations.map(|(zone, desired)| (zone.into(), Allocation { max: 0, desired })).collect();
        let found = exchange(&by_zone(allocated), &allocations);
        assert_eq!(found, (by_zone(giving), by_zone(receiving)), "{desired:?} {allocated:?}");
    }
    assert_eq!(exchange(&by_zone(&[]), &BTreeMap::new()), (by_zone(&[]), by_zone(&[])));
}

/// Upstream: k8s.io/endpointslice/topologycache, getHintsByZone.
#[test]
fn hints_of_a_slice_are_usable_if_all_ready_endpoints_have_one_and_zones_have_room() {
    // (hints of each endpoint, and readiness; largest number of each zone, already allocated, expected)
    let ready = |hint| (Some(hint), true);
    for (endpoints, max, allocated, expected) in [
        (vec![], &[][..], &[][..], Some(&[][..])),
        (vec![ready("a")], &[("a", 3)], &[("a", 1)], Some(&[("a", 1)])),
        (vec![ready("a"), (Some("a"), false)], &[("a", 3)], &[("a", 1)], Some(&[("a", 1)])),
        (
            vec![ready("a"), ready("b"), ready("b")],
            &[("a", 3), ("b", 3), ("c", 3)],
            &[("a", 1), ("b", 1), ("c", 1)],
            Some(&[("a", 1), ("b", 2)]),
        ),
        (vec![ready("missing")], &[("a", 3)], &[("a", 1)], None),
        (vec![(None, true)], &[("a", 3)], &[], None),
        (vec![ready("")], &[("a", 3)], &[], None),
        (vec![ready("a"), ready("a")], &[("a", 2)], &[("a", 1)], None),
    ] {
        let mut fixture = Fixture::new(service(), 1..=u8::try_from(endpoints.len()).expect("few"));
        fixture.settle();
        let mut contents: Contents = fixture.slices[0].contents.clone();
        for (endpoint, (hint, is_ready)) in contents.endpoints.iter_mut().zip(&endpoints) {
            // An empty text stands for an empty list.
            let zones = |hint: &str| if hint.is_empty() { Vec::new() } else { vec![Str::from(hint)] };
            endpoint.hints = hint.map(|hint| Box::new(Hints { zones: zones(hint), nodes: Vec::new() }));
            endpoint.conditions.ready = Some(*is_ready);
        }
        let mut slice = (*fixture.slices[0]).clone();
        slice.contents = contents;
        let max = max.iter().map(|(zone, max)| ((*zone).into(), Allocation { max: *max, desired: 0.0 })).collect();
        assert_eq!(hints_of(&slice, &by_zone(allocated), &max), expected.map(by_zone), "{endpoints:?}");
    }
}
