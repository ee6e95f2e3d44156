//! Conversion of an EC2 instance to the provider interface: addresses, labels, and the states stopped and deleted.

use std::net::IpAddr;

use aws_sdk_ec2::types::{self, InstanceNetworkInterface, InstanceStateName, NetworkInterfaceStatus};
use providers::{Address, AddressKind, Instance, InstanceState};

use crate::config::Family;

/// The label of the zone's id, which is the same in all accounts.
pub(crate) const ZONE_ID: &str = "topology.k8s.aws/zone-id";
/// Prefix of the labels with the network nodes above the instance, followed by a layer; layer 1 is the most distant
/// one.
pub(crate) const NETWORK_NODE: &str = "topology.k8s.aws/network-node-layer-";

/// Returns the state of an instance. All states other than `terminated` and `stopped` count as running. Upstream:
/// cloud-provider-aws, InstanceExistsByProviderID, InstanceShutdownByProviderID.
pub(crate) fn state(found: &types::Instance, region: &str, families: &[Family]) -> InstanceState {
    match found.state().and_then(types::InstanceState::name) {
        Some(InstanceStateName::Terminated) => InstanceState::Gone,
        Some(InstanceStateName::Stopped) => InstanceState::Stopped,
        _ => InstanceState::Running(Box::new(instance(found, region, families))),
    }
}

fn instance(found: &types::Instance, region: &str, families: &[Family]) -> Instance {
    let zone = found.placement().and_then(|placement| placement.availability_zone()).unwrap_or_default();
    Instance {
        provider_id: format!("aws:///{zone}/{}", found.instance_id().unwrap_or_default()),
        instance_type: found.instance_type().map(|kind| kind.as_str().to_owned()).unwrap_or_default(),
        zone: zone.to_owned(),
        region: region.to_owned(),
        addresses: addresses(found, families),
        ..Instance::default()
    }
}

/// Returns the addresses in the order of the families, and in each family in the order of the device indexes of the
/// interfaces in use. Upstream: cloud-provider-aws, extractIPv4NodeAddresses and extractIPv6NodeAddresses.
pub(crate) fn addresses(found: &types::Instance, families: &[Family]) -> Vec<Address> {
    let mut interfaces: Vec<&InstanceNetworkInterface> = found
        .network_interfaces()
        .iter()
        .filter(|interface| interface.status() == Some(&NetworkInterfaceStatus::InUse))
        .collect();
    interfaces.sort_by_key(|interface| interface.attachment().map_or(i32::MAX, |a| a.device_index().unwrap_or(0)));
    families
        .iter()
        .flat_map(|family| match family {
            Family::V4 => v4(found, &interfaces),
            Family::V6 => v6(&interfaces),
        })
        .collect()
}

fn v4(found: &types::Instance, interfaces: &[&InstanceNetworkInterface]) -> Vec<Address> {
    let private = interfaces.iter().flat_map(|interface| interface.private_ip_addresses());
    let private = private.filter_map(|address| ip(AddressKind::InternalIP, address.private_ip_address()?));
    let public = found.public_ip_address().and_then(|text| ip(AddressKind::ExternalIP, text));
    let names = [
        (AddressKind::InternalDNS, found.private_dns_name()),
        (AddressKind::Hostname, found.private_dns_name()),
        (AddressKind::ExternalDNS, found.public_dns_name()),
    ];
    let names = names.into_iter().filter_map(|(kind, name)| {
        name.filter(|name| !name.is_empty()).map(|name| Address { kind, address: name.to_owned() })
    });
    private.chain(public).chain(names).collect()
}

fn v6(interfaces: &[&InstanceNetworkInterface]) -> Vec<Address> {
    let first = interfaces.iter().filter_map(|interface| interface.ipv6_addresses().first()?.ipv6_address());
    first.filter_map(|text| ip(AddressKind::InternalIP, text)).collect()
}

/// Returns the addresses of a Fargate node that was found by the address `ip`: one of each of the `families`, or `ip`
/// if there is none, and the name. Upstream: cloud-provider-aws, pkg/providers/v1/variant/fargate, NodeAddresses; it
/// repeats the name for each family, which the API server refuses.
pub(crate) fn fargate_addresses(interface: &types::NetworkInterface, ip: IpAddr, families: &[Family]) -> Vec<Address> {
    let of_family = |family: &Family| match family {
        Family::V4 => interface.private_ip_address(),
        Family::V6 => interface.ipv6_addresses().first()?.ipv6_address(),
    };
    let ips = families.iter().filter_map(of_family).filter_map(|text| self::ip(AddressKind::InternalIP, text));
    let mut addresses: Vec<Address> = ips.collect();
    if addresses.is_empty() {
        addresses.push(Address { kind: AddressKind::InternalIP, address: ip.to_string() });
    }
    if let Some(name) = interface.private_dns_name().filter(|name| !name.is_empty()) {
        addresses.insert(1, Address { kind: AddressKind::InternalDNS, address: name.to_owned() });
    }
    addresses
}

