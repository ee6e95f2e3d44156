//! Plans, step by step: the order of creation, pauses, and resources that are not changed.

use providers::{Protocol, Targets, TrafficPolicy};

use super::account::{Account, name};
use crate::loadbalancer::model::diff;
use crate::loadbalancer::observed::stack::State;
use crate::loadbalancer::plan::Step;
use crate::loadbalancer::samples::{self, nodes, port, spec, tags};
use crate::loadbalancer::types::{Attributes, Listener, Protocol as ListenerProtocol, Tagging, Target, TargetHealth};

fn settled(annotations: &[(&str, &str)]) -> Account {
    let mut account = Account::default();
    account.settle(&spec(annotations), &nodes([1, 2]));
    account.steps.clear();
    account
}

#[test]
fn load_balancer_is_created_with_rules_first_and_listener_last() {
    let mut account = Account::default();
    account.settle(&spec(&[]), &nodes([1, 2]));
    assert_eq!(
        account.names(),
        ["CreateSecurityGroup", "Authorize", "CreateBalancer", "CreateTargetGroup", "Register", "CreateListener"]
    );
    assert!(diff::ensure(&account.desired(&spec(&[]), &nodes([1, 2])), &account.observed).steps.is_empty());
}

#[test]
fn resources_are_deleted_before_those_that_they_use() {
    let mut account = settled(&[]);
    for step in diff::delete(&account.observed, &samples::id()).steps {
        account.make(&step);
    }
    assert_eq!(account.names(), ["DeleteBalancer", "DeleteTargetGroup", "DeleteSecurityGroup"]);
    assert!(account.observed.is_empty());
}

#[test]
fn settings_are_changed_in_place_if_aws_can() {
    for (from, to, steps) in [
        (&[][..], &[("cross-zone-load-balancing-enabled", "true")][..], &["SetBalancerAttributes"][..]),
        (&[], &[("healthcheck-interval", "10"), ("healthcheck-protocol", "HTTP")], &["SetHealthCheck"]),
        (&[], &[("target-group-attributes", "preserve_client_ip.enabled=false")], &["SetGroupAttributes"]),
        (&[], &[("additional-resource-tags", "a=b")], &["AddTags", "AddTags", "AddTags", "AddTags"]),
        (&[], &[("target-node-labels", "none=such")], &["AddTags", "Deregister"]),
        (&[], &[("subnets", "subnet-1,net-2,subnet-3")], &[]),
        (&[], &[("subnets", "subnet-1,net-2")], &["SetSubnets"]),
        (&[], &[("subnets", "subnet-1,subnet-2,subnet-6")], &["SetSubnets", "SetSubnets"]),
        (&[], &[("subnets", "subnet-4,subnet-5,subnet-6")], &["SetSubnets", "SetSubnets", "SetSubnets", "SetSubnets"]),
        (&[], &[("subnets", "subnet-4")], &["SetSubnets", "SetSubnets", "SetSubnets"]),
        (&[("subnets", "subnet-1")], &[("subnets", "subnet-4")], &[]),
        (&[], &[("security-group-prefix-lists", "pl-1")], &["Authorize", "Revoke"]),
        (&[], &[("enable-icmp-for-path-mtu-discovery", "on")], &["Authorize"]),
        (&[], &[("inbound-sg-rules-on-private-link-traffic", "off")], &["SetSecurityGroups"]),
        (&[], &[("ip-address-type", "dualstack")], &["Authorize", "SetAddressType"]),
        (&[], &[("minimum-load-balancer-capacity", "CapacityUnits=100")], &["SetCapacity"]),
        (&[], &[("listener-attributes.TCP-80", "tcp.idle_timeout.seconds=100")], &["SetListenerAttributes"]),
        (&[], &[("ssl-cert", "arn:a,arn:b")], &["ModifyListener", "AddCertificates"]),
        (&[("ssl-cert", "arn:a,arn:b")], &[("ssl-cert", "arn:b")], &["ModifyListener"]),
        (&[("ssl-cert", "arn:a,arn:b")], &[("ssl-cert", "arn:a")], &["RemoveCertificates"]),
        (&[("ssl-cert", "arn:a")], &[("ssl-cert", "arn:a"), ("alpn-policy", "HTTP2Only")], &["ModifyListener"]),
        (&[("ssl-cert", "arn:a")], &[("ssl-cert", "arn:a"), ("alpn-policy", "None")], &[]),
    ] {
        let mut account = settled(from);
        account.settle(&spec(to), &nodes([1, 2]));
        let names = account.names();
        assert_eq!(names, steps, "from {from:?} to {to:?}");
    }
}

