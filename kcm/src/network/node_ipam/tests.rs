//! Tables of ranges and flags, and random histories of nodes.

use std::collections::HashMap;
use std::sync::Arc;

use ipnet::IpNet;
use kinds::schema::{node as n, node_spec, object_meta};
use kinds::wire::Put;
use kinds::{Decode, Kind, Node, Sections, Str, Uid};
use proptest::prelude::*;

use super::config::{Config, Share, read};
use super::pool::{Pool, PoolError};
use super::range::Range;
use crate::flags::{Invocation, parse};

fn net(text: &str) -> IpNet {
    text.parse().expect("a range")
}

fn share(range: &str, prefix: u8) -> Share {
    Share { range: net(range), prefix }
}

pub(super) fn config(shares: &[(&str, u8)], services: &[&str]) -> Config {
    Config {
        shares: shares.iter().map(|(range, prefix)| share(range, *prefix)).collect(),
        services: services.iter().map(|service| net(service)).collect(),
        ignored_services: Vec::new(),
    }
}

pub(super) fn context() -> Decode {
    Decode { interner: Arc::default(), sections: Sections::default() }
}

/// Returns an encoded node.
pub(super) fn encoded_node((name, uid, version): (&str, &str, u64), ranges: &[&str]) -> Vec<u8> {
    let mut object = Vec::new();
    object.put_message(n::METADATA, |meta| {
        meta.put_str(object_meta::NAME, name);
        meta.put_str(object_meta::UID, uid);
        meta.put_str(object_meta::RESOURCE_VERSION, &version.to_string());
    });
    object.put_message(n::SPEC, |spec| ranges.iter().for_each(|range| spec.put_str(node_spec::POD_CIDRS, range)));
    object
}

fn node(name: &str, uid: &str, ranges: &[&str]) -> Node {
    Node::decode(&context(), &encoded_node((name, uid, 1), ranges)).expect("well-formed")
}

fn allocate(pool: &mut Pool, name: &str) -> Result<Vec<String>, PoolError> {
    let ranges = pool.reserve(&Str::from(name), &Uid::parse(name))?;
    Ok(ranges.iter().map(ToString::to_string).collect())
}

fn release(pool: &mut Pool, name: &str) {
    pool.release(&Str::from(name), &Uid::parse(name));
}

#[test]
fn part_has_the_range_of_its_index() {
    for (range, prefix, index, expected) in [
        ("127.0.0.0/16", 24, 0, "127.0.0.0/24"),
        ("127.123.0.0/16", 24, 9, "127.123.9.0/24"),
        ("192.168.8.0/24", 28, 15, "192.168.8.240/28"),
        ("10.0.0.0/24", 24, 0, "10.0.0.0/24"),
        ("10.0.0.0/31", 32, 1, "10.0.0.1/32"),
        ("beef:1234::/48", 64, 0, "beef:1234::/64"),
        ("beef:1234::/48", 64, 0xffff, "beef:1234:0:ffff::/64"),
        ("beef::/56", 72, 0x1ff, "beef:0:0:1:ff00::/72"),
        ("beef::/64", 72, 1, "beef::100:0:0:0/72"),
        ("beef::/112", 128, 0xab, "beef::ab/128"),
    ] {
        let built = Range::new(share(range, prefix), &[]);
        assert_eq!(built.part(index), net(expected), "{range} {prefix} {index}");
        assert_eq!(built.parts(net(expected)), Some((index, index)), "{expected} of {range}");
    }
}

#[test]
fn overlapping_parts_of_other_ranges_are_found() {
    for (range, prefix, other, expected) in [
        ("10.0.0.0/16", 24, "10.0.4.0/22", Some((4, 7))),
        ("10.0.0.0/16", 24, "10.0.4.128/25", Some((4, 4))),
        ("10.0.0.0/16", 24, "10.0.0.0/16", Some((0, 255))),
        ("10.0.0.0/16", 24, "10.0.0.0/8", Some((0, 255))),
        ("10.0.0.0/16", 24, "10.1.0.0/24", None),
        ("10.0.0.0/16", 24, "::/0", None),
        ("2001:db8::/48", 64, "2001:db8:0:2::/63", Some((2, 3))),
        ("2001:db8::/48", 64, "2001:db9::/64", None),
    ] {
        assert_eq!(Range::new(share(range, prefix), &[]).parts(net(other)), expected, "{other} of {range}");
    }
}

