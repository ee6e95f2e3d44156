//! Endpoints and their slices, in upstream's cases and others.

use std::sync::Arc;

use kinds::endpoint::Port;
use kinds::endpoint_slice::Contents;
use kinds::int_or_string::IntOrString;
use kinds::ip::Family;
use kinds::pod::{NamedPort, Phase};
use kinds::service::ServicePort;
use kinds::{Meta, Pod, Service, Time, Uid};
use runtime::testing::CpuTime;

use super::builders::{Fixture, labels, pod, port, service, slice_of, with_port};
use crate::network::service_endpoints::pods::ports;
use crate::network::service_endpoints::slice_writes::Plan;

fn terminating(pod: Pod) -> Pod {
    Pod { meta: Meta { deletion: Time(5), ..pod.meta }, ..pod }
}

#[test]
fn conditions_report_readiness_and_termination() {
    let unready = |pod: Pod| Pod { ready: false, ..pod };
    for (pod, publish, expected) in [
        (pod(1), false, "10.0.0.1 ++-"),
        (pod(1), true, "10.0.0.1 ++-"),
        (Pod { phase: Phase::Pending, ..pod(1) }, false, "10.0.0.1 ++-"),
        (Pod { phase: Phase::Unknown, ..pod(1) }, false, "10.0.0.1 ++-"),
        (unready(pod(1)), false, "10.0.0.1 ---"),
        (terminating(pod(1)), false, "10.0.0.1 -++"),
        (terminating(unready(pod(1))), false, "10.0.0.1 --+"),
        (unready(pod(1)), true, "10.0.0.1 +--"),
        (terminating(unready(pod(1))), true, "10.0.0.1 +-+"),
    ] {
        let mut fixture = Fixture::new(Service { publish_not_ready_addresses: publish, ..service() }, []);
        fixture.pods.insert(1, pod);
        fixture.settle();
        assert_eq!(fixture.shown(), [[expected]]);
    }
}

#[test]
fn ended_pods_and_pods_without_address_are_no_endpoints_and_one_empty_slice_stays() {
    let mut without_address = pod(1);
    without_address.network.as_mut().expect("a network").ips = Box::default();
    for pod in [Pod { phase: Phase::Failed, ..pod(1) }, Pod { phase: Phase::Succeeded, ..pod(1) }, without_address] {
        let mut fixture = Fixture::new(service(), []);
        fixture.pods.insert(1, pod);
        assert_eq!(fixture.settle(), 1);
        assert_eq!(fixture.sizes(), [0]);
        assert!(fixture.slices[0].contents.ports.is_empty());
        assert_eq!(fixture.settle(), 0, "the empty slice is not written again");
    }
}

#[test]
fn empty_slice_is_filled_by_an_update() {
    let mut fixture = Fixture::new(service(), []);
    fixture.settle();
    fixture.pods.insert(1, pod(1));
    let decision = fixture.decide();
    assert_eq!((decision.now.create.len(), decision.now.update.len(), decision.now.delete.len()), (0, 1, 0));
    fixture.apply(&decision.now);
    fixture.pods.clear();
    assert_eq!(fixture.settle(), 1, "emptied by one update");
    assert_eq!(fixture.sizes(), [0]);
    fixture.service.meta.labels = labels(&[("tier", "front")]);
    let decision = fixture.decide();
    assert_eq!((decision.now.update.len(), decision.now.writes()), (1, 1), "its labels are outdated");
}

#[test]
fn each_family_has_its_own_slices() {
    for (families, cluster_ip, expected) in [
        (&[Family::V4][..], "10.1.0.1", &["10.0.0.1 ++-"][..]),
        (&[Family::V6], "fd01::1", &["fd00::1 ++-"]),
        (&[Family::V6, Family::V4], "fd01::1", &["10.0.0.1 ++-", "fd00::1 ++-"]),
        (&[], "10.1.0.1", &["10.0.0.1 ++-"]),
        (&[], "fd01::1", &["fd00::1 ++-"]),
        (&[], "None", &["10.0.0.1 ++-", "fd00::1 ++-"]),
        (&[], "", &["10.0.0.1 ++-", "fd00::1 ++-"]),
    ] {
        let mut fixture = Fixture::new(
            Service {
                ip_families: families.iter().map(|family: &Family| family.name().into()).collect(),
                cluster_ips: vec![cluster_ip.into()],
                ..service()
            },
            [1],
        );
        fixture.settle();
        assert_eq!(fixture.shown().concat(), expected, "{families:?} {cluster_ip}");
    }
}

