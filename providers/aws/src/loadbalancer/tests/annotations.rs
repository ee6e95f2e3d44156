//! Effects of each annotation, and errors for values that cannot work.

use providers::{IpFamily, NodeTarget, Protocol as Transport, SessionAffinity, TargetPort, Targeting, TrafficPolicy};

use super::account::settings;
use crate::config::Probe as Shared;
use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::samples::{port, spec};
use crate::loadbalancer::spec::annotations::read;
use crate::loadbalancer::spec::settings::{Families, Policy, SecurityGroups, Settings};
use crate::loadbalancer::types::{HealthCheck, Probe, Protocol, Scheme, TargetType};

fn of(annotations: &[(&str, &str)]) -> Settings {
    settings(&spec(annotations))
}

#[test]
fn service_without_annotations_has_defaults_of_cloud_provider_aws() {
    let plain = of(&[]);
    assert_eq!(plain.flavour, Flavour::CloudProvider);
    assert_eq!((plain.scheme, plain.target_type), (Some(Scheme::InternetFacing), TargetType::Instance));
    assert!(plain.untyped && plain.node_rules && plain.warnings.is_empty());
    assert_eq!(plain.security_groups, SecurityGroups::Own);
    let listener = &plain.listeners[0];
    assert_eq!((listener.port, listener.protocol, listener.group.port), (80, Protocol::Tcp, 30_080));
    let health = HealthCheck {
        protocol: Probe::Tcp,
        port: "traffic-port".into(),
        path: None,
        codes: None,
        interval: 30,
        timeout: None,
        healthy: 3,
        unhealthy: 3,
    };
    assert_eq!(listener.group.health, health);
    assert!(!of(&[("type", "nlb")]).untyped);
}

#[test]
fn service_of_the_load_balancer_controller_has_its_defaults() {
    let plain = of(&[("type", "external")]);
    assert_eq!((plain.flavour, plain.scheme), (Flavour::Controller, None));
    let health = &plain.listeners[0].group.health;
    assert_eq!((health.interval, health.timeout, health.healthy, health.unhealthy), (10, Some(10), 3, 3));
    assert_eq!(plain.listeners[0].group.attributes["proxy_protocol_v2.enabled"], "false");
    let mut classed = spec(&[]);
    classed.class = Some("service.k8s.aws/nlb".into());
    assert_eq!(settings(&classed).flavour, Flavour::Controller);
    assert_eq!(of(&[("type", "nlb-ip")]).target_type, TargetType::Ip);
}

#[test]
fn services_of_the_load_balancer_controller_are_not_served() {
    for kind in ["external", "nlb-ip"] {
        let read = read(&spec(&[("type", kind)]), &Policy::default()).unwrap();
        assert_eq!(read, (Targeting::Elsewhere, None), "{kind}");
    }
    let read = read(&spec(&[("nlb-target-type", "ip")]), &Policy::default()).unwrap();
    assert_eq!(read.0, Targeting::Endpoints);
}

#[test]
fn scheme_follows_annotations_and_flavour() {
    for (annotations, expected) in [
        (&[("internal", "true")][..], Some(Scheme::Internal)),
        (&[("internal", "0.0.0.0/0")], Some(Scheme::Internal)),
        (&[("internal", "false")], Some(Scheme::InternetFacing)),
        (&[("internal", "true"), ("scheme", "internet-facing")], Some(Scheme::InternetFacing)),
        (&[("type", "external"), ("internal", "false")], Some(Scheme::InternetFacing)),
        (&[("type", "external")], None),
    ] {
        assert_eq!(of(annotations).scheme, expected, "{annotations:?}");
    }
}

