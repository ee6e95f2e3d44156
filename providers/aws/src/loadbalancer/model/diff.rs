//! The steps from the observed to the desired state: new resources are created before old ones are deleted, and traffic
//! has a destination at each step.
//!
//! Tags come first: permissions may depend on them. A plan may be interrupted after any step: the next comparison
//! continues from the observed state. Plans are made and applied until one is empty, because a plan needs ids of
//! resources that the previous one created.

use std::collections::{BTreeMap, BTreeSet};

use providers::LoadBalancerId;

use crate::loadbalancer::model::subnet_changes;
use crate::loadbalancer::model::target_change::{Sharing, plan_changes};
use crate::loadbalancer::model::traffic_shift::{self, Forwards, Shift};
use crate::loadbalancer::names;
use crate::loadbalancer::observed::stack::{
    ObservedBalancer, ObservedListener, ObservedSecurityGroup, ObservedStack, ObservedTargetGroup, State,
    balancer_defaults, group_defaults,
};
use crate::loadbalancer::ownership;
use crate::loadbalancer::plan::{PACE, Plan, Step};
use crate::loadbalancer::types::{
    Attributes, Balancer, Desired, Listener, Protocol, SecurityGroup, Tagging, Tags, Target, TargetGroup, TargetHealth,
    TargetType,
};

