//! The canonical form of subsets, regardless of the order of their addresses and ports.
//!
//! Upstream: pkg/api/v1/endpoints, RepackSubsets.

use std::collections::HashMap;

use kinds::Uid;
use kinds::endpoint::{Port, Target};
use kinds::endpoints::{Address, Subset};
use kinds::ip::Ip;

/// Maximum number of addresses in overlapping subsets, counted once for each set of ports. An Endpoints object of 1.5
/// MB with 20,000 addresses on each of 20,000 ports must not be expanded to all combinations.
const MAX_ADDRESSES: usize = 1 << 20;

/// The error for subsets that overlap so much that their canonical form is too large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge;

/// The addresses of a subset, each with its rank (its index in the result of [`distinct`]) and its readiness.
type RankedAddresses = Vec<(usize, bool)>;

/// Returns the identity of an address: two addresses with equal identities are the same address.
pub fn identity(address: &Address) -> (&Ip, Option<&Uid>) {
    (&address.ip, address.target.as_ref().map(Target::uid))
}

/// Returns ports in sorted order. There may be thousands of lists of thousands of ports. Equal lists are found by a
/// look-up of their sorted form, and never compared in pairs.
pub fn sorted_ports(ports: &[Port]) -> Vec<Port> {
    let mut ports: Vec<Port> = ports.to_vec();
    ports.sort_unstable();
    ports
}

/// Returns the distinct addresses of subsets, sorted. Only the first of duplicate addresses is returned.
fn distinct(subsets: &[Subset]) -> Vec<&Address> {
    let mut addresses: Vec<&Address> =
        subsets.iter().flat_map(|subset| subset.ready.iter().chain(&subset.not_ready)).collect();
    addresses.sort_by_cached_key(|address| (address.ip.to_string(), identity(address).1.map(ToString::to_string)));
    addresses.dedup_by(|b, a| identity(a) == identity(b));
    addresses
}

/// Returns each address once. An address that any entry lists as not ready is not ready.
fn merged(mut reached: RankedAddresses) -> RankedAddresses {
    reached.sort_unstable();
    // An entry that is not ready precedes an entry that is ready.
    reached.dedup_by_key(|(rank, _)| *rank);
    reached
}

/// Groups ports by the set of subsets that contain them. A subset without ports counts as one with the single port
/// `None`.
fn ports_by_subsets(subsets: &[Subset]) -> HashMap<Vec<usize>, Vec<Option<&Port>>> {
    let mut sources: HashMap<Option<&Port>, Vec<usize>> = HashMap::new();
    for (at, subset) in subsets.iter().enumerate() {
        if subset.ready.is_empty() && subset.not_ready.is_empty() {
            continue;
        }
        let none = subset.ports.is_empty().then_some(None);
        for port in subset.ports.iter().map(Some).chain(none) {
            let sources = sources.entry(port).or_default();
            if sources.last() != Some(&at) {
                sources.push(at);
            }
        }
    }
    let mut ports: HashMap<Vec<usize>, Vec<Option<&Port>>> = HashMap::new();
    for (port, sources) in sources {
        ports.entry(sources).or_default().push(port);
    }
    ports
}