#[test]
fn health_check_follows_annotations_and_policy() {
    let local = |annotations| {
        let mut local = spec(annotations);
        local.external_traffic_policy = TrafficPolicy::Local;
        local.health_check_node_port = Some(31_000);
        settings(&local).listeners[0].group.health.clone()
    };
    let plain = local(&[]);
    assert_eq!((plain.protocol, plain.port.as_str(), plain.path.as_deref()), (Probe::Http, "31000", Some("/healthz")));
    assert_eq!((plain.interval, plain.healthy, plain.unhealthy), (10, 2, 2));
    let tcp = local(&[("healthcheck-protocol", "tcp"), ("healthcheck-port", "traffic-port")]);
    assert_eq!((tcp.protocol, tcp.port.as_str(), tcp.path), (Probe::Tcp, "traffic-port", None));
    let all = of(&[
        ("healthcheck-protocol", "https"),
        ("healthcheck-path", "/ready"),
        ("healthcheck-port", "tcp-80"),
        ("healthcheck-success-codes", "200"),
        ("healthcheck-interval", "15"),
        ("healthcheck-timeout", "5"),
        ("healthcheck-healthy-threshold", "4"),
        ("healthcheck-unhealthy-threshold", "6"),
    ]);
    let expected = HealthCheck {
        protocol: Probe::Https,
        port: "30080".into(),
        path: Some("/ready".into()),
        codes: Some("200".into()),
        interval: 15,
        timeout: Some(5),
        healthy: 4,
        unhealthy: 6,
    };
    assert_eq!(all.listeners[0].group.health, expected);
    let shared = Policy { shared_probe: Some(Shared { port: 10_256, path: "/healthz".into() }), ..Policy::default() };
    let probed = read(&spec(&[]), &shared).unwrap().1.unwrap();
    let health = &probed.listeners[0].group.health;
    assert_eq!((health.protocol, health.port.as_str()), (Probe::Http, "10256"));
}

#[test]
fn flags_apply_to_all_services() {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let policy = Policy {
        tags: [pair("team", "infra"), pair("stage", "live")].into(),
        foreign_tags: ["cost".to_owned()].into(),
        max_targets: Some(2),
        ..Policy::default()
    };
    let all = read(&spec(&[("additional-resource-tags", "team=web,a=b")]), &policy).unwrap().1.unwrap();
    assert_eq!(all.tags, [pair("a", "b"), pair("stage", "live"), pair("team", "infra")].into());
    assert_eq!((all.foreign_tags, all.max_targets), (policy.foreign_tags.clone(), Some(2)));
    let error = read(&spec(&[("additional-resource-tags", "cost=7")]), &policy).unwrap_err();
    assert!(error.is_invalid() && error.message.contains("--external-managed-tags"), "{error}");
}

#[test]
fn listeners_use_tls_on_requested_ports() {
    let mut two = spec(&[("ssl-cert", "arn:a, arn:b"), ("ssl-ports", "443"), ("backend-protocol", "ssl")]);
    two.ports = vec![port(Transport::Tcp, 80), port(Transport::Tcp, 443), port(Transport::Udp, 53)];
    let protocols: Vec<_> = settings(&two).listeners.iter().map(|one| (one.protocol, one.group.protocol)).collect();
    assert_eq!(
        protocols,
        [(Protocol::Tcp, Protocol::Tcp), (Protocol::Tls, Protocol::Tls), (Protocol::Udp, Protocol::Udp)]
    );
    assert_eq!(settings(&two).listeners[1].certificates, ["arn:a", "arn:b"]);
    for all in ["*", ""] {
        let listener = of(&[("ssl-cert", "arn:a"), ("ssl-ports", all)]).listeners[0].clone();
        assert_eq!((listener.protocol, listener.group.protocol), (Protocol::Tls, Protocol::Tcp), "{all:?}");
    }
}

#[test]
fn unknown_port_for_tls_has_no_effect_in_cloud_provider_aws() {
    for (ports, protocol) in [("80,8443", Protocol::Tls), ("8443", Protocol::Tcp)] {
        let read = of(&[("type", "nlb"), ("ssl-cert", "arn:a"), ("ssl-ports", ports)]);
        assert_eq!(read.listeners[0].protocol, protocol, "{ports}");
        assert!(matches!(&read.warnings[..], [one] if one.contains("port 8443 of annotation")), "{:?}", read.warnings);
    }
}

