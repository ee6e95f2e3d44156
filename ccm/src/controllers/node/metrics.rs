//! Delays of new nodes, under upstream's names.

use runtime::metrics::{Metrics, Seconds};

/// Bounds in seconds. Upstream: cloud-provider controllers/node, metrics.
const BOUNDS: [f64; 6] = [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0];

/// The time from a node's creation to its initialization.
pub(super) struct Delays {
    taint_removal: Seconds,
    initial_sync: Seconds,
}

impl Delays {
    pub(super) fn register(metrics: &Metrics) -> Self {
        Self {
            taint_removal: metrics.seconds(
                "node_controller_cloud_provider_taint_removal_delay_seconds",
                "Number of seconds after node creation when NodeController removed the cloud-provider taint of a single node.",
                &BOUNDS,
            ),
            initial_sync: metrics.seconds(
                "node_controller_initial_node_sync_delay_seconds",
                "Number of seconds after node creation when NodeController finished the initial synchronization of a single node.",
                &BOUNDS,
            ),
        }
    }

    /// Records that a node was initialized this number of seconds after its creation.
    pub(super) fn observe(&self, seconds: i64) {
        self.taint_removal.observe(seconds as f64);
        self.initial_sync.observe(seconds as f64);
    }
}
