//! Reachability of targets from load balancers, according to the rules of security groups.
//!
//! A load balancer reaches a target if a security group of the target's interface allows the ports of traffic and of
//! health checks. The source of the rule must be a security group of the load balancer, or its subnets. See the user
//! guide for Network Load Balancers, "Update the security groups for your Network Load Balancer" and "Target security
//! groups". moto reports all targets as healthy. The same applies to the instances of a Classic Load Balancer, see its user
//! guide, "Configure security groups for your Classic Load Balancer".

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use anyhow::Result;

use crate::aws::{Aws, Service};
use crate::xml::Element;

/// A target: the ARN of its target group, its id and its port.
pub type TargetKey = (String, String, String);

/// An ingress rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rule {
    protocol: String,
    from: i32,
    to: i32,
    /// The security group that the rule allows, if any.
    group: String,
    /// The address range that the rule allows, if any.
    range: String,
}

/// The source of a load balancer's traffic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Source {
    groups: BTreeSet<String>,
    /// The ranges of its subnets.
    subnets: Vec<String>,
}

impl Rule {
    fn fits(&self, protocol: &str, port: i32) -> bool {
        self.protocol == "-1" || (self.protocol == protocol && (self.from..=self.to).contains(&port))
    }
}

/// Returns the first address and the mask of a range.
fn parse_range(range: &str) -> Option<(u32, u32)> {
    let (address, length) = range.split_once('/')?;
    let length: u32 = length.parse().ok().filter(|length| *length <= 32)?;
    let mask = u32::MAX.checked_shl(32 - length).unwrap_or(0);
    Some((u32::from(address.parse::<Ipv4Addr>().ok()?) & mask, mask))
}

/// Returns true if all addresses of the range `inner` are in `outer`.
fn covers(outer: &str, inner: &str) -> bool {
    let (Some((outer, outer_mask)), Some((inner, inner_mask))) = (parse_range(outer), parse_range(inner)) else {
        return false;
    };
    outer_mask <= inner_mask && inner & outer_mask == outer
}

/// Returns true if rules allow packets of a load balancer: from one of its security groups, or from all of its subnets.
fn allows(rules: &[Rule], source: &Source, protocol: &str, port: i32) -> bool {
    let fitting = || rules.iter().filter(|rule| rule.fits(protocol, port));
    let allows_subnet = |subnet: &String| fitting().any(|rule| covers(&rule.range, subnet));
    fitting().any(|rule| source.groups.contains(&rule.group))
        || (!source.subnets.is_empty() && source.subnets.iter().all(allows_subnet))
}

/// Returns true if rules allow all packets of a target group: traffic, as pairs of protocol and port, and health checks
/// at the port `probe`. A load balancer without security groups sends traffic from the addresses of clients: a rule
/// that allows any range is enough.
fn reaches(rules: &[Rule], source: &Source, traffic: &[(&str, i32)], probe: i32) -> bool {
    let allows_clients = |protocol: &str, port: i32| {
        source.groups.is_empty() && rules.iter().any(|rule| rule.fits(protocol, port) && !rule.range.is_empty())
    };
    traffic.iter().all(|(protocol, port)| allows(rules, source, protocol, *port) || allows_clients(protocol, *port))
        && allows(rules, source, "tcp", probe)
}

/// Returns the transports of a target group's protocol.
fn transports(protocol: &str) -> &'static [&'static str] {
    match protocol {
        "UDP" | "QUIC" => &["udp"],
        "TCP_UDP" | "TCP_QUIC" => &["tcp", "udp"],
        _ => &["tcp"],
    }
}

/// A target group that a load balancer uses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Group {
    /// The ARN of the load balancer.
    balancer_arn: String,
    protocol: String,
    probe_port: String,
}

/// A Classic Load Balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Classic {
    dns: String,
    source: Source,
    /// The ports of instances that traffic is sent to.
    ports: Vec<i32>,
    /// The port of health checks.
    probe: i32,
    instances: Vec<String>,
}

/// All inputs of reachability.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkState {
    /// By the ARN of the load balancer.
    sources: BTreeMap<String, Source>,
    /// ARNs of load balancers by DNS name.
    names: BTreeMap<String, String>,
    /// By the ARN of the target group.
    groups: BTreeMap<String, Group>,
    /// Classic Load Balancers by name.
    classics: BTreeMap<String, Classic>,
    /// Security groups of network interfaces, by instance and by address.
    interfaces: BTreeMap<String, BTreeSet<String>>,
    /// Prefixes of addresses of network interfaces, with their security groups.
    prefixes: Vec<(String, BTreeSet<String>)>,
    /// By security group.
    rules: BTreeMap<String, Vec<Rule>>,
}

