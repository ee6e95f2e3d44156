//! Target groups for other Services, which get a part of a listener's traffic: settings, creation, change, deletion.

use std::collections::BTreeSet;

use providers::{EndpointTarget, IpFamily, LoadBalancerSpec, OtherService, Port, Protocol, Targets};

use super::account::{Account, settings};
use crate::loadbalancer::model::diff;
use crate::loadbalancer::names::RESOURCE;
use crate::loadbalancer::samples::{nodes, port, spec};
use crate::loadbalancer::spec::annotations::read;
use crate::loadbalancer::spec::settings::Policy;
use crate::loadbalancer::types::{HealthCheck, TargetHealth, TargetType};

/// A Service with these ports.
pub(super) fn other(ports: Vec<Port>) -> OtherService {
    OtherService { ports, ip_families: vec![IpFamily::IPv4], health_check_node_port: None }
}

/// Spreads a listener's traffic over the Service's own group and a port of `green`.
pub(super) fn spread(spec: &mut LoadBalancerSpec, listener: &str, (own, green): (i32, i32), port: &str) {
    let action = format!(
        r#"{{"type": "forward", "forwardConfig": {{"baseServiceWeight": {own}, "targetGroups":
            [{{"serviceName": "green", "servicePort": {port}, "weight": {green}}}]}}}}"#
    );
    spec.annotations.insert(format!("service.beta.kubernetes.io/actions.{listener}"), action);
}

/// A Service whose TCP port 80 also forwards to port 8080 of `green`.
fn spreading(annotations: &[(&str, &str)], weights: (i32, i32)) -> LoadBalancerSpec {
    let mut requested = spec(annotations);
    requested.others.insert("green".into(), other(vec![port(Protocol::Tcp, 8080)]));
    spread(&mut requested, "TCP-80", weights, "8080");
    requested
}

fn endpoint(address: &str, port_name: &str, port: u16) -> EndpointTarget {
    EndpointTarget {
        port_name: port_name.into(),
        address: address.parse().expect("an address"),
        port,
        node: None,
        provider_id: None,
        zone: None,
        ready: true,
        serving: true,
        terminating: false,
        pod: None,
    }
}

/// Returns the target group for another Service; there must be exactly one.
fn backend(spec: &LoadBalancerSpec, targets: &Targets) -> crate::loadbalancer::types::TargetGroup {
    let desired = Account::default().desired(spec, targets);
    let mut all = desired.backends.into_values();
    let backend = all.next().expect("a target group");
    assert!(all.next().is_none(), "more than one target group");
    backend
}

#[test]
fn instances_are_targets_at_the_node_port_of_the_other_service() {
    let requested = spreading(&[("healthcheck-interval", "17"), ("target-group-attributes.8080", "a=b")], (9, 1));
    let group = backend(&requested, &nodes([1, 2]));
    let targets: BTreeSet<(&str, u16)> = group.targets.iter().map(|target| (target.id.as_str(), target.port)).collect();
    assert_eq!(targets, [("i-00000000000000001", 30_080), ("i-00000000000000002", 30_080)].into());
    assert!(group.name.starts_with("k8s-default-green-"), "{}", group.name);
    assert_eq!((group.port, group.health.interval, group.attributes["a"].as_str()), (30_080, 17, "b"));
    assert_eq!(group.tags[RESOURCE], "default/green:8080");
    let own = &Account::default().desired(&requested, &nodes([1, 2])).listeners[&80];
    assert_eq!((own.group.health.interval, own.group.attributes.get("a")), (17, None));
    assert!(group.tags.iter().all(|(key, value)| key == RESOURCE || own.group.tags.get(key) == Some(value)));
    let spread = own.spread.clone().expect("a spread");
    assert_eq!((spread.own, spread.others), (9, vec![(group.name.clone(), 1)]));
    // Nodes without a pod of the other Service are unhealthy, regardless of this Service's own policy.
    let mut local = requested.clone();
    local.others.get_mut("green").expect("green exists").health_check_node_port = Some(31_000);
    let HealthCheck { port, path, .. } = backend(&local, &nodes([1])).health;
    assert_eq!((port.as_str(), path.as_deref()), ("31000", Some("/healthz")));
}

