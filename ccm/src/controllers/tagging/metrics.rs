//! Errors, and the time until the instances of new Nodes are tagged, under upstream's names.

use runtime::metrics::{Counts, Metrics, Seconds};

/// Bounds of the delays in seconds. Upstream: cloud-provider-aws, pkg/controllers/tagging, metrics.
const BOUNDS: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];

/// Metrics of the tagging controller.
pub(super) struct TaggingMetrics {
    errors: Counts<1>,
    delays: Seconds,
}

impl TaggingMetrics {
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            // Differs from upstream: no label with the instance, which would be a time series for each instance.
            errors: metrics.counts(
                "cloudprovider_aws_tagging_controller_work_item_errors",
                "any error in dequeueing the work queue and processing workItem",
            ),
            delays: metrics.seconds(
                // Upstream's spelling.
                "tagging_controller_inital_node_tagging_delay_seconds",
                "Latency (in seconds) between node creation and its first successful tagging by TaggingController.",
                &BOUNDS,
            ),
        }
    }

    /// Records a failure and whether it is retried.
    pub(super) fn failed(&self, is_retried: bool) {
        let kind = if is_retried { "total_errors" } else { "errors_after_retries_exhausted" };
        self.errors.add([("error_type", kind.to_owned())]);
    }

    /// Records that a Node's instance was first tagged this number of seconds after the Node's creation.
    pub(super) fn tagged(&self, seconds: i64) {
        self.delays.observe(seconds.max(0) as f64);
    }
}
