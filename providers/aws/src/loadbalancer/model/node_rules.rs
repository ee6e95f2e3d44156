//! Rules in the nodes' security groups for a security group of load balancers: for the one that the cluster's Network
//! Load Balancers share (the backend group), whose number does not grow with the number of Services, and for those of
//! Classic Load Balancers.

use std::collections::BTreeSet;

use providers::Targets;

use crate::loadbalancer::model::build;
use crate::loadbalancer::spec::settings::{GroupSettings, Settings};
use crate::loadbalancer::types::{
    Desired, ObservedRule, Ports, Protocol, Rule, Source, Target, TargetGroup, TargetType,
};

/// The API server's default range of node ports. The rule opens the whole range to load balancers, so that it never has
/// to change.
const NODE_PORTS: (u16, u16) = (30_000, 32_767);
/// Maximum number of this provider's rules for each transport in one node's group; beyond it, a rule is widened.
const MAX_RULES: usize = 4;
/// The description of rules for a security group of load balancers.
///
/// It differs from the Load Balancer Controller's: that controller revokes all rules with its description that it does
/// not need, each time it reconciles a TargetGroupBinding.
const SHARED: &str = "kubernetes.io/rule/nlb/backend";
/// The description of rules of an earlier version, and of the Load Balancer Controller.
const FORMER: &str = "elbv2.k8s.aws/targetGroupBinding=shared";

/// Returns the ports of nodes or pods that a stack sends traffic and probes to.
pub(crate) fn ports(desired: &Desired) -> Ports {
    let of_group = |group: &TargetGroup| {
        ports_of(group.target_type, (group.protocol, group.port), &group.health.port, &group.targets)
    };
    desired.groups().flat_map(of_group).collect()
}

/// Returns the ports that a Service needs for these targets, without reading its load balancer.
pub(crate) fn requested_ports(settings: &Settings, targets: &Targets) -> Ports {
    let groups = settings.listeners.iter().map(|listener| &listener.group).chain(settings.backends());
    let of_group = |requested: &GroupSettings| {
        // The family of a target group depends on its load balancer; pods have the same ports in both families.
        let mut all = build::targets(settings, requested, false, targets);
        all.extend(build::targets(settings, requested, true, targets));
        ports_of(settings.target_type, (requested.protocol, requested.port), &requested.health.port, &all)
    };
    groups.flat_map(of_group).collect()
}

/// Returns the ports of traffic and probes of one target group.
fn ports_of(
    target_type: TargetType,
    (protocol, port): (Protocol, u16),
    probed: &str,
    targets: &BTreeSet<Target>,
) -> Ports {
    let traffic = target_type.traffic_ports(port, targets);
    let transports = protocol.transports().iter();
    let mut ports: Ports = transports.flat_map(|transport| traffic.iter().map(|port| (*transport, *port))).collect();
    match probed.parse() {
        Ok(port) => drop(ports.insert(("tcp", port))),
        Err(_) => ports.extend(traffic.iter().map(|port| ("tcp", *port))),
    }
    ports
}

/// A change of a rule that references a security group of load balancers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    Add(Rule),
    /// The rule with this id is changed to allow more.
    Widen(String, Rule),
}

/// Returns true if a rule has this provider's description. Rules of earlier versions have another one.
pub(crate) fn is_own(rule: &Rule) -> bool {
    rule.description == SHARED
}

