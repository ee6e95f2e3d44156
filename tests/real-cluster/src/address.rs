//! The addresses of a cluster. Clusters on one machine differ in their index, so that the machine reaches each of them.

use std::net::Ipv4Addr;

use crate::occupied::Range;

/// The addresses of all pods, which node-ipam divides.
pub const PODS: &str = "10.244.0.0/16";

/// The cluster's DNS server, in the control plane's range of Services.
pub const DNS: &str = "10.96.0.10";

/// The port of the mock cloud's HTTP interface, at [`Addresses::gateway`].
pub const CLOUD_PORT: u16 = 9902;

/// Addresses of the machine, the control plane, nodes and load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The cluster's index on this machine.
    pub index: u8,
}

impl Addresses {
    /// The largest number of nodes.
    pub const NODES: u8 = 50;

    /// The API server, and the router between nodes.
    pub fn gateway(self) -> Ipv4Addr {
        self.host(1)
    }

    /// This machine, as seen from the cluster.
    pub fn machine(self) -> Ipv4Addr {
        self.host(254)
    }

    /// A node, counted from 1.
    pub fn node(self, number: u8) -> Ipv4Addr {
        self.host(100 + number)
    }

    /// The range of load balancers.
    pub fn balancers(self) -> String {
        format!("198.18.{}.0/24", self.index)
    }

    /// All ranges that this machine has routes to while the cluster runs.
    pub fn ranges(self) -> [Range; 2] {
        [Range::around(self.host(0)), Range::around(Ipv4Addr::new(198, 18, self.index, 0))]
    }

    fn host(self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(172, 30, self.index, last)
    }
}

/// The name of a node, counted from 1.
pub fn node_name(number: u8) -> String {
    format!("node-{number}")
}
