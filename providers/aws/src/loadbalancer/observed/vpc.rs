//! The cluster's VPC as data: its ranges and its subnets.

use providers::IpNet;

use crate::loadbalancer::types::{Mapping, Tags};

/// A subnet of the cluster's network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Subnet {
    pub id: String,
    pub zone: String,
    pub v4: Vec<IpNet>,
    pub v6: Vec<IpNet>,
    pub tags: Tags,
    /// Number of unused addresses.
    pub free: i32,
    /// Its route table leads to an internet gateway.
    pub public: bool,
    /// It is on an Outpost, which has no Network Load Balancers.
    pub outpost: bool,
}

/// The cluster's network.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Network {
    pub vpc: String,
    pub region: String,
    /// The network's ranges.
    pub ranges: Vec<IpNet>,
    /// Ordered by id.
    pub subnets: Vec<Subnet>,
    /// The subnet in the configuration, or that of the instance that this process runs on; empty if neither is known.
    pub own_subnet: String,
}

impl Network {
    /// Returns true if a zone is an availability zone, and not a local or wavelength zone.
    pub(crate) fn is_ordinary(&self, zone: &str) -> bool {
        zone.strip_prefix(&self.region).is_none_or(|rest| rest.len() == 1)
    }

    /// Returns the ranges of subnets, for rules that allow health checks, and traffic without the clients' addresses.
    pub(crate) fn ranges_of(&self, mappings: &[Mapping], ipv6: bool) -> Vec<IpNet> {
        let used = |subnet: &&Subnet| mappings.iter().any(|mapping| mapping.subnet == subnet.id);
        let subnets = self.subnets.iter().filter(used);
        subnets.flat_map(|subnet| if ipv6 { subnet.v6.clone() } else { subnet.v4.clone() }).collect()
    }

    /// Returns true if all of these subnets have IPv6.
    pub(crate) fn has_ipv6(&self, mappings: &[Mapping]) -> bool {
        let find = |mapping: &Mapping| self.subnets.iter().find(|subnet| subnet.id == mapping.subnet);
        mappings.iter().all(|mapping| find(mapping).is_some_and(|subnet| !subnet.v6.is_empty()))
    }
}