#[test]
fn ranges_of_services_are_not_allocated() {
    for (service, expected) in [
        ("10.10.0.0/24", Some("10.10.1.0/24")),
        ("10.10.0.0/23", Some("10.10.2.0/24")),
        ("10.10.1.0/24", Some("10.10.0.0/24")),
        ("10.10.0.0/22", None),
        ("10.0.0.0/8", None),
        ("10.11.0.0/24", Some("10.10.0.0/24")),
    ] {
        let first = Range::new(share("10.10.0.0/22", 24), &[net(service)]).take();
        assert_eq!(first, expected.map(net), "{service}");
    }
}

#[test]
fn parts_for_services_are_counted_once() {
    let mut range = Range::new(share("10.10.0.0/22", 24), &[net("10.10.0.0/23")]);
    assert_eq!((range.fill(), range.counts().allocations), ((4, 2), 2));
    range.occupy((0, 0));
    range.occupy((3, 3));
    assert_eq!((range.fill(), range.counts().allocations), ((4, 3), 3));
    assert_eq!((range.take(), range.counts().tries), (Some(net("10.10.2.0/24")), 2));
    assert!(range.is_full());
    range.release((0, 0));
    assert_eq!((range.fill(), range.counts().releases), ((4, 4), 0), "services still have it");
    range.release((3, 3));
    assert_eq!((range.fill(), range.counts().releases), ((4, 3), 1));
}

#[test]
fn freed_part_is_allocated_last() {
    let mut pool = Pool::new(&config(&[("10.0.0.0/22", 24)], &[]));
    let one = |text: &str| Ok(vec![text.to_owned()]);
    assert_eq!(allocate(&mut pool, "a"), one("10.0.0.0/24"));
    assert_eq!(allocate(&mut pool, "b"), one("10.0.1.0/24"));
    release(&mut pool, "a");
    assert_eq!(allocate(&mut pool, "c"), one("10.0.2.0/24"));
    assert_eq!(allocate(&mut pool, "c"), one("10.0.2.0/24"), "another call returns the same range");
    assert_eq!(allocate(&mut pool, "d"), one("10.0.3.0/24"));
    assert_eq!(allocate(&mut pool, "e"), one("10.0.0.0/24"));
    assert_eq!(allocate(&mut pool, "f"), Err(PoolError::Exhausted(0)));
    release(&mut pool, "d");
    assert_eq!(allocate(&mut pool, "f"), one("10.0.3.0/24"));
}

#[test]
fn exhausted_family_does_not_use_up_the_other() {
    let mut pool = Pool::new(&config(&[("10.0.0.0/22", 24), ("fd00::/63", 64)], &[]));
    assert_eq!(allocate(&mut pool, "a"), Ok(vec!["10.0.0.0/24".to_owned(), "fd00::/64".to_owned()]));
    assert_eq!(allocate(&mut pool, "b"), Ok(vec!["10.0.1.0/24".to_owned(), "fd00:0:0:1::/64".to_owned()]));
    for _ in 0..10 {
        assert_eq!(allocate(&mut pool, "c"), Err(PoolError::Exhausted(1)));
    }
    release(&mut pool, "a");
    let both = allocate(&mut pool, "c").expect("one of each family is free again");
    assert_eq!(both[1], "fd00::/64");
}

