//! The endpoints that a Service should have: its pods, grouped by the ports that they have for it.

use std::sync::Arc;

use kinds::endpoint::{Port, Target};
use kinds::endpoint_slice::{Conditions, Endpoint};
use kinds::ip::Family;
use kinds::pod::NamedPort;
use kinds::{Pod, Service, Str};

use crate::network::service_endpoints::pods::{addresses, hostname, is_endpoint, network, ports};

/// Where a pod's node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The node is there, in this zone if it says so.
    Known(Option<Str>),
    /// There is no such node.
    Missing,
}

/// Pods that have the same ports for a Service.
#[derive(Debug)]
pub struct Group {
    /// Their ports; all others of the Service they don't have.
    pub ports: Arc<[Port]>,
    /// Each with its zone, in the order in which they came: those that came together often go or change together, so
    /// that the fewest slices are written where they share one.
    pub members: Vec<(Arc<Pod>, Option<Str>)>,
}

/// A Service's pods.
#[derive(Debug, Default)]
pub struct Members {
    /// Groups of pods, none of them empty.
    pub groups: Vec<Group>,
    /// Pods, and their nodes, that are left out because the node is not there.
    pub stranded: Vec<(Str, Str)>,
}

/// Groups the pods that are endpoints (k8s.io/endpointslice, reconcileByAddressType). A pod whose node is missing is
/// left out unless the Service publishes even pods that are not ready.
pub fn members(service: &Service, pods: &[Arc<Pod>], place: impl Fn(&Str) -> Place) -> Members {
    let mut members = Members::default();
    // Pods of one template share their list of ports, so that few lists are compared.
    let mut known: Vec<(Arc<[NamedPort]>, usize)> = Vec::new();
    for pod in pods.iter().filter(|pod| is_endpoint(pod)) {
        let Some(network) = network(pod) else { continue };
        let group = match known.iter().find(|(list, _)| Arc::ptr_eq(list, &network.ports)) {
            Some((_, group)) => *group,
            None => {
                let group = members.group(ports(service, &network.ports));
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
        // Many are created within a second; their versions tell more.
        group.members.sort_unstable_by(|(a, _), (b, _)| {
            let came = |pod: &Pod| (pod.meta.created, pod.meta.version);
            came(a).cmp(&came(b)).then_with(|| a.meta.name.cmp(&b.meta.name))
        });
    }
    members
}

impl Members {
    fn group(&mut self, ports: Vec<Port>) -> usize {
        self.groups.iter().position(|group| same_ports(&group.ports, &ports)).unwrap_or_else(|| {
            self.groups.push(Group { ports: ports.into(), members: Vec::new() });
            self.groups.len() - 1
        })
    }
}

/// Returns true if two lists hold the same ports, in whatever order.
pub fn same_ports(a: &[Port], b: &[Port]) -> bool {
    let sorted = |ports: &[Port]| {
        let mut ports: Vec<Port> = ports.to_vec();
        ports.sort_unstable();
        ports
    };
    a == b || a.len() == b.len() && sorted(a) == sorted(b)
}

impl Group {
    /// Returns the endpoints that these pods are in a family (k8s.io/endpointslice, podToEndpoint).
    pub fn endpoints(&self, service: &Service, family: Family) -> Vec<Endpoint> {
        let endpoint = |(pod, zone): &(Arc<Pod>, Option<Str>)| {
            let addresses: Box<[_]> = addresses(pod).filter(|address| address.family() == Some(family)).collect();
            (!addresses.is_empty()).then(|| {
                let (serving, terminating) = (pod.ready, pod.meta.is_deleting());
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