#[test]
fn endpoints_are_those_of_the_other_service() {
    let mut requested = spreading(&[("nlb-target-type", "ip")], (9, 1));
    spread(&mut requested, "TCP-80", (9, 1), "\"tcp-8080\"");
    let own = endpoint("10.0.16.1", "tcp-80", 8080);
    let green = [endpoint("10.0.16.2", "tcp-8080", 9090), endpoint("10.0.16.3", "admin", 1)];
    let targets = Targets {
        endpoints: [own].into(),
        others: [("green".to_owned(), green.into()), ("red".to_owned(), [endpoint("10.0.16.4", "tcp-8080", 1)].into())]
            .into(),
        ..Targets::default()
    };
    let group = backend(&requested, &targets);
    assert_eq!(group.target_type, TargetType::Ip);
    let found: Vec<_> = group.targets.iter().map(|target| (target.id.as_str(), target.port)).collect();
    assert_eq!(found, [("10.0.16.2", 9090)]);
    assert_eq!(backend(&requested, &Targets::default()).targets, BTreeSet::new(), "the other Service has no endpoints");
    let mut cluster_ip = requested.clone();
    cluster_ip.others.get_mut("green").expect("green exists").ports[0].node_port = None;
    assert_eq!(backend(&cluster_ip, &targets).targets, group.targets, "pods need no node port");
}

#[test]
fn protocols_follow_the_listener_and_one_group_serves_several() {
    let protocols = |requested: &LoadBalancerSpec| {
        let desired = Account::default().desired(requested, &nodes([1]));
        desired.backends.values().map(|group| group.protocol.as_str()).collect::<Vec<_>>()
    };
    let mut tls = spreading(&[("ssl-cert", "arn:a")], (9, 1));
    let action = tls.annotations.remove("service.beta.kubernetes.io/actions.TCP-80").expect("an action");
    tls.annotations.insert("service.beta.kubernetes.io/actions.TLS-80".into(), action.clone());
    assert_eq!(protocols(&tls), ["TLS"]);
    let decrypted = action.replace("\"servicePort\"", "\"decrypt\": true, \"servicePort\"");
    tls.annotations.insert("service.beta.kubernetes.io/actions.TLS-80".into(), decrypted);
    assert_eq!(protocols(&tls), ["TCP"]);
    let mut two = spreading(&[], (9, 1));
    two.ports.push(port(Protocol::Tcp, 443));
    spread(&mut two, "TCP-443", (1, 1), "8080");
    assert_eq!(protocols(&two), ["TCP"]);
    let mut account = Account::default();
    account.settle(&two, &nodes([1, 2]));
    assert_eq!(account.observed.target_groups.len(), 3);
    let mut both = spreading(&[], (9, 1));
    both.ports.push(port(Protocol::Udp, 80));
    both.ports[1].node_port = both.ports[0].node_port;
    both.annotations.clear();
    spread(&mut both, "TCP_UDP-80", (9, 1), "8080");
    let mut green = vec![port(Protocol::Tcp, 8080), port(Protocol::Udp, 8080)];
    both.others.insert("green".into(), other(green.clone()));
    assert_eq!(protocols(&both), ["TCP_UDP"]);
    let served = settings(&both).backends().next().expect("a group").port_names.clone();
    assert_eq!(served, ["tcp-8080", "udp-8080"]);
    green[1].node_port = Some(31_111);
    both.others.insert("green".into(), other(green));
    let error = read(&both, &Policy::default()).expect_err("one group has one port");
    assert!(error.message.contains("the same nodePort"), "{error}");
}

#[test]
fn missing_services_and_ports_are_errors_with_a_fix() {
    let udp = other(vec![port(Protocol::Udp, 8080)]);
    let mut inside = other(vec![port(Protocol::Tcp, 8080)]);
    let mut named = other(vec![port(Protocol::Tcp, 81)]);
    inside.ports[0].node_port = None;
    named.ports.push(port(Protocol::Tcp, 82));
    for (green, parts) in [
        (None, &["\"serviceName green\"", "create a Service green in namespace default"][..]),
        (Some(named), &["\"serviceName green, servicePort 8080\"", "has: 81 (tcp-81), 82 (tcp-82)"]),
        (Some(udp), &["servicePort 8080", "use a TCP port"]),
        (Some(inside), &["servicePort 8080", "type NodePort", "nlb-target-type: ip"]),
    ] {
        let mut requested = spreading(&[], (9, 1));
        requested.others = green.clone().map(|green| ("green".to_owned(), green)).into_iter().collect();
        let error = read(&requested, &Policy::default()).expect_err("the other Service cannot be used");
        assert!(error.is_invalid());
        for part in ["annotation service.beta.kubernetes.io/actions.TCP-80 is "].iter().chain(parts) {
            assert!(error.message.contains(part), "{green:?}: {} lacks {part:?}", error.message);
        }
    }
    let mut itself = spreading(&[], (9, 1));
    let action = itself.annotations["service.beta.kubernetes.io/actions.TCP-80"].replace("green", "web");
    itself.annotations.insert("service.beta.kubernetes.io/actions.TCP-80".into(), action);
    let error = read(&itself, &Policy::default()).expect_err("the Service itself is a destination already");
    assert!(error.message.contains("baseServiceWeight"), "{error}");
}

