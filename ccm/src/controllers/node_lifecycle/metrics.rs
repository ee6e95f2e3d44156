//! Durations of rounds and results of cloud calls, under upstream's names.

use std::time::Duration;

use providers::InstanceState;
use runtime::metrics::{Counts, Metrics, Seconds};

/// Bounds in seconds: from a millisecond, doubling. Upstream: cloud-provider controllers/nodelifecycle, metrics.
fn bounds() -> Vec<f64> {
    (0..15).map(|power| 0.001 * f64::from(1 << power)).collect()
}

/// Metrics of rounds.
pub(super) struct Rounds {
    duration: Seconds,
    calls: Counts<2>,
}

impl Rounds {
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            duration: metrics.seconds(
                "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds",
                "A metric measuring the duration in seconds of a single MonitorNodes loop execution.",
                &bounds(),
            ),
            calls: metrics.counts(
                "cloud_node_lifecycle_controller_cloud_provider_calls",
                "The total number of cloud provider API calls, labeled by operation and result.",
            ),
        }
    }

    pub(super) fn observe_duration(&self, time: Duration) {
        self.duration.observe(time.as_secs_f64());
    }

    /// Records the result for one instance, as the one or two calls that upstream would have made.
    pub(super) fn count_calls(&self, state: &InstanceState) {
        let count = |operation: &str, result: &str| {
            self.calls.add([("operation", operation.to_owned()), ("result", result.to_owned())]);
        };
        match state {
            InstanceState::Running(_) | InstanceState::Stopped => {
                count("instance_exists", "success");
                count("instance_shutdown", "success");
            }
            InstanceState::Gone => count("instance_exists", "instance_not_found"),
            InstanceState::Unknown(_) => count("instance_exists", "error"),
        }
    }
}