impl NetworkState {
    /// Reads an account.
    ///
    /// # Errors
    /// If moto refuses a read.
    pub async fn read(aws: &Aws) -> Result<Self> {
        let mut state = Self::default();
        let ranges = aws.list(Service::Ec2, "DescribeSubnets", &[], "subnetSet").await?;
        let ranges: BTreeMap<&str, &str> =
            ranges.iter().map(|subnet| (subnet.text("subnetId"), subnet.text("cidrBlock"))).collect();
        for balancer in aws.list(Service::Elb, "DescribeLoadBalancers", &[], "LoadBalancers").await? {
            let subnets = balancer.texts("AvailabilityZones/member/SubnetId");
            let source = Source {
                groups: owned(balancer.texts("SecurityGroups/member")),
                subnets: subnets.iter().filter_map(|subnet| ranges.get(subnet)).map(|range| (*range).into()).collect(),
            };
            let arn = balancer.text("LoadBalancerArn").to_owned();
            state.names.insert(balancer.text("DNSName").to_ascii_lowercase(), arn.clone());
            state.sources.insert(arn, source);
        }
        for group in aws.list(Service::Elb, "DescribeTargetGroups", &[], "TargetGroups").await? {
            if let Some(balancer_arn) = group.texts("LoadBalancerArns/member").first() {
                let used = Group {
                    balancer_arn: (*balancer_arn).to_owned(),
                    protocol: group.text("Protocol").to_owned(),
                    probe_port: group.text("HealthCheckPort").to_owned(),
                };
                state.groups.insert(group.text("TargetGroupArn").to_owned(), used);
            }
        }
        for classic in aws.list(Service::Classic, "DescribeLoadBalancers", &[], "LoadBalancerDescriptions").await? {
            state.classics.insert(classic.text("LoadBalancerName").to_owned(), read_classic(&classic));
        }
        for interface in aws.list(Service::Ec2, "DescribeNetworkInterfaces", &[], "networkInterfaceSet").await? {
            let groups = owned(interface.texts("groupSet/item/groupId"));
            let addresses = interface.texts("privateIpAddressesSet/item/privateIpAddress");
            // A load balancer reaches an instance at its first interface.
            let instance = interface.texts("attachment/instanceId");
            let instance = instance.into_iter().filter(|_| interface.text("attachment/deviceIndex") == "0");
            for name in instance.chain(addresses) {
                state.interfaces.entry(name.to_owned()).or_default().extend(groups.iter().cloned());
            }
            for prefix in interface.texts("ipv4PrefixSet/item/ipv4Prefix") {
                state.prefixes.push((prefix.to_owned(), groups.clone()));
            }
        }
        for rule in aws.list(Service::Ec2, "DescribeSecurityGroupRules", &[], "securityGroupRuleSet").await? {
            if rule.text("isEgress") == "false" {
                state.rules.entry(rule.text("groupId").to_owned()).or_default().push(Rule {
                    protocol: rule.text("ipProtocol").to_owned(),
                    from: rule.text("fromPort").parse().unwrap_or(-1),
                    to: rule.text("toPort").parse().unwrap_or(-1),
                    group: rule.text("referencedGroupInfo/groupId").to_owned(),
                    range: rule.text("cidrIpv4").to_owned(),
                });
            }
        }
        Ok(state)
    }

    /// Returns the target groups in use; with a DNS name only those of the load balancer that has it.
    pub fn used_groups(&self, dns: Option<&str>) -> Vec<String> {
        let wanted = dns.map(|dns| self.names.get(&dns.to_ascii_lowercase()));
        let used =
            self.groups.iter().filter(|(_, group)| wanted.is_none_or(|wanted| wanted == Some(&group.balancer_arn)));
        used.map(|(arn, _)| arn.clone()).collect()
    }

    /// Returns the ARN of the load balancer that uses a target group.
    pub fn load_balancer_of(&self, group: &str) -> Option<&str> {
        self.groups.get(group).map(|group| group.balancer_arn.as_str())
    }

    /// Returns the security groups of an instance or an address.
    fn groups_of(&self, id: &str) -> Option<&BTreeSet<String>> {
        let by_prefix = || self.prefixes.iter().find(|(prefix, _)| covers(prefix, &format!("{id}/32")));
        self.interfaces.get(id).or_else(|| by_prefix().map(|(_, groups)| groups))
    }