#[test]
fn ranges_of_nodes_are_recorded() {
    let mut pool = Pool::new(&config(&[("10.0.0.0/22", 24)], &[]));
    pool.record(&node("a", "a", &["10.0.0.0/24"])).expect("inside");
    pool.record(&node("a", "a", &["10.0.0.0/24"])).expect("recording again changes nothing");
    pool.record(&node("twin", "twin", &["10.0.0.0/24"])).expect("by mistake");
    release(&mut pool, "twin");
    assert_eq!(allocate(&mut pool, "b").expect("free"), ["10.0.1.0/24"], "a still has its range");
    // Another client wrote first.
    pool.record(&node("b", "b", &["10.0.3.0/24"])).expect("inside");
    assert_eq!(allocate(&mut pool, "c").expect("free"), ["10.0.2.0/24"]);
    assert_eq!(allocate(&mut pool, "d").expect("free again"), ["10.0.1.0/24"]);
    // Another node has the name now.
    pool.record(&node("c", "new", &[])).expect("no range to record");
    assert_eq!(allocate(&mut pool, "e").expect("free again"), ["10.0.2.0/24"]);

    pool.record(&node("old", "old", &["010.0.003.0/024"])).expect("leading zeros, as API servers accepted them");
    assert_eq!(allocate(&mut pool, "f"), Err(PoolError::Exhausted(0)), "the range of b and of the old node");
    release(&mut pool, "old");

    let problem = pool.record(&node("x", "x", &["10.9.0.0/24"])).expect_err("outside");
    assert_eq!(problem.to_string(), "spec.podCIDRs[0] is 10.9.0.0/24, which is not part of --cluster-cidr");
    let problem = pool.record(&node("y", "y", &["ten"])).expect_err("no range");
    assert_eq!(problem.to_string(), "spec.podCIDRs[0] is \"ten\", which is not a CIDR");
    let problem = pool.record(&node("z", "z", &["10.0.0.0/24", "fd00::/64"])).expect_err("one too many");
    assert_eq!(problem.to_string(), "spec.podCIDRs[1] is fd00::/64, which is not part of --cluster-cidr");
}

fn flags(line: &str) -> Result<Option<Config>, String> {
    match parse(line.split_whitespace().map(str::to_owned)) {
        Ok(Invocation::Run(options)) => read(&options.values).map_err(|error| error.to_string()),
        other => panic!("{line}: {other:?}"),
    }
}

#[test]
fn flags_determine_ranges_and_sizes() {
    let on = "--allocate-node-cidrs";
    for (line, shares, services) in [
        (format!("{on} --cluster-cidr=10.0.0.0/16"), vec![("10.0.0.0/16", 24)], vec![]),
        (format!("{on} --cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=25"), vec![("10.0.0.0/16", 25)], vec![]),
        (format!("{on} --cluster-cidr=10.0.0.0/16 --node-cidr-mask-size-ipv4=26"), vec![("10.0.0.0/16", 26)], vec![]),
        (format!("{on} --cluster-cidr=fd00::/48"), vec![("fd00::/48", 64)], vec![]),
        (format!("{on} --cluster-cidr=fd00::/56 --node-cidr-mask-size=72"), vec![("fd00::/56", 72)], vec![]),
        (
            format!(
                "{on} --cluster-cidr=fd00::/48,10.0.0.0/16 --node-cidr-mask-size-ipv4=22 --service-cluster-ip-range=10.96.0.0/12,fd01::/112"
            ),
            vec![("fd00::/48", 64), ("10.0.0.0/16", 22)],
            vec!["10.96.0.0/12", "fd01::/112"],
        ),
    ] {
        assert_eq!(flags(&line), Ok(Some(config(&shares, &services))), "{line}");
    }
    assert_eq!(flags("--cluster-cidr=10.0.0.0/16"), Ok(None));
}

#[test]
fn range_of_services_that_cannot_be_parsed_is_ignored() {
    let line = "--allocate-node-cidrs --cluster-cidr=010.0.0.0/16 --service-cluster-ip-range=";
    for (services, kept, ignored) in [
        ("10.096.0.0/12", &["10.96.0.0/12"][..], &[][..]),
        ("services", &[], &["services"]),
        ("10.96.0.0", &[], &["10.96.0.0"]),
        ("10..0.0/16,fd01::/112", &["fd01::/112"], &["10..0.0/16"]),
        ("10.96.0.0/33,fd01::/129", &[], &["10.96.0.0/33", "fd01::/129"]),
    ] {
        let ignored_services = ignored.iter().map(|part| (*part).to_owned()).collect();
        let expected = Config { ignored_services, ..config(&[("10.0.0.0/16", 24)], kept) };
        assert_eq!(flags(&format!("{line}{services}")), Ok(Some(expected)), "{services}");
    }
}

