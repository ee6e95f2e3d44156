//! Readiness gates: sets the conditions of pods that wait for their load balancer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kinds::GatedPod;
use kinds::gated_pod::Status;
use providers::{EndpointTarget, LoadBalancerId, LoadBalancerSpec, LoadBalancers, Targets};
use runtime::worker::Outcome;
use tracing::warn;

use super::cluster::{Cluster, Refusal};
use super::load_balancer_state::LoadBalancerState;
use super::pod_conditions::{PodCondition, condition_of};

/// Interval between two reads of target health while pods wait.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// A pod that waits for its load balancer, and the addresses and ports of its endpoints.
type WaitingPod = (Arc<GatedPod>, Vec<(IpAddr, u16)>);

/// Returns the outcome with a requeue after at most `delay`, if one is given. A requeue with backoff is not changed.
pub fn requeue_within(outcome: Outcome, delay: Option<Duration>) -> Outcome {
    match (outcome, delay) {
        (Outcome::Done, Some(delay)) => Outcome::RequeueAfter(delay),
        (Outcome::RequeueAfter(own), Some(delay)) => Outcome::RequeueAfter(own.min(delay)),
        (outcome, _) => outcome,
    }
}

/// Sets the conditions of the pods behind a load balancer. Returns the delay before the next read of their health, if a
/// pod still waits.
pub async fn update(
    cluster: &impl Cluster,
    cloud: &dyn LoadBalancers,
    spec: &LoadBalancerSpec,
    targets: &Targets,
    state: &mut LoadBalancerState,
) -> Option<Duration> {
    let prefix = cloud.features().gates?;
    state.load_balancer.as_ref()?;
    let waiting = waiting(cluster, targets, prefix);
    if waiting.is_empty() {
        return None;
    }
    let gates = match cloud.gates(spec).await {
        Ok(gates) => gates,
        Err(error) => {
            warn!(service = %spec.id, %error, "reading target health for readiness gates failed");
            return Some(error.retry_after().unwrap_or(PROBE_INTERVAL).max(PROBE_INTERVAL));
        }
    };
    state.gates = Some(gates.iter().map(|gate| gate.condition.clone()).collect());
    let mut next_probe = None;
    for (pod, endpoints) in waiting {
        for unmet in pod.prefixed_gates(prefix).filter(|gate| gate.status != Status::True) {
            let Some(gate) = gates.iter().find(|gate| *gate.condition == *unmet.condition) else { continue };
            let condition = condition_of(gate, &endpoints);
            let is_set = condition.is_set(unmet) || set_condition(cluster, &pod, &condition).await;
            if condition.status != Status::True || !is_set {
                next_probe = Some(PROBE_INTERVAL);
            }
        }
    }
    next_probe
}

/// Returns the pods behind a load balancer that wait only for gates with this prefix, with their endpoints.
fn waiting(cluster: &impl Cluster, targets: &Targets, prefix: &str) -> Vec<WaitingPod> {
    let mut by_pod: BTreeMap<(&str, &str), Vec<&EndpointTarget>> = BTreeMap::new();
    for endpoint in targets.others.values().chain([&targets.endpoints]).flat_map(|endpoints| endpoints.iter()) {
        if let Some(pod) = &endpoint.pod {
            by_pod.entry((&pod.namespace, &pod.name)).or_default().push(endpoint);
        }
    }
    let waiting = by_pod.into_iter().filter_map(|((namespace, name), endpoints)| {
        let pod = cluster.pod(namespace, name).filter(|pod| pod.waits_only_for(prefix))?;
        Some((pod, endpoints.iter().map(|endpoint| (endpoint.address, endpoint.port)).collect()))
    });
    waiting.collect()
}

/// Returns the types of the pod conditions that report a load balancer's targets; an empty set if the load balancer
/// does not exist. Returns `None` if the call fails; also, without a call, if the provider supports no such conditions,
/// or no pod of the load balancer's namespace waits for one.
pub async fn find(
    cluster: &impl Cluster,
    cloud: &dyn LoadBalancers,
    spec: &LoadBalancerSpec,
) -> Option<BTreeSet<String>> {
    let prefix = cloud.features().gates?;
    let waits = |pod: &Arc<GatedPod>| pod.prefixed_gates(prefix).any(|gate| gate.status != Status::True);
    if !cluster.gated_pods(&spec.id.namespace).iter().any(waits) {
        return None;
    }
    match cloud.gates(spec).await {
        Ok(gates) => Some(gates.into_iter().map(|gate| gate.condition).collect()),
        Err(error) if error.is_not_found() => Some(BTreeSet::new()),
        Err(error) => {
            warn!(service = %spec.id, %error, "readiness gates of the load balancer are unknown; pods may keep waiting");
            None
        }
    }
}

/// Sets the conditions `gates` of pods that wait for a deleted load balancer, so that they no longer wait. Returns
/// false if a retry is needed.
pub async fn release(cluster: &impl Cluster, id: &LoadBalancerId, gates: Option<&BTreeSet<String>>) -> bool {
    let Some(gates) = gates.filter(|gates| !gates.is_empty()) else { return true };
    let mut are_released = true;
    for pod in cluster.gated_pods(&id.namespace) {
        for gate in pod.gates.iter().filter(|gate| gate.status != Status::True && gates.contains(&*gate.condition)) {
            are_released &= set_condition(cluster, &pod, &PodCondition::without_load_balancer(&gate.condition)).await;
        }
    }
    are_released
}

/// Sets a condition. Returns false if that failed and has to be retried.
async fn set_condition(cluster: &impl Cluster, pod: &GatedPod, condition: &PodCondition) -> bool {
    match cluster.set_pod_condition(pod, condition).await {
        Ok(()) | Err(Refusal::Deleted) => true,
        Err(error) => {
            warn!(pod = %pod.meta.key(), condition = condition.condition, %error, "setting a readiness gate failed");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_is_requeued_at_the_earlier_time() {
        let second = Duration::from_secs(1);
        assert_eq!(requeue_within(Outcome::Done, Some(second)), Outcome::RequeueAfter(second));
        assert_eq!(requeue_within(Outcome::RequeueAfter(second * 2), Some(second)), Outcome::RequeueAfter(second));
        assert_eq!(requeue_within(Outcome::RequeueAfter(second), Some(second * 2)), Outcome::RequeueAfter(second));
        assert_eq!(requeue_within(Outcome::RequeueWithBackoff, Some(second)), Outcome::RequeueWithBackoff);
        assert_eq!(requeue_within(Outcome::Done, None), Outcome::Done);
    }
}
