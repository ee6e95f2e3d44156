//! From what there is to what is asked for: the new is made before the old goes, and traffic has somewhere to go at
//! each step.
//!
//! Tags come first: permissions may hang on them. A plan may be followed up to any step and left there: the next
//! comparison goes on from what it finds. Plans are made and followed until one is empty, as ids of what one makes are
//! needed by the next.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::plan::{Plan, Step};
use super::seen::{Seen, SeenBalancer, SeenListener, SeenTargetGroup, State, balancer_defaults, group_defaults};
use super::sharing::{self, Change};
use super::types::{
    Attributes, Balancer, Desired, Listener, Mapping, Protocol, SecurityGroup, Tagging, Tags, Target, TargetGroup,
    TargetHealth, TargetType,
};

/// AWS needs minutes to bring a balancer up, and about this long to try a new target.
pub(crate) const PACE: Duration = Duration::from_secs(10);

/// A target group takes all of a listener's traffic.
const ALL: i32 = 1;
/// The weight of a target group that is about to be replaced, beside one that gets nothing yet but is probed.
const STILL: i32 = 100;

/// What brings a Service's balancer to what is asked for.
pub(crate) fn ensure(desired: &Desired, seen: &Seen) -> Plan {
    let mut plan = Plan::default();
    let mut groups = desired.balancer.security_groups.clone();
    if let Some(wanted) = &desired.security_group {
        let Some(id) = security_group(wanted, seen, &desired.tagging, &mut plan) else { return plan };
        groups.insert(0, id);
    }
    let wanted = Balancer { security_groups: groups, ..desired.balancer.clone() };
    let current = seen.balancer(&wanted.name);
    match current {
        Some(current) => balancer(&wanted, current, &desired.tagging, &mut plan),
        None => {
            let fresh = unlike(&wanted.attributes, &Attributes::new(), &balancer_defaults());
            plan.steps.push(Step::CreateBalancer(wanted.clone()));
            if !fresh.is_empty() {
                plan.steps.push(Step::SetBalancerAttributes { balancer: wanted.name.clone(), attributes: fresh });
            }
            if let Some(units) = wanted.capacity {
                plan.steps.push(Step::SetCapacity { balancer: wanted.name.clone(), units });
            }
        }
    }
    if current.is_none_or(|current| current.state == State::Provisioning) {
        plan.wait(PACE);
    }
    let mut claims = Claims::default();
    let mut leave = Vec::new();
    for wanted in desired.listeners.values() {
        let listener = current.and_then(|current| current.listeners.iter().find(|one| one.port == wanted.port));
        let group = target_group(wanted, listener, seen, &desired.tagging, &mut claims, &mut plan, &mut leave);
        match listener {
            Some(listener) => change_listener(desired, wanted, listener, &group, seen, &mut claims, &mut plan),
            None => add_listener(&desired.balancer.name, wanted, &group, &mut plan),
        }
    }
    plan.steps.append(&mut leave);
    remove(desired, current, seen, &mut claims, &mut plan);
    plan
}

/// The own security group's id, once it has one.
fn security_group(wanted: &SecurityGroup, seen: &Seen, tagging: &Tagging, plan: &mut Plan) -> Option<String> {
    let Some(current) = seen.security_group(&wanted.name) else {
        plan.steps.push(Step::CreateSecurityGroup(wanted.clone()));
        return None;
    };
    tags(&current.id, &wanted.tags, &current.tags, tagging, plan);
    let have: BTreeSet<_> = current.rules.iter().map(|rule| rule.rule.key()).collect();
    let want: BTreeSet<_> = wanted.rules.iter().map(super::types::Rule::key).collect();
    let rules: Vec<_> = wanted.rules.iter().filter(|rule| !have.contains(&rule.key())).cloned().collect();
    if !rules.is_empty() {
        plan.steps.push(Step::Authorize { group: wanted.name.clone(), rules });
    }
    let extra = current.rules.iter().filter(|rule| !want.contains(&rule.rule.key()));
    let rules: Vec<_> = extra.map(|rule| rule.id.clone()).collect();
    if !rules.is_empty() {
        plan.steps.push(Step::Revoke { group: wanted.name.clone(), rules });
    }
    Some(current.id.clone())
}

