//! The addresses of a cluster. Clusters on one machine have different indexes and therefore different addresses, by
//! which the machine reaches each of them.

use std::net::Ipv4Addr;

use crate::occupied::Range;

/// The addresses of all pods, which node-ipam-controller divides among nodes.
pub const PODS: &str = "10.244.0.0/16";

/// The cluster's DNS server, in the control plane's range of Services.
pub const DNS: &str = "10.96.0.10";

/// The port of the mock cloud's HTTP interface, at [`Addresses::gateway`].
pub const CLOUD_PORT: u16 = 9902;

/// The first two numbers of the addresses of nodes and of load balancers. Half of the clusters use the first block;
/// the others use the second one, which is for machines whose own addresses overlap the first.
const BLOCKS: [[(u8, u8); 2]; 2] = [[(172, 30), (198, 18)], [(10, 213), (10, 214)]];

/// The number of clusters with addresses of the same block.
const CLUSTERS_PER_BLOCK: u8 = 16;

/// Addresses of the machine, the control plane, nodes and load balancers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The cluster's index on this machine.
    pub index: u8,
}

impl Addresses {
    /// The largest number of nodes.
    pub const NODES: u8 = 50;

    /// The largest number of clusters on one machine.
    pub const CLUSTERS: u8 = 2 * CLUSTERS_PER_BLOCK;

    /// Returns the address of the API server and of the router between nodes.
    pub fn gateway(self) -> Ipv4Addr {
        self.host(1)
    }

    /// Returns the address of this machine in the network of the cluster.
    pub fn machine(self) -> Ipv4Addr {
        self.host(254)
    }

    /// Returns the address of a node. Nodes are counted from 1.
    pub fn node(self, number: u8) -> Ipv4Addr {
        self.host(100 + number)
    }

    /// Returns the address range of load balancers.
    pub fn balancers(self) -> String {
        self.ranges()[1].to_string()
    }

    /// Returns all ranges that this machine has routes to while the cluster runs: of nodes, and of load balancers.
    pub fn ranges(self) -> [Range; 2] {
        self.networks().map(Range::around)
    }

    fn host(self, last: u8) -> Ipv4Addr {
        let [one, two, three, _] = self.networks()[0].octets();
        Ipv4Addr::new(one, two, three, last)
    }

    fn networks(self) -> [Ipv4Addr; 2] {
        let block = BLOCKS[usize::from(self.index / CLUSTERS_PER_BLOCK) % BLOCKS.len()];
        block.map(|(one, two)| Ipv4Addr::new(one, two, self.index % CLUSTERS_PER_BLOCK, 0))
    }
}

/// Returns the name of a node. Nodes are counted from 1.
pub fn node_name(number: u8) -> String {
    format!("node-{number}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn clusters_have_different_ranges_outside_those_of_pods_and_services() {
        let text = |index| Addresses { index }.ranges().map(|range| range.to_string());
        assert_eq!(text(3), ["172.30.3.0/24", "198.18.3.0/24"]);
        assert_eq!(text(16), ["10.213.0.0/24", "10.214.0.0/24"]);
        assert_eq!(Addresses { index: 17 }.node(2).to_string(), "10.213.1.102");
        let all: BTreeSet<String> = (0..Addresses::CLUSTERS).flat_map(text).collect();
        assert_eq!(all.len(), 2 * usize::from(Addresses::CLUSTERS));
        assert!(all.iter().all(|range| !range.starts_with("10.244.") && !range.starts_with("10.96.")));
    }
}
