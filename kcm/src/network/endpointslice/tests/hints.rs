//! Hints of endpoints: upstream's cases.

use std::collections::BTreeMap;

use kinds::Service;
use kinds::ip::Family;
use runtime::events::EventType;

use super::super::topology::Shares;
use super::builders::{World, labels, service};

/// Pods 1 to `pods`, spread over the zones in turn.
fn world(service: Service, pods: u8, zones: &[&str]) -> World {
    let mut world = World::new(service, 1..=pods);
    for (zone, node) in zones.iter().zip(["node-0", "node-1", "node-2"]) {
        world.nodes.insert(node.into(), Some((*zone).into()));
    }
    for (number, pod) in &mut world.pods {
        pod.node = format!("node-{}", usize::from(*number - 1) % zones.len()).into();
    }
    world
}

fn shares(zones: &[(&str, i64)]) -> Option<Shares> {
    Shares::of(&zones.iter().map(|(zone, cpu)| ((*zone).into(), *cpu)).collect())
}

fn topology() -> Service {
    Service { annotations: labels(&[("service.kubernetes.io/topology-mode", "Auto")]), ..service() }
}

/// Returns the number of endpoints for each zone.
fn counts(world: &World) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for endpoint in world.slices.iter().flat_map(|slice| &slice.contents.endpoints) {
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
        let mut world = world(service, 1, &["a"]);
        world.settle();
        assert_eq!(world.shown(), [[expected]], "{distribution:?}");
        assert_eq!(world.settle(), 0);
        world.service.traffic_distribution = None;
        assert_eq!(world.settle(), usize::from(expected.ends_with('|') || expected.ends_with("-0")));
        assert_eq!(world.shown(), [["10.0.0.1 ++-"]]);
    }
}

#[test]
fn endpoints_that_are_not_ready_have_no_hints_of_their_own() {
    let service = Service { traffic_distribution: Some("PreferClose".into()), ..service() };
    let mut world = world(service, 2, &["a"]);
    world.pods.get_mut(&1).expect("the pod exists").ready = false;
    world.settle();
    assert_eq!(world.shown(), [["10.0.0.1 ---", "10.0.0.2 ++- a|"]]);
}

#[test]
fn zones_get_endpoints_by_their_share() {
    for (pods, zones, cpu, expected) in [
        (6, &["a", "b", "c"][..], &[("a", 1000), ("b", 1000), ("c", 1000)][..], &[2, 2, 2][..]),
        (9, &["a", "b", "c"], &[("a", 4000), ("b", 4000), ("c", 1000)], &[4, 4, 1]),
        (4, &["a", "b"], &[("a", 1000), ("b", 1000)], &[2, 2]),
        (10, &["a"], &[("a", 1000), ("b", 1000)], &[5, 5]),
    ] {
        let mut world = world(topology(), pods, zones);
        world.shares = shares(cpu);
        let decision = world.decide();
        let (kind, reason, message) = &decision.events[0];
        assert_eq!((*kind, *reason), (EventType::Normal, "TopologyAwareHintsEnabled"));
        assert_eq!(message, "Topology Aware Hints has been enabled, addressType: IPv4");
        world.apply(&decision.now);
        assert_eq!(counts(&world).into_values().collect::<Vec<_>>(), expected, "{pods} {cpu:?}");
        assert_eq!(decision.allocated[&Family::V4].values().copied().collect::<Vec<_>>(), expected);
        world.was_allocated = true;
        let again = world.decide();
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
        let mut world = world(topology(), pods, zones);
        world.shares = shares(enough);
        world.settle();
        world.shares = shares(cpu);
        world.was_allocated = true;
        let decision = world.decide();
        assert_eq!(decision.events.len(), 1, "{expected}");
        let (kind, reason, message) = &decision.events[0];
        assert_eq!((*kind, *reason, &**message), (EventType::Warning, "TopologyAwareHintsDisabled", expected));
        assert!(decision.allocated.is_empty());
        world.apply(&decision.now);
        assert!(counts(&world).is_empty(), "{expected}");
    }
}

#[test]
fn removed_annotation_is_reported_once_and_annotations_win() {
    let mut world = world(topology(), 4, &["a", "b"]);
    world.shares = shares(&[("a", 1000), ("b", 1000)]);
    world.service.traffic_distribution = Some("PreferSameNode".into());
    world.settle();
    assert!(world.shown().concat().iter().all(|text| text.ends_with('|')), "zones only: {:?}", world.shown());
    world.was_allocated = true;
    world.service.annotations = labels(&[]);
    world.service.traffic_distribution = None;
    let decision = world.decide();
    let messages: Vec<_> = decision.events.iter().map(|(_, _, message)| &**message).collect();
    assert_eq!(messages, ["Topology Aware Hints has been disabled, addressType: IPv4"]);
    world.apply(&decision.now);
    assert!(counts(&world).is_empty());
    world.was_allocated = false;
    assert!(world.decide().events.is_empty());
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
