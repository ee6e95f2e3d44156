//! Destinations of a listener's traffic during a change: a target group keeps its traffic until another one can serve
//! it.

use std::collections::BTreeSet;

use crate::loadbalancer::observed::stack::{ObservedListener, ObservedStack, ObservedTargetGroup};
use crate::loadbalancer::spec::actions::MAX_TARGET_GROUPS;
use crate::loadbalancer::types::{Desired, Listener, TargetHealth};

/// The weight of the only target group of a listener. The value has no effect: the group gets all of the traffic.
const SINGLE_WEIGHT: i32 = 1;
/// The weight of a target group that will be replaced, next to its replacement with weight 0: AWS probes the targets of
/// a group only once a listener uses it.
const OLD_GROUP_WEIGHT: i32 = 100;

/// Target groups by name or ARN, with their weights.
pub(super) type Forwards = Vec<(String, i32)>;

/// The next change of a listener's destinations.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Shift {
    pub forwards: Forwards,
    /// The listener has these destinations already.
    pub done: bool,
    /// ARNs of target groups that the listener stops using once other groups are healthy.
    pub leaving: Vec<String>,
    /// Another change follows, once targets are healthy.
    pub continues: bool,
}

/// Returns the final destinations of a listener's traffic; `group` is its own target group, and `name` returns the
/// names of target groups for other Services.
pub(super) fn finals(wanted: &Listener, group: &str, name: impl Fn(&str) -> String) -> Forwards {
    match &wanted.spread {
        None => vec![(group.to_owned(), SINGLE_WEIGHT)],
        Some(spread) => {
            let others = spread.others.iter().map(|(other, weight)| (name(other), *weight));
            std::iter::once((group.to_owned(), spread.own)).chain(others).collect()
        }
    }
}

/// Returns the next change of a listener towards `finals`, of which the first is its own target group.
///
/// While they are healthy, the current groups keep the traffic in two cases: the Service's new group has no healthy
/// target yet; or all groups change, and none of the final groups with traffic was found healthy. There is no such
/// intermediate state if the protocol changes, or if it would need more than [`MAX_TARGET_GROUPS`] groups.
pub(super) fn next_shift(
    desired: &Desired,
    wanted: &Listener,
    current: &ObservedListener,
    finals: &Forwards,
    observed: &ObservedStack,
) -> Shift {
    let arns = observed.arns(finals);
    let is_wanted = |group: &ObservedTargetGroup| finals.iter().any(|(name, _)| *name == group.name);
    let own = |(arn, weight): &(String, i32)| Some((observed.target_group_by_arn(arn)?, *weight));
    let old: Vec<_> = current.forwards.iter().filter_map(own).filter(|(group, _)| !is_wanted(group)).collect();
    let direct = Shift {
        done: old.is_empty() && arns.len() == finals.len() && same_forwards(&arns, &current.forwards),
        forwards: finals.clone(),
        leaving: Vec::new(),
        continues: false,
    };
    let Some((group, weight)) = finals.first().filter(|_| !direct.done && current.protocol == wanted.protocol) else {
        return direct;
    };
    let only = current.forwards.len() == 1;
    let gets_traffic = |(_, weight): &&(String, i32)| only || *weight > 0;
    let new = observed.target_group(group);
    let in_use = new.and_then(|new| current.forwards.iter().find(|(arn, _)| *arn == new.arn));
    // Groups without a healthy target can be dropped immediately, and a group that should have no targets can be used
    // immediately.
    let old_is_healthy = old.iter().any(|(group, weight)| (only || *weight > 0) && is_healthy(group));
    let is_unproven = in_use.filter(gets_traffic).is_none() && (in_use.is_none() || !new.is_some_and(is_healthy));
    let replaces_own =
        old_is_healthy && is_unproven && (finals.len() == 1 || *weight > 0) && !wanted.group.targets.is_empty();
    let current_arns = receiving(&current.forwards, current.forwards.len());
    let final_arns = receiving(&arns, finals.len());
    // The health of other owners' groups is not known here.
    let serves = |arns: &[&str]| arns.iter().any(|arn| observed.target_group_by_arn(arn).is_none_or(is_healthy));
    let keeps_a_group = current_arns.iter().any(|arn| final_arns.contains(arn));
    let would_lose_traffic =
        !keeps_a_group && serves(&current_arns) && !serves(&final_arns) && has_targets(desired, wanted, finals);
    let old_weight = |weight: i32| {
        if only { wanted.spread.as_ref().map_or(OLD_GROUP_WEIGHT, |spread| spread.own.max(1)) } else { weight }
    };
    let intermediate: Forwards = if would_lose_traffic {
        with_groups_without_traffic(current, finals, observed)
    } else if replaces_own {
        let kept = old.iter().map(|(group, weight)| (group.name.clone(), old_weight(*weight)));
        kept.chain([(group.clone(), 0)]).chain(finals[1..].iter().cloned()).collect()
    } else {
        return direct;
    };
    if intermediate.len() > MAX_TARGET_GROUPS {
        return direct;
    }
    let arns = observed.arns(&intermediate);
    Shift {
        done: arns.len() == intermediate.len() && same_forwards(&arns, &current.forwards),
        forwards: intermediate,
        leaving: old.iter().map(|(group, _)| group.arn.clone()).collect(),
        continues: true,
    }
}

/// Returns the current groups with their weights, followed by the other groups of `finals`, without traffic.
fn with_groups_without_traffic(current: &ObservedListener, finals: &Forwards, observed: &ObservedStack) -> Forwards {
    let only = current.forwards.len() == 1;
    let name = |arn: &String| observed.target_group_by_arn(arn).map_or(arn.clone(), |group| group.name.clone());
    let kept = current.forwards.iter().map(|(arn, weight)| (name(arn), if only { OLD_GROUP_WEIGHT } else { *weight }));
    let kept: Forwards = kept.collect();
    let added = finals.iter().filter(|(name, _)| !kept.iter().any(|(kept_name, _)| kept_name == name));
    let added: Forwards = added.map(|(name, _)| (name.clone(), 0)).collect();
    kept.into_iter().chain(added).collect()
}

fn is_healthy(group: &ObservedTargetGroup) -> bool {
    group.targets.values().any(|health| *health == TargetHealth::Healthy)
}

/// Returns the target groups that get traffic; the weight of a single group has no effect.
fn receiving(forwards: &[(String, i32)], count: usize) -> Vec<&str> {
    forwards.iter().filter(|(_, weight)| count == 1 || *weight > 0).map(|(arn, _)| arn.as_str()).collect()
}

/// Returns true if any of the destinations has targets that can become healthy.
fn has_targets(desired: &Desired, wanted: &Listener, finals: &Forwards) -> bool {
    let own = (finals.len() == 1 || finals.first().is_some_and(|(_, weight)| *weight > 0))
        && !wanted.group.targets.is_empty();
    let others = wanted.spread.iter().flat_map(|spread| &spread.others).filter(|(_, weight)| *weight > 0);
    own || others.filter_map(|(name, _)| desired.backends.get(name)).any(|group| !group.targets.is_empty())
}

/// Returns true if the same groups get the same parts of the traffic; the weight of a single group has no effect.
fn same_forwards(one: &[(String, i32)], other: &[(String, i32)]) -> bool {
    let set = |forwards: &[(String, i32)]| forwards.iter().cloned().collect::<BTreeSet<_>>();
    match (one, other) {
        ([(one, _)], [(other, _)]) => one == other,
        _ => set(one) == set(other),
    }
}
