//! Annotations, configuration and ids of users: any content is read or refused, without a panic, in bounded messages.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use providers::{InstanceRef, IpFamily, IpNet, LoadBalancerSpec, Protocol, TargetPort, TrafficPolicy};

use crate::instances::id;
use crate::loadbalancer::samples::{id as load_balancer, port};
use crate::loadbalancer::spec::annotation_reader::{ACTIONS, KNOWN, MAX_WARNINGS, PREFIX, forwarded_services};
use crate::loadbalancer::spec::annotations::{read, read_leniently};
use crate::loadbalancer::spec::settings::Policy;

/// Maximum length of an error in bytes, with its operation.
const MAX_ERROR_BYTES: usize = (8 << 10) + 64;

/// Values similar to valid ones of any annotation, and anything else.
fn value() -> impl Strategy<Value = String> {
    let word = "true|false|on|off|nlb|nlb-ip|external|ip|instance|internal|internet-facing|tcp|http|https|ssl|dualstack|\\*|\\.\\*";
    let name = "(arn:aws[a-z0-9:/*-]{0,30}|subnet-[0-9a-f]{0,8}|sg-[0-9a-f]{0,8}|eipalloc-[0-9]{0,4}|pl-[0-9a-f]{0,4})";
    let pair = "[a-z_.]{0,20}=?[a-zA-Z0-9,=\\\\ ]{0,12}";
    let address = "[0-9a-fA-F.:]{0,20}(/[0-9]{0,3})?";
    prop_oneof![
        word,
        "-?[0-9]{0,12}",
        prop_oneof![name, pair, address, "[a-zA-Z0-9 _-]{0,40}"]
            .prop_flat_map(|one| { (1..4usize).prop_map(move |times| vec![one.clone(); times].join(",")) }),
        vec(prop_oneof![name, pair, address], 0..5).prop_map(|parts| parts.join(",")),
        action(),
        any::<String>(),
        // Many and long values.
        (".{1,3}", 1..2_000usize).prop_map(|(text, times)| format!("{text},").repeat(times)),
        ".{1,3}".prop_map(|text| text.repeat(10_000)),
    ]
}

/// Forward actions, some of them broken.
fn action() -> impl Strategy<Value = String> {
    let group = "(\\{(\"targetGroupARN\":\"arn:[a-z]{0,5}\"|\"serviceName\":\"[a-z]{0,3}\",\"servicePort\":(80|\"http\"|-1|1e99|null))?(,\"weight\":(1|999|1000|-1|1e99|\"1\"|null))?\\}|1|null)";
    (vec(group, 0..7), "(1|0|-1|9223372036854775807|null|\"1\")", 0..300usize).prop_map(|(groups, weight, nested)| {
        let groups = groups.join(",");
        let open = "[".repeat(nested / 10 * 10 % 200);
        let close = "]".repeat(nested / 10 * 10 % 200);
        format!(
            r#"{{"type":"forward","forwardConfig":{{"baseServiceWeight":{weight},"targetGroups":[{groups}],"other":{open}{close}}}}}"#
        )
    })
}

/// Keys of annotations: known ones, those of ports and actions, and unknown ones.
fn key() -> impl Strategy<Value = String> {
    let known = prop::sample::select(KNOWN.to_vec()).prop_flat_map(|known| {
        let port = if known.ends_with('.') { "((TCP|UDP|TLS|QUIC)-)?[0-9]{0,6}" } else { "" };
        port.prop_map(move |port| format!("{PREFIX}{known}{port}"))
    });
    prop_oneof![
        8 => known,
        2 => "(TCP|UDP|TLS|tcp|TCP_UDP)-(80|443|[0-9]{0,6})".prop_map(|port| format!("{ACTIONS}{port}")),
        1 => "[a-zA-Z.-]{0,60}".prop_map(|suffix| format!("{PREFIX}{suffix}")),
        1 => any::<String>(),
    ]
}

/// A Service with any annotations and several ports.
fn service() -> impl Strategy<Value = LoadBalancerSpec> {
    let ports = vec((0..3usize, prop_oneof![Just(80), Just(443), any::<u16>()], any::<bool>(), any::<bool>()), 1..4);
    let annotations = prop::collection::btree_map(key(), value(), 0..8);
    (ports, annotations, any::<[bool; 4]>()).prop_map(|(ports, annotations, flags)| {
        let ports = ports.into_iter().map(|(protocol, number, has_node_port, is_named)| {
            let mut port = port([Protocol::Tcp, Protocol::Udp, Protocol::Sctp][protocol], number);
            port.node_port = port.node_port.filter(|_| has_node_port);
            if is_named {
                port.target_port = TargetPort::Name("http".into());
            }
            port
        });
        let mut spec = LoadBalancerSpec::new(load_balancer(), ports.collect());
        spec.annotations = annotations;
        spec.class = flags[0].then(|| "service.k8s.aws/nlb".into());
        if flags[1] {
            spec.ip_families = vec![IpFamily::IPv4, IpFamily::IPv6];
        }
        if flags[2] {
            spec.external_traffic_policy = TrafficPolicy::Local;
            spec.health_check_node_port = Some(31_000);
        }
        spec
    })
}

