//! Hints of endpoints, in upstream's cases and others.

use std::collections::BTreeMap;

use kinds::Service;
use kinds::ip::Family;
use runtime::events::EventType;

use super::super::topology::Shares;
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
fn zones_get_endpoints_by_their_share() {
    for (pods, zones, cpu, expected) in [
        (6, &["a", "b", "c"][..], &[("a", 1000), ("b", 1000), ("c", 1000)][..], &[2, 2, 2][..]),
        (9, &["a", "b", "c"], &[("a", 4000), ("b", 4000), ("c", 1000)], &[4, 4, 1]),
        (4, &["a", "b"], &[("a", 1000), ("b", 1000)], &[2, 2]),
        (10, &["a"], &[("a", 1000), ("b", 1000)], &[5, 5]),
    ] {
        let mut fixture = fixture(topology(), pods, zones);
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
