//! Security groups of pods' network interfaces, found by the pods' addresses.
//!
//! Pods on Fargate and pods with security groups of their own have an interface each. With custom networking, the pods
//! of a node share its further interfaces, which have other groups than the first one. An interface lists the addresses
//! of its pods, or prefixes that contain them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use aws_sdk_ec2::types::{Filter, NetworkInterface};
use providers::{CloudError, IpNet};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::observed::network::{VALUES, filter};
use crate::session::Session;

/// Time until a pod's interface is looked up again.
const LOOKUP_PERIOD: Duration = Duration::from_secs(5 * 60);

/// Time until a new pod's interface that EC2 did not return is looked up again.
pub(crate) const MISS_PERIOD: Duration = Duration::from_secs(2);

/// Number of unsuccessful lookups after which an address counts as one without an interface.
const MISSES: u32 = 4;

/// Time until an unused lookup is removed. It exceeds the interval between checks for drift.
const UNUSED_PERIOD: Duration = Duration::from_secs(60 * 60);

/// The address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodAddress {
    pub address: IpAddr,
    /// The pod's uid. A later pod may have the same address behind another interface.
    pub pod: Option<String>,
    /// The instance that the pod runs on, if that is an EC2 instance.
    pub instance: Option<String>,
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Interface {
    addresses: BTreeSet<IpAddr>,
    prefixes: Vec<IpNet>,
    groups: Vec<String>,
}

/// Security groups of pods' addresses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AddressGroups {
    /// The groups of the interfaces with these addresses.
    pub found: BTreeMap<IpAddr, Vec<String>>,
    /// Pods whose addresses no interface has.
    pub missing: BTreeSet<PodAddress>,
    /// Addresses of new pods whose interfaces may not be visible yet. They are looked up again after [`MISS_PERIOD`].
    pub pending: BTreeSet<IpAddr>,
}

/// The last lookup of a pod's address.
#[derive(Debug, Clone)]
struct Lookup {
    at: Instant,
    /// The time of the last use.
    used: Instant,
    /// The instance of the pod's node at that time.
    instance: Option<String>,
    /// `None`: no interface has the address.
    groups: Option<Vec<String>>,
    /// Number of lookups without an interface.
    misses: u32,
}

impl Lookup {
    fn is_current(&self, pod: &PodAddress, now: Instant) -> bool {
        match &self.groups {
            Some(_) => now < self.at + LOOKUP_PERIOD,
            // The instance, which was not known before, may lead to an interface with a prefix that contains the
            // address.
            None if pod.instance.is_some() && pod.instance != self.instance => false,
            None if self.misses < MISSES => now < self.at + MISS_PERIOD,
            None => now < self.at + LOOKUP_PERIOD,
        }
    }
}

/// Lookups by address and pod.
#[derive(Debug, Default)]
struct Lookups(HashMap<(IpAddr, Option<String>), Lookup>);

impl Lookups {
    fn get(&self, pod: &PodAddress) -> Option<&Lookup> {
        self.0.get(&(pod.address, pod.pod.clone()))
    }

    /// Returns the pods to look up.
    fn outdated(&self, pods: &BTreeSet<PodAddress>, now: Instant) -> Vec<PodAddress> {
        let is_current = |pod: &&PodAddress| self.get(pod).is_some_and(|lookup| lookup.is_current(pod, now));
        pods.iter().filter(|pod| !is_current(pod)).cloned().collect()
    }

    /// Records the result of a lookup.
    fn record(&mut self, pods: Vec<PodAddress>, interfaces: &[Interface], now: Instant) {
        for pod in pods {
            let groups = covering(interfaces, pod.address).map(|one| one.groups.clone());
            // The groups that were found before are kept: the interface of a pod never changes. An interface with
            // prefixes is found only by the node, which may be deleted before the pod.
            let before = self.get(&pod);
            let known = before.filter(|_| pod.pod.is_some()).and_then(|lookup| lookup.groups.clone());
            let misses = before.map_or(0, |lookup| lookup.misses).saturating_add(1);
            let misses = if groups.is_some() { 0 } else { misses };
            let lookup = Lookup { at: now, used: now, instance: pod.instance, groups: groups.or(known), misses };
            self.0.insert((pod.address, pod.pod), lookup);
        }
    }