/// Returns the plan that brings a Service's load balancer to the desired state.
pub(crate) fn ensure(desired: &Desired, observed: &ObservedStack) -> Plan {
    let mut plan = Plan { steps: claims_of_unneeded_groups(desired, observed), ..Plan::default() };
    let mut groups = desired.balancer.security_groups.clone();
    if let Some(wanted) = &desired.security_group {
        let Some(id) = security_group(wanted, observed, &desired.tagging, &mut plan) else { return plan };
        groups.insert(0, id);
    }
    let wanted = Balancer { security_groups: groups, ..desired.balancer.clone() };
    let current = observed.balancer(&wanted.name);
    // `Failed` is final in AWS. The name is free for another attempt once the load balancer is deleted.
    if let Some(failed) = current.filter(|current| current.state == State::Failed && !current.shared) {
        plan.steps.push(Step::DeleteBalancer { arn: failed.arn.clone() });
        plan.wait(PACE);
        return plan;
    }
    match current {
        Some(current) if current.shared => {
            if current.leads {
                attributes(&wanted, current, &mut plan);
            }
        }
        Some(current) => balancer(&wanted, current, &desired.tagging, &mut plan),
        None => {
            let non_default = differing(&wanted.attributes, &Attributes::new(), &balancer_defaults());
            plan.steps.push(Step::CreateBalancer(wanted.clone()));
            if !non_default.is_empty() {
                plan.steps.push(Step::SetBalancerAttributes { balancer: wanted.name.clone(), attributes: non_default });
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
    let mut deregistrations = Vec::new();
    let listeners = current.map(|current| current.listeners.as_slice()).unwrap_or_default();
    let mut names = BTreeMap::new();
    for (name, wanted) in &desired.backends {
        let group = find_backend(wanted, listeners, observed, &claims);
        let group = target_group(wanted, group, &desired.tagging, &mut claims, &mut plan, &mut deregistrations);
        names.insert(name.as_str(), group);
    }
    let name = |other: &str| names.get(other).map_or(other, String::as_str).to_owned();
    for wanted in desired.listeners.values() {
        let listener = listeners.iter().find(|one| one.port == wanted.port);
        let group = find_group(&wanted.group, listener, observed, &claims);
        let group = target_group(&wanted.group, group, &desired.tagging, &mut claims, &mut plan, &mut deregistrations);
        let finals = traffic_shift::finals(wanted, &group, name);
        match listener {
            Some(listener) => change_listener(desired, wanted, listener, finals, observed, &mut claims, &mut plan),
            None => add_listener(&desired.balancer.name, wanted, finals, &mut plan),
        }
    }
    plan.steps.append(&mut deregistrations);
    remove(desired, current, observed, &mut claims, &mut plan);
    plan
}

/// Returns the id of the Service's own security group, once it exists.
fn security_group(
    wanted: &SecurityGroup,
    observed: &ObservedStack,
    tagging: &Tagging,
    plan: &mut Plan,
) -> Option<String> {
    let Some(current) = observed.security_group(&wanted.name) else {
        plan.steps.push(Step::CreateSecurityGroup(wanted.clone()));
        return None;
    };
    tags(&current.id, &wanted.tags, &current.tags, tagging, plan);
    let current_keys: BTreeSet<_> = current.rules.iter().map(|rule| rule.rule.key()).collect();
    let wanted_keys: BTreeSet<_> = wanted.rules.iter().map(crate::loadbalancer::types::Rule::key).collect();
    let rules: Vec<_> = wanted.rules.iter().filter(|rule| !current_keys.contains(&rule.key())).cloned().collect();
    if !rules.is_empty() {
        plan.steps.push(Step::Authorize { group: wanted.name.clone(), rules });
    }
    let extra = current.rules.iter().filter(|rule| !wanted_keys.contains(&rule.rule.key()));
    let rules: Vec<_> = extra.map(|rule| rule.id.clone()).collect();
    if !rules.is_empty() {
        plan.steps.push(Step::Revoke { group: wanted.name.clone(), rules });
    }
    Some(current.id.clone())
}

fn balancer(wanted: &Balancer, current: &ObservedBalancer, tagging: &Tagging, plan: &mut Plan) {
    tags(&current.arn, &wanted.tags, &current.tags, tagging, plan);
    let name = &wanted.name;
    if current.address_type != wanted.address_type {
        let address_type = wanted.address_type;
        plan.steps.push(Step::SetAddressType { balancer: name.clone(), address_type });
    }
    subnets(wanted, current, plan);
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    let link = wanted.private_link.filter(|link| Some(*link) != current.private_link);
    // AWS can neither add security groups to a load balancer that was created without any, nor remove the last one.
    let has = !current.security_groups.is_empty() && !wanted.security_groups.is_empty();
    if has && (set(&current.security_groups) != set(&wanted.security_groups) || link.is_some()) {
        let groups = wanted.security_groups.clone();
        plan.steps.push(Step::SetSecurityGroups { balancer: name.clone(), groups, private_link: link });
    }
    attributes(wanted, current, plan);
    if let Some(units) = wanted.capacity.filter(|units| current.capacity.unwrap_or(0) != *units) {
        plan.steps.push(Step::SetCapacity { balancer: name.clone(), units });
    }
}

fn attributes(wanted: &Balancer, current: &ObservedBalancer, plan: &mut Plan) {
    let changed = differing(&wanted.attributes, &current.attributes, &balancer_defaults());
    if !changed.is_empty() {
        plan.steps.push(Step::SetBalancerAttributes { balancer: wanted.name.clone(), attributes: changed });
    }
}

/// Adds the steps to the wanted subnets and source NAT. The last step sets both, even if the subnets stay.
fn subnets(wanted: &Balancer, current: &ObservedBalancer, plan: &mut Plan) {
    let mut steps = subnet_changes::steps(&current.subnets, &wanted.subnets);
    let is_same = subnet_changes::ids(&current.subnets) == subnet_changes::ids(&wanted.subnets);
    if is_same && wanted.source_nat != current.source_nat {
        steps.push(wanted.subnets.clone());
    }
    for subnets in steps {
        let balancer = wanted.name.clone();
        let source_nat = wanted.source_nat;
        plan.steps.push(Step::SetSubnets { balancer, subnets, source_nat });
    }
}

/// Target groups that must not be deleted, by ARN.
#[derive(Default)]
struct Claims {
    /// The desired target groups.
    wanted: BTreeSet<String>,
    /// Target groups that still get traffic after the plan.
    used: BTreeSet<String>,
}

/// Adds the steps for a target group to the plan; returns its name. `current` is the existing group, if there is one.
/// Deregistrations are added to `deregistrations`, which come after the changes of listeners.
fn target_group(
    wanted: &TargetGroup,
    current: Option<&ObservedTargetGroup>,
    tagging: &Tagging,
    claims: &mut Claims,
    plan: &mut Plan,
    deregistrations: &mut Vec<Step>,
) -> String {
    let Some(group) = current else {
        plan.steps.push(Step::CreateTargetGroup(Box::new(wanted.clone())));
        let attributes = differing(&wanted.attributes, &Attributes::new(), &group_defaults());
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
    let attributes = differing(&wanted.attributes, &group.attributes, &group_defaults());
    if !attributes.is_empty() {
        plan.steps.push(Step::SetGroupAttributes { group: group.name.clone(), attributes });
    }
    let (add, mut removed) = targets(wanted, &group.name, &group.targets, group.recorded.as_ref());
    plan.steps.extend(add);
    deregistrations.append(&mut removed);
    group.name.clone()
}

/// Returns the changes from a group's targets to the wanted ones: registrations, and deregistrations for later.
pub(crate) fn targets(
    wanted: &TargetGroup,
    group: &str,
    current: &BTreeMap<Target, TargetHealth>,
    recorded: Option<&BTreeSet<Target>>,
) -> (Vec<Step>, Vec<Step>) {
    let registered = current.iter().filter(|(_, health)| **health != TargetHealth::Draining);
    let registered: BTreeSet<Target> = registered.map(|(target, _)| target.clone()).collect();
    let sharing = Sharing::of(wanted.shared, recorded);
    let changes = plan_changes(&wanted.targets, &registered, sharing, wanted.max_targets, wanted.incomplete);
    let group = || group.to_owned();
    let record = |targets| Step::Record { group: group(), targets };
    let some = |targets: BTreeSet<Target>| (!targets.is_empty()).then_some(targets);
    let register = some(changes.register).map(|targets| Step::Register { group: group(), targets });
    let deregister = some(changes.deregister).map(|targets| Step::Deregister { group: group(), targets });
    (
        changes.record_before.map(record).into_iter().chain(register).collect(),
        deregister.into_iter().chain(changes.record_after.map(record)).collect(),
    )
}

/// Returns true if an existing group can be used as the wanted group.
fn fits(wanted: &TargetGroup, group: &ObservedTargetGroup) -> bool {
    let port = wanted.target_type != TargetType::Instance || wanted.shared || group.port == wanted.port;
    let kind = group.target_type == wanted.target_type && group.protocol == wanted.protocol;
    kind && port && group.ipv6 == wanted.ipv6
}

/// Returns an existing group that fits: the one with the wanted name, else one that the listener sends traffic to and
/// that was made for the same Service.
fn find_group<'a>(
    wanted: &TargetGroup,
    current: Option<&ObservedListener>,
    observed: &'a ObservedStack,
    claims: &Claims,
) -> Option<&'a ObservedTargetGroup> {
    let fits = |group: &&ObservedTargetGroup| fits(wanted, group);
    let forwards = current.map(|listener| listener.forwards.as_slice()).unwrap_or_default();
    let in_use = forwards.iter().filter(|(_, weight)| *weight > 0 || forwards.len() == 1);
    let own = |group: &&ObservedTargetGroup| other_service(group, wanted).is_none();
    let used = in_use.filter_map(|(arn, _)| observed.target_group_by_arn(arn)).filter(own).find(fits);
    observed.target_group(&wanted.name).filter(fits).or(used).filter(|group| !claims.wanted.contains(&group.arn))
}

/// Returns an existing group that fits: the one with the wanted name, else one that a listener uses for the same part
/// of the Service's stack.
fn find_backend<'a>(
    wanted: &TargetGroup,
    listeners: &[ObservedListener],
    observed: &'a ObservedStack,
    claims: &Claims,
) -> Option<&'a ObservedTargetGroup> {
    let part = |group: &&ObservedTargetGroup| group.tags.get(names::RESOURCE) == wanted.tags.get(names::RESOURCE);
    let fits = |group: &&ObservedTargetGroup| fits(wanted, group);
    let forwards = listeners.iter().flat_map(|listener| &listener.forwards);
    let used = forwards.filter_map(|(arn, _)| observed.target_group_by_arn(arn)).filter(part).find(fits);
    observed.target_group(&wanted.name).filter(fits).or(used).filter(|group| !claims.wanted.contains(&group.arn))
}

