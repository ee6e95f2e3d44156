//! Policy: the number of pods that may be disrupted.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::int_or_string::IntOrString;
use kinds::pod_disruption_budget::{AllowedCondition, BudgetStatus};
use kinds::selector::{Requirement, Selector};
use kinds::{Pod, PodDisruptionBudget, Str, Time};

use crate::pods::status_delay::MINOR_CHANGE;

/// Longest time from a granted eviction to the pod's deletion. Upstream: pkg/controller/disruption, DeletionTimeout.
const DELETION_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the labels that a pod must have for a selector to match it.
pub fn required_labels(selector: &Selector) -> Vec<(Str, Str)> {
    let Selector::All(requirements) = selector else { return Vec::new() };
    let labels = requirements.iter().filter_map(Requirement::only_label);
    labels.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The expected number of pods, and the required number of healthy ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds {
    /// Number of expected pods.
    pub expected: i32,
    /// Number of pods that must be healthy.
    pub desired: i32,
}

/// Returns true if the bounds depend on the scale of the pods' owners.
pub fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    budget.max_unavailable.is_some() || matches!(budget.min_available, Some(IntOrString::Text(_)))
}

/// Returns the budget's bounds, for this number of pods or, if [`needs_scale`], for this scale of their owners.
/// Percentages in `minAvailable` and `maxUnavailable` round up. Upstream: pkg/controller/disruption,
/// getExpectedPodCount.
///
/// # Errors
/// When a text is not a percentage.
pub fn bounds(budget: &PodDisruptionBudget, count: i32) -> Result<Bounds, String> {
    let part = |value: &IntOrString| {
        value
            .scaled(count, true)
            .ok_or_else(|| "invalid value for IntOrString: invalid type: string is not a percentage".to_owned())
    };
    Ok(match (&budget.max_unavailable, &budget.min_available) {
        (Some(max), _) => Bounds { expected: count, desired: count.saturating_sub(part(max)?).max(0) },
        (None, Some(min)) => Bounds { expected: count, desired: part(min)? },
        (None, None) => Bounds::default(),
    })
}

/// Granted evictions whose pods still exist.
#[derive(Debug, Default)]
pub struct GrantedEvictions {
    /// Evictions whose pods may still be deleted.
    pub pending: Vec<(Str, Time)>,
    /// Pods that should have been deleted, but still exist.
    pub overdue: Vec<Arc<Pod>>,
    /// Time until the next pending eviction is overdue.
    pub recheck: Option<Duration>,
}

/// Groups granted evictions by the state of their pods. An eviction is dropped if its pod is being deleted or no longer
/// exists. It is also dropped if the pod with this name was created after the eviction: such a pod replaces the evicted
/// one, for example in a StatefulSet. Upstream: pkg/controller/disruption, buildDisruptedPodMap.
///
/// Both times are whole seconds of the API server. Within the same second the pod may be the evicted one.
pub fn disrupted(noted: &[(Str, Time)], pods: &[Arc<Pod>], now: Timestamp) -> GrantedEvictions {
    let mut disrupted = GrantedEvictions::default();
    if noted.is_empty() {
        return disrupted;
    }
    // Both lists may have thousands of entries.
    let staying: HashMap<&Str, &Arc<Pod>> =
        pods.iter().filter(|pod| !pod.meta.is_deleting()).map(|pod| (&pod.meta.name, pod)).collect();
    for (name, since) in noted {
        let Some(&pod) = staying.get(name).filter(|pod| pod.meta.created.0 <= since.0) else { continue };
        let due = i128::from(since.0) * 1_000_000_000 + DELETION_TIMEOUT.as_nanos() as i128;
        match u64::try_from(due - now.as_nanosecond()) {
            Ok(left) => {
                // The eviction is overdue one millisecond after this time.
                let wait = Duration::from_nanos(left) + Duration::from_millis(1);
                disrupted.recheck = Some(disrupted.recheck.map_or(wait, |earliest| earliest.min(wait)));
                disrupted.pending.push((name.clone(), *since));
            }
            Err(_) => disrupted.overdue.push(pod.clone()),
        }
    }
    disrupted
}

/// Returns the number of ready pods that are not being deleted and have no pending eviction.
pub fn healthy(pods: &[Arc<Pod>], pending: &[(Str, Time)]) -> i32 {
    let pending: HashSet<&Str> = pending.iter().map(|(name, _)| name).collect();
    let stays = |pod: &Pod| !pod.meta.is_deleting() && !pending.contains(&pod.meta.name);
    count(pods.iter().filter(|pod| pod.ready && stays(pod)).count())
}

/// Converts a number of pods to the API's type.
pub fn count(pods: usize) -> i32 {
    i32::try_from(pods).unwrap_or(i32::MAX)
}

/// Returns the status of a budget whose pods were counted. Without expected pods none may be disrupted, so that a
/// budget that was created before its pods protects them from the start. Upstream: pkg/controller/disruption,
/// updatePdbStatus.
pub fn status(
    budget: &PodDisruptionBudget,
    bounds: Bounds,
    healthy: i32,
    pending: Vec<(Str, Time)>,
    now: Timestamp,
) -> BudgetStatus {
    let spare = if bounds.expected > 0 { healthy.saturating_sub(bounds.desired).max(0) } else { 0 };
    let generation = budget.meta.generation;
    let (status, reason) = if spare > 0 { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    BudgetStatus {
        observed_generation: generation,
        disrupted_pods: pending,
        disruptions_allowed: spare,
        current_healthy: healthy,
        desired_healthy: bounds.desired,
        expected_pods: bounds.expected,
        allowed: Some(condition(budget, status, reason, "", generation, now)),
    }
}

/// Returns the maximum delay of a status write, from the time at which the status first differed from the written one.
///
/// Counts on which no eviction depends are delayed: healthy and expected pods, while the number of allowed disruptions
/// does not change, and the healthy pods neither reach the required number nor fall below it. All other changes are
/// written immediately: a smaller number prevents evictions, and clients retry until it is larger.
pub fn write_delay(before: &BudgetStatus, after: &BudgetStatus) -> Duration {
    let is_kept = |status: &BudgetStatus| status.current_healthy >= status.desired_healthy;
    let counts =
        BudgetStatus { current_healthy: after.current_healthy, expected_pods: after.expected_pods, ..before.clone() };
    if before.allowed.is_none() || before == after {
        Duration::ZERO
    } else if counts == *after && is_kept(before) == is_kept(after) {
        MINOR_CHANGE
    } else {
        Duration::ZERO
    }
}

/// Returns the status of a budget whose pods could not be counted: no disruption is allowed, and the counts keep their
/// values. Upstream: pkg/controller/disruption, failSafe.
pub fn failed(budget: &PodDisruptionBudget, why: &str, now: Timestamp) -> BudgetStatus {
    let observed = budget.status.observed_generation;
    BudgetStatus {
        disruptions_allowed: 0,
        allowed: Some(condition(budget, "False", "SyncFailed", why, observed, now)),
        ..budget.status.clone()
    }
}

fn condition(
    budget: &PodDisruptionBudget,
    status: &str,
    reason: &str,
    message: &str,
    observed_generation: i64,
    now: Timestamp,
) -> AllowedCondition {
    let before = budget.status.allowed.as_ref().filter(|before| *before.status == *status);
    AllowedCondition {
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation,
        last_transition: before.map_or(Time(now.as_second()), |before| before.last_transition),
    }
}