fn balancer(wanted: &Balancer, current: &SeenBalancer, tagging: &Tagging, plan: &mut Plan) {
    tags(&current.arn, &wanted.tags, &current.tags, tagging, plan);
    let name = &wanted.name;
    if current.address_type != wanted.address_type {
        let address_type = wanted.address_type;
        plan.steps.push(Step::SetAddressType { balancer: name.clone(), address_type });
    }
    subnets(wanted, current, plan);
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    let link = wanted.private_link.filter(|link| Some(*link) != current.private_link);
    // AWS can't give groups to a balancer that was made without, nor take the last one away.
    let has = !current.security_groups.is_empty() && !wanted.security_groups.is_empty();
    if has && (set(&current.security_groups) != set(&wanted.security_groups) || link.is_some()) {
        let groups = wanted.security_groups.clone();
        plan.steps.push(Step::SetSecurityGroups { balancer: name.clone(), groups, private_link: link });
    }
    let changed = unlike(&wanted.attributes, &current.attributes, &balancer_defaults());
    if !changed.is_empty() {
        plan.steps.push(Step::SetBalancerAttributes { balancer: name.clone(), attributes: changed });
    }
    if let Some(units) = wanted.capacity.filter(|units| current.capacity.unwrap_or(0) != *units) {
        plan.steps.push(Step::SetCapacity { balancer: name.clone(), units });
    }
}

fn subnets(wanted: &Balancer, current: &SeenBalancer, plan: &mut Plan) {
    let ids = |mappings: &[Mapping]| mappings.iter().map(|one| one.subnet.clone()).collect::<BTreeSet<_>>();
    let mut have = ids(&current.subnets);
    if ids(&wanted.subnets) == have && wanted.source_nat == current.source_nat {
        return;
    }
    for subnets in ways(&wanted.subnets, &current.subnets) {
        let last = subnets.len() == wanted.subnets.len();
        if ids(&subnets) != have || last {
            have = ids(&subnets);
            let (balancer, source_nat) = (wanted.name.clone(), wanted.source_nat);
            plan.steps.push(Step::SetSubnets { balancer, subnets, source_nat });
        }
    }
}

/// The sets of subnets by which one comes to the wanted ones. A zone's subnet can't be exchanged while the balancer is
/// in that zone, so it leaves the zone first; and it is in some zone all the time. With a single zone there is no way.
fn ways(wanted: &[Mapping], current: &[Mapping]) -> Vec<Vec<Mapping>> {
    let old = |zone: &str| current.iter().find(|old| old.zone == zone);
    let exchanged = |one: &&Mapping| old(&one.zone).is_some_and(|old| old.subnet != one.subnet);
    let stay: Vec<Mapping> = wanted.iter().filter(|one| !exchanged(one)).cloned().collect();
    if stay.len() == wanted.len() {
        return vec![stay];
    }
    if !stay.is_empty() {
        return vec![stay, wanted.to_vec()];
    }
    // All change: one zone stays as it is until the others are done.
    match (wanted.split_first(), wanted.first().and_then(|first| old(&first.zone))) {
        (Some((_, rest)), Some(first)) if !rest.is_empty() => {
            let kept = vec![first.clone()];
            let with_kept = kept.iter().chain(rest).cloned().collect();
            vec![kept, with_kept, rest.to_vec(), wanted.to_vec()]
        }
        _ => Vec::new(),
    }
}

/// Target groups that are spoken for, by ARN.
#[derive(Default)]
struct Claims {
    /// They are what is asked for.
    wanted: BTreeSet<String>,
    /// They still get traffic after the plan.
    used: BTreeSet<String>,
}