/// Returns the other Service that a group was made for, if `wanted` is not for the same one.
fn other_service<'a>(group: &'a ObservedTargetGroup, wanted: &TargetGroup) -> Option<&'a str> {
    let (service, _) = group.tags.get(names::RESOURCE)?.rsplit_once(':')?;
    (wanted.tags.get(names::SERVICE).map(String::as_str) != Some(service)).then_some(service)
}

fn add_listener(balancer: &str, wanted: &Listener, forwards: Forwards, plan: &mut Plan) {
    let listener = Box::new(wanted.clone());
    plan.steps.push(Step::CreateListener { balancer: balancer.to_owned(), listener, forwards });
    if wanted.certificates.len() > 1 {
        let certificates = wanted.certificates[1..].to_vec();
        plan.steps.push(Step::AddCertificates { balancer: balancer.to_owned(), port: wanted.port, certificates });
    }
}

fn change_listener(
    desired: &Desired,
    wanted: &Listener,
    current: &ObservedListener,
    last: Forwards,
    observed: &ObservedStack,
    claims: &mut Claims,
    plan: &mut Plan,
) {
    tags(&current.arn, &wanted.tags, &current.tags, &desired.tagging, plan);
    let Shift { forwards, done, leaving, continues } =
        traffic_shift::next_shift(desired, wanted, current, &last, observed);
    if continues {
        plan.wait(PACE);
        plan.exchanging.insert(wanted.port);
        plan.waits_for_health = true;
        claims.used.extend(leaving);
    }
    let default = |certificates: &[String]| certificates.first().cloned();
    let changed = !done
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
            last,
        });
    }
    if wanted.protocol == Protocol::Tls {
        certificates(&desired.balancer.name, wanted, current, plan);
    }
    let attributes = changed_values(&wanted.attributes, &current.attributes);
    if !attributes.is_empty() {
        plan.steps.push(Step::SetListenerAttributes { arn: current.arn.clone(), attributes });
    }
}

