//! Tables of decisions.

use std::sync::Arc;
use std::time::Duration;

use kinds::Service;
use kinds::meta::Time;
use kinds::service::ServiceType;
use providers::{
    ClassFilter, Ingress, IpFamily, IpMode, LoadBalancerStatus, PortStatus, Protocol, SessionAffinity, TargetPort,
    TrafficPolicy,
};
use serde_json::json;

use super::simulation::{annotated, port, service};
use crate::controllers::service::decide::{self, DesiredState, FINALIZER};
use crate::controllers::service::{keys, targets};

fn with(change: impl FnOnce(&mut Service)) -> Service {
    let mut service = service("web");
    change(&mut service);
    service
}

fn add_finalizer(service: &mut Service) {
    service.meta.finalizers = Arc::new(["example.com/other".into(), FINALIZER.into()]);
}

fn class(service: &mut Service, class: &str) {
    service.balancing.as_mut().expect("a load balancer").class = Some(class.into());
}

#[test]
fn desired_state_follows_from_type_class_deletion_and_finalizer() {
    let classes = ClassFilter { unset: true, named: vec!["example.com/ours".into()] };
    let deleting = |service: &mut Service| service.meta.deletion = Time(1);
    let plain = |service: &mut Service| service.kind = ServiceType::ClusterIp;
    type Change<'a> = &'a dyn Fn(&mut Service);
    let cases: &[(&str, &[Change<'_>], bool, DesiredState)] = &[
        ("a load balancer", &[], false, DesiredState::LoadBalancer),
        ("a load balancer that exists", &[&add_finalizer], true, DesiredState::LoadBalancer),
        ("no load balancer", &[&plain], false, DesiredState::Nothing),
        ("load balancer no longer requested", &[&plain, &add_finalizer], false, DesiredState::Cleanup),
        ("being deleted", &[&deleting, &add_finalizer], false, DesiredState::Cleanup),
        ("being deleted without the finalizer", &[&deleting], false, DesiredState::Nothing),
        (
            "being deleted, load balancer no longer requested",
            &[&deleting, &add_finalizer, &plain],
            false,
            DesiredState::Cleanup,
        ),
        (
            "being deleted, with the finalizer of another class's controller",
            &[&deleting, &add_finalizer, &|s| class(s, "example.com/theirs")],
            false,
            DesiredState::Nothing,
        ),
        (
            "being deleted, another class after the supported one",
            &[&deleting, &add_finalizer, &|s| class(s, "example.com/theirs")],
            true,
            DesiredState::Cleanup,
        ),
        ("own class", &[&|s| class(s, "example.com/ours")], false, DesiredState::LoadBalancer),
        ("another class", &[&|s| class(s, "example.com/theirs")], false, DesiredState::Nothing),
        ("an empty class is another class", &[&|s| class(s, "")], false, DesiredState::Nothing),
        (
            "another class, with the finalizer of its controller",
            &[&|s| class(s, "example.com/theirs"), &add_finalizer],
            false,
            DesiredState::Nothing,
        ),
        (
            "another class after the supported one",
            &[&|s| class(s, "example.com/theirs"), &add_finalizer],
            true,
            DesiredState::Cleanup,
        ),
    ];
    for (case, changes, ours, expected) in cases {
        let service = with(|service| changes.iter().for_each(|change| change(service)));
        assert_eq!(decide::desired_state(&service, &classes, *ours), *expected, "{case}");
    }
}

#[test]
fn plain_service_requests_the_defaults() {
    let spec = decide::spec(&service("web"), "cluster", &[]).expect("valid");
    assert_eq!((spec.id.cluster.as_str(), spec.id.to_string().as_str()), ("cluster", "shop/web"));
    assert_eq!((spec.class, spec.requested_address, spec.health_check_node_port), (None, None, None));
    assert_eq!((spec.ip_families, spec.session_affinity), (vec![IpFamily::IPv4], SessionAffinity::None));
    let port = &spec.ports[0];
    assert_eq!((port.port, port.node_port, port.protocol), (80, Some(30080), Protocol::Tcp));
    assert_eq!(port.target_port, TargetPort::Number(8080));
}

#[test]
fn all_fields_of_the_request_are_in_the_spec() {
    let service = with(|service| {
        annotated(service, &[("example.com/a", "b")]);
        service.ip_families = vec!["IPv6".into(), "IPv4".into()];
        service.ports[0].node_port = 0;
        service.ports[0].target_port = kinds::int_or_string::IntOrString::Text("web".into());
        service.ports.push(kinds::service::ServicePort { protocol: "UDP".into(), ..port(53) });
        let settings = service.balancing.as_mut().expect("a load balancer");
        settings.client_ip_affinity = true;
        settings.affinity_seconds = Some(60);
        settings.external_local = true;
        settings.health_check_node_port = 31000;
        settings.requested_ip = "192.0.2.1".into();
        settings.allocate_node_ports = false;
    });
    let spec = decide::spec(&service, "cluster", &[]).expect("valid");
    assert_eq!(spec.annotations["example.com/a"], "b");
    assert_eq!(spec.ip_families, [IpFamily::IPv6, IpFamily::IPv4]);
    assert_eq!((spec.ports[0].node_port, &spec.ports[0].target_port), (None, &TargetPort::Name("web".into())));
    assert_eq!(spec.ports[1].protocol, Protocol::Udp);
    assert_eq!(spec.session_affinity, SessionAffinity::ClientIp { timeout: Duration::from_secs(60) });
    assert_eq!((spec.external_traffic_policy, spec.health_check_node_port), (TrafficPolicy::Local, Some(31000)));
    assert_eq!((spec.requested_address.as_deref(), spec.allocate_node_ports), (Some("192.0.2.1"), false));
}

#[test]
fn annotations_that_the_provider_does_not_read_are_left_out() {
    let spec_annotations = |annotations: &[(&str, &str)]| {
        let service = with(|service| annotated(service, annotations));
        decide::spec(&service, "cluster", &["example.com/".to_owned()]).expect("valid").annotations
    };
    let own = ("example.com/a", "b");
    assert_eq!(spec_annotations(&[own, ("example.org/a", "1")]), spec_annotations(&[own, ("example.org/a", "2")]));
    assert_eq!(spec_annotations(&[own]).len(), 1);
    assert_ne!(spec_annotations(&[own]), spec_annotations(&[("example.com/a", "c")]));
}

proptest::proptest! {
    #[test]
    fn any_service_becomes_a_request_or_an_error(
        ranges in proptest::collection::vec("[0-9a-f.:/ ]{0,20}|\\PC{0,8}", 0..4),
        annotation in proptest::option::of("([0-9a-f.:/]{0,18}, ?){0,6}|\\PC{0,20}"),
        numbers in proptest::collection::vec((proptest::prelude::any::<u16>(), "[a-z0-9-]{0,16}"), 0..5),
    ) {
        let service = with(|service| {
            let settings = service.balancing.as_mut().expect("a load balancer");
            settings.source_ranges = ranges.iter().map(|range| range.as_str().into()).collect();
            if let Some(annotation) = &annotation {
                annotated(service, &[("service.beta.kubernetes.io/load-balancer-source-ranges", annotation.as_str())]);
            }
            service.ports = numbers.iter().map(|(number, name)| {
                let mut port = port(80);
                port.port = i32::from(*number);
                port.name = name.as_str().into();
                port
            }).collect();
        });
        if let Err(error) = decide::spec(&service, "cluster", &["example.com/".to_owned()]) {
            proptest::prop_assert!(error.message.len() < 9_000);
        }
    }
}

#[test]
fn source_ranges_come_from_the_spec_or_else_from_the_annotation() {
    const KEY: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let ranges = |spec: &[&str], annotation: Option<&str>| {
        let service = with(|service| {
            let settings = service.balancing.as_mut().expect("a load balancer");
            settings.source_ranges = spec.iter().map(|range| (*range).into()).collect();
            if let Some(annotation) = annotation {
                annotated(service, &[(KEY, annotation)]);
            }
        });
        let read = decide::spec(&service, "cluster", &[]);
        read.map(|spec| spec.source_ranges.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
            .map_err(|error| error.message)
    };
    for (spec, annotation, expected) in [
        (&[][..], None, ""),
        (&[], Some("  "), ""),
        (&["10.0.0.0/8"], None, "10.0.0.0/8"),
        (&["10.0.0.0/8", " 192.168.1.7/24 "], Some("nonsense"), "10.0.0.0/8 192.168.1.0/24"),
        (&[], Some("10.0.0.0/24, fd00::/8"), "10.0.0.0/24 fd00::/8"),
        (&["10.1.0.0/16", "10.0.0.0/8", "10.1.2.3/16"], None, "10.1.0.0/16 10.0.0.0/8"),
        (&[], Some("10.0.0.0/8,10.0.0.0/8"), "10.0.0.0/8"),
    ] {
        assert_eq!(ranges(spec, annotation), Ok(expected.to_owned()), "{spec:?} {annotation:?}");
    }
    for invalid in ["10.0.0.1/33", "foo.bar", "10.0.0.1/32,*", "10.0.0.1/32,", "10.0.0.1/32, ", "10.0.0.1"] {
        let in_spec: Vec<&str> = invalid.split(',').collect();
        assert!(ranges(&in_spec, None).is_err() && ranges(&[], Some(invalid)).is_err(), "{invalid}");
    }
    assert_eq!(
        ranges(&["10.0.0.1"], None),
        Err("spec.loadBalancerSourceRanges is \"10.0.0.1\": use an IP range, for example 10.0.0.0/24".to_owned())
    );
    assert_eq!(
        ranges(&[], Some("10.0.0.0/8,")),
        Err(format!(
            "annotation {KEY} is \"10.0.0.0/8,\": use a comma-separated list of IP ranges, for example \
             10.0.0.0/24,192.168.2.0/24"
        ))
    );
}

#[test]
fn drift_checks_are_spread_over_time() {
    let waits: Vec<_> =
        (0..100).map(|n| decide::resync_after(Duration::from_secs(1000), &format!("uid-{n}")).as_secs()).collect();
    assert!(waits.iter().all(|wait| (750..=1250).contains(wait)), "{waits:?}");
    let distinct: std::collections::BTreeSet<_> = waits.iter().collect();
    assert!(distinct.len() > 50, "{waits:?}");
}

#[test]
fn status_has_the_defaults_of_the_api_server() {
    let address = |mode| Ingress { ip: Some([192, 0, 2, 1].into()), ip_mode: mode, ..Ingress::default() };
    let error = PortStatus { port: 80, protocol: Protocol::Tcp, error: Some("Busy".into()) };
    let fine = PortStatus { port: 81, protocol: Protocol::Udp, error: None };
    let status = LoadBalancerStatus {
        ingress: vec![
            address(None),
            Ingress { ports: vec![error, fine], ..address(Some(IpMode::Proxy)) },
            Ingress { hostname: Some("web.example.com".into()), ..Ingress::default() },
        ],
    };
    let ingress = decide::ingress(&status);
    assert_eq!(&*ingress[0].ip_mode, "VIP", "as the API server defaults it");
    assert_eq!(
        decide::ingress_patch(&ingress),
        json!({ "ingress": [
            { "ip": "192.0.2.1", "ipMode": "VIP" },
            { "ip": "192.0.2.1", "ipMode": "Proxy", "ports": [
                { "port": 80, "protocol": "TCP", "error": "Busy" }, { "port": 81, "protocol": "UDP" },
            ] },
            { "hostname": "web.example.com" },
        ] })
    );
    assert_eq!(decide::ingress_patch(&[]), json!({ "ingress": null }));
}

/// Returns a node with a name, a provider ID and this change.
pub fn node(name: &str, change: impl FnOnce(&mut kinds::Node)) -> Arc<kinds::Node> {
    use kinds::Kind;
    use kinds::wire::Put;
    let mut object = Vec::new();
    object.put_message(kinds::schema::node::METADATA, |meta| {
        meta.put_str(kinds::schema::object_meta::NAME, name);
        meta.put_str(kinds::schema::object_meta::RESOURCE_VERSION, "1");
    });
    object.put_message(kinds::schema::node::SPEC, |spec| {
        spec.put_str(kinds::schema::node_spec::PROVIDER_ID, &format!("mock://mock-1/{name}"));
    });
    let context = kinds::Decode { interner: Arc::default(), sections: kinds::Node::CLOUD };
    let mut node = kinds::Node::decode(&context, &object).expect("well-formed");
    change(&mut node);
    Arc::new(node)
}

#[test]
fn nodes_are_eligible_whether_or_not_they_are_ready() {
    const EXCLUDE: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
    let labelled = |value: &str| {
        let labels: kinds::intern::Labels = Arc::new([(EXCLUDE.into(), value.into())]);
        node("n", |node| node.meta.labels = labels)
    };
    let names = |nodes: &[Arc<kinds::Node>]| {
        targets::nodes(nodes).into_iter().map(|node| node.name).collect::<Vec<_>>().join(" ")
    };
    for (value, counts) in
        [("", false), ("true", false), ("nonsense", false), ("false", true), ("F", true), ("0", true)]
    {
        assert_eq!(!names(&[labelled(value)]).is_empty(), counts, "{value:?}");
    }
    let deleting = node("d", |node| node.meta.deletion = Time(1));
    let taint = |key: &str| kinds::taint::Taint {
        key: key.into(),
        value: "".into(),
        effect: "NoSchedule".into(),
        added: Time::default(),
    };
    let leaving = node("l", |node| node.taints = [taint("ToBeDeletedByClusterAutoscaler")].into());
    let other = node("o", |node| node.taints = [taint("node.kubernetes.io/not-ready")].into());
    assert_eq!(names(&[other, node("b", |_| {}), deleting, leaving, node("a", |_| {})]), "a b o");
    assert_eq!(targets::node(&node("a", |_| {})).provider_id.as_deref(), Some("mock://mock-1/a"));
}

#[test]
fn changes_that_load_balancers_do_not_depend_on_requeue_no_service() {
    let (plain, tainted) = (node("n", |_| {}), node("n", |node| node.unschedulable = true));
    type Record = Arc<kinds::Node>;
    let delay =
        |old: &Record, new: &Record| keys::delay_of_node(&runtime::store::Change { old: Some(old), new: Some(new) });
    let immediately = Some(Duration::ZERO);
    assert_eq!(delay(&plain, &tainted), None);
    for (key, expected) in [
        ("ToBeDeletedByClusterAutoscaler", immediately),
        ("karpenter.sh/disrupted", immediately),
        ("example.com/other", None),
    ] {
        let (key, value) = (key.into(), "".into());
        let taint = kinds::taint::Taint { key, value, effect: "NoSchedule".into(), added: Time::default() };
        let marked = node("n", |node| node.taints = [taint].into());
        assert_eq!(delay(&plain, &marked), expected);
        assert_eq!(delay(&marked, &plain).is_some(), expected.is_some());
        assert_ne!(delay(&marked, &plain), immediately, "an additional node is not urgent");
    }
    assert_eq!(delay(&plain, &node("n", |node| node.meta.deletion = Time(1))), immediately);
    assert_eq!(delay(&plain, &node("n", |node| node.cloud = None)), immediately);
    assert_eq!(keys::delay_of_node(&runtime::store::Change { old: Some(&plain), new: None }), immediately);
    let additional = keys::delay_of_node(&runtime::store::Change { old: None, new: Some(&plain) });
    assert!(additional.is_some_and(|delay| !delay.is_zero()));
    let of = |old: Option<Service>, new: Option<Service>| {
        let (old, new) = (old.map(Arc::new), new.map(Arc::new));
        keys::of_service(&runtime::store::Change { old: old.as_ref(), new: new.as_ref() }).map(|key| key.to_string())
    };
    let plain = || with(|service| service.kind = ServiceType::ClusterIp);
    assert_eq!(of(Some(plain()), Some(plain())), None);
    for (old, new) in
        [(None, Some(service("web"))), (Some(service("web")), Some(plain())), (Some(service("web")), None)]
    {
        assert_eq!(of(old, new).as_deref(), Some("shop/web"));
    }
}