#[test]
fn changed_node_port_moves_the_listener_before_the_old_group_is_deleted() {
    let mut account = settled(&[]);
    let mut changed = spec(&[]);
    changed.ports[0].node_port = Some(31_999);
    account.settle(&changed, &nodes([1, 2]));
    let moved = ["CreateTargetGroup", "Register", "ModifyListener", "ModifyListener", "DeleteTargetGroup"];
    assert_eq!(account.names(), moved);
}

#[test]
fn targets_are_registered_before_others_are_deregistered() {
    let mut account = settled(&[]);
    account.settle(&spec(&[]), &nodes([2, 3]));
    assert_eq!(account.names(), ["Register", "Deregister"]);
    account.steps.clear();
    account.settle(&spec(&[]), &Targets::default());
    assert_eq!(account.names(), ["Deregister"]);
}

#[test]
fn target_group_is_replaced_once_the_new_one_is_healthy() {
    let tls = spec(&[("ssl-cert", "arn:a"), ("backend-protocol", "ssl")]);
    let mut account = settled(&[("ssl-cert", "arn:a")]);
    let targets = nodes([1, 2]);
    let plan = account.ensure(&tls, &targets, usize::MAX).unwrap();
    assert!(plan.again.is_some(), "the new group has no healthy target yet");
    assert_eq!(plan.exchanging, [80].into());
    assert_eq!(account.names(), ["CreateTargetGroup", "Register", "ModifyListener"]);
    let forwards = account.observed.balancers[0].listeners[0].forwards.clone();
    assert_eq!(forwards.iter().map(|(_, weight)| *weight).collect::<Vec<_>>(), [100, 0], "traffic moved too early");
    // Nothing is repeated while the plan waits.
    let waiting = account.ensure(&tls, &targets, usize::MAX).unwrap();
    assert_eq!((waiting.steps, waiting.exchanging), (vec![], [80].into()));
    account.time_passes();
    account.steps.clear();
    account.settle(&tls, &targets);
    assert_eq!(account.names(), ["ModifyListener", "DeleteTargetGroup"]);
    assert_eq!(account.ensure(&tls, &targets, usize::MAX).unwrap().exchanging, [].into());
}

#[test]
fn traffic_is_spread_over_other_groups_and_back() {
    let spread = |weights: [i32; 2], port_protocol: &[(&str, &str)]| {
        let mut requested = spec(port_protocol);
        let action = format!(
            r#"{{"type": "forward", "forwardConfig": {{"baseServiceWeight": {}, "targetGroups":
                [{{"targetGroupARN": "arn:theirs", "weight": {}}}]}}}}"#,
            weights[0], weights[1]
        );
        let protocol = if port_protocol.is_empty() { "TCP" } else { "TLS" };
        requested.annotations.insert(format!("service.beta.kubernetes.io/actions.{protocol}-80"), action);
        requested
    };
    let targets = nodes([1, 2]);
    let mut account = settled(&[]);
    let forwards = |account: &Account| account.observed.balancers[0].listeners[0].forwards.clone();
    let weights = |account: &Account| forwards(account).iter().map(|(_, weight)| *weight).collect::<Vec<_>>();
    for (wanted, expected) in [([9, 1], vec![9, 1]), ([1, 1], vec![1, 1]), ([0, 1], vec![0, 1])] {
        account.steps.clear();
        assert_eq!(account.ensure(&spread(wanted, &[]), &targets, usize::MAX).unwrap().again, None);
        assert_eq!((account.names(), weights(&account)), (vec!["ModifyListener".to_owned()], expected));
        assert_eq!(forwards(&account)[1].0, "arn:theirs");
        assert_eq!(account.ensure(&spread(wanted, &[]), &targets, usize::MAX).unwrap().steps, [], "it stays so");
    }
    // The Service's own group is replaced by another group, while the group of another owner keeps its part.
    let tls = [("ssl-cert", "arn:a")];
    let mut account = settled(&tls);
    account.ensure(&spread([3, 1], &tls), &targets, usize::MAX).unwrap();
    let ssl = [("ssl-cert", "arn:a"), ("backend-protocol", "ssl")];
    assert!(account.ensure(&spread([3, 1], &ssl), &targets, usize::MAX).unwrap().again.is_some());
    assert_eq!(weights(&account), [3, 0, 1]);
    assert_eq!(account.ensure(&spread([3, 1], &ssl), &targets, usize::MAX).unwrap().steps, []);
    account.time_passes();
    assert_eq!(account.ensure(&spread([3, 1], &ssl), &targets, usize::MAX).unwrap().again, None);
    assert_eq!(weights(&account), [3, 1]);
    account.settle(&spec(&ssl), &targets);
}