/// Returns the changes that open a node's group to a security group of load balancers for `ports`. Usually there are no
/// changes. Rules of users for that group count, but stay as they are.
pub(crate) fn open(rules: &[ObservedRule], source: &str, ports: &Ports) -> Vec<Change> {
    let source = Source::Group(source.to_owned());
    let mut changes: Vec<Change> = Vec::new();
    for transport in ["tcp", "udp"] {
        let own = rules.iter().filter(|rule| rule.rule.source == source);
        let all = own.clone().any(|rule| rule.rule.protocol == "-1");
        let of_transport = own.filter(|rule| rule.rule.protocol == transport);
        let (variable, fixed): (Vec<&ObservedRule>, Vec<&ObservedRule>) =
            of_transport.partition(|rule| is_own(&rule.rule) || rule.rule.description == FORMER);
        let mut have: Vec<(Option<String>, i32, i32)> =
            variable.iter().map(|rule| (Some(rule.id.clone()), rule.rule.from, rule.rule.to)).collect();
        let before = have.clone();
        for (_, port) in ports.iter().filter(|(one, _)| *one == transport && !all) {
            let (from, to) = if (NODE_PORTS.0..=NODE_PORTS.1).contains(port) {
                (i32::from(NODE_PORTS.0), i32::from(NODE_PORTS.1))
            } else {
                (i32::from(*port), i32::from(*port))
            };
            let port = i32::from(*port);
            let is_open = |first: i32, last: i32| (first..=last).contains(&port);
            let is_fixed = fixed.iter().any(|rule| is_open(rule.rule.from, rule.rule.to));
            if is_fixed || have.iter().any(|(_, first, last)| is_open(*first, *last)) {
                continue;
            }
            let count = have.len();
            let near = have.iter_mut().min_by_key(|(_, first, last)| (first.abs_diff(to)).min(last.abs_diff(from)));
            match near {
                Some(near) if near.1.abs_diff(to) <= 1 || near.2.abs_diff(from) <= 1 || count >= MAX_RULES => {
                    (near.1, near.2) = (near.1.min(from), near.2.max(to));
                }
                _ => have.push((None, from, to)),
            }
        }
        let rule = |from, to| Rule {
            protocol: transport.to_owned(),
            from,
            to,
            source: source.clone(),
            description: SHARED.to_owned(),
        };
        for (id, from, to) in have {
            match id {
                None => changes.push(Change::Add(rule(from, to))),
                Some(id) if !before.contains(&(Some(id.clone()), from, to)) => {
                    changes.push(Change::Widen(id, rule(from, to)));
                }
                Some(_) => {}
            }
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use providers::{LoadBalancerSpec, Protocol as Transport};

    use super::*;
    use crate::loadbalancer::samples;

    fn observed(id: &str, protocol: &str, from: i32, to: i32, source: &str, description: &str) -> ObservedRule {
        let source = match source.parse() {
            Ok(range) => Source::Range(range),
            Err(_) => Source::Group(source.into()),
        };
        let rule = Rule { protocol: protocol.into(), from, to, source, description: description.into() };
        ObservedRule { id: id.into(), rule }
    }

    fn changed(rules: &[ObservedRule], ports: &[(&'static str, u16)]) -> Vec<(Option<String>, String, i32, i32)> {
        let changes = open(rules, "sg-b", &ports.iter().copied().collect());
        changes
            .into_iter()
            .map(|change| match change {
                Change::Add(rule) => (None, rule.protocol, rule.from, rule.to),
                Change::Widen(id, rule) => (Some(id), rule.protocol, rule.from, rule.to),
            })
            .collect()
    }

    #[test]
    fn one_rule_opens_all_node_ports() {
        let all = (None, "tcp".to_owned(), 30_000, 32_767);
        assert_eq!(changed(&[], &[("tcp", 30_080), ("tcp", 32_000)]), std::slice::from_ref(&all));
        let udp = (None, "udp".to_owned(), 30_000, 32_767);
        assert_eq!(changed(&[], &[("tcp", 30_080), ("udp", 30_081)]), [all, udp]);
        let have = [observed("r", "tcp", 30_000, 32_767, "sg-b", "")];
        assert_eq!(changed(&have, &[("tcp", 31_000)]), []);
        assert_eq!(changed(&[observed("r", "-1", 0, 65_535, "sg-b", "")], &[("tcp", 1), ("udp", 2)]), []);
        assert_eq!(
            changed(&[observed("r", "tcp", 0, 65_535, "sg-x", "")], &[("tcp", 10)]).len(),
            1,
            "of another group"
        );
    }

    #[test]
    fn rules_grow_and_stay_few() {
        for description in [SHARED, FORMER] {
            let have = [observed("r", "tcp", 8080, 8080, "sg-b", description)];
            assert_eq!(changed(&have, &[("tcp", 8081)]), [(Some("r".into()), "tcp".into(), 8080, 8081)]);
        }
        let four: Vec<_> = [1000, 2000, 3000, 4000]
            .iter()
            .map(|port| observed(&format!("r{port}"), "tcp", *port, *port, "sg-b", SHARED))
            .collect();
        assert_eq!(changed(&four, &[("tcp", 3100)]), [(Some("r3000".into()), "tcp".into(), 3000, 3100)]);
    }

    #[test]
    fn rules_of_users_are_not_widened() {
        let user = |id: &str, from, to| observed(id, "tcp", from, to, "sg-b", "by hand");
        let own = |id: &str, from, to| observed(id, "tcp", from, to, "sg-b", SHARED);
        let changed = |rules: &[ObservedRule], port| open(rules, "sg-b", &[("tcp", port)].into());
        let four: Vec<_> = [1000, 2000, 3000, 4000].map(|port| user(&port.to_string(), port, port)).into();
        for port in [1001, 5000] {
            let found = changed(&four, port);
            assert!(matches!(&found[..], [Change::Add(rule)] if rule.from == i32::from(port)), "{found:?}");
        }
        assert_eq!(changed(&four, 3000), [], "a rule of a user opens the port");
        let all = observed("all", "-1", -1, -1, "sg-b", "");
        assert_eq!(changed(&[all], 3000), [], "cloud-provider-aws has opened all ports");
        let found = changed(&[user("1", 1000, 1000), own("2", 1002, 1002)], 1001);
        assert!(matches!(&found[..], [Change::Widen(id, _)] if id == "2"), "{found:?}");
    }

    #[test]
    fn first_opening_has_few_rules_too() {
        let ports: Vec<_> = (1..=50).map(|number| ("tcp", number * 100)).collect();
        let rules = changed(&[], &ports);
        assert_eq!(rules.len(), MAX_RULES, "{rules:?}");
        let open = |port: u16| rules.iter().any(|(_, _, from, to)| (*from..=*to).contains(&i32::from(port)));
        assert!(ports.iter().all(|(_, port)| open(*port)), "{rules:?}");
    }

    #[test]
    fn requested_ports_follow_targets_and_probes() {
        use crate::loadbalancer::tests::settings;
        let with = |port| {
            let name = samples::port(Transport::Tcp, 80).name;
            Targets { endpoints: [samples::endpoint(&name, [10, 0, 0, 9], port)].into(), ..Targets::default() }
        };
        let nodes = samples::nodes([]);
        let udp = |mut spec: LoadBalancerSpec| {
            spec.ports = vec![samples::port(Transport::Udp, 53)];
            spec
        };
        for (what, spec, targets, expected) in [
            ("no node yet", samples::spec(&[]), nodes.clone(), &[("tcp", 30_080)][..]),
            ("udp", udp(samples::spec(&[])), nodes.clone(), &[("tcp", 10_256), ("udp", 30_053)]),
            ("probe", samples::spec(&[("healthcheck-port", "10256")]), nodes, &[("tcp", 10_256), ("tcp", 30_080)]),
            ("no pod yet", samples::spec(&[("nlb-target-type", "ip")]), Targets::default(), &[]),
            ("first pod", samples::spec(&[("nlb-target-type", "ip")]), with(8080), &[("tcp", 8080)]),
            ("new port", samples::spec(&[("nlb-target-type", "ip")]), with(9090), &[("tcp", 9090)]),
        ] {
            let ports: Vec<_> = requested_ports(&settings(&spec), &targets).into_iter().collect();
            assert_eq!(ports, expected, "{what}");
        }
    }

    #[test]
    fn rules_do_not_have_the_description_of_the_load_balancer_controller() {
        let Some(Change::Add(rule)) = open(&[], "sg-b", &[("tcp", 30_080)].into()).pop() else { panic!("no rule") };
        assert!(!rule.description.contains("elbv2.k8s.aws"), "{}", rule.description);
        // A rule with the description of an earlier version still opens its ports.
        let have = [observed("r", "tcp", 30_000, 32_767, "sg-b", FORMER)];
        assert_eq!(changed(&have, &[("tcp", 31_000)]), []);
    }
}
