//! Policy: the desired Endpoints of a Service.

use std::collections::HashSet;
use std::sync::Arc;

use kinds::endpoint::{HEADLESS, Target};
use kinds::endpoints::{Address, Endpoints, OVER_CAPACITY, Subset};
use kinds::intern::Labels;
use kinds::pod::NamedPort;
use kinds::{Pod, Service};

use crate::network::service_endpoints::pods::{addresses, hostname, is_endpoint, network, ports};
use crate::network::service_endpoints::subsets::{TooLarge, identity, repack};

/// Label: the manager of an Endpoints object. Upstream: pkg/controller/endpoint, LabelManagedBy.
pub const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`] for this controller.
pub const MANAGER: &str = "endpoint-controller";
/// Maximum number of addresses in an Endpoints object. Upstream: pkg/controller/endpoint, maxCapacity.
pub const CAPACITY: usize = 1000;
/// The value of the annotation [`OVER_CAPACITY`] when addresses are left out.
pub const TRUNCATED: &str = "truncated";

/// The desired Endpoints object.
#[derive(Debug, PartialEq)]
pub struct DesiredEndpoints {
    /// Its subsets.
    pub subsets: Vec<Subset>,
    /// Its labels.
    pub labels: Labels,
    /// True when addresses are left out.
    pub is_truncated: bool,
}

/// The urgency of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// No write is needed.
    No,
    /// Only addresses that are not ready are removed or changed: the write may be delayed.
    Later,
    /// Write immediately.
    Now,
}

/// Returns the address of a pod for a Service: of the Service's first family, or else of its cluster IP's family, or
/// else the pod's first. Upstream: pkg/controller/endpoint, podToEndpointAddressForService.
fn address(service: &Service, pod: &Arc<Pod>) -> Option<Address> {
    let first = || addresses(pod).next().and_then(|ip| ip.family());
    let family = service.families().next().or_else(|| service.cluster_ip_family()).or_else(first);
    Some(Address {
        ip: addresses(pod).find(|ip| ip.family() == family)?,
        hostname: hostname(pod, service).cloned().unwrap_or_else(|| "".into()),
        node: Some(pod.node.clone()),
        target: Some(Target::Pod {
            namespace: pod.meta.namespace.clone(),
            name: pod.meta.name.clone(),
            uid: pod.meta.uid.clone(),
        }),
    })
}

/// Returns the desired Endpoints of a Service. Upstream: pkg/controller/endpoint, syncService.
///
/// # Errors
/// When the pods differ in too many ports.
pub fn desired(service: &Service, pods: &[Arc<Pod>]) -> Result<DesiredEndpoints, TooLarge> {
    let is_wanted =
        |pod: &&Arc<Pod>| is_endpoint(pod) && (service.publish_not_ready_addresses || !pod.meta.is_deleting());
    // Pods of one template share their list of named ports, and so belong to one subset.
    let mut groups: Vec<(Option<Arc<[NamedPort]>>, Subset)> = Vec::new();
    let is_without_ports = service.ports.is_empty() && service.is_headless();
    for pod in pods.iter().filter(is_wanted) {
        let Some(address) = address(service, pod) else { continue };
        let named = network(pod).map(|network| network.ports.clone()).filter(|_| !is_without_ports);
        let is_same = |other: &Option<Arc<[NamedPort]>>| match (other, &named) {
            (Some(other), Some(named)) => Arc::ptr_eq(other, named),
            (other, named) => other.is_none() && named.is_none(),
        };
        let at = groups.iter().position(|(other, _)| is_same(other)).unwrap_or_else(|| {
            let ports =
                if is_without_ports { Vec::new() } else { ports(service, named.as_deref().unwrap_or_default()) };
            groups.push((named.clone(), Subset { ready: Vec::new(), not_ready: Vec::new(), ports }));
            groups.len() - 1
        });
        let subset = &mut groups[at].1;
        let ready = service.publish_not_ready_addresses || pod.ready;
        if ready { subset.ready.push(address) } else { subset.not_ready.push(address) }
    }
    // A pod that has none of the ports is not an endpoint.
    groups.retain(|(_, subset)| is_without_ports || !subset.ports.is_empty());
    let groups: Vec<Subset> = groups.into_iter().map(|(_, subset)| subset).collect();
    let mut subsets = repack(&groups)?;
    let is_truncated = truncate(&mut subsets, CAPACITY);
    Ok(DesiredEndpoints { subsets, labels: labels(service), is_truncated })
}

fn labels(service: &Service) -> Labels {
    let own = |(key, _): &&(kinds::Str, kinds::Str)| ![HEADLESS, MANAGED_BY].contains(&&**key);
    let mut labels: Vec<_> = service.meta.labels.iter().filter(own).cloned().collect();
    labels.push((MANAGED_BY.into(), MANAGER.into()));
    if service.is_without_ip() {
        labels.push((HEADLESS.into(), "".into()));
    }
    labels.sort_unstable();
    labels.into()
}

/// Keeps at most `max` addresses: removes those that are not ready first, and about the same share of each subset.
/// Returns true if any were removed. Upstream: pkg/controller/endpoint, truncateEndpoints.
pub fn truncate(subsets: &mut [Subset], max: usize) -> bool {
    let ready: usize = subsets.iter().map(|subset| subset.ready.len()).sum();
    let not_ready: usize = subsets.iter().map(|subset| subset.not_ready.len()).sum();
    if ready + not_ready <= max {
        return false;
    }
    let (total, room) = if ready > max { (ready, max) } else { (not_ready, max - ready) };
    let mut left = room;
    for subset in subsets {
        let list = if ready > max {
            subset.not_ready.clear();
            &mut subset.ready
        } else {
            &mut subset.not_ready
        };
        // The subset's share of the remaining addresses, rounded up; in floating point, as in upstream: 110 of 200
        // addresses get 56 of 100 places.
        let part = (list.len() as f64 / total as f64 * room as f64).ceil() as usize;
        let part = part.min(left);
        list.truncate(part);
        left -= list.len();
    }
    true
}

/// Returns the urgency of the write that makes an object equal to the desired one.
pub fn write(current: Option<&Endpoints>, desired: &DesiredEndpoints) -> Write {
    let Some(current) = current else { return Write::Now };
    let current_mark = current.annotation(OVER_CAPACITY);
    let mark = desired.is_truncated.then_some(TRUNCATED);
    if current.meta.labels != desired.labels || current_mark != mark {
        return Write::Now;
    }
    if *current.subsets == desired.subsets[..] || repack(&current.subsets).as_ref() == Ok(&desired.subsets) {
        return Write::No;
    }
    let is_urgent = ready_subsets(&current.subsets) != ready_subsets(&desired.subsets)
        || adds_address(&current.subsets, &desired.subsets);
    if is_urgent { Write::Now } else { Write::Later }
}

/// Returns true if one of the desired addresses is not among the current ones, ready or not.
fn adds_address(current: &[Subset], desired: &[Subset]) -> bool {
    let known: HashSet<_> = addresses_of(current).map(identity).collect();
    addresses_of(desired).any(|address| !known.contains(&identity(address)))
}

fn addresses_of(subsets: &[Subset]) -> impl Iterator<Item = &Address> {
    subsets.iter().flat_map(|subset| subset.ready.iter().chain(&subset.not_ready))
}

fn ready_subsets(subsets: &[Subset]) -> Result<Vec<Subset>, TooLarge> {
    let ready = |subset: &Subset| Subset { not_ready: Vec::new(), ..subset.clone() };
    repack(&subsets.iter().map(ready).collect::<Vec<_>>())
}
