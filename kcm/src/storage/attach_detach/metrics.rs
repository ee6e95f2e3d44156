//! Counts and durations under upstream's names.
//!
//! Upstream: pkg/controller/volume/attachdetach/metrics and pkg/volume/util, metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::metrics::{Histograms, Labels, Metrics, gauges, plain_counters};
use tokio::time::Instant;

use super::decide::Forced;
use super::memory::Memory;
use super::observe::Caches;
use super::reconcile::AttachDetach;
use crate::storage::volume_name::Plugin;

/// Upper bounds in seconds.
const BOUNDS: [f64; 13] = [0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

const FORCED_DETACHES: &str = "attach_detach_controller_attachdetach_controller_forced_detaches";
const FORCED_REASONS: [&str; 2] = ["timeout", "out-of-service"];

/// An operation on a volume.
#[derive(Debug, Clone, Copy)]
pub enum Operation {
    /// It is attached.
    Attach,
    /// It is detached.
    Detach,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Attach => "volume_attach",
            Self::Detach => "volume_detach",
        }
    }
}

/// Operations on volumes, and those that were forced.
#[derive(Debug)]
pub struct Operations {
    durations: Histograms<4>,
    /// Forced detaches: after the timeout, and from nodes that are out of service.
    forced: [AtomicU64; 2],
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

    /// Records a successful operation. Without a start, it was begun by a previous leader and is not counted.
    pub fn succeeded(&self, operation: Operation, plugin: Plugin<'_>, started: Option<Instant>) {
        if let Some(started) = started {
            self.observe(operation, plugin, "success", started.elapsed().as_secs_f64());
        }
    }

    /// Records a failed attempt.
    pub fn failed(&self, operation: Operation, plugin: Plugin<'_>) {
        self.observe(operation, plugin, "fail-unknown", 0.0);
    }

    /// Records that a volume is detached.
    pub fn detached(&self, plugin: Plugin<'_>, started: Option<Instant>) {
        self.succeeded(Operation::Detach, plugin, started);
    }

    /// Records that a volume is detached although a kubelet may use it.
    pub fn forced(&self, reason: Option<Forced>) {
        let index = match reason {
            Some(Forced::Timeout) => 0,
            Some(Forced::OutOfService) => 1,
            None => return,
        };
        self.forced[index].fetch_add(1, Ordering::Relaxed);
    }
}

/// Numbers of volumes, counted when they are read.
pub struct Totals(pub Arc<AttachDetach>);

impl fmt::Debug for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Totals")
    }
}

fn as_f64(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Returns the attachable volumes of all pods on nodes, by node and plugin.
pub fn volumes_in_use(caches: &Caches) -> BTreeMap<Labels<2>, f64> {
    let mut counts: BTreeMap<Labels<2>, f64> = BTreeMap::new();
    for pod in caches.pods.all().iter().filter(|pod| !pod.node.is_empty()) {
        for name in caches.names_of_pod(pod) {
            let Some(plugin) = Plugin::of(&name) else { continue };
            let labels = [("node", pod.node.to_string()), ("volume_plugin", plugin.metric_name())];
            *counts.entry(labels).or_default() += 1.0;
        }
    }
    counts
}

/// Returns the numbers of wanted and attached volumes, once for each node.
pub fn volumes_by_state(memory: &Memory) -> BTreeMap<Labels<2>, u64> {
    memory.count(|volume, site| {
        let Some(plugin) = Plugin::of(volume) else { return Vec::new() };
        let labels = |state: &str| [("plugin_name", plugin.metric_name()), ("state", state.to_owned())];
        let desired = (!site.users.is_empty()).then(|| labels("desired_state_of_world"));
        let actual = site.is_attached.then(|| labels("actual_state_of_world"));
        desired.into_iter().chain(actual).collect()
    })
}

impl Collector for Totals {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Number of volumes in A/D Controller";
        let counts = volumes_by_state(&self.0.memory).into_iter().map(|(labels, count)| (labels, as_f64(count)));
        gauges(&mut encoder, "attachdetach_controller_total_volumes", help, counts)?;
        let help = "Measure number of volumes in use";
        gauges(&mut encoder, "storage_count_attachable_volumes_in_use", help, volumes_in_use(&self.0.caches))?;
        let counts = FORCED_REASONS.iter().zip(&self.0.operations.forced);
        let counts =
            counts.map(|(reason, count)| ([("reason", (*reason).to_owned())], as_f64(count.load(Ordering::Relaxed))));
        let help = "Number of times the A/D Controller performed a forced detach";
        plain_counters(&mut encoder, FORCED_DETACHES, help, counts)
    }
}
