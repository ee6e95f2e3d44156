//! Desired mirrored slices, in upstream's cases and others.

use std::collections::BTreeSet;
use std::sync::Arc;

use kinds::endpoint::{Port, Target};
use kinds::endpoint_slice::Contents;
use kinds::endpoints::{Address, Endpoints, LEADER, Subset};
use kinds::intern::Labels;
use kinds::ip::{Family, Ip};
use kinds::metadata_edit::{Annotations, NewMetadata};
use kinds::schema::{endpoints as f, object_meta};
use kinds::wire::{Put, copy_fields, find};
use kinds::{Decode, EndpointSlice, Interner, Kind, OwnerRef, Uid};
use proptest::prelude::*;
use runtime::store::Store;
use runtime::testing::{deliver, deliver_deletion, filled_store};

use super::decide::{EndpointChanges, annotations, decide, labels};
use super::keys::{SKIP, may_be_mirrored};
use super::metrics::Counts;
use crate::network::service_endpoints::slice_writes::Plan;

fn pairs(pairs: &[(&str, &str)]) -> Labels {
    Interner::default().labels(pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect())
}

fn subset<T: AsRef<str>>(ready: &[T], not_ready: &[T], ports: &[i32]) -> Subset {
    let list = |ips: &[T]| {
        let address = |ip: &T| Address { ip: Ip::parse(ip.as_ref()), hostname: "".into(), node: None, target: None };
        ips.iter().map(address).collect()
    };
    let port = |number: &i32| Port {
        name: number.to_string().into(),
        protocol: "TCP".into(),
        number: Some(*number),
        app_protocol: None,
    };
    Subset { ready: list(ready), not_ready: list(not_ready), ports: ports.iter().map(port).collect() }
}

/// Returns an object as the server returns it: with a version and a uid.
fn versioned(object: &[u8], uid: &str) -> Vec<u8> {
    let mut out = Vec::new();
    out.put_message(f::METADATA, |meta| {
        meta.put_str(object_meta::RESOURCE_VERSION, "1");
        meta.put_str(object_meta::UID, uid);
        meta.extend(find(object, f::METADATA));
    });
    copy_fields(object, &mut out, |field| field.number != f::METADATA).expect("well-formed");
    out
}

fn given(
    uid: &str,
    given_labels: &[(&str, &str)],
    given_annotations: &[(&str, &str)],
    subsets: &[Subset],
) -> Endpoints {
    let (labels, annotations) = (pairs(given_labels), pairs(given_annotations));
    let metadata = NewMetadata { labels: &labels, annotations: Annotations::Exactly(&annotations), owner: None };
    let object = versioned(&Endpoints::create("ns", "db", &metadata, subsets), uid);
    let context = Decode { interner: Arc::default(), sections: Endpoints::WHOLE };
    Endpoints::decode(&context, &object).expect("well-formed")
}

fn endpoints(subsets: &[Subset]) -> Endpoints {
    given("uid", &[("app", "db")], &[("why", "because")], subsets)
}

/// Returns the slices after a plan was executed.
fn after(endpoints: &Endpoints, existing: &[Arc<EndpointSlice>], plan: &Plan) -> Vec<Arc<EndpointSlice>> {
    let labels = labels(endpoints);
    let annotations = annotations(endpoints);
    let owner: OwnerRef = endpoints.controller_ref();
    let metadata =
        NewMetadata { labels: &labels, annotations: Annotations::Exactly(&annotations), owner: Some(&owner) };
    let read = |name: &str, contents: &Contents| {
        let object = versioned(&contents.create("ns", name, &metadata), name);
        let context = Decode { interner: Arc::default(), sections: EndpointSlice::CONTENTS };
        Arc::new(EndpointSlice::decode(&context, &object).expect("well-formed"))
    };
    let touched = plan.delete.iter().chain(plan.update.iter().map(|(slice, _)| slice));
    let touched_names: BTreeSet<_> = touched.map(|slice| slice.meta.name.clone()).collect();
    let mut all: Vec<_> = existing.iter().filter(|slice| !touched_names.contains(&slice.meta.name)).cloned().collect();
    all.extend(plan.update.iter().map(|(slice, contents)| read(&slice.meta.name, contents)));
    let free = (0..).map(|n| format!("db-{n}")).filter(|name| existing.iter().all(|slice| *slice.meta.name != **name));
    all.extend(plan.create.iter().zip(free).map(|(contents, name)| read(&name, contents)));
    all.sort_by(|a, b| a.meta.name.cmp(&b.meta.name));
    all
}