fn weights(account: &Account) -> Vec<i32> {
    account.observed.balancers[0].listeners[0].forwards.iter().map(|(_, weight)| *weight).collect()
}

#[test]
fn group_of_another_service_follows_its_port_and_is_deleted() {
    let mut account = Account::default();
    let targets = nodes([1, 2]);
    account.settle(&spec(&[]), &targets);
    for (requested, steps, expected) in [
        (spreading(&[], (90, 10)), &["CreateTargetGroup", "Register", "ModifyListener"][..], vec![90, 10]),
        (spreading(&[], (50, 50)), &["ModifyListener"], vec![50, 50]),
        (
            {
                let mut moved = spreading(&[], (50, 50));
                moved.others.get_mut("green").expect("green exists").ports[0].node_port = Some(31_999);
                moved
            },
            &["CreateTargetGroup", "Register", "ModifyListener", "DeleteTargetGroup"],
            vec![50, 50],
        ),
        (spec(&[]), &["ModifyListener", "DeleteTargetGroup"], vec![1]),
    ] {
        account.time_passes();
        account.steps.clear();
        let plan = account.ensure(&requested, &targets, usize::MAX).expect("no step is interrupted");
        assert_eq!(
            (account.names(), weights(&account), plan.again),
            (steps.iter().map(ToString::to_string).collect(), expected, None)
        );
        account.check(&requested, &targets);
    }
}

#[test]
fn all_traffic_moves_once_a_target_is_healthy() {
    let mut account = Account::default();
    let targets = nodes([1, 2]);
    account.settle(&spec(&[]), &targets);
    let moved = spreading(&[], (0, 1));
    let plan = account.ensure(&moved, &targets, usize::MAX).expect("no step is interrupted");
    assert!(plan.again.is_some() && weights(&account) == [100, 0], "{:?}", weights(&account));
    assert_eq!(account.ensure(&moved, &targets, usize::MAX).expect("no step is interrupted").steps, []);
    account.time_passes();
    let plan = account.ensure(&moved, &targets, usize::MAX).expect("no step is interrupted");
    assert_eq!((plan.again, weights(&account)), (None, vec![0, 1]));
    // Traffic returns to the Service's own group, which serves immediately, although it is still being probed.
    account.settle(&spec(&[]), &targets);
    // Traffic moves immediately to and from the group of a Service without targets.
    let none = spreading(&[("target-node-labels", "none=such")], (0, 1));
    assert_eq!(account.ensure(&none, &targets, usize::MAX).expect("no step is interrupted").again, None);
    account.settle(&spec(&[]), &targets);
    for group in &mut account.observed.target_groups {
        group.targets.values_mut().for_each(|health| *health = TargetHealth::Unhealthy);
    }
    assert_eq!(account.ensure(&moved, &targets, usize::MAX).expect("no step is interrupted").again, None);
    assert_eq!(weights(&account), [0, 1]);
}

#[test]
fn group_of_another_service_is_never_used_as_own() {
    let mut account = Account::default();
    let ip = [("nlb-target-type", "ip")];
    let targets = Targets::default();
    account.settle(&spreading(&ip, (0, 1)), &targets);
    // Another client removes the Service's own group, which gets no traffic, from the listener and deletes it.
    let green = backend(&spreading(&ip, (0, 1)), &targets).name;
    account.observed.target_groups.retain(|group| group.name == green);
    let kept: Vec<String> = account.observed.target_groups.iter().map(|group| group.arn.clone()).collect();
    account.observed.balancers[0].listeners[0].forwards.retain(|(arn, _)| kept.contains(arn));
    account.settle(&spec(&ip), &targets);
    assert!(account.observed.target_group(&green).is_none() && account.observed.target_groups.len() == 1);
}

#[test]
fn groups_of_the_controller_for_other_services_are_kept() {
    let mut account = Account::default();
    let targets = nodes([1, 2]);
    let requested = spreading(&[("type", "external")], (9, 1));
    account.settle(&requested, &targets);
    let name = backend(&requested, &targets).name;
    let group =
        account.observed.target_groups.iter_mut().find(|group| group.name == name).expect("the target group exists");
    group.name = "k8s-default-green-0123456789".into();
    let desired = account.desired(&requested, &targets);
    assert_eq!(diff::ensure(&desired, &account.observed).steps, []);
}
