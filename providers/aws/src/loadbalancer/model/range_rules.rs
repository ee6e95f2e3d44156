//! Rules in nodes' security groups for load balancers without security groups: each load balancer has its own rules,
//! whose sources are the IP ranges of its clients and its subnets.
//!
//! EC2 distinguishes rules by protocol, ports and source, but not by description. Two load balancers that need the same
//! rule share one rule, which names the first load balancer. Instead of revoking it, the first load balancer's Service
//! hands it over to the other load balancer.

use std::collections::BTreeSet;

use providers::LoadBalancerId;

use crate::loadbalancer::model::build::clients;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::vpc::Network;
use crate::loadbalancer::spec::settings::Settings;
use crate::loadbalancer::types::{
    Desired, Mapping, ObservedRule, Rule, Source, TRAFFIC_PORT, TargetType, all_addresses,
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
    let subnets = network.ranges_of(subnets, dualstack);
    let rule = |protocol: &str, from: u16, to: u16, range, description: &str| Rule {
        protocol: protocol.to_owned(),
        from: from.into(),
        to: to.into(),
        source: Source::Range(range),
        description: description.to_owned(),
    };
    let mut rules = BTreeSet::new();
    let client = format!("{CLIENT}={name}");
    let health = format!("{HEALTH}={name}");
    for group in desired.groups() {
        let ranges = if group.preserves_client { &all_clients } else { &subnets };
        let traffic: BTreeSet<u16> = match group.target_type {
            TargetType::Alb => BTreeSet::new(),
            TargetType::Instance => [group.port].into(),
            TargetType::Ip => group.targets.iter().map(|target| target.port).collect(),
        };
        for port in &traffic {
            for transport in group.protocol.transports() {
                rules.extend(ranges.iter().map(|range| rule(transport, *port, *port, *range, &client)));
            }
        }
        let probed =
            if group.health.port == TRAFFIC_PORT { traffic } else { group.health.port.parse().into_iter().collect() };
        let open = |port: u16| {
            let all = |range: &providers::IpNet| *range == all_addresses(false) || *range == all_addresses(true);
            let tcp = group.protocol.transports().contains(&"tcp");
            tcp && port == group.port && ranges.iter().any(all)
        };
        for port in probed.into_iter().filter(|port| !open(*port)) {
            rules.extend(subnets.iter().map(|range| rule("tcp", port, port, *range, &health)));
        }
        if group.preserves_client {
            let v4 = all_clients.iter().filter(|range| range.addr().is_ipv4());
            rules.extend(v4.map(|range| rule("icmp", 3, 4, *range, MTU)));
        }
    }
    rules
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
    /// The rules that it needs; `None` if this process has not reconciled the load balancer yet, so that it may need
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

/// Returns the description of a rule after its owner no longer needs it; `None` if no other load balancer may need it.
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
    /// Ids.
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
}
