//! Endpoints as targets of load balancers.

use std::sync::Arc;

use kinds::endpoint::{Port, Target};
use kinds::endpoint_slice::{Conditions, Endpoint};
use kinds::ip::Ip;
use kinds::meta::Time;
use kinds::wire::Put;
use kinds::{EndpointSlice, Kind, Uid};
use providers::EndpointTarget;
use runtime::store::Change;

use super::simulation;
use super::tables::node;
use crate::controllers::service::keys::of_slice;
use crate::controllers::service::targets;

fn endpoint(address: &str, ready: Option<bool>) -> Endpoint {
    Endpoint {
        addresses: [Ip::parse(address)].into(),
        conditions: Conditions { ready, serving: None, terminating: None },
        hostname: None,
        target: Some(Target::Pod { namespace: "shop".into(), name: "p".into(), uid: Uid::parse("u") }),
        node: Some("node-1".into()),
        zone: None,
        hints: None,
    }
}

fn port(name: &str, number: Option<i32>) -> Port {
    Port { name: name.into(), protocol: "TCP".into(), number, app_protocol: None }
}

fn slice(ports: Vec<Port>, endpoints: Vec<Endpoint>) -> Arc<EndpointSlice> {
    let mut object = Vec::new();
    object.put_message(1, |meta| {
        meta.put_str(kinds::schema::object_meta::NAME, "web-1");
        meta.put_str(kinds::schema::object_meta::RESOURCE_VERSION, "1");
    });
    let context = kinds::Decode { interner: Arc::default(), sections: EndpointSlice::TARGETS };
    let mut slice = EndpointSlice::decode(&context, &object).expect("well-formed");
    slice.contents.ports = ports.into();
    slice.contents.endpoints = endpoints;
    Arc::new(slice)
}

#[test]
fn change_of_a_slice_concerns_its_old_and_its_new_service() {
    let of = |service: Option<&str>| {
        let mut slice = (*slice(Vec::new(), Vec::new())).clone();
        let label = service.map(|service| ("kubernetes.io/service-name".into(), service.into()));
        slice.meta.labels = label.into_iter().collect();
        Arc::new(slice)
    };
    let (a, b, none) = (of(Some("a")), of(Some("b")), of(None));
    for (old, new, expected) in [
        (None, Some(&a), &["a"][..]),
        (Some(&a), Some(&a), &["a"]),
        (Some(&a), Some(&b), &["a", "b"]),
        (Some(&a), Some(&none), &["a"]),
        (Some(&none), Some(&b), &["b"]),
        (Some(&b), None, &["b"]),
        (Some(&none), Some(&none), &[]),
    ] {
        let found = of_slice(&Change { old, new });
        let names: Vec<&str> = found.iter().map(|key| &*key.name).collect();
        assert_eq!(names, expected);
    }
}

#[test]
fn endpoints_come_from_all_slices_in_order() {
    let slices = [
        slice(
            vec![port("web", Some(8080)), port("any", None)],
            vec![endpoint("10.0.0.2", Some(false)), endpoint("10.0.0.1", None)],
        ),
        slice(
            vec![port("admin", Some(9090))],
            vec![endpoint("10.0.0.1", Some(true)), endpoint("web.example.com", None)],
        ),
        slice(vec![port("web", Some(8080))], vec![endpoint("10.0.0.1", None)]),
    ];
    let found: Vec<_> = targets::endpoints(&slices)
        .into_iter()
        .map(|target| {
            format!("{} {}:{} {} {}", target.port_name, target.address, target.port, target.ready, target.serving)
        })
        .collect();
    assert_eq!(
        found,
        ["admin 10.0.0.1:9090 true true", "web 10.0.0.1:8080 true true", "web 10.0.0.2:8080 false false"]
    );
}

#[test]
fn new_pod_counts_when_a_terminated_one_had_its_address() {
    const OLD: &str = "00000000-0000-0000-0000-000000000001";
    const NEW: &str = "00000000-0000-0000-0000-000000000002";
    let old = Conditions { ready: Some(false), serving: Some(false), terminating: Some(true) };
    let ready = Conditions { ready: Some(true), serving: Some(true), terminating: None };
    let starting = Conditions { ready: Some(false), serving: Some(false), terminating: Some(false) };
    let of_pod = |uid: &str, conditions| {
        let target = Target::Pod { namespace: "shop".into(), name: "p".into(), uid: Uid::parse(uid) };
        let endpoint = Endpoint { conditions, target: Some(target), ..endpoint("10.0.0.1", None) };
        slice(vec![port("web", Some(8080))], vec![endpoint])
    };
    for (what, slices) in [
        ("listed first", [of_pod(NEW, ready), of_pod(OLD, old)]),
        ("listed last", [of_pod(OLD, old), of_pod(NEW, ready)]),
        ("not ready yet", [of_pod(OLD, old), of_pod(NEW, starting)]),
    ] {
        let found = targets::endpoints(&slices);
        let uids: Vec<_> = found.iter().filter_map(|one| Some(one.pod.as_ref()?.uid.as_str())).collect();
        assert_eq!(uids, [NEW], "{what}");
    }
}

#[test]
fn endpoint_has_the_provider_id_of_a_node_that_is_not_a_target() {
    let leaving = node("leaving", |node| node.meta.deletion = Time(1));
    assert!(targets::nodes(std::slice::from_ref(&leaving)).is_empty(), "the node is a target");
    let endpoint = |node: Option<&str>| EndpointTarget { node: node.map(str::to_owned), ..simulation::endpoint(1) };
    let mut endpoints = [endpoint(Some("leaving")), endpoint(Some("unknown")), endpoint(None)];
    targets::add_provider_ids(&mut endpoints, |name| Some(leaving.clone()).filter(|node| *node.meta.name == *name));
    let found = endpoints.map(|endpoint| endpoint.provider_id);
    assert_eq!(found, [Some("mock://mock-1/leaving".to_owned()), None, None]);
}
