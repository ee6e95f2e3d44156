//! Random histories: Services change, calls crash after any step, other clients interfere; the end state is the last
//! desired one, and a deletion leaves nothing.

use std::collections::BTreeSet;

use proptest::prelude::*;
use providers::{LoadBalancerSpec, Protocol, Targets, TrafficPolicy};

use super::backends;
use super::world::World;
use crate::loadbalancer::model::diff;
use crate::loadbalancer::plan::Step;
use crate::loadbalancer::samples::{nodes, port, spec};
use crate::loadbalancer::spec::annotations::read;
use crate::loadbalancer::spec::settings::Policy;

/// Annotations with an effect, alone and together.
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

/// Gives a part of each listener's traffic to another Service, whose node ports have moved by `moved`.
fn forward(asked: &mut LoadBalancerSpec, weights: (i32, i32), moved: u16) {
    let mut ports = vec![port(Protocol::Tcp, 8080), port(Protocol::Udp, 8080)];
    ports.iter_mut().for_each(|port| port.node_port = Some(31_000 + moved));
    asked.others.insert("green".into(), backends::other(ports));
    for number in asked.ports.iter().map(|port| port.port).collect::<BTreeSet<_>>() {
        // A listener's protocol depends on many settings.
        let known = ["TCP", "TLS", "UDP", "TCP_UDP"].map(|protocol| {
            let mut with = asked.clone();
            backends::spread(&mut with, &format!("{protocol}-{number}"), weights, "8080");
            with
        });
        let policy = Policy { controller_services: true, ..Policy::default() };
        if let Some(with) = known.into_iter().find(|with| read(with, &policy).is_ok()) {
            *asked = with;
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
    let asked = choices.prop_map(|(choice, ports, local, ranges, weights, moved)| {
        let mut asked = spec(CHOICES[choice]);
        asked.ports = ports.into_iter().map(|(protocol, number)| port(protocol, number)).collect();
        if local {
            asked.external_traffic_policy = TrafficPolicy::Local;
            asked.health_check_node_port = Some(32_000);
        }
        if ranges {
            asked.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
        }
        if let Some(weights) = weights {
            forward(&mut asked, weights, moved);
        }
        asked
    });
    let policy = Policy { controller_services: true, ..Policy::default() };
    asked.prop_filter("it can work", move |asked| read(asked, &policy).is_ok())
}

/// An event of a history.
#[derive(Debug, Clone)]
enum Event {
    /// The Service changes, and the call crashes after this number of steps.
    Ensure(Box<LoadBalancerSpec>, Vec<u8>, usize),
    /// AWS finishes the changes that it works on.
    Time,
    /// Another client deletes something.
    Meddle(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let numbers = prop::collection::btree_set(1_u8..6, 0..4).prop_map(|set| set.into_iter().collect());
    let ensure = (services(), numbers, prop_oneof![0_usize..12, Just(usize::MAX)]);
    let event = prop_oneof![
        4 => ensure.prop_map(|(asked, numbers, most)| Event::Ensure(Box::new(asked), numbers, most)),
        2 => Just(Event::Time),
        1 => any::<u8>().prop_map(Event::Meddle),
    ];
    prop::collection::vec(event, 1..8)
}

fn meddle(world: &mut World, what: u8) {
    match what % 4 {
        0 => world.seen.balancers.iter_mut().for_each(|balancer| drop(balancer.listeners.pop())),
        1 => world.seen.security_groups.iter_mut().for_each(|group| drop(group.rules.pop())),
        2 => world.seen.target_groups.iter_mut().for_each(|group| group.health.interval += 1),
        _ => world.seen.balancers.clear(),
    }
}

fn all(numbers: &[u8]) -> Targets {
    nodes(numbers.iter().copied())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn history_ends_in_the_last_desired_state(events in events(), last in services(), numbers in Just(vec![1, 2, 3])) {
        let mut world = World::default();
        for event in events {
            match event {
                Event::Ensure(asked, numbers, most) => drop(world.ensure(&asked, &all(&numbers), most)),
                Event::Time => world.time_passes(),
                Event::Meddle(what) => meddle(&mut world, what),
            }
        }
        world.settle(&last, &all(&numbers));
        let desired = world.desired(&last, &all(&numbers));
        prop_assert_eq!(diff::ensure(&desired, &world.seen).steps, vec![], "a settled balancer is left alone");
        // Deleted, with a crash after each step.
        while !world.seen.is_empty() {
            let plan = diff::delete(&world.seen, "u");
            let step = plan.steps.first().expect("what is there is deleted").clone();
            world.make(&step);
        }
    }

    #[test]
    fn port_that_stays_desired_is_always_served(
        before in services(),
        after in services(),
        numbers in Just(vec![1, 2]),
    ) {
        let targets = all(&numbers);
        let mut world = World::default();
        world.settle(&before, &targets);
        let scheme = |spec: &LoadBalancerSpec| world.desired(spec, &targets).balancer.scheme;
        let same = scheme(&before) == scheme(&after);
        world.steps.clear();
        world.settle(&after, &targets);
        for step in &world.steps {
            let dropped = matches!(step, Step::DeleteBalancer { .. });
            prop_assert!(!(same && dropped), "the balancer is kept: {:?}", world.names());
        }
    }
}
