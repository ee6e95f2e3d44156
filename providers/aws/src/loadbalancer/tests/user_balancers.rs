//! Load balancers that users made: plans add the Service's listeners and change nothing else.

use super::account::{Account, name};
use crate::loadbalancer::model::diff;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedSecurityGroup};
use crate::loadbalancer::samples::{self, listed_balancer, nodes, spec};
use crate::loadbalancer::types::{Mapping, Scheme};
use crate::tags::ClusterTags;

const ARN: (&str, &str) = ("arn", "arn:loadbalancer/net/users");

fn user_balancer() -> ObservedBalancer {
    let mapping = Mapping { subnet: "subnet-1".into(), zone: "eu-west-1a".into(), ..Mapping::default() };
    ObservedBalancer {
        shared: true,
        taken: [9000].into(),
        subnets: vec![mapping],
        ..listed_balancer("users", &[("team", "web")])
    }
}

#[test]
fn plan_changes_only_listeners_of_a_load_balancer_that_a_user_made() {
    let mut account = Account::default();
    account.observed.balancers.push(user_balancer());
    let on_it = spec(&[ARN, ("scheme", "internet-facing"), ("additional-resource-tags", "team=api")]);
    account.settle(&on_it, &nodes([1, 2]));
    let listeners = std::mem::take(&mut account.observed.balancers[0].listeners);
    assert_eq!((&account.observed.balancers[0], listeners.len()), (&user_balancer(), 1), "{:?}", account.names());
    assert!(account.observed.security_groups.is_empty(), "{:?}", account.names());
    let deletion = diff::delete(&account.observed, &samples::id());
    assert_eq!(deletion.steps.iter().map(name).collect::<Vec<_>>(), ["DeleteTargetGroup"]);
}

#[test]
fn own_load_balancer_stays_until_targets_on_the_load_balancer_of_the_user_are_healthy() {
    let mut account = Account::default();
    let targets = nodes([1]);
    account.settle(&spec(&[]), &targets);
    account.observed.balancers.push(user_balancer());
    let plan = account.ensure(&spec(&[ARN]), &targets, usize::MAX).unwrap();
    assert!(plan.again.is_some() && account.observed.balancers.len() == 2, "{:?}", account.names());
    account.time_passes();
    account.settle(&spec(&[ARN]), &targets);
    assert_eq!(account.observed.balancers[0].name, "users");
}

#[test]
fn listeners_on_a_former_load_balancer_of_the_user_are_deleted_before_their_groups() {
    let mut account = Account::default();
    let targets = nodes([1]);
    account.settle(&spec(&[]), &targets);
    account.observed.abandoned_listeners = vec!["arn:listener/old".into()];
    let plan = account.ensure(&spec(&[]), &targets, usize::MAX).unwrap();
    assert!(plan.again.is_none() && account.observed.abandoned_listeners.is_empty(), "{:?}", account.names());
    account.observed.abandoned_listeners = vec!["arn:listener/old".into()];
    let deletion = diff::delete(&account.observed, &samples::id());
    assert_eq!(name(&deletion.steps[0]), "DeleteListener");
}

#[test]
fn member_of_a_group_changes_its_own_rules_and_attributes_only_if_it_leads() {
    for leads in [false, true] {
        let mut account = Account::default();
        let name = names::group_balancer("c", "default/web", Scheme::Internal);
        let tags = names::group_tags(&ClusterTags::new("c", false), "default/web");
        let security = ObservedSecurityGroup { id: "sg-group".into(), name: name.clone(), tags, rules: Vec::new() };
        let security_groups = vec![security.id.clone(), "sg-backend".into()];
        account.observed.balancers.push(ObservedBalancer { leads, name, security_groups, ..user_balancer() });
        account.observed.security_groups.push(security);
        let member = spec(&[("group", "web"), ("scheme", "internal"), ("cross-zone-load-balancing-enabled", "true")]);
        account.settle(&member, &nodes([1]));
        let rules = &account.observed.security_groups[0].rules;
        assert!(!rules.is_empty() && rules.iter().all(|one| names::is_group_rule(&member.id, &one.rule.description)));
        let cross_zone = account.observed.balancers[0].attributes.get("load_balancing.cross_zone.enabled");
        assert_eq!(cross_zone.is_some(), leads, "{:?}", account.names());
        let never =
            ["CreateBalancer", "SetSecurityGroups", "SetSubnets", "AddTags", "RemoveTags", "DeleteSecurityGroup"];
        assert!(!account.names().iter().any(|step| never.contains(&step.as_str())), "{:?}", account.names());
    }
}