#[test]
fn slices_of_a_removed_family_are_deleted() {
    let mut fixture = Fixture::new(Service { ip_families: vec!["IPv4".into(), "IPv6".into()], ..service() }, [1]);
    assert_eq!(fixture.settle(), 2);
    fixture.service.ip_families = vec!["IPv6".into()];
    // Its type is neither of the families, for example a deprecated one.
    let other = Contents { family: None, ..fixture.slices[0].contents.clone() };
    let other = fixture.slice("web-other", &other);
    fixture.slices.push(other);
    assert_eq!(fixture.settle(), 2);
    assert_eq!(fixture.shown(), [["fd00::1 ++-"]]);
}

#[test]
fn pods_are_grouped_by_named_ports_and_missing_ports_are_left_out() {
    let mut fixture = Fixture::new(service(), []);
    let metrics = ServicePort { app_protocol: Some("https".into()), ..port("metrics", IntOrString::Int(9090)) };
    fixture.service.ports = vec![port("http", IntOrString::Text("http".into())), metrics];
    for (number, given) in [(1, 8080), (2, 8081), (3, 8080)] {
        fixture.pods.insert(number, with_port(pod(number), "http", given));
    }
    fixture.pods.insert(4, pod(4));
    fixture.settle();
    let mut shown: Vec<_> = fixture
        .slices
        .iter()
        .map(|slice| {
            let ports: Vec<_> = slice.contents.ports.iter().map(|port| port.number.unwrap_or(0)).collect();
            (ports, slice.contents.endpoints.len())
        })
        .collect();
    shown.sort();
    assert_eq!(shown, [(vec![8080, 9090], 2), (vec![8081, 9090], 1), (vec![9090], 1)]);
    for port in fixture.slices.iter().flat_map(|slice| &*slice.contents.ports) {
        assert_eq!(port.app_protocol.as_deref(), (&*port.name == "metrics").then_some("https"));
    }
    assert_eq!(fixture.settle(), 0);
}

#[test]
fn headless_service_without_ports_has_slices_without_ports() {
    let headless = Service { ports: Vec::new(), cluster_ips: vec!["None".into()], ..service() };
    let mut fixture = Fixture::new(headless, [1]);
    fixture.settle();
    assert!(fixture.slices[0].contents.ports.is_empty());
    assert_eq!(fixture.shown(), [["10.0.0.1 ++-"]]);
    assert_eq!(fixture.settle(), 0, "the slice is not written again");
    let headless = labels(&[
        ("app", "web"),
        ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io"),
        ("kubernetes.io/service-name", "web"),
        ("service.kubernetes.io/headless", ""),
    ]);
    assert_eq!(fixture.slices[0].meta.labels, headless);
}

#[test]
fn hostnames_are_those_of_pods_in_the_services_domain() {
    for (hostname, subdomain, expected) in
        [("a", "web", Some("a")), ("a", "db", None), ("", "web", None), ("a", "", None)]
    {
        let mut fixture = Fixture::new(service(), [1]);
        let network = fixture.pods.get_mut(&1).and_then(|pod| pod.network.as_mut()).expect("a network");
        network.host = Some(Box::new((hostname.into(), subdomain.into())));
        fixture.settle();
        assert_eq!(fixture.slices[0].contents.endpoints[0].hostname.as_deref(), expected, "{hostname}.{subdomain}");
    }
}

#[test]
fn pods_on_missing_nodes_are_left_out_unless_all_are_published() {
    for (publish, expected) in [(false, vec!["10.0.0.1 ++-"]), (true, vec!["10.0.0.1 ++-", "10.0.0.2 ++-"])] {
        let mut fixture = Fixture::new(Service { publish_not_ready_addresses: publish, ..service() }, [1, 2]);
        fixture.pods.get_mut(&2).expect("the pod exists").node = "gone".into();
        fixture.settle();
        assert_eq!(fixture.shown(), [expected]);
    }
}

