//! Decoding of Services.

use std::sync::Arc;

use super::*;
use crate::intern::Interner;
use crate::wire::Put;
use crate::wire::schema::{
    client_ip_config, load_balancer_ingress, load_balancer_status, object_meta, port_status, service as object,
    service_status, session_affinity_config,
};

fn decode(sections: Sections, spec: impl FnOnce(&mut Vec<u8>), status: impl FnOnce(&mut Vec<u8>)) -> Service {
    let mut object = Vec::new();
    object.put_message(object::METADATA, |meta| {
        meta.put_str(object_meta::NAME, "web");
        meta.put_str(object_meta::NAMESPACE, "shop");
        meta.put_str(object_meta::RESOURCE_VERSION, "7");
        meta.put_entry(object_meta::ANNOTATIONS, "example.com/a", "1");
        meta.put_entry(object_meta::ANNOTATIONS, crate::template::raw_object::LAST_APPLIED, "{}");
    });
    object.put_message(object::SPEC, spec);
    object.put_message(object::STATUS, status);
    let context = Decode { interner: Arc::new(Interner::default()), sections };
    Service::decode(&context, &object).expect("well-formed")
}

fn texts(list: &[Str]) -> Vec<&str> {
    list.iter().map(|text| &**text).collect()
}

#[test]
fn empty_service_has_the_defaults() {
    let service = decode(Service::BALANCING, |_| {}, |_| {});
    assert_eq!(service.kind, ServiceType::ClusterIp);
    assert_eq!(service.annotation("example.com/a"), Some("1"));
    assert_eq!(service.annotation(crate::template::raw_object::LAST_APPLIED), None);
    assert!(service.selector.is_empty() && service.ports.is_empty() && !service.is_headless());
    assert_eq!(service.balancing, None);
}

#[test]
fn ports_selector_and_addresses_are_decoded() {
    let service = decode(
        Sections::default(),
        |spec| {
            spec.put_message(spec::PORTS, |port| {
                port.put_str(service_port::NAME, "http");
                port.put_str(service_port::PROTOCOL, "");
                port.put_int(service_port::PORT, 80);
                port.put_message(service_port::TARGET_PORT, |target| {
                    target.put_int(crate::wire::schema::int_or_string::TYPE, 1);
                    target.put_str(crate::wire::schema::int_or_string::STR_VAL, "web");
                });
                port.put_int(service_port::NODE_PORT, 30080);
                port.put_str(service_port::APP_PROTOCOL, "https");
            });
            spec.put_entry(spec::SELECTOR, "b", "2");
            spec.put_entry(spec::SELECTOR, "a", "1");
            spec.put_str(spec::CLUSTER_IP, "None");
            spec.put_str(spec::CLUSTER_IPS, "None");
            spec.put_str(spec::TYPE, "LoadBalancer");
            spec.put_str(spec::IP_FAMILIES, "IPv6");
            spec.put_bool(spec::PUBLISH_NOT_READY_ADDRESSES, true);
            spec.put_str(spec::TRAFFIC_DISTRIBUTION, "PreferClose");
        },
        |_| {},
    );
    let port = &service.ports[0];
    assert_eq!((&*port.name, &*port.protocol, port.port, port.node_port), ("http", "TCP", 80, 30080));
    assert_eq!((port.app_protocol.as_deref(), &port.target_port), (Some("https"), &IntOrString::Text("web".into())));
    assert_eq!(label(&service.selector, "a"), Some("1"));
    assert_eq!((texts(&service.cluster_ips), texts(&service.ip_families)), (vec!["None"], vec!["IPv6"]));
    assert!(service.is_headless() && service.publish_not_ready_addresses);
    assert_eq!(service.traffic_distribution.as_deref(), Some("PreferClose"));
    assert_eq!(service.kind, ServiceType::LoadBalancer);
    assert_eq!(service.balancing, None, "the section is not selected");
}

#[test]
fn cluster_ip_may_be_set_without_the_list() {
    let service = decode(Sections::default(), |spec| spec.put_str(spec::CLUSTER_IP, "10.0.0.1"), |_| {});
    assert_eq!(texts(&service.cluster_ips), ["10.0.0.1"]);
}

