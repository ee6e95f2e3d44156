//! Network interfaces of a load balancer: they have its security groups, and exist for a while after its deletion. A
//! security group of an interface, or one that a rule of another group references, cannot be deleted.
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
    /// Number of calls until the interfaces are deleted, after their load balancer was deleted; `None`: the load
    /// balancer exists.
    remaining_calls: Option<u64>,
}

/// The interfaces of load balancers whose deletion was requested.
#[derive(Debug)]
pub(super) struct Interfaces {
    /// Number of calls for which an interface exists after its load balancer was deleted.
    pub calls_after_deletion: u64,
    by_load_balancer: BTreeMap<String, Interface>,
}

impl Default for Interfaces {
    fn default() -> Self {
        Self { calls_after_deletion: 2, by_load_balancer: BTreeMap::new() }
    }
}

/// Returns the load balancer that a call deletes: its ARN, or the name of a Classic one.
fn deleted_balancer(call: &Call) -> &str {
    if call.is_classic() { call.value("LoadBalancerName") } else { call.value("LoadBalancerArn") }
}

impl Interfaces {
    /// Records the deletion of a load balancer.
    pub(super) fn record_deletion(&mut self, call: &Call) {
        if call.action() != "DeleteLoadBalancer" {
            return;
        }
        let calls = self.calls_after_deletion;
        if let Some(interface) = self.by_load_balancer.get_mut(deleted_balancer(call)) {
            interface.remaining_calls.get_or_insert(calls);
        }
    }

    /// Counts a use of a group; returns true while an interface of a deleted load balancer has it.
    fn count_use(&mut self, group: &str) -> bool {
        let mut interfaces = self.by_load_balancer.values_mut().filter(|one| one.groups.iter().any(|own| own == group));
        interfaces.any(|one| match &mut one.remaining_calls {
            Some(remaining_calls) if *remaining_calls > 0 => {
                *remaining_calls -= 1;
                true
            }
            _ => false,
        })
    }

    /// Adds the interfaces of deleted load balancers to a list that is filtered by group.
    pub(super) fn add_to_list(&mut self, call: &Call, response: &mut Element) {
        if call.action() != "DescribeNetworkInterfaces" || call.value("Filter.1.Name") != "group-id" {
            return;
        }
        let Some(members) = list_of(call.action()).and_then(|list| response.find_mut(list.path)) else { return };
        let requested = call.values("Filter.1.Value", "");
        for one in self
            .by_load_balancer
            .values_mut()
            .filter(|one| one.groups.iter().any(|own| requested.contains(&own.as_str())))
        {
            let Some(remaining_calls) = one.remaining_calls.as_mut().filter(|remaining_calls| **remaining_calls > 0)
            else {
                continue;
            };
            *remaining_calls -= 1;
            let mut item = Element { name: "item".into(), ..Element::default() };
            item.children.push(Element::leaf("networkInterfaceId", "eni-0123456789abcdef0"));
            item.children.push(Element::leaf("description", &one.description));
            members.children.push(item);
        }
    }
}

impl Model {
    /// Records the security groups of a load balancer that is about to be deleted.
    pub(super) async fn record_interfaces(&self, call: &Call) -> Result<()> {
        let id = deleted_balancer(call);
        let (service, parameter, list, groups) = if call.is_classic() {
            (Service::Classic, "LoadBalancerNames.member.1", "LoadBalancerDescriptions", "SecurityGroups/member")
        } else {
            (Service::Elb, "LoadBalancerArns.member.1", "LoadBalancers", "SecurityGroups/member")
        };
        // A load balancer that does not exist has no interfaces.
        let found = self.aws.list(service, "DescribeLoadBalancers", &[(parameter, id)], list).await.unwrap_or_default();
        if let Some(balancer) = found.first() {
            let name = id.split_once(":loadbalancer/").map_or(id, |(_, name)| name);
            let groups = balancer.texts(groups).into_iter().map(str::to_owned).collect();
            let interface = Interface { description: format!("ELB {name}"), groups, remaining_calls: None };
            self.state().interfaces.by_load_balancer.insert(id.to_owned(), interface);
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
        if self.state().interfaces.count_use(group) {
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
        let one = Interface { description: "ELB net/a/1".into(), groups: vec!["sg-1".into()], remaining_calls: None };
        interfaces.by_load_balancer.insert("arn:1".into(), one);
        assert!(!interfaces.count_use("sg-1"), "the load balancer exists");
        interfaces.record_deletion(&Call::of("DeleteLoadBalancer", &[("LoadBalancerArn", "arn:1")]));
        let listed = |interfaces: &mut Interfaces, group: &str| {
            let requested = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", group)];
            let mut response = Element::parse("<r><networkInterfaceSet/></r>").unwrap();
            interfaces.add_to_list(&Call::of("DescribeNetworkInterfaces", &requested), &mut response);
            response.texts("networkInterfaceSet/item/description").join(",")
        };
        assert_eq!(listed(&mut interfaces, "sg-2"), "");
        assert_eq!(listed(&mut interfaces, "sg-1"), "ELB net/a/1");
        assert!(interfaces.count_use("sg-1") && !interfaces.count_use("sg-1"));
        // Deletion is idempotent.
        interfaces.record_deletion(&Call::of("DeleteLoadBalancer", &[("LoadBalancerArn", "arn:1")]));
        assert!(!interfaces.count_use("sg-1"));
    }
}