#[test]
fn flags_that_contradict_each_other_are_named() {
    for (line, expected) in [
        ("", "--cluster-cidr=: --allocate-node-cidrs requires a range, e.g. 10.0.0.0/16"),
        ("--cluster-cidr=ten", "--cluster-cidr=ten: \"ten\" is not a CIDR such as 10.0.0.0/16"),
        (
            "--cluster-cidr=10.0.0.0/16,10.1.0.0/16",
            "--cluster-cidr=10.0.0.0/16,10.1.0.0/16: two ranges must be one of IPv4 and one of IPv6",
        ),
        (
            "--cluster-cidr=10.0.0.0/16,fd00::/48,fd01::/48",
            "--cluster-cidr=10.0.0.0/16,fd00::/48,fd01::/48: at most two ranges, one of each family, but there are 3",
        ),
        (
            "--cluster-cidr=10.0.0.0/25",
            "--node-cidr-mask-size-ipv4=0: a node's range (/24) would be larger than the cluster's, 10.0.0.0/25",
        ),
        (
            "--cluster-cidr=fd00::/40",
            "--node-cidr-mask-size-ipv6=0: fd00::/40 has too many ranges of /64: use a prefix length of at most 56",
        ),
        (
            "--cluster-cidr=10.0.0.0/16,fd00::/48 --node-cidr-mask-size=24",
            "--node-cidr-mask-size=24: cannot be used with two ranges: use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6",
        ),
        (
            "--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=24 --node-cidr-mask-size-ipv4=24",
            "--node-cidr-mask-size=24: cannot be combined with --node-cidr-mask-size-ipv4 or --node-cidr-mask-size-ipv6: remove it",
        ),
        (
            "--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size-ipv6=64",
            "--node-cidr-mask-size-ipv6=64: the only range is IPv4: use --node-cidr-mask-size-ipv4",
        ),
        (
            "--cluster-cidr=fd00::/48 --node-cidr-mask-size-ipv4=24",
            "--node-cidr-mask-size-ipv4=24: the only range is IPv6: use --node-cidr-mask-size-ipv6",
        ),
        (
            "--cluster-cidr=10.0.0.0/16 --node-cidr-mask-size=33",
            "--node-cidr-mask-size=33: is not a valid prefix length for 10.0.0.0/16",
        ),
        (
            "--cluster-cidr=10.0.0.0/16 --service-cluster-ip-range=10.1.0.0/16,10.2.0.0/16",
            "--service-cluster-ip-range=10.1.0.0/16,10.2.0.0/16: two ranges must be one of IPv4 and one of IPv6",
        ),
    ] {
        assert_eq!(flags(&format!("--allocate-node-cidrs {line}")), Err(expected.to_owned()), "{line}");
    }
}

proptest! {
    /// For any order of allocations, retries and releases: no two nodes ever have the same part, no node has a part of
    /// a service range, and no node is refused while a part of each family is free.
    #[test]
    fn every_part_has_one_holder(steps in proptest::collection::vec((0u8..12, any::<bool>()), 1..200)) {
        let mut pool = Pool::new(&config(&[("10.0.0.0/21", 24), ("fd00::/61", 64)], &["10.0.2.0/23"]));
        let mut held: HashMap<u8, Vec<String>> = HashMap::new();
        for (name, is_allocation) in steps {
            let text = name.to_string();
            if !is_allocation {
                release(&mut pool, &text);
                held.remove(&name);
                continue;
            }
            match allocate(&mut pool, &text) {
                Ok(ranges) => {
                    prop_assert!(held.get(&name).is_none_or(|before| *before == ranges));
                    held.remove(&name);
                    for range in &ranges {
                        prop_assert!(!net("10.0.2.0/23").contains(&net(range)));
                        prop_assert!(held.values().flatten().all(|other| other != range));
                    }
                    held.insert(name, ranges);
                }
                // Eight parts of the first family, of which services have two, and eight of the second.
                Err(problem) => prop_assert_eq!((held.len(), problem), (6, PoolError::Exhausted(0))),
            }
        }
    }
}
