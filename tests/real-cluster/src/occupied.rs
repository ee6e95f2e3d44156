//! IPv4 ranges that this machine uses already: a cluster must get others.

use std::fmt;
use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::command;

/// Routes with shorter prefixes are ignored: default routes, or the two halves of a default route that VPNs set. More
/// specific routes may be added next to them.
const MIN_PREFIX_LENGTH: u8 = 8;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    address: Ipv4Addr,
    prefix: u8,
}

impl Range {
    /// Returns the range of 256 addresses that an address is in.
    pub fn around(address: Ipv4Addr) -> Self {
        Self { address, prefix: 24 }
    }

    /// Returns the first address that a host can have.
    pub fn first(self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.address) | 1)
    }

    /// Parses an address, or a range in CIDR notation.
    fn parse(text: &str) -> Option<Self> {
        let (address, prefix) = text.split_once('/').unwrap_or((text, "32"));
        let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
        Some(Self { address: address.parse().ok()?, prefix })
    }

    fn overlaps(self, other: Self) -> bool {
        let bits = u32::from(self.prefix.min(other.prefix));
        let differing = u32::from(self.address) ^ u32::from(other.address);
        bits == 0 || differing >> (32 - bits) == 0
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// A range and the device that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Occupied {
    range: Range,
    device: String,
    /// A more specific route may replace this one for a part of its addresses. False for the machine's own networks,
    /// and for routes of other tables, which may precede the main table.
    may_be_hidden: bool,
}

/// The suitability of a cluster's index, which determines its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fit {
    /// No other range overlaps.
    Free,
    /// Routes to other networks overlap, such as those of a VPN: the cluster hides a part of them.
    Hiding,
    /// The addresses cannot be used.
    Conflict,
}

impl fmt::Display for Occupied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the device {}", self.range, self.device)
    }
}

/// Returns the ranges of this machine's addresses and routes.
///
/// # Errors
/// When `ip` fails.
pub fn of_machine() -> Result<Vec<Occupied>> {
    let addresses = command::run("ip", &["-json", "-4", "address"])?;
    let routes = command::run("ip", &["-json", "-4", "route", "show", "table", "all"])?;
    Ok([parse_addresses(&addresses)?, parse_routes(&routes)?].concat())
}