fn mirrored(endpoints: &Endpoints) -> Vec<Arc<EndpointSlice>> {
    after(endpoints, &[], &decide(endpoints, &[], 1000).plan)
}

/// Slices as `family ports: addresses`, with a minus before those that are not ready.
fn text(slices: &[Arc<EndpointSlice>]) -> Vec<String> {
    let one = |slice: &Arc<EndpointSlice>| {
        let contents = &slice.contents;
        let ports: Vec<_> = contents.ports.iter().map(|port| port.name.to_string()).collect();
        let endpoints = contents.endpoints.iter().map(|endpoint| {
            let minus = if endpoint.conditions.ready == Some(true) { "" } else { "-" };
            format!("{minus}{}", endpoint.addresses[0])
        });
        let family = contents.family.map_or("", Family::name);
        format!("{family} {}: {}", ports.join(","), endpoints.collect::<Vec<_>>().join(" "))
    };
    let mut text: Vec<_> = slices.iter().map(one).collect();
    text.sort();
    text
}

fn counts(plan: &Plan) -> (usize, usize, usize) {
    (plan.create.len(), plan.update.len(), plan.delete.len())
}

#[test]
fn each_family_and_set_of_ports_has_a_slice() {
    for (subsets, expected) in [
        (vec![], vec![]),
        (vec![subset::<&str>(&[], &[], &[80])], vec![]),
        (vec![subset(&["10.0.0.1"], &["10.0.0.2"], &[80, 443])], vec!["IPv4 443,80: 10.0.0.1 -10.0.0.2"]),
        (vec![subset(&["10.0.0.1", "fd00::1"], &[], &[80])], vec!["IPv4 80: 10.0.0.1", "IPv6 80: fd00::1"]),
        (
            vec![subset(&["10.0.0.1", "10.0.0.2"], &[], &[80]), subset(&["10.0.0.3"], &[], &[81])],
            vec!["IPv4 80: 10.0.0.1 10.0.0.2", "IPv4 81: 10.0.0.3"],
        ),
        (vec![subset(&["10.0.0.1"], &[], &[80]), subset(&["10.0.0.1"], &[], &[80])], vec!["IPv4 80: 10.0.0.1"]),
        (vec![subset(&["010.0.0.01"], &[], &[80])], vec!["IPv4 80: 10.0.0.1"]),
        (vec![subset(&["10.0.0.1"], &[], &[])], vec!["IPv4 : 10.0.0.1"]),
    ] {
        let endpoints = endpoints(&subsets);
        let slices = mirrored(&endpoints);
        assert_eq!(text(&slices), expected);
        assert!(decide(&endpoints, &slices, 1000).plan.is_empty(), "slices are written again for {expected:?}");
    }
}

#[test]
fn metadata_follows_the_endpoints() {
    let applied = ("kubectl.kubernetes.io/last-applied-configuration", "{}");
    let changed = ("endpoints.kubernetes.io/last-change-trigger-time", "2026-01-01T00:00:00Z");
    let endpoints =
        given("uid", &[("app", "db")], &[("why", "because"), applied, changed], &[subset(&["10.0.0.1"], &[], &[80])]);
    let slices = mirrored(&endpoints);
    let expected = pairs(&[
        ("app", "db"),
        ("endpointslice.kubernetes.io/managed-by", "endpointslicemirroring-controller.k8s.io"),
        ("kubernetes.io/service-name", "db"),
    ]);
    assert_eq!((&slices[0].meta.labels, &slices[0].annotations), (&expected, &pairs(&[("why", "because")])));
    assert!(slices[0].meta.owners[0].controller == Some(true) && &*slices[0].meta.owners[0].kind == "Endpoints");
    let subsets = [subset(&["10.0.0.1"], &[], &[80])];
    for (what, changed) in [
        ("labels", given("uid", &[], &[("why", "because")], &subsets)),
        ("annotations", given("uid", &[("app", "db")], &[], &subsets)),
        ("uid", given("another", &[("app", "db")], &[("why", "because")], &subsets)),
    ] {
        assert_eq!(counts(&decide(&changed, &slices, 1000).plan), (0, 1, 0), "{what}");
    }
}

