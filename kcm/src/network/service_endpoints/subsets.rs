//! The canonical form of subsets, regardless of the order of their addresses and ports.
//!
//! Upstream: pkg/api/v1/endpoints, RepackSubsets.

use std::collections::{BTreeMap, HashMap};

use kinds::Uid;
use kinds::endpoint::{Port, Target};
use kinds::endpoints::{Address, Subset};
use kinds::ip::Ip;

/// An address on a port, or on none, that is ready or not.
pub type Reachable = (Address, Option<Port>, bool);

/// Returns the fields by which two addresses are the same one.
pub fn identity(address: &Address) -> (&Ip, Option<&Uid>) {
    (&address.ip, address.target.as_ref().map(Target::uid))
}

/// Returns all combinations of addresses and ports of subsets.
pub fn unpack(subsets: &[Subset]) -> Vec<Reachable> {
    let mut all = Vec::new();
    for subset in subsets {
        let ports: Vec<Option<Port>> = match &subset.ports[..] {
            [] => vec![None],
            ports => ports.iter().cloned().map(Some).collect(),
        };
        for port in ports {
            for (list, ready) in [(&subset.ready, true), (&subset.not_ready, false)] {
                all.extend(list.iter().map(|address| (address.clone(), port.clone(), ready)));
            }
        }
    }
    all
}

/// Returns subsets in canonical form: ports with the same addresses share a subset, and everything is sorted. Of
/// duplicate addresses the first counts; an address that is not ready once is not ready.
pub fn pack(all: &[Reachable]) -> Vec<Subset> {
    let mut addresses: Vec<&Address> = all.iter().map(|(address, ..)| address).collect();
    addresses.sort_by_cached_key(|address| (address.ip.to_string(), identity(address).1.map(ToString::to_string)));
    addresses.dedup_by(|b, a| identity(a) == identity(b));
    let ranks: HashMap<_, usize> =
        addresses.iter().enumerate().map(|(rank, address)| (identity(address), rank)).collect();
    let mut by_port: HashMap<&Option<Port>, BTreeMap<usize, bool>> = HashMap::new();
    for (address, port, ready) in all {
        if let Some(rank) = ranks.get(&identity(address)) {
            *by_port.entry(port).or_default().entry(*rank).or_insert(true) &= ready;
        }
    }
    let mut by_addresses: HashMap<BTreeMap<usize, bool>, Vec<Port>> = HashMap::new();
    for (port, reached) in by_port {
        by_addresses.entry(reached).or_default().extend(port.clone());
    }
    let mut packed: Vec<(BTreeMap<usize, bool>, Vec<Port>)> = by_addresses.into_iter().collect();
    packed.iter_mut().for_each(|(_, ports)| ports.sort_unstable());
    packed.sort_unstable_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
    let subset = |(reached, ports): (BTreeMap<usize, bool>, Vec<Port>)| {
        let of = |wanted: bool| {
            let these = reached.iter().filter(|(_, ready)| **ready == wanted);
            these.map(|(rank, _)| addresses[*rank].clone()).collect()
        };
        Subset { ready: of(true), not_ready: of(false), ports }
    };
    packed.into_iter().map(subset).collect()
}

/// Subsets in canonical form.
pub fn repack(subsets: &[Subset]) -> Vec<Subset> {
    pack(&unpack(subsets))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(ip: &str, uid: &str) -> Address {
        let target = Target::Pod { namespace: "ns".into(), name: uid.into(), uid: Uid::parse(uid) };
        Address { ip: Ip::parse(ip), hostname: "".into(), node: None, target: Some(target).filter(|_| !uid.is_empty()) }
    }

    fn port(number: i32) -> Port {
        Port { name: number.to_string().into(), protocol: "TCP".into(), number: Some(number), app_protocol: None }
    }

    fn subset(ready: &[&str], not_ready: &[&str], ports: &[i32]) -> Subset {
        let list = |ips: &[&str]| ips.iter().map(|ip| address(ip, ip)).collect();
        Subset { ready: list(ready), not_ready: list(not_ready), ports: ports.iter().copied().map(port).collect() }
    }

    #[test]
    fn addresses_with_the_same_ports_share_a_subset() {
        for (given, expected) in [
            (vec![], vec![]),
            (vec![subset(&["b", "a"], &[], &[2, 1])], vec![subset(&["a", "b"], &[], &[1, 2])]),
            (vec![subset(&["a"], &[], &[1]), subset(&["b"], &[], &[1])], vec![subset(&["a", "b"], &[], &[1])]),
            (vec![subset(&["a"], &[], &[1]), subset(&["a"], &[], &[2])], vec![subset(&["a"], &[], &[1, 2])]),
            (
                vec![subset(&["a", "b"], &[], &[1]), subset(&["a"], &[], &[2])],
                vec![subset(&["a", "b"], &[], &[1]), subset(&["a"], &[], &[2])],
            ),
            (vec![subset(&["a"], &["a"], &[1])], vec![subset(&[], &["a"], &[1])]),
            (
                vec![subset(&["a"], &[], &[1]), subset(&[], &["a"], &[2])],
                vec![subset(&["a"], &[], &[1]), subset(&[], &["a"], &[2])],
            ),
            (vec![subset(&["a"], &["b"], &[])], vec![subset(&["a"], &["b"], &[])]),
            (vec![subset(&[], &[], &[1])], vec![]),
        ] {
            let packed = repack(&given);
            assert_eq!(packed, expected, "{given:?}");
            assert_eq!(repack(&packed), packed, "canonical");
        }
    }

    #[test]
    fn one_ip_of_two_objects_is_two_addresses() {
        let all = [(address("a", "x"), None, true), (address("a", "y"), None, true), (address("a", ""), None, true)];
        assert_eq!(pack(&all)[0].ready.len(), 3);
    }
}
