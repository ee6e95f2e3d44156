//! IP addresses as written in objects: a number if the spelling is canonical, else the text.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::intern::Str;

/// An address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4
    V4,
    /// IPv6
    V6,
}

impl Family {
    /// Returns the family's name in `spec.ipFamilies` of a Service and in `addressType` of an EndpointSlice.
    pub fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }

    /// Returns the family with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::V4, Self::V6].into_iter().find(|family| family.name() == name)
    }
}

/// An address. Text that is not a canonical address is stored unchanged, so that it is written back unchanged.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ip {
    /// IPv4.
    V4(Ipv4Addr),
    /// IPv6, except for IPv4-mapped addresses.
    V6(Ipv6Addr),
    /// Any other text.
    Text(Str),
}

impl Ip {
    /// Reads an address.
    pub fn parse(text: &str) -> Self {
        match text.parse::<IpAddr>() {
            Ok(address) if address.to_canonical() == address && address.to_string() == text => address.into(),
            _ => Self::Text(text.into()),
        }
    }

    /// Returns the address in its canonical spelling. As in upstream, leading zeros of IPv4 are ignored, and
    /// IPv4-mapped IPv6 becomes IPv4. `None` if the text is not an address. Upstream: k8s.io/utils/net, ParseIPSloppy.
    pub fn canonical(&self) -> Option<Self> {
        match self {
            Self::Text(text) => text
                .parse::<IpAddr>()
                .ok()
                .or_else(|| with_leading_zeros(text).map(IpAddr::V4))
                .map(|address| address.to_canonical().into()),
            known => Some(known.clone()),
        }
    }

    /// Returns the family, if the text is an address.
    pub fn family(&self) -> Option<Family> {
        match self {
            Self::V4(_) => Some(Family::V4),
            Self::V6(_) => Some(Family::V6),
            Self::Text(_) => self.canonical()?.family(),
        }
    }
}

fn with_leading_zeros(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = part.trim_start_matches('0');
        *octet = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    }
    parts.next().is_none().then_some(octets.into())
}

impl From<IpAddr> for Ip {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => Self::V6(address),
        }
    }
}

impl fmt::Display for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            Self::V6(address) => address.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Ip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_formatted_unchanged_and_have_one_canonical_spelling() {
        for (text, canonical, family) in [
            ("10.0.0.1", Some("10.0.0.1"), Some(Family::V4)),
            ("010.000.0.08", Some("10.0.0.8"), Some(Family::V4)),
            ("fd00::1", Some("fd00::1"), Some(Family::V6)),
            ("FD00:0::1", Some("fd00::1"), Some(Family::V6)),
            ("::ffff:10.0.0.1", Some("10.0.0.1"), Some(Family::V4)),
            ("10.0.0", None, None),
            ("10.0.0.256", None, None),
            ("10.0.0.1.2", None, None),
            ("example.com", None, None),
            ("", None, None),
        ] {
            let ip = Ip::parse(text);
            assert_eq!(ip.to_string(), text);
            assert_eq!(ip.canonical().map(|ip| ip.to_string()).as_deref(), canonical, "{text}");
            assert_eq!(ip.family(), family, "{text}");
        }
    }
}
