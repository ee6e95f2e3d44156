//! Metrics of the controller, under upstream's names. Upstream: pkg/controller/podautoscaler/monitor.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kinds::HorizontalPodAutoscaler;
use kinds::meta::ObjectKey;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::lock::lock;
use runtime::metrics::{Histograms, counters, gauges, powers_of_two};
use runtime::store::Store;

/// The change of the number of pods by a sync or a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// The number increases.
    Up,
    /// The number decreases.
    Down,
    /// The number does not change.
    None,
}

impl Action {
    /// Returns the action that changes one number to another.
    pub fn of(from: i32, to: i32) -> Self {
        match to.cmp(&from) {
            std::cmp::Ordering::Greater => Self::Up,
            std::cmp::Ordering::Less => Self::Down,
            std::cmp::Ordering::Equal => Self::None,
        }
    }

    fn label(self) -> String {
        match self {
            Self::Up => "scale_up",
            Self::Down => "scale_down",
            Self::None => "none",
        }
        .to_owned()
    }
}

/// The cause of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The autoscaler's spec.
    Spec,
    /// Anything else.
    Internal,
    /// No error.
    None,
}

impl Fault {
    fn label(self) -> String {
        match self {
            Self::Spec => "spec",
            Self::Internal => "internal",
            Self::None => "none",
        }
        .to_owned()
    }
}

const RECONCILIATIONS_HELP: &str = "Number of reconciliations of HPA controller. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label.";
const RECONCILIATION_DURATION_HELP: &str = "The time(seconds) that the HPA controller takes to reconcile once. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. Note that if both spec and internal errors happen during a reconciliation, the first one to occur is reported in `error` label.";
const COMPUTATIONS_HELP: &str = "Number of metric computations. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. Also, the label 'error' should be either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to HPA.spec.metrics[*].type";
const COMPUTATION_DURATION_HELP: &str = "The time(seconds) that the HPA controller takes to calculate one metric. The label 'action' should be either 'scale_down', 'scale_up', or 'none'. The label 'error' should be either 'spec', 'internal', or 'none'. The label 'metric_type' corresponds to HPA.spec.metrics[*].type";

type Metric = (Action, Fault, String);

#[derive(Debug, Default)]
struct State {
    reconciled: HashMap<(Action, Fault), u64>,
    measured: HashMap<Metric, u64>,
    desired: HashMap<ObjectKey, i32>,
    stale: u64,
}

/// The metrics.
pub struct Counts {
    state: Mutex<State>,
    reconciled: Histograms<2>,
    measured: Histograms<3>,
    autoscalers: Arc<Store<HorizontalPodAutoscaler>>,
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counts").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Counts {
    /// Creates empty metrics.
    pub fn new(autoscalers: Arc<Store<HorizontalPodAutoscaler>>) -> Self {
        let bounds = || powers_of_two(0.001, 15);
        let (reconciled, measured) = (Histograms::new(bounds()), Histograms::new(bounds()));
        Self { state: Mutex::default(), reconciled, measured, autoscalers }
    }

    /// Records a finished sync.
    pub fn reconciled(&self, action: Action, fault: Fault, took: Duration) {
        let labels = [("action", action.label()), ("error", fault.label())];
        self.reconciled.observe(labels, took.as_secs_f64());
        self.with(|state| *state.reconciled.entry((action, fault)).or_default() += 1);
    }

    /// Records the measurement of a metric.
    pub fn measured(&self, action: Action, fault: Fault, kind: &str, took: Duration) {
        let labels = [("action", action.label()), ("error", fault.label()), ("metric_type", kind.to_owned())];
        self.measured.observe(labels, took.as_secs_f64());
        self.with(|state| *state.measured.entry((action, fault, kind.to_owned())).or_default() += 1);
    }

    /// Records the desired number of pods of an autoscaler.
    pub fn desired(&self, key: &ObjectKey, replicas: i32) {
        self.with(|state| state.desired.insert(key.clone(), replicas));
    }

    /// Records that a sync had to wait for the cache.
    pub fn stale(&self) {
        self.with(|state| state.stale += 1);
    }

    /// Removes the series of a deleted autoscaler.
    pub fn forget(&self, key: &ObjectKey) {
        self.with(|state| state.desired.remove(key));
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut lock(&self.state))
    }
}

