//! Random histories: Services change, calls crash after any step, other clients change resources. At the end AWS has
//! the last desired state, and a deletion leaves nothing.

use std::collections::BTreeSet;

use proptest::prelude::*;
use providers::{LoadBalancerSpec, Protocol, Targets, TrafficPolicy};

use super::account::Account;
use super::backends;
use crate::loadbalancer::model::diff;
use crate::loadbalancer::plan::Step;
use crate::loadbalancer::samples::{self, nodes, port, spec};
use crate::loadbalancer::spec::annotations::read;
use crate::loadbalancer::spec::settings::Policy;

/// Sets of annotations, of which a history chooses one for each version of a Service.
const CHOICES: [&[(&str, &str)]; 12] = [
    &[],
    &[("scheme", "internal")],
    &[("ssl-cert", "arn:a")],
    &[("ssl-cert", "arn:a,arn:b"), ("backend-protocol", "ssl")],
    &[("ssl-cert", "arn:b"), ("ssl-ports", "*")],
    &[("nlb-target-type", "ip")],
    &[("subnets", "subnet-1,subnet-5")],
    &[("subnets", "subnet-4,subnet-5,subnet-6"), ("scheme", "internal")],
    &[("ip-address-type", "dualstack"), ("enable-icmp-for-path-mtu-discovery", "on")],
    &[("target-group-attributes", "proxy_protocol_v2.enabled=true"), ("healthcheck-protocol", "http")],
    &[("type", "nlb-ip"), ("scheme", "internet-facing"), ("alpn-policy", "HTTP2Only")],
    &[
        ("type", "external"),
        ("additional-resource-tags", "a=b,c=d"),
        ("attributes", "deletion_protection.enabled=true"),
    ],
];

/// Forwards a part of each listener's traffic to another Service, whose node ports are shifted by `moved`.
fn forward(requested: &mut LoadBalancerSpec, weights: (i32, i32), moved: u16) {
    let mut ports = vec![port(Protocol::Tcp, 8080), port(Protocol::Udp, 8080)];
    ports.iter_mut().for_each(|port| port.node_port = Some(31_000 + moved));
    requested.others.insert("green".into(), backends::other(ports));
    for number in requested.ports.iter().map(|port| port.port).collect::<BTreeSet<_>>() {
        // The action names the listener's protocol, which depends on many settings: the valid one is found by trying.
        let candidates = ["TCP", "TLS", "UDP", "TCP_UDP"].map(|protocol| {
            let mut with_action = requested.clone();
            backends::spread(&mut with_action, &format!("{protocol}-{number}"), weights, "8080");
            with_action
        });
        let policy = Policy { controller_services: true, ..Policy::default() };
        if let Some(with_action) = candidates.into_iter().find(|with_action| read(with_action, &policy).is_ok()) {
            *requested = with_action;
        }
    }
}

fn services() -> impl Strategy<Value = LoadBalancerSpec> {
    let ports = prop::sample::subsequence(
        vec![
            (Protocol::Tcp, 80),
            (Protocol::Tcp, 443),
            (Protocol::Udp, 53),
            (Protocol::Tcp, 53),
            (Protocol::Udp, 5000),
        ],
        1..4,
    );
    let weights =
        prop_oneof![2 => Just(None), 1 => Just(Some((9, 1))), 1 => Just(Some((0, 1))), 1 => Just(Some((1, 0)))];
    let choices = (0..CHOICES.len(), ports, any::<bool>(), any::<bool>(), weights, 0_u16..2);
    let requested = choices.prop_map(|(choice, ports, local, ranges, weights, moved)| {
        let mut requested = spec(CHOICES[choice]);
        requested.ports = ports.into_iter().map(|(protocol, number)| port(protocol, number)).collect();
        if local {
            requested.external_traffic_policy = TrafficPolicy::Local;
            requested.health_check_node_port = Some(32_000);
        }
        if ranges {
            requested.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
        }
        if let Some(weights) = weights {
            forward(&mut requested, weights, moved);
        }
        requested
    });
    let policy = Policy { controller_services: true, ..Policy::default() };
    requested.prop_filter("the settings are valid", move |requested| read(requested, &policy).is_ok())
}

/// An event of a history.
#[derive(Debug, Clone)]
enum Event {
    /// The Service or its nodes (given by their numbers) change, and the call crashes after this number of steps.
    Ensure(Box<LoadBalancerSpec>, Vec<u8>, usize),
    /// AWS completes the changes in progress.
    Time,
    /// Another client changes or deletes resources; the number chooses which.
    OtherClient(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let numbers = prop::collection::btree_set(1_u8..6, 0..4).prop_map(|set| set.into_iter().collect());
    let ensure = (services(), numbers, prop_oneof![0_usize..12, Just(usize::MAX)]);
    let event = prop_oneof![
        4 => ensure.prop_map(|(requested, numbers, max_steps)| Event::Ensure(Box::new(requested), numbers, max_steps)),
        2 => Just(Event::Time),
        1 => any::<u8>().prop_map(Event::OtherClient),
    ];
    prop::collection::vec(event, 1..8)
}

fn change_as_another_client(account: &mut Account, what: u8) {
    match what % 4 {
        0 => account.observed.balancers.iter_mut().for_each(|balancer| drop(balancer.listeners.pop())),
        1 => account.observed.security_groups.iter_mut().for_each(|group| drop(group.rules.pop())),
        2 => account.observed.target_groups.iter_mut().for_each(|group| group.health.interval += 1),
        _ => account.observed.balancers.clear(),
    }
}

fn targets_of(numbers: &[u8]) -> Targets {
    nodes(numbers.iter().copied())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn history_ends_in_the_last_desired_state(events in events(), last in services(), numbers in Just(vec![1, 2, 3])) {
        let mut account = Account::default();
        for event in events {
            match event {
                Event::Ensure(requested, numbers, max_steps) => {
                    drop(account.ensure(&requested, &targets_of(&numbers), max_steps));
                }
                Event::Time => account.time_passes(),
                Event::OtherClient(what) => change_as_another_client(&mut account, what),
            }
        }
        account.settle(&last, &targets_of(&numbers));
        let desired = account.desired(&last, &targets_of(&numbers));
        prop_assert_eq!(diff::ensure(&desired, &account.observed).steps, vec![], "a settled load balancer is not changed");
        // Deleted, with a crash after each step.
        while !account.observed.is_empty() {
            let plan = diff::delete(&account.observed, &samples::id());
            let step = plan.steps.first().expect("a step for each resource that exists").clone();
            account.make(&step);
        }
    }

    #[test]
    fn load_balancer_is_kept_while_its_scheme_is_the_same(
        before in services(),
        after in services(),
        numbers in Just(vec![1, 2]),
    ) {
        let targets = targets_of(&numbers);
        let mut account = Account::default();
        account.settle(&before, &targets);
        let scheme = |spec: &LoadBalancerSpec| account.desired(spec, &targets).balancer.scheme;
        let same = scheme(&before) == scheme(&after);
        account.steps.clear();
        account.settle(&after, &targets);
        for step in &account.steps {
            let deletes_balancer = matches!(step, Step::DeleteBalancer { .. });
            prop_assert!(!(same && deletes_balancer), "the load balancer was replaced: {:?}", account.names());
        }
    }
}
