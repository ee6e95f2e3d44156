//! Validation of the flags for address ranges. Upstream: cmd/kube-controller-manager/app, core.go.

use ipnet::IpNet;

use crate::flags::Values;

/// Maximum difference between the prefix lengths of a node's IPv6 range and the cluster's: 65,536 nodes.
const MAX_V6_PREFIX_DIFFERENCE: u8 = 16;

/// A range of the cluster, and the size of each node's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// The cluster's range.
    pub range: IpNet,
    /// Prefix length of a node's part of it.
    pub prefix: u8,
}

/// All ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// One range, or one of each family, in the order in which nodes get them.
    pub shares: Vec<Share>,
    /// Ranges of services: no node gets a part of them.
    pub services: Vec<IpNet>,
    /// Invalid parts of the flag for ranges of services. Upstream only warns about them.
    pub ignored_services: Vec<String>,
}

/// An invalid flag.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("--{flag}={value}: {problem}")]
pub struct ConfigError {
    flag: &'static str,
    value: String,
    problem: String,
}

/// Reads the flags; `None` if nodes get no ranges.
///
/// # Errors
/// When `--cluster-cidr` is missing or invalid, or ranges or sizes contradict each other. The error names the flag.
pub fn read(values: &Values) -> Result<Option<Config>, ConfigError> {
    if !values.get_bool("allocate-node-cidrs") {
        return Ok(None);
    }
    let wrong = |flag: &'static str, problem: String| {
        let value =
            if flag.starts_with("node-") { values.get_i64(flag).to_string() } else { values.get_str(flag).into() };
        ConfigError { flag, value, problem }
    };
    let clusters = ranges(values.get_str("cluster-cidr")).map_err(|problem| wrong("cluster-cidr", problem))?;
    if clusters.is_empty() {
        return Err(wrong("cluster-cidr", "--allocate-node-cidrs requires a range, e.g. 10.0.0.0/16".into()));
    }
    let (services, ignored_services) = services(values.get_str("service-cluster-ip-range"));
    let services = within_limits(services).map_err(|problem| wrong("service-cluster-ip-range", problem))?;
    let (size, v4, v6) = ("node-cidr-mask-size", "node-cidr-mask-size-ipv4", "node-cidr-mask-size-ipv6");
    let set = |flag: &'static str| values.get_i64(flag) != 0;
    let only = |problem: &str, flag| Err(wrong(flag, problem.to_owned()));
    let [first, ref more @ ..] = clusters[..] else { unreachable!("there is a range") };
    if !more.is_empty() && set(size) {
        return only(
            "cannot be used with two ranges: use --node-cidr-mask-size-ipv4 and --node-cidr-mask-size-ipv6",
            size,
        );
    }
    if set(size) && (set(v4) || set(v6)) {
        return only(
            "cannot be combined with --node-cidr-mask-size-ipv4 or --node-cidr-mask-size-ipv6: remove it",
            size,
        );
    }
    if more.is_empty() && is_v6(first) && set(v4) {
        return only("the only range is IPv6: use --node-cidr-mask-size-ipv6", v4);
    }
    if more.is_empty() && !is_v6(first) && set(v6) {
        return only("the only range is IPv4: use --node-cidr-mask-size-ipv4", v6);
    }
    let shares = clusters.iter().map(|range| {
        let (own, usual) = if is_v6(*range) { (v6, 64) } else { (v4, 24) };
        let flag = if set(size) { size } else { own };
        let prefix = if set(flag) { values.get_i64(flag) } else { usual };
        let prefix = u8::try_from(prefix).ok().filter(|prefix| *prefix <= range.max_prefix_len());
        match prefix {
            None => Err(wrong(flag, format!("is not a valid prefix length for {range}"))),
            Some(prefix) if prefix < range.prefix_len() => {
                Err(wrong(flag, format!("a node's range (/{prefix}) would be larger than the cluster's, {range}")))
            }
            Some(prefix) if is_v6(*range) && prefix - range.prefix_len() > MAX_V6_PREFIX_DIFFERENCE => {
                let max = range.prefix_len() + MAX_V6_PREFIX_DIFFERENCE;
                Err(wrong(
                    flag,
                    format!("{range} has too many ranges of /{prefix}: use a prefix length of at most {max}"),
                ))
            }
            Some(prefix) => Ok(Share { range: *range, prefix }),
        }
    });
    Ok(Some(Config { shares: shares.collect::<Result<_, _>>()?, services, ignored_services }))
}

fn is_v6(range: IpNet) -> bool {
    matches!(range, IpNet::V6(_))
}

/// Returns at most one range of each family.
fn ranges(text: &str) -> Result<Vec<IpNet>, String> {
    let ranges =
        parts(text).map(|part| range(part).ok_or_else(|| format!("{part:?} is not a CIDR such as 10.0.0.0/16")));
    within_limits(ranges.collect::<Result<_, _>>()?)
}

/// Returns the ranges of services, and the invalid parts of the flag.
fn services(text: &str) -> (Vec<IpNet>, Vec<String>) {
    let mut ignored = Vec::new();
    let ranges = parts(text).filter_map(|part| {
        let range = range(part);
        if range.is_none() {
            ignored.push(part.to_owned());
        }
        range
    });
    (ranges.collect(), ignored)
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn within_limits(ranges: Vec<IpNet>) -> Result<Vec<IpNet>, String> {
    match ranges[..] {
        [a, b] if is_v6(a) == is_v6(b) => Err("two ranges must be one of IPv4 and one of IPv6".into()),
        [_, _, _, ..] => Err(format!("at most two ranges, one of each family, but there are {}", ranges.len())),
        _ => Ok(ranges),
    }
}

/// Parses a range. Its numbers may have leading zeros, as in upstream.
pub fn range(text: &str) -> Option<IpNet> {
    let (address, prefix) = text.split_once('/')?;
    let address = if address.contains(':') {
        address.to_owned()
    } else {
        address.split('.').map(without_leading_zeros).collect::<Vec<_>>().join(".")
    };
    format!("{address}/{}", without_leading_zeros(prefix)).parse::<IpNet>().ok().map(|range| range.trunc())
}

fn without_leading_zeros(number: &str) -> &str {
    match number.trim_start_matches('0') {
        "" if !number.is_empty() => "0",
        significant => significant,
    }
}
