//! Load balancers that users made: plans add the Service's listeners and change nothing else of them.

use super::world::{World, name};
use crate::loadbalancer::model::diff;
use crate::loadbalancer::names;
use crate::loadbalancer::observed::stack::{ObservedBalancer, ObservedSecurityGroup};
use crate::loadbalancer::samples::{listed_balancer, nodes, spec};
use crate::loadbalancer::types::{Mapping, Scheme};
use crate::tags::ClusterTags;

const ARN: (&str, &str) = ("arn", "arn:loadbalancer/net/users");

fn given() -> ObservedBalancer {
    let mapping = Mapping { subnet: "subnet-1".into(), zone: "eu-west-1a".into(), ..Mapping::default() };
    ObservedBalancer {
        given: true,
        taken: [9000].into(),
        subnets: vec![mapping],
        ..listed_balancer("users", &[("team", "web")])
    }
}

#[test]
fn plan_changes_only_listeners_of_a_load_balancer_that_a_user_made() {
    let mut world = World::default();
    world.observed.balancers.push(given());
    let on_it = spec(&[ARN, ("scheme", "internet-facing"), ("additional-resource-tags", "team=api")]);
    world.settle(&on_it, &nodes([1, 2]));
    let listeners = std::mem::take(&mut world.observed.balancers[0].listeners);
    assert_eq!((&world.observed.balancers[0], listeners.len()), (&given(), 1), "{:?}", world.names());
    assert!(world.observed.security_groups.is_empty(), "{:?}", world.names());
    let deletion = diff::delete(&world.observed, "uid");
    assert_eq!(deletion.steps.iter().map(name).collect::<Vec<_>>(), ["DeleteTargetGroup"]);
}

#[test]
fn own_load_balancer_stays_until_targets_on_that_of_the_user_are_healthy() {
    let mut world = World::default();
    let targets = nodes([1]);
    world.settle(&spec(&[]), &targets);
    world.observed.balancers.push(given());
    let plan = world.ensure(&spec(&[ARN]), &targets, usize::MAX).unwrap();
    assert!(plan.again.is_some() && world.observed.balancers.len() == 2, "{:?}", world.names());
    world.time_passes();
    world.settle(&spec(&[ARN]), &targets);
    assert_eq!(world.observed.balancers[0].name, "users");
}

#[test]
fn listeners_on_a_former_load_balancer_of_the_user_are_deleted_before_their_groups() {
    let mut world = World::default();
    let targets = nodes([1]);
    world.settle(&spec(&[]), &targets);
    world.observed.abandoned_listeners = vec!["arn:listener/old".into()];
    let plan = world.ensure(&spec(&[]), &targets, usize::MAX).unwrap();
    assert!(plan.again.is_none() && world.observed.abandoned_listeners.is_empty(), "{:?}", world.names());
    world.observed.abandoned_listeners = vec!["arn:listener/old".into()];
    let deletion = diff::delete(&world.observed, "uid");
    assert_eq!(name(&deletion.steps[0]), "DeleteListener");
}

#[test]
fn member_of_a_group_changes_its_own_rules_and_attributes_only_if_it_leads() {
    for leads in [false, true] {
        let mut world = World::default();
        let name = names::group_balancer("c", "default/web", Scheme::Internal);
        let tags = names::group_tags(&ClusterTags::new("c", false), "default/web");
        let security = ObservedSecurityGroup { id: "sg-group".into(), name: name.clone(), tags, rules: Vec::new() };
        let security_groups = vec![security.id.clone(), "sg-backend".into()];
        world.observed.balancers.push(ObservedBalancer { leads, name, security_groups, ..given() });
        world.observed.security_groups.push(security);
        let member = spec(&[("group", "web"), ("scheme", "internal"), ("cross-zone-load-balancing-enabled", "true")]);
        world.settle(&member, &nodes([1]));
        let rules = &world.observed.security_groups[0].rules;
        assert!(!rules.is_empty() && rules.iter().all(|one| names::is_group_rule(&member.id, &one.rule.description)));
        let cross_zone = world.observed.balancers[0].attributes.get("load_balancing.cross_zone.enabled");
        assert_eq!(cross_zone.is_some(), leads, "{:?}", world.names());
        let never =
            ["CreateBalancer", "SetSecurityGroups", "SetSubnets", "AddTags", "RemoveTags", "DeleteSecurityGroup"];
        assert!(!world.names().iter().any(|step| never.contains(&step.as_str())), "{:?}", world.names());
    }
}
