//! Security groups of a Service's targets: the groups of nodes, and of pods' own network interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use providers::{CloudError, EndpointTarget, ErrorKind, Targets};

use crate::loadbalancer::apply::backend_group::Opened;
use crate::loadbalancer::apply::balancers::{Balancers, Work};
use crate::loadbalancer::model::build;
use crate::loadbalancer::observed::interfaces::{AddressGroups, PodAddress};
use crate::loadbalancer::observed::inventory::Listing;
use crate::loadbalancer::observed::network::{InstanceNetwork, instance_id};
use crate::loadbalancer::types::{Ports, TargetType};
use crate::session::Session;

/// Security groups of targets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TargetSecurityGroups {
    /// The security groups that rules are added to.
    pub groups: BTreeSet<String>,
    /// Nodes and addresses with several groups, none of them tagged: no rule is added for them.
    pub undecided: BTreeSet<String>,
    /// Addresses of new pods whose network interfaces may not be visible yet.
    pub pending: BTreeSet<IpAddr>,
    /// The groups of a pod or a node are unknown, so `groups` may lack some.
    pub incomplete: bool,
}

impl TargetSecurityGroups {
    fn add(&mut self, target: &str, own: &[String], tagged: &BTreeSet<&str>) {
        match own_groups(own, tagged) {
            Some(groups) => self.groups.extend(groups),
            None => drop(self.undecided.insert(target.to_owned())),
        }
    }
}

/// Returns the warning about targets whose security group cannot be chosen, if there are any.
pub(super) fn unopened_targets_warning(session: &Session, targets: &BTreeSet<String>) -> Option<String> {
    if targets.is_empty() {
        return None;
    }
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let key = session.cluster.key();
    let targets = targets.join(", ");
    Some(format!(
        "targets with several security groups, none of them with the tag {key}, are not opened to the load balancer: \
         {targets}"
    ))
}

/// Returns the groups of one network interface that rules are added to: those with the cluster's tag, or else the only
/// group; `None` if there are several without the tag, or none.
fn own_groups(own: &[String], tagged: &BTreeSet<&str>) -> Option<Vec<String>> {
    let with_tag: Vec<String> = own.iter().filter(|group| tagged.contains(group.as_str())).cloned().collect();
    match (with_tag.is_empty(), own) {
        (false, _) => Some(with_tag),
        (true, [only]) => Some(vec![only.clone()]),
        (true, _) => None,
    }
}

/// Returns the security groups of nodes and of addresses. An address without a network interface of its own is covered
/// by the groups of the instance that its pod runs on.
fn groups_of_targets(
    tagged: &BTreeSet<&str>,
    targets: &Targets,
    instances: &BTreeMap<String, InstanceNetwork>,
    addresses: &AddressGroups,
) -> TargetSecurityGroups {
    let is_unknown = |pod: &PodAddress| {
        let instance = pod.instance.as_ref().and_then(|id| instances.get(id));
        pod.pod.is_some() && instance.is_none()
    };
    let nodes = targets.nodes.iter();
    let nodes = nodes.filter_map(|node| Some((node.name.clone(), instance_id(node.provider_id.as_deref()?)?)));
    // EC2 omits an instance that is not visible yet, or no longer exists.
    let is_missing = |(_, id): (String, &str)| !instances.contains_key(id);
    let incomplete = targets.incomplete || addresses.missing.iter().any(is_unknown) || nodes.clone().any(is_missing);
    let pending = addresses.pending.clone();
    let mut found = TargetSecurityGroups { pending, incomplete, ..TargetSecurityGroups::default() };
    let pods = addresses.missing.iter().filter_map(|pod| Some((pod.address.to_string(), pod.instance.as_deref()?)));
    for (target, id) in nodes.chain(pods) {
        if let Some(instance) = instances.get(id) {
            found.add(&target, &instance.groups, tagged);
        }
    }
    for (address, groups) in addresses.found.iter().filter(|(_, groups)| !groups.is_empty()) {
        found.add(&address.to_string(), groups, tagged);
    }
    found
}

