//! Choice of a load balancer's subnets: those that are named, or one in each suitable zone.

use std::collections::BTreeMap;

use providers::{CloudError, ErrorKind, IpNet};

use crate::loadbalancer::names::Flavour;
use crate::loadbalancer::observed::vpc::{Network, Subnet};
use crate::loadbalancer::spec::annotation_reader::PREFIX;
use crate::loadbalancer::spec::settings::Settings;
use crate::loadbalancer::types::{Mapping, Scheme};
use crate::tags::ClusterTags;

/// Tag of subnets for internet-facing load balancers.
const PUBLIC_ROLE: &str = "kubernetes.io/role/elb";
/// Tag of subnets for internal load balancers.
const INTERNAL_ROLE: &str = "kubernetes.io/role/internal-elb";
const CLUSTER_PREFIX: &str = "kubernetes.io/cluster/";
/// Number of free addresses that AWS requires in a load balancer's subnet.
const FREE_ADDRESSES: i32 = 8;

/// Returns the subnets for a load balancer, in the order in which addresses are assigned to them.
///
/// # Errors
/// `Invalid` if a named subnet does not exist or is the second of its zone, if no subnet is suitable, or if the
/// addresses in annotations do not fit the subnets.
pub(crate) fn choose(
    settings: &Settings,
    scheme: Scheme,
    ipv6: bool,
    network: &Network,
    cluster: &ClusterTags,
    current: &[Mapping],
) -> Result<Vec<Mapping>, CloudError> {
    let chosen = match &settings.subnets {
        Some(names) => named(names, network)?,
        None => {
            let fit = fitting(settings.flavour, scheme, ipv6, network, cluster);
            // A load balancer keeps its subnets as long as they exist, and gets zones that it lacks.
            let mut zones: BTreeMap<&str, &Subnet> = fit.into_iter().map(|subnet| (&*subnet.zone, subnet)).collect();
            for kept in current {
                if let Some(subnet) = network.subnets.iter().find(|subnet| subnet.id == kept.subnet) {
                    zones.insert(&subnet.zone, subnet);
                }
            }
            let mut chosen: Vec<&Subnet> = zones.into_values().collect();
            // Annotations give one address per subnet: when the network gets another zone, the number of subnets must
            // still match.
            let kept: Vec<&Subnet> =
                current.iter().filter_map(|one| chosen.iter().find(|new| new.id == one.subnet).copied()).collect();
            if kept.len() == current.len() && addresses_given(settings) == Some(kept.len()) {
                chosen = kept;
            }
            chosen.sort_by(|a, b| a.id.cmp(&b.id));
            chosen
        }
    };
    if chosen.is_empty() {
        let role = if scheme == Scheme::Internal { INTERNAL_ROLE } else { PUBLIC_ROLE };
        let message = format!(
            "could not find any suitable subnets for creating the ELB: none of the {} subnets of {} fits; tag them with \
             {role} and {}, or name them in annotation {PREFIX}subnets",
            network.subnets.len(),
            network.vpc,
            cluster.key()
        );
        return Err(CloudError::new(ErrorKind::Invalid, "ChooseSubnets", message));
    }
    let mut mappings: Vec<Mapping> = chosen
        .iter()
        .map(|subnet| Mapping { subnet: subnet.id.clone(), zone: subnet.zone.clone(), ..Mapping::default() })
        .collect();
    assign_addresses(settings, &chosen, &mut mappings)?;
    Ok(mappings)
}

/// Returns the number of subnets that annotations give addresses for.
fn addresses_given(settings: &Settings) -> Option<usize> {
    let Settings { allocations, nat_prefixes, private_v4, v6, .. } = settings;
    let given = [allocations.len(), nat_prefixes.len(), private_v4.len(), v6.len()];
    given.into_iter().find(|count| *count > 0)
}

fn named<'a>(names: &[String], network: &'a Network) -> Result<Vec<&'a Subnet>, CloudError> {
    let refuse = |fix: &str| Err(CloudError::invalid_annotation(&format!("{PREFIX}subnets"), &names.join(","), fix));
    let mut chosen: Vec<&Subnet> = Vec::new();
    for name in names {
        let is = |subnet: &&Subnet| subnet.id == *name || subnet.tags.get("Name") == Some(name);
        match network.subnets.iter().find(is) {
            None => {
                return refuse(&format!(
                    "name subnets of {} by id or by their tag Name: there is no {name}",
                    network.vpc
                ));
            }
            Some(subnet) if chosen.iter().any(|other| other.zone == subnet.zone) => {
                return refuse(&format!("name one subnet for each zone: {name} is the second in {}", subnet.zone));
            }
            Some(subnet) => chosen.push(subnet),
        }
    }
    Ok(chosen)
}

