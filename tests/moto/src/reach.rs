//! Reachability: whether load balancers reach their targets, as far as security groups decide about it.
//!
//! A load balancer reaches a target if a security group of the target's interface lets in the port of traffic and the
//! port of health checks, from a security group of the load balancer or from its subnets (Elastic Load Balancing user
//! guide for Network Load Balancers, "Update the security groups for your Network Load Balancer" and "Target security
//! groups"). moto finds all targets healthy.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use anyhow::Result;

use crate::aws::{Aws, Service};

/// A target: its target group's ARN, its id and its port.
pub type Key = (String, String, String);

/// A rule for what comes in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rule {
    protocol: String,
    from: i32,
    to: i32,
    /// The security group that it names, if any.
    group: String,
    /// The range that it names, if any.
    range: String,
}

/// The side of a load balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Source {
    groups: BTreeSet<String>,
    /// The ranges of its subnets.
    subnets: Vec<String>,
}

impl Rule {
    fn lets_in(&self, source: &Source, protocol: &str, port: i32) -> bool {
        let fits = self.protocol == "-1" || (self.protocol == protocol && (self.from..=self.to).contains(&port));
        let named = source.groups.contains(&self.group);
        let ranged = !source.subnets.is_empty() && source.subnets.iter().all(|subnet| covers(&self.range, subnet));
        fits && (named || ranged)
    }
}

fn parse(range: &str) -> Option<(u32, u32)> {
    let (address, length) = range.split_once('/')?;
    let length: u32 = length.parse().ok().filter(|length| *length <= 32)?;
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    Some((u32::from(address.parse::<Ipv4Addr>().ok()?) & mask, mask))
}

/// Whether all addresses of the second range are in the first.
fn covers(outer: &str, inner: &str) -> bool {
    let (Some((outer, wide)), Some((inner, narrow))) = (parse(outer), parse(inner)) else { return false };
    wide <= narrow && inner & wide == outer
}

/// Whether rules let in everything that a target group needs: each a protocol and a port.
fn reaches(rules: &[Rule], source: &Source, needed: &[(&str, i32)]) -> bool {
    needed.iter().all(|(protocol, port)| rules.iter().any(|rule| rule.lets_in(source, protocol, *port)))
}

/// The protocols of IP that a protocol of a target group stands for.
fn transports(protocol: &str) -> &'static [&'static str] {
    match protocol {
        "UDP" | "QUIC" => &["udp"],
        "TCP_UDP" | "TCP_QUIC" => &["tcp", "udp"],
        _ => &["tcp"],
    }
}

/// Which registered targets can be reached now. Targets of groups that no load balancer uses are left out.
///
/// # Errors
/// If moto refuses a read.
pub async fn snapshot(aws: &Aws) -> Result<BTreeMap<Key, bool>> {
    let mut found = BTreeMap::new();
    for group in aws.list(Service::Elb, "DescribeTargetGroups", &[], "TargetGroups").await? {
        let arn = group.text("TargetGroupArn").to_owned();
        let users: Vec<String> = group.texts("LoadBalancerArns/member").into_iter().map(str::to_owned).collect();
        let Some(user) = users.first() else { continue };
        let source = source(aws, user).await?;
        let health = [("TargetGroupArn", &*arn)];
        for one in aws.list(Service::Elb, "DescribeTargetHealth", &health, "TargetHealthDescriptions").await? {
            let (id, port) = (one.text("Target/Id").to_owned(), one.text("Target/Port").to_owned());
            let number: i32 = port.parse().unwrap_or_default();
            let probed = group.text("HealthCheckPort").parse().unwrap_or(number);
            let mut needed: Vec<(&str, i32)> =
                transports(group.text("Protocol")).iter().map(|transport| (*transport, number)).collect();
            needed.push(("tcp", probed));
            let reached = match groups_of(aws, &id).await? {
                groups if groups.is_empty() => true,
                groups => reaches(&rules(aws, &groups).await?, &source, &needed),
            };
            found.insert((arn.clone(), id, port), reached);
        }
    }
    Ok(found)
}

async fn source(aws: &Aws, balancer: &str) -> Result<Source> {
    let named = [("LoadBalancerArns.member.1", balancer)];
    let mut source = Source::default();
    for one in aws.list(Service::Elb, "DescribeLoadBalancers", &named, "LoadBalancers").await? {
        source.groups.extend(one.texts("SecurityGroups/member").into_iter().map(str::to_owned));
        for subnet in one.texts("AvailabilityZones/member/SubnetId") {
            source.subnets.extend(aws.ec2("DescribeSubnets", &[("SubnetId.1", subnet)], "cidrBlock").await?);
        }
    }
    Ok(source)
}

