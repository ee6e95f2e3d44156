//! Readiness gates: pods that wait for their balancer are told what it thinks of them.
//!
//! A pod with such a gate gets traffic as soon as its containers are ready and nothing else keeps it back: else the
//! balancer could never find it healthy. Once told that it is, it is not asked about any more (aws-load-balancer-controller,
//! pkg/targetgroupbinding, updateTargetHealthPodConditionForPod).

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::gated_pod::{Gate, Status};
use kinds::{GatedPod, Uid};
use providers::{EndpointTarget, Health, LoadBalancerId, PodRef, ReadinessGate};
use runtime::worker::Outcome;
use serde_json::{Value, json};
use tracing::warn;

use super::balancer_state::Course;
use super::cluster::{Refusal, Surroundings};
use super::reconcile::{Balancers, Wanted};

/// From one look at what a balancer thinks of pods that wait to the next.
const PROBE: Duration = Duration::from_secs(10);

/// What a pod is told while the balancer knows nothing of it.
const REGISTERING: (&str, &str) = ("Elb.RegistrationInProgress", "Target registration is in progress");

/// What pods are told that wait for a balancer that is gone.
const GONE: &str = "The load balancer is deleted";

/// A condition as it should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    pub condition: String,
    pub status: Status,
    pub reason: String,
    pub message: String,
}

/// A pod, and the addresses and ports that it is reached at.
type Waiting = (Arc<GatedPod>, Vec<(IpAddr, u16)>);

impl Told {
    /// Whether a pod's condition says it already.
    fn is_said_by(&self, gate: &Gate) -> bool {
        self.status == gate.status && *self.reason == *gate.reason && *self.message == *gate.message
    }

    /// The patch of a pod's status that says it.
    pub fn patch(&self, uid: &Uid, now: Timestamp) -> Value {
        let condition = json!({
            "type": self.condition,
            "status": self.status.as_str(),
            "reason": self.reason,
            "message": self.message,
            "lastTransitionTime": now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        });
        json!({ "metadata": { "uid": uid.to_string() }, "status": { "conditions": [condition] } })
    }
}

/// Endpoints whose pods wait for nothing but gates that begin with `prefix` get traffic.
pub fn let_waiting_in(endpoints: &mut [EndpointTarget], pod: impl Fn(&PodRef) -> Option<Arc<GatedPod>>, prefix: &str) {
    for endpoint in endpoints.iter_mut().filter(|endpoint| !endpoint.ready && !endpoint.terminating) {
        let Some(reference) = &endpoint.pod else { continue };
        let same = |pod: &Arc<GatedPod>| pod.meta.uid.to_string() == reference.uid && !pod.meta.is_deleting();
        endpoint.ready = pod(reference).filter(same).is_some_and(|pod| pod.waits_only_for(prefix));
    }
}

/// What a pod with these endpoints is to be told.
fn judge(gate: &ReadinessGate, endpoints: &[(IpAddr, u16)]) -> Told {
    let told = |status, reason: &str, message: &str| Told {
        condition: gate.condition.clone(),
        status,
        reason: reason.to_owned(),
        message: message.to_owned(),
    };
    let own = gate.endpoints.iter().filter(|one| endpoints.contains(&(one.address, one.port)));
    let own: Vec<_> = own.collect();
    match own.iter().find(|one| one.health != Health::Healthy) {
        Some(one) => told(Status::False, &one.reason, &one.message),
        None if own.is_empty() => told(Status::False, REGISTERING.0, REGISTERING.1),
        None => told(Status::True, "", ""),
    }
}

/// The sooner of what a reconcile answers and a time.
pub fn sooner(outcome: Outcome, again: Option<Duration>) -> Outcome {
    match (outcome, again) {
        (Outcome::Done, Some(again)) => Outcome::RequeueAfter(again),
        (Outcome::RequeueAfter(time), Some(again)) => Outcome::RequeueAfter(time.min(again)),
        (outcome, _) => outcome,
    }
}