/// Returns one subnet in each zone. Upstream: cloud-provider-aws, findELBSubnets; Load Balancer Controller:
/// ResolveViaDiscovery.
fn fitting<'a>(
    flavour: Flavour,
    scheme: Scheme,
    ipv6: bool,
    network: &'a Network,
    cluster: &ClusterTags,
) -> Vec<&'a Subnet> {
    let internal = scheme == Scheme::Internal;
    let role = if internal { INTERNAL_ROLE } else { PUBLIC_ROLE };
    // Without a cluster id, `own` is true for every subnet.
    let own = |subnet: &Subnet| cluster.marks(subnet.tags.iter().map(|(key, value)| (&**key, &**value)));
    let foreign = |subnet: &Subnet| !own(subnet) && subnet.tags.keys().any(|key| key.starts_with(CLUSTER_PREFIX));
    let usable = |subnet: &&Subnet| {
        !subnet.outpost && !foreign(subnet) && network.is_ordinary(&subnet.zone) && (!ipv6 || !subnet.v6.is_empty())
    };
    let mut fit: Vec<&Subnet> = network.subnets.iter().filter(usable).collect();
    if fit.is_empty() {
        fit.extend(network.subnets.iter().filter(|subnet| subnet.id == network.own_subnet));
    }
    match flavour {
        Flavour::CloudProvider => fit.retain(|subnet| internal || subnet.public),
        Flavour::Controller => {
            fit.retain(|subnet| subnet.free >= FREE_ADDRESSES);
            let marked = |subnet: &&Subnet| subnet.tags.get(role).is_some_and(|value| value.is_empty() || value == "1");
            if fit.iter().any(marked) { fit.retain(marked) } else { fit.retain(|subnet| subnet.public != internal) }
        }
    }
    fit.sort_by_key(|subnet| (!subnet.tags.contains_key(role), !own(subnet), &subnet.id));
    let mut zones: BTreeMap<&str, &Subnet> = BTreeMap::new();
    for subnet in fit {
        zones.entry(&subnet.zone).or_insert(subnet);
    }
    zones.into_values().collect()
}

/// Assigns the addresses of annotations to the subnets.
fn assign_addresses(settings: &Settings, subnets: &[&Subnet], mappings: &mut [Mapping]) -> Result<(), CloudError> {
    let refuse = |suffix: &str, value: &str, fix: &str| {
        Err(CloudError::invalid_annotation(&format!("{PREFIX}{suffix}"), value, fix))
    };
    let count = |suffix: &str, given: &[String]| {
        if given.is_empty() || given.len() == subnets.len() {
            Ok(())
        } else {
            let ids: Vec<_> = subnets.iter().map(|subnet| subnet.id.as_str()).collect();
            refuse(suffix, &given.join(","), &format!("give one for each of the subnets {}", ids.join(", ")))
        }
    };
    count("eip-allocations", &settings.allocations)?;
    count("source-nat-ipv6-prefixes", &settings.nat_prefixes)?;
    for (mapping, allocation) in mappings.iter_mut().zip(&settings.allocations) {
        mapping.allocation = Some(allocation.clone());
    }
    for (mapping, prefix) in mappings.iter_mut().zip(&settings.nat_prefixes) {
        mapping.nat_prefix = Some(prefix.clone());
    }
    let v4: Vec<String> = settings.private_v4.iter().map(ToString::to_string).collect();
    let v6: Vec<String> = settings.v6.iter().map(ToString::to_string).collect();
    count("private-ipv4-addresses", &v4)?;
    count("ipv6-addresses", &v6)?;
    for (subnet, mapping) in subnets.iter().zip(mappings.iter_mut()) {
        let within = |ranges: &[IpNet], given: &[String]| {
            let inside = |address: &&String| {
                address
                    .parse()
                    .is_ok_and(|address: std::net::IpAddr| ranges.iter().any(|range| range.contains(&address)))
            };
            given.iter().find(inside).cloned()
        };
        mapping.private_v4 = within(&subnet.v4, &v4);
        mapping.v6 = within(&subnet.v6, &v6);
        for (suffix, given, found) in
            [("private-ipv4-addresses", &v4, &mapping.private_v4), ("ipv6-addresses", &v6, &mapping.v6)]
        {
            if !given.is_empty() && found.is_none() {
                return refuse(suffix, &given.join(","), &format!("give an address within {} too", subnet.id));
            }
        }
    }
    Ok(())
}
