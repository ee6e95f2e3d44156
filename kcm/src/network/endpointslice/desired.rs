//! The endpoints that a Service should have: its pods, grouped by the ports that they have for this Service.

use std::collections::HashMap;
use std::sync::Arc;

use kinds::endpoint::{Port, Target};
use kinds::endpoint_slice::{Conditions, Endpoint};
use kinds::ip::Family;
use kinds::pod::NamedPort;
use kinds::{Pod, Service, Str};

use crate::network::service_endpoints::pods::{addresses, hostname, is_endpoint, network, ports};
use crate::network::service_endpoints::subsets::sorted_ports;

/// The location of a pod's node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The node exists, in this zone if it has the label.
    Known(Option<Str>),
    /// The node does not exist.
    Missing,
}

/// Pods that have the same ports for a Service.
#[derive(Debug)]
pub struct Group {
    /// The ports of the Service that all of these pods have.
    pub ports: Arc<[Port]>,
    /// The pods with their zones, in the order of creation. Pods that were created together often change together, so
    /// that fewer slices are written if they share one.
    pub members: Vec<(Arc<Pod>, Option<Str>)>,
}

/// A Service's pods.
#[derive(Debug, Default)]
pub struct Members {
    /// Groups of pods. A group is empty if all its pods are left out.
    pub groups: Vec<Group>,
    /// Pods that are left out because their node does not exist, with the node.
    pub stranded: Vec<(Str, Str)>,
}

/// Groups the pods that are endpoints. A pod whose node is missing is left out unless the Service publishes even pods
/// that are not ready. Upstream: k8s.io/endpointslice, reconcileByAddressType.
pub fn members(service: &Service, pods: &[Arc<Pod>], place: impl Fn(&Str) -> Place) -> Members {
    let mut members = Members::default();
    let mut by_ports: HashMap<Vec<Port>, usize> = HashMap::new();
    // Pods of one template share their list of ports, so that few lists are compared.
    let mut known: Vec<(Arc<[NamedPort]>, usize)> = Vec::new();
    for pod in pods.iter().filter(|pod| is_endpoint(pod)) {
        let Some(network) = network(pod) else { continue };
        let group = match known.iter().find(|(list, _)| Arc::ptr_eq(list, &network.ports)) {
            Some((_, group)) => *group,
            None => {
                let ports = ports(service, &network.ports);
                let group = *by_ports.entry(sorted_ports(&ports)).or_insert_with(|| members.add_group(ports));
                known.push((network.ports.clone(), group));
                group
            }
        };
        let zone = match place(&pod.node) {
            Place::Known(zone) => zone,
            Place::Missing if service.publish_not_ready_addresses => None,
            Place::Missing => {
                members.stranded.push((pod.meta.name.clone(), pod.node.clone()));
                continue;
            }
        };
        members.groups[group].members.push((pod.clone(), zone));
    }
    for group in &mut members.groups {
        // Creation times have a resolution of a second. Pods that were created within the same second are sorted by
        // their last change. This is close enough: the order only decides which new endpoints share a slice.
        group.members.sort_unstable_by(|(a, _), (b, _)| {
            let creation = |pod: &Pod| (pod.meta.created, pod.meta.version);
            creation(a).cmp(&creation(b)).then_with(|| a.meta.name.cmp(&b.meta.name))
        });
    }
    members
}

impl Members {
    fn add_group(&mut self, ports: Vec<Port>) -> usize {
        self.groups.push(Group { ports: ports.into(), members: Vec::new() });
        self.groups.len() - 1
    }
}

/// Returns true if two lists contain the same ports, in any order.
pub fn same_ports(a: &[Port], b: &[Port]) -> bool {
    a == b || a.len() == b.len() && sorted_ports(a) == sorted_ports(b)
}

impl Group {
    /// Returns the endpoints of these pods in an address family. Upstream: k8s.io/endpointslice, podToEndpoint.
    pub fn endpoints(&self, service: &Service, family: Family) -> Vec<Endpoint> {
        let endpoint = |(pod, zone): &(Arc<Pod>, Option<Str>)| {
            let addresses: Box<[_]> = addresses(pod).filter(|address| address.family() == Some(family)).collect();
            (!addresses.is_empty()).then(|| {
                let serving = pod.ready;
                let terminating = pod.meta.is_deleting();
                Endpoint {
                    addresses,
                    conditions: Conditions {
                        ready: Some(service.publish_not_ready_addresses || serving && !terminating),
                        serving: Some(serving),
                        terminating: Some(terminating),
                    },
                    hostname: hostname(pod, service).cloned(),
                    target: Some(Target::Pod {
                        namespace: pod.meta.namespace.clone(),
                        name: pod.meta.name.clone(),
                        uid: pod.meta.uid.clone(),
                    }),
                    node: Some(pod.node.clone()).filter(|node| !node.is_empty()),
                    zone: zone.clone(),
                    hints: None,
                }
            })
        };
        self.members.iter().filter_map(endpoint).collect()
    }
}
