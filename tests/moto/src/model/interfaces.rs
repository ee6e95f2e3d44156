//! Network interfaces of load balancers: they carry its security groups, and outlive it for a while. A security group
//! that an interface carries, or that a rule of another group references, cannot be deleted.
//!
//! Reference: Amazon EC2 API Reference, DeleteSecurityGroup (`DependencyViolation`); Amazon EC2 User Guide,
//! "Requester-managed network interfaces", for the descriptions `ELB net/...` and `ELB ...`.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::aws::Service;
use crate::call::Call;
use crate::model::{Model, Refusal, list_of};
use crate::xml::Element;

/// The interfaces of one load balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Interface {
    description: String,
    groups: Vec<String>,
    /// Number of calls that still see it after its load balancer was deleted; `None`: the load balancer exists.
    left: Option<u64>,
}

/// The interfaces of load balancers that are, or were, about to be deleted.
#[derive(Debug)]
pub(super) struct Interfaces {
    /// Number of calls that still see an interface after its load balancer was deleted.
    pub outlive: u64,
    known: BTreeMap<String, Interface>,
}

impl Default for Interfaces {
    fn default() -> Self {
        Self { outlive: 2, known: BTreeMap::new() }
    }
}

/// Returns the load balancer that a call deletes: its ARN, or the name of a Classic one.
fn deleted(call: &Call) -> &str {
    if call.is_classic() { call.value("LoadBalancerName") } else { call.value("LoadBalancerArn") }
}

impl Interfaces {
    /// Records the deletion of a load balancer.
    pub(super) fn deleted(&mut self, call: &Call) {
        if call.action() != "DeleteLoadBalancer" {
            return;
        }
        let outlive = self.outlive;
        if let Some(interface) = self.known.get_mut(deleted(call)) {
            interface.left.get_or_insert(outlive);
        }
    }

    /// Returns whether an interface of a deleted load balancer carries a group; counts the call.
    fn holds(&mut self, group: &str) -> bool {
        let mut held = self.known.values_mut().filter(|one| one.groups.iter().any(|own| own == group));
        held.any(|one| match &mut one.left {
            Some(left) if *left > 0 => {
                *left -= 1;
                true
            }
            _ => false,
        })
    }

    /// Adds the interfaces of deleted load balancers to a list that is filtered by group.
    pub(super) fn show(&mut self, call: &Call, answer: &mut Element) {
        if call.action() != "DescribeNetworkInterfaces" || call.value("Filter.1.Name") != "group-id" {
            return;
        }
        let Some(members) = list_of(call.action()).and_then(|list| answer.at(list.path)) else { return };
        let asked = call.values("Filter.1.Value", "");
        for one in self.known.values_mut().filter(|one| one.groups.iter().any(|own| asked.contains(&own.as_str()))) {
            let Some(left) = one.left.as_mut().filter(|left| **left > 0) else { continue };
            *left -= 1;
            let mut item = Element { name: "item".into(), ..Element::default() };
            item.children.push(Element::leaf("networkInterfaceId", "eni-0123456789abcdef0"));
            item.children.push(Element::leaf("description", &one.description));
            members.children.push(item);
        }
    }
}

impl Model {
    /// Records the security groups of a load balancer that is about to be deleted.
    pub(super) async fn note_interfaces(&self, call: &Call) -> Result<()> {
        let id = deleted(call);
        let (service, parameter, list, groups) = match call.is_classic() {
            true => {
                (Service::Classic, "LoadBalancerNames.member.1", "LoadBalancerDescriptions", "SecurityGroups/member")
            }
            false => (Service::Elb, "LoadBalancerArns.member.1", "LoadBalancers", "SecurityGroups/member"),
        };
        // One that does not exist has no interfaces.
        let found = self.aws.list(service, "DescribeLoadBalancers", &[(parameter, id)], list).await.unwrap_or_default();
        if let Some(balancer) = found.first() {
            let name = id.split_once(":loadbalancer/").map_or(id, |(_, name)| name);
            let groups = balancer.texts(groups).into_iter().map(str::to_owned).collect();
            let interface = Interface { description: format!("ELB {name}"), groups, left: None };
            self.state().interfaces.known.insert(id.to_owned(), interface);
        }
        Ok(())
    }

    /// Returns the refusal to delete a security group that is in use.
    pub(super) async fn group_in_use(&self, call: &Call) -> Result<Option<Refusal>> {
        let group = call.value("GroupId");
        let refusal =
            |by: String| Some(("DependencyViolation", format!("resource {group} has a dependent object: {by}")));
        for (service, list) in [(Service::Elb, "LoadBalancers"), (Service::Classic, "LoadBalancerDescriptions")] {
            for balancer in self.aws.list(service, "DescribeLoadBalancers", &[], list).await? {
                if balancer.texts("SecurityGroups/member").contains(&group) {
                    return Ok(refusal("a load balancer".into()));
                }
            }
        }
        if self.state().interfaces.holds(group) {
            return Ok(refusal("a network interface".into()));
        }
        for rule in self.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &[], "securityGroupRuleSet").await? {
            if rule.text("referencedGroupInfo/groupId") == group && rule.text("groupId") != group {
                return Ok(refusal(format!("a rule of {}", rule.text("groupId"))));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_outlives_its_load_balancer_for_a_while() {
        let mut interfaces = Interfaces::default();
        let one = Interface { description: "ELB net/a/1".into(), groups: vec!["sg-1".into()], left: None };
        interfaces.known.insert("arn:1".into(), one);
        assert!(!interfaces.holds("sg-1"), "the load balancer itself holds it");
        interfaces.deleted(&Call::of("DeleteLoadBalancer", &[("LoadBalancerArn", "arn:1")]));
        let listed = |interfaces: &mut Interfaces, group: &str| {
            let asked = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", group)];
            let mut answer = Element::parse("<r><networkInterfaceSet/></r>").unwrap();
            interfaces.show(&Call::of("DescribeNetworkInterfaces", &asked), &mut answer);
            answer.texts("networkInterfaceSet/item/description").join(",")
        };
        assert_eq!(listed(&mut interfaces, "sg-2"), "");
        assert_eq!(listed(&mut interfaces, "sg-1"), "ELB net/a/1");
        assert!(interfaces.holds("sg-1") && !interfaces.holds("sg-1"));
        // Deletion is idempotent.
        interfaces.deleted(&Call::of("DeleteLoadBalancer", &[("LoadBalancerArn", "arn:1")]));
        assert!(!interfaces.holds("sg-1"));
    }
}