#[test]
fn load_balancer_settings_are_decoded() {
    let status = |status: &mut Vec<u8>| {
        status.put_message(service_status::LOAD_BALANCER, |balancer| {
            balancer.put_message(load_balancer_status::INGRESS, |ingress| {
                ingress.put_str(load_balancer_ingress::IP, "192.0.2.1");
                ingress.put_str(load_balancer_ingress::IP_MODE, "VIP");
                ingress.put_message(load_balancer_ingress::PORTS, |port| {
                    port.put_int(port_status::PORT, 80);
                    port.put_str(port_status::PROTOCOL, "TCP");
                    port.put_str(port_status::ERROR, "Busy");
                });
            });
        });
    };
    let spec = |spec: &mut Vec<u8>| {
        spec.put_str(spec::TYPE, "LoadBalancer");
        spec.put_str(spec::LOAD_BALANCER_CLASS, "");
        spec.put_str(spec::LOAD_BALANCER_SOURCE_RANGES, "10.0.0.0/8");
        spec.put_str(spec::LOAD_BALANCER_IP, "192.0.2.1");
        spec.put_str(spec::EXTERNAL_IPS, "192.0.2.9");
        spec.put_bool(spec::ALLOCATE_LOAD_BALANCER_NODE_PORTS, false);
        spec.put_str(spec::SESSION_AFFINITY, "ClientIP");
        spec.put_message(spec::SESSION_AFFINITY_CONFIG, |config| {
            config.put_message(session_affinity_config::CLIENT_IP, |client| {
                client.put_int(client_ip_config::TIMEOUT_SECONDS, 60);
            });
        });
        spec.put_str(spec::IP_FAMILY_POLICY, "SingleStack");
        spec.put_str(spec::EXTERNAL_TRAFFIC_POLICY, "Local");
        spec.put_int(spec::HEALTH_CHECK_NODE_PORT, 31000);
    };
    let port = PortStatus { port: 80, protocol: "TCP".into(), error: Some("Busy".into()) };
    let ingress = Ingress { ip: "192.0.2.1".into(), hostname: "".into(), ip_mode: "VIP".into(), ports: vec![port] };
    let expected = Balancing {
        class: Some("".into()),
        source_ranges: vec!["10.0.0.0/8".into()],
        requested_ip: "192.0.2.1".into(),
        external_ips: vec!["192.0.2.9".into()],
        allocate_node_ports: false,
        client_ip_affinity: true,
        affinity_seconds: Some(60),
        ip_family_policy: "SingleStack".into(),
        external_local: true,
        internal_local: false,
        health_check_node_port: 31000,
        ingress: vec![ingress.clone()],
    };
    assert_eq!(decode(Service::BALANCING, spec, status).balancing.as_deref(), Some(&expected));
    let former = decode(Service::BALANCING, |_| {}, status).balancing.expect("its status has an ingress");
    assert_eq!((former.ingress, former.allocate_node_ports), (vec![ingress], true));
}

#[test]
fn one_of_two_annotations_requests_hints_and_the_deprecated_one_takes_precedence() {
    for (mode, deprecated, expected) in [
        (None, None, false),
        (Some("auto"), None, true),
        (Some("Auto"), None, true),
        (Some("aUto"), None, false),
        (Some("enabled"), None, false),
        (Some("disabled"), None, false),
        (None, Some("auto"), true),
        (None, Some("Auto"), true),
        (None, Some("aUto"), false),
        (None, Some("enabled"), false),
        (None, Some("disabled"), false),
        (Some("disabled"), Some("auto"), true),
        (Some("auto"), Some("disabled"), false),
    ] {
        let given = [("service.kubernetes.io/topology-aware-hints", deprecated), (super::TOPOLOGY_MODE, mode)];
        let given = given.into_iter().chain([("topology-hints", Some("auto"))]);
        let given = given.filter_map(|(key, value)| Some((Str::from(key), Str::from(value?))));
        let mut service = decode(Sections::default(), |_| {}, |_| {});
        service.annotations = Interner::default().labels(given.collect());
        assert_eq!(service.wants_topology_hints(), expected, "{mode:?} {deprecated:?}");
    }
}