/// The security groups of a target's interface; none if nothing has the address.
async fn groups_of(aws: &Aws, id: &str) -> Result<BTreeSet<String>> {
    let filter = match id.starts_with("i-") {
        true => "attachment.instance-id",
        false => "addresses.private-ip-address",
    };
    let filters = [("Filter.1.Name", filter), ("Filter.1.Value.1", id)];
    let interfaces = aws.list(Service::Ec2, "DescribeNetworkInterfaces", &filters, "networkInterfaceSet").await?;
    Ok(interfaces.iter().flat_map(|one| one.texts("groupSet/item/groupId")).map(str::to_owned).collect())
}

async fn rules(aws: &Aws, groups: &BTreeSet<String>) -> Result<Vec<Rule>> {
    let mut all = Vec::new();
    for group in groups {
        let filter = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", &**group)];
        let read = aws.list(Service::Ec2, "DescribeSecurityGroupRules", &filter, "securityGroupRuleSet").await?;
        all.extend(read.iter().filter(|rule| rule.text("isEgress") == "false").map(|rule| Rule {
            protocol: rule.text("ipProtocol").to_owned(),
            from: rule.text("fromPort").parse().unwrap_or(-1),
            to: rule.text("toPort").parse().unwrap_or(-1),
            group: rule.text("referencedGroupInfo/groupId").to_owned(),
            range: rule.text("cidrIpv4").to_owned(),
        }));
    }
    Ok(all)
}

/// The targets that were reached before, are registered still, and are not reached any longer.
pub fn gaps(before: &BTreeMap<Key, bool>, now: &BTreeMap<Key, bool>) -> Vec<Key> {
    let lost = now.iter().filter(|(key, reached)| !**reached && before.get(*key) == Some(&true));
    lost.map(|(key, _)| key.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(protocol: &str, (from, to): (i32, i32), group: &str, range: &str) -> Rule {
        Rule { protocol: protocol.into(), from, to, group: group.into(), range: range.into() }
    }

    #[test]
    fn ranges_cover_ranges_in_them() {
        for (outer, inner, expected) in [
            ("0.0.0.0/0", "10.0.16.0/20", true),
            ("10.0.0.0/16", "10.0.16.0/20", true),
            ("10.0.16.0/20", "10.0.0.0/16", false),
            ("10.1.0.0/16", "10.0.16.0/20", false),
            ("", "10.0.16.0/20", false),
            ("10.0.0.0/33", "10.0.16.0/20", false),
        ] {
            assert_eq!(covers(outer, inner), expected, "{outer} {inner}");
        }
    }

    #[test]
    fn target_is_reached_when_traffic_and_probes_are_let_in() {
        let carried = Source { groups: ["sg-lb".to_owned()].into(), subnets: vec!["10.0.16.0/20".into()] };
        let bare = Source { groups: BTreeSet::new(), ..carried.clone() };
        let needed = [("udp", 30_053), ("tcp", 10_256)];
        let both = [rule("udp", (30_000, 32_767), "sg-lb", ""), rule("tcp", (10_256, 10_256), "sg-lb", "")];
        let subnets = [rule("-1", (-1, -1), "", "10.0.0.0/16")];
        for (name, rules, source, expected) in [
            ("both ports", &both[..], &carried, true),
            ("no rule for probes", &both[..1], &carried, false),
            ("no rule for traffic", &both[1..], &carried, false),
            ("a load balancer without groups", &both[..], &bare, false),
            ("its subnets", &subnets[..], &bare, true),
            ("no rules", &[], &carried, false),
        ] {
            assert_eq!(reaches(rules, source, &needed), expected, "{name}");
        }
    }

    #[test]
    fn gap_is_what_was_reached_and_is_registered_still() {
        let key = |id: &str| ("group".to_owned(), id.to_owned(), "80".to_owned());
        let before = [(key("kept"), true), (key("lost"), true), (key("left"), true), (key("never"), false)].into();
        let now = [(key("kept"), true), (key("lost"), false), (key("never"), false), (key("new"), false)].into();
        assert_eq!(gaps(&before, &now), [key("lost")]);
    }
}
