//! The quotas of a new account.
//!
//! Reference: "Quotas for your Network Load Balancers" in the Elastic Load Balancing User Guide, and "Amazon VPC
//! quotas". AWS counts targets of a load balancer by zone, and certificates by load balancer; here targets are counted
//! by target group, and certificates by listener. Load balancers, target groups and targets are not counted until
//! a test sets their limit, because moto lists them slowly.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::aws::{AwsError, Service};
use crate::call::Call;
use crate::model::{Model, Refusal};
use crate::xml::Element;

/// A quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quota {
    /// Load balancers of a region.
    LoadBalancers,
    /// Target groups of a region.
    TargetGroups,
    /// Listeners of a load balancer.
    Listeners,
    /// Certificates of a listener, without the default one.
    Certificates,
    /// Targets of a target group.
    Targets,
    /// Ingress rules of a security group.
    Rules,
}

impl Quota {
    fn default_limit(self) -> usize {
        match self {
            Self::LoadBalancers | Self::Listeners => 50,
            Self::TargetGroups => 3000,
            Self::Certificates => 25,
            Self::Targets => 500,
            Self::Rules => 60,
        }
    }

    fn code(self) -> &'static str {
        match self {
            Self::LoadBalancers => "TooManyLoadBalancers",
            Self::TargetGroups => "TooManyTargetGroups",
            Self::Listeners => "TooManyListeners",
            Self::Certificates => "TooManyCertificates",
            Self::Targets => "TooManyTargets",
            Self::Rules => "RulesPerSecurityGroupLimitExceeded",
        }
    }
}

/// The quotas that differ from those of a new account.
#[derive(Debug, Default)]
pub(super) struct Quotas(BTreeMap<Quota, usize>);

impl Quotas {
    pub(super) fn set(&mut self, quota: Quota, limit: usize) {
        self.0.insert(quota, limit);
    }

    /// Returns true if a quota is checked.
    fn is_checked(&self, quota: Quota) -> bool {
        self.0.contains_key(&quota) || [Quota::Listeners, Quota::Certificates, Quota::Rules].contains(&quota)
    }

    fn limit(&self, quota: Quota) -> usize {
        self.0.get(&quota).copied().unwrap_or_else(|| quota.default_limit())
    }
}

/// Returns the quota that a call may exceed.
fn quota_of(action: &str) -> Option<Quota> {
    Some(match action {
        "CreateLoadBalancer" => Quota::LoadBalancers,
        "CreateTargetGroup" => Quota::TargetGroups,
        "CreateListener" => Quota::Listeners,
        "AddListenerCertificates" => Quota::Certificates,
        "RegisterTargets" => Quota::Targets,
        "AuthorizeSecurityGroupIngress" => Quota::Rules,
        _ => return None,
    })
}

/// Returns the number of rules that a call adds: one for each source of each permission.
fn added_rules(call: &Call) -> usize {
    ["CidrIp", "CidrIpv6", ".GroupId", "PrefixListId"]
        .iter()
        .map(|source| call.values("IpPermissions.", source).len())
        .sum()
}

/// Returns the targets that a call names.
fn named_targets(call: &Call) -> BTreeSet<(String, String)> {
    let targets = (1..).map(|number| {
        let value = |key: &str| call.value(&format!("Targets.member.{number}.{key}")).to_owned();
        (value("Id"), value("Port"))
    });
    targets.take_while(|(id, _)| !id.is_empty()).collect()
}

/// Returns the listed resources; none if the resource that contains them does not exist. In this case the call is
/// forwarded, and moto refuses it.
fn none_without_parent(listed: Result<Vec<Element>>) -> Result<Vec<Element>> {
    match listed {
        Err(error) if error.downcast_ref::<AwsError>().is_some_and(|error| error.code.ends_with("NotFound")) => {
            Ok(Vec::new())
        }
        listed => listed,
    }
}

impl Model {
    /// Returns the refusal of a call that needs more than a quota allows.
    pub(crate) async fn over_quota(&self, call: &Call) -> Result<Option<Refusal>> {
        if call.is_classic() {
            return Ok(None);
        }
        let Some(quota) = quota_of(call.action()).filter(|quota| self.state().quotas.is_checked(*quota)) else {
            return Ok(None);
        };
        let needed = self.needed(quota, call).await?;
        let limit = self.state().quotas.limit(quota);
        Ok((needed > limit).then(|| (quota.code(), format!("{needed} are needed and the limit is {limit}"))))
    }