/// Treats the policy `None` as no policy.
fn alpn(policy: Option<&str>) -> Option<&str> {
    policy.filter(|policy| *policy != "None")
}

/// Adds the steps for the certificates besides the default one.
fn certificates(balancer: &str, wanted: &Listener, current: &ObservedListener, plan: &mut Plan) {
    let rest = |list: &[String]| list.iter().skip(1).cloned().collect::<BTreeSet<_>>();
    let want = rest(&wanted.certificates);
    let have = rest(&current.certificates);
    let add: Vec<String> = want.difference(&have).cloned().collect();
    if !add.is_empty() {
        let balancer = balancer.to_owned();
        plan.steps.push(Step::AddCertificates { balancer, port: current.port, certificates: add });
    }
    // The new default certificate may also be one of the additional certificates, and may stay there.
    let default = wanted.certificates.first();
    let removed: Vec<String> = have.difference(&want).filter(|one| Some(*one) != default).cloned().collect();
    if !removed.is_empty() {
        plan.steps.push(Step::RemoveCertificates { arn: current.arn.clone(), certificates: removed });
    }
}

/// Adds the steps that delete undesired listeners, then the target groups, load balancers and security groups that are
/// no longer needed.
fn remove(
    desired: &Desired,
    current: Option<&ObservedBalancer>,
    observed: &ObservedStack,
    claims: &mut Claims,
    plan: &mut Plan,
) {
    let mut ports = BTreeSet::new();
    for listener in current.into_iter().flat_map(|current| &current.listeners) {
        // Another client has created the second of two listeners with the same port.
        if !desired.listeners.contains_key(&listener.port) || !ports.insert(listener.port) {
            plan.steps.push(Step::DeleteListener { arn: listener.arn.clone() });
        }
    }
    let others = observed.balancers.iter().filter(|one| one.name != desired.balancer.name && !one.shared);
    let others: Vec<&ObservedBalancer> = others.collect();
    let leaves = !others.is_empty() || !observed.abandoned_listeners.is_empty();
    // A load balancer of the user, or of several Services, is active before this Service's targets are healthy there.
    if leaves && current.is_some_and(|current| current.shared) && !serves(desired, observed) {
        plan.wait(PACE);
        plan.waits_for_health = true;
    }
    // Clients that still use the old load balancer's name are served until the new load balancer works.
    let settled = current.is_some_and(|current| current.state != State::Provisioning) && plan.again.is_none();
    if settled {
        plan.steps.extend(observed.abandoned_listeners.iter().map(|arn| Step::DeleteListener { arn: arn.clone() }));
        plan.steps.extend(others.iter().map(|other| Step::DeleteBalancer { arn: other.arn.clone() }));
    } else {
        let forwards = others.iter().flat_map(|other| &other.listeners).flat_map(|listener| &listener.forwards);
        claims.used.extend(forwards.map(|(arn, _)| arn.clone()));
        let abandoned_listeners = observed.target_groups.iter().filter(|_| !observed.abandoned_listeners.is_empty());
        claims.used.extend(abandoned_listeners.map(|group| group.arn.clone()));
    }
    let names: BTreeSet<&str> = desired.groups().map(|group| group.name.as_str()).collect();
    for group in &observed.target_groups {
        let kept = claims.wanted.contains(&group.arn) || claims.used.contains(&group.arn);
        if !kept && !names.contains(group.name.as_str()) {
            plan.steps.push(Step::DeleteTargetGroup { arn: group.arn.clone() });
        }
    }
    let carried = |id: &String| !settled && others.iter().any(|other| other.security_groups.contains(id));
    for group in unneeded_groups(desired, observed).filter(|group| !carried(&group.id)) {
        plan.steps.push(Step::DeleteSecurityGroup { id: group.id.clone() });
    }
}

