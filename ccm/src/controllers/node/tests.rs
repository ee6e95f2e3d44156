//! Labels and addresses of nodes, as tables.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::meta::Time;
use kinds::node_cloud::{NodeAddress, NodeCloud};
use kinds::taint::Taint;
use kinds::wire::Put;
use kinds::{Decode, Interner, Kind, Node, Sections, Str};
use proptest::prelude::*;
use providers::{Address, AddressKind, Instance};

use super::decide::*;
use super::keys::INITIALIZED;

/// Returns a node named `a` with only the fields that clouds use.
pub(crate) fn node(kubelet: &[(&str, &str)], provided: Option<&str>) -> Node {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(1, "a");
        meta.put_str(5, "uid");
        meta.put_str(6, "7");
    });
    let decode = Decode { interner: Arc::new(Interner::default()), sections: Sections::default() };
    let mut node = Node::decode(&decode, &object).expect("well-formed");
    let addresses =
        kubelet.iter().map(|(kind, address)| NodeAddress { kind: (*kind).into(), address: (*address).into() });
    node.cloud = Some(Box::new(NodeCloud {
        provider_id: "".into(),
        system_uuid: "".into(),
        addresses: addresses.collect(),
        provided_ip: provided.map(Str::from),
        network_reason: "".into(),
    }));
    node
}

fn instance_with(addresses: &[(&str, &str)]) -> Instance {
    let addresses = addresses.iter().map(|(kind, address)| Address {
        kind: AddressKind::parse(kind).expect("a kind"),
        address: (*address).to_owned(),
    });
    Instance { addresses: addresses.collect(), ..Instance::default() }
}

fn pairs(labels: &[(&str, &str)]) -> Vec<(Str, Str)> {
    let mut pairs: Vec<(Str, Str)> = labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
    pairs.sort();
    pairs
}

