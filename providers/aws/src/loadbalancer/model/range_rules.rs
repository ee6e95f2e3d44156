//! Rules in nodes' security groups for load balancers without security groups: each load balancer has its own rules,
//! whose sources are the IP ranges of its clients and its subnets.
//!
//! EC2 distinguishes rules by protocol, ports and source, but not by description. Two load balancers that need the same
//! rule share one rule, whose description names the first load balancer. When the first one no longer needs the rule,
//! the rule is not revoked but *handed over*: its description is changed to that of the other load balancer.

use std::collections::BTreeSet;

use providers::{IpNet, LoadBalancerId};

use crate::loadbalancer::model::build::clients;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::vpc::Network;
use crate::loadbalancer::spec::settings::Settings;
use crate::loadbalancer::types::{
    Desired, Mapping, ObservedRule, Ports, Protocol, Rule, Source, TRAFFIC_PORT, all_addresses,
};
use crate::tags::ClusterTags;

/// Descriptions of cloud-provider-aws's rules; the first two are followed by the load balancer's name.
const CLIENT: &str = "kubernetes.io/rule/nlb/client";
const HEALTH: &str = "kubernetes.io/rule/nlb/health";
const MTU: &str = "kubernetes.io/rule/nlb/mtu";

/// Returns the rules that a load balancer without security groups needs in each node's group, for traffic from its
/// clients and from its subnets. Their description has a name by which they are found when the load balancer is
/// deleted. Upstream: cloud-provider-aws, updateInstanceSecurityGroupsForNLB.
pub(crate) fn desired(
    (cluster, id): (&ClusterTags, &LoadBalancerId),
    settings: &Settings,
    desired: &Desired,
    (balancer, subnets): (&str, &[Mapping]),
    network: &Network,
) -> BTreeSet<Rule> {
    let name = names::rule_name(cluster, id, balancer);
    let dualstack = desired.groups().any(|group| group.ipv6);
    let all_clients = clients(settings, dualstack);
    // A load balancer reaches the targets of a group by the family of that group.
    let [subnets_v4, subnets_v6] = [false, true].map(|ipv6| network.ranges_of(subnets, ipv6));
    let mut rules = BTreeSet::new();
    for group in desired.groups() {
        let reached = Reached {
            protocol: group.protocol,
            port: group.port,
            traffic: group.target_type.traffic_ports(group.port, &group.targets),
            probed: group.health.port.clone(),
            preserves_client: group.preserves_client,
            ipv6: group.ipv6,
        };
        rules.extend(rules_of(&reached, &name, &all_clients, if group.ipv6 { &subnets_v6 } else { &subnets_v4 }));
    }
    rules
}

/// Returns the rules that load balancers, given by the name in the descriptions of their rules and by their subnets,
/// need in the groups of targets while their desired state is unknown.
pub(crate) fn followed(
    balancers: &[(String, Vec<Mapping>)],
    clients: &BTreeSet<IpNet>,
    groups: &[Reached],
    network: &Network,
) -> BTreeSet<Rule> {
    let clients: Vec<IpNet> = clients.iter().copied().collect();
    let all = balancers.iter().flat_map(|balancer| groups.iter().map(move |group| (balancer, group)));
    let rules = |((name, subnets), group): (&(String, Vec<Mapping>), &Reached)| {
        rules_of(group, name, &clients, &network.ranges_of(subnets, group.ipv6))
    };
    all.flat_map(rules).collect()
}

/// The fields of a target group that rules depend on.
#[derive(Debug, Clone)]
pub(crate) struct Reached {
    pub protocol: Protocol,
    pub port: u16,
    /// The ports of traffic.
    pub traffic: BTreeSet<u16>,
    /// The port of probes, or [`TRAFFIC_PORT`].
    pub probed: String,
    pub preserves_client: bool,
    pub ipv6: bool,
}

