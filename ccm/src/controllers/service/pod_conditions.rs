//! Policy: the conditions of pods with readiness gates. Pure functions.
//!
//! A pod that waits for its load balancer gets traffic as soon as its containers are ready and it waits for no other
//! gate. Otherwise the load balancer could never find it healthy. A condition that became true is not changed again
//! (aws-load-balancer-controller, pkg/targetgroupbinding, updateTargetHealthPodConditionForPod).

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use kinds::gated_pod::{Gate, Status};
use kinds::{GatedPod, Uid};
use providers::{EndpointTarget, Health, PodRef, ReadinessGate};
use runtime::text::api_time;
use serde_json::{Value, json};

/// Reason and message for a pod that is not registered with the load balancer yet.
const REGISTERING: (&str, &str) = ("Elb.RegistrationInProgress", "Target registration is in progress");

/// Message for pods that wait for a deleted load balancer.
const DELETED: &str = "The load balancer is deleted";

/// The desired condition of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodCondition {
    pub condition: String,
    pub status: Status,
    pub reason: String,
    pub message: String,
}

impl PodCondition {
    /// Returns the condition of a pod whose load balancer was deleted: the pod no longer has to wait.
    pub fn without_load_balancer(condition: &str) -> Self {
        let message = DELETED.to_owned();
        Self { condition: condition.to_owned(), status: Status::True, reason: String::new(), message }
    }

    /// Returns true if the pod has this condition already.
    pub fn is_set(&self, gate: &Gate) -> bool {
        self.status == gate.status && *self.reason == *gate.reason && *self.message == *gate.message
    }

    /// Returns the strategic merge patch of the pod's status.
    pub fn patch(&self, uid: &Uid, now: Timestamp) -> Value {
        let condition = json!({
            "type": self.condition,
            "status": self.status.as_str(),
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": api_time(now),
        });
        // Without the order, the API server places a new condition first. Every pod with a node has PodScheduled.
        let order = json!([{ "type": "PodScheduled" }, { "type": self.condition }]);
        let status = json!({ "conditions": [condition], "$setElementOrder/conditions": order });
        json!({ "metadata": { "uid": uid.to_string() }, "status": status })
    }
}

/// Marks an endpoint as ready if its pod's containers are ready, and the pod waits only for readiness gates whose names
/// begin with `prefix`.
pub fn admit_waiting(endpoints: &mut [EndpointTarget], pod: impl Fn(&PodRef) -> Option<Arc<GatedPod>>, prefix: &str) {
    for endpoint in endpoints.iter_mut().filter(|endpoint| !endpoint.ready && !endpoint.terminating) {
        let Some(reference) = &endpoint.pod else { continue };
        let same = |pod: &Arc<GatedPod>| pod.meta.uid.to_string() == reference.uid && !pod.meta.is_deleting();
        endpoint.ready = pod(reference).filter(same).is_some_and(|pod| pod.waits_only_for(prefix));
    }
}

/// Returns the condition of a pod with these endpoints.
pub fn condition_of(gate: &ReadinessGate, endpoints: &[(IpAddr, u16)]) -> PodCondition {
    let condition = |status, reason: &str, message: &str| PodCondition {
        condition: gate.condition.clone(),
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let own = gate.endpoints.iter().filter(|one| endpoints.contains(&(one.address, one.port)));
    let own: Vec<_> = own.collect();
    match own.iter().find(|one| one.health != Health::Healthy) {
        Some(one) => condition(Status::False, &one.reason, &one.message),
        None if own.is_empty() => condition(Status::False, REGISTERING.0, REGISTERING.1),
        None => condition(Status::True, "", ""),
    }
}

#[cfg(test)]
mod tests {
    use providers::EndpointHealth;

    use super::*;

    fn health(address: &str, port: u16, health: Health, reason: &str) -> EndpointHealth {
        let address = address.parse().expect("an address");
        EndpointHealth { address, port, health, reason: reason.into(), message: String::new() }
    }

    #[test]
    fn pod_is_healthy_when_all_of_its_endpoints_are() {
        use Health::{Healthy, Initial};
        let own = [("10.0.0.1".parse().expect("an address"), 80), ("10.0.0.1".parse().expect("an address"), 443)];
        for (endpoints, expected) in [
            (vec![], (Status::False, "Elb.RegistrationInProgress")),
            (vec![health("10.0.0.2", 80, Healthy, "")], (Status::False, "Elb.RegistrationInProgress")),
            (vec![health("10.0.0.1", 80, Healthy, "")], (Status::True, "")),
            (
                vec![health("10.0.0.1", 80, Healthy, ""), health("10.0.0.1", 443, Initial, "Elb.Initial")],
                (Status::False, "Elb.Initial"),
            ),
            (
                vec![health("10.0.0.1", 80, Healthy, ""), health("10.0.0.2", 443, Initial, "Elb.Initial")],
                (Status::True, ""),
            ),
            // The same port in two target groups.
            (
                vec![health("10.0.0.1", 80, Healthy, ""), health("10.0.0.1", 80, Health::Unhealthy, "Target.Timeout")],
                (Status::False, "Target.Timeout"),
            ),
        ] {
            let gate = ReadinessGate { condition: "c".into(), endpoints: endpoints.clone() };
            let condition = condition_of(&gate, &own);
            assert_eq!((condition.status, &*condition.reason), expected, "{endpoints:?}");
        }
    }

    #[test]
    fn patch_names_the_pod_and_one_condition() {
        let condition = PodCondition::without_load_balancer("c");
        let patch = condition.patch(&Uid::parse("u-1"), Timestamp::UNIX_EPOCH);
        assert_eq!(patch["metadata"]["uid"], "u-1");
        let order = &patch["status"]["$setElementOrder/conditions"];
        assert_eq!(*order, json!([{ "type": "PodScheduled" }, { "type": "c" }]));
        let condition = &patch["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!("c"), &json!("True")));
        assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }
}