    fn forget_group(&mut self, group: &str) {
        self.0.retain(|_, lookup| !lookup.groups.iter().flatten().any(|own| own == group));
    }

    /// Returns the recorded groups. If two pods had an address one after the other, the last lookup counts.
    fn groups(&mut self, pods: BTreeSet<PodAddress>, now: Instant) -> AddressGroups {
        let mut groups = AddressGroups::default();
        let mut found: BTreeMap<IpAddr, (Instant, Vec<String>)> = BTreeMap::new();
        for pod in pods {
            let Some(lookup) = self.0.get_mut(&(pod.address, pod.pod.clone())) else { continue };
            lookup.used = now;
            match &lookup.groups {
                Some(groups) => {
                    if found.get(&pod.address).is_none_or(|(at, _)| *at <= lookup.at) {
                        found.insert(pod.address, (lookup.at, groups.clone()));
                    }
                }
                None => {
                    // An endpoint without a pod is not new: nothing has to wait for its interface.
                    if pod.pod.is_some() && lookup.misses < MISSES {
                        groups.pending.insert(pod.address);
                    }
                    groups.missing.insert(pod);
                }
            }
        }
        groups.found = found.into_iter().map(|(address, (_, groups))| (address, groups)).collect();
        self.0.retain(|_, lookup| now < lookup.used + UNUSED_PERIOD);
        groups
    }
}

/// Cached lookups.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    lookups: tokio::sync::Mutex<Lookups>,
}

impl Interfaces {
    /// Returns the security groups of the interfaces with these addresses.
    pub(crate) async fn groups(
        &self,
        session: &Session,
        pods: BTreeSet<PodAddress>,
    ) -> Result<AddressGroups, CloudError> {
        let mut lookups = self.lookups.lock().await;
        let outdated = lookups.outdated(&pods, Instant::now());
        if !outdated.is_empty() {
            let interfaces = look_up(session, &outdated).await?;
            lookups.record(outdated, &interfaces, Instant::now());
        }
        Ok(lookups.groups(pods, Instant::now()))
    }

    /// Drops the cached lookups with a security group that no longer exists.
    pub(crate) async fn forget_group(&self, group: &str) {
        self.lookups.lock().await.forget_group(group);
    }
}

/// Reads the interfaces that list the addresses and, for addresses that no interface lists, the interfaces of the pods'
/// instances.
async fn look_up(session: &Session, pods: &[PodAddress]) -> Result<Vec<Interface>, CloudError> {
    let mut interfaces = Vec::new();
    let addresses: BTreeSet<IpAddr> = pods.iter().map(|pod| pod.address).collect();
    let (v4, v6): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv4);
    for (name, addresses) in [("addresses.private-ip-address", v4), ("ipv6-addresses.ipv6-address", v6)] {
        let values: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        interfaces.extend(read(session, name, &values).await?);
    }
    let unlisted = pods.iter().filter(|pod| covering(&interfaces, pod.address).is_none());
    let instances: BTreeSet<String> = unlisted.filter_map(|pod| pod.instance.clone()).collect();
    let instances: Vec<String> = instances.into_iter().collect();
    interfaces.extend(read(session, "attachment.instance-id", &instances).await?);
    Ok(interfaces)
}

/// Reads the interfaces of the network with one of these values.
async fn read(session: &Session, name: &str, values: &[String]) -> Result<Vec<Interface>, CloudError> {
    let mut interfaces = Vec::new();
    for values in values.chunks(VALUES) {
        let filters = vec![filter("vpc-id", vec![session.vpc.clone()]), filter(name, values.to_vec())];
        interfaces.extend(read_pages(session, filters).await?);
    }
    Ok(interfaces)
}

async fn read_pages(session: &Session, filters: Vec<Filter>) -> Result<Vec<Interface>, CloudError> {
    let mut interfaces = Vec::new();
    let mut token = None;
    loop {
        let request = session.api.ec2.describe_network_interfaces().set_filters(Some(filters.clone()));
        let request = request.max_results(1000).set_next_token(token);
        let send = || request.clone().send();
        let response = session.api.read(Class::Ec2Read, "DescribeNetworkInterfaces", send).await?;
        interfaces.extend(response.network_interfaces().iter().map(interface));
        token = response.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
        if token.is_none() {
            return Ok(interfaces);
        }
    }
}