    /// Returns the number of resources that count towards a quota after a call.
    async fn needed(&self, quota: Quota, call: &Call) -> Result<usize> {
        let existing = async |action: &str, of: &[(&str, &str)], list: &str| -> Result<Vec<Element>> {
            none_without_parent(self.aws.list(Service::Elb, action, of, list).await)
        };
        let of = |name: &'static str| [(name, call.value(name))];
        Ok(match quota {
            Quota::LoadBalancers => existing("DescribeLoadBalancers", &[], "LoadBalancers").await?.len() + 1,
            Quota::TargetGroups => existing("DescribeTargetGroups", &[], "TargetGroups").await?.len() + 1,
            Quota::Listeners => existing("DescribeListeners", &of("LoadBalancerArn"), "Listeners").await?.len() + 1,
            Quota::Certificates => {
                let existing = existing("DescribeListenerCertificates", &of("ListenerArn"), "Certificates").await?;
                existing.len().saturating_sub(1) + call.values("Certificates.member.", "Arn").len()
            }
            Quota::Targets => {
                let of = of("TargetGroupArn");
                let existing = existing("DescribeTargetHealth", &of, "TargetHealthDescriptions").await?;
                let target = |one: &Element| (one.text("Target/Id").to_owned(), one.text("Target/Port").to_owned());
                let mut all = named_targets(call);
                all.extend(existing.iter().map(target));
                all.len()
            }
            Quota::Rules => {
                let of = [("Filter.1.Name", "group-id"), ("Filter.1.Value.1", call.value("GroupId"))];
                let existing =
                    self.aws.list(Service::Ec2, "DescribeSecurityGroupRules", &of, "securityGroupRuleSet").await?;
                existing.iter().filter(|rule| rule.text("isEgress") == "false").count() + added_rules(call)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_count_by_source() {
        let call = Call::of(
            "AuthorizeSecurityGroupIngress",
            &[
                ("GroupId", "sg-1"),
                ("IpPermissions.1.IpRanges.1.CidrIp", "10.0.0.0/8"),
                ("IpPermissions.1.IpRanges.2.CidrIp", "10.0.0.0/9"),
                ("IpPermissions.2.Ipv6Ranges.1.CidrIpv6", "::/0"),
                ("IpPermissions.3.Groups.1.GroupId", "sg-2"),
                ("IpPermissions.4.PrefixListIds.1.PrefixListId", "pl-1"),
            ],
        );
        assert_eq!(added_rules(&call), 5);
    }

    #[test]
    fn list_that_fails_is_an_error_unless_the_parent_is_missing() {
        let failed = |code: &str| Err(AwsError { code: code.to_owned(), response: String::new() }.into());
        for code in ["ListenerNotFound", "TargetGroupNotFound", "InvalidGroup.NotFound"] {
            assert_eq!(none_without_parent(failed(code)).expect(code).len(), 0);
        }
        for code in ["500 Internal Server Error", "Throttling"] {
            assert!(none_without_parent(failed(code)).is_err(), "{code}");
        }
        assert!(none_without_parent(Err(anyhow::anyhow!("moto has ended"))).is_err());
    }

    #[test]
    fn target_counts_once_for_each_port() {
        let pairs = [
            ("Targets.member.1.Id", "i-1"),
            ("Targets.member.1.Port", "80"),
            ("Targets.member.2.Id", "i-1"),
            ("Targets.member.2.Port", "81"),
        ];
        assert_eq!(named_targets(&Call::of("RegisterTargets", &pairs)).len(), 2);
    }

    #[test]
    fn limit_of_a_new_account_applies_until_another_is_set() {
        let mut quotas = Quotas::default();
        assert!(quotas.is_checked(Quota::Rules) && !quotas.is_checked(Quota::Targets));
        assert_eq!(quotas.limit(Quota::Rules), 60);
        quotas.set(Quota::Rules, 2);
        assert_eq!((quotas.limit(Quota::Rules), quotas.limit(Quota::Listeners)), (2, 50));
    }
}