#[test]
fn path_mtu_discovery_is_off_unless_the_value_is_on() {
    for (word, on, warnings) in [("on", true, 0), ("off", false, 0), ("", false, 0), ("true", false, 1)] {
        let read = of(&[("type", "external"), ("enable-icmp-for-path-mtu-discovery", word)]);
        assert_eq!((read.path_mtu, read.warnings.len()), (on, warnings), "{word:?}");
    }
}

#[test]
fn label_without_a_value_selects_any_value_in_cloud_provider_aws_only() {
    let node = |value: &str| NodeTarget { labels: [("lb".into(), value.into())].into(), ..NodeTarget::default() };
    for (kind, labels, value, selected) in [
        ("nlb", "lb=", "a", true),
        ("nlb", "lb", "a", true),
        ("nlb", "lb=b", "a", false),
        ("external", "lb=", "", true),
        ("external", "lb=", "a", false),
        ("external", "lb=a", "a", true),
    ] {
        let read = of(&[("type", kind), ("target-node-labels", labels)]);
        assert_eq!(read.selects(&node(value)), selected, "{kind}: {labels}, {value:?}");
    }
    let policy = Policy { controller_services: true, ..Policy::default() };
    let error = read(&spec(&[("type", "external"), ("target-node-labels", "lb")]), &policy).expect_err("no value");
    assert!(error.message.contains("target-node-labels is \"lb\""), "{error}");
}

#[test]
fn empty_attribute_of_a_port_keeps_the_general_one() {
    let read = of(&[("target-group-attributes", "a=1,b=1"), ("target-group-attributes.80", "a=,b=2")]);
    let attributes = &read.listeners[0].group.attributes;
    assert_eq!((attributes["a"].as_str(), attributes["b"].as_str()), ("1", "2"));
}

#[test]
fn tcp_and_udp_of_one_number_share_a_listener() {
    let mut dns = spec(&[]);
    dns.ports = vec![port(Transport::Udp, 53), port(Transport::Tcp, 53)];
    let read = settings(&dns);
    assert_eq!(read.listeners.len(), 1);
    assert_eq!(read.listeners[0].protocol, Protocol::TcpUdp);
    assert_eq!(read.listeners[0].group.port_names, ["udp-53", "tcp-53"]);
    dns.annotations = spec(&[("quic-enabled-ports", "53")]).annotations;
    assert_eq!(settings(&dns).listeners[0].protocol, Protocol::TcpQuic);
}

#[test]
fn proxy_protocol_is_set_by_three_annotations() {
    let on = |annotations: &[(&str, &str)]| {
        of(annotations).listeners[0].group.attributes.get("proxy_protocol_v2.enabled").cloned().unwrap_or_default()
    };
    let external = ("type", "external");
    for (annotations, expected) in [
        (&[external, ("proxy-protocol", "*")][..], "true"),
        (&[external, ("proxy-protocol-per-target-group", "443, 80")], "true"),
        (&[external, ("proxy-protocol-per-target-group", "443")], "false"),
        (&[external, ("target-group-attributes", "proxy_protocol_v2.enabled=")], ""),
        (&[("target-group-attributes", "proxy_protocol_v2.enabled=true")], "true"),
        (&[("target-group-attributes.80", "proxy_protocol_v2.enabled=true")], "true"),
        (&[("proxy-protocol", "*")], ""),
    ] {
        assert_eq!(on(annotations), expected, "{annotations:?}");
    }
    assert_eq!(of(&[("proxy-protocol", "*")]).warnings.len(), 1, "no warning for an ignored annotation");
}

#[test]
fn load_balancer_attributes_follow_annotations() {
    let attributes = of(&[
        ("attributes", "deletion_protection.enabled=true"),
        ("cross-zone-load-balancing-enabled", "true"),
        ("access-log-enabled", "true"),
        ("access-log-s3-bucket-name", "logs"),
        ("access-log-s3-bucket-prefix", "web"),
    ])
    .attributes;
    let expected = [
        ("access_logs.s3.bucket", "logs"),
        ("access_logs.s3.enabled", "true"),
        ("access_logs.s3.prefix", "web"),
        ("deletion_protection.enabled", "true"),
        ("load_balancing.cross_zone.enabled", "true"),
    ];
    assert!(attributes.iter().map(|(k, v)| (k.as_str(), v.as_str())).eq(expected));
    assert!(of(&[("type", "external")]).attributes.is_empty(), "attributes were set without an annotation");
}

