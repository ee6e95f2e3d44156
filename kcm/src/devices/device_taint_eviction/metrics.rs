//! Metrics of the controller, under upstream's names. Upstream: pkg/controller/devicetainteviction/metrics.

use runtime::metrics::{Count, Metrics, Seconds};

/// Upper bounds of latencies, in seconds.
const BOUNDS: [f64; 12] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

/// Deletions of pods, and their delay.
pub struct Deletions {
    total: Count,
    latency: Seconds,
}

impl Deletions {
    /// Registers the metrics. Both are served before the first deletion, so that dashboards have no gap.
    pub fn register(metrics: &Metrics) -> Self {
        Self {
            total: metrics.count(
                "device_taint_eviction_controller_pod_deletions",
                "Total number of Pods deleted by DeviceTaintEvictionController since its start.",
            ),
            latency: metrics.seconds(
                "device_taint_eviction_controller_pod_deletion_duration_seconds",
                "Latency, in seconds, between the time when a device taint effect has been activated and a Pod's deletion via DeviceTaintEvictionController.",
                &BOUNDS,
            ),
        }
    }

    /// Counts a pod that was deleted this many seconds after it should have been.
    pub fn deleted(&self, seconds: f64) {
        self.total.add();
        self.latency.observe(seconds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_deletions_exist_before_the_first_one() {
        let metrics = Metrics::default();
        let deletions = Deletions::register(&metrics);
        let has = |line: &str| {
            let text = metrics.text();
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        };
        has("device_taint_eviction_controller_pod_deletions_total 0");
        has("device_taint_eviction_controller_pod_deletion_duration_seconds_count 0");
        deletions.deleted(2.0);
        has("device_taint_eviction_controller_pod_deletions_total 1");
        has("device_taint_eviction_controller_pod_deletion_duration_seconds_sum 2.0");
    }
}
