//! The observed resources of one Service, and the effect of each step on them: tests of plans use the same model as the
//! application of plans.

use std::collections::{BTreeMap, BTreeSet};

use crate::loadbalancer::observed::refused_targets::Refused;
use crate::loadbalancer::ownership::{self, Evidence, Purpose};
use crate::loadbalancer::plan::Step;
use crate::loadbalancer::types::{
    AddressType, Attributes, Balancer, HealthCheck, Listener, Mapping, ObservedRule, Protocol, Scheme, SecurityGroup,
    Tags, Target, TargetGroup, TargetHealth, TargetType,
};

/// The prefix of ARNs; names of target groups never have it.
pub(crate) const ARN: &str = "arn:";

/// The state of a load balancer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Provisioning,
    Active,
    Failed,
}

/// A load balancer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedBalancer {
    pub arn: String,
    pub name: String,
    pub dns: String,
    pub state: State,
    /// AWS's reason for the state; mostly empty.
    pub reason: String,
    pub scheme: Scheme,
    pub address_type: AddressType,
    pub subnets: Vec<Mapping>,
    pub security_groups: Vec<String>,
    pub private_link: Option<bool>,
    pub source_nat: bool,
    pub attributes: Attributes,
    pub capacity: Option<i32>,
    pub tags: Tags,
    /// The listeners; if the load balancer is [`shared`](ObservedBalancer::shared), only the Service's.
    pub listeners: Vec<ObservedListener>,
    /// A user made the load balancer, or several Services share it: only the Service's listeners are changed, and the
    /// attributes if it [`leads`](ObservedBalancer::leads).
    pub shared: bool,
    /// Several Services share the load balancer, and its attributes follow the annotations of this Service.
    pub leads: bool,
    /// Ports of other owners' listeners on the load balancer.
    pub taken: BTreeSet<u16>,
}

/// A listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedListener {
    pub arn: String,
    pub port: u16,
    pub protocol: Protocol,
    /// ARNs of the certificates, the default one first.
    pub certificates: Vec<String>,
    pub policy: Option<String>,
    pub alpn: Option<String>,
    pub attributes: Attributes,
    pub tags: Tags,
    /// Target groups by ARN, with their weights.
    pub forwards: Vec<(String, i32)>,
    /// A client stays with its target group.
    pub sticky: bool,
}

/// A target group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedTargetGroup {
    pub arn: String,
    pub name: String,
    pub target_type: TargetType,
    pub protocol: Protocol,
    pub port: u16,
    pub ipv6: bool,
    pub health: HealthCheck,
    pub attributes: Attributes,
    pub tags: Tags,
    pub targets: BTreeMap<Target, TargetHealth>,
    /// The targets that this cluster has recorded as its own; `None` without a record, or if no other cluster registers
    /// targets in the group.
    pub recorded: Option<BTreeSet<Target>>,
}

/// The security group of the Service's load balancer, or of the one that it shares with other Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedSecurityGroup {
    pub id: String,
    pub name: String,
    pub tags: Tags,
    pub rules: Vec<ObservedRule>,
}

/// All of a Service's resources in AWS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedStack {
    pub balancers: Vec<ObservedBalancer>,
    pub target_groups: Vec<ObservedTargetGroup>,
    pub security_groups: Vec<ObservedSecurityGroup>,
    /// ARNs of other load balancers that use the Service's target groups.
    pub elsewhere: BTreeSet<String>,
    /// ARNs of the Service's listeners on load balancers that it no longer uses.
    pub abandoned_listeners: Vec<String>,
}

/// The response of AWS to a step: the ids of created resources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CreatedResource {
    /// An ARN or an id.
    pub id: String,
    /// A load balancer's DNS name.
    pub dns: String,
    /// The ids of rules, in the order of the requested rules.
    pub rules: Vec<String>,
}

impl ObservedStack {
    /// Copies the details that listings lack from `known`: listeners, attributes, capacity, targets, rules. Returns
    /// false, without a change, if the two stacks do not contain the same resources.
    pub(crate) fn take_details(&mut self, known: &Self) -> bool {
        let ids = |stack: &Self| stack.ids().collect::<BTreeSet<_>>();
        if ids(self) != ids(known) {
            return false;
        }
        for balancer in &mut self.balancers {
            let Some(known) = known.balancers.iter().find(|one| one.arn == balancer.arn) else { continue };
            balancer.attributes.clone_from(&known.attributes);
            balancer.listeners.clone_from(&known.listeners);
            balancer.capacity = known.capacity;
        }
        for group in &mut self.target_groups {
            let Some(known) = known.target_groups.iter().find(|one| one.arn == group.arn) else { continue };
            group.attributes.clone_from(&known.attributes);
            group.targets.clone_from(&known.targets);
        }
        for group in &mut self.security_groups {
            let Some(known) = known.security_groups.iter().find(|one| one.id == group.id) else { continue };
            group.rules.clone_from(&known.rules);
        }
        true
    }