#[test]
fn group_without_targets_is_replaced_immediately() {
    let mut account = settled(&[("ssl-cert", "arn:a")]);
    for group in &mut account.observed.target_groups {
        group.targets.values_mut().for_each(|health| *health = TargetHealth::Unhealthy);
    }
    let tls = spec(&[("ssl-cert", "arn:a"), ("backend-protocol", "ssl")]);
    let plan = account.ensure(&tls, &nodes([1, 2]), usize::MAX).unwrap();
    assert!(plan.again.is_none());
    assert_eq!(account.names(), ["CreateTargetGroup", "Register", "ModifyListener", "DeleteTargetGroup"]);
}

#[test]
fn changed_scheme_replaces_the_load_balancer_once_the_new_one_works() {
    let mut account = settled(&[]);
    let internal = spec(&[("scheme", "internal")]);
    let targets = nodes([1, 2]);
    assert!(account.ensure(&internal, &targets, usize::MAX).unwrap().again.is_some());
    assert_eq!(account.observed.balancers.len(), 2);
    assert!(!account.names().contains(&"DeleteBalancer".to_owned()));
    account.time_passes();
    account.steps.clear();
    account.settle(&internal, &targets);
    assert_eq!(account.names(), ["DeleteBalancer", "DeleteTargetGroup"]);
    account.settle(&spec(&[]), &targets);
}

#[test]
fn ports_are_added_removed_and_joined() {
    let mut account = settled(&[]);
    let mut requested = spec(&[]);
    let targets = nodes([1, 2]);
    for (ports, steps) in [
        (
            vec![(Protocol::Tcp, 80), (Protocol::Udp, 81)],
            &["Authorize", "CreateTargetGroup", "Register", "CreateListener"][..],
        ),
        (vec![(Protocol::Udp, 81)], &["Revoke", "DeleteListener", "DeleteTargetGroup"]),
        (
            vec![(Protocol::Udp, 81), (Protocol::Tcp, 81)],
            &["Authorize", "CreateTargetGroup", "Register", "ModifyListener", "DeleteTargetGroup"],
        ),
    ] {
        requested.ports = ports.iter().map(|(protocol, number)| port(*protocol, *number)).collect();
        account.steps.clear();
        account.settle(&requested, &targets);
        assert_eq!(account.names(), steps, "{ports:?}");
    }
}

#[test]
fn load_balancer_without_security_groups_gets_none_later() {
    let mut account = settled(&[("disable-nlb-sg", "true")]);
    assert!(account.observed.security_groups.is_empty() && account.observed.balancers[0].security_groups.is_empty());
    account.settle(&spec(&[]), &nodes([1, 2]));
    assert!(account.names().is_empty());
}