/// The target group of a listener: its name, after what it lacks was added to the plan. What has to leave it goes
/// to `leave`, for after all that comes.
fn target_group(
    listener: &Listener,
    current: Option<&SeenListener>,
    seen: &Seen,
    tagging: &Tagging,
    claims: &mut Claims,
    plan: &mut Plan,
    leave: &mut Vec<Step>,
) -> String {
    let wanted = &listener.group;
    let Some(group) = find_group(wanted, current, seen, claims) else {
        plan.steps.push(Step::CreateTargetGroup(Box::new(wanted.clone())));
        let attributes = unlike(&wanted.attributes, &Attributes::new(), &group_defaults());
        let group = &wanted.name;
        if !attributes.is_empty() {
            plan.steps.push(Step::SetGroupAttributes { group: group.clone(), attributes });
        }
        let (add, _) = targets(wanted, group, &BTreeMap::new(), None);
        plan.steps.extend(add);
        return group.clone();
    };
    claims.wanted.insert(group.arn.clone());
    tags(&group.arn, &wanted.tags, &group.tags, tagging, plan);
    if !wanted.health.is_met_by(&group.health) {
        plan.steps.push(Step::SetHealthCheck { group: group.name.clone(), health: wanted.health.clone() });
    }
    let attributes = unlike(&wanted.attributes, &group.attributes, &group_defaults());
    if !attributes.is_empty() {
        plan.steps.push(Step::SetGroupAttributes { group: group.name.clone(), attributes });
    }
    let (add, mut gone) = targets(wanted, &group.name, &group.targets, group.recorded.as_ref());
    plan.steps.extend(add);
    leave.append(&mut gone);
    group.name.clone()
}

/// What makes a group's targets the wanted ones: what to add, and what to take out afterwards.
pub(crate) fn targets(
    wanted: &TargetGroup,
    group: &str,
    current: &BTreeMap<Target, TargetHealth>,
    recorded: Option<&BTreeSet<Target>>,
) -> (Vec<Step>, Vec<Step>) {
    let live = current.iter().filter(|(_, health)| **health != TargetHealth::Draining);
    let live: BTreeSet<Target> = live.map(|(target, _)| target.clone()).collect();
    let shared = wanted.shared.then_some(recorded);
    let Change { before, add, gone, after } = sharing::bring(&wanted.targets, &live, shared, wanted.most);
    let group = || group.to_owned();
    let record = |targets| Step::Record { group: group(), targets };
    let register = (!add.is_empty()).then(|| Step::Register { group: group(), targets: add });
    let deregister = (!gone.is_empty()).then(|| Step::Deregister { group: group(), targets: gone });
    (
        before.map(record).into_iter().chain(register).collect(),
        deregister.into_iter().chain(after.map(record)).collect(),
    )
}

/// The group of the wanted name; else the one that the listener uses, whoever made it, if it could be the wanted one.
fn find_group<'a>(
    wanted: &TargetGroup,
    current: Option<&SeenListener>,
    seen: &'a Seen,
    claims: &Claims,
) -> Option<&'a SeenTargetGroup> {
    let fits = |group: &&SeenTargetGroup| {
        let port = wanted.target_type != TargetType::Instance || wanted.shared || group.port == wanted.port;
        let kind = group.target_type == wanted.target_type && group.protocol == wanted.protocol;
        kind && port && group.ipv6 == wanted.ipv6
    };
    let forwards = current.map(|listener| listener.forwards.as_slice()).unwrap_or_default();
    let in_use = forwards.iter().filter(|(_, weight)| *weight > 0 || forwards.len() == 1);
    let used = in_use.filter_map(|(arn, _)| seen.target_group_by_arn(arn)).find(fits);
    seen.target_group(&wanted.name).filter(fits).or(used).filter(|group| !claims.wanted.contains(&group.arn))
}

/// Where a listener's traffic goes when nothing is being exchanged.
fn finals(wanted: &Listener, group: &str) -> Vec<(String, i32)> {
    match &wanted.spread {
        None => vec![(group.to_owned(), ALL)],
        Some(spread) => std::iter::once((group.to_owned(), spread.own)).chain(spread.others.iter().cloned()).collect(),
    }
}

/// Whether traffic goes to the same groups; the weight of an only one means nothing.
fn same_forwards(one: &[(String, i32)], other: &[(String, i32)]) -> bool {
    let set = |forwards: &[(String, i32)]| forwards.iter().cloned().collect::<BTreeSet<_>>();
    match (one, other) {
        ([(one, _)], [(other, _)]) => one == other,
        _ => set(one) == set(other),
    }
}

