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

/// A pod, and the addresses and ports that it is reached at.
type Waiting = (Arc<GatedPod>, Vec<(IpAddr, u16)>);

/// Returns the outcome with the earlier of its own time and `again`.
pub fn earlier(outcome: Outcome, again: Option<Duration>) -> Outcome {
    match (outcome, again) {
        (Outcome::Done, Some(again)) => Outcome::RequeueAfter(again),
        (Outcome::RequeueAfter(time), Some(again)) => Outcome::RequeueAfter(time.min(again)),
        (outcome, _) => outcome,
    }
}

/// Sets the conditions of the pods behind a load balancer. Returns when to read their health again if one still waits.
pub async fn update(
    cluster: &impl Cluster,
    cloud: &dyn LoadBalancers,
    spec: &LoadBalancerSpec,
    targets: &Targets,
    state: &mut LoadBalancerState,
) -> Option<Duration> {
    let prefix = cloud.features().gates?;
    state.made.as_ref()?;
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
    state.gates = gates.iter().map(|gate| gate.condition.clone()).collect();
    let mut again = None;
    for (pod, endpoints) in waiting {
        for open in pod.gates_of(prefix).filter(|gate| gate.status != Status::True) {
            let Some(gate) = gates.iter().find(|gate| *gate.condition == *open.condition) else { continue };
            let condition = condition_of(gate, &endpoints);
            let is_set = condition.is_set(open) || set(cluster, &pod, &condition).await;
            if condition.status != Status::True || !is_set {
                again = Some(PROBE_INTERVAL);
            }
        }
    }
    again
}

/// The pods behind a load balancer that wait only for gates with this prefix, with their endpoints.
fn waiting(cluster: &impl Cluster, targets: &Targets, prefix: &str) -> Vec<Waiting> {
    let mut of_pods: BTreeMap<(&str, &str), Vec<&EndpointTarget>> = BTreeMap::new();
    for endpoint in targets.others.values().chain([&targets.endpoints]).flat_map(|endpoints| endpoints.iter()) {
        if let Some(pod) = &endpoint.pod {
            of_pods.entry((&pod.namespace, &pod.name)).or_default().push(endpoint);
        }
    }
    let waiting = of_pods.into_iter().filter_map(|((namespace, name), endpoints)| {
        let pod = cluster.pod(namespace, name).filter(|pod| pod.waits_only_for(prefix))?;
        Some((pod, endpoints.iter().map(|endpoint| (endpoint.address, endpoint.port)).collect()))
    });
    waiting.collect()
}

/// Sets the conditions `gates` of pods that wait for a deleted load balancer.
pub async fn release(cluster: &impl Cluster, id: &LoadBalancerId, gates: BTreeSet<String>) {
    if gates.is_empty() {
        return;
    }
    for pod in cluster.gated_pods(&id.namespace) {
        for gate in pod.gates.iter().filter(|gate| gate.status != Status::True && gates.contains(&*gate.condition)) {
            set(cluster, &pod, &PodCondition::without_load_balancer(&gate.condition)).await;
        }
    }
}

/// Sets a condition. Returns false if it has to be set again.
async fn set(cluster: &impl Cluster, pod: &GatedPod, condition: &PodCondition) -> bool {
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
    fn earlier_time_counts() {
        let second = Duration::from_secs(1);
        assert_eq!(earlier(Outcome::Done, Some(second)), Outcome::RequeueAfter(second));
        assert_eq!(earlier(Outcome::RequeueAfter(second * 2), Some(second)), Outcome::RequeueAfter(second));
        assert_eq!(earlier(Outcome::RequeueAfter(second), Some(second * 2)), Outcome::RequeueAfter(second));
        assert_eq!(earlier(Outcome::RequeueWithBackoff, Some(second)), Outcome::RequeueWithBackoff);
        assert_eq!(earlier(Outcome::Done, None), Outcome::Done);
    }
}
