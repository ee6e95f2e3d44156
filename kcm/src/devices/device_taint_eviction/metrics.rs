//! Metrics of the controller, under upstream's names. Upstream: pkg/controller/devicetainteviction/metrics.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::metrics::{Histograms, counters};

/// Upper bounds of latencies, in seconds.
const BOUNDS: [f64; 12] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0];

/// The metrics.
#[derive(Debug)]
pub struct Metrics {
    deletions: AtomicU64,
    latencies: Histograms<0>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { deletions: AtomicU64::new(0), latencies: Histograms::new(BOUNDS.to_vec()) }
    }
}

impl Metrics {
    /// Counts a pod that was deleted this many seconds after it should have been.
    pub fn deleted(&self, seconds: f64) {
        self.deletions.fetch_add(1, Ordering::Relaxed);
        self.latencies.observe([], seconds);
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let deletions = self.deletions.load(Ordering::Relaxed) as f64;
        let (name, help) = ("device_taint_eviction_controller_pod_deletions", "Number of pods deleted since the start");
        counters(&mut encoder, name, help, [([], deletions)])?;
        let name = "device_taint_eviction_controller_pod_deletion_duration_seconds";
        let help = "Seconds between when a device's taint took effect for a pod and the pod's deletion";
        self.latencies.encode(&mut encoder, name, help)
    }
}