    pub(crate) fn balancer(&self, name: &str) -> Option<&ObservedBalancer> {
        self.balancers.iter().find(|balancer| balancer.name == name)
    }

    pub(crate) fn target_group(&self, name: &str) -> Option<&ObservedTargetGroup> {
        self.target_groups.iter().find(|group| group.name == name)
    }

    pub(crate) fn target_group_by_arn(&self, arn: &str) -> Option<&ObservedTargetGroup> {
        self.target_groups.iter().find(|group| group.arn == arn)
    }

    pub(crate) fn security_group(&self, name: &str) -> Option<&ObservedSecurityGroup> {
        self.security_groups.iter().find(|group| group.name == name)
    }

    /// Returns true if a load balancer, a target group or a security group has this name.
    pub(crate) fn has_name(&self, name: &str) -> bool {
        self.balancer(name).is_some() || self.target_group(name).is_some() || self.security_group(name).is_some()
    }

    /// Returns true if there are no resources.
    pub(crate) fn is_empty(&self) -> bool {
        self.balancers.is_empty() && self.target_groups.is_empty() && self.security_groups.is_empty()
    }

    /// Returns the ARNs of load balancers and target groups, and the ids of security groups.
    pub(crate) fn ids(&self) -> impl Iterator<Item = String> + '_ {
        let balancers = self.balancers.iter().map(|one| one.arn.clone());
        let groups = self.target_groups.iter().map(|one| one.arn.clone());
        balancers.chain(groups).chain(self.security_groups.iter().map(|one| one.id.clone()))
    }

    /// Drops resources whose deletion was requested and that are still listed; returns the names of such load
    /// balancers.
    pub(crate) fn remove_deleting(&mut self, deleting: &BTreeSet<String>) -> Vec<String> {
        let being_deleted =
            self.balancers.iter().filter(|one| deleting.contains(&one.arn)).map(|one| one.name.clone()).collect();
        self.balancers.retain(|one| !deleting.contains(&one.arn));
        self.target_groups.retain(|one| !deleting.contains(&one.arn));
        self.security_groups.retain(|one| !deleting.contains(&one.id));
        being_deleted
    }

    /// Drops resources whose tags, as just read, do not allow their deletion.
    pub(crate) fn confirm(&mut self, tags: &BTreeMap<String, Tags>, evidence: impl Fn(&Tags) -> Option<Evidence>) {
        let groups = self.security_groups.iter().map(|group| &group.tags);
        let claimed = tags.values().chain(groups).any(|tags| ownership::claims_stack(tags, evidence(tags)));
        let own = |arn: &str| {
            let evidence = tags.get(arn).and_then(&evidence);
            evidence.is_some_and(|evidence| Purpose::Delete.is_met_by(evidence, claimed))
        };
        self.balancers.retain(|one| own(&one.arn));
        self.target_groups.retain(|one| own(&one.arn));
        let used: BTreeSet<&String> = self.balancers.iter().flat_map(|one| &one.security_groups).collect();
        self.security_groups.retain(|group| match evidence(&group.tags) {
            Some(evidence) => Purpose::Delete.is_met_by(evidence, claimed),
            // cloud-provider-aws made the group for one of the load balancers.
            None => !ownership::is_of_a_service(&group.tags) && used.contains(&group.id),
        });
    }

    /// Returns true if a listener of one of the load balancers sends traffic to a target group.
    pub(crate) fn is_used(&self, group: &str) -> bool {
        let mut forwards = self.balancers.iter().flat_map(|balancer| &balancer.listeners).flat_map(|one| &one.forwards);
        forwards.any(|(arn, _)| arn == group)
    }

    /// Returns a listener's protocol.
    pub(crate) fn protocol(&self, listener: &str) -> Option<Protocol> {
        let mut listeners = self.balancers.iter().flat_map(|balancer| &balancer.listeners);
        listeners.find(|one| one.arn == listener).map(|one| one.protocol)
    }

    /// Returns a change of a listener's protocol as a deletion and a creation.
    pub(crate) fn as_recreation(&self, step: &Step) -> Option<[Step; 2]> {
        let Step::ModifyListener { arn, listener, forwards, .. } = step else { return None };
        let has = |one: &&ObservedListener| one.arn == *arn && one.protocol != listener.protocol;
        let balancer = self.balancers.iter().find(|balancer| balancer.listeners.iter().any(|one| has(&one)))?;
        let made = Step::CreateListener {
            balancer: balancer.name.clone(),
            listener: listener.clone(),
            forwards: forwards.clone(),
        };
        Some([Step::DeleteListener { arn: arn.clone() }, made])
    }

    fn balancer_mut(&mut self, name: &str) -> Option<&mut ObservedBalancer> {
        self.balancers.iter_mut().find(|balancer| balancer.name == name)
    }

    fn listener_mut(&mut self, arn: &str) -> Option<&mut ObservedListener> {
        self.balancers.iter_mut().flat_map(|balancer| &mut balancer.listeners).find(|listener| listener.arn == arn)
    }

    fn target_group_mut(&mut self, name: &str) -> Option<&mut ObservedTargetGroup> {
        self.target_groups.iter_mut().find(|group| group.name == name)
    }

    fn tags_mut(&mut self, arn: &str) -> Option<&mut Tags> {
        let balancers = self.balancers.iter_mut().flat_map(|balancer| {
            let listeners = balancer.listeners.iter_mut().map(|listener| (&listener.arn, &mut listener.tags));
            std::iter::once((&balancer.arn, &mut balancer.tags)).chain(listeners)
        });
        let groups = self.target_groups.iter_mut().map(|group| (&group.arn, &mut group.tags));
        let security = self.security_groups.iter_mut().map(|group| (&group.id, &mut group.tags));
        balancers.chain(groups).chain(security).find(|(id, _)| *id == arn).map(|(_, tags)| tags)
    }

    /// Returns the ARNs of target groups by their names, with weights. Groups of other owners have their ARNs as names.
    pub(crate) fn arns(&self, forwards: &[(String, i32)]) -> Vec<(String, i32)> {
        let arn = |name: &str| {
            if name.starts_with(ARN) {
                Some(name.to_owned())
            } else {
                self.target_group(name).map(|group| group.arn.clone())
            }
        };
        forwards.iter().filter_map(|(name, weight)| Some((arn(name)?, *weight))).collect()
    }

    /// Applies a step. New targets are recorded as unused, or as being probed for the first time: only ELB can
    /// determine their health.
    pub(crate) fn apply_step(&mut self, step: &Step, made: &CreatedResource) {
        match step {
            Step::CreateSecurityGroup(_)
            | Step::Authorize { .. }
            | Step::Revoke { .. }
            | Step::DeleteSecurityGroup { .. } => self.apply_security_group_step(step, made),
            Step::CreateBalancer(_)
            | Step::SetSubnets { .. }
            | Step::SetAddressType { .. }
            | Step::SetSecurityGroups { .. }
            | Step::SetCapacity { .. }
            | Step::SetBalancerAttributes { .. }
            | Step::DeleteBalancer { .. } => self.apply_balancer_step(step, made),
            Step::CreateTargetGroup(_)
            | Step::SetHealthCheck { .. }
            | Step::SetGroupAttributes { .. }
            | Step::Record { .. }
            | Step::Register { .. }
            | Step::Deregister { .. }
            | Step::DeleteTargetGroup { .. } => self.apply_target_group_step(step, made),
            Step::CreateListener { .. }
            | Step::ModifyListener { .. }
            | Step::SetListenerAttributes { .. }
            | Step::AddCertificates { .. }
            | Step::RemoveCertificates { .. }
            | Step::DeleteListener { .. } => self.apply_listener_step(step, made),
            Step::AddTags { .. } | Step::RemoveTags { .. } => self.apply_tag_step(step),
        }
    }

    /// Removes targets that AWS refused.
    pub(crate) fn remove_refused(&mut self, refused: &Refused) {
        for group in &mut self.target_groups {
            group.targets.retain(|target, _| !refused.contains_key(&(group.arn.clone(), target.clone())));
        }
    }

    /// Applies a step about the Service's own security group.
    fn apply_security_group_step(&mut self, step: &Step, made: &CreatedResource) {
        match step {
            Step::CreateSecurityGroup(group) => self.security_groups.push(new_security_group(group, made)),
            Step::Authorize { group, rules } => {
                let Some(group) = self.security_groups.iter_mut().find(|one| one.name == *group) else { return };
                let ids = made.rules.iter().cloned().chain(std::iter::repeat(String::new()));
                group.rules.extend(rules.iter().zip(ids).map(|(rule, id)| ObservedRule { id, rule: rule.clone() }));
            }
            Step::Revoke { group, rules } => {
                let Some(group) = self.security_groups.iter_mut().find(|one| one.name == *group) else { return };
                group.rules.retain(|rule| !rules.contains(&rule.id));
            }
            Step::DeleteSecurityGroup { id } => self.security_groups.retain(|group| group.id != *id),
            _ => {}
        }
    }

    /// Applies a step about a load balancer.
    fn apply_balancer_step(&mut self, step: &Step, made: &CreatedResource) {
        match step {
            Step::CreateBalancer(balancer) => self.balancers.push(new_balancer(balancer, made)),
            Step::SetSubnets { balancer, subnets, source_nat } => {
                if let Some(observed) = self.balancer_mut(balancer) {
                    observed.subnets.clone_from(subnets);
                    observed.source_nat = *source_nat;
                }
            }
            Step::SetAddressType { balancer, address_type } => {
                if let Some(observed) = self.balancer_mut(balancer) {
                    observed.address_type = *address_type;
                }
            }
            Step::SetSecurityGroups { balancer, groups, private_link } => {
                if let Some(observed) = self.balancer_mut(balancer) {
                    observed.security_groups.clone_from(groups);
                    observed.private_link = private_link.or(observed.private_link);
                }
            }
            Step::SetCapacity { balancer, units } => {
                if let Some(observed) = self.balancer_mut(balancer) {
                    observed.capacity = Some(*units);
                }
            }
            Step::SetBalancerAttributes { balancer, attributes } => {
                if let Some(observed) = self.balancer_mut(balancer) {
                    observed.attributes.extend(attributes.clone());
                }
            }
            Step::DeleteBalancer { arn } => self.balancers.retain(|balancer| balancer.arn != *arn),
            _ => {}
        }
    }

    /// Applies a step about a target group.
    fn apply_target_group_step(&mut self, step: &Step, made: &CreatedResource) {
        match step {
            Step::CreateTargetGroup(group) => self.target_groups.push(new_target_group(group, made)),
            Step::SetHealthCheck { group, health } => {
                if let Some(observed) = self.target_group_mut(group) {
                    let observed = &mut observed.health;
                    let path = observed.path.take();
                    let codes = observed.codes.take();
                    let timeout = observed.timeout;
                    *observed = health.clone();
                    observed.path = observed.path.take().or(path);
                    observed.codes = observed.codes.take().or(codes);
                    observed.timeout = observed.timeout.or(timeout);
                }
            }
            Step::SetGroupAttributes { group, attributes } => {
                if let Some(observed) = self.target_group_mut(group) {
                    observed.attributes.extend(attributes.clone());
                }
            }
            Step::Record { group, targets } => {
                if let Some(observed) = self.target_group_mut(group) {
                    observed.recorded = Some(targets.clone());
                }
            }
            Step::Register { group, targets } => {
                let used = self.target_group(group).is_some_and(|group| self.is_used(&group.arn));
                let health = if used { TargetHealth::Initial } else { TargetHealth::Unused };
                if let Some(observed) = self.target_group_mut(group) {
                    observed.targets.extend(targets.iter().map(|target| (target.clone(), health)));
                }
            }
            Step::Deregister { group, targets } => {
                if let Some(observed) = self.target_group_mut(group) {
                    observed.targets.retain(|target, _| !targets.contains(target));
                }
            }
            Step::DeleteTargetGroup { arn } => self.target_groups.retain(|group| group.arn != *arn),
            _ => {}
        }
    }

    /// Applies a step about a listener.
    fn apply_listener_step(&mut self, step: &Step, made: &CreatedResource) {
        match step {
            Step::CreateListener { balancer, listener, forwards } => {
                let forwards = self.arns(forwards);
                if let Some(observed) = self.balancer_mut(balancer) {
                    observed.listeners.push(new_listener(listener, forwards, made));
                }
            }
            Step::ModifyListener { arn, listener, forwards, .. } => {
                let forwards = self.arns(forwards);
                if let Some(observed) = self.listener_mut(arn) {
                    observed.protocol = listener.protocol;
                    let default = listener.certificates.iter().take(1).cloned();
                    let more =
                        observed.certificates.iter().skip(1).filter(|one| Some(*one) != listener.certificates.first());
                    observed.certificates = match listener.protocol {
                        Protocol::Tls => default.chain(more.cloned()).collect(),
                        _ => Vec::new(),
                    };
                    observed.policy = listener
                        .policy
                        .clone()
                        .or(observed.policy.take())
                        .filter(|_| listener.protocol == Protocol::Tls);
                    observed.alpn.clone_from(&listener.alpn);
                    observed.forwards = forwards;
                    observed.sticky = listener.is_sticky();
                }
            }
            Step::SetListenerAttributes { arn, attributes } => {
                if let Some(observed) = self.listener_mut(arn) {
                    observed.attributes.extend(attributes.clone());
                }
            }
            Step::AddCertificates { balancer, port, certificates } => {
                let Some(observed) = self.balancer_mut(balancer) else { return };
                if let Some(listener) = observed.listeners.iter_mut().find(|listener| listener.port == *port) {
                    listener.certificates.extend(certificates.iter().cloned());
                }
            }
            Step::RemoveCertificates { arn, certificates } => {
                if let Some(observed) = self.listener_mut(arn) {
                    observed.certificates.retain(|one| !certificates.contains(one));
                }
            }
            Step::DeleteListener { arn } => {
                self.balancers.iter_mut().for_each(|balancer| balancer.listeners.retain(|one| one.arn != *arn));
                self.abandoned_listeners.retain(|one| one != arn);
            }
            _ => {}
        }
    }

    /// Applies a step about tags.
    fn apply_tag_step(&mut self, step: &Step) {
        match step {
            Step::AddTags { arn, tags } => {
                if let Some(observed) = self.tags_mut(arn) {
                    observed.extend(tags.clone());
                }
            }
            Step::RemoveTags { arn, keys } => {
                if let Some(observed) = self.tags_mut(arn) {
                    observed.retain(|key, _| !keys.contains(key));
                }
            }
            _ => {}
        }
    }
}