impl<S: Surroundings> Balancers<S> {
    /// Tells the pods behind a balancer what it thinks of them; answers when to look again, if one of them waits.
    pub(super) async fn tell_pods(&self, wanted: &Wanted<'_>, course: &mut Course) -> Option<Duration> {
        let prefix = self.cloud.features().gates?;
        course.made.as_ref()?;
        let waiting = self.waiting(wanted, prefix);
        if waiting.is_empty() {
            return None;
        }
        let gates = match self.cloud.gates(&wanted.spec).await {
            Ok(gates) => gates,
            Err(error) => {
                warn!(service = %wanted.spec.id, %error, "what the balancer thinks of pods is not known");
                return Some(error.retry_after().unwrap_or(PROBE).max(PROBE));
            }
        };
        course.gates = gates.iter().map(|gate| gate.condition.clone()).collect();
        let mut again = None;
        for (pod, endpoints) in waiting {
            for open in pod.gates_of(prefix).filter(|gate| gate.status != Status::True) {
                let Some(gate) = gates.iter().find(|gate| *gate.condition == *open.condition) else { continue };
                let told = judge(gate, &endpoints);
                let said = told.is_said_by(open) || self.say_to(&pod, &told).await;
                if told.status != Status::True || !said {
                    again = Some(PROBE);
                }
            }
        }
        again
    }

    /// The pods among a balancer's endpoints that wait for nothing but gates of this prefix, with their endpoints.
    fn waiting(&self, wanted: &Wanted<'_>, prefix: &str) -> Vec<Waiting> {
        let targets = self.targets(wanted).unwrap_or_default();
        let mut of_pods: BTreeMap<(&str, &str), Vec<&EndpointTarget>> = BTreeMap::new();
        for endpoint in targets.others.values().chain([&targets.endpoints]).flat_map(|endpoints| endpoints.iter()) {
            if let Some(pod) = &endpoint.pod {
                of_pods.entry((&pod.namespace, &pod.name)).or_default().push(endpoint);
            }
        }
        let waiting = of_pods.into_iter().filter_map(|((namespace, name), endpoints)| {
            let pod = self.kubernetes.pod(namespace, name).filter(|pod| pod.waits_only_for(prefix))?;
            Some((pod, endpoints.iter().map(|endpoint| (endpoint.address, endpoint.port)).collect()))
        });
        waiting.collect()
    }

    /// Pods that wait for a balancer that is gone now need not wait any more.
    pub(super) async fn let_pods_go(&self, id: &LoadBalancerId, course: &mut Course) {
        let gone = std::mem::take(&mut course.gates);
        if gone.is_empty() {
            return;
        }
        for pod in self.kubernetes.gated_pods(&id.namespace) {
            for gate in pod.gates.iter().filter(|gate| gate.status != Status::True && gone.contains(&*gate.condition)) {
                let told = Told {
                    condition: gate.condition.to_string(),
                    status: Status::True,
                    reason: String::new(),
                    message: GONE.to_owned(),
                };
                self.say_to(&pod, &told).await;
            }
        }
    }

    /// Whether a pod was told, or is not there to be told.
    async fn say_to(&self, pod: &GatedPod, told: &Told) -> bool {
        match self.kubernetes.tell_pod(pod, told).await {
            Ok(()) | Err(Refusal::Gone) => true,
            Err(error) => {
                warn!(pod = %pod.meta.key(), condition = told.condition, %error, "a pod could not be told of its health");
                false
            }
        }
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
    fn a_pod_is_healthy_when_all_of_its_endpoints_are() {
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
            let told = judge(&gate, &own);
            assert_eq!((told.status, &*told.reason), expected, "{endpoints:?}");
        }
    }

    #[test]
    fn the_patch_names_the_pod_and_one_condition() {
        let told = Told { condition: "c".into(), status: Status::True, reason: String::new(), message: "m".into() };
        let patch = told.patch(&Uid::parse("u-1"), Timestamp::UNIX_EPOCH);
        assert_eq!(patch["metadata"]["uid"], "u-1");
        let condition = &patch["status"]["conditions"][0];
        assert_eq!((&condition["type"], &condition["status"]), (&json!("c"), &json!("True")));
        assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }

    #[test]
    fn the_sooner_time_counts() {
        let second = Duration::from_secs(1);
        assert_eq!(sooner(Outcome::Done, Some(second)), Outcome::RequeueAfter(second));
        assert_eq!(sooner(Outcome::RequeueAfter(second * 2), Some(second)), Outcome::RequeueAfter(second));
        assert_eq!(sooner(Outcome::RequeueAfter(second), Some(second * 2)), Outcome::RequeueAfter(second));
        assert_eq!(sooner(Outcome::RequeueWithBackoff, Some(second)), Outcome::RequeueWithBackoff);
        assert_eq!(sooner(Outcome::Done, None), Outcome::Done);
    }
}
