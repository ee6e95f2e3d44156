//! Packing of endpoints into slices, in upstream's cases and others.

use kinds::Time;
use kinds::endpoint_slice::Contents;
use kinds::int_or_string::IntOrString;

use super::builders::{Fixture, pod, port, service, with_port};

/// Returns a fixture with the pods 0 to `pods` - 1, and a slice with the pods of each range.
fn fixture(pods: u8, slices: &[(u8, u8)]) -> Fixture {
    let mut all = Fixture::new(service(), 0..pods);
    let mut full = Fixture::new(service(), 0..pods);
    full.max_endpoints = 1000;
    full.settle();
    let everything = full.slices.first().map(|slice| slice.contents.clone()).expect("a slice");
    for (at, (first, end)) in slices.iter().enumerate() {
        let address = |number: u8| format!("10.0.0.{number}");
        let endpoints = everything.endpoints.iter();
        let endpoints =
            endpoints.filter(|e| (*first..*end).any(|number| e.addresses[0].to_string() == address(number)));
        let contents = Contents { endpoints: endpoints.cloned().collect(), ..everything.clone() };
        let slice = all.slice(&format!("a-{at}"), &contents);
        all.slices.push(slice);
    }
    all
}

#[test]
fn new_slices_are_full_except_the_last() {
    for (max, sizes) in [(100, vec![50, 100, 100]), (125, vec![125, 125]), (1000, vec![250])] {
        let mut fixture = fixture(250, &[]);
        fixture.max_endpoints = max;
        assert_eq!(fixture.settle(), sizes.len());
        assert_eq!(fixture.sizes(), sizes);
        assert_eq!(fixture.settle(), 0);
    }
}

#[test]
fn pods_that_were_created_together_share_slices() {
    let mut fixture = fixture(250, &[]);
    // The order of the pods' ages differs from that of their names.
    let age = |number: u8| i64::from(number) * 7 % 250;
    for (number, pod) in &mut fixture.pods {
        pod.meta.created = Time(1 + age(*number));
    }
    assert_eq!(fixture.settle(), 3);
    for slice in &fixture.slices {
        let number = |text: String| text.rsplit('.').next().and_then(|end| end.parse().ok()).expect("an address");
        let ages = slice.contents.endpoints.iter().map(|endpoint| age(number(endpoint.addresses[0].to_string())));
        let ages: Vec<i64> = ages.collect();
        assert!(ages.is_sorted_by(|a, b| a + 1 == *b), "in one slice: {ages:?}");
    }
    // An update that goes from the oldest to the newest touches one slice at a time.
    for wave in 0..5 {
        for (number, pod) in &mut fixture.pods {
            pod.ready &= age(*number) / 50 != wave;
        }
        assert_eq!(fixture.settle(), 1, "wave {wave}");
    }
}

#[test]
fn overflow_gets_a_new_slice_and_the_remainder_fills_partial_slices() {
    let mut fixture = fixture(250, &[(0, 62), (62, 123)]);
    assert_eq!(fixture.settle(), 2);
    assert_eq!(fixture.sizes(), [61, 89, 100]);
}

/// If each comparison of two lists of ports sorted both, a few hundred pods of one tenant would take minutes.
#[test]
fn pods_that_differ_in_one_of_many_ports_have_their_own_slices() {
    let mut fixture = Fixture::new(service(), []);
    fixture.service.ports = (1..1000).map(|number| port(&number.to_string(), IntOrString::Int(number))).collect();
    fixture.service.ports.push(port("http", IntOrString::Text("http".into())));
    for number in 0..200 {
        fixture.pods.insert(number, with_port(pod(number), "http", 10_000 + i32::from(number)));
    }
    fixture.settle();
    assert_eq!(fixture.slices.len(), 200);
    assert!(fixture.slices.iter().all(|slice| slice.contents.endpoints.len() == 1));
    assert_eq!(fixture.settle(), 0);
}

