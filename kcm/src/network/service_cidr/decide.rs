//! Policy: the addresses in a range (ServiceCIDR), and the conditions for its deletion.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use jiff::Timestamp;
use kinds::condition::Condition;
use kinds::meta::Meta;
use kinds::{IpAddress, ServiceCidr};
use runtime::text::api_time;
use serde_json::{Value, json};

/// The finalizer that blocks the deletion of a range while a Service needs the range.
pub const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";

/// Grace period in seconds: after the request to delete a range, API servers may still allocate addresses from it.
const GRACE: i64 = 10;

/// The condition of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Readiness {
    status: &'static str,
    reason: &'static str,
    message: &'static str,
}

/// Addresses are allocated from the range.
pub const READY: Readiness = Readiness { status: "True", reason: "", message: "Kubernetes Service CIDR is ready" };

/// The range is being deleted, but Services need it.
pub const TERMINATING: Readiness = Readiness {
    status: "False",
    reason: "Terminating",
    message: "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR",
};

const CONDITION: &str = "Ready";

impl Readiness {
    /// Returns true if a range's status has this condition.
    pub fn is_reported_by(&self, range: &ServiceCidr) -> bool {
        let same = |current: &Condition| {
            (&*current.status, &*current.reason, &*current.message) == (self.status, self.reason, self.message)
        };
        range.conditions.iter().find(|condition| &*condition.kind == CONDITION).is_some_and(same)
    }

    /// Returns the object to apply to the status for this condition.
    pub fn application(&self, range: &Meta, now: Timestamp) -> Value {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
            "metadata": {"name": &*range.name, "uid": range.uid.to_string()},
            "status": {"conditions": [{
                "type": CONDITION, "status": self.status, "reason": self.reason, "message": self.message,
                "lastTransitionTime": api_time(now),
            }]},
        })
    }
}

/// Returns true if the range has this controller's finalizer.
pub fn has_finalizer(range: &Meta) -> bool {
    range.finalizers.iter().any(|finalizer| &**finalizer == FINALIZER)
}

/// Returns the address, if an API server allocated it to a Service.
pub fn service_address(address: &IpAddress) -> Option<IpAddr> {
    let by = address.meta.labels.iter().find(|(key, _)| &**key == "ipaddress.kubernetes.io/managed-by");
    by.filter(|(_, manager)| &**manager == "ipallocator.k8s.io")?;
    address.meta.name.parse().ok()
}

fn prefixes(range: &ServiceCidr) -> impl Iterator<Item = IpNet> {
    range.cidrs.iter().filter_map(|text| text.parse().ok())
}

/// Returns true if this address can be allocated from the range: the network address, and for IPv4 the broadcast
/// address, never are. Upstream: pkg/api/servicecidr, PrefixContainsIP.
pub fn can_allocate(range: &ServiceCidr, address: IpAddr) -> bool {
    prefixes(range).any(|prefix| {
        let is_broadcast = address.is_ipv4() && prefix.broadcast() == address;
        prefix.contains(&address) && prefix.network() != address && !is_broadcast
    })
}

/// Returns true if two ranges have an address in common.
pub fn overlap(a: &ServiceCidr, b: &ServiceCidr) -> bool {
    prefixes(a).any(|prefix| prefixes(b).any(|other| other.contains(&prefix) || prefix.contains(&other)))
}

/// Returns true if other ranges contain every prefix of a range, so all its addresses can still be allocated
/// without it.
pub fn has_parents(range: &ServiceCidr, ranges: &[Arc<ServiceCidr>]) -> bool {
    prefixes(range)
        .all(|prefix| others(range, ranges).any(|other| prefixes(other).any(|wider| wider.contains(&prefix))))
}

/// Returns true if a Service's address can be allocated from this range and from no other.
pub fn needs(address: IpAddr, range: &ServiceCidr, ranges: &[Arc<ServiceCidr>]) -> bool {
    can_allocate(range, address) && !others(range, ranges).any(|other| can_allocate(other, address))
}

fn others<'a>(range: &ServiceCidr, ranges: &'a [Arc<ServiceCidr>]) -> impl Iterator<Item = &'a Arc<ServiceCidr>> {
    let name = range.meta.name.clone();
    ranges.iter().filter(move |other| other.meta.name != name)
}