#[test]
fn changes_by_other_clients_are_reverted() {
    type ForeignChange = (&'static str, fn(&mut Account), &'static [&'static str]);
    let change: &[ForeignChange] = &[
        (
            "a rule added",
            |account| {
                let mut rule = account.observed.security_groups[0].rules[0].clone();
                rule.id = "sgr-x".into();
                rule.rule.from = 22;
                rule.rule.to = 22;
                account.observed.security_groups[0].rules.push(rule);
            },
            &["Revoke"],
        ),
        ("a rule removed", |account| account.observed.security_groups[0].rules.clear(), &["Authorize"]),
        ("a listener removed", |account| account.observed.balancers[0].listeners.clear(), &["CreateListener"]),
        (
            "an attribute changed",
            |account| {
                let attributes: &mut Attributes = &mut account.observed.balancers[0].attributes;
                attributes.insert("load_balancing.cross_zone.enabled".into(), "true".into());
            },
            &["SetBalancerAttributes"],
        ),
        ("a target removed", |account| drop(account.observed.target_groups[0].targets.pop_first()), &["Register"]),
        ("tags removed", |account| account.observed.target_groups[0].tags.clear(), &["AddTags"]),
        (
            "groups replaced",
            |account| account.observed.balancers[0].security_groups = vec!["sg-x".into()],
            &["SetSecurityGroups"],
        ),
        ("health changed", |account| account.observed.target_groups[0].health.interval = 77, &["SetHealthCheck"]),
    ];
    for (what, change, steps) in change {
        let mut account = settled(&[]);
        change(&mut account);
        account.settle(&spec(&[]), &nodes([1, 2]));
        assert_eq!(account.names(), *steps, "{what}");
    }
}

#[test]
fn tags_of_other_owners_are_kept() {
    let mut account = settled(&[]);
    let mut desired = account.desired(&spec(&[]), &nodes([1, 2]));
    desired.tagging = Tagging { prunes: true, foreign: ["cost".to_owned()].into() };
    desired.balancer.tags.insert("cost".into(), "1".into());
    account.observed.balancers[0].tags.extend([("cost".into(), "7".into()), ("by-hand".into(), "x".into())]);
    let steps = diff::ensure(&desired, &account.observed).steps;
    let [Step::RemoveTags { keys, .. }] = &steps[..] else { panic!("{steps:?}") };
    assert_eq!(*keys, ["by-hand".to_owned()].into());
}

#[test]
fn listener_is_recreated_when_its_protocol_changes() {
    let account = settled(&[]);
    let mut wanted = account.desired(&spec(&[]), &nodes([1, 2])).listeners[&80].clone();
    let arn = account.observed.balancers[0].listeners[0].arn.clone();
    let change = |wanted: &Listener| Step::ModifyListener {
        arn: arn.clone(),
        listener: Box::new(wanted.clone()),
        forwards: Vec::new(),
        last: Vec::new(),
    };
    assert_eq!(account.observed.as_recreation(&change(&wanted)), None, "the protocol did not change");
    wanted.protocol = ListenerProtocol::Udp;
    let steps =
        account.observed.as_recreation(&change(&wanted)).map(|steps| steps.iter().map(name).collect::<Vec<_>>());
    assert_eq!(steps.unwrap(), ["DeleteListener", "CreateListener"]);
}

#[test]
fn local_traffic_policy_changes_only_the_health_check() {
    let mut account = settled(&[]);
    let mut local = spec(&[]);
    local.external_traffic_policy = TrafficPolicy::Local;
    local.health_check_node_port = Some(31_000);
    account.settle(&local, &nodes([1, 2]));
    assert_eq!(account.names(), ["SetHealthCheck"]);
    let health = &account.observed.target_groups[0].health;
    assert_eq!((health.port.as_str(), health.path.as_deref()), ("31000", Some("/healthz")));
}

#[test]
fn targets_of_other_clusters_stay_in_a_shared_group() {
    let shared = [("multi-cluster-target-group", "true")];
    let mut account = settled(&shared);
    let others = Target { id: "i-others".into(), port: 1 };
    account.observed.target_groups[0].targets.insert(others.clone(), TargetHealth::Healthy);
    let desired = account.desired(&spec(&shared), &nodes([3]));
    let plan = diff::ensure(&desired, &account.observed);
    // A target that may be ours is on record before it is registered, and until it is deregistered.
    assert_eq!(plan.steps.iter().map(name).collect::<Vec<_>>(), ["Record", "Register", "Deregister", "Record"]);
    plan.steps.iter().for_each(|step: &Step| account.make(step));
    let left = &account.observed.target_groups[0];
    assert!(left.targets.len() == 2 && left.targets.contains_key(&others), "{:?}", left.targets);
    assert!(left.recorded.as_ref().is_some_and(|ours| ours.len() == 1 && !ours.contains(&others)), "{left:?}");
}

#[test]
fn failed_load_balancer_is_deleted_and_recreated() {
    for kind in ["nlb", "external"] {
        let mut account = settled(&[("type", kind)]);
        let before = account.observed.balancers[0].name.clone();
        account.observed.balancers[0].state = State::Failed;
        account.observed.balancers[0].listeners.clear();
        let plan = diff::ensure(&account.desired(&spec(&[("type", kind)]), &nodes([1, 2])), &account.observed);
        assert_eq!(plan.steps.iter().map(name).collect::<Vec<_>>(), ["DeleteBalancer"], "{kind}");
        assert!(plan.again.is_some(), "the name is free once it is deleted");
        plan.steps.iter().for_each(|step| account.make(step));
        account.steps.clear();
        account.settle(&spec(&[("type", kind)]), &nodes([1, 2]));
        assert_eq!(account.names(), ["CreateBalancer", "CreateListener"], "{kind}");
        assert_eq!(account.observed.balancers[0].name, before);
    }
}

#[test]
fn listener_is_tagged_before_it_is_changed() {
    let mut account = settled(&[]);
    account.observed.balancers[0].listeners[0].tags.clear();
    account.settle(&spec(&[("ssl-cert", "arn:a")]), &nodes([1, 2]));
    assert_eq!(account.names(), ["AddTags", "ModifyListener"]);
}

#[test]
fn parts_of_a_stack_whose_adoption_began_are_claimed_before_the_load_balancer_is_deleted() {
    let mut account = settled(&[("type", "external")]);
    account.observed.target_groups[0].tags.remove("kubernetes.io/service-uid");
    account.observed.security_groups[0].tags.remove("kubernetes.io/service-uid");
    let steps = diff::delete(&account.observed, &samples::id()).steps;
    let expected = ["AddTags", "AddTags", "DeleteBalancer", "DeleteTargetGroup", "DeleteSecurityGroup"];
    assert_eq!(steps.iter().map(name).collect::<Vec<_>>(), expected);
    let Step::AddTags { tags, .. } = &steps[0] else { panic!("{steps:?}") };
    assert_eq!(tags["kubernetes.io/service-uid"], samples::id().uid);
}

/// Returns a Service's resources with the security group as cloud-provider-aws makes it.
fn with_group_of_cloud_provider() -> Account {
    let mut account = settled(&[]);
    account.observed.security_groups[0].tags = tags(&[("kubernetes.io/cluster/c", "owned")]);
    account
}

#[test]
fn security_group_of_cloud_provider_is_adopted_by_tags() {
    let mut account = with_group_of_cloud_provider();
    account.settle(&spec(&[]), &nodes([1, 2]));
    assert_eq!(account.names(), ["AddTags"]);
    let tags = &account.observed.security_groups[0].tags;
    assert_eq!(tags["kubernetes.io/service-uid"], samples::id().uid);
}

#[test]
fn security_group_of_cloud_provider_is_claimed_before_it_loses_its_load_balancer() {
    let mut account = with_group_of_cloud_provider();
    let mut desired = account.desired(&spec(&[]), &nodes([1, 2]));
    desired.security_group = None;
    desired.balancer.security_groups = vec!["sg-x".into()];
    let plan = diff::ensure(&desired, &account.observed);
    let names = |steps: &[Step]| steps.iter().map(name).collect::<Vec<_>>();
    assert_eq!(names(&plan.steps), ["AddTags", "SetSecurityGroups", "DeleteSecurityGroup"]);
    desired.balancer.security_groups = vec![account.observed.security_groups[0].id.clone()];
    let named_by_user = diff::ensure(&desired, &account.observed);
    assert_eq!(names(&named_by_user.steps), ["SetSecurityGroups"], "the user's groups stay as they are");

    let id = samples::id();
    let deletion = diff::delete(&account.observed, &id);
    assert_eq!(names(&deletion.steps), ["AddTags", "DeleteBalancer", "DeleteTargetGroup", "DeleteSecurityGroup"]);
    deletion.steps.iter().take(1).for_each(|step| account.make(step));
    let tags = &account.observed.security_groups[0].tags;
    assert_eq!(tags["kubernetes.io/service-name"], id.to_string());
    assert_eq!(tags["kubernetes.io/service-uid"], id.uid);
    assert_eq!(name(&diff::delete(&account.observed, &id).steps[0]), "DeleteBalancer", "the group is claimed once");
}