fn interface(described: &NetworkInterface) -> Interface {
    let v4 = described.private_ip_addresses().iter().filter_map(|one| one.private_ip_address());
    let v6 = described.ipv6_addresses().iter().filter_map(|one| one.ipv6_address());
    let prefixes_v4 = described.ipv4_prefixes().iter().filter_map(|one| one.ipv4_prefix());
    let prefixes_v6 = described.ipv6_prefixes().iter().filter_map(|one| one.ipv6_prefix());
    Interface {
        addresses: v4.chain(v6).filter_map(|text| text.parse().ok()).collect(),
        prefixes: prefixes_v4.chain(prefixes_v6).filter_map(|text| text.parse().ok()).collect(),
        groups: described.groups().iter().filter_map(|group| group.group_id()).map(str::to_owned).collect(),
    }
}

/// Returns the interface with an address: one that lists it, or else one with a prefix that contains it.
fn covering(interfaces: &[Interface], address: IpAddr) -> Option<&Interface> {
    let listed = interfaces.iter().find(|one| one.addresses.contains(&address));
    listed.or_else(|| interfaces.iter().find(|one| one.prefixes.iter().any(|prefix| prefix.contains(&address))))
}

#[cfg(test)]
mod tests {
    use aws_sdk_ec2::types::{
        GroupIdentifier, Ipv4PrefixSpecification, Ipv6PrefixSpecification, NetworkInterfacePrivateIpAddress,
    };

    use super::*;

    fn pod(uid: &str, instance: Option<&str>) -> PodAddress {
        let address = [100, 64, 0, 20].into();
        let instance = instance.map(str::to_owned);
        PodAddress { address, pod: Some(uid.to_owned()).filter(|uid| !uid.is_empty()), instance }
    }

    fn with_prefix(group: &str) -> [Interface; 1] {
        let prefixes = vec!["100.64.0.16/28".parse().unwrap()];
        [Interface { prefixes, groups: vec![group.to_owned()], ..Interface::default() }]
    }

    /// Looks a pod up at this time unless the cache is current. Returns the recorded groups and whether there was a
    /// lookup.
    fn look(lookups: &mut Lookups, pod: PodAddress, interfaces: &[Interface], now: Instant) -> (AddressGroups, bool) {
        let pods = BTreeSet::from([pod]);
        let outdated = lookups.outdated(&pods, now);
        let is_outdated = !outdated.is_empty();
        lookups.record(outdated, interfaces, now);
        (lookups.groups(pods, now), is_outdated)
    }

    #[test]
    fn address_without_an_interface_is_looked_up_again_a_few_times() {
        let mut lookups = Lookups::default();
        let start = Instant::now();
        let seconds = |seconds| start + Duration::from_secs(seconds);
        for (second, looks, pending) in [
            (0, true, true),
            (1, false, true),
            (2, true, true),
            (3, false, true),
            (4, true, true),
            (6, true, false),
            (8, false, false),
            (305, false, false),
            (306, true, false),
            (308, false, false),
        ] {
            let (groups, looked) = look(&mut lookups, pod("a", None), &[], seconds(second));
            assert_eq!((looked, !groups.pending.is_empty()), (looks, pending), "after {second} s");
            assert_eq!(groups.missing.len(), 1, "after {second} s");
        }
        let (groups, _) = look(&mut lookups, pod("a", None), &with_prefix("sg"), seconds(606));
        assert_eq!((groups.found.len(), groups.missing.len()), (1, 0), "{groups:?}");
        assert!(!look(&mut lookups, pod("a", None), &[], seconds(608)).1, "it is known");
        // An endpoint without a pod is not new, so nothing waits for it.
        assert!(look(&mut lookups, pod("", None), &[], seconds(608)).0.pending.is_empty());
    }