fn edits(labels: &[(&str, &str)]) -> BTreeMap<String, String> {
    labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn stable_labels_follow_their_beta_labels() {
    let (beta, stable) = LABEL_PAIRS[0];
    for (labels, want) in [
        (&[][..], &[][..]),
        (&[(stable, "a")], &[]),
        (&[(beta, "a")], &[(stable, "a")]),
        (&[(beta, "a"), (stable, "a")], &[]),
        (&[(beta, "a"), (stable, "b")], &[(stable, "a")]),
        (&[("beta.kubernetes.io/instance-type", "t")], &[("node.kubernetes.io/instance-type", "t")]),
    ] {
        assert_eq!(reconciled_labels(&pairs(labels)), edits(want), "{labels:?}");
    }
}

#[test]
fn new_node_gets_the_labels_of_its_instance() {
    let [(zone_beta, zone), (region_beta, region), (type_beta, kind)] = LABEL_PAIRS;
    let given = |zone: &str, region: &str, kind: &str, labels: &[(&str, &str)]| Instance {
        zone: zone.into(),
        region: region.into(),
        instance_type: kind.into(),
        labels: edits(labels),
        ..Instance::default()
    };
    for (has, instance, want, out) in [
        (&[][..], given("", "", "", &[]), &[][..], &[][..]),
        (
            &[],
            given("z", "r", "t", &[]),
            &[(zone_beta, "z"), (zone, "z"), (region_beta, "r"), (region, "r"), (type_beta, "t"), (kind, "t")],
            &[],
        ),
        (&[(zone, "old"), (zone_beta, "z")], given("z", "", "", &[]), &[(zone, "z")], &[]),
        (&[(zone, "z"), (zone_beta, "z")], given("z", "", "", &[]), &[], &[]),
        (
            &[],
            given("", "", "", &[("acme.com/rack", "7"), ("plain", "1")]),
            &[("acme.com/rack", "7"), ("plain", "1")],
            &[],
        ),
        (&[("acme.com/rack", "6")], given("", "", "", &[("acme.com/rack", "7")]), &[], &["acme.com/rack"]),
        (&[("acme.com/rack", "7")], given("", "", "", &[("acme.com/rack", "7")]), &[], &[]),
        (
            &[],
            given(
                "",
                "",
                "",
                &[("kubernetes.io/x", "1"), ("a.k8s.io/y", "1"), ("xk8s.io/z", "1"), ("topology.k8s.aws/u", "1")],
            ),
            &[("xk8s.io/z", "1"), ("topology.k8s.aws/u", "1")],
            &["a.k8s.io/y", "kubernetes.io/x"],
        ),
        // Texts that the API server refuses: the node must be initialized nevertheless.
        (
            &[],
            given("", "", "", &[("acme.com/team", "two words"), ("acme.com/a b", "1"), ("plain", "1")]),
            &[("plain", "1")],
            &["acme.com/a b", "acme.com/team"],
        ),
    ] {
        let (labels, left_out) = initial_labels(&pairs(has), &instance);
        assert_eq!((labels, left_out.as_slice()), (edits(want), out), "{has:?} {instance:?}");
    }
}

type Addresses<'a> = &'a [(&'a str, &'a str)];

/// Checks the addresses of a node, from those that the kubelet has set, its node IPs, and those of the cloud.
fn check_addresses(
    kubelet: Addresses<'_>,
    node_ips: Option<&str>,
    cloud: Addresses<'_>,
    expected: Option<Addresses<'_>>,
) {
    let got = addresses(&node(kubelet, node_ips), &instance_with(cloud)).expect("good addresses");
    let expected = expected.map(|expected| instance_with(expected).addresses);
    assert_eq!(got, expected, "{kubelet:?} {node_ips:?} {cloud:?}");
}

#[test]
fn cloud_addresses_are_ordered_by_the_node_ip_of_the_kubelet() {
    let dual = &[
        ("InternalIP", "10.0.0.1"),
        ("InternalIP", "10.0.0.2"),
        ("InternalIP", "fd00::1"),
        ("ExternalIP", "1.1.1.1"),
        ("Hostname", "h"),
    ][..];
    for (kubelet, provided, cloud, want) in [
        (&[("InternalIP", "9.9.9.9")][..], None, &[][..], None),
        (&[], None, dual, Some(dual.to_vec())),
        (
            &[("Hostname", "mine"), ("InternalIP", "9.9.9.9")],
            None,
            &[("InternalIP", "10.0.0.1")],
            Some(vec![("InternalIP", "10.0.0.1"), ("Hostname", "mine")]),
        ),
        (
            &[("Hostname", "mine")],
            None,
            &[("Hostname", "h"), ("InternalIP", "10.0.0.1")],
            Some(vec![("Hostname", "h"), ("InternalIP", "10.0.0.1")]),
        ),
        (
            &[],
            Some("10.0.0.2"),
            dual,
            Some(vec![("InternalIP", "10.0.0.2"), ("ExternalIP", "1.1.1.1"), ("Hostname", "h")]),
        ),
        (
            &[],
            Some("fd00:0::1,10.0.0.1"),
            dual,
            Some(vec![
                ("InternalIP", "fd00::1"),
                ("InternalIP", "10.0.0.1"),
                ("ExternalIP", "1.1.1.1"),
                ("Hostname", "h"),
            ]),
        ),
    ] {
        check_addresses(kubelet, provided, cloud, want.as_deref());
    }
}

#[test]
fn node_ips_of_the_kubelet_select_addresses_by_kind_and_family() {
    let rows: &[(&str, Addresses<'_>, Addresses<'_>)] = &[
        (
            "10.0.0.1",
            &[("InternalIP", "10.0.0.1"), ("ExternalIP", "10.0.0.1"), ("ExternalIP", "1.1.1.1")],
            &[("InternalIP", "10.0.0.1"), ("ExternalIP", "10.0.0.1")],
        ),
        (
            "1.1.1.1",
            &[("InternalIP", "10.0.0.1"), ("ExternalIP", "1.1.1.1"), ("InternalDNS", "i"), ("ExternalDNS", "e")],
            &[("ExternalIP", "1.1.1.1"), ("InternalIP", "10.0.0.1"), ("InternalDNS", "i"), ("ExternalDNS", "e")],
        ),
        (
            "fd00::1",
            &[("InternalIP", "10.0.0.1"), ("InternalIP", "fd00:0:0:0:0:0:0:1")],
            &[("InternalIP", "fd00:0:0:0:0:0:0:1")],
        ),
        (
            "fd00::1,10.0.0.1",
            &[
                ("InternalIP", "10.0.0.1"),
                ("ExternalIP", "1.1.1.1"),
                ("InternalIP", "fd00::1"),
                ("ExternalIP", "fd01::1"),
            ],
            &[
                ("InternalIP", "fd00::1"),
                ("InternalIP", "10.0.0.1"),
                ("ExternalIP", "1.1.1.1"),
                ("ExternalIP", "fd01::1"),
            ],
        ),
        (
            "1.1.1.1,fd00::1",
            &[
                ("InternalIP", "10.0.0.1"),
                ("ExternalIP", "1.1.1.1"),
                ("InternalIP", "fd00::1"),
                ("ExternalIP", "fd01::1"),
            ],
            &[("ExternalIP", "1.1.1.1"), ("InternalIP", "fd00::1")],
        ),
    ];
    for (provided, cloud, want) in rows {
        check_addresses(&[], Some(provided), cloud, Some(want));
    }
}

#[test]
fn invalid_provided_addresses_are_refused() {
    for (provided, cloud, why) in [
        ("10.0.0.9", &[("InternalIP", "10.0.0.1")][..], "the cloud has no address 10.0.0.9 for this instance"),
        ("10.0.0.1", &[], "the cloud has no address 10.0.0.1 for this instance"),
        ("10.0.0.1,fd00::1", &[("InternalIP", "10.0.0.1")], "the cloud has no address fd00::1 for this instance"),
        ("ten", &[], "\"ten\" is not an IP address"),
        ("10.0.0.1, fd00::1", &[("InternalIP", "10.0.0.1")], "\" fd00::1\" is not an IP address"),
        ("10.0.0.1,10.0.0.2", &[], "give one IP address"),
        ("10.0.0.1,::", &[], "give one IP address"),
        ("10.0.0.1,fd00::1,fd00::2", &[], "give one IP address"),
    ] {
        let refused = addresses(&node(&[], Some(provided)), &instance_with(cloud)).expect_err(provided);
        assert!(refused.0.starts_with(why), "{provided}: {}", refused.0);
    }
}

proptest! {
    /// A node may have several addresses of one kind.
    #[test]
    fn written_addresses_are_not_written_again(
        has in prop::collection::vec((0..3_usize, 0..4_usize), 0..5),
        cloud in prop::collection::vec((0..3_usize, 0..4_usize), 0..5),
    ) {
        const KINDS: [&str; 3] = ["InternalIP", "ExternalIP", "Hostname"];
        const TEXTS: [&str; 4] = ["10.0.0.1", "10.0.0.2", "fd00::1", "h"];
        let chosen = |list: &[(usize, usize)]| -> Vec<(&str, &str)> {
            list.iter().map(|(kind, text)| (KINDS[*kind], TEXTS[*text])).collect()
        };
        let (before, instance) = (node(&chosen(&has), None), instance_with(&chosen(&cloud)));
        if let Some(wanted) = addresses(&before, &instance).expect("nothing is provided") {
            let written: Vec<(&str, &str)> =
                wanted.iter().map(|wanted| (wanted.kind.as_str(), wanted.address.as_str())).collect();
            let after = node(&written, None);
            let again = addresses(&after, &instance).expect("nothing is provided").expect("still wanted");
            prop_assert!(has_addresses(&after, &again), "{:?} then {:?}", wanted, again);
        }
    }
}

#[test]
fn missing_instance_is_reported_once_it_should_be_listed() {
    let mut node = node(&[], None);
    assert_eq!(missing_instance(&node, LISTED_AFTER_SECONDS - 1), None, "it may have been launched a moment ago");
    let by_name = missing_instance(&node, LISTED_AFTER_SECONDS).expect("a message");
    assert!(by_name.contains("\"a\"") && by_name.contains("--provider-id"), "{by_name}");
    node.cloud.as_mut().expect("cloud").provider_id = "aws:///z/i-1".into();
    let by_id = missing_instance(&node, LISTED_AFTER_SECONDS).expect("a message");
    assert!(by_id.contains("aws:///z/i-1"), "{by_id}");
}

#[test]
fn node_with_the_uninitialized_taint_is_left_out_of_updates() {
    let count = |taints: &[(&str, &str)]| {
        let mut node = node(&[], None);
        let taint = |(key, effect): &(&str, &str)| Taint {
            key: (*key).into(),
            value: "any".into(),
            effect: (*effect).into(),
            added: Time::default(),
        };
        node.taints = taints.iter().map(taint).collect();
        let mut found = 0;
        (INITIALIZED.keys)(&node, &mut |_| found += 1);
        found
    };
    let key = "node.cloudprovider.kubernetes.io/uninitialized";
    for (taints, expected) in [
        (&[][..], 1),
        (&[("example.com/other", "NoSchedule")], 1),
        (&[(key, "NoSchedule")], 0),
        (&[(key, "NoExecute"), ("example.com/other", "NoSchedule")], 0),
    ] {
        assert_eq!(count(taints), expected, "{taints:?}");
    }
}

#[test]
fn node_needs_a_provider_id_of_its_own_or_of_its_instance() {
    for (own, cloud, lacks) in [("", "", true), ("", "x://1", false), ("x://1", "", false), ("x://1", "x://2", false)] {
        let mut node = node(&[], None);
        node.cloud.as_mut().expect("cloud").provider_id = own.into();
        let instance = Instance { provider_id: cloud.into(), ..Instance::default() };
        assert_eq!(lacks_provider_id(&node, &instance), lacks, "{own:?} {cloud:?}");
    }
}