/// The defaults of the most common attributes of a new load balancer.
const BALANCER_DEFAULTS: [(&str, &str); 3] = [
    ("access_logs.s3.enabled", "false"),
    ("deletion_protection.enabled", "false"),
    ("load_balancing.cross_zone.enabled", "false"),
];

/// The default of the most common attribute of a new target group.
const GROUP_DEFAULTS: [(&str, &str); 1] = [("proxy_protocol_v2.enabled", "false")];

fn defaults(pairs: &[(&str, &str)]) -> Attributes {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Returns the attributes of a new load balancer that are known without a read.
pub(crate) fn balancer_defaults() -> Attributes {
    defaults(&BALANCER_DEFAULTS)
}

/// Returns the attributes of a new target group that are known without a read.
pub(crate) fn group_defaults() -> Attributes {
    defaults(&GROUP_DEFAULTS)
}

fn new_security_group(group: &SecurityGroup, made: &CreatedResource) -> ObservedSecurityGroup {
    ObservedSecurityGroup { id: made.id.clone(), name: group.name.clone(), tags: group.tags.clone(), rules: Vec::new() }
}

fn new_balancer(balancer: &Balancer, made: &CreatedResource) -> ObservedBalancer {
    ObservedBalancer {
        arn: made.id.clone(),
        name: balancer.name.clone(),
        dns: made.dns.clone(),
        state: State::Provisioning,
        reason: String::new(),
        scheme: balancer.scheme,
        address_type: balancer.address_type,
        subnets: balancer.subnets.clone(),
        security_groups: balancer.security_groups.clone(),
        private_link: None,
        source_nat: balancer.source_nat,
        attributes: balancer_defaults(),
        capacity: None,
        tags: balancer.tags.clone(),
        listeners: Vec::new(),
        shared: false,
        leads: false,
        taken: BTreeSet::new(),
    }
}

fn new_target_group(group: &TargetGroup, made: &CreatedResource) -> ObservedTargetGroup {
    ObservedTargetGroup {
        arn: made.id.clone(),
        name: group.name.clone(),
        target_type: group.target_type,
        protocol: group.protocol,
        port: group.port,
        ipv6: group.ipv6,
        health: group.health.clone(),
        attributes: group_defaults(),
        tags: group.tags.clone(),
        targets: BTreeMap::new(),
        recorded: None,
    }
}

fn new_listener(listener: &Listener, forwards: Vec<(String, i32)>, made: &CreatedResource) -> ObservedListener {
    ObservedListener {
        arn: made.id.clone(),
        port: listener.port,
        protocol: listener.protocol,
        certificates: listener.certificates.iter().take(1).cloned().collect(),
        policy: listener.policy.clone(),
        alpn: listener.alpn.clone(),
        attributes: Attributes::new(),
        tags: listener.tags.clone(),
        forwards,
        sticky: listener.is_sticky(),
    }
}