/// Compares wanted ranges with occupied ones. Returns the worst overlap too, if there is one.
pub fn fit<'a>(wanted: &[Range], occupied: &'a [Occupied]) -> (Fit, Option<(Range, &'a Occupied)>) {
    let pairs = wanted.iter().flat_map(|range| occupied.iter().map(move |other| (*range, other)));
    let overlapping = pairs.filter(|(range, other)| range.overlaps(other.range));
    let rated = overlapping.map(|pair| (if pair.1.is_hidden_by(pair.0) { Fit::Hiding } else { Fit::Conflict }, pair));
    let worst = rated.reduce(|worst, next| if next.0 > worst.0 { next } else { worst });
    worst.map_or((Fit::Free, None), |(fit, pair)| (fit, Some(pair)))
}

impl Occupied {
    /// Returns true if a route to `range` takes precedence over this one.
    fn is_hidden_by(&self, range: Range) -> bool {
        self.may_be_hidden && range.prefix > self.range.prefix
    }
}

/// Reads the output of `ip -json address`.
fn parse_addresses(json: &str) -> Result<Vec<Occupied>> {
    let mut found = Vec::new();
    for device in list(json)? {
        for own in device["addr_info"].as_array().into_iter().flatten() {
            let (Some(address), Some(prefix)) = (own["local"].as_str(), own["prefixlen"].as_u64()) else { continue };
            found.extend(occupied(&format!("{address}/{prefix}"), &device["ifname"], false));
        }
    }
    Ok(found)
}

/// Reads the output of `ip -json route`.
fn parse_routes(json: &str) -> Result<Vec<Occupied>> {
    let routes = list(json)?;
    Ok(routes
        .iter()
        .filter_map(|route| occupied(route["dst"].as_str()?, &route["dev"], may_be_hidden(route)))
        .collect())
}

/// Returns true if a route may be hidden: it is in the main table, and leads to a network that this machine is not part
/// of. Routes to the machine's own networks have the protocol `kernel`.
fn may_be_hidden(route: &Value) -> bool {
    let is_main = route["table"].is_null() || route["table"] == "main";
    let is_unicast = route["type"].is_null() || route["type"] == "unicast";
    is_main && is_unicast && route["protocol"] != "kernel"
}

fn list(json: &str) -> Result<Vec<Value>> {
    if json.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(json).context("read the output of ip")
}

fn occupied(range: &str, device: &Value, may_be_hidden: bool) -> Option<Occupied> {
    let range = Range::parse(range).filter(|range| range.prefix >= MIN_PREFIX_LENGTH)?;
    Some(Occupied { range, device: device.as_str().unwrap_or("(none)").to_owned(), may_be_hidden })
}

/// Returns ranges of devices, and routes of the main table, for tests: each is a range and a device.
#[cfg(test)]
pub fn testing(addresses: &[(&str, &str)], routes: &[(&str, &str)]) -> Vec<Occupied> {
    let own = addresses.iter().filter_map(|(range, device)| occupied(range, &Value::from(*device), false));
    own.chain(routes.iter().filter_map(|(range, device)| occupied(range, &Value::from(*device), true))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> Range {
        Range::parse(text).unwrap()
    }

    #[test]
    fn ranges_overlap_when_the_shorter_prefix_is_the_same() {
        for (one, other, expected) in [
            ("172.30.0.0/24", "172.30.0.7", true),
            ("172.30.0.0/24", "172.30.1.0/24", false),
            ("172.30.3.0/24", "172.16.0.0/12", true),
            ("172.30.3.0/24", "172.30.0.1/16", true),
            ("198.18.0.0/24", "198.19.0.0/16", false),
            ("198.18.0.0/24", "0.0.0.0/0", true),
        ] {
            assert_eq!(range(one).overlaps(range(other)), expected, "{one} {other}");
            assert_eq!(range(other).overlaps(range(one)), expected, "{other} {one}");
        }
        assert_eq!(Range::parse("default"), None);
        assert_eq!(Range::parse("10.0.0.0/33"), None);
    }

    #[test]
    fn addresses_and_routes_are_read_without_default_routes() {
        let addresses = r#"[{"ifname": "lo", "addr_info": [{"family": "inet", "local": "127.0.0.1", "prefixlen": 8}]},
            {}, {"ifname": "docker0", "addr_info": [{"local": "172.30.0.1", "prefixlen": 16}]}]"#;
        let routes = r#"[{"dst": "default", "dev": "eth0"}, {"dst": "0.0.0.0/1", "dev": "tun0"},
            {"type": "blackhole", "dst": "198.18.4.0/22"}, {"type": "local", "dst": "10.0.0.5", "dev": "eth0"}]"#;
        let found = [parse_addresses(addresses).unwrap(), parse_routes(routes).unwrap()].concat();
        let shown: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "127.0.0.1/8 of the device lo",
                "172.30.0.1/16 of the device docker0",
                "198.18.4.0/22 of the device (none)",
                "10.0.0.5/32 of the device eth0"
            ]
        );
        assert!(parse_routes("").unwrap().is_empty());
        assert!(parse_routes("Error").is_err());
    }

    #[test]
    fn fit_is_rated_by_the_worst_overlap() {
        let routes = r#"[{"dst": "172.16.0.0/12", "gateway": "10.8.0.1", "dev": "tun0", "protocol": "static"},
            {"dst": "198.18.0.0/15", "dev": "wg0", "scope": "link", "table": "51820"},
            {"dst": "10.213.4.0/24", "gateway": "10.8.0.1", "dev": "tun0"},
            {"dst": "10.213.5.0/22", "dev": "virbr0", "protocol": "kernel"}]"#;
        let occupied = parse_routes(routes).unwrap();
        for (wanted, expected, device) in [
            (&["192.0.2.0/24"][..], Fit::Free, None),
            (&["192.0.2.0/24", "172.30.2.0/24"], Fit::Hiding, Some("tun0")),
            (&["172.30.2.0/24", "198.18.2.0/24"], Fit::Conflict, Some("wg0")),
            (&["10.213.4.0/24"], Fit::Conflict, Some("tun0")),
            (&["10.213.6.0/24"], Fit::Conflict, Some("virbr0")),
        ] {
            let ranges: Vec<Range> = wanted.iter().map(|text| range(text)).collect();
            let (fit, overlap) = fit(&ranges, &occupied);
            assert_eq!((fit, overlap.map(|(_, other)| other.device.as_str())), (expected, device), "{wanted:?}");
        }
        let own =
            parse_addresses(r#"[{"ifname": "docker0", "addr_info": [{"local": "172.17.0.1", "prefixlen": 12}]}]"#);
        assert_eq!(fit(&[range("172.30.2.0/24")], &own.unwrap()).0, Fit::Conflict);
    }
}