    #[test]
    fn address_is_looked_up_again_when_the_instance_of_its_pod_is_known() {
        let mut lookups = Lookups::default();
        let now = Instant::now();
        assert!(look(&mut lookups, pod("a", None), &[], now).1);
        let (groups, looked) = look(&mut lookups, pod("a", Some("i-1")), &with_prefix("sg"), now);
        assert!(looked && groups.found.len() == 1, "{groups:?}");
    }

    #[test]
    fn groups_of_a_pod_are_kept_when_its_node_is_deleted_first() {
        let mut lookups = Lookups::default();
        let now = Instant::now();
        let known = look(&mut lookups, pod("a", Some("i-1")), &with_prefix("sg"), now).0;
        assert_eq!(look(&mut lookups, pod("a", None), &[], now), (known.clone(), false));
        assert_eq!(look(&mut lookups, pod("a", None), &[], now + LOOKUP_PERIOD), (known, true));
        // Another pod has the address now.
        assert_eq!(look(&mut lookups, pod("b", None), &[], now).0.missing.len(), 1);
    }

    #[test]
    fn last_lookup_counts_when_two_pods_have_an_address() {
        for (first, second) in [("a", "b"), ("b", "a")] {
            let mut lookups = Lookups::default();
            let now = Instant::now();
            look(&mut lookups, pod(first, None), &with_prefix("sg-old"), now);
            let later = now + Duration::from_secs(10);
            look(&mut lookups, pod(second, None), &with_prefix("sg-new"), later);
            let groups = lookups.groups([pod("a", None), pod("b", None)].into(), later);
            assert_eq!(groups.found[&pod("a", None).address], ["sg-new"], "{first}, then {second}");
        }
    }

    #[test]
    fn pod_with_a_deleted_security_group_is_looked_up_again() {
        let mut lookups = Lookups::default();
        let now = Instant::now();
        look(&mut lookups, pod("a", None), &with_prefix("sg-old"), now);
        look(&mut lookups, pod("b", None), &with_prefix("sg-other"), now);
        lookups.forget_group("sg-old");
        let (groups, looked) = look(&mut lookups, pod("a", None), &with_prefix("sg-new"), now);
        assert_eq!((looked, groups.found[&pod("a", None).address].clone()), (true, vec!["sg-new".to_owned()]));
        assert!(!look(&mut lookups, pod("b", None), &[], now).1, "its group exists");
    }

    #[test]
    fn unused_lookups_are_forgotten() {
        let mut lookups = Lookups::default();
        let now = Instant::now();
        look(&mut lookups, pod("a", None), &with_prefix("sg"), now);
        look(&mut lookups, pod("b", None), &with_prefix("sg"), now + UNUSED_PERIOD);
        assert_eq!(lookups.0.len(), 1);
    }

    #[test]
    fn address_belongs_to_the_interface_that_lists_it_or_has_its_prefix() {
        let group = |id: &str| GroupIdentifier::builder().group_id(id).build();
        let primary = NetworkInterface::builder()
            .private_ip_addresses(NetworkInterfacePrivateIpAddress::builder().private_ip_address("10.0.0.5").build())
            .groups(group("sg-node"))
            .build();
        let further = NetworkInterface::builder()
            .private_ip_addresses(NetworkInterfacePrivateIpAddress::builder().private_ip_address("100.64.0.4").build())
            .ipv4_prefixes(Ipv4PrefixSpecification::builder().ipv4_prefix("100.64.0.16/28").build())
            .ipv6_prefixes(Ipv6PrefixSpecification::builder().ipv6_prefix("2001:db8::/80").build())
            .groups(group("sg-pods"))
            .build();
        let interfaces = [&primary, &further].map(interface);
        for (address, expected) in [
            ("10.0.0.5", Some("sg-node")),
            ("100.64.0.4", Some("sg-pods")),
            ("100.64.0.31", Some("sg-pods")),
            ("100.64.0.32", None),
            ("2001:db8::7", Some("sg-pods")),
            ("2001:db8:0:0:1::", None),
        ] {
            let found = covering(&interfaces, address.parse().unwrap());
            assert_eq!(found.map(|one| one.groups[0].as_str()), expected, "{address}");
        }
    }
}