#[test]
fn families_follow_the_service() {
    let mut dual = spec(&[]);
    dual.ip_families = vec![IpFamily::IPv4, IpFamily::IPv6];
    dual.ip_family_policy = providers::IpFamilyPolicy::PreferDualStack;
    assert_eq!(settings(&dual).families, Families::PreferDualstack);
    dual.ip_family_policy = providers::IpFamilyPolicy::RequireDualStack;
    assert_eq!(settings(&dual).families, Families::Dualstack);
    assert!(settings(&dual).ipv6_targets);
}

#[test]
fn every_mistake_names_annotation_value_and_fix() {
    for (annotations, parts) in [
        // Without `replace-classic`, an existing Classic Load Balancer may serve the Service.
        (&[("type", "clb"), ("replace-classic", "true")][..], &["aws-load-balancer-type is \"clb\"", "use nlb"][..]),
        (&[("scheme", "public")], &["scheme is \"public\"", "internet-facing"]),
        (&[("healthcheck-protocol", "UDP")], &["healthcheck-protocol is \"UDP\"", "TCP, HTTP or HTTPS"]),
        (&[("healthcheck-port", "nope")], &["healthcheck-port is \"nope\"", "traffic-port"]),
        (&[("healthcheck-interval", "1")], &["healthcheck-interval is \"1\"", "from 5 to 300"]),
        (&[("type", "external"), ("ssl-cert", "arn:a"), ("ssl-ports", "444")], &["ssl-ports is \"444\""]),
        (
            &[("type", "external"), ("ssl-cert", "arn:a"), ("alpn-policy", "h2")],
            &["alpn-policy is \"h2\"", "HTTP2Only"],
        ),
        (&[("ip-address-type", "ipv6")], &["ip-address-type is \"ipv6\"", "dualstack"]),
        (&[("name", "a-name-that-is-much-too-long-for-any-balancer")], &["name is", "32"]),
        (&[("name", "internal-x")], &["name is \"internal-x\""]),
        (&[("eip-allocations", "eipalloc-1"), ("internal", "true")], &["eip-allocations", "internet-facing"]),
        (&[("private-ipv4-addresses", "10.0.1.5")], &["private-ipv4-addresses", "internal"]),
        (&[("private-ipv4-addresses", "x"), ("internal", "true")], &["private-ipv4-addresses is \"x\""]),
        (&[("ipv6-addresses", "fd00::1")], &["ipv6-addresses", "dualstack"]),
        (&[("inbound-sg-rules-on-private-link-traffic", "yes")], &["is \"yes\"", "on or off"]),
        (&[("attributes", "dns_record.client_routing_policy=near")], &["client_routing_policy=near"]),
        (&[("access-log-enabled", "true")], &["access-log-enabled", "bucket"]),
        (&[("target-group-attributes", "preserve_client_ip.enabled=maybe")], &["preserve_client_ip.enabled=maybe"]),
        (&[("minimum-load-balancer-capacity", "Units=1")], &["minimum-load-balancer-capacity is \"Units=1\""]),
        (&[("type", "nlb"), ("extra-security-groups", "sg-1")], &["extra-security-groups is \"sg-1\""]),
        (&[("type", "external"), ("proxy-protocol", "80")], &["proxy-protocol is \"80\"", "use *"]),
        (&[("quic-enabled-ports", "80")], &["quic-enabled-ports is \"80\"", "UDP"]),
        (&[("arn", "web")], &["aws-load-balancer-arn is \"web\"", "use the ARN"]),
        (
            &[("arn", "arn:aws:elasticloadbalancing:r:1:loadbalancer/net/web/1"), ("endpoint-service", "true")],
            &["endpoint-service is \"true\"", "is not changed"],
        ),
        (&[("endpoint-service", "true"), ("endpoint-service-allowed-principals", "1")], &["principals is \"1\""]),
    ] {
        let policy = Policy { controller_services: true, ..Policy::default() };
        let error = read(&spec(annotations), &policy).expect_err(&format!("{annotations:?}"));
        assert!(error.is_invalid());
        for part in parts {
            assert!(error.message.contains(part), "{annotations:?}: {} lacks {part:?}", error.message);
        }
    }
}