fn add_listener(balancer: &str, wanted: &Listener, group: &str, plan: &mut Plan) {
    let (listener, forwards) = (Box::new(wanted.clone()), finals(wanted, group));
    plan.steps.push(Step::CreateListener { balancer: balancer.to_owned(), listener, forwards });
    if wanted.certificates.len() > 1 {
        let certificates = wanted.certificates[1..].to_vec();
        plan.steps.push(Step::AddCertificates { balancer: balancer.to_owned(), port: wanted.port, certificates });
    }
}

fn change_listener(
    desired: &Desired,
    wanted: &Listener,
    current: &SeenListener,
    group: &str,
    seen: &Seen,
    claims: &mut Claims,
    plan: &mut Plan,
) {
    let old: Vec<&SeenTargetGroup> = current
        .forwards
        .iter()
        .filter_map(|(arn, _)| seen.target_group_by_arn(arn))
        .filter(|old| old.name != group)
        .collect();
    let new = seen.target_group(group);
    let healthy = |group: &SeenTargetGroup| group.targets.values().any(|health| *health == TargetHealth::Healthy);
    let mut forwards = finals(wanted, group);
    let arrived = old.is_empty() && new.is_some() && same_forwards(&seen.arns(&forwards), &current.forwards);
    let listed = new.is_some_and(|new| current.forwards.iter().any(|(arn, _)| *arn == new.arn));
    // Nobody is served worse by a change at once.
    let free =
        current.protocol != wanted.protocol || wanted.group.targets.is_empty() || !old.iter().any(|old| healthy(old));
    let ready = free || new.is_some_and(healthy);
    let waits = !arrived && !free && (!listed || !ready);
    if waits {
        plan.wait(PACE);
        claims.used.extend(old.iter().map(|old| old.arn.clone()));
        let others = forwards.split_off(1);
        let still = if others.is_empty() { STILL } else { forwards[0].1 };
        forwards = old.iter().map(|old| (old.name.clone(), still)).chain([(group.to_owned(), 0)]).collect();
        forwards.extend(others);
    }
    let forwarded = arrived || (waits && listed && current.forwards.len() == forwards.len());
    let default = |certificates: &[String]| certificates.first().cloned();
    let changed = !forwarded
        || wanted.is_sticky() != current.sticky
        || current.protocol != wanted.protocol
        || default(&current.certificates) != default(&wanted.certificates)
        || (wanted.policy.is_some() && wanted.policy != current.policy)
        || alpn(wanted.alpn.as_deref()) != alpn(current.alpn.as_deref());
    if changed {
        plan.steps.push(Step::ModifyListener {
            arn: current.arn.clone(),
            listener: Box::new(wanted.clone()),
            forwards,
        });
    }
    if wanted.protocol == Protocol::Tls {
        certificates(&desired.balancer.name, wanted, current, plan);
    }
    let attributes = missing(&wanted.attributes, &current.attributes);
    if !attributes.is_empty() {
        plan.steps.push(Step::SetListenerAttributes { arn: current.arn.clone(), attributes });
    }
    tags(&current.arn, &wanted.tags, &current.tags, &desired.tagging, plan);
}

/// No policy is the same as the policy `None`.
fn alpn(policy: Option<&str>) -> Option<&str> {
    policy.filter(|policy| *policy != "None")
}

/// The certificates beside the default one.
fn certificates(balancer: &str, wanted: &Listener, current: &SeenListener, plan: &mut Plan) {
    let rest = |list: &[String]| list.iter().skip(1).cloned().collect::<BTreeSet<_>>();
    let (want, have) = (rest(&wanted.certificates), rest(&current.certificates));
    let add: Vec<String> = want.difference(&have).cloned().collect();
    if !add.is_empty() {
        let balancer = balancer.to_owned();
        plan.steps.push(Step::AddCertificates { balancer, port: current.port, certificates: add });
    }
    // The new default may be among those that were beside it; AWS takes it from there by itself.
    let default = wanted.certificates.first();
    let gone: Vec<String> = have.difference(&want).filter(|one| Some(*one) != default).cloned().collect();
    if !gone.is_empty() {
        plan.steps.push(Step::RemoveCertificates { arn: current.arn.clone(), certificates: gone });
    }
}

