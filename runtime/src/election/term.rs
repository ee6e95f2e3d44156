//! Leadership terms: the holder of a lease, and the lease's next spec. Pure functions.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

/// The lease as last read or written, and the time at which a change of its spec was last observed.
#[derive(Debug, Clone)]
pub(super) struct LeaseObservation {
    pub(super) lease: Lease,
    pub(super) changed: Instant,
}

impl LeaseObservation {
    /// Returns the observation after another read: the time of change is kept if the spec is equal.
    pub(super) fn next(before: Option<Self>, lease: Lease, now: Instant) -> Self {
        let changed = match before {
            Some(before) if before.lease.spec == lease.spec => before.changed,
            _ => now,
        };
        Self { lease, changed }
    }

    /// Returns the holder of the lease; empty if there is none.
    pub(super) fn holder(&self) -> &str {
        holder(&self.lease)
    }

    /// Returns true if the lease has not expired. Its duration is counted by the local clock from the observed change;
    /// the timestamps in it come from another clock and are ignored (`LeaderElector.isLeaseValid`).
    pub(super) fn is_valid(&self, now: Instant) -> bool {
        let seconds = spec(&self.lease).and_then(|spec| spec.lease_duration_seconds).unwrap_or(0);
        let lease_duration = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        self.changed + lease_duration > now
    }
}

fn spec(lease: &Lease) -> Option<&LeaseSpec> {
    lease.spec.as_ref()
}

pub(super) fn holder(lease: &Lease) -> &str {
    spec(lease).and_then(|spec| spec.holder_identity.as_deref()).unwrap_or("")
}

/// Returns the spec for the next term or renewal of `identity` after `before`: the same holder keeps the time of
/// acquisition and the number of transitions, a new holder adds a transition (`LeaderElector.tryAcquireOrRenew`).
pub(super) fn claim(before: Option<&Lease>, identity: &str, seconds: i32, wall: Timestamp) -> LeaseSpec {
    let now = micro(wall);
    let old = before.and_then(spec);
    let transitions = old.and_then(|old| old.lease_transitions).unwrap_or(0);
    let (acquired, transitions) = match before {
        None => (Some(now.clone()), 0),
        Some(lease) if holder(lease) == identity => (old.and_then(|old| old.acquire_time.clone()), transitions),
        Some(_) => (Some(now.clone()), transitions.saturating_add(1)),
    };
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(seconds),
        acquire_time: acquired,
        renew_time: Some(now),
        lease_transitions: Some(transitions),
        ..LeaseSpec::default()
    }
}

/// Returns the spec of a lease without a holder: the next candidate need not wait (`LeaderElector.tryRelease`).
pub(super) fn vacate(before: &Lease, wall: Timestamp) -> LeaseSpec {
    let now = micro(wall);
    LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        lease_transitions: Some(spec(before).and_then(|spec| spec.lease_transitions).unwrap_or(0)),
        ..LeaseSpec::default()
    }
}

/// Truncates to microseconds, as the API does, so that a written spec equals the one that is read later.
fn micro(wall: Timestamp) -> MicroTime {
    MicroTime(Timestamp::from_microsecond(wall.as_microsecond()).unwrap_or(wall))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_CLIENT_GO: &str = r#"{
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "kube-controller-manager", "namespace": "kube-system", "resourceVersion": "812"},
        "spec": {
            "holderIdentity": "cp-1_7a5c", "leaseDurationSeconds": 15, "leaseTransitions": 3,
            "acquireTime": "2026-11-21T05:00:00.000001Z", "renewTime": "2026-11-21T05:50:36.123456Z"
        }
    }"#;

    fn lease() -> Lease {
        serde_json::from_str(BY_CLIENT_GO).unwrap()
    }

    fn wall() -> Timestamp {
        "2026-11-21T06:00:00.123456789Z".parse().unwrap()
    }

    #[test]
    fn lease_of_client_go_round_trips_unchanged() {
        let read: serde_json::Value = serde_json::from_str(BY_CLIENT_GO).unwrap();
        assert_eq!(serde_json::to_value(lease()).unwrap(), read);
        assert_eq!(holder(&lease()), "cp-1_7a5c");
    }

    #[test]
    fn claim_continues_the_term_of_the_same_holder_and_begins_one_for_a_new_holder() {
        let led = lease();
        let bare = Lease::default();
        let now = "2026-11-21T06:00:00.123456Z";
        let cases = [
            ("no lease", None, "self", now, 0),
            ("lease without a spec", Some(&bare), "self", now, 1),
            ("led by another", Some(&led), "self", now, 4),
            ("led by this candidate", Some(&led), "cp-1_7a5c", "2026-11-21T05:00:00.000001Z", 3),
        ];
        for (case, before, identity, acquired, transitions) in cases {
            let spec = serde_json::to_value(claim(before, identity, 15, wall())).unwrap();
            let wanted = serde_json::json!({
                "holderIdentity": identity, "leaseDurationSeconds": 15, "leaseTransitions": transitions,
                "acquireTime": acquired, "renewTime": now,
            });
            assert_eq!(spec, wanted, "{case}");
        }
    }

    #[test]
    fn released_lease_has_no_holder_and_lasts_a_second() {
        let spec = serde_json::to_value(vacate(&lease(), wall())).unwrap();
        let now = "2026-11-21T06:00:00.123456Z";
        let wanted = serde_json::json!({
            "holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 3, "acquireTime": now, "renewTime": now,
        });
        assert_eq!(spec, wanted);
    }

    #[tokio::test(start_paused = true)]
    async fn validity_counts_from_the_first_observation_of_the_spec() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let first = LeaseObservation::next(None, lease(), start);
        assert!(first.is_valid(after(14_999)) && !first.is_valid(after(15_000)));

        let mut touched = lease();
        touched.metadata.resource_version = Some("813".to_owned());
        let again = LeaseObservation::next(Some(first), touched, after(10_000));
        assert!(!again.is_valid(after(15_000)), "a change of metadata alone is no renewal");

        let mut renewed = lease();
        renewed.spec = Some(claim(Some(&lease()), "cp-1_7a5c", 15, Timestamp::UNIX_EPOCH));
        let renewal = LeaseObservation::next(Some(again), renewed, after(14_000));
        assert!(
            renewal.is_valid(after(28_999)) && !renewal.is_valid(after(29_000)),
            "a clock in the past counts as well"
        );
    }
}