#[test]
fn annotation_with_the_applied_configuration_is_removed_from_a_mirrored_slice() {
    let endpoints = endpoints(&[subset(&["10.0.0.1"], &[], &[80])]);
    let slices = mirrored(&endpoints);
    let annotations = pairs(&[("kubectl.kubernetes.io/last-applied-configuration", "{}"), ("why", "because")]);
    let owner = endpoints.controller_ref();
    let metadata = NewMetadata {
        labels: &slices[0].meta.labels,
        annotations: Annotations::Exactly(&annotations),
        owner: Some(&owner),
    };
    let object = versioned(&slices[0].contents.create("ns", "db-0", &metadata), "db-0");
    let context = Decode { interner: Arc::default(), sections: EndpointSlice::CONTENTS };
    let slice = EndpointSlice::decode(&context, &object).expect("well-formed");
    assert_eq!(counts(&decide(&endpoints, &[Arc::new(slice)], 1000).plan), (0, 1, 0));
}

#[test]
fn slices_are_updated_recycled_and_deleted() {
    let before = [subset(&["10.0.0.1"], &[], &[80]), subset(&["10.0.0.2"], &[], &[81])];
    for (what, now, expected) in [
        ("the same", before.to_vec(), (0, 0, 0)),
        ("the same, in another order", vec![before[1].clone(), before[0].clone()], (0, 0, 0)),
        ("one more address", vec![subset(&["10.0.0.1", "10.0.0.3"], &[], &[80]), before[1].clone()], (0, 1, 0)),
        ("no longer ready", vec![subset(&[], &["10.0.0.1"], &[80]), before[1].clone()], (0, 1, 0)),
        ("another port", vec![subset(&["10.0.0.1"], &[], &[82]), before[1].clone()], (0, 1, 0)),
        ("one less", vec![before[0].clone()], (0, 0, 1)),
        ("another family", vec![subset(&["fd00::1"], &[], &[80]), before[1].clone()], (1, 0, 1)),
        ("nothing", vec![], (0, 0, 2)),
    ] {
        let slices = mirrored(&endpoints(&before));
        let plan = decide(&endpoints(&now), &slices, 1000).plan;
        assert_eq!(counts(&plan), expected, "{what}");
        assert_eq!(text(&after(&endpoints(&now), &slices, &plan)), text(&mirrored(&endpoints(&now))), "{what}");
    }
}

/// Upstream: k8s.io/endpointslice/util, EndpointSet.
#[test]
fn address_is_mirrored_once_when_it_is_listed_in_two_notations_or_for_two_pods_of_one_name() {
    let pod = |uid: &str| {
        let target = Target::Pod { namespace: "ns".into(), name: "db-0".into(), uid: Uid::parse(uid) };
        Address { ip: Ip::parse("10.0.0.1"), hostname: "".into(), node: None, target: Some(target) }
    };
    let two_pods = Subset { ready: vec![pod("former"), pod("later")], ..subset::<&str>(&[], &[], &[80]) };
    for (subsets, expected) in [
        (vec![subset(&["10.0.0.1", "010.0.0.1", "10.0.0.2"], &[], &[80])], "IPv4 80: 10.0.0.1 10.0.0.2"),
        (vec![subset(&["10.0.0.1"], &["010.0.0.1"], &[80])], "IPv4 80: -10.0.0.1"),
        (vec![subset(&["fd00::1", "fd00:0::1"], &[], &[80])], "IPv6 80: fd00::1"),
        (vec![two_pods], "IPv4 80: 10.0.0.1"),
    ] {
        let endpoints = endpoints(&subsets);
        let slices = mirrored(&endpoints);
        assert_eq!(text(&slices), [expected]);
        assert!(decide(&endpoints, &slices, 1000).plan.is_empty(), "slices are written again for {expected}");
    }
}

