//! How many pods a metric asks for (pkg/controller/podautoscaler, ReplicaCalculator): all arithmetic, no IO.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kinds::horizontal_pod_autoscaler::Current;
use kinds::pod::{Phase, Readiness, Requests};
use kinds::{Pod, Time};

use super::requests;

/// What was measured of one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// The amount, in thousandths.
    pub value: i64,
    /// When it was measured.
    pub time: Time,
    /// Over how long a time before that.
    pub window: Duration,
}

/// What was measured, by the pods' names.
pub type Samples = HashMap<String, Sample>;

/// By which part of the target a metric may differ from it without scaling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerances {
    /// Below the target.
    pub down: f64,
    /// Above the target.
    pub up: f64,
}

impl Tolerances {
    fn allow(self, ratio: f64) -> bool {
        (1.0 - self.down..=1.0 + self.up).contains(&ratio)
    }
}

/// For how long pods that start are judged with care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How long after its start a pod's CPU samples may be left out.
    pub cpu_initialization: Duration,
    /// How long after its start a change of readiness counts as the first.
    pub initial_readiness: Duration,
}

/// What a pod's metric should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goal<'a> {
    /// A percentage of what the pods, or one container of each, request of a resource.
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
    /// This many thousandths per pod.
    Amount(i64),
}

/// Number of pods that a metric asks for, and what it is now.
pub type Measured = Result<(i32, Current), String>;

/// How samples compare with a goal.
struct Usage {
    ratio: f64,
    current: Current,
}

const NO_PODS: &str = "no pods returned by selector while calculating replica count";

/// Pods by what their samples are worth.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Groups<'a> {
    /// Pods whose samples count.
    pub ready: usize,
    /// Pods that do not work yet.
    pub unready: Vec<&'a str>,
    /// Pods without samples.
    pub missing: Vec<&'a str>,
    /// Pods that are going or failed.
    pub ignored: Vec<&'a str>,
}

/// Returns a time some seconds after a timestamp of the API.
fn nanos_after(time: Time, wait: Duration) -> i128 {
    i128::from(time.0) * 1_000_000_000 + wait.as_nanos() as i128
}

/// Reports whether a CPU sample is not usable yet, because the pod starts or never was ready.
fn is_warming_up(pod: &Pod, requests: &Requests, sample: &Sample, patience: Patience, now: Timestamp) -> bool {
    if requests.readiness == Readiness::Untold || requests.started.is_zero() {
        return true;
    }
    let unready = requests.readiness == Readiness::Unready;
    let since = i128::from(pod.ready_since.0) * 1_000_000_000;
    if nanos_after(requests.started, patience.cpu_initialization) > now.as_nanosecond() {
        // A whole window must have been measured since readiness changed.
        unready || i128::from(sample.time.0) * 1_000_000_000 < nanos_after(pod.ready_since, sample.window)
    } else {
        unready && nanos_after(requests.started, patience.initial_readiness) > since
    }
}

/// Sorts pods by what their samples are worth (pkg/controller/podautoscaler, groupPods).
pub(super) fn group<'a>(
    pods: &'a [Arc<Pod>],
    samples: &Samples,
    cpu: bool,
    patience: Patience,
    now: Timestamp,
) -> Groups<'a> {
    let mut groups = Groups::default();
    let untold = Requests::default();
    for pod in pods {
        let name = &*pod.meta.name;
        let told = pod.requests.as_deref().unwrap_or(&untold);
        if pod.meta.is_deleting() || pod.phase == Phase::Failed {
            groups.ignored.push(name);
        } else if pod.phase == Phase::Pending {
            groups.unready.push(name);
        } else {
            match samples.get(name) {
                None => groups.missing.push(name),
                Some(sample) if cpu && is_warming_up(pod, told, sample, patience, now) => groups.unready.push(name),
                Some(_) => groups.ready += 1,
            }
        }
    }
    groups
}

