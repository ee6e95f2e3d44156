//! Security groups of a Service's targets: those of nodes, and those of pods' own network interfaces.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use providers::{CloudError, EndpointTarget, NodeTarget, Targets};

use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::model::build;
use crate::loadbalancer::observed::interfaces::PodAddress;
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::network::{Machine, instance_id};
use crate::loadbalancer::types::TargetType;
use crate::session::Session;

/// Security groups of targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TargetGroups {
    /// Groups that rules are added to.
    pub groups: BTreeSet<String>,
    /// Nodes and addresses with several groups, none of them tagged: no rule is added for them.
    pub undecided: BTreeSet<String>,
}

impl TargetGroups {
    fn add(&mut self, target: &str, own: &[String], tagged: &BTreeSet<&str>) {
        match own_groups(own, tagged) {
            Some(groups) => self.groups.extend(groups),
            None => drop(self.undecided.insert(target.to_owned())),
        }
    }
}

/// Returns the warning about targets whose security group cannot be chosen, if there are any.
pub(super) fn unopened_targets_warning(session: &Session, targets: BTreeSet<String>) -> Option<String> {
    let targets: Vec<String> = Some(targets).filter(|targets| !targets.is_empty())?.into_iter().collect();
    let (key, targets) = (session.cluster.key(), targets.join(", "));
    Some(format!(
        "targets with several security groups, none of them with the tag {key}, are not opened to the load balancer: \
         {targets}"
    ))
}

/// Returns the groups of one network interface that rules are added to: those with the cluster's tag, or its only
/// group.
fn own_groups(own: &[String], tagged: &BTreeSet<&str>) -> Option<Vec<String>> {
    let with_tag: Vec<String> = own.iter().filter(|group| tagged.contains(group.as_str())).cloned().collect();
    match (with_tag.is_empty(), own) {
        (false, _) => Some(with_tag),
        (true, [only]) => Some(vec![only.clone()]),
        (true, _) => None,
    }
}

/// Returns the security groups of nodes and of addresses. An address without a network interface of its own is covered
/// by the groups of its node.
fn groups_of_targets(
    tagged: &BTreeSet<&str>,
    targets: &Targets,
    instances: &BTreeMap<String, Machine>,
    interfaces: &BTreeMap<IpAddr, Vec<String>>,
) -> TargetGroups {
    let mut found = TargetGroups::default();
    for node in targets.nodes.iter() {
        let id = node.provider_id.as_deref().and_then(instance_id);
        if let Some(instance) = id.and_then(|id| instances.get(id)) {
            found.add(&node.name, &instance.groups, tagged);
        }
    }
    for (address, groups) in interfaces.iter().filter(|(_, groups)| !groups.is_empty()) {
        found.add(&address.to_string(), groups, tagged);
    }
    found
}

impl Balancers {
    /// Finds the security groups of a Service's targets.
    pub(super) async fn target_groups(&self, work: &Work<'_>, listing: &Listing) -> Result<TargetGroups, CloudError> {
        if !work.settings.node_rules {
            return Ok(TargetGroups::default());
        }
        let instances = self.networks.machines(work.session, work.targets).await?;
        let interfaces = self.interfaces.groups(work.session, addresses(work)).await?;
        let tagged: BTreeSet<&str> =
            listing.tagged_groups(work.session).iter().map(|group| group.id.as_str()).collect();
        Ok(groups_of_targets(&tagged, work.targets, &instances, &interfaces))
    }
}

/// Returns the addresses of a Service's targets. Pods on Fargate, with security groups of their own or with custom
/// networking are behind other groups than their node's primary interface.
fn addresses(work: &Work<'_>) -> BTreeSet<PodAddress> {
    if work.settings.target_type != TargetType::Ip {
        return BTreeSet::new();
    }
    let groups = work.settings.listeners.iter().map(|listener| &listener.group).chain(work.settings.backends());
    let families = groups.flat_map(|requested| [false, true].map(|ipv6| (requested, ipv6)));
    let targets = families.flat_map(|(requested, ipv6)| build::targets(work.settings, requested, ipv6, work.targets));
    let registered: BTreeSet<IpAddr> = targets.filter_map(|target| target.id.parse().ok()).collect();
    pods_with(&registered, work.targets)
}

