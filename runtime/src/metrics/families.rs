//! Metrics of single controllers: counters, gauges and histograms with few labels.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::labels::Labels;
use super::limit::SeriesLimit;

/// A histogram of durations in seconds.
#[derive(Debug, Clone)]
pub struct Seconds(pub(super) Histogram);

impl Seconds {
    /// Records a duration.
    pub fn observe(&self, seconds: f64) {
        self.0.observe(seconds);
    }
}

/// A counter for each value of its labels, at most [`MAX_SERIES`](super::MAX_SERIES).
#[derive(Debug, Clone, Default)]
pub struct Counts<const N: usize> {
    pub(super) family: Family<Labels<N>, Counter>,
    limit: SeriesLimit,
}

impl<const N: usize> Counts<N> {
    /// Increments the counter of these labels.
    pub fn add(&self, labels: [(&'static str, String); N]) {
        self.add_many(labels, 1);
    }

    /// Adds to the counter of these labels. Adding zero creates the sample.
    pub fn add_many(&self, labels: [(&'static str, String); N], count: u64) {
        let exists = self.family.get(&labels).is_some();
        self.family.get_or_create_owned(&self.limit.admit(labels, exists)).inc_by(count);
    }
}

/// A counter without labels, exported as zero from the start.
#[derive(Debug, Clone, Default)]
pub struct Count(pub(super) Counter);

impl Count {
    /// Increments the counter.
    pub fn add(&self) {
        self.0.inc();
    }
}

/// A gauge for each value of its labels.
#[derive(Debug, Clone, Default)]
pub struct Gauges<const N: usize>(pub(super) Family<Labels<N>, Gauge<f64, AtomicU64>>);

impl<const N: usize> Gauges<N> {
    /// Sets the gauge of these labels, each of which must have few possible values.
    pub fn set(&self, labels: Labels<N>, value: f64) {
        self.0.get_or_create_owned(&labels).set(value);
    }

    /// Changes the gauge of these labels, each of which must have few possible values.
    pub fn change(&self, labels: Labels<N>, by: f64) {
        self.0.get_or_create_owned(&labels).inc_by(by);
    }
}