/// Listeners that nobody asked for, then the target groups, balancers and security groups that are left.
fn remove(desired: &Desired, current: Option<&SeenBalancer>, seen: &Seen, claims: &mut Claims, plan: &mut Plan) {
    let mut ports = BTreeSet::new();
    for listener in current.into_iter().flat_map(|current| &current.listeners) {
        // Two of one port can only be somebody else's doing.
        if !desired.listeners.contains_key(&listener.port) || !ports.insert(listener.port) {
            plan.steps.push(Step::DeleteListener { arn: listener.arn.clone() });
        }
    }
    let others: Vec<&SeenBalancer> = seen.balancers.iter().filter(|one| one.name != desired.balancer.name).collect();
    // Whoever still uses the old name is served until the new one works.
    let settled = current.is_some_and(|current| current.state != State::Provisioning) && plan.again.is_none();
    if settled {
        plan.steps.extend(others.iter().map(|other| Step::DeleteBalancer { arn: other.arn.clone() }));
    } else {
        let forwards = others.iter().flat_map(|other| &other.listeners).flat_map(|listener| &listener.forwards);
        claims.used.extend(forwards.map(|(arn, _)| arn.clone()));
    }
    let names: BTreeSet<&str> = desired.listeners.values().map(|listener| listener.group.name.as_str()).collect();
    for group in &seen.target_groups {
        let kept = claims.wanted.contains(&group.arn) || claims.used.contains(&group.arn);
        if !kept && !names.contains(group.name.as_str()) {
            plan.steps.push(Step::DeleteTargetGroup { arn: group.arn.clone() });
        }
    }
    let wanted = desired.security_group.as_ref().map(|group| group.name.as_str());
    let carried = |id: &String| !settled && others.iter().any(|other| other.security_groups.contains(id));
    for group in seen.security_groups.iter().filter(|group| Some(group.name.as_str()) != wanted && !carried(&group.id))
    {
        plan.steps.push(Step::DeleteSecurityGroup { id: group.id.clone() });
    }
}

/// What deletes all that there is. Parts may be held for a while by others that go.
pub(crate) fn delete(seen: &Seen) -> Plan {
    let balancers = seen.balancers.iter().map(|one| Step::DeleteBalancer { arn: one.arn.clone() });
    let groups = seen.target_groups.iter().map(|one| Step::DeleteTargetGroup { arn: one.arn.clone() });
    let security = seen.security_groups.iter().map(|one| Step::DeleteSecurityGroup { id: one.id.clone() });
    Plan { steps: balancers.chain(groups).chain(security).collect(), again: None }
}

/// What of `wanted` is not so in `current`, where AWS leaves out what is as in `defaults`.
fn unlike(wanted: &Attributes, current: &Attributes, defaults: &Attributes) -> Attributes {
    let mut unlike = missing(wanted, current);
    unlike.retain(|key, value| current.contains_key(key) || defaults.get(key) != Some(value));
    unlike
}

/// What of `wanted` is not so in `current`.
fn missing(wanted: &Attributes, current: &Attributes) -> Attributes {
    let differs = |(key, value): &(&String, &String)| current.get(*key) != Some(*value);
    wanted.iter().filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn tags(arn: &str, wanted: &Tags, current: &Tags, tagging: &Tagging, plan: &mut Plan) {
    let mut add = missing(wanted, current);
    add.retain(|key, _| !tagging.foreign.contains(key));
    if !add.is_empty() {
        plan.steps.push(Step::AddTags { arn: arn.to_owned(), tags: add });
    }
    let others = |key: &&String| key.starts_with("aws:") || tagging.foreign.contains(*key);
    let extra = current.keys().filter(|key| tagging.prunes && !wanted.contains_key(*key) && !others(key));
    let keys: BTreeSet<String> = extra.cloned().collect();
    if !keys.is_empty() {
        plan.steps.push(Step::RemoveTags { arn: arn.to_owned(), keys });
    }
}