    /// Returns true if a load balancer reaches a target. A target counts as reached if its target group is not in use,
    /// or if it has no network interface.
    pub fn reaches(&self, group: &str, id: &str, port: &str) -> bool {
        let (Some(group), Some(rules)) = (self.groups.get(group), self.rules_of(id)) else { return true };
        let Some(source) = self.sources.get(&group.balancer_arn) else { return true };
        let number: i32 = port.parse().unwrap_or_default();
        let traffic: Vec<(&str, i32)> =
            transports(&group.protocol).iter().map(|transport| (*transport, number)).collect();
        let probe = group.probe_port.parse().unwrap_or(number);
        reaches(&rules, source, &traffic, probe)
    }

    /// Returns the rules that apply to an instance or an address; `None` if it has no network interface.
    fn rules_of(&self, id: &str) -> Option<Vec<Rule>> {
        let groups = self.groups_of(id)?;
        Some(groups.iter().filter_map(|group| self.rules.get(group)).flatten().cloned().collect())
    }

    /// Returns the instances of Classic Load Balancers at each port, and whether they are reached; with a DNS name only
    /// those of the load balancer that has it.
    pub fn classic_targets(&self, dns: Option<&str>) -> Vec<(TargetKey, bool)> {
        let mut targets = Vec::new();
        let wanted = |classic: &Classic| dns.is_none_or(|dns| classic.dns.eq_ignore_ascii_case(dns));
        for (name, classic) in self.classics.iter().filter(|(_, classic)| wanted(classic)) {
            for id in &classic.instances {
                let rules = self.rules_of(id);
                targets.extend(classic.ports.iter().map(|port| {
                    let is_reached =
                        |rules: &Vec<Rule>| reaches(rules, &classic.source, &[("tcp", *port)], classic.probe);
                    ((name.clone(), id.clone(), port.to_string()), rules.as_ref().is_none_or(is_reached))
                }));
            }
        }
        targets
    }
}

/// Converts the description of a Classic Load Balancer. Its own addresses are the source, which its security groups stand
/// for: AWS requires them in a VPC.
fn read_classic(described: &Element) -> Classic {
    let ports = described.texts("ListenerDescriptions/member/Listener/InstancePort");
    let ports: Vec<i32> = ports.iter().filter_map(|port| port.parse().ok()).collect();
    let probe =
        described.text("HealthCheck/Target").split_once(':').and_then(|(_, rest)| rest.split('/').next()?.parse().ok());
    Classic {
        dns: described.text("DNSName").to_owned(),
        source: Source { groups: owned(described.texts("SecurityGroups/member")), subnets: Vec::new() },
        probe: probe.or(ports.first().copied()).unwrap_or_default(),
        ports,
        instances: described.texts("Instances/member/InstanceId").into_iter().map(str::to_owned).collect(),
    }
}

fn owned(texts: Vec<&str>) -> BTreeSet<String> {
    texts.into_iter().map(str::to_owned).collect()
}

