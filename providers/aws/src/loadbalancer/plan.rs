//! Steps that change AWS, as data: comparisons return them and calls are made from them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::loadbalancer::types::{
    AddressType, Attributes, Balancer, HealthCheck, Listener, Mapping, Rule, SecurityGroup, Tags, Target, TargetGroup,
};

/// Pause between reads while AWS sets up a load balancer, which takes minutes, or probes a new target.
pub(crate) const PACE: Duration = Duration::from_secs(10);

/// One change, usually by one call. Resources that an earlier step creates are referenced by the names that this
/// provider chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Creates the group without its rules.
    CreateSecurityGroup(SecurityGroup),
    Authorize {
        group: String,
        rules: Vec<Rule>,
    },
    /// Revokes rules by id.
    Revoke {
        group: String,
        rules: Vec<String>,
    },
    DeleteSecurityGroup {
        id: String,
    },
    CreateBalancer(Balancer),
    SetSubnets {
        balancer: String,
        subnets: Vec<Mapping>,
        source_nat: bool,
    },
    SetAddressType {
        balancer: String,
        address_type: AddressType,
    },
    SetSecurityGroups {
        balancer: String,
        groups: Vec<String>,
        private_link: Option<bool>,
    },
    SetCapacity {
        balancer: String,
        units: i32,
    },
    SetBalancerAttributes {
        balancer: String,
        attributes: Attributes,
    },
    DeleteBalancer {
        arn: String,
    },
    /// Creates the group without its attributes and targets.
    CreateTargetGroup(Box<TargetGroup>),
    SetHealthCheck {
        group: String,
        health: HealthCheck,
    },
    SetGroupAttributes {
        group: String,
        attributes: Attributes,
    },
    /// Records this cluster's targets in a group that others share; a call to the cluster, not to AWS.
    Record {
        group: String,
        targets: BTreeSet<Target>,
    },
    Register {
        group: String,
        targets: BTreeSet<Target>,
    },
    Deregister {
        group: String,
        targets: BTreeSet<Target>,
    },
    DeleteTargetGroup {
        arn: String,
    },
    /// The listener has its default certificate only; `forwards` are target groups' names and weights.
    CreateListener {
        balancer: String,
        listener: Box<Listener>,
        forwards: Vec<(String, i32)>,
    },
    /// `last` has the final destinations, if `forwards` is only an intermediate state.
    ModifyListener {
        arn: String,
        listener: Box<Listener>,
        forwards: Vec<(String, i32)>,
        last: Vec<(String, i32)>,
    },
    SetListenerAttributes {
        arn: String,
        attributes: Attributes,
    },
    AddCertificates {
        balancer: String,
        port: u16,
        certificates: Vec<String>,
    },
    RemoveCertificates {
        arn: String,
        certificates: Vec<String>,
    },
    DeleteListener {
        arn: String,
    },
    /// Adds tags to a security group, given by its id, or to any other resource, given by its ARN.
    AddTags {
        arn: String,
        tags: Tags,
    },
    RemoveTags {
        arn: String,
        keys: BTreeSet<String>,
    },
}

impl Step {
    /// Returns the step that deletes a created resource, by the form of its id; listeners are deleted with their load
    /// balancer.
    pub(crate) fn deletion_of(id: &str) -> Option<Self> {
        if id.starts_with("sg-") {
            Some(Self::DeleteSecurityGroup { id: id.to_owned() })
        } else if id.contains(":targetgroup/") {
            Some(Self::DeleteTargetGroup { arn: id.to_owned() })
        } else if id.contains(":loadbalancer/") {
            Some(Self::DeleteBalancer { arn: id.to_owned() })
        } else {
            None
        }
    }

    /// Returns true if AWS may refuse the step for a while, until other resources that use the resource are deleted,
    /// too.
    pub(crate) fn waits_for_others(&self) -> bool {
        matches!(self, Self::DeleteTargetGroup { .. } | Self::DeleteSecurityGroup { .. })
    }

    /// Returns the name of the resource that the step creates, if listings contain such resources.
    pub(crate) fn created_name(&self) -> Option<&str> {
        match self {
            Self::CreateSecurityGroup(group) => Some(&group.name),
            Self::CreateBalancer(balancer) => Some(&balancer.name),
            Self::CreateTargetGroup(group) => Some(&group.name),
            _ => None,
        }
    }