#[test]
fn every_mistake_in_the_fields_names_its_fix() {
    type Change = fn(&mut providers::LoadBalancerSpec);
    let change: &[(Change, &str)] = &[
        (
            |spec| spec.session_affinity = SessionAffinity::ClientIp { timeout: std::time::Duration::from_secs(1) },
            "spec.sessionAffinity",
        ),
        (|spec| spec.requested_address = Some("192.0.2.1".into()), "spec.loadBalancerIP is \"192.0.2.1\""),
        (|spec| spec.ports.clear(), "spec.ports"),
        (|spec| spec.ports[0].protocol = Transport::Sctp, "SCTP"),
        (|spec| spec.ports[0].node_port = None, "allocateLoadBalancerNodePorts"),
        (
            |spec| spec.source_ranges = vec!["fd00::/8".parse().unwrap()],
            "spec.loadBalancerSourceRanges is \"fd00::/8\"",
        ),
        (|spec| spec.ports.push(port(Transport::Tcp, 80)), "spec.ports[].port is \"80\""),
        (
            |spec| {
                let mut udp = port(Transport::Udp, 80);
                udp.node_port = Some(31_111);
                spec.ports.push(udp);
            },
            "spec.ports[].nodePort is \"31111\": use 30080",
        ),
    ];
    for (change, part) in change {
        let mut requested = spec(&[]);
        change(&mut requested);
        let error = read(&requested, &Policy::default()).expect_err(part);
        assert!(error.is_invalid() && error.message.contains(part), "{} lacks {part:?}", error.message);
    }
    let mut weighted = spec(&[]);
    weighted.annotations.insert("service.beta.kubernetes.io/actions.TCP-80".into(), "{}".into());
    let error = read(&weighted, &Policy::default()).expect_err("the action has no type");
    assert!(error.message.contains("actions.TCP-80 is \"{}\": use type forward"), "{error}");
    let mut named = spec(&[("nlb-target-type", "ip")]);
    named.ports[0].node_port = None;
    named.ports[0].target_port = TargetPort::Name("http".into());
    assert_eq!(settings(&named).listeners[0].group.port, 1, "pods need no node port");
}

#[test]
fn values_that_upstream_ignores_are_only_warnings() {
    for (annotations, expected) in [
        (&[("nlb-target-type", "pod")][..], "nlb-target-type has no effect with the value \"pod\": use instance or ip"),
        (&[("alpn-policy", "h2")], "alpn-policy has no effect with the value \"h2\""),
        (&[("ssl-cert", "arn:a"), ("type", "nlb"), ("alpn-policy", "h2")], "alpn-policy has no effect"),
        (&[("disable-nlb-sg", "true"), ("security-groups", "sg-1")], "security-groups has no effect together with"),
    ] {
        for kind in ["nlb", "external"] {
            let is_tls = annotations.iter().any(|(key, _)| *key == "ssl-cert");
            if is_tls && kind == "external" {
                continue;
            }
            let read = of(&[&[("type", kind)][..], annotations].concat());
            assert_eq!(read.target_type, TargetType::Instance);
            assert!(read.warnings.iter().any(|one| one.contains(expected)), "{annotations:?}: {:?}", read.warnings);
        }
    }
    let off = of(&[("disable-nlb-sg", "true"), ("security-groups", "sg-1")]);
    assert_eq!(off.security_groups, SecurityGroups::Off);
    let mut spread = spec(&[]);
    spread.annotations.insert("service.beta.kubernetes.io/actions.TCP-81".into(), "{}".into());
    let warnings = settings(&spread).warnings;
    assert!(
        matches!(&warnings[..], [one] if one.contains("actions.TCP-81 has no effect: name one of")),
        "{warnings:?}"
    );
}

