//! Requests of pods for a resource. Upstream: pkg/controller/podautoscaler, calculateRequests.

use std::collections::HashMap;
use std::sync::Arc;

use kinds::Pod;
use kinds::pod::{Part, PartRequests};

/// Returns the request of each pod, or of one container of it, in thousandths by the pods' names. With `pod_level`, the
/// request of the pod itself overrides those of its containers.
///
/// # Errors
/// When a container or pod that counts does not request the resource, or a pod has no such container.
pub fn of_pods<'a>(
    pods: &'a [Arc<Pod>],
    container: &str,
    resource: &str,
    pod_level: bool,
) -> Result<HashMap<&'a str, i64>, String> {
    let of_pod = |pod: &'a Arc<Pod>| {
        let name = &*pod.meta.name;
        let parts = pod.requests.as_deref().map_or(&[][..], |requests| &*requests.parts);
        let request = if pod_level && container.is_empty() && has_pod_level_requests(parts) {
            pod_request(parts, resource)
                .ok_or_else(|| format!("missing pod-level request for {resource} in Pod {name}"))?
        } else {
            of_containers(parts, container, resource, name)?
        };
        Ok((name, request))
    };
    pods.iter().map(of_pod).collect()
}

fn of_containers(parts: &[PartRequests], container: &str, resource: &str, pod: &str) -> Result<i64, String> {
    let missing = |name: &str| format!("missing request for {resource} in container {name} of Pod {pod}");
    let mut running = parts.iter().filter(|requests| matches!(requests.part, Part::Container | Part::Sidecar));
    if container.is_empty() {
        let mut each = running.map(|requests| requests.amount(resource).ok_or_else(|| missing(&requests.name)));
        return each.try_fold(0i64, |sum, amount| Ok(sum.saturating_add(amount?)));
    }
    let found = running.find(|requests| *requests.name == *container);
    let found = found.ok_or_else(|| format!("container {container} not found in Pod {pod}"))?;
    found.amount(resource).ok_or_else(|| missing(container))
}

/// Returns true for resources that can be requested at pod level (component-helpers/resource,
/// IsSupportedPodLevelResource).
fn is_pod_level_resource(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory") || resource.starts_with("hugepages-")
}

fn has_pod_level_requests(parts: &[PartRequests]) -> bool {
    let mut pod = parts.iter().filter(|requests| requests.part == Part::Pod);
    pod.any(|requests| requests.resources.iter().any(|(name, _)| is_pod_level_resource(name)))
}

/// Returns the amount of a resource that a pod occupies on a node (component-helpers/resource, PodRequests).
fn pod_request(parts: &[PartRequests], resource: &str) -> Option<i64> {
    let requested =
        |part: Part| parts.iter().find(|requests| requests.part == part).and_then(|requests| requests.amount(resource));
    let own = requested(Part::Pod).filter(|_| is_pod_level_resource(resource));
    match (own.or_else(|| container_requests(parts, resource)), requested(Part::Overhead)) {
        (None, None) => None,
        (own, overhead) => Some(own.unwrap_or(0).saturating_add(overhead.unwrap_or(0))),
    }
}

/// Returns the maximum amount that containers request at the same time. Sidecars run alongside all later containers.
fn container_requests(parts: &[PartRequests], resource: &str) -> Option<i64> {
    let mut known = false;
    let (mut containers, mut sidecars, mut starting) = (0i64, 0i64, 0i64);
    for part in parts {
        let Some(amount) = part.amount(resource) else { continue };
        match part.part {
            Part::Container => containers = containers.saturating_add(amount),
            Part::Sidecar => {
                sidecars = sidecars.saturating_add(amount);
                starting = starting.max(sidecars);
            }
            Part::Init => starting = starting.max(sidecars.saturating_add(amount)),
            Part::Pod | Part::Overhead => continue,
        }
        known = true;
    }
    known.then(|| containers.saturating_add(sidecars).max(starting))
}