/// Upstream: k8s.io/endpointslice/util, EndpointsEqualBeyondHash.
#[test]
fn slice_is_written_when_a_published_field_of_an_endpoint_changes() {
    type Change = fn(&mut Fixture, fn(&mut Pod));
    let of_pod: Change = |fixture, edit| edit(fixture.pods.get_mut(&1).expect("the pod exists"));
    let of_zone: Change = |fixture, _| drop(fixture.nodes.insert("node".into(), Some("a".into())));
    type Row<'a> = (&'a str, Change, fn(&mut Pod), usize);
    let rows: [Row<'_>; 6] = [
        ("nothing", of_pod, |_| {}, 0),
        ("version", of_pod, |pod| pod.meta.version += 1, 0),
        ("uid", of_pod, |pod| pod.meta.uid = Uid::parse("another"), 1),
        ("node", of_pod, |pod| pod.node = "other".into(), 1),
        ("readiness", of_pod, |pod| pod.ready = false, 1),
        ("zone", of_zone, |_| {}, 1),
    ];
    for (what, change, edit, writes) in rows {
        let mut fixture = Fixture::new(service(), [1, 2]);
        fixture.nodes.insert("other".into(), None);
        fixture.settle();
        change(&mut fixture, edit);
        assert_eq!((fixture.settle(), fixture.settle()), (writes, 0), "{what}");
    }
    let mut fixture = Fixture::new(service(), [1]);
    fixture.settle();
    let mut contents = fixture.slices[0].contents.clone();
    contents.endpoints[0].conditions.serving = None;
    fixture.slices[0] = fixture.slice("web-001", &contents);
    assert_eq!((fixture.settle(), fixture.shown().concat()), (1, vec!["10.0.0.1 ++-".to_owned()]));
}

#[test]
fn labels_follow_the_service_except_reserved_ones() {
    let mut fixture = Fixture::new(service(), [1, 2]);
    fixture.max_endpoints = 1;
    assert_eq!(fixture.settle(), 2);
    fixture.service.meta.labels = labels(&[("tier", "front"), ("kubernetes.io/service-name", "stolen")]);
    let decision = fixture.decide();
    assert_eq!((decision.now.update.len(), decision.now.writes()), (2, 2), "a change of labels is written immediately");
    fixture.apply(&decision.now);
    let expected = labels(&[
        ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io"),
        ("kubernetes.io/service-name", "web"),
        ("tier", "front"),
    ]);
    assert!(fixture.slices.iter().all(|slice| slice.meta.labels == expected));
}

/// Upstream: k8s.io/endpointslice, setEndpointSliceLabels.
#[test]
fn reserved_labels_follow_from_name_and_address_only() {
    const HEADLESS: &str = "service.kubernetes.io/headless";
    let reserved = [
        ("endpointslice.kubernetes.io/managed-by", "endpointslice-controller.k8s.io"),
        ("kubernetes.io/service-name", "web"),
    ];
    for (ip, is_headless) in [("10.1.0.1", false), ("None", true), ("", true)] {
        let mut fixture = Fixture::new(Service { cluster_ips: vec![ip.into()], ..service() }, [1]);
        fixture.service.meta.labels = labels(&[]);
        fixture.settle();
        let headless: &[(&str, &str)] = if is_headless { &[(HEADLESS, "")] } else { &[] };
        assert_eq!(fixture.slices[0].meta.labels, labels(&[&reserved[..], headless].concat()), "{ip:?}");
        let stolen = reserved.map(|(key, _)| (key, "stolen"));
        fixture.service.meta.labels = labels(&[&stolen[..], &[(HEADLESS, "stolen")]].concat());
        assert_eq!(fixture.settle(), 0, "{ip:?}");
        let shown = [&[("a", "1"), ("b", "2")][..], &reserved, headless].concat();
        fixture.service.meta.labels = labels(&[("a", "1"), ("b", "2"), (HEADLESS, "stolen")]);
        assert!(
            fixture.settle() > 0 && fixture.slices.iter().all(|slice| slice.meta.labels == labels(&shown)),
            "{ip:?}"
        );
    }
}

#[test]
fn slices_of_a_previous_service_are_replaced() {
    let mut fixture = Fixture::new(service(), [1]);
    fixture.settle();
    fixture.service.meta = Meta { uid: Uid::parse("another"), ..fixture.service.meta };
    let decision = fixture.decide();
    assert_eq!(
        (decision.now.create.len(), decision.now.delete.len()),
        (1, 1),
        "a slice of another Service is not recycled"
    );
    fixture.apply(&decision.now);
    assert_eq!(fixture.shown(), [["10.0.0.1 ++-"]]);
    assert_eq!(fixture.settle(), 0);
}

