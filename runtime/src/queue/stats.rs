//! Metrics of queues, under upstream's names (`workqueue_*`).

use std::fmt;
use std::sync::{Arc, Weak};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;

use crate::metrics::histogram;

/// Metrics of one queue.
#[derive(Debug)]
pub struct QueueMetrics {
    /// The queue's name.
    pub name: &'static str,
    /// The number of keys that were added and whose run has not begun; delayed keys are not counted before they are due.
    pub depth: Gauge,
    /// The number of times that a key was added. A key that waits already, also for the end of its current run, is not
    /// counted again.
    pub adds: Counter,
    /// The number of times that a key was added with a delay: after a failure, or for a later time. Upstream:
    /// client-go, util/workqueue, AddAfter.
    pub retries: Counter,
    /// Seconds from the time at which a key was added, or its delay ended, to the start of its reconcile. They include the
    /// rest of its current run and its cooldown.
    pub queue_duration: Histogram,
    /// Seconds per reconcile.
    pub work_duration: Histogram,
}

/// Returns bucket bounds: powers of ten from 10 ns to 10 s. Upstream: component-base, metrics/prometheus/workqueue.
fn buckets() -> impl Iterator<Item = f64> {
    [1e-8, 1e-7, 1e-6, 9.999_999_999_999_999e-6, 9.999_999_999_999_999e-5, 1e-3, 1e-2, 0.1, 1.0, 10.0].into_iter()
}

impl QueueMetrics {
    pub(super) fn new(name: &'static str) -> Self {
        Self {
            name,
            depth: Gauge::default(),
            adds: Counter::default(),
            retries: Counter::default(),
            queue_duration: histogram(buckets()),
            work_duration: histogram(buckets()),
        }
    }
}

/// A queue's metrics.
pub trait QueueStats: Send + Sync {
    /// Returns the metrics that are updated as events occur.
    fn metrics(&self) -> &QueueMetrics;
    /// Returns sum and maximum, in seconds, of the time since the current runs began.
    fn working(&self) -> (f64, f64);
}

/// Collects the metrics of all queues that still exist.
#[derive(Default)]
pub struct Queues(Vec<Weak<dyn QueueStats>>);

impl fmt::Debug for Queues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queues({})", self.0.len())
    }
}

impl Queues {
    /// Creates a collector for these queues.
    pub fn new(queues: impl IntoIterator<Item = Arc<dyn QueueStats>>) -> Self {
        Self(queues.into_iter().map(|queue| Arc::downgrade(&queue)).collect())
    }
}

type Row = (&'static str, &'static str, MetricType, fn(&(dyn QueueStats + 'static)) -> Box<dyn EncodeMetric>);

const ROWS: [Row; 7] = [
    ("workqueue_depth", "Current depth of workqueue", MetricType::Gauge, |queue| {
        Box::new(ConstGauge::new(queue.metrics().depth.get()))
    }),
    ("workqueue_adds", "Total number of adds handled by workqueue", MetricType::Counter, |queue| {
        Box::new(queue.metrics().adds.clone())
    }),
    ("workqueue_retries", "Total number of retries handled by workqueue", MetricType::Counter, |queue| {
        Box::new(queue.metrics().retries.clone())
    }),
    (
        "workqueue_queue_duration_seconds",
        "How long in seconds an item stays in workqueue before being requested",
        MetricType::Histogram,
        |queue| Box::new(queue.metrics().queue_duration.clone()),
    ),
    (
        "workqueue_work_duration_seconds",
        "How long in seconds processing an item from workqueue takes",
        MetricType::Histogram,
        |queue| Box::new(queue.metrics().work_duration.clone()),
    ),
    (
        "workqueue_unfinished_work_seconds",
        "Seconds of work in progress that is not yet observed by work_duration",
        MetricType::Gauge,
        |queue| Box::new(ConstGauge::new(queue.working().0)),
    ),
    (
        "workqueue_longest_running_processor_seconds",
        "Seconds for which the longest running worker has been working",
        MetricType::Gauge,
        |queue| Box::new(ConstGauge::new(queue.working().1)),
    ),
];

impl Collector for Queues {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let queues: Vec<_> = self.0.iter().filter_map(Weak::upgrade).collect();
        for (name, help, kind, metric) in ROWS {
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for queue in &queues {
                metric(&**queue).encode(family.encode_family(&[("name", queue.metrics().name)])?)?;
            }
        }
        Ok(())
    }
}
