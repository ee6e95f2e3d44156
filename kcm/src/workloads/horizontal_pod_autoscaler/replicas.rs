//! Policy: the number of pods that a metric proposes. Upstream: pkg/controller/podautoscaler, ReplicaCalculator.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::horizontal_pod_autoscaler::Current;
use kinds::pod::{Phase, Readiness, Requests};
use kinds::{Pod, Time};

use super::requests;

/// A measurement of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The amount, in thousandths.
    pub value: i64,
    /// The end of the measurement.
    pub time: Time,
    /// The duration of the measurement.
    pub window: Duration,
}

/// Measurements by the pods' names.
pub type Samples = HashMap<String, Sample>;

/// Relative deviations of a metric from its target value up to which the workload is not scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerances {
    /// Below the target value.
    pub down: f64,
    /// Above the target value.
    pub up: f64,
}

impl Tolerances {
    fn allow(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// Times after the start of a pod in which its samples may be unusable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartupPeriods {
    /// The time after its start in which a pod's CPU samples may be left out.
    pub cpu_initialization: Duration,
    /// The time after its start in which a change of readiness counts as the first one.
    pub initial_readiness: Duration,
}

/// The target of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal<'a> {
    /// A percentage of the requests of a resource, by the pods or by one container of each.
    Utilization {
        /// Percent.
        percent: i32,
        /// The resource.
        resource: &'a str,
        /// The container; empty for the whole pod.
        container: &'a str,
        /// Pod-level requests count (gate PodLevelResources).
        pod_level: bool,
    },
    /// An amount per pod, in thousandths.
    Amount(i64),
}

/// The number of pods that a metric proposes, and the metric's current value; or the reason why there is no proposal.
pub type Measurement = Result<(i32, Current), String>;

/// The ratio of samples to their goal.
struct Usage {
    ratio: f64,
    current: Current,
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";

/// Pods grouped by the use of their samples.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Groups<'a> {
    /// Pods whose samples count.
    pub ready: usize,
    /// Pods that are not ready yet.
    pub unready: Vec<&'a str>,
    /// Pods without samples.
    pub missing: Vec<&'a str>,
    /// Failed pods, and pods that are being deleted.
    pub ignored: Vec<&'a str>,
}

/// Returns the time that is `wait` after a timestamp of the API, in nanoseconds.
fn nanos_after(time: Time, wait: Duration) -> i128 {
    i128::from(time.0) * 1_000_000_000 + wait.as_nanos() as i128
}

/// Returns true if a CPU sample is not usable yet, because the pod is starting or was never ready.
fn is_warming_up(
    pod: &Pod,
    requests: &Requests,
    sample: &Sample,
    startup_periods: StartupPeriods,
    now: Timestamp,
) -> bool {
    if requests.readiness == Readiness::Unset || requests.started.is_zero() {
        return true;
    }
    let unready = requests.readiness == Readiness::Unready;
    let since = i128::from(pod.ready_since.0) * 1_000_000_000;
    if nanos_after(requests.started, startup_periods.cpu_initialization) > now.as_nanosecond() {
        // A whole window must have been measured since readiness changed.
        unready || i128::from(sample.time.0) * 1_000_000_000 < nanos_after(pod.ready_since, sample.window)
    } else {
        unready && nanos_after(requests.started, startup_periods.initial_readiness) > since
    }
}

/// Groups pods by the use of their samples. Upstream: pkg/controller/podautoscaler, groupPods.
pub(super) fn group<'a>(
    pods: &'a [Arc<Pod>],
    samples: &Samples,
    cpu: bool,
    startup_periods: StartupPeriods,
    now: Timestamp,
) -> Groups<'a> {
    let mut groups = Groups::default();
    let unknown = Requests::default();
    for pod in pods {
        let name = &*pod.meta.name;
        let requests = pod.requests.as_deref().unwrap_or(&unknown);
        if pod.meta.is_deleting() || pod.phase == Phase::Failed {
            groups.ignored.push(name);
        } else if pod.phase == Phase::Pending {
            groups.unready.push(name);
        } else {
            match samples.get(name) {
                None => groups.missing.push(name),
                Some(sample) if cpu && is_warming_up(pod, requests, sample, startup_periods, now) => {
                    groups.unready.push(name)
                }
                Some(_) => groups.ready += 1,
            }
        }
    }
    groups
}