/// Parses an address. Other texts are skipped: the API server would refuse the whole Node.
fn ip(kind: AddressKind, text: &str) -> Option<Address> {
    let address = text.parse::<IpAddr>().ok()?.to_string();
    Some(Address { kind, address })
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_ec2::types::{
        InstanceIpv6Address, InstanceNetworkInterfaceAttachment, InstancePrivateIpAddress, InstanceState as State,
        Placement,
    };

    fn interface(index: i32, v4: &[&str], v6: &[&str], status: NetworkInterfaceStatus) -> InstanceNetworkInterface {
        InstanceNetworkInterface::builder()
            .status(status)
            .attachment(InstanceNetworkInterfaceAttachment::builder().device_index(index).build())
            .set_private_ip_addresses(Some(
                v4.iter().map(|ip| InstancePrivateIpAddress::builder().private_ip_address(*ip).build()).collect(),
            ))
            .set_ipv6_addresses(Some(
                v6.iter().map(|ip| InstanceIpv6Address::builder().ipv6_address(*ip).build()).collect(),
            ))
            .build()
    }

    fn ec2_instance() -> aws_sdk_ec2::types::builders::InstanceBuilder {
        types::Instance::builder()
            .instance_id("i-1a")
            .instance_type(types::InstanceType::M5Large)
            .placement(Placement::builder().availability_zone("eu-west-1b").build())
            .private_dns_name("ip-10-0-0-1.eu-west-1.compute.internal")
            .public_dns_name("")
            .public_ip_address("3.3.3.3")
            .network_interfaces(interface(1, &["10.0.1.1"], &["2001:db8::2"], NetworkInterfaceStatus::InUse))
            .network_interfaces(interface(
                0,
                &["10.0.0.1", "10.0.0.2"],
                &["2001:db8::1", "2001:db8::9"],
                NetworkInterfaceStatus::InUse,
            ))
            .network_interfaces(interface(2, &["10.0.2.1"], &[], NetworkInterfaceStatus::Detaching))
    }

    fn texts(addresses: &[Address]) -> Vec<String> {
        addresses.iter().map(|address| format!("{} {}", address.kind.as_str(), address.address)).collect()
    }

    #[test]
    fn addresses_are_ordered_by_device_and_family() {
        let four = [
            "InternalIP 10.0.0.1",
            "InternalIP 10.0.0.2",
            "InternalIP 10.0.1.1",
            "ExternalIP 3.3.3.3",
            "InternalDNS ip-10-0-0-1.eu-west-1.compute.internal",
            "Hostname ip-10-0-0-1.eu-west-1.compute.internal",
        ];
        let six = ["InternalIP 2001:db8::1", "InternalIP 2001:db8::2"];
        let ec2_instance = ec2_instance().build();
        assert_eq!(texts(&addresses(&ec2_instance, &[Family::V4])), four);
        assert_eq!(texts(&addresses(&ec2_instance, &[Family::V6])), six);
        let both: Vec<&str> = six.into_iter().chain(four).collect();
        assert_eq!(texts(&addresses(&ec2_instance, &[Family::V6, Family::V4])), both);
    }

    #[test]
    fn fargate_node_has_an_address_of_each_family() {
        let v6 = |text: &str| types::NetworkInterfaceIpv6Address::builder().ipv6_address(text).build();
        let interface = types::NetworkInterface::builder()
            .private_ip_address("10.0.0.7")
            .private_dns_name("ip-10-0-0-7.ec2.internal")
            .ipv6_addresses(v6("2001:db8::7"))
            .ipv6_addresses(v6("2001:db8::8"))
            .build();
        let (four, six, dns) =
            ("InternalIP 10.0.0.7", "InternalIP 2001:db8::7", "InternalDNS ip-10-0-0-7.ec2.internal");
        let found = [10, 0, 0, 7].into();
        for (families, expected) in [
            (&[Family::V4][..], &[four, dns][..]),
            (&[Family::V6], &[six, dns]),
            (&[Family::V4, Family::V6], &[four, dns, six]),
            (&[Family::V6, Family::V4], &[six, dns, four]),
        ] {
            assert_eq!(texts(&fargate_addresses(&interface, found, families)), expected, "{families:?}");
        }
        let bare = types::NetworkInterface::builder().build();
        assert_eq!(texts(&fargate_addresses(&bare, found, &[Family::V6])), [four]);
    }

    #[test]
    fn only_terminated_instances_count_as_deleted_and_only_stopped_ones_as_stopped() {
        for (name, expected) in [
            (Some(InstanceStateName::Pending), "running"),
            (Some(InstanceStateName::Running), "running"),
            (Some(InstanceStateName::ShuttingDown), "running"),
            (Some(InstanceStateName::Stopping), "running"),
            (Some(InstanceStateName::Stopped), "stopped"),
            (Some(InstanceStateName::Terminated), "gone"),
            (None, "running"),
        ] {
            let ec2_instance = ec2_instance().state(State::builder().set_name(name.clone()).build()).build();
            let reported = match state(&ec2_instance, "eu-west-1", &[Family::V4]) {
                InstanceState::Running(instance) => {
                    assert_eq!(instance.provider_id, "aws:///eu-west-1b/i-1a");
                    assert_eq!((&*instance.instance_type, &*instance.zone), ("m5.large", "eu-west-1b"));
                    "running"
                }
                InstanceState::Stopped => "stopped",
                InstanceState::Gone => "gone",
                InstanceState::Unknown(error) => panic!("{error}"),
            };
            assert_eq!(reported, expected, "{name:?}");
        }
    }
}
