//! Samples in the registry's encoding: families that are read at each scrape, and histograms with labels.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;

use super::histogram;
use super::labels::Labels;
use super::limit::SeriesLimit;

/// Appends a family of samples that are read at each scrape. The encoder adds `_total` to the names of counters.
fn family<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: impl Fn(f64) -> Box<dyn EncodeMetric>,
    kind: MetricType,
    samples: impl IntoIterator<Item = (Labels<N>, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        if labels.is_empty() {
            return metric(value).encode(family);
        }
        metric(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Appends gauges that are read at each scrape.
///
/// # Errors
/// When the text cannot be written.
pub fn gauges<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<N>, f64)>,
) -> fmt::Result {
    family(encoder, name, help, |value| Box::new(ConstGauge::new(value)), MetricType::Gauge, samples)
}

/// Appends counters whose upstream names do not end in `_total`. The library adds that suffix to every counter.
/// Therefore these are encoded with the type `unknown`, which no other metric has; both output formats replace it with
/// `counter`.
///
/// # Errors
/// When the text cannot be written.
pub fn plain_counters<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<N>, f64)>,
) -> fmt::Result {
    family(encoder, name, help, |value| Box::new(ConstGauge::new(value)), MetricType::Unknown, samples)
}

/// Histograms of one family, by their labels, at most [`MAX_SERIES`](super::MAX_SERIES). Cheap to clone; clones share
/// their counts.
#[derive(Debug, Clone)]
pub struct Histograms<const N: usize> {
    pub(super) family: Family<Labels<N>, Histogram, Bounds>,
    limit: SeriesLimit,
}

#[derive(Debug, Clone)]
pub(super) struct Bounds(Vec<f64>);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        histogram(self.0.iter().copied())
    }
}

impl<const N: usize> Histograms<N> {
    /// Creates empty histograms with these upper bounds.
    #[must_use]
    pub fn new(bounds: Vec<f64>) -> Self {
        Self { family: Family::new_with_constructor(Bounds(bounds)), limit: SeriesLimit::default() }
    }

    /// Counts a value.
    pub fn observe(&self, labels: Labels<N>, value: f64) {
        let exists = self.family.get(&labels).is_some();
        self.family.get_or_create(&self.limit.admit(labels, exists)).observe(value);
    }

    /// Appends the histograms under a name.
    ///
    /// # Errors
    /// When the text cannot be written.
    pub fn encode(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> fmt::Result {
        self.family.encode(encoder.encode_descriptor(name, help, None, MetricType::Histogram)?)
    }
}

impl Histograms<0> {
    /// Serves the histogram without labels before its first value, as upstream does.
    #[must_use]
    pub fn served_while_empty(self) -> Self {
        drop(self.family.get_or_create(&[]));
        self
    }
}

/// Returns `count` bounds, each twice the previous one. Upstream: component-base, metrics.ExponentialBuckets.
#[must_use]
pub fn powers_of_two(first: f64, count: i32) -> Vec<f64> {
    powers(first, 2.0, count)
}

/// Returns `count` bounds, each `factor` times the previous one. Upstream: component-base, metrics.ExponentialBuckets.
#[must_use]
pub fn powers(first: f64, factor: f64, count: i32) -> Vec<f64> {
    (0..count).map(|power| first * factor.powi(power)).collect()
}

/// Appends counters that are read at each scrape. The encoder adds `_total` to the name.
///
/// # Errors
/// When the text cannot be written.
pub fn counters<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<N>, f64)>,
) -> fmt::Result {
    family(encoder, name, help, |value| Box::new(ConstCounter::new(value)), MetricType::Counter, samples)
}
