//! Policy: the desired Endpoints of a Service.

use std::collections::HashSet;
use std::sync::Arc;

use kinds::endpoint::{HEADLESS, Target};
use kinds::endpoints::{Address, Endpoints, OVER_CAPACITY, Subset};
use kinds::intern::Labels;
use kinds::{Pod, Service};

use crate::network::service_endpoints::pods::{addresses, hostname, is_endpoint, network, ports};
use crate::network::service_endpoints::subsets::{Reachable, identity, pack, repack};

/// Label: the manager of an Endpoints object. Upstream: pkg/controller/endpoint, LabelManagedBy.
pub const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
/// The value of [`MANAGED_BY`] for this controller.
pub const MANAGER: &str = "endpoint-controller";
/// Maximum number of addresses in an Endpoints object. Upstream: pkg/controller/endpoint, maxCapacity.
pub const CAPACITY: usize = 1000;
/// The value of [`OVER_CAPACITY`].
pub const TRUNCATED: &str = "truncated";

/// The desired Endpoints object.
#[derive(Debug, PartialEq)]
pub struct Desired {
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
    /// Only addresses without traffic are removed: the write may be delayed.
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
pub fn desired(service: &Service, pods: &[Arc<Pod>]) -> Desired {
    let is_wanted =
        |pod: &&Arc<Pod>| is_endpoint(pod) && (service.publish_not_ready_addresses || !pod.meta.is_deleting());
    let mut all: Vec<Reachable> = Vec::new();
    for pod in pods.iter().filter(is_wanted) {
        let Some(address) = address(service, pod) else { continue };
        let ready = service.publish_not_ready_addresses || pod.ready;
        if service.ports.is_empty() && service.is_headless() {
            all.push((address, None, ready));
        } else {
            let named = network(pod).map_or(&[][..], |network| &network.ports);
            all.extend(ports(service, named).into_iter().map(|port| (address.clone(), Some(port), ready)));
        }
    }
    let mut subsets = pack(&all);
    let is_truncated = truncate(&mut subsets, CAPACITY);
    Desired { subsets, labels: labels(service), is_truncated }
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

/// Removes addresses beyond `most`: those that are not ready first, and about the same share of each subset. Returns
/// true if any were removed. Upstream: pkg/controller/endpoint, truncateEndpoints.
pub fn truncate(subsets: &mut [Subset], most: usize) -> bool {
    let ready: usize = subsets.iter().map(|subset| subset.ready.len()).sum();
    let not_ready: usize = subsets.iter().map(|subset| subset.not_ready.len()).sum();
    if ready + not_ready <= most {
        return false;
    }
    let (total, room) = if ready > most { (ready, most) } else { (not_ready, most - ready) };
    let mut left = room;
    for subset in subsets {
        let list = if ready > most {
            subset.not_ready.clear();
            &mut subset.ready
        } else {
            &mut subset.not_ready
        };
        // The part that it would have, rounded up, while there is room.
        let part = (list.len() * room).div_ceil(total).min(left);
        list.truncate(part);
        left -= list.len();
    }
    true
}

/// Compares an object with the desired one.
pub fn write(current: Option<&Endpoints>, desired: &Desired) -> Write {
    let Some(current) = current else { return Write::Now };
    let current_mark = current.annotation(OVER_CAPACITY);
    let mark = desired.is_truncated.then_some(TRUNCATED);
    if current.meta.labels != desired.labels || current_mark != mark {
        return Write::Now;
    }
    if *current.subsets == desired.subsets[..] || repack(&current.subsets) == desired.subsets {
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

fn ready_subsets(subsets: &[Subset]) -> Vec<Subset> {
    let ready = |subset: &Subset| Subset { not_ready: Vec::new(), ..subset.clone() };
    repack(&subsets.iter().map(ready).collect::<Vec<_>>())
}