/// Returns the number of pods that something measured of each pod asks for; `cpu` if it is their use of CPU
/// (GetResourceReplicas, GetRawResourceReplicas, GetMetricReplicas). Pods that are missing or not ready yet count
/// against a change, and never turn its direction.
///
/// # Errors
/// When nothing can be said of the pods.
pub fn of_pods(
    pods: &[Arc<Pod>],
    mut samples: Samples,
    replicas: i32,
    (goal, cpu): (Goal<'_>, bool),
    tolerances: Tolerances,
    (patience, now): (Patience, Timestamp),
) -> Measured {
    if pods.is_empty() {
        return Err(NO_PODS.to_owned());
    }
    let groups = group(pods, &samples, cpu, patience, now);
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
    let held_up = !groups.unready.is_empty() && ratio > 1.0;
    if !held_up && groups.missing.is_empty() {
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
    if held_up {
        groups.unready.iter().for_each(|name| assume(name, 0));
    }
    let careful = usage(&samples, goal, &requests)?.ratio;
    let turned = ratio < 1.0 && careful > 1.0 || ratio > 1.0 && careful < 1.0;
    if tolerances.allow(careful) || turned {
        return Ok((replicas, current));
    }
    let wanted = rounded_up(careful * samples.len() as f64);
    let backwards = careful < 1.0 && wanted > replicas || careful > 1.0 && wanted < replicas;
    Ok((if backwards { replicas } else { wanted }, current))
}

/// Returns what a pod without samples is taken to use before others are taken away.
fn full_use(goal: Goal<'_>, requests: &HashMap<&str, i64>, name: &str) -> i64 {
    match goal {
        Goal::Utilization { percent, .. } => {
            let request = i128::from(requests.get(name).copied().unwrap_or(0));
            narrowed(request * i128::from(percent.max(100)) / 100)
        }
        Goal::Amount(each) => each,
    }
}

/// GetResourceUtilizationRatio and GetMetricUsageRatio.
fn usage(samples: &Samples, goal: Goal<'_>, requests: &HashMap<&str, i64>) -> Result<Usage, String> {
    match goal {
        Goal::Utilization { percent, .. } => {
            let (mut used, mut asked, mut count) = (0i128, 0i128, 0i128);
            for (name, sample) in samples {
                let Some(request) = requests.get(&**name) else { continue };
                used += i128::from(sample.value);
                asked += i128::from(*request);
                count += 1;
            }
            if asked == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let utilization = i32::try_from(used * 100 / asked).unwrap_or(i32::MAX);
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

/// Returns the number of pods that a metric of something else than the pods asks for, which should have a certain value
/// (GetObjectMetricReplicas, GetExternalMetricReplicas). A target without pods gets as many as the ratio says.
///
/// # Errors
/// When there are no pods although the target asks for some.
pub fn of_value(
    value: i64,
    target: i64,
    replicas: i32,
    tolerances: Tolerances,
    pods: impl FnOnce() -> Vec<Arc<Pod>>,
) -> Measured {
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

/// Returns the number of pods that a metric of something else than the pods asks for, of which each pod should have a
/// part (GetObjectPerPodMetricReplicas, GetExternalPerPodMetricReplicas). `existing` pods share it now.
pub fn of_share(value: i64, each: i64, existing: i32, tolerances: Tolerances) -> (i32, Current) {
    let ratio = value as f64 / (each as f64 * f64::from(existing));
    let wanted = if tolerances.allow(ratio) { existing } else { rounded_up(value as f64 / each as f64) };
    // Without pods there is nothing to share between.
    let share = if value == i64::MAX { value } else { (value as f64 / f64::from(existing.max(1))).ceil() as i64 };
    (wanted, Current { average_value: Some(share), ..Current::default() })
}

/// Values added up, as far as numbers go.
pub fn total(values: impl IntoIterator<Item = i64>) -> i64 {
    narrowed(values.into_iter().map(i128::from).sum())
}

fn narrowed(number: i128) -> i64 {
    i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })
}

fn rounded_up(pods: f64) -> i32 {
    // What is too large for a number of pods becomes the largest one.
    pods.ceil() as i32
}