/// Returns subsets in canonical form: ports with the same addresses share a subset, and everything is sorted. The first
/// of duplicate addresses counts; an address that any subset lists as not ready is not ready.
///
/// Addresses and ports are not combined: the cost is linear unless subsets overlap.
///
/// # Errors
/// When overlapping subsets have more than 2^20 addresses.
pub fn repack(subsets: &[Subset]) -> Result<Vec<Subset>, TooLarge> {
    let addresses = distinct(subsets);
    let ranks: HashMap<_, usize> =
        addresses.iter().enumerate().map(|(rank, address)| (identity(address), rank)).collect();
    let reached = |subset: &Subset| -> RankedAddresses {
        let of = |list: &[Address], ready| -> RankedAddresses {
            list.iter().filter_map(|address| Some((*ranks.get(&identity(address))?, ready))).collect()
        };
        merged([of(&subset.ready, true), of(&subset.not_ready, false)].concat())
    };
    let reached: Vec<RankedAddresses> = subsets.iter().map(reached).collect();
    let mut left = MAX_ADDRESSES;
    let mut by_addresses: HashMap<RankedAddresses, Vec<Port>> = HashMap::new();
    for (sources, ports) in ports_by_subsets(subsets) {
        let all = match &sources[..] {
            [only] => reached[*only].clone(),
            sources => {
                let count = sources.iter().map(|at| reached[*at].len()).sum();
                left = left.checked_sub(count).ok_or(TooLarge)?;
                merged(sources.iter().flat_map(|at| reached[*at].iter().copied()).collect())
            }
        };
        by_addresses.entry(all).or_default().extend(ports.into_iter().flatten().cloned());
    }
    let mut packed: Vec<(RankedAddresses, Vec<Port>)> = by_addresses.into_iter().collect();
    packed.iter_mut().for_each(|(_, ports)| ports.sort_unstable());
    packed.sort_unstable_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
    let subset = |(reached, ports): (RankedAddresses, Vec<Port>)| {
        let of = |wanted: bool| {
            let these = reached.iter().filter(|(_, ready)| *ready == wanted);
            these.map(|(rank, _)| addresses[*rank].clone()).collect()
        };
        Subset { ready: of(true), not_ready: of(false), ports }
    };
    Ok(packed.into_iter().map(subset).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

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
            let packed = repack(&given).expect("few addresses");
            assert_eq!(packed, expected, "{given:?}");
            assert_eq!(repack(&packed).expect("few addresses"), packed, "canonical");
        }
    }

    #[test]
    fn one_ip_of_two_objects_is_two_addresses() {
        let ready = vec![address("a", "x"), address("a", "y"), address("a", "")];
        let packed = repack(&[Subset { ready, not_ready: Vec::new(), ports: Vec::new() }]).expect("few addresses");
        assert_eq!(packed[0].ready.len(), 3);
    }

    #[test]
    fn many_addresses_on_many_ports_are_not_multiplied_out() {
        let ips: Vec<String> = (0..20_000).map(|number| format!("10.1.{}.{}", number / 256, number % 256)).collect();
        let ips: Vec<&str> = ips.iter().map(String::as_str).collect();
        let ports: Vec<i32> = (1..=20_000).collect();
        let packed = repack(&[subset(&ips, &[], &ports)]).expect("one subset");
        assert_eq!((packed.len(), packed[0].ready.len(), packed[0].ports.len()), (1, 20_000, 20_000));
        // Each port has all addresses of the large subset and one of its own.
        let own: Vec<String> = (0..200).map(|number| format!("10.9.0.{number}")).collect();
        let small = ports.iter().zip(&own).map(|(port, ip)| subset(&[ip], &[], &[*port]));
        let overlapping: Vec<Subset> = small.chain([subset(&ips, &[], &ports)]).collect();
        assert_eq!(repack(&overlapping), Err(TooLarge));
    }

    /// Combines each address with each port, as upstream does.
    fn multiplied_out(subsets: &[Subset]) -> Vec<Subset> {
        let addresses = distinct(subsets);
        let rank = |address: &Address| addresses.iter().position(|other| identity(other) == identity(address));
        let mut by_port: BTreeMap<Option<Port>, BTreeMap<usize, bool>> = BTreeMap::new();
        for subset in subsets {
            let none = subset.ports.is_empty().then_some(None);
            for port in subset.ports.iter().cloned().map(Some).chain(none) {
                for (list, ready) in [(&subset.ready, true), (&subset.not_ready, false)] {
                    for address in list {
                        let reached = by_port.entry(port.clone()).or_default();
                        *reached.entry(rank(address).expect("known")).or_insert(true) &= ready;
                    }
                }
            }
        }
        let mut by_addresses: BTreeMap<BTreeMap<usize, bool>, Vec<Port>> = BTreeMap::new();
        for (port, reached) in by_port {
            by_addresses.entry(reached).or_default().extend(port);
        }
        let mut packed: Vec<_> = by_addresses.into_iter().collect();
        packed.sort_by(|a, b| (&a.1, &a.0).cmp(&(&b.1, &b.0)));
        let subset = |(reached, ports): (BTreeMap<usize, bool>, Vec<Port>)| {
            let of = |wanted| {
                let these = reached.iter().filter(|(_, ready)| **ready == wanted);
                these.map(|(rank, _)| addresses[*rank].clone()).collect()
            };
            Subset { ready: of(true), not_ready: of(false), ports }
        };
        packed.into_iter().map(subset).collect()
    }

    proptest! {
        #[test]
        fn canonical_form_equals_that_of_all_combinations(
            given in proptest::collection::vec(
                (
                    proptest::collection::vec(0_usize..4, 0..4),
                    proptest::collection::vec(0_usize..4, 0..3),
                    proptest::collection::vec(1_i32..4, 0..4),
                ),
                0..5,
            ),
        ) {
            let ips = ["a", "b", "c", "d"];
            let of = |list: &[usize]| list.iter().map(|at| ips[*at]).collect::<Vec<_>>();
            let subsets: Vec<Subset> =
                given.iter().map(|(ready, not, ports)| subset(&of(ready), &of(not), ports)).collect();
            prop_assert_eq!(repack(&subsets).expect("few addresses"), multiplied_out(&subsets));
        }
    }
}