/// Returns the remaining grace period of a range that is being deleted; zero once it is over.
pub fn grace_left(range: &Meta, now: Timestamp) -> Duration {
    let left = range.deletion.0.saturating_add(GRACE).saturating_sub(now.as_second());
    Duration::from_secs(u64::try_from(left).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use kinds::schema::{condition, ip_address, object_meta, service_cidr, service_cidr_spec, service_cidr_status};
    use kinds::wire::Put;
    use kinds::{Decode, Kind, Sections, Time};

    use super::*;

    fn read<K: Kind>(object: &[u8]) -> Arc<K> {
        let context = Decode { interner: Arc::default(), sections: Sections::default() };
        Arc::new(K::decode(&context, object).expect("well-formed"))
    }

    fn range(name: &str, cidrs: &[&str]) -> Arc<ServiceCidr> {
        range_with(name, cidrs, &[])
    }

    fn range_with(name: &str, cidrs: &[&str], conditions: &[(&str, &str, &str, &str)]) -> Arc<ServiceCidr> {
        let mut object = Vec::new();
        object.put_message(service_cidr::METADATA, |meta| {
            meta.put_str(object_meta::NAME, name);
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.put_str(object_meta::FINALIZERS, FINALIZER);
            Time(1000).put(meta, object_meta::DELETION_TIMESTAMP);
        });
        object.put_message(service_cidr::SPEC, |spec| {
            cidrs.iter().for_each(|cidr| spec.put_str(service_cidr_spec::CIDRS, cidr));
        });
        object.put_message(service_cidr::STATUS, |status| {
            for (kind, value, reason, message) in conditions {
                status.put_message(service_cidr_status::CONDITIONS, |out| {
                    out.put_str(condition::TYPE, kind);
                    out.put_str(condition::STATUS, value);
                    out.put_str(condition::REASON, reason);
                    out.put_str(condition::MESSAGE, message);
                });
            }
        });
        read(&object)
    }

    #[test]
    fn address_is_in_the_ranges_that_can_allocate_it() {
        for (cidrs, address, expected) in [
            (&["10.0.0.0/24"][..], "10.0.0.1", true),
            (&["10.0.0.0/24"], "10.0.0.0", false),
            (&["10.0.0.0/24"], "10.0.0.255", false),
            (&["10.0.0.0/24"], "10.0.1.1", false),
            (&["10.0.0.0/24"], "fd00::1", false),
            (&["10.0.0.7/24"], "10.0.0.0", false),
            (&["10.0.0.7/24"], "10.0.0.7", true),
            (&["10.0.0.1/32"], "10.0.0.1", false),
            (&["10.0.0.0/24", "fd00::/112"], "fd00::1", true),
            (&["fd00::/112"], "fd00::ffff", true),
            (&["fd00::/112"], "fd00::", false),
            (&["nonsense"], "10.0.0.1", false),
            (&[], "10.0.0.1", false),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!(can_allocate(&range("a", cidrs), address), expected, "{cidrs:?} {address}");
        }
    }

    #[test]
    fn range_within_others_may_be_deleted() {
        for (own, others, expected) in [
            (&["10.0.0.0/24"][..], &[][..], false),
            (&["10.0.0.0/24"], &[&["10.0.0.0/24"][..]][..], true),
            (&["10.0.0.0/24"], &[&["10.0.0.0/16"]], true),
            (&["10.0.0.0/24"], &[&["10.0.0.0/25"]], false),
            (&["10.0.0.0/24"], &[&["10.0.0.0/25"], &["10.0.0.128/25"]], false),
            (&["10.0.0.0/24"], &[&["10.1.0.0/16"]], false),
            (&["10.0.0.0/24", "fd00::/112"], &[&["10.0.0.0/16"]], false),
            (&["10.0.0.0/24", "fd00::/112"], &[&["10.0.0.0/16"], &["fd00::/64"]], true),
            (&["10.0.0.0/24", "fd00::/112"], &[&["10.0.0.0/16", "fd00::/64"]], true),
        ] {
            let own = range("own", own);
            let mut all = vec![own.clone()];
            all.extend(others.iter().enumerate().map(|(n, cidrs)| range(&format!("other-{n}"), cidrs)));
            assert_eq!(has_parents(&own, &all), expected, "{:?} among {others:?}", own.cidrs);
        }
    }

    #[test]
    fn address_needs_its_only_range() {
        let all = [range("a", &["10.0.0.0/24"]), range("b", &["10.0.0.0/25"]), range("c", &["10.9.0.0/24"])];
        for (address, name, expected) in [
            ("10.0.0.200", 0, true),
            ("10.0.0.20", 0, false),
            ("10.0.0.20", 1, false),
            // The narrower range never allocates its broadcast address.
            ("10.0.0.127", 0, true),
            ("10.9.0.1", 2, true),
            ("10.9.0.1", 0, false),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!(needs(address, &all[name], &all), expected, "{address} {name}");
        }
        assert!(overlap(&all[0], &all[1]) && overlap(&all[1], &all[0]) && !overlap(&all[0], &all[2]));
    }

    #[test]
    fn only_addresses_that_api_servers_allocated_count() {
        let address = |name: &str, manager: &str| {
            let mut object = Vec::new();
            object.put_message(ip_address::METADATA, |meta| {
                meta.put_str(object_meta::NAME, name);
                meta.put_str(object_meta::RESOURCE_VERSION, "1");
                meta.put_entry(object_meta::LABELS, "ipaddress.kubernetes.io/managed-by", manager);
            });
            service_address(&read::<IpAddress>(&object)).map(|address| address.to_string())
        };
        assert_eq!(address("10.0.0.1", "ipallocator.k8s.io").as_deref(), Some("10.0.0.1"));
        assert_eq!(address("10.0.0.1", "another"), None);
        assert_eq!(address("nonsense", "ipallocator.k8s.io"), None);
    }

    #[test]
    fn unchanged_condition_is_not_written_again() {
        let ready = ("Ready", "True", "", "Kubernetes Service CIDR is ready");
        for (conditions, expected) in [
            (&[][..], false),
            (&[ready][..], true),
            (&[("Other", "True", "", ""), ready], true),
            (&[("Ready", "False", "", ready.3)], false),
            (&[("Ready", "True", "x", ready.3)], false),
            (&[("Ready", "True", "", "x")], false),
        ] {
            assert_eq!(READY.is_reported_by(&range_with("a", &[], conditions)), expected, "{conditions:?}");
        }
        let applied = TERMINATING.application(&range("a", &[]).meta, Timestamp::from_second(0).expect("a time"));
        assert_eq!(applied["status"]["conditions"][0]["reason"], "Terminating");
        assert_eq!(applied["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn range_is_kept_for_the_grace_period() {
        let range = range("a", &[]);
        assert!(has_finalizer(&range.meta));
        for (now, left) in [(1000, 10), (1009, 1), (1010, 0), (5000, 0)] {
            let now = Timestamp::from_second(now).expect("a time");
            assert_eq!(grace_left(&range.meta, now), Duration::from_secs(left), "{now}");
        }
    }
}
