//! Targets of a load balancer whose Service is invalid: they follow the settings that the load balancer has.

use std::collections::BTreeSet;

use providers::{LoadBalancerSpec, NodeTarget, OtherService, Protocol as Transport, TargetPort, Targets};

use super::account::{Account, settings};
use crate::loadbalancer::model::following::{NodePorts, batches, followed};
use crate::loadbalancer::model::{build, node_rules, range_rules};
use crate::loadbalancer::samples::{endpoint, network, nodes, port, spec};
use crate::loadbalancer::spec::annotation_reader::{ACTIONS, PREFIX};
use crate::loadbalancer::spec::annotations::{read, read_leniently};
use crate::loadbalancer::spec::settings::Policy;
use crate::loadbalancer::types::{ObservedRule, Rule};
use crate::tags::ClusterTags;

/// Two nodes, of which the first has a label, and a pod.
fn all_targets() -> Targets {
    let Targets { nodes, .. } = nodes([1, 2]);
    let label = |(number, node): (usize, &NodeTarget)| {
        let labels = (number == 0).then(|| ("role".to_owned(), "ingress".to_owned()));
        NodeTarget { labels: labels.into_iter().collect(), ..node.clone() }
    };
    let nodes: Vec<NodeTarget> = nodes.iter().enumerate().map(label).collect();
    Targets { endpoints: vec![endpoint("tcp-80", [10, 0, 0, 9], 8080)].into(), ..Targets::nodes(nodes) }
}

/// Returns the targets that an invalid Service's load balancer gets, each as the last character of its id and its port,
/// and the names of the other Services.
fn following(account: &Account, invalid: &LoadBalancerSpec, targets: &Targets) -> (Vec<String>, BTreeSet<String>) {
    let policy = Policy::default();
    let settings = read_leniently(invalid, &policy).expect("it belongs to this provider");
    let found = followed(invalid, &account.observed, &BTreeSet::new(), NodePorts::Current);
    let mut all = Vec::new();
    for batch in batches(&settings, found.groups, true) {
        for group in batch.groups {
            let wanted = build::targets(&batch.settings, &group.requested, group.known.ipv6, targets);
            all.extend(wanted.iter().map(|target| format!("{}:{}", &target.id[target.id.len() - 1..], target.port)));
        }
    }
    (all, found.others)
}

#[test]
fn targets_follow_the_settings_of_the_load_balancer_whatever_the_mistake() {
    type Edit = fn(&mut LoadBalancerSpec);
    type Annotations<'a> = &'a [(&'a str, &'a str)];
    let nothing: Edit = |_| {};
    let both = ["1:30080", "2:30080"];
    let cases: &[(Annotations<'_>, Annotations<'_>, Edit, &[&str])] = &[
        // The last applied annotations; the invalid ones; another edit; the targets.
        (&[], &[("scheme", "public")], nothing, &both),
        (&[], &[("scheme", "public"), ("nlb-target-type", "ip")], nothing, &both),
        (&[], &[("application-load-balancer", "?")], nothing, &both),
        (&[], &[("multi-cluster-target-group", "yes")], nothing, &both),
        (&[], &[("target-group-arn.80", "web")], nothing, &both),
        (&[], &[("target-node-labels", "=")], nothing, &both),
        (&[], &[("group", "Web")], nothing, &both),
        (&[], &[("arn", "web")], nothing, &both),
        (&[("nlb-target-type", "ip")], &[("scheme", "public")], nothing, &["9:8080"]),
        (
            &[("nlb-target-type", "ip")],
            &[("nlb-target-type", "pods")],
            |spec| spec.ports[0].node_port = None,
            &["9:8080"],
        ),
        (&[("target-node-labels", "role=ingress")], &[("target-node-labels", "=")], nothing, &["1:30080"]),
        (&[("target-node-labels", "role=ingress")], &[("scheme", "public")], nothing, &["1:30080"]),
        // kube-proxy serves the node port that the Service has now.
        (&[], &[("scheme", "public")], |spec| spec.ports[0].node_port = Some(31_000), &["1:31000", "2:31000"]),
        (&[], &[("scheme", "public")], |spec| spec.ports[0].node_port = None, &both),
        // The listener's port has another number now.
        (&[], &[("scheme", "public")], |spec| spec.ports[0].port = 81, &both),
        (&[("nlb-target-type", "ip")], &[("scheme", "public")], |spec| spec.ports[0].port = 81, &["9:8080"]),
        (&[], &[], |spec| spec.ports.push(port(Transport::Sctp, 80)), &both),
    ];
    for (applied, annotations, edit, expected) in cases {
        let mut applied = spec(applied);
        applied.ports[0].target_port = TargetPort::Number(8080);
        let mut account = Account::default();
        account.settle(&applied, &nodes([5]));
        let mut invalid = LoadBalancerSpec { annotations: spec(annotations).annotations, ..applied };
        edit(&mut invalid);
        assert!(read(&invalid, &Policy::default()).is_err(), "{annotations:?} is valid");
        assert_eq!(following(&account, &invalid, &all_targets()).0, *expected, "{annotations:?}");
    }
}

#[test]
fn pods_of_a_port_that_the_service_no_longer_has_stay() {
    let mut account = Account::default();
    account.settle(&spec(&[("nlb-target-type", "ip")]), &all_targets());
    let mut invalid = spec(&[("nlb-target-type", "ip"), ("scheme", "public")]);
    invalid.ports = vec![port(Transport::Tcp, 443)];
    let found = followed(&invalid, &account.observed, &BTreeSet::new(), NodePorts::Current);
    assert!(found.groups.is_empty(), "{:?}", found.groups);
}

