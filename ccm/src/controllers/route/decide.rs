//! Policy: the desired routes, and the resulting condition of each node. Pure functions.

use std::collections::{HashMap, HashSet};
use std::str::FromStr;

use ipnet::IpNet;
use providers::{Address, InstanceRef, Route, RouteChange, RouteSpec, RouteTarget};

/// The fields of a node that its routes need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteNode {
    /// Its instance.
    pub instance: InstanceRef,
    /// Its uid.
    pub uid: String,
    /// Its addresses.
    pub addresses: Vec<Address>,
    /// Its pod networks, `spec.podCIDRs`, not parsed.
    pub pod_cidrs: Vec<String>,
    /// True if the node's condition reports that its routes exist; `None` if there is no condition, or another client
    /// wrote the condition.
    pub reported: Option<bool>,
}

/// The result of one pass over all nodes and routes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Changes of routes; each destination at most once.
    pub changes: Vec<RouteChange>,
    /// The result for each node, in the nodes' order; `None`: nothing has to be reported.
    pub nodes: Vec<Option<NodeState>>,
}

/// The inputs of a node's condition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Indexes of the changes that the node's routes need.
    pub needs: Vec<usize>,
    /// Reasons why a route can never exist: the network and the reason.
    pub terminal: Vec<(String, String)>,
    /// The node has no pod network, although a route leads to it.
    pub without_pod_cidrs: bool,
}

/// Parses `--cluster-cidr`: one network, or two of different families.
///
/// Upstream: cloud-provider/app, processCIDRs.
///
/// # Errors
/// The problem and the fix.
pub fn cluster_networks(flag: &str) -> Result<Vec<IpNet>, String> {
    let parse = |text: &str| {
        IpNet::from_str(text.trim()).map(|net| net.trunc()).map_err(|_| {
            format!(
                "--cluster-cidr is {flag:?}: use the pods' network, for example 10.244.0.0/16, or one of each family"
            )
        })
    };
    let networks: Vec<IpNet> = flag.trim().split(',').map(parse).collect::<Result<_, _>>()?;
    match &networks[..] {
        [_] => Ok(networks),
        [one, two] if one.addr().is_ipv4() != two.addr().is_ipv4() => Ok(networks),
        [_, _] => Err(format!("--cluster-cidr is {flag:?}: use one network of each IP family")),
        more => Err(format!("--cluster-cidr is {flag:?}: use at most two networks, not {}", more.len())),
    }
}

/// Returns true if this controller may remove a route: the first or last address of its destination is in one of the
/// cluster's networks. Upstream: route controller, isResponsibleForRoute.
fn is_responsible(cluster: &[IpNet], destination: &IpNet) -> bool {
    cluster.iter().any(|net| net.contains(&destination.network()) || net.contains(&destination.broadcast()))
}

fn leads_to(route: &Route, node: &RouteNode) -> bool {
    match &route.target {
        RouteTarget::Instance(id) => node.instance.provider_id.as_ref() == Some(id),
        RouteTarget::Node(name) => node.instance.node == *name,
        RouteTarget::Blackhole => false,
    }
}

/// Returns true if a route has the desired target: the node's instance, and its addresses if routes lead to addresses.
/// Upstream: route controller, getRouteAction.
fn is_up_to_date(route: &Route, node: &RouteNode) -> bool {
    let are_current = |listed: &Vec<Address>| {
        // A kubelet may report any number of addresses.
        let known: HashSet<&Address> = listed.iter().collect();
        listed.len() == node.addresses.len() && node.addresses.iter().all(|address| known.contains(address))
    };
    leads_to(route, node) && route.addresses.as_ref().is_none_or(are_current)
}

/// Returns the index of the node that owns each network: the node with a route for it, else the first that claims it.
fn owners<'a>(nodes: &[RouteNode], routes_to: impl Fn(&IpNet) -> &'a [&'a Route]) -> HashMap<IpNet, usize> {
    let mut owners: HashMap<IpNet, usize> = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        for net in node.pod_cidrs.iter().filter_map(|cidr| IpNet::from_str(cidr).ok()) {
            let net = net.trunc();
            let has = |at: usize| routes_to(&net).iter().any(|route| leads_to(route, &nodes[at]));
            match owners.get(&net) {
                Some(owner) if has(*owner) || !has(at) => {}
                _ => _ = owners.insert(net, at),
            }
        }
    }
    owners
}

/// Compares nodes with routes. If several nodes claim a network, the one that has a route for it keeps it; without a
/// route, the first in `nodes` gets it. Routes are removed only if `complete`, which means that `nodes` contains all
/// nodes.
pub fn plan(nodes: &[RouteNode], routes: &[Route], cluster: &[IpNet], complete: bool) -> Plan {
    let mut by_destination: HashMap<IpNet, Vec<&Route>> = HashMap::new();
    for route in routes {
        by_destination.entry(route.destination.trunc()).or_default().push(route);
    }
    let mut to_instance = HashSet::new();
    let mut to_node = HashSet::new();
    for route in routes {
        match &route.target {
            RouteTarget::Instance(id) => _ = to_instance.insert(id.as_str()),
            RouteTarget::Node(name) => _ = to_node.insert(name.as_str()),
            RouteTarget::Blackhole => {}
        }
    }
    let routes_to = |net: &IpNet| by_destination.get(net).map_or(&[][..], |routes| routes);
    let owners = owners(nodes, routes_to);
    let mut plan = Plan::default();
    for (at, node) in nodes.iter().enumerate() {
        let mut state = NodeState::default();
        for cidr in &node.pod_cidrs {
            let Ok(net) = IpNet::from_str(cidr).map(|net| net.trunc()) else {
                state.terminal.push((cidr.clone(), "spec.podCIDRs contains an invalid network".to_owned()));
                continue;
            };
            if owners[&net] != at {
                let owner = &nodes[owners[&net]].instance.node;
                state.terminal.push((cidr.clone(), format!("the network already belongs to node {owner}")));
            } else if !routes_to(&net).iter().any(|route| is_up_to_date(route, node)) {
                state.needs.push(plan.changes.len());
                plan.changes.push(RouteChange::Set(RouteSpec {
                    destination: net,
                    instance: node.instance.clone(),
                    addresses: node.addresses.clone(),
                    name_hint: node.uid.clone(),
                }));
            }
        }
        let id = node.instance.provider_id.as_deref();
        state.without_pod_cidrs = node.pod_cidrs.is_empty();
        let has_route = id.is_some_and(|id| to_instance.contains(id)) || to_node.contains(node.instance.node.as_str());
        plan.nodes.push((!state.without_pod_cidrs || has_route).then_some(state));
    }
    let mut removed = HashSet::new();
    for route in routes.iter().filter(|_| complete) {
        let net = route.destination.trunc();
        if !owners.contains_key(&net) && is_responsible(cluster, &net) && removed.insert(net) {
            plan.changes.push(RouteChange::Remove(route.clone()));
        }
    }
    plan
}