#[test]
fn slice_with_ports_in_another_order_is_kept() {
    let mut fixture = Fixture::new(service(), [1]);
    fixture.service.ports = vec![port("a", IntOrString::Int(1)), port("b", IntOrString::Int(2))];
    fixture.settle();
    let mut ports: Vec<Port> = fixture.slices[0].contents.ports.to_vec();
    ports.reverse();
    let contents = Contents { ports: ports.into(), ..fixture.slices[0].contents.clone() };
    fixture.slices[0] = fixture.slice("web-001", &contents);
    assert_eq!(fixture.settle(), 0);
}

#[test]
fn endpoint_whose_pod_cannot_be_decoded_stays() {
    let mut fixture = Fixture::new(service(), [1, 2, 3]);
    fixture.settle();
    fixture.pods.remove(&1);
    fixture.pods.remove(&2);
    fixture.unreadable.push("web-1".into());
    fixture.settle();
    assert_eq!(fixture.shown(), [["10.0.0.1 ++-", "10.0.0.3 ++-"]]);
    fixture.service.ports = vec![port("", IntOrString::Int(81))];
    fixture.settle();
    assert_eq!(fixture.shown().concat().len(), 3, "also when its ports no longer exist");
    fixture.unreadable.clear();
    fixture.settle();
    assert_eq!(fixture.shown(), [["10.0.0.3 ++-"]]);
}

#[test]
fn only_the_removal_of_an_idle_endpoint_is_delayed() {
    let plan = |decision: &Plan| (decision.create.len(), decision.update.len(), decision.delete.len());
    let unready = |number| Pod { ready: false, ..pod(number) };
    let mut fixture = Fixture::new(service(), [1]);
    fixture.settle();
    for (what, pod, now, later) in [
        ("an unready pod is added", Some(unready(2)), (0, 1, 0), (0, 0, 0)),
        ("it terminates without being ready", Some(terminating(unready(2))), (0, 1, 0), (0, 0, 0)),
        ("it becomes ready", Some(pod(2)), (0, 1, 0), (0, 0, 0)),
        ("it terminates and still serves", Some(terminating(pod(2))), (0, 1, 0), (0, 0, 0)),
        ("it stops serving", Some(terminating(unready(2))), (0, 1, 0), (0, 0, 0)),
        ("it is deleted", None, (0, 0, 0), (0, 1, 0)),
        ("a ready pod is added", Some(pod(2)), (0, 1, 0), (0, 0, 0)),
        ("it is deleted immediately", None, (0, 1, 0), (0, 0, 0)),
    ] {
        match pod {
            Some(pod) => drop(fixture.pods.insert(2, pod)),
            None => drop(fixture.pods.remove(&2)),
        }
        let decision = fixture.decide();
        assert_eq!((plan(&decision.now), plan(&decision.later)), (now, later), "{what}");
        fixture.settle();
    }
}

#[test]
fn first_slice_of_a_service_is_never_delayed() {
    let mut fixture = Fixture::new(service(), []);
    fixture.pods.insert(1, Pod { ready: false, ..pod(1) });
    let decision = fixture.decide();
    assert_eq!((decision.now.create.len(), decision.later.writes()), (1, 0));
}

#[test]
fn endpoint_in_two_slices_stays_in_one() {
    let mut fixture = Fixture::new(service(), [1]);
    fixture.settle();
    let twin = slice_of(
        &fixture.slices[0].meta.owners[0].clone(),
        &fixture.slices[0].meta.labels.clone(),
        "web-twin",
        &fixture.slices[0].contents.clone(),
    );
    fixture.slices.push(Arc::clone(&twin));
    let decision = fixture.decide();
    assert_eq!(decision.now.delete.iter().map(|slice| &*slice.meta.name).collect::<Vec<_>>(), ["web-twin"]);
    assert_eq!(decision.now.writes() + decision.later.writes(), 1);
}

#[test]
fn cost_of_named_ports_grows_with_the_sum_of_both_lists() {
    let mut service = service();
    let target = |at: usize| port(&format!("a{at}"), IntOrString::Text(format!("a{at}").as_str().into()));
    service.ports = (0..20_000).map(target).collect();
    let named: Vec<NamedPort> = (0..30_000)
        .map(|number| NamedPort { name: format!("b{number}").as_str().into(), protocol: "TCP".into(), number })
        .collect();
    let started = CpuTime::now();
    assert!(ports(&service, &named).is_empty());
    assert!(started.elapsed().as_secs() < 2, "the product of both takes tens of seconds");
}