impl Collector for Counts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let prefix = "horizontal_pod_autoscaler_controller_";
        let name = |name: &str| format!("{prefix}{name}");
        let (reconciled, measured, desired, stale) = self.with(|state| {
            let reconciled: Vec<_> = state.reconciled.iter().map(|(labels, count)| (*labels, *count)).collect();
            let measured: Vec<_> = state.measured.iter().map(|(labels, count)| (labels.clone(), *count)).collect();
            let desired: Vec<_> = state.desired.iter().map(|(key, replicas)| (key.clone(), *replicas)).collect();
            (reconciled, measured, desired, state.stale)
        });
        let counted = reconciled
            .into_iter()
            .map(|((action, fault), count)| ([("action", action.label()), ("error", fault.label())], count as f64));
        counters(encoder, &name("reconciliations"), RECONCILIATIONS_HELP, counted)?;
        self.reconciled.encode(encoder, &name("reconciliation_duration_seconds"), RECONCILIATION_DURATION_HELP)?;
        let counted = measured.into_iter().map(|((action, fault, kind), count)| {
            ([("action", action.label()), ("error", fault.label()), ("metric_type", kind)], count as f64)
        });
        counters(encoder, &name("metric_computation"), COMPUTATIONS_HELP, counted)?;
        self.measured.encode(encoder, &name("metric_computation_duration_seconds"), COMPUTATION_DURATION_HELP)?;
        gauges(
            encoder,
            &name("num_horizontal_pod_autoscalers"),
            "Current number of controlled HPA objects.",
            [([], self.autoscalers.len() as f64)],
        )?;
        let wanted = desired.into_iter().map(|(key, replicas)| {
            ([("namespace", key.namespace.to_string()), ("hpa_name", key.name.to_string())], f64::from(replicas))
        });
        gauges(encoder, &name("desired_replicas"), "Current desired replica count for HPA objects.", wanted)?;
        let labels = [("group", "autoscaling".to_owned()), ("resource", "horizontalpodautoscalers".to_owned())];
        let help = "Total number of HPA syncs skipped due to a stale watch cache.";
        // The series begins with the first skip, as in upstream.
        let skips = (stale > 0).then_some((labels, stale as f64));
        counters(encoder, &name("stale_sync_skips"), help, skips)
    }
}

#[cfg(test)]
mod tests {
    use kinds::{Decode, Sections};
    use runtime::metrics::Metrics;
    use runtime::testing::filled_store;

    use super::*;

    #[test]
    fn syncs_and_measurements_are_counted_by_action_and_error() {
        let decode = Decode { interner: Arc::default(), sections: Sections::default() };
        let store: Store<HorizontalPodAutoscaler> = filled_store(decode, vec![], []);
        let counts = Arc::new(Counts::new(Arc::new(store)));
        let metrics = Metrics::default();
        metrics.collect(counts.clone());
        let took = Duration::from_millis(3);
        counts.reconciled(Action::Up, Fault::None, took);
        counts.reconciled(Action::None, Fault::Internal, took);
        counts.reconciled(Action::None, Fault::Internal, took);
        counts.measured(Action::of(3, 1), Fault::None, "Resource", took);
        assert!(!metrics.text().contains("stale_sync_skips_total{"), "no sync was skipped yet");
        counts.stale();
        counts.desired(&ObjectKey::new("shop", "web"), 4);
        counts.desired(&ObjectKey::new("shop", "deleted"), 1);
        counts.forget(&ObjectKey::new("shop", "deleted"));
        let text = metrics.text();
        let prefix = "horizontal_pod_autoscaler_controller_";
        for line in [
            "reconciliations_total{action=\"scale_up\",error=\"none\"} 1.0",
            "reconciliations_total{action=\"none\",error=\"internal\"} 2.0",
            "reconciliation_duration_seconds_count{action=\"none\",error=\"internal\"} 2",
            "metric_computation_total{action=\"scale_down\",error=\"none\",metric_type=\"Resource\"} 1.0",
            "metric_computation_duration_seconds_count{action=\"scale_down\",error=\"none\",metric_type=\"Resource\"} 1",
            "desired_replicas{namespace=\"shop\",hpa_name=\"web\"} 4.0",
            "num_horizontal_pod_autoscalers 0.0",
            "stale_sync_skips_total{group=\"autoscaling\",resource=\"horizontalpodautoscalers\"} 1.0",
        ] {
            assert!(text.lines().any(|own| own == format!("{prefix}{line}")), "{line} is not in\n{text}");
        }
        assert!(!text.contains("deleted"), "{text}");
        for (name, help) in [
            ("reconciliations_total", RECONCILIATIONS_HELP),
            ("reconciliation_duration_seconds", RECONCILIATION_DURATION_HELP),
            ("metric_computation_total", COMPUTATIONS_HELP),
            ("metric_computation_duration_seconds", COMPUTATION_DURATION_HELP),
            ("num_horizontal_pod_autoscalers", "Current number of controlled HPA objects."),
            ("desired_replicas", "Current desired replica count for HPA objects."),
            ("stale_sync_skips_total", "Total number of HPA syncs skipped due to a stale watch cache."),
        ] {
            let line = format!("# HELP {prefix}{name} {help}");
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
    }
}