    /// Returns true if the step creates a target group.
    pub(crate) fn is_creation_of_a_group(&self) -> bool {
        matches!(self, Self::CreateTargetGroup(_))
    }

    /// Returns true if the step registers targets.
    pub(crate) fn is_registration(&self) -> bool {
        matches!(self, Self::Register { .. })
    }

    /// Returns true if the step deregisters targets.
    pub(crate) fn is_deregistration(&self) -> bool {
        matches!(self, Self::Deregister { .. })
    }

    /// Returns true if the step leads to an intermediate state, in which a listener sends traffic to several groups.
    pub(crate) fn is_intermediate(&self) -> bool {
        matches!(self, Self::ModifyListener { forwards, last, .. } if forwards != last)
    }

    /// Returns the step without the intermediate state.
    pub(crate) fn without_intermediate_state(&self) -> Self {
        let mut step = self.clone();
        if let Self::ModifyListener { forwards, last, .. } = &mut step {
            forwards.clone_from(last);
        }
        step
    }

    /// Returns true if the step is about targets. They change constantly, even without another client.
    pub(crate) fn is_about_targets(&self) -> bool {
        matches!(self, Self::Register { .. } | Self::Deregister { .. } | Self::Record { .. })
    }

    /// Returns a description for users.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::CreateSecurityGroup(group) => format!("security group {} created", group.name),
            Self::Authorize { group, rules } => format!("{} rules added to {group}", rules.len()),
            Self::Revoke { group, rules } => format!("{} rules removed from {group}", rules.len()),
            Self::DeleteSecurityGroup { id } => format!("security group {id} deleted"),
            Self::CreateBalancer(balancer) => format!("load balancer {} created", balancer.name),
            Self::SetSubnets { .. } => "subnets set".into(),
            Self::SetAddressType { .. } => "IP address type set".into(),
            Self::SetSecurityGroups { .. } => "security groups set".into(),
            Self::SetCapacity { .. } => "capacity set".into(),
            Self::SetBalancerAttributes { attributes, .. } => format!("attributes set: {}", keys(attributes)),
            Self::DeleteBalancer { arn } => format!("load balancer {arn} deleted"),
            Self::CreateTargetGroup(group) => format!("target group {} created", group.name),
            Self::SetHealthCheck { group, .. } => format!("health check of {group} set"),
            Self::SetGroupAttributes { group, attributes } => {
                format!("attributes of {group} set: {}", keys(attributes))
            }
            Self::Record { group, .. } => format!("targets in {group} recorded"),
            Self::Register { group, targets } => format!("{} targets registered in {group}", targets.len()),
            Self::Deregister { group, targets } => format!("{} targets deregistered from {group}", targets.len()),
            Self::DeleteTargetGroup { arn } => format!("target group {arn} deleted"),
            Self::CreateListener { listener, .. } => format!("listener for port {} created", listener.port),
            Self::ModifyListener { listener, .. } => format!("listener for port {} set", listener.port),
            Self::SetListenerAttributes { attributes, .. } => {
                format!("attributes of a listener set: {}", keys(attributes))
            }
            Self::AddCertificates { port, certificates, .. } => {
                format!("{} certificates added to port {port}", certificates.len())
            }
            Self::RemoveCertificates { certificates, .. } => format!("{} certificates removed", certificates.len()),
            Self::DeleteListener { arn } => format!("listener {arn} deleted"),
            Self::AddTags { tags, .. } => format!("tags set: {}", keys(tags)),
            Self::RemoveTags { keys, .. } => {
                format!("tags removed: {}", keys.iter().cloned().collect::<Vec<_>>().join(", "))
            }
        }
    }
}

fn keys(map: &Attributes) -> String {
    map.keys().cloned().collect::<Vec<_>>().join(", ")
}

/// The steps to apply now, and the time of the next read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    /// The time until the next plan, if AWS has to finish a change before further steps.
    pub again: Option<Duration>,
    /// Ports whose traffic moves to another target group once that has a healthy target.
    pub exchanging: BTreeSet<u16>,
    /// Further steps depend on the health of targets, which may never become healthy.
    pub waits_for_health: bool,
}

impl Plan {
    pub(crate) fn wait(&mut self, time: Duration) {
        self.again = Some(self.again.map_or(time, |again| again.min(time)));
    }
}
