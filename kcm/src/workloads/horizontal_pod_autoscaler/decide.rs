//! Policy: the number of pods of a target and its autoscaler's status, given the metrics' proposals.
//!
//! Upstream: pkg/controller/podautoscaler, reconcileAutoscaler.

use std::time::Duration;

use jiff::Timestamp;
use kinds::Time;
use kinds::horizontal_pod_autoscaler::{
    AutoscalerCondition, AutoscalerStatus, HorizontalPodAutoscaler, Metric, MetricStatus, Source,
};
use runtime::text::{MAX_MESSAGE_BYTES, shortened};

use super::pace::{Memory, PacedReplicas, Range};
use super::replicas::{Measurement, Tolerances};

/// Condition: the target can be scaled.
pub const ABLE_TO_SCALE: &str = "AbleToScale";
/// Condition: metrics scale the target.
pub const SCALING_ACTIVE: &str = "ScalingActive";
/// Condition: a limit changed the number of pods that metrics propose.
pub const SCALING_LIMITED: &str = "ScalingLimited";
/// Condition: the autoscaler has scaled the target to zero.
pub const SCALED_TO_ZERO: &str = "ScaledToZero";

/// A status that is being written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The status with the changes so far.
    pub status: AutoscalerStatus,
    now: Time,
}

impl Draft {
    /// Creates a draft that equals the current status.
    pub fn of(autoscaler: &HorizontalPodAutoscaler, now: Timestamp) -> Self {
        Self { status: autoscaler.status.clone(), now: Time(now.as_second()) }
    }

    /// Sets a condition; its time changes with its status only.
    ///
    /// Long messages are truncated: they may contain the selector of a custom resource's scale, and a status that is
    /// too large could never be written.
    pub fn set(&mut self, kind: &str, holds: bool, reason: &str, message: &str) {
        let message = shortened(message.to_owned(), MAX_MESSAGE_BYTES);
        let message = message.as_str();
        let status = if holds { "True" } else { "False" };
        let known = self.status.conditions.iter_mut().find(|condition| *condition.kind == *kind);
        match known {
            Some(condition) => {
                if *condition.status != *status {
                    condition.status = status.into();
                    condition.last_transition = self.now;
                }
                condition.reason = reason.into();
                condition.message = message.into();
            }
            None => self.status.conditions.push(AutoscalerCondition {
                kind: kind.into(),
                status: status.into(),
                reason: reason.into(),
                message: message.into(),
                last_transition: self.now,
                observed_generation: None,
            }),
        }
    }

    /// Removes a condition.
    pub fn remove(&mut self, kind: &str) {
        self.status.conditions.retain(|condition| *condition.kind != *kind);
    }

    /// Sets the observed state of the target and its metrics.
    pub fn set_observed(
        &mut self,
        autoscaler: &HorizontalPodAutoscaler,
        current: i32,
        metrics: Vec<MetricStatus>,
        gates: Gates,
    ) {
        self.status.observed_generation = gates.generation.then_some(autoscaler.meta.generation);
        self.status.current_replicas = current;
        self.status.current_metrics = metrics;
    }

    /// Sets the time of the last scaling to now.
    pub fn scaled(&mut self) {
        self.status.last_scale = Some(self.now);
    }
}

/// Feature gates that change decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    /// HPAScaleToZero
    pub scale_to_zero: bool,
    /// HPAGeneration
    pub generation: bool,
    /// HPAConfigurableTolerance
    pub configurable_tolerance: bool,
    /// PodLevelResources
    pub pod_level_resources: bool,
    /// HPAOptimizedSelectorStore
    pub optimized_selectors: bool,
}

/// Returns the tolerances: relative deviations of metrics from their target values up to which the workload is not
/// scaled.
pub fn tolerances(autoscaler: &HorizontalPodAutoscaler, usual: f64, gates: Gates) -> Tolerances {
    let behavior = autoscaler.behavior.as_deref().filter(|_| gates.configurable_tolerance);
    let own = |tolerance: Option<f64>| tolerance.unwrap_or(usual);
    Tolerances {
        down: own(behavior.and_then(|behavior| behavior.down.tolerance)),
        up: own(behavior.and_then(|behavior| behavior.up.tolerance)),
    }
}