proptest! {
    #[test]
    fn any_annotations_are_read_or_refused(spec in service(), controller_services: bool, no_node_rules: bool) {
        let policy = Policy { controller_services, no_node_rules, ..Policy::default() };
        let once = read(&spec, &policy);
        let again = read(&spec, &policy);
        prop_assert_eq!(format!("{:?}", once), format!("{:?}", again));
        if let Err(error) = once {
            prop_assert!(error.to_string().len() <= MAX_ERROR_BYTES, "{} bytes", error.to_string().len());
        }
        forwarded_services(&spec);
    }

    #[test]
    fn any_provider_id_is_parsed_or_refused(
        provider_id in prop_oneof![any::<String>(), "(aws://)?/{0,3}[a-z0-9-]{0,12}/{0,2}(i-|fargate-(ip-)?)?[0-9a-f.:-]{0,20}"],
        node in prop_oneof![any::<String>(), "(i-|fargate-(ip-)?)[0-9a-f.:-]{0,20}"],
        has_id: bool,
    ) {
        let _ = id::of_provider_id(&provider_id);
        let instance = InstanceRef { node, provider_id: has_id.then_some(provider_id), ..InstanceRef::default() };
        let _ = id::wanted(&instance);
    }
}

#[test]
fn many_unknown_annotations_lead_to_few_warnings() {
    let key = |number: usize| format!("{PREFIX}unknown-annotation-{number:05}");
    let annotations: BTreeMap<String, String> = (0..4_000).map(|number| (key(number), "x".to_owned())).collect();
    let mut spec = LoadBalancerSpec::new(load_balancer(), vec![port(Protocol::Tcp, 80)]);
    spec.annotations = annotations;
    let (_, settings) = read(&spec, &Policy::default()).expect("unknown annotations have no effect");
    let warnings = settings.expect("this provider serves the Service").warnings;
    assert_eq!(warnings.len(), MAX_WARNINGS, "each becomes an event");
}

/// Returns a Service with these ports, ranges of clients and annotations.
fn request(ports: u16, ranges: u32, annotations: &[(&str, String)]) -> LoadBalancerSpec {
    let mut spec =
        LoadBalancerSpec::new(load_balancer(), (1..=ports).map(|number| port(Protocol::Tcp, number)).collect());
    spec.annotations = annotations.iter().map(|(key, value)| (format!("{PREFIX}{key}"), value.clone())).collect();
    let range = |number: u32| IpNet::new_assert(std::net::Ipv4Addr::from_bits(number << 8).into(), 24);
    spec.source_ranges = (0..ranges).map(range).collect();
    spec
}

/// Returns the error about such a Service.
fn refused(ports: u16, ranges: u32, annotations: &[(&str, String)]) -> Option<String> {
    read(&request(ports, ranges, annotations), &Policy::default()).err().map(|error| error.to_string())
}

#[test]
fn targets_of_a_service_with_too_many_ranges_follow_by_a_part_of_them() {
    let settings = read_leniently(&request(1, 100_000, &[]), &Policy::default()).expect("it belongs to this provider");
    assert_eq!(settings.ranges.len(), 2_000);
}

/// The product of two long lists would take all memory of this process, which serves all Services.
#[test]
fn requests_that_aws_never_accepts_are_refused_before_their_parts_are_multiplied() {
    let tags = |count: usize| (0..count).map(|number| format!("key-{number}=x")).collect::<Vec<_>>().join(",");
    assert_eq!(refused(50, 20, &[("additional-resource-tags", tags(50))]), None);
    let error = refused(50, 100_000, &[]).expect("five million rules");
    assert!(error.contains("spec.loadBalancerSourceRanges is \"100000 ranges for 50 ports\""), "{error}");
    let named = refused(50, 100_000, &[("security-groups", "sg-1".to_owned())]);
    assert_eq!(named, None, "ranges have no effect together with the user's groups");
    let with_node_rules =
        [("security-groups", "sg-1".to_owned()), ("manage-backend-security-group-rules", "true".to_owned())];
    let error = refused(50, 100_000, &with_node_rules).expect("rules of a load balancer without security groups");
    assert!(error.contains("100000 ranges for 50 ports"), "{error}");
    let error = refused(1, 0, &[("additional-resource-tags", tags(51))]).expect("too many tags");
    assert!(error.contains("51 tags") && error.contains("use at most 50"), "{error}");
    let attributes = || (0..12_000).map(|number| format!("attribute-{number}=x")).collect::<Vec<_>>().join(",");
    let error = refused(5_000, 0, &[("target-group-attributes", attributes())]).expect("a copy for each port");
    assert!(error.contains("metadata.annotations") && error.contains("bytes for 5000 ports"), "{error}");
    assert!(error.len() <= MAX_ERROR_BYTES, "{} bytes", error.len());
}
