//! Counts and durations under upstream's names.
//!
//! Upstream: pkg/controller/volume/attachdetach/metrics and pkg/volume/util, metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use runtime::metrics::{Histograms, Metrics};
use tokio::time::Instant;

use super::decide::{ForceDetachReason, Step};
use crate::storage::volume_name::Plugin;

/// Upper bounds of the buckets in seconds.
const BOUNDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

/// An operation on a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// The attachment of a volume.
    Attach,
    /// The detachment of a volume.
    Detach,
}

impl Operation {
    /// Returns the operation that a step attempts.
    pub fn of(step: Step) -> Option<Self> {
        match step {
            Step::Attach => Some(Self::Attach),
            Step::Detach(_) => Some(Self::Detach),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Attach => "volume_attach",
            Self::Detach => "volume_detach",
        }
    }
}

/// Durations of operations on volumes, and numbers of forced detachments.
#[derive(Debug)]
pub struct Operations {
    durations: Histograms<4>,
    /// Forced detaches: after the timeout, and from nodes that are out of service.
    pub forced: [AtomicU64; 2],
}

impl Operations {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        Self {
            durations: metrics.histograms(
                "storage_operation_duration_seconds",
                "Storage operation duration",
                BOUNDS.to_vec(),
            ),
            forced: Default::default(),
        }
    }

    fn observe(&self, operation: Operation, plugin: Plugin<'_>, status: &str, seconds: f64) {
        let labels = [
            ("volume_plugin", plugin.metric_name()),
            ("operation_name", operation.name().to_owned()),
            ("status", status.to_owned()),
            ("migrated", "false".to_owned()),
        ];
        self.durations.observe(labels, seconds);
    }

    /// Records a successful operation. An operation without a start was begun by a previous leader, and is
    /// not counted.
    pub fn succeeded(&self, operation: Operation, plugin: Plugin<'_>, started: Option<Instant>) {
        if let Some(started) = started {
            self.observe(operation, plugin, "success", started.elapsed().as_secs_f64());
        }
    }

    /// Records a failed attempt.
    pub fn failed(&self, operation: Operation, plugin: Plugin<'_>, started: Option<Instant>) {
        let seconds = started.map_or(0.0, |started| started.elapsed().as_secs_f64());
        self.observe(operation, plugin, "fail-unknown", seconds);
    }

    /// Records that a volume is detached.
    pub fn detached(&self, plugin: Plugin<'_>, started: Option<Instant>) {
        self.succeeded(Operation::Detach, plugin, started);
    }

    /// Records that a volume is detached although a kubelet may use it.
    pub fn forced(&self, reason: Option<ForceDetachReason>) {
        let index = match reason {
            Some(ForceDetachReason::Timeout) => 0,
            Some(ForceDetachReason::OutOfService) => 1,
            None => return,
        };
        self.forced[index].fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn operations_are_observed_with_the_time_since_their_start() {
        let metrics = Metrics::default();
        let operations = Operations::new(&metrics);
        let (plugin, started) = (Plugin::Csi { driver: "disk.example.com", handle: "vol-1" }, Instant::now());
        tokio::time::advance(Duration::from_secs(120)).await;
        operations.failed(Operation::Attach, plugin, Some(started));
        operations.failed(Operation::Detach, plugin, None);
        operations.succeeded(Operation::Detach, plugin, Some(started));
        operations.succeeded(Operation::Attach, plugin, None);
        let text = metrics.text();
        let sums: Vec<&str> = text.lines().filter(|line| line.contains("_seconds_sum")).collect();
        let of = |operation: &str, status: &str| {
            let has = |line: &&&str| line.contains(operation) && line.contains(status);
            sums.iter().find(has).and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        };
        assert_eq!(of("volume_attach", "fail-unknown"), Some(120.0), "{text}");
        assert_eq!(of("volume_detach", "fail-unknown"), Some(0.0), "{text}");
        assert_eq!((of("volume_detach", "success"), of("volume_attach", "success")), (Some(120.0), None), "{text}");
    }
}