/// The source of the number of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleSource {
    /// No source, which disables the autoscaler: the target has no pods, and either the autoscaler did not scale it to
    /// zero (gate HPAScaleToZero), or the minimum is zero and no metric exists without pods.
    Disabled,
    /// A bound of the spec, with the reason.
    Bound(i32, &'static str),
    /// The metrics.
    Metrics,
}

/// Returns the minimum number of pods; 1 if the spec does not set it.
pub fn min_replicas(autoscaler: &HorizontalPodAutoscaler) -> i32 {
    autoscaler.min_replicas.unwrap_or(1)
}

fn has_metrics_without_pods(autoscaler: &HorizontalPodAutoscaler) -> bool {
    let others = |metric: &Metric| matches!(metric.source, Source::Object { .. } | Source::External(_));
    autoscaler.metrics.iter().any(others)
}

fn has_scaled_to_zero(autoscaler: &HorizontalPodAutoscaler, gates: Gates) -> bool {
    let is_set = autoscaler.status.condition(SCALED_TO_ZERO).is_some_and(|condition| &*condition.status == "True");
    gates.scale_to_zero && is_set
}

const BELOW_MIN: &str = "Current number of replicas below Spec.MinReplicas";

/// Returns the source of the number of pods for a target with `current` replicas.
pub fn scale_source(autoscaler: &HorizontalPodAutoscaler, current: i32, gates: Gates) -> ScaleSource {
    let min = min_replicas(autoscaler);
    if current == 0 {
        let is_own_zero = has_scaled_to_zero(autoscaler, gates);
        let can_scale_up = is_own_zero && (min != 0 || has_metrics_without_pods(autoscaler));
        if can_scale_up { ScaleSource::Metrics } else { ScaleSource::Disabled }
    } else if current > autoscaler.max_replicas {
        ScaleSource::Bound(autoscaler.max_replicas, "Current number of replicas above Spec.MaxReplicas")
    } else if current < min {
        ScaleSource::Bound(min, BELOW_MIN)
    } else {
        ScaleSource::Metrics
    }
}

/// Returns true if scaling to `to` sets the condition `ScaledToZero`.
pub fn sets_scaled_to_zero(autoscaler: &HorizontalPodAutoscaler, current: i32, to: i32, gates: Gates) -> bool {
    let is_allowed = gates.scale_to_zero && min_replicas(autoscaler) == 0 && has_metrics_without_pods(autoscaler);
    is_allowed && current > 0 && to == 0
}

/// Sets the condition `ScaledToZero`, with the status `zero`; without the gate, removes it.
pub fn set_scaled_to_zero(draft: &mut Draft, zero: bool, gates: Gates) {
    match (gates.scale_to_zero, zero) {
        (false, _) => draft.remove(SCALED_TO_ZERO),
        (true, true) => {
            draft.set(SCALED_TO_ZERO, true, "ScaledToZero", "the HPA controller scaled the workload to zero")
        }
        (true, false) => {
            draft.set(SCALED_TO_ZERO, false, "NotScaledToZero", "the HPA controller did not scale the workload to zero")
        }
    }
}

/// Sets the condition `ScaledToZero` to false if the target has pods.
///
/// The condition is set before the target is scaled to zero. If another client scales the target at the same time, or
/// this process ends in between, the condition would remain true. If a user scaled to zero later, the condition would
/// attribute that to this controller, which would scale up again.
pub fn clear_scaled_to_zero(autoscaler: &HorizontalPodAutoscaler, current: i32, draft: &mut Draft, gates: Gates) {
    if current > 0 && has_scaled_to_zero(autoscaler, gates) {
        set_scaled_to_zero(draft, false, gates);
    }
}

/// The reason why a metric has no usable value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Reason of the event, and of the condition.
    pub reason: &'static str,
    /// Message of the event, and of the condition.
    pub message: String,
    /// Message of the sync's error, which wraps `message`.
    pub outer: String,
    /// The cause is the autoscaler's spec.
    pub spec: bool,
}