/// Returns the rules for one target group of the load balancer that has `name` in the descriptions of its rules.
fn rules_of(group: &Reached, name: &str, clients: &[IpNet], subnets: &[IpNet]) -> BTreeSet<Rule> {
    let rule = |protocol: &str, from: u16, to: u16, range: &IpNet, description: &str| Rule {
        protocol: protocol.to_owned(),
        from: from.into(),
        to: to.into(),
        source: Source::Range(*range),
        description: description.to_owned(),
    };
    let mut rules = BTreeSet::new();
    let client = format!("{CLIENT}={name}");
    let health = format!("{HEALTH}={name}");
    let ranges = if group.preserves_client { clients } else { subnets };
    for port in &group.traffic {
        for transport in group.protocol.transports() {
            rules.extend(ranges.iter().map(|range| rule(transport, *port, *port, range, &client)));
        }
    }
    let probed = match group.probed.as_str() {
        TRAFFIC_PORT => group.traffic.clone(),
        number => number.parse().into_iter().collect(),
    };
    let open = |port: u16| {
        let all = |range: &IpNet| *range == all_addresses(false) || *range == all_addresses(true);
        let tcp = group.protocol.transports().contains(&"tcp");
        tcp && port == group.port && ranges.iter().any(all)
    };
    for port in probed.into_iter().filter(|port| !open(*port)) {
        rules.extend(subnets.iter().map(|range| rule("tcp", port, port, range, &health)));
    }
    if group.preserves_client {
        let v4 = clients.iter().filter(|range| range.addr().is_ipv4());
        rules.extend(v4.map(|range| rule("icmp", 3, 4, range, MTU)));
    }
    rules
}

/// Returns the IP ranges of the clients of a load balancer without security groups, according to the rules in nodes'
/// groups whose descriptions have one of its `names`. The `requested` ranges are not sufficient: in an invalid Service
/// they may be the mistake.
///
/// If the load balancer shares all its rules with others, their descriptions have the names of the others. In this
/// case, the result contains the `requested` ranges that a rule of any load balancer allows for one of `ports`.
pub(crate) fn known_clients(
    observed: &[ObservedRule],
    names: &[String],
    requested: &[IpNet],
    ports: &Ports,
) -> BTreeSet<IpNet> {
    let client = observed.iter().map(|rule| &rule.rule).filter(|rule| rule.description.starts_with(CLIENT));
    let range = |rule: &Rule| match rule.source {
        Source::Range(range) => Some(range),
        _ => None,
    };
    let is_named = |rule: &&Rule| balancer_of(rule).is_some_and(|name| names.iter().any(|own| own == name));
    let own: BTreeSet<IpNet> = client.clone().filter(is_named).filter_map(range).collect();
    if !own.is_empty() {
        return own;
    }
    let is_same_port = |rule: &&Rule| {
        let (from, to) = (rule.from, rule.to);
        ports.iter().any(|(transport, port)| *transport == rule.protocol && (from..=to).contains(&i32::from(*port)))
    };
    let requested: BTreeSet<&IpNet> = requested.iter().collect();
    client.filter(is_same_port).filter_map(range).filter(|range| requested.contains(range)).collect()
}

/// Returns the name of the load balancer without security groups that a rule was made for.
pub(crate) fn balancer_of(rule: &Rule) -> Option<&str> {
    named_balancer(&rule.description)
}

/// Returns the name of the load balancer in the description of a rule that was made for it.
pub(crate) fn named_balancer(description: &str) -> Option<&str> {
    let (kind, name) = description.split_once('=')?;
    [CLIENT, HEALTH].contains(&kind).then_some(name)
}

/// Another load balancer of the cluster without security groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sharer {
    /// The name in the descriptions of its rules.
    pub name: String,
    /// The rules that it needs; `None` if this process has not reconciled the load balancer yet, so it may need
    /// any rule.
    pub wanted: Option<BTreeSet<Rule>>,
}

impl Sharer {
    /// Returns the description that this load balancer gives to another one's rule, if it is known to need that rule.
    fn description(&self, rule: &Rule) -> Option<String> {
        let same = self.wanted.iter().flatten().find(|wanted| wanted.key() == rule.key());
        same.map(|wanted| wanted.description.clone())
    }
}

/// Returns the description of a rule after its owner no longer needs the rule; `None` if no other load balancer may
/// need the rule.
fn handed_over_description(rule: &Rule, others: &[Sharer]) -> Option<String> {
    let certain = others.iter().find_map(|other| other.description(rule));
    let (kind, _) = rule.description.split_once('=')?;
    let possible = others.iter().find(|other| other.wanted.is_none());
    certain.or_else(|| possible.map(|other| format!("{kind}={}", other.name)))
}

/// The changes to one Service's rules in a node's group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub add: Vec<Rule>,
    /// Rules that another load balancer needs, too, by id. Their new descriptions name that load balancer.
    pub hand_over: Vec<ObservedRule>,
    /// Ids of rules to revoke.
    pub revoke: Vec<String>,
}