#[test]
fn conditions_of_a_mirrored_slice_are_restored_when_another_client_changed_them() {
    let endpoints = endpoints(&[subset(&["10.0.0.1"], &[], &[80])]);
    let slices = mirrored(&endpoints);
    for (serving, terminating) in [(Some(false), None), (None, Some(true))] {
        let mut changed = (*slices[0]).clone();
        changed.contents.endpoints[0].conditions.serving = serving;
        changed.contents.endpoints[0].conditions.terminating = terminating;
        let decision = decide(&endpoints, &[Arc::new(changed)], 1000);
        assert_eq!(counts(&decision.plan), (0, 1, 0), "{serving:?} {terminating:?}");
        assert_eq!(decision.changes, EndpointChanges { updated: 1, ..EndpointChanges::default() });
    }
}

/// Upstream: pkg/controller/endpointslicemirroring, reconcileByPortMapping.
#[test]
fn added_changed_and_removed_endpoints_are_counted_for_each_set_of_ports() {
    let before = [subset(&["10.0.0.1", "fd00::1"], &[], &[80])];
    for (what, now, (added, updated, removed)) in [
        ("the same", before.to_vec(), (0, 0, 0)),
        ("one more and one less", vec![subset(&["10.0.0.2", "fd00::1"], &[], &[80])], (1, 0, 1)),
        ("no longer ready", vec![subset(&["fd00::1"], &["10.0.0.1"], &[80])], (0, 1, 0)),
        ("another port", vec![subset(&["10.0.0.1", "fd00::1"], &[], &[81])], (2, 0, 0)),
        ("one family less", vec![subset(&["10.0.0.1"], &[], &[80])], (0, 0, 1)),
        ("nothing", vec![], (0, 0, 0)),
    ] {
        let slices = mirrored(&endpoints(&before));
        let decision = decide(&endpoints(&now), &slices, 1000);
        assert_eq!(decision.changes, EndpointChanges { added, updated, removed }, "{what}");
    }
}

#[test]
fn second_slice_with_the_same_ports_is_deleted() {
    let endpoints = endpoints(&[subset(&["10.0.0.1"], &[], &[80])]);
    let one = mirrored(&endpoints);
    let create = Plan { create: vec![one[0].contents.clone()], ..Plan::default() };
    let two = after(&endpoints, &one, &create);
    let plan = decide(&endpoints, &two, 1000).plan;
    assert_eq!((counts(&plan), &*plan.delete[0].meta.name), ((0, 0, 1), "db-1"));
}

#[test]
fn sizes_are_those_of_the_slices_in_the_cache() {
    let two_ports = endpoints(&[
        subset(&["10.0.0.1", "10.0.0.2", "10.0.0.3"], &[], &[80]),
        subset(&["10.0.0.1", "fd00::1"], &[], &[81]),
    ]);
    let slices = mirrored(&two_ports);
    assert_eq!(slices.len(), 3);
    let decode = Decode { interner: Arc::default(), sections: EndpointSlice::CONTENTS };
    let store: Arc<Store<EndpointSlice>> = Arc::new(filled_store(decode, Vec::new(), []));
    let counts = Counts::new(store.clone(), 2);
    assert_eq!(counts.sizes(), [0, 0, 0]);
    slices.iter().for_each(|slice| deliver(&store, (**slice).clone()));
    assert_eq!(counts.sizes(), [5, 3, 4], "three endpoints need two slices");
    let single = slices.iter().find(|slice| slice.contents.endpoints.len() == 1).expect("a slice with one endpoint");
    let repeated = Plan { create: vec![single.contents.clone(); 2], ..Plan::default() };
    let all = after(&two_ports, &slices, &repeated);
    all.iter().for_each(|slice| deliver(&store, (**slice).clone()));
    assert_eq!(counts.sizes(), [7, 5, 5], "three slices with one endpoint each need two");
    all.iter().skip(3).for_each(|slice| deliver_deletion(&store, &slice.meta.key()));
    assert_eq!(counts.sizes(), [5, 3, 4]);
}