impl Balancers {
    /// Opens the security groups of targets to the security group `source` of load balancers.
    pub(super) async fn open_targets(
        &self,
        session: &Session,
        groups: &BTreeSet<String>,
        source: &str,
        ports: &Ports,
    ) -> Result<Opened, CloudError> {
        let opened = self.shared.lock().await.open(session, groups, source, ports).await?;
        self.forget_missing_group(opened).await
    }

    /// Returns the opened groups. If one of the groups no longer exists, drops the cached groups of the instances and
    /// pods that had it, so that the next reader reads them again.
    ///
    /// # Errors
    /// `Conflict` if a group does not exist: the call has to be repeated with the current groups.
    pub(super) async fn forget_missing_group(&self, opened: Opened) -> Result<Opened, CloudError> {
        let Some((group, error)) = opened.missing else { return Ok(opened) };
        if self.networks.forget_group(&group).await {
            self.interfaces.forget_group(&group).await;
        }
        Err(CloudError { kind: ErrorKind::Conflict, ..error })
    }

    /// Finds the security groups of a Service's targets.
    pub(super) async fn target_security_groups(
        &self,
        work: &Work<'_>,
        listing: &Listing,
    ) -> Result<TargetSecurityGroups, CloudError> {
        if !work.settings.node_rules {
            return Ok(TargetSecurityGroups::default());
        }
        let mut pods = pods(work);
        if !pods.is_empty() {
            let network = self.networks.network(work.session).await?;
            // No interface of this network has the addresses of other networks.
            pods.retain(|pod| network.ranges.iter().any(|range| range.contains(&pod.address)));
        }
        let addresses = self.interfaces.groups(work.session, pods).await?;
        let nodes = work.targets.nodes.iter().filter_map(|node| instance_id(node.provider_id.as_deref()?));
        let of_pods = addresses.missing.iter().filter_map(|pod| pod.instance.as_deref());
        let ids = nodes.chain(of_pods).map(str::to_owned).collect();
        let instances = self.networks.by_id(work.session, ids).await?;
        let tagged: BTreeSet<&str> =
            listing.tagged_groups(work.session).iter().map(|group| group.id.as_str()).collect();
        Ok(groups_of_targets(&tagged, work.targets, &instances, &addresses))
    }
}

/// Returns the pods that are a Service's targets. The interfaces of pods on Fargate, of pods with security groups of
/// their own, and of pods with custom networking have other groups than the node's primary interface.
fn pods(work: &Work<'_>) -> BTreeSet<PodAddress> {
    if work.settings.target_type != TargetType::Ip {
        return BTreeSet::new();
    }
    let groups = work.settings.listeners.iter().map(|listener| &listener.group).chain(work.settings.backends());
    let families = groups.flat_map(|requested| [false, true].map(|ipv6| (requested, ipv6)));
    let targets = families.flat_map(|(requested, ipv6)| build::targets(work.settings, requested, ipv6, work.targets));
    let registered: BTreeSet<IpAddr> = targets.filter_map(|target| target.id.parse().ok()).collect();
    pods_with(&registered, work.targets)
}

