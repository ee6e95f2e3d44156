//! The routes that the router should have, from the state of the cloud and the health of nodes. No IO.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};

use super::cloud::{Cloud, RouteTarget, Target};

/// The port at which kube-proxy reports its health.
const KUBE_PROXY_HEALTH: u16 = 10256;

/// Next hops by destination; an empty set for a destination whose packets are refused.
pub type Table = BTreeMap<String, BTreeSet<Ipv4Addr>>;

/// A node, with the health check port for a load balancer's traffic.
pub type Check = (Ipv4Addr, u16);

/// Returns all health checks that the load balancers need.
pub fn checks(cloud: &Cloud) -> BTreeSet<Check> {
    let checks = cloud.balancers.iter().flat_map(|balancer| {
        let port = balancer.attributes.health_check_port.unwrap_or(KUBE_PROXY_HEALTH);
        nodes(cloud, &balancer.targets).into_iter().map(move |node| (node, port))
    });
    checks.collect()
}

/// Returns the routes: pod ranges to their nodes, and addresses of load balancers to their healthy targets.
pub fn routes(cloud: &Cloud, is_healthy: impl Fn(Check) -> bool) -> Table {
    let mut table = Table::new();
    for route in &cloud.routes {
        let node = match &route.target {
            Some(RouteTarget::Instance(id)) => cloud.address_of(id),
            Some(RouteTarget::Node(name)) => cloud.address_of_name(name),
            Some(RouteTarget::Blackhole) | None => None,
        };
        table.entry(route.destination.clone()).or_default().extend(node);
    }
    for balancer in &cloud.balancers {
        let port = balancer.attributes.health_check_port.unwrap_or(KUBE_PROXY_HEALTH);
        let healthy: BTreeSet<Ipv4Addr> =
            nodes(cloud, &balancer.targets).into_iter().filter(|node| is_healthy((*node, port))).collect();
        for address in balancer.addresses.iter().filter(|address| address.is_ipv4()) {
            table.insert(format!("{address}/32"), healthy.clone());
        }
    }
    table
}

/// Returns the commands of `ip` that change one table into another.
pub fn changes(from: &Table, to: &Table) -> String {
    let mut commands = String::new();
    for destination in from.keys().filter(|destination| !to.contains_key(*destination)) {
        let _ = writeln!(commands, "route delete {destination}");
    }
    for (destination, hops) in to.iter().filter(|(destination, hops)| from.get(*destination) != Some(hops)) {
        let hops: String = hops.iter().map(|hop| format!(" nexthop via {hop}")).collect();
        let _ = if hops.is_empty() {
            writeln!(commands, "route replace unreachable {destination}")
        } else {
            writeln!(commands, "route replace {destination}{hops}")
        };
    }
    commands
}

fn nodes(cloud: &Cloud, targets: &[super::cloud::ObservedTarget]) -> BTreeSet<Ipv4Addr> {
    let nodes = targets.iter().filter_map(|target| match &target.target {
        Target::Instance(id) => cloud.address_of(id),
        Target::Endpoint { address: IpAddr::V4(address) } => Some(*address),
        Target::Endpoint { .. } => None,
    });
    nodes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATE: &str = r#"{
        "instances": {
            "node-1": {"provider_id": "mock://r/node-1", "running": true, "addresses": [{"kind": "InternalIP", "address": "172.30.0.101"}, {"kind": "Hostname", "address": "node-1"}]},
            "node-2": {"provider_id": "mock://r/node-2", "running": true, "addresses": [{"kind": "InternalIP", "address": "172.30.0.102"}]}
        },
        "balancers": [{
            "addresses": ["198.18.0.1"],
            "targets": [{"target": {"instance": "mock://r/node-1"}, "health": "healthy"}, {"target": {"instance": "mock://r/node-2"}, "health": "healthy"}],
            "attributes": {"health_check_port": null}
        }],
        "routes": [{"destination": "10.244.0.0/24", "target": {"instance": "mock://r/node-2"}}]
    }"#;

    #[test]
    fn load_balancer_is_routed_to_healthy_targets_only() {
        let cloud: Cloud = serde_json::from_str(STATE).unwrap();
        let (one, two) = (Ipv4Addr::new(172, 30, 0, 101), Ipv4Addr::new(172, 30, 0, 102));
        assert_eq!(checks(&cloud), BTreeSet::from([(one, KUBE_PROXY_HEALTH), (two, KUBE_PROXY_HEALTH)]));
        let both = routes(&cloud, |_| true);
        assert_eq!(both["198.18.0.1/32"], BTreeSet::from([one, two]));
        assert_eq!(both["10.244.0.0/24"], BTreeSet::from([two]));
        let single = routes(&cloud, |(node, _)| node == one);
        assert_eq!(changes(&both, &single), "route replace 198.18.0.1/32 nexthop via 172.30.0.101\n");
        let none = routes(&cloud, |_| false);
        assert_eq!(changes(&single, &none), "route replace unreachable 198.18.0.1/32\n");
        assert_eq!(changes(&none, &none), "");
    }

    #[test]
    fn route_that_the_cloud_lacks_is_deleted() {
        let table = Table::from([("10.244.0.0/24".to_owned(), BTreeSet::new())]);
        assert_eq!(changes(&table, &Table::new()), "route delete 10.244.0.0/24\n");
    }
}