/// The number of pods that a metric proposes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// Number of pods.
    pub replicas: i32,
    /// The metric's name in messages.
    pub name: String,
    /// The measured value.
    pub status: MetricStatus,
}

/// Returns the proposal or failure of a metric. Upstream: pkg/controller/podautoscaler, computeStatusForObjectMetric
/// and the same functions of the other metric sources.
pub fn proposal(metric: &Metric, measured: Measurement) -> Result<Proposal, Failure> {
    let (reason, name) = match &metric.source {
        Source::Resource { name } => {
            let share = " utilization (percentage of request)";
            let share = if metric.target.average_value.is_some() { "" } else { share };
            ("FailedGetResourceMetric", format!("{name} resource{share}"))
        }
        Source::ContainerResource { name, .. } => {
            let plain = metric.target.average_value.is_some();
            let suffix = if plain { "resource" } else { "container resource utilization (percentage of request)" };
            ("FailedGetContainerResourceMetric", format!("{name} {suffix}"))
        }
        Source::Pods(metric) => ("FailedGetPodsMetric", format!("pods metric {}", metric.name)),
        Source::Object { described, metric: id } => {
            let whole = format!("{} metric {}", described.kind, id.name);
            let shared = format!("external metric {}({})", id.name, id.selector_text());
            ("FailedGetObjectMetric", if is_shared(metric) { shared } else { whole })
        }
        Source::External(id) => {
            ("FailedGetExternalMetric", format!("external metric {}({})", id.name, id.selector_text()))
        }
        Source::Unknown(_) => ("InvalidMetricSourceType", String::new()),
    };
    match measured {
        Ok((replicas, current)) => {
            let status = MetricStatus { source: metric.source.clone(), current };
            Ok(Proposal { replicas, name, status })
        }
        Err(message) => Err(failure(metric, reason, message)),
    }
}

/// Returns true if an object's metric is divided by the number of pods.
pub fn is_shared(metric: &Metric) -> bool {
    &*metric.target.kind == "AverageValue"
}

fn failure(metric: &Metric, reason: &'static str, detail: String) -> Failure {
    let of_resource = |name: &str| match (metric.target.average_value, metric.target.average_utilization) {
        (Some(_), _) => format!("failed to get {name} usage: {detail}"),
        (None, Some(_)) => format!("failed to get {name} utilization: {detail}"),
        (None, None) => detail.clone(),
    };
    let known = has_goal(metric);
    let (message, outer) = match &metric.source {
        Source::Resource { name } => {
            let message = of_resource(name);
            let outer = format!("failed to get {name} resource metric value: {message}");
            (message, outer)
        }
        Source::ContainerResource { name, container } => {
            let message = of_resource(name);
            let outer = format!("failed to get {container} container metric value: {message}");
            (message, outer)
        }
        Source::Pods(_) => (detail.clone(), format!("failed to get pods metric value: {detail}")),
        Source::Object { metric: id, .. } => {
            let inner = if is_shared(metric) && known {
                format!("failed to get {} object metric: {detail}", id.name)
            } else {
                detail.clone()
            };
            (detail, format!("failed to get object metric value: {inner}"))
        }
        Source::External(id) => {
            let inner = match (metric.target.average_value, known) {
                (Some(_), _) => format!("failed to get {} external metric: {detail}", id.name),
                (None, true) => format!("failed to get external metric {}: {detail}", id.name),
                (None, false) => detail.clone(),
            };
            (detail, format!("failed to get {} external metric value: {inner}", id.name))
        }
        Source::Unknown(_) => (detail.clone(), detail),
    };
    let spec = matches!(metric.source, Source::Unknown(_));
    Failure { reason, message, outer, spec }
}

/// Returns true if a metric has a target of a type that its source supports.
pub fn has_goal(metric: &Metric) -> bool {
    let target = &metric.target;
    match &metric.source {
        Source::Resource { .. } | Source::ContainerResource { .. } => {
            target.average_value.is_some() || target.average_utilization.is_some()
        }
        Source::Pods(_) => target.average_value.is_some(),
        Source::Object { .. } if is_shared(metric) => target.average_value.is_some(),
        Source::Object { .. } => &*target.kind == "Value" && target.value.is_some(),
        Source::External(_) => target.average_value.is_some() || target.value.is_some(),
        Source::Unknown(_) => false,
    }
}