/// Returns the pods with these addresses.
fn pods_with(addresses: &BTreeSet<IpAddr>, targets: &Targets) -> BTreeSet<PodAddress> {
    let instance = |node: &NodeTarget| Some((node.name.clone(), instance_id(node.provider_id.as_deref()?)?.to_owned()));
    let instances: HashMap<String, String> = targets.nodes.iter().filter_map(instance).collect();
    let endpoints = [&targets.endpoints].into_iter().chain(targets.others.values()).flat_map(|some| some.iter());
    let registered = endpoints.filter(|endpoint| addresses.contains(&endpoint.address));
    let pod = |endpoint: &EndpointTarget| PodAddress {
        address: endpoint.address,
        pod: endpoint.pod.as_ref().map(|pod| pod.uid.clone()),
        instance: endpoint.node.as_ref().and_then(|node| instances.get(node)).cloned(),
    };
    registered.map(pod).collect()
}

#[cfg(test)]
mod tests {
    use providers::PodRef;

    use super::*;
    use crate::loadbalancer::samples;

    #[test]
    fn group_is_the_tagged_one_or_the_only_one() {
        let tagged = BTreeSet::from(["sg-a", "sg-b"]);
        for (own, expected) in [
            (&["sg-a"][..], Some(&["sg-a"][..])),
            (&["sg-a", "sg-x"], Some(&["sg-a"])),
            (&["sg-a", "sg-b"], Some(&["sg-a", "sg-b"])),
            (&["sg-x"], Some(&["sg-x"])),
            (&["sg-x", "sg-y"], None),
            (&[], None),
        ] {
            let own: Vec<String> = own.iter().map(|group| (*group).to_owned()).collect();
            let expected = expected.map(|groups| groups.iter().map(|group| (*group).to_owned()).collect());
            assert_eq!(own_groups(&own, &tagged), expected, "{own:?}");
        }
    }

    #[test]
    fn pod_with_its_own_interface_opens_the_group_of_that_interface() {
        let targets = samples::nodes([1]);
        let id = instance_id(targets.nodes[0].provider_id.as_deref().unwrap()).unwrap().to_owned();
        let instances = [(id, Machine { zone: "a".into(), groups: vec!["sg-node".into()] })].into();
        let interfaces: BTreeMap<IpAddr, Vec<String>> = [
            ([10, 0, 0, 7].into(), vec!["sg-fargate".to_owned()]),
            ([10, 0, 0, 8].into(), vec!["sg-x".to_owned(), "sg-y".to_owned()]),
            ([10, 0, 0, 9].into(), Vec::new()),
        ]
        .into();
        let found = groups_of_targets(&BTreeSet::new(), &targets, &instances, &interfaces);
        assert_eq!(found.groups, ["sg-fargate".to_owned(), "sg-node".to_owned()].into());
        assert_eq!(found.undecided, ["10.0.0.8".to_owned()].into());
    }

    #[test]
    fn pod_is_looked_up_with_its_uid_and_the_instance_of_its_node() {
        let nodes = samples::nodes([1]);
        let node = &nodes.nodes[0];
        let instance = instance_id(node.provider_id.as_deref().unwrap()).unwrap().to_owned();
        let endpoint = |last: u8, node: &str, uid: Option<&str>| EndpointTarget {
            port_name: String::new(),
            address: [10, 0, 0, last].into(),
            port: 8080,
            node: Some(node.to_owned()),
            zone: None,
            ready: true,
            serving: true,
            terminating: false,
            pod: uid.map(|uid| PodRef { namespace: "default".into(), name: "web".into(), uid: uid.into() }),
        };
        let own = [endpoint(1, &node.name, Some("a")), endpoint(2, "fargate", Some("b")), endpoint(9, "fargate", None)];
        let other = [endpoint(3, "unknown", None)];
        let targets =
            Targets { endpoints: own.into(), others: [("other".to_owned(), other.into())].into(), ..nodes.clone() };
        let registered = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last])).into();
        let pod = |last: u8, pod: Option<&str>, instance: Option<&String>| PodAddress {
            address: [10, 0, 0, last].into(),
            pod: pod.map(str::to_owned),
            instance: instance.cloned(),
        };
        let expected = [pod(1, Some("a"), Some(&instance)), pod(2, Some("b"), None), pod(3, None, None)];
        assert_eq!(pods_with(&registered, &targets), expected.into());
    }
}