/// Returns the Service's security groups that the load balancer should not have.
fn unneeded_groups<'a>(
    desired: &'a Desired,
    observed: &'a ObservedStack,
) -> impl Iterator<Item = &'a ObservedSecurityGroup> {
    let wanted = desired.security_group.as_ref().map(|group| group.name.as_str());
    let named = &desired.balancer.security_groups;
    observed.security_groups.iter().filter(move |one| Some(one.name.as_str()) != wanted && !named.contains(&one.id))
}

/// Returns the steps that claim the security groups which the load balancer is about to lose.
fn claims_of_unneeded_groups(desired: &Desired, observed: &ObservedStack) -> Vec<Step> {
    let tag = |key: &str| Some((key.to_owned(), desired.balancer.tags.get(key)?.clone()));
    let owner: Tags = [names::SERVICE, names::UID].into_iter().filter_map(tag).collect();
    unneeded_groups(desired, observed).filter_map(|group| claim(group, &owner)).collect()
}

/// Returns the step that puts the tags of the Service on a security group of cloud-provider-aws. Before that, only the
/// load balancer that has the group proves the Service's ownership.
fn claim(group: &ObservedSecurityGroup, owner: &Tags) -> Option<Step> {
    let is_marked = ownership::is_of_a_service(&group.tags) || group.tags.contains_key(names::GROUP);
    (!is_marked).then(|| Step::AddTags { arn: group.id.clone(), tags: owner.clone() })
}

/// Returns true if each listener's own target group has a healthy target, or should have no targets at all.
fn serves(desired: &Desired, observed: &ObservedStack) -> bool {
    let healthy = |group: &ObservedTargetGroup| group.targets.values().any(|health| *health == TargetHealth::Healthy);
    let groups = desired.listeners.values().map(|listener| &listener.group);
    groups
        .filter(|group| !group.targets.is_empty())
        .all(|group| observed.target_group(&group.name).is_some_and(healthy))
}

/// Returns the plan that deletes all of a Service's resources. Some resources may be in use for a while by other
/// resources that are deleted, too.
///
/// Resources whose adoption was interrupted before they were tagged, or has not begun, get tags of the Service first:
/// once the load balancer is deleted, nothing else would distinguish them from a stack that the Load Balancer
/// Controller manages, or prove the owner of a security group of cloud-provider-aws.
pub(crate) fn delete(observed: &ObservedStack, id: &LoadBalancerId) -> Plan {
    let uid = Tags::from([(names::UID.to_owned(), id.uid.clone())]);
    let unclaimed = |tags: &Tags| tags.contains_key(names::STACK) && !tags.contains_key(names::UID);
    let parts = observed.target_groups.iter().map(|one| (&one.arn, &one.tags));
    let parts = parts.chain(observed.security_groups.iter().map(|one| (&one.id, &one.tags)));
    let claims =
        parts.filter(|(_, tags)| unclaimed(tags)).map(|(arn, _)| Step::AddTags { arn: arn.clone(), tags: uid.clone() });
    let mut owner = Tags::from([(names::SERVICE.to_owned(), id.to_string())]);
    if !id.uid.is_empty() {
        owner.extend(uid.clone());
    }
    let claims = claims.chain(observed.security_groups.iter().filter_map(|group| claim(group, &owner)));
    let abandoned_listeners = observed.abandoned_listeners.iter().map(|arn| Step::DeleteListener { arn: arn.clone() });
    let balancers = observed.balancers.iter().filter(|one| !one.shared);
    let balancers = abandoned_listeners.chain(balancers.map(|one| Step::DeleteBalancer { arn: one.arn.clone() }));
    let groups = observed.target_groups.iter().map(|one| Step::DeleteTargetGroup { arn: one.arn.clone() });
    let security = observed.security_groups.iter().map(|one| Step::DeleteSecurityGroup { id: one.id.clone() });
    Plan { steps: claims.chain(balancers).chain(groups).chain(security).collect(), ..Plan::default() }
}

/// Returns the attributes of `wanted` that differ from `current`, in which AWS omits attributes that have the value in
/// `defaults`.
fn differing(wanted: &Attributes, current: &Attributes, defaults: &Attributes) -> Attributes {
    let mut differing = changed_values(wanted, current);
    differing.retain(|key, value| current.contains_key(key) || defaults.get(key) != Some(value));
    differing
}

/// Returns the attributes of `wanted` that differ from `current`.
fn changed_values(wanted: &Attributes, current: &Attributes) -> Attributes {
    let differs = |(key, value): &(&String, &String)| current.get(*key) != Some(*value);
    wanted.iter().filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn tags(arn: &str, wanted: &Tags, current: &Tags, tagging: &Tagging, plan: &mut Plan) {
    let mut add = changed_values(wanted, current);
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