/// Returns the pods that have these addresses now: an address may have belonged to another pod before.
///
/// Each pod gets the instance of its node, even if the node itself is not a target: its pods still are.
fn pods_with(addresses: &BTreeSet<IpAddr>, targets: &Targets) -> BTreeSet<PodAddress> {
    let endpoints = [&targets.endpoints].into_iter().chain(targets.others.values()).flat_map(|some| some.iter());
    let registered = endpoints.filter(|endpoint| endpoint.ready && addresses.contains(&endpoint.address));
    let pod = |endpoint: &EndpointTarget| PodAddress {
        address: endpoint.address,
        pod: endpoint.pod.as_ref().map(|pod| pod.uid.clone()),
        instance: endpoint.provider_id.as_deref().and_then(instance_id).map(str::to_owned),
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

    /// Returns an instance with this security group.
    fn instance(id: &str, group: &str) -> (String, InstanceNetwork) {
        (id.to_owned(), InstanceNetwork { zone: "a".into(), groups: vec![group.to_owned()] })
    }

    #[test]
    fn pod_with_its_own_interface_opens_the_group_of_that_interface() {
        let targets = samples::nodes([1]);
        let id = instance_id(targets.nodes[0].provider_id.as_deref().unwrap()).unwrap();
        let instances = [instance(id, "sg-node")].into();
        let found = [
            ([10, 0, 0, 7].into(), vec!["sg-fargate".to_owned()]),
            ([10, 0, 0, 8].into(), vec!["sg-x".to_owned(), "sg-y".to_owned()]),
            ([10, 0, 0, 9].into(), Vec::new()),
        ];
        let addresses = AddressGroups { found: found.into(), ..AddressGroups::default() };
        let found = groups_of_targets(&BTreeSet::new(), &targets, &instances, &addresses);
        assert_eq!(found.groups, ["sg-fargate".to_owned(), "sg-node".to_owned()].into());
        assert_eq!(found.undecided, ["10.0.0.8".to_owned()].into());
    }

    #[test]
    fn pod_without_an_interface_opens_the_group_of_its_instance() {
        let instances = [instance("i-excluded", "sg-excluded")].into();
        let pod = |last, instance: Option<&str>| PodAddress {
            address: [10, 0, 0, last].into(),
            pod: Some("a".into()),
            instance: instance.map(str::to_owned),
        };
        let missing = [pod(1, Some("i-excluded")), pod(2, Some("i-unknown")), pod(3, None)].into();
        let pending: BTreeSet<IpAddr> = [[10, 0, 0, 3].into()].into();
        let addresses = AddressGroups { missing, pending: pending.clone(), ..AddressGroups::default() };
        let found = groups_of_targets(&BTreeSet::new(), &samples::nodes([]), &instances, &addresses);
        let groups = ["sg-excluded".to_owned()].into();
        assert_eq!(
            found,
            TargetSecurityGroups { groups, pending, incomplete: true, ..TargetSecurityGroups::default() }
        );
    }

    #[test]
    fn groups_are_incomplete_while_the_instance_of_a_node_is_missing() {
        let targets = samples::nodes([1, 2]);
        let id = |node: usize| instance_id(targets.nodes[node].provider_id.as_deref().unwrap()).unwrap();
        let groups_of = |instances: &[(String, InstanceNetwork)]| {
            let instances = instances.iter().cloned().collect();
            groups_of_targets(&BTreeSet::new(), &targets, &instances, &AddressGroups::default())
        };
        let both = groups_of(&[instance(id(0), "sg-a"), instance(id(1), "sg-b")]);
        assert!(!both.incomplete && both.groups.len() == 2, "{both:?}");
        let one = groups_of(&[instance(id(0), "sg-a")]);
        assert!(one.incomplete && one.groups == ["sg-a".to_owned()].into(), "{one:?}");
    }

    #[test]
    fn pod_is_looked_up_with_its_uid_and_the_instance_of_its_node() {
        let endpoint = |last: u8, provider_id: &str, uid: Option<&str>| EndpointTarget {
            provider_id: Some(provider_id.to_owned()).filter(|id| !id.is_empty()),
            pod: uid.map(|uid| PodRef { namespace: "default".into(), name: "web".into(), uid: uid.into() }),
            ..samples::endpoint("", [10, 0, 0, last], 8080)
        };
        let terminated = EndpointTarget { ready: false, terminating: true, ..endpoint(2, "", Some("old")) };
        // The node of the first pod is excluded from load balancers, so it is not a target itself.
        let own = [
            endpoint(1, "aws:///eu-west-1a/i-1", Some("a")),
            endpoint(2, "aws:///eu-west-1a/12-ab/fargate-ip-10-0-0-2", Some("b")),
            endpoint(9, "", None),
        ];
        let others = [terminated, endpoint(3, "", None)];
        let targets = Targets {
            endpoints: own.into(),
            others: [("other".to_owned(), others.into())].into(),
            ..samples::nodes([])
        };
        let registered = [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last])).into();
        let pod = |last: u8, pod: Option<&str>, instance: Option<&str>| PodAddress {
            address: [10, 0, 0, last].into(),
            pod: pod.map(str::to_owned),
            instance: instance.map(str::to_owned),
        };
        let expected = [pod(1, Some("a"), Some("i-1")), pod(2, Some("b"), None), pod(3, None, None)];
        assert_eq!(pods_with(&registered, &targets), expected.into());
    }
}