impl Changes {
    /// Returns true if nothing changes.
    pub(crate) fn is_empty(&self) -> bool {
        self.add.is_empty() && self.hand_over.is_empty() && self.revoke.is_empty()
    }

    /// Returns only the changes that allow more.
    pub(crate) fn without_removals(self) -> Self {
        Self { add: self.add, ..Self::default() }
    }
}

/// Returns the changes to one Service's rules in a node's group; `names` are the names of its load balancer. An equal
/// rule with another description is kept.
pub(crate) fn changes(
    observed: &[ObservedRule],
    names: &[String],
    wanted: &BTreeSet<Rule>,
    others: &[Sharer],
) -> Changes {
    let have: BTreeSet<_> = observed.iter().map(|rule| rule.rule.key()).collect();
    let want: BTreeSet<_> = wanted.iter().map(Rule::key).collect();
    let mut keys = BTreeSet::new();
    let add: Vec<Rule> =
        wanted.iter().filter(|rule| !have.contains(&rule.key()) && keys.insert(rule.key())).cloned().collect();
    let own = |rule: &&ObservedRule| balancer_of(&rule.rule).is_some_and(|name| names.iter().any(|own| own == name));
    let unwanted = observed.iter().filter(own).filter(|rule| !want.contains(&rule.rule.key()));
    let mut hand_over = Vec::new();
    let mut gone = Vec::new();
    for rule in unwanted {
        match handed_over_description(&rule.rule, others) {
            Some(description) => {
                hand_over.push(ObservedRule { id: rule.id.clone(), rule: Rule { description, ..rule.rule.clone() } });
            }
            None => gone.push(rule),
        }
    }
    let stays = |source: &Source| {
        let client = |rule: &&ObservedRule| rule.rule.description.starts_with(CLIENT) && !gone.contains(rule);
        observed.iter().filter(client).any(|rule| rule.rule.source == *source)
            || wanted.iter().any(|rule| rule.source == *source)
    };
    // The rule for path MTU discovery is shared by all load balancers with the same clients.
    let orphans =
        observed.iter().filter(|rule| !gone.is_empty() && rule.rule.description == MTU && !stays(&rule.rule.source));
    let revoke = gone.iter().copied().chain(orphans).map(|rule| rule.id.clone()).collect();
    Changes { add, hand_over, revoke }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn observed(id: &str, protocol: &str, from: i32, to: i32, source: &str, description: &str) -> ObservedRule {
        let source = Source::Range(source.parse().unwrap());
        let rule = Rule { protocol: protocol.into(), from, to, source, description: description.into() };
        ObservedRule { id: id.into(), rule }
    }

    fn described(rule: &ObservedRule, description: &str) -> ObservedRule {
        ObservedRule { rule: Rule { description: description.into(), ..rule.rule.clone() }, ..rule.clone() }
    }

    #[test]
    fn only_own_rules_are_revoked() {
        let names = ["a1".to_owned()];
        let rules = [
            observed("r1", "tcp", 30_080, 30_080, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=a1"),
            observed("r2", "tcp", 30_081, 30_081, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=a2"),
            observed("r3", "tcp", 22, 22, "0.0.0.0/0", "by hand"),
            observed("r4", "icmp", 3, 4, "0.0.0.0/0", MTU),
            observed("r5", "icmp", 3, 4, "10.0.0.0/8", MTU),
        ];
        let none = changes(&rules, &names, &BTreeSet::new(), &[]);
        assert_eq!(none, Changes { revoke: vec!["r1".into(), "r5".into()], ..Changes::default() });
        assert!(none.without_removals().is_empty());
        let wanted: BTreeSet<_> = [rules[0].rule.clone(), rules[2].rule.clone()].into();
        assert!(changes(&rules, &names, &wanted, &[]).is_empty());
        assert_eq!(changes(&[], &names, &wanted, &[]).without_removals().add.len(), 2);
    }

    #[test]
    fn rule_that_another_load_balancer_may_need_is_handed_over() {
        let names = ["a1".to_owned()];
        let health = observed("r1", "tcp", 10_256, 10_256, "10.0.1.0/24", "kubernetes.io/rule/nlb/health=a1");
        let other = |wanted: Option<&[&Rule]>| Sharer {
            name: "a2".into(),
            wanted: wanted.map(|rules| rules.iter().map(|rule| (*rule).clone()).collect()),
        };
        let needed = described(&health, "kubernetes.io/rule/nlb/client=a2");
        let unlike = observed("", "udp", 10_256, 10_256, "10.0.1.0/24", "").rule;
        let kept = described(&health, "kubernetes.io/rule/nlb/health=a2");
        for (what, others, expected) in [
            ("no other", vec![], None),
            ("other rules", vec![other(Some(&[&unlike]))], None),
            ("the same rule", vec![other(None), other(Some(&[&unlike, &needed.rule]))], Some(&needed)),
            ("unknown rules", vec![other(Some(&[])), other(None)], Some(&kept)),
        ] {
            let found = changes(std::slice::from_ref(&health), &names, &BTreeSet::new(), &others);
            assert_eq!(found.hand_over.first(), expected, "{what}");
            assert_eq!(found.revoke.is_empty(), expected.is_some(), "{what}");
        }
    }

    #[test]
    fn path_mtu_rule_stays_with_clients_that_were_handed_over() {
        let rules = [
            observed("r1", "udp", 30_053, 30_053, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=a1"),
            observed("r2", "tcp", 30_080, 30_080, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=a1"),
            observed("r3", "icmp", 3, 4, "0.0.0.0/0", MTU),
        ];
        let other = Sharer { name: "a2".into(), wanted: Some([rules[0].rule.clone()].into()) };
        let found = changes(&rules, &["a1".to_owned()], &BTreeSet::new(), &[other]);
        assert_eq!((found.hand_over.len(), found.revoke), (1, vec!["r2".to_owned()]));
    }

    #[test]
    fn clients_are_known_from_own_rules_or_else_from_shared_ones() {
        let own = observed("r1", "tcp", 30_080, 30_080, "192.0.2.0/24", "kubernetes.io/rule/nlb/client=a1");
        let health = observed("r2", "tcp", 30_080, 30_080, "10.0.1.0/24", "kubernetes.io/rule/nlb/health=a1");
        let shared = observed("r3", "tcp", 8080, 8080, "0.0.0.0/0", "kubernetes.io/rule/nlb/client=a2");
        let mtu = observed("r4", "icmp", 3, 4, "0.0.0.0/0", MTU);
        let by_hand = observed("r5", "tcp", 8080, 8080, "0.0.0.0/0", "by hand");
        let all: [IpNet; 1] = ["0.0.0.0/0".parse().unwrap()];
        let narrow: [IpNet; 1] = ["198.51.100.0/24".parse().unwrap()];
        let none: &[&str] = &[];
        for (what, rules, requested, ports, expected) in [
            ("own rules", vec![&own, &health, &shared], all, ("tcp", 8080), &["192.0.2.0/24"][..]),
            (
                "a rule of another load balancer that it shares",
                vec![&health, &shared],
                all,
                ("tcp", 8080),
                &["0.0.0.0/0"],
            ),
            ("another port", vec![&health, &shared], all, ("tcp", 8081), none),
            ("another transport", vec![&health, &shared], all, ("udp", 8080), none),
            ("other clients than requested", vec![&health, &shared], narrow, ("tcp", 8080), none),
            ("rules of users", vec![&mtu, &by_hand], all, ("tcp", 8080), none),
        ] {
            let rules: Vec<ObservedRule> = rules.into_iter().cloned().collect();
            let found = known_clients(&rules, &["a1".to_owned()], &requested, &[ports].into());
            let expected: BTreeSet<IpNet> = expected.iter().map(|range| range.parse().unwrap()).collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn health_checks_come_from_the_subnets_in_the_family_of_the_target_group() {
        let network = crate::loadbalancer::samples::network();
        let subnets = vec![Mapping { subnet: "subnet-1".into(), ..Mapping::default() }];
        let reached = |ipv6| Reached {
            protocol: Protocol::Udp,
            port: 30_053,
            traffic: [30_053].into(),
            probed: "10256".into(),
            preserves_client: true,
            ipv6,
        };
        let balancers = [("a1".to_owned(), subnets)];
        let sources = |groups: &[Reached]| {
            let rules = followed(&balancers, &BTreeSet::new(), groups, &network);
            rules.into_iter().map(|rule| rule.source).collect::<BTreeSet<Source>>()
        };
        let [v4, v6] = ["10.0.1.0/24", "fd00:1::/64"].map(|range| Source::Range(range.parse().unwrap()));
        assert_eq!(sources(&[reached(false)]), [v4.clone()].into());
        assert_eq!(sources(&[reached(false), reached(true)]), [v4, v6].into());
    }
}
