//! The details of resources that this process has just created are known from its calls without a read. They are never
//! used if a listing contains other resources.

use std::collections::BTreeMap;

use providers::LoadBalancerSpec;

use super::account::{Account, name};
use crate::loadbalancer::model::diff;
use crate::loadbalancer::observed::stack::{ObservedStack, State};
use crate::loadbalancer::plan::Step;
use crate::loadbalancer::samples::{nodes, spec};

/// Returns the resources as a listing contains them, without listeners, attributes, targets and rules.
fn listed(stack: &ObservedStack) -> ObservedStack {
    let mut listed = stack.clone();
    for balancer in &mut listed.balancers {
        balancer.attributes = BTreeMap::new();
        balancer.listeners = Vec::new();
        balancer.capacity = None;
    }
    for group in &mut listed.target_groups {
        group.attributes = BTreeMap::new();
        group.targets = BTreeMap::new();
    }
    listed.security_groups.iter_mut().for_each(|group| group.rules.clear());
    listed
}

/// Services whose creations have different steps.
fn services() -> [LoadBalancerSpec; 4] {
    [
        spec(&[]),
        spec(&[("disable-nlb-sg", "true")]),
        spec(&[
            ("attributes", "load_balancing.cross_zone.enabled=true"),
            ("minimum-load-balancer-capacity", "CapacityUnits=5"),
        ]),
        spec(&[
            ("ssl-cert", "arn:aws:acm:eu-west-1:1:certificate/a,arn:aws:acm:eu-west-1:1:certificate/b"),
            ("proxy-protocol-per-target-group", "80"),
        ]),
    ]
}

/// Returns a complete creation in which AWS still works on the load balancer.
fn created(spec: &LoadBalancerSpec) -> Account {
    let mut account = Account::default();
    account.ensure(spec, &nodes([1, 2]), usize::MAX).expect("a plan was interrupted");
    account
}

fn removes_anything(step: &Step) -> bool {
    ["Delete", "Revoke", "Deregister", "Remove"].iter().any(|prefix| name(step).starts_with(prefix))
}

#[test]
fn known_details_equal_the_resources_after_any_step() {
    for spec in services() {
        for max_steps in 0.. {
            let mut account = Account::default();
            let done = account.ensure(&spec, &nodes([1, 2]), max_steps).is_some();
            let mut observed = listed(&account.observed);
            assert!(observed.take_details(&account.observed), "after {max_steps} steps");
            assert_eq!(observed, account.observed, "after {max_steps} steps");
            if done {
                break;
            }
        }
    }
}

#[test]
fn incomplete_or_other_stack_gets_no_details() {
    let account = created(&spec(&[]));
    let all = listed(&account.observed);
    let refused = |what: &str, mut change: Box<dyn FnMut(&mut ObservedStack)>| {
        let mut observed = all.clone();
        change(&mut observed);
        let before = observed.clone();
        assert!(!observed.take_details(&account.observed), "{what}");
        assert_eq!(observed, before, "{what}");
    };
    refused("no load balancer", Box::new(|observed| observed.balancers.clear()));
    refused("no target group", Box::new(|observed| observed.target_groups.clear()));
    refused("no security group", Box::new(|observed| observed.security_groups.clear()));
    refused("another load balancer of the same name", Box::new(|observed| observed.balancers[0].arn.push('2')));
    refused("another target group of the same name", Box::new(|observed| observed.target_groups[0].arn.push('2')));
    refused("one more target group", {
        let mut more = all.target_groups[0].clone();
        more.arn.push('2');
        Box::new(move |observed| observed.target_groups.push(more.clone()))
    });
}

#[test]
fn change_by_another_client_that_a_listing_shows_is_reverted() {
    let spec = spec(&[]);
    let targets = nodes([1, 2]);
    let account = created(&spec);
    let desired = account.desired(&spec, &targets);
    let reverted = |what: &str, step: &str, change: &dyn Fn(&mut ObservedStack)| {
        let mut observed = listed(&account.observed);
        change(&mut observed);
        assert!(observed.take_details(&account.observed), "{what}");
        let steps: Vec<String> = diff::ensure(&desired, &observed).steps.iter().map(name).collect();
        assert_eq!(steps, [step], "{what}");
    };
    reverted("subnets", "SetSubnets", &|observed| drop(observed.balancers[0].subnets.pop()));
    reverted("security groups", "SetSecurityGroups", &|observed| drop(observed.balancers[0].security_groups.pop()));
    reverted("tags", "AddTags", &|observed| drop(observed.target_groups[0].tags.pop_first()));
    reverted("health checks", "SetHealthCheck", &|observed| observed.target_groups[0].health.interval += 10);
    reverted("the setup failed", "DeleteBalancer", &|observed| observed.balancers[0].state = State::Failed);
}

#[test]
fn change_by_another_client_that_no_listing_shows_deletes_nothing_and_is_reverted_after_a_read() {
    let spec = spec(&[]);
    let targets = nodes([1, 2]);
    let before = created(&spec);
    let plan = |observed: &ObservedStack| diff::ensure(&before.desired(&spec, &targets), observed).steps;
    let changed = |what: &str, step: &str, change: &dyn Fn(&mut ObservedStack)| {
        let mut now = before.observed.clone();
        change(&mut now);
        let mut stale = listed(&now);
        assert!(stale.take_details(&before.observed), "{what}");
        let steps = plan(&stale);
        assert!(!steps.iter().any(removes_anything), "{what}: {steps:?}");
        let steps: Vec<String> = plan(&now).iter().map(name).collect();
        assert_eq!(steps, [step], "{what}, after a read");
    };
    changed("no listener", "CreateListener", &|now| now.balancers[0].listeners.clear());
    changed("another listener", "DeleteListener", &|now| {
        let mut other = now.balancers[0].listeners[0].clone();
        other.port = 81;
        other.arn = "arn:listener/81".into();
        now.balancers[0].listeners.push(other);
    });
    changed("no rules", "Authorize", &|now| now.security_groups[0].rules.clear());
    changed("no targets", "Register", &|now| now.target_groups[0].targets.clear());
    changed("attributes", "SetBalancerAttributes", &|now| {
        now.balancers[0].attributes.insert("load_balancing.cross_zone.enabled".into(), "true".into());
    });
}