#[test]
fn few_endpoints_fill_the_slice_that_they_fit_best() {
    // (slices before, pods, sizes after, writes)
    for (before, pods, after, writes) in [
        (vec![(0, 50), (50, 140)], 150, vec![50, 100], 1),
        (vec![(0, 50), (50, 140)], 155, vec![65, 90], 1),
        (vec![(0, 95), (95, 190)], 200, vec![10, 95, 95], 1),
        (vec![(0, 100)], 101, vec![1, 100], 1),
        (vec![(0, 99)], 100, vec![100], 1),
        (vec![(0, 100), (100, 200)], 200, vec![100, 100], 0),
    ] {
        let mut fixture = fixture(pods, &before);
        assert_eq!((fixture.settle(), fixture.sizes()), (writes, after), "{before:?} and {pods} pods");
    }
}

#[test]
fn slices_that_are_written_anyway_are_filled_first() {
    let mut fixture = fixture(200, &[(0, 80), (80, 160)]);
    for gone in 0..5 {
        fixture.pods.remove(&gone);
    }
    // 40 new endpoints: 25 fill the slice that loses five, 15 fill the other.
    assert_eq!(fixture.settle(), 2);
    assert_eq!(fixture.sizes(), [95, 100]);
}

#[test]
fn emptied_slices_are_recycled() {
    let mut fixture = fixture(100, &[(0, 50), (50, 100)]);
    for number in 0..50 {
        fixture.pods.remove(&number);
    }
    let decision = fixture.decide();
    assert_eq!(decision.now.delete.len(), 1, "nothing to put into it");
    for number in 100..200 {
        fixture.pods.insert(number, super::builders::pod(number));
    }
    let decision = fixture.decide();
    assert_eq!((decision.now.create.len(), decision.now.update.len(), decision.now.delete.len()), (0, 1, 0));
    fixture.apply(&decision.now);
    assert_eq!(fixture.sizes(), [50, 100]);
}

#[test]
fn change_of_ports_repacks_the_slices() {
    // (slices before, updates, deletions, sizes after)
    for (before, updates, deletions, sizes) in [
        (vec![(0, 100), (100, 200), (200, 240)], 3, 0, vec![40, 100, 100]),
        ((0..8).map(|at| (at * 30, at * 30 + 30)).collect(), 3, 5, vec![40, 100, 100]),
    ] {
        let mut fixture = fixture(240, &before);
        assert_eq!(fixture.settle(), 0, "{before:?}");
        fixture.service.ports = vec![port("", IntOrString::Int(81))];
        let now = fixture.decide().now;
        assert_eq!((now.create.len(), now.update.len(), now.delete.len()), (0, updates, deletions), "{before:?}");
        fixture.settle();
        assert_eq!(fixture.sizes(), sizes, "{before:?}");
    }
}

#[test]
fn fullest_of_the_slices_that_are_written_anyway_is_filled_first() {
    let mut fixture = fixture(115, &[(0, 20), (20, 100)]);
    for number in (0..100).step_by(10) {
        fixture.pods.get_mut(&number).expect("the pod exists").ready = false;
    }
    assert_eq!((fixture.settle(), fixture.sizes()), (2, vec![20, 95]));
}

#[test]
fn lower_limit_applies_to_slices_that_change() {
    let mut fixture = fixture(100, &[(0, 100)]);
    fixture.max_endpoints = 30;
    assert_eq!(fixture.settle(), 0, "an unchanged slice above the limit was written");
    fixture.pods.get_mut(&5).expect("the pod exists").ready = false;
    assert_eq!(fixture.settle(), 1);
    assert_eq!(fixture.sizes(), [100]);
}

#[test]
fn readiness_changes_are_made_in_place() {
    let mut fixture = fixture(250, &[(0, 100), (100, 200), (200, 250)]);
    let before = fixture.sizes();
    for number in [7, 150] {
        fixture.pods.get_mut(&number).expect("the pod exists").ready = false;
    }
    assert_eq!((fixture.settle(), fixture.sizes()), (2, before));
}
