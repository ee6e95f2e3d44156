//! Security groups of pods' network interfaces, found by the pods' addresses.
//!
//! Pods on Fargate and pods with security groups of their own have an interface each. With custom networking, the pods of
//! a node share its further interfaces, which have other groups than the first one. An interface lists the addresses of
//! its pods, or prefixes that contain them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use aws_sdk_ec2::types::{Filter, NetworkInterface};
use providers::{CloudError, IpNet};
use tokio::time::Instant;

use crate::client::Class;
use crate::loadbalancer::observed::network::{VALUES, filter};
use crate::session::Session;

/// The interface of a pod is looked up again after this time.
const LOOKUP_PERIOD: Duration = Duration::from_secs(5 * 60);

/// The address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct PodAddress {
    pub address: IpAddr,
    /// The pod's uid. A later pod may have the same address behind another interface.
    pub pod: Option<String>,
    /// The instance that the pod runs on, if it is one of EC2.
    pub instance: Option<String>,
}

/// A network interface.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Interface {
    addresses: BTreeSet<IpAddr>,
    prefixes: Vec<IpNet>,
    groups: Vec<String>,
}

/// Cached lookups.
#[derive(Debug, Default)]
pub(crate) struct Interfaces {
    known: tokio::sync::Mutex<HashMap<PodAddress, (Instant, Vec<String>)>>,
}

impl Interfaces {
    /// Returns the security groups of the interfaces with these addresses; none for an address that no interface of this
    /// network has.
    pub(crate) async fn groups(
        &self,
        session: &Session,
        addresses: BTreeSet<PodAddress>,
    ) -> Result<BTreeMap<IpAddr, Vec<String>>, CloudError> {
        let mut known = self.known.lock().await;
        let now = Instant::now();
        known.retain(|_, (at, _)| now < *at + LOOKUP_PERIOD);
        let unknown: Vec<&PodAddress> = addresses.iter().filter(|address| !known.contains_key(*address)).collect();
        if !unknown.is_empty() {
            let interfaces = look_up(session, &unknown).await?;
            known.extend(unknown.into_iter().map(|pod| {
                let groups = covering(&interfaces, pod.address).map(|one| one.groups.clone());
                (pod.clone(), (now, groups.unwrap_or_default()))
            }));
        }
        let found = addresses.into_iter().filter_map(|pod| Some((pod.address, known.get(&pod)?.1.clone())));
        Ok(found.collect())
    }
}

/// Reads the interfaces that list addresses, and, for addresses that none lists, those of the pods' instances.
async fn look_up(session: &Session, pods: &[&PodAddress]) -> Result<Vec<Interface>, CloudError> {
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
    let (mut interfaces, mut token) = (Vec::new(), None);
    loop {
        let request = session.api.ec2.describe_network_interfaces().set_filters(Some(filters.clone()));
        let request = request.max_results(1000).set_next_token(token);
        let send = || request.clone().send();
        let answer = session.api.read(Class::Ec2Read, "DescribeNetworkInterfaces", send).await?;
        interfaces.extend(answer.network_interfaces().iter().map(interface));
        token = answer.next_token().filter(|token| !token.is_empty()).map(str::to_owned);
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