/// Returns the number of pods that a metric of each pod proposes; `cpu` if it is their CPU usage (GetResourceReplicas,
/// GetRawResourceReplicas, GetMetricReplicas). Pods without samples, and pods that are not ready yet, make the change
/// smaller, but never reverse it.
///
/// # Errors
/// When there are no pods, no sample is usable, or a request is missing.
pub fn replicas_for_pod_metric(
    pods: &[Arc<Pod>],
    mut samples: Samples,
    replicas: i32,
    (goal, cpu): (Goal<'_>, bool),
    tolerances: Tolerances,
    (startup_periods, now): (StartupPeriods, Timestamp),
) -> Measurement {
    if pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let groups = group(pods, &samples, cpu, startup_periods, now);
    for name in groups.ignored.iter().chain(&groups.unready) {
        samples.remove(*name);
    }
    if samples.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
    }
    let requests = match goal {
        Goal::Utilization { resource, container, pod_level, .. } => {
            requests::of_pods(pods, container, resource, pod_level)?
        }
        Goal::Amount(_) => HashMap::new(),
    };
    let Usage { ratio, current } = usage(&samples, goal, &requests)?;
    let is_up_limited = !groups.unready.is_empty() && ratio > 1.0;
    if !is_up_limited && groups.missing.is_empty() {
        let wanted = if tolerances.allow(ratio) { replicas } else { rounded_up(ratio * groups.ready as f64) };
        return Ok((wanted, current));
    }
    let mut assume = |name: &str, value: i64| {
        samples.insert(name.to_owned(), Sample { value, time: Time::default(), window: Duration::ZERO });
    };
    for name in &groups.missing {
        if ratio < 1.0 {
            assume(name, full_use(goal, &requests, name));
        } else if ratio > 1.0 {
            assume(name, 0);
        }
    }
    if is_up_limited {
        groups.unready.iter().for_each(|name| assume(name, 0));
    }
    let adjusted = usage(&samples, goal, &requests)?.ratio;
    let is_reversed = ratio < 1.0 && adjusted > 1.0 || ratio > 1.0 && adjusted < 1.0;
    if tolerances.allow(adjusted) || is_reversed {
        return Ok((replicas, current));
    }
    let wanted = rounded_up(adjusted * samples.len() as f64);
    let is_backwards = adjusted < 1.0 && wanted > replicas || adjusted > 1.0 && wanted < replicas;
    Ok((if is_backwards { replicas } else { wanted }, current))
}

/// Returns the usage that is assumed for a pod without samples before scaling down.
fn full_use(goal: Goal<'_>, requests: &HashMap<&str, i64>, name: &str) -> i64 {
    match goal {
        Goal::Utilization { percent, .. } => {
            let request = i128::from(requests.get(name).copied().unwrap_or(0));
            narrowed(request * i128::from(percent.max(100)) / 100)
        }
        Goal::Amount(each) => each,
    }
}

/// Returns the usage and its ratio to the goal (GetResourceUtilizationRatio and GetMetricUsageRatio).
fn usage(samples: &Samples, goal: Goal<'_>, requests: &HashMap<&str, i64>) -> Result<Usage, String> {
    match goal {
        Goal::Utilization { percent, .. } => {
            let (mut used, mut requested, mut count) = (0i128, 0i128, 0i128);
            for (name, sample) in samples {
                let Some(request) = requests.get(&**name) else { continue };
                used += i128::from(sample.value);
                requested += i128::from(*request);
                count += 1;
            }
            if requested == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let utilization = i32::try_from(used * 100 / requested).unwrap_or(i32::MAX);
            let current = Current {
                average_utilization: Some(utilization),
                average_value: Some(narrowed(used / count)),
                value: None,
            };
            Ok(Usage { ratio: f64::from(utilization) / f64::from(percent), current })
        }
        Goal::Amount(each) => {
            let used: i128 = samples.values().map(|sample| i128::from(sample.value)).sum();
            let average = narrowed(used / (samples.len() as i128).max(1));
            let current = Current { average_value: Some(average), ..Current::default() };
            Ok(Usage { ratio: average as f64 / each as f64, current })
        }
    }
}

/// Returns the number of pods that an object or external metric with a target value proposes (GetObjectMetricReplicas,
/// GetExternalMetricReplicas). If `replicas`, the number of requested pods, is 0, the proposal is the ratio of the
/// value to the target value, rounded up.
///
/// # Errors
/// When no pods exist although some are requested, and the value is not within the tolerances.
pub fn replicas_for_target_value(
    value: i64,
    target: i64,
    replicas: i32,
    tolerances: Tolerances,
    pods: impl FnOnce() -> Vec<Arc<Pod>>,
) -> Measurement {
    let current = Current { value: Some(value), ..Current::default() };
    let ratio = value as f64 / target as f64;
    if replicas == 0 {
        return Ok((rounded_up(ratio), current));
    }
    if tolerances.allow(ratio) {
        return Ok((replicas, current));
    }
    let pods = pods();
    if pods.is_empty() {
        return Err(format!("unable to calculate ready pods: {NO_PODS}"));
    }
    let ready = pods.iter().filter(|pod| pod.phase == Phase::Running && pod.ready).count();
    Ok((rounded_up(ratio * ready as f64), current))
}

/// Returns the number of pods that an object or external metric with a target per pod proposes
/// (GetObjectPerPodMetricReplicas, GetExternalPerPodMetricReplicas). The value is divided among the `existing` pods.
///
/// Differs from upstream: a negative external value does not count as an overflow, which would scale to the maximum.
pub fn replicas_for_target_per_pod(
    value: i64,
    target_per_pod: i64,
    existing: i32,
    tolerances: Tolerances,
) -> (i32, Current) {
    let ratio = value as f64 / (target_per_pod as f64 * f64::from(existing));
    let proposed = if tolerances.allow(ratio) { existing } else { rounded_up(value as f64 / target_per_pod as f64) };
    // Without pods the whole value is the average.
    let average = if value == i64::MAX { value } else { (value as f64 / f64::from(existing.max(1))).ceil() as i64 };
    (proposed, Current { average_value: Some(average), ..Current::default() })
}

/// Returns the sum of values; it saturates.
pub fn total(values: impl IntoIterator<Item = i64>) -> i64 {
    narrowed(values.into_iter().map(i128::from).sum())
}

fn narrowed(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}

fn rounded_up(pods: f64) -> i32 {
    // The conversion saturates.
    pods.ceil() as i32
}
