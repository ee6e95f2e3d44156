//! Destinations of a listener's traffic during a change: a target group keeps its traffic until another one can serve
//! it.

use std::collections::BTreeSet;

use crate::loadbalancer::observed::stack::{Seen, SeenListener, SeenTargetGroup};
use crate::loadbalancer::spec::actions::MOST;
use crate::loadbalancer::types::{Desired, Listener, TargetHealth};

/// The weight of a target group that gets all of a listener's traffic.
const ALL: i32 = 1;
/// The weight of a target group that will be replaced, next to one that gets no traffic yet but is probed.
const STILL: i32 = 100;

/// Target groups by name or ARN, with their weights.
pub(super) type Forwards = Vec<(String, i32)>;

/// The next change of a listener.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Turn {
    pub forwards: Forwards,
    /// The listener has these destinations already.
    pub done: bool,
    /// ARNs of target groups that it stops using once others are healthy.
    pub leaving: Vec<String>,
    /// More changes follow.
    pub waits: bool,
}

/// Returns the final destinations of a listener's traffic; `group` is its own target group, and `name` returns the
/// names of those for other Services.
pub(super) fn finals(wanted: &Listener, group: &str, name: impl Fn(&str) -> String) -> Forwards {
    match &wanted.spread {
        None => vec![(group.to_owned(), ALL)],
        Some(spread) => {
            let others = spread.others.iter().map(|(other, weight)| (name(other), *weight));
            std::iter::once((group.to_owned(), spread.own)).chain(others).collect()
        }
    }
}

/// Returns the next change of a listener on its way to `finals`, of which the first is its own target group.
///
/// The current groups keep the traffic if its own group is replaced by one without a healthy target yet, or if all
/// traffic moves to groups of which none was found healthy.
pub(super) fn turn(
    desired: &Desired,
    wanted: &Listener,
    current: &SeenListener,
    finals: &Forwards,
    seen: &Seen,
) -> Turn {
    let arns = seen.arns(finals);
    let is_wanted = |group: &SeenTargetGroup| finals.iter().any(|(name, _)| *name == group.name);
    let own = |(arn, weight): &(String, i32)| Some((seen.target_group_by_arn(arn)?, *weight));
    let old: Vec<_> = current.forwards.iter().filter_map(own).filter(|(group, _)| !is_wanted(group)).collect();
    let direct = Turn {
        done: old.is_empty() && arns.len() == finals.len() && same_forwards(&arns, &current.forwards),
        forwards: finals.clone(),
        leaving: Vec::new(),
        waits: false,
    };
    let Some((group, weight)) = finals.first().filter(|_| !direct.done && current.protocol == wanted.protocol) else {
        return direct;
    };
    let only = current.forwards.len() == 1;
    let is_sent = |(_, weight): &&(String, i32)| only || *weight > 0;
    let new = seen.target_group(group);
    let listed = new.and_then(|new| current.forwards.iter().find(|(arn, _)| *arn == new.arn));
    // Groups without targets can be dropped immediately, and a group that should have no targets can be used
    // immediately.
    let served = old.iter().any(|(group, weight)| (only || *weight > 0) && is_healthy(group));
    let on_trial = listed.filter(is_sent).is_none() && (listed.is_none() || !new.is_some_and(is_healthy));
    let exchanged = served && on_trial && (finals.len() == 1 || *weight > 0) && !wanted.group.targets.is_empty();
    let (now, then) = (sent(&current.forwards, current.forwards.len()), sent(&arns, finals.len()));
    // The health of other owners' groups is not known here.
    let serves = |arns: &[&str]| arns.iter().any(|arn| seen.target_group_by_arn(arn).is_none_or(is_healthy));
    let goes_on = now.iter().any(|arn| then.contains(arn));
    let lost = !goes_on && serves(&now) && !serves(&then) && has_targets(desired, wanted, finals);
    let name = |arn: &String| seen.target_group_by_arn(arn).map_or(arn.clone(), |group| group.name.clone());
    let still =
        |weight: i32| if only { wanted.spread.as_ref().map_or(STILL, |spread| spread.own.max(1)) } else { weight };
    let way: Forwards = if lost {
        let stay = current.forwards.iter().map(|(arn, weight)| (name(arn), if only { STILL } else { *weight }));
        let stay: Forwards = stay.collect();
        let come = finals.iter().filter(|(name, _)| !stay.iter().any(|(stays, _)| stays == name));
        let come: Forwards = come.map(|(name, _)| (name.clone(), 0)).collect();
        stay.into_iter().chain(come).collect()
    } else if exchanged {
        let stay = old.iter().map(|(group, weight)| (group.name.clone(), still(*weight)));
        stay.chain([(group.clone(), 0)]).chain(finals[1..].iter().cloned()).collect()
    } else {
        return direct;
    };
    if way.len() > MOST {
        return direct;
    }
    let arns = seen.arns(&way);
    Turn {
        done: arns.len() == way.len() && same_forwards(&arns, &current.forwards),
        forwards: way,
        leaving: old.iter().map(|(group, _)| group.arn.clone()).collect(),
        waits: true,
    }
}

fn is_healthy(group: &SeenTargetGroup) -> bool {
    group.targets.values().any(|health| *health == TargetHealth::Healthy)
}

/// Returns the target groups that get traffic; the weight of a single one has no effect.
fn sent(forwards: &[(String, i32)], of: usize) -> Vec<&str> {
    forwards.iter().filter(|(_, weight)| of == 1 || *weight > 0).map(|(arn, _)| arn.as_str()).collect()
}

/// Returns whether any of the destinations has targets that can become healthy.
fn has_targets(desired: &Desired, wanted: &Listener, finals: &Forwards) -> bool {
    let own = (finals.len() == 1 || finals.first().is_some_and(|(_, weight)| *weight > 0))
        && !wanted.group.targets.is_empty();
    let others = wanted.spread.iter().flat_map(|spread| &spread.others).filter(|(_, weight)| *weight > 0);
    own || others.filter_map(|(name, _)| desired.backends.get(name)).any(|group| !group.targets.is_empty())
}

/// Returns whether traffic goes to the same groups; the weight of a single one has no effect.
fn same_forwards(one: &[(String, i32)], other: &[(String, i32)]) -> bool {
    let set = |forwards: &[(String, i32)]| forwards.iter().cloned().collect::<BTreeSet<_>>();
    match (one, other) {
        ([(one, _)], [(other, _)]) => one == other,
        _ => set(one) == set(other),
    }
}