/// Returns the targets that were reached before, are still registered, and are no longer reached.
pub fn gaps(before: &BTreeMap<TargetKey, bool>, now: &BTreeMap<TargetKey, bool>) -> Vec<TargetKey> {
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
    fn target_is_reached_when_rules_allow_traffic_and_probes() {
        let with_groups = Source { groups: ["sg-lb".to_owned()].into(), subnets: vec!["10.0.16.0/20".into()] };
        let without_groups = Source { groups: BTreeSet::new(), ..with_groups.clone() };
        let traffic = [("udp", 30_053)];
        let both = [rule("udp", (30_000, 32_767), "sg-lb", ""), rule("tcp", (10_256, 10_256), "sg-lb", "")];
        let subnets = [rule("-1", (-1, -1), "", "10.0.0.0/16")];
        let clients =
            [rule("udp", (30_053, 30_053), "", "192.0.2.0/24"), rule("tcp", (10_256, 10_256), "", "10.0.0.0/16")];
        let grouped = Source { subnets: Vec::new(), ..with_groups.clone() };
        let wide = Source { subnets: vec!["10.0.16.0/20".into(), "10.0.32.0/20".into()], ..without_groups.clone() };
        let each = [clients[0].clone(), rule("tcp", (10_256, 10_256), "", "10.0.16.0/20")];
        let all = [&each[..], &[rule("tcp", (10_256, 10_256), "", "10.0.32.0/20")]].concat();
        for (name, rules, source, expected) in [
            ("both ports", &both[..], &with_groups, true),
            ("no rule for probes", &both[..1], &with_groups, false),
            ("no rule for traffic", &both[1..], &with_groups, false),
            ("a load balancer without groups", &both[..], &without_groups, false),
            ("its subnets", &subnets[..], &without_groups, true),
            ("clients and its subnets", &clients[..], &without_groups, true),
            ("clients only", &clients[..1], &without_groups, false),
            ("one of two subnets", &each, &wide, false),
            ("a rule for each subnet", &all, &wide, true),
            ("clients, though the load balancer has groups", &clients[..], &grouped, false),
            ("no rules", &[], &with_groups, false),
        ] {
            assert_eq!(reaches(rules, source, &traffic, 10_256), expected, "{name}");
        }
    }

    #[test]
    fn used_groups_are_limited_to_the_load_balancer_of_a_dns_name() {
        let group = |balancer_arn: &str| Group {
            balancer_arn: balancer_arn.into(),
            protocol: "TCP".into(),
            probe_port: "10256".into(),
        };
        let source = Source { groups: ["sg-lb".to_owned()].into(), subnets: Vec::new() };
        let open_rules = vec![rule("tcp", (30_000, 32_767), "sg-lb", ""), rule("tcp", (10_256, 10_256), "sg-lb", "")];
        let state = NetworkState {
            sources: [("lb-1".to_owned(), source.clone()), ("lb-2".to_owned(), source)].into(),
            names: [("one.example".to_owned(), "lb-1".to_owned())].into(),
            groups: [("tg-1".to_owned(), group("lb-1")), ("tg-2".to_owned(), group("lb-2"))].into(),
            interfaces: [("i-1", "sg-open"), ("i-2", "sg-closed")]
                .map(|(id, group)| (id.to_owned(), BTreeSet::from([group.to_owned()])))
                .into(),
            prefixes: vec![("10.9.0.16/28".to_owned(), ["sg-closed".to_owned()].into())],
            rules: [("sg-open".to_owned(), open_rules)].into(),
            ..NetworkState::default()
        };
        assert_eq!(state.used_groups(Some("One.Example")), ["tg-1"]);
        assert_eq!(state.used_groups(Some("other.example")), Vec::<String>::new());
        assert_eq!(state.used_groups(None), ["tg-1", "tg-2"]);
        assert!(state.reaches("tg-1", "i-1", "30080") && !state.reaches("tg-1", "i-2", "30080"));
        assert!(state.reaches("tg-1", "10.9.9.9", "80"), "no interface has the address");
        assert!(!state.reaches("tg-1", "10.9.0.17", "80"), "an interface has a prefix with the address");
        assert!(state.reaches("tg-3", "i-2", "80"), "the target group is not in use");
    }

    #[test]
    fn classic_load_balancer_reaches_instances_whose_groups_allow_its_own() {
        let description = "<member><LoadBalancerName>a1</LoadBalancerName><DNSName>a1.example</DNSName>\
            <ListenerDescriptions><member><Listener><InstancePort>30080</InstancePort></Listener></member>\
            <member><Listener><InstancePort>30443</InstancePort></Listener></member></ListenerDescriptions>\
            <HealthCheck><Target>HTTP:10256/healthz</Target></HealthCheck><SecurityGroups><member>sg-lb</member>\
            </SecurityGroups><Instances><member><InstanceId>i-1</InstanceId></member>\
            <member><InstanceId>i-2</InstanceId></member></Instances></member>";
        let classic = read_classic(&Element::parse(description).expect("a description"));
        assert_eq!((classic.probe, &*classic.ports), (10_256, &[30_080, 30_443][..]));
        let open = [rule("tcp", (30_080, 30_080), "sg-lb", ""), rule("tcp", (10_256, 10_256), "sg-lb", "")];
        let state = NetworkState {
            classics: [("a1".to_owned(), classic)].into(),
            interfaces: [("i-1".to_owned(), ["sg-open".to_owned()].into()), ("i-2".to_owned(), BTreeSet::new())].into(),
            rules: [("sg-open".to_owned(), open.into())].into(),
            ..NetworkState::default()
        };
        let reached: Vec<_> = state.classic_targets(None).into_iter().filter(|(_, reached)| *reached).collect();
        assert_eq!(reached, [(("a1".to_owned(), "i-1".to_owned(), "30080".to_owned()), true)]);
        assert_eq!(state.classic_targets(Some("A1.example")).len(), 4);
        assert_eq!(state.classic_targets(Some("b1.example")), []);
    }

    #[test]
    fn gap_is_a_registered_target_that_was_reached_before() {
        let key = |id: &str| ("group".to_owned(), id.to_owned(), "80".to_owned());
        let before = [(key("kept"), true), (key("lost"), true), (key("left"), true), (key("never"), false)].into();
        let now = [(key("kept"), true), (key("lost"), false), (key("never"), false), (key("new"), false)].into();
        assert_eq!(gaps(&before, &now), [key("lost")]);
    }
}