#[test]
fn invalid_and_surplus_addresses_are_counted() {
    for (subsets, max, invalid, skipped, expected) in [
        (vec![subset(&["10.0.0.1", "db.example.com"], &["nowhere"], &[80])], 10, 2, 2, vec!["IPv4 80: 10.0.0.1"]),
        (
            vec![subset(&["10.0.0.1", "fd00::1", "10.0.0.2"], &["10.0.0.3"], &[80])],
            2,
            0,
            2,
            vec!["IPv4 80: 10.0.0.1 10.0.0.2"],
        ),
        (vec![subset(&["10.0.0.1"], &["10.0.0.3"], &[80])], 1, 0, 1, vec!["IPv4 80: 10.0.0.1"]),
        (
            vec![subset(&["10.0.0.1"], &[], &[80]), subset(&["10.0.0.2"], &[], &[81])],
            1,
            0,
            0,
            vec!["IPv4 80: 10.0.0.1", "IPv4 81: 10.0.0.2"],
        ),
        (vec![subset(&["nowhere"], &[], &[80])], 10, 1, 1, vec![]),
    ] {
        let endpoints = endpoints(&subsets);
        let decision = decide(&endpoints, &[], max);
        assert_eq!((decision.invalid, decision.skipped), (invalid, skipped), "{expected:?}");
        assert_eq!(text(&after(&endpoints, &[], &decision.plan)), expected);
    }
}

#[test]
fn overlapping_subsets_beyond_the_limit_are_not_mirrored() {
    let ips: Vec<String> = (0..2000).map(|number| format!("10.1.{}.{}", number / 256, number % 256)).collect();
    let ports: Vec<i32> = (1..2000).collect();
    let own: Vec<String> = (0..2000).map(|number| format!("10.9.{}.{}", number / 256, number % 256)).collect();
    let small = ports.iter().zip(&own).map(|(port, ip)| subset(&[ip], &[], &[*port]));
    let overlapping: Vec<Subset> = small.chain([subset(&ips, &[], &ports)]).collect();
    let decision = decide(&endpoints(&overlapping), &[], 1000);
    assert!(decision.is_too_large && decision.plan.is_empty());
}

/// A comparison of each subset with each slice would take minutes.
#[test]
fn many_small_subsets_are_compared_with_their_slices_only() {
    let small = |first: i32| -> Vec<Subset> {
        (0..20_000)
            .map(|number| subset(&[format!("10.1.{}.{}", number / 256, number % 256)], &[], &[first + number]))
            .collect()
    };
    let before = endpoints(&small(1));
    let slices = mirrored(&before);
    assert_eq!(slices.len(), 20_000);
    assert!(decide(&before, &slices, 1000).plan.is_empty());
    assert_eq!(counts(&decide(&endpoints(&small(30_000)), &slices, 1000).plan), (0, 20_000, 0));
}

#[test]
fn locks_and_labelled_endpoints_are_not_mirrored() {
    for (labels, annotations, expected) in [
        (&[][..], &[][..], true),
        (&[(SKIP, "true")], &[], false),
        (&[(SKIP, "false")], &[], true),
        (&[(SKIP, "")], &[], true),
        (&[], &[(LEADER, "{}")], false),
    ] {
        assert_eq!(may_be_mirrored(&given("uid", labels, annotations, &[])), expected, "{labels:?} {annotations:?}");
    }
}

proptest! {
    /// One decision turns the slices of any Endpoints into those of any others, as if there had been no earlier slices.
    #[test]
    fn one_decision_reaches_the_desired_state(
        before in prop::collection::vec((prop::collection::vec((0u8..6, any::<bool>()), 0..5), 80i32..83), 0..4),
        now in prop::collection::vec((prop::collection::vec((0u8..6, any::<bool>()), 0..5), 80i32..83), 0..4),
    ) {
        let build = |given: &[(Vec<(u8, bool)>, i32)]| -> Vec<Subset> {
            let one = |(list, port): &(Vec<(u8, bool)>, i32)| {
                let ip = |n: &u8| if n.is_multiple_of(2) { format!("10.0.0.{n}") } else { format!("fd00::{n}") };
                let of = |wanted: bool| list.iter().filter(|(_, r)| *r == wanted).map(|(n, _)| ip(n)).collect::<Vec<_>>();
                subset(&of(true), &of(false), &[*port])
            };
            given.iter().map(one).collect()
        };
        let (before, now) = (endpoints(&build(&before)), endpoints(&build(&now)));
        let slices = mirrored(&before);
        let plan = decide(&now, &slices, 1000).plan;
        prop_assert!(plan.writes() <= slices.len() + 8);
        let ended = after(&now, &slices, &plan);
        prop_assert!(decide(&now, &ended, 1000).plan.is_empty());
        prop_assert_eq!(text(&ended), text(&mirrored(&now)));
    }
}