#[test]
fn targets_of_another_service_follow_without_the_annotation_that_names_it() {
    let action =
        r#"{"type": "forward", "forwardConfig": {"targetGroups": [{"serviceName": "green", "servicePort": 80}]}}"#;
    let green = |node_port| OtherService {
        ports: vec![providers::Port { node_port: Some(node_port), ..port(Transport::Tcp, 80) }],
        ip_families: vec![providers::IpFamily::IPv4],
        health_check_node_port: None,
    };
    for (kind, unknown, known) in [
        (
            "instance",
            &["1:30080", "2:30080", "1:31080", "2:31080"][..],
            &["1:30080", "2:30080", "1:32080", "2:32080"][..],
        ),
        // Pods of a Service that the caller has not read yet stay registered.
        ("ip", &["9:8080"], &["9:8080", "7:8080"]),
    ] {
        let mut applied = spec(&[("nlb-target-type", kind)]);
        applied.ports[0].target_port = TargetPort::Number(8080);
        applied.annotations.insert(format!("{ACTIONS}TCP-80"), action.into());
        applied.others.insert("green".into(), green(31_080));
        let mut account = Account::default();
        account.settle(&applied, &all_targets());
        let mut invalid = applied.clone();
        invalid.annotations.insert(format!("{ACTIONS}TCP-80"), "{".into());
        invalid.annotations.insert(format!("{PREFIX}scheme"), "public".into());
        invalid.others.clear();
        let mut targets = all_targets();
        let (mut found, others) = following(&account, &invalid, &targets);
        found.sort();
        let sorted = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<BTreeSet<String>>();
        assert_eq!((found.into_iter().collect(), others), (sorted(unknown), ["green".to_owned()].into()), "{kind}");
        invalid.others.insert("green".into(), green(32_080));
        targets.others.insert("green".into(), vec![endpoint("tcp-80", [10, 0, 0, 7], 8080)].into());
        let (found, _) = following(&account, &invalid, &targets);
        assert_eq!(found.into_iter().collect::<BTreeSet<String>>(), sorted(known), "{kind}");
    }
}

/// Returns the rules that a load balancer without security groups needs in nodes' groups according to its valid
/// request.
fn rules_of_ensure(account: &Account, applied: &LoadBalancerSpec, targets: &Targets) -> BTreeSet<Rule> {
    let (desired, cluster) = (account.desired(applied, targets), ClusterTags::new("c", false));
    let balancer = &account.observed.balancers[0];
    let at = (balancer.name.as_str(), balancer.subnets.as_slice());
    range_rules::desired((&cluster, &applied.id), &settings(applied), &desired, at, &network())
}

#[test]
fn new_nodes_of_an_invalid_service_get_the_rules_of_its_last_valid_request() {
    let ranges = |spec: &mut LoadBalancerSpec| spec.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
    let udp = |spec: &mut LoadBalancerSpec| spec.ports = vec![port(Transport::Udp, 53)];
    type Edit = fn(&mut LoadBalancerSpec);
    let cases: [(&[(&str, &str)], Edit); 8] = [
        (&[], |_| {}),
        (&[], ranges),
        (&[], udp),
        (&[("target-group-attributes", "preserve_client_ip.enabled=false")], ranges),
        (&[("healthcheck-port", "10256")], ranges),
        (&[("nlb-target-type", "ip")], |_| {}),
        (&[("nlb-target-type", "ip"), ("target-group-attributes", "preserve_client_ip.enabled=true")], ranges),
        (&[("ip-address-type", "dualstack")], |_| {}),
    ];
    for (annotations, edit) in cases {
        let mut applied = spec(&[annotations, &[("disable-nlb-sg", "true")]].concat());
        applied.ports[0].target_port = TargetPort::Number(8080);
        edit(&mut applied);
        let mut targets = all_targets();
        let port_name = applied.ports[0].name.clone();
        targets.endpoints = vec![endpoint(&port_name, [10, 0, 0, 9], 8080)].into();
        let mut account = Account::default();
        account.settle(&applied, &targets);
        let expected = rules_of_ensure(&account, &applied, &targets);
        let rule = |rule: &Rule| ObservedRule { id: String::new(), rule: rule.clone() };
        let observed: Vec<ObservedRule> = expected.iter().map(rule).collect();

        // The invalid spec has no source ranges: the mistake may be in them.
        let mut invalid = applied.clone();
        invalid.annotations.insert(format!("{PREFIX}scheme"), "public".into());
        invalid.source_ranges.clear();
        let lenient = read_leniently(&invalid, &Policy::default()).expect("it belongs to this provider");
        let found = followed(&invalid, &account.observed, &BTreeSet::new(), NodePorts::Current);
        let batches = batches(&lenient, found.groups, true);
        let [batch] = &batches[..] else { panic!("{annotations:?}: {batches:?}") };
        let reached: Vec<_> = batch.groups.iter().map(|group| group.reached(&batch.settings, &targets)).collect();
        let ports = node_rules::requested_ports(&batch.settings, &targets);
        let balancer = &account.observed.balancers[0];
        let names = [balancer.name.clone()];
        let requested = build::clients(&batch.settings, false);
        let clients = range_rules::known_clients(&observed, &names, &requested, &ports);
        let without_groups = [(balancer.name.clone(), balancer.subnets.clone())];
        let rules = range_rules::followed(&without_groups, &clients, &reached, &network());
        assert_eq!(rules, expected, "{annotations:?}");
    }
}