#[test]
fn ipv6_ranges_are_refused_without_dualstack_if_they_become_rules() {
    let group = ("security-groups", "sg-1");
    let off = ("disable-nlb-sg", "true");
    for (annotations, accepted) in [
        (&[("type", "nlb")][..], false),
        (&[("type", "nlb"), group], true),
        (&[("type", "nlb"), off], false),
        (&[("type", "external")], false),
        (&[("type", "external"), group], true),
        (&[("type", "external"), off], true),
        (&[("type", "external"), ("ip-address-type", "dualstack")], true),
    ] {
        let mut requested = spec(annotations);
        requested.source_ranges = vec!["fd00::/8".parse().unwrap()];
        let policy = Policy { controller_services: true, ..Policy::default() };
        assert_eq!(read(&requested, &policy).is_ok(), accepted, "{annotations:?}");
    }
}

#[test]
fn tls_on_a_listener_for_tcp_and_udp_is_refused_unless_the_controller_serves_it_unencrypted() {
    let tcp_first = [port(Transport::Tcp, 53), port(Transport::Udp, 53)];
    let udp_first = [port(Transport::Udp, 53), port(Transport::Tcp, 53)];
    let (external, cert, joint) = (("type", "external"), ("ssl-cert", "arn:a"), ("enable-tcp-udp-listener", "true"));
    for ports in [tcp_first, udp_first] {
        for (annotations, accepted) in [
            (&[external, cert][..], false),
            (&[external, cert, joint], true),
            (&[("type", "nlb"), cert, joint], false),
            (&[external, cert, ("ssl-ports", "tcp-53")], false),
        ] {
            let mut requested = spec(annotations);
            requested.ports = ports.to_vec();
            let policy = Policy { controller_services: true, ..Policy::default() };
            let read =
                read(&requested, &policy).map(|(_, settings)| settings.expect("this provider serves the Service"));
            assert_eq!(read.is_ok(), accepted, "{annotations:?} {ports:?}");
            if let Ok(settings) = read {
                assert_eq!(settings.listeners[0].protocol, Protocol::TcpUdp);
                assert!(settings.listeners[0].certificates.is_empty());
                assert!(settings.warnings[0].contains("port 53, which is not encrypted"), "{:?}", settings.warnings);
            }
        }
    }
}

#[test]
fn tags_that_identify_owners_cannot_be_set() {
    let given =
        "team=a,service.k8s.aws/stack=other/web,kubernetes.io/load-balancer-backend=c,kubernetes.io/cluster/d=owned";
    let settings = of(&[("additional-resource-tags", given)]);
    assert_eq!(settings.tags.keys().collect::<Vec<_>>(), ["team"]);
    assert_eq!(settings.warnings.len(), 3, "{:?}", settings.warnings);
}

#[test]
fn udp_only_group_is_probed_at_a_port_that_listens() {
    let udp = |annotations: &[(&str, &str)], policy: Policy| {
        let mut requested = spec(annotations);
        requested.ports = vec![port(Transport::Udp, 53)];
        let settings = read(&requested, &policy).unwrap().1.unwrap();
        let health = settings.listeners[0].group.health.clone();
        (health.protocol, health.port, settings.warnings.len())
    };
    let kube_proxy = (Probe::Http, "10256".to_owned(), 0);
    assert_eq!(udp(&[], Policy::default()), kube_proxy);
    let requested = udp(&[("healthcheck-port", "9000")], Policy::default());
    assert_eq!(requested, (Probe::Tcp, "9000".to_owned(), 0));
    let shared = Policy { shared_probe: Some(Shared { port: 9, path: "/".into() }), ..Policy::default() };
    assert_eq!(udp(&[], shared), (Probe::Http, "9".to_owned(), 0));
    let pods = udp(&[("nlb-target-type", "ip")], Policy::default());
    assert_eq!(pods, (Probe::Tcp, "traffic-port".to_owned(), 1), "nothing is known to listen in a pod");
    let mut both = spec(&[]);
    both.ports = vec![port(Transport::Udp, 53), port(Transport::Tcp, 53)];
    let group = &settings(&both).listeners[0].group;
    assert_eq!((group.protocol, group.health.protocol), (Protocol::TcpUdp, Probe::Tcp));
}
