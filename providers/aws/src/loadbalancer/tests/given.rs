//! Load balancers that users made: plans add the Service's listeners and change nothing else of them.

use super::world::{World, name};
use crate::loadbalancer::model::diff;
use crate::loadbalancer::observed::stack::SeenBalancer;
use crate::loadbalancer::samples::{listed_balancer, nodes, spec};
use crate::loadbalancer::types::Mapping;

const ARN: (&str, &str) = ("arn", "arn:loadbalancer/net/users");

fn given() -> SeenBalancer {
    let mapping = Mapping { subnet: "subnet-1".into(), zone: "eu-west-1a".into(), ..Mapping::default() };
    SeenBalancer {
        given: true,
        taken: [9000].into(),
        subnets: vec![mapping],
        ..listed_balancer("users", &[("team", "web")])
    }
}

#[test]
fn plan_changes_only_listeners_of_a_load_balancer_that_a_user_made() {
    let mut world = World::default();
    world.seen.balancers.push(given());
    let on_it = spec(&[ARN, ("scheme", "internet-facing"), ("additional-resource-tags", "team=api")]);
    world.settle(&on_it, &nodes([1, 2]));
    let listeners = std::mem::take(&mut world.seen.balancers[0].listeners);
    assert_eq!((&world.seen.balancers[0], listeners.len()), (&given(), 1), "{:?}", world.names());
    assert!(world.seen.security_groups.is_empty(), "{:?}", world.names());
    let deletion = diff::delete(&world.seen, "uid");
    assert_eq!(deletion.steps.iter().map(name).collect::<Vec<_>>(), ["DeleteTargetGroup"]);
}

#[test]
fn own_load_balancer_stays_until_targets_on_that_of_the_user_are_healthy() {
    let (mut world, targets) = (World::default(), nodes([1]));
    world.settle(&spec(&[]), &targets);
    world.seen.balancers.push(given());
    let plan = world.ensure(&spec(&[ARN]), &targets, usize::MAX).unwrap();
    assert!(plan.again.is_some() && world.seen.balancers.len() == 2, "{:?}", world.names());
    world.time_passes();
    world.settle(&spec(&[ARN]), &targets);
    assert_eq!(world.seen.balancers[0].name, "users");
}

#[test]
fn listeners_on_a_former_load_balancer_of_the_user_are_deleted_before_their_groups() {
    let (mut world, targets) = (World::default(), nodes([1]));
    world.settle(&spec(&[]), &targets);
    world.seen.strays = vec!["arn:listener/old".into()];
    let plan = world.ensure(&spec(&[]), &targets, usize::MAX).unwrap();
    assert!(plan.again.is_none() && world.seen.strays.is_empty(), "{:?}", world.names());
    world.seen.strays = vec!["arn:listener/old".into()];
    let deletion = diff::delete(&world.seen, "uid");
    assert_eq!(name(&deletion.steps[0]), "DeleteListener");
}