/// The combined proposal of all metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CombinedProposal {
    /// The highest number of pods and its metric's name; `None` if failed metrics prevent a decision, or no metric is
    /// set.
    pub wanted: Option<(i32, String)>,
    /// The measured values; [`MetricStatus::unknown`] for a failed metric.
    pub statuses: Vec<MetricStatus>,
    /// The number of failed metrics and the first failure, even if they do not prevent a decision; or the message that
    /// no metric is set.
    pub error: Option<String>,
    /// The cause of the first failure is the autoscaler's spec.
    pub spec: bool,
}

/// Returns the highest proposal. If a metric failed, the others must not scale down. Upstream:
/// pkg/controller/podautoscaler, computeReplicasForMetrics.
pub fn combine(proposals: Vec<Result<Proposal, Failure>>, current: i32, draft: &mut Draft) -> CombinedProposal {
    let mut wanted = None::<(i32, String)>;
    let mut statuses = Vec::new();
    let mut failures = Vec::new();
    let metrics = proposals.len();
    for proposal in proposals {
        match proposal {
            Ok(proposal) => {
                if wanted.as_ref().is_none_or(|(most, _)| *most == 0 || proposal.replicas > *most) {
                    wanted = Some((proposal.replicas, proposal.name));
                }
                statuses.push(proposal.status);
            }
            Err(failure) => {
                failures.push(failure);
                statuses.push(MetricStatus::unknown());
            }
        }
    }
    let error = failures.first().map(|first| {
        format!("invalid metrics ({} invalid out of {metrics}), first error is: {}", failures.len(), first.outer)
    });
    let spec = failures.first().is_some_and(|first| first.spec);
    let known = wanted.filter(|(replicas, _)| failures.is_empty() || *replicas >= current);
    match (&known, failures.first()) {
        (Some((_, name)), _) => draft.set(
            SCALING_ACTIVE,
            true,
            "ValidMetricFound",
            &format!("the HPA was able to successfully calculate a replica count from {name}"),
        ),
        (None, Some(first)) => {
            let message = format!("the HPA was unable to compute the replica count: {}", first.message);
            draft.set(SCALING_ACTIVE, false, first.reason, &message);
        }
        (None, None) => {}
    }
    let error = error.or_else(|| known.is_none().then(|| "the spec names no metric".to_owned()));
    CombinedProposal { wanted: known, statuses, error, spec }
}

/// Returns the number of pods that the target gets if metrics propose `wanted`, and the reason for the event. Sets the
/// conditions `AbleToScale` and `ScalingLimited`.
pub fn settle(
    autoscaler: &HorizontalPodAutoscaler,
    memory: &mut Memory,
    current: i32,
    (wanted, name): (i32, &str),
    draft: &mut Draft,
    (window, now, gates): (Duration, Duration, Gates),
) -> (i32, String) {
    let wanted = wanted.max(0);
    let mut reason = match wanted.cmp(&current) {
        std::cmp::Ordering::Greater => format!("{name} above target"),
        std::cmp::Ordering::Less => "All metrics below target".to_owned(),
        std::cmp::Ordering::Equal => String::new(),
    };
    let range = Range { min: min_replicas(autoscaler), max: autoscaler.max_replicas, current };
    let paced = memory.pace(wanted, range, autoscaler.behavior.as_deref(), window, now);
    let PacedReplicas { mut replicas, able_text, is_limited, limit_text } = paced;
    draft.set(ABLE_TO_SCALE, true, able_text.0, able_text.1);
    draft.set(SCALING_LIMITED, is_limited, limit_text.0, limit_text.1);
    // The controller scaled to zero while the spec allowed zero, and the spec no longer allows it.
    if current == 0 && range.min != 0 && has_scaled_to_zero(autoscaler, gates) && replicas < range.min {
        replicas = range.min;
        if reason.is_empty() {
            BELOW_MIN.clone_into(&mut reason);
        }
    }
    (replicas, reason)
}
