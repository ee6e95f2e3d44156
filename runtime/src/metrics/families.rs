//! Metrics of single controllers: counters, gauges and histograms with few labels.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::encode::Labels;

/// A histogram of durations in seconds.
#[derive(Debug, Clone)]
pub struct Seconds(pub(super) Histogram);

impl Seconds {
    /// Something took so many seconds.
    pub fn observe(&self, seconds: f64) {
        self.0.observe(seconds);
    }
}

/// A counter for each value of its labels.
#[derive(Debug, Clone, Default)]
pub struct Counts<const N: usize>(pub(super) Family<Labels<N>, Counter>);

impl<const N: usize> Counts<N> {
    /// One more with these labels, whose values must be few.
    pub fn add(&self, labels: [(&'static str, String); N]) {
        self.add_many(labels, 1);
    }

    /// So many more with these labels; with none the sample exists from now on.
    pub fn add_many(&self, labels: [(&'static str, String); N], count: u64) {
        self.0.get_or_create_owned(&labels).inc_by(count);
    }
}

/// A counter without labels: zero until something is counted.
#[derive(Debug, Clone, Default)]
pub struct Count(pub(super) Counter);

impl Count {
    /// One more.
    pub fn add(&self) {
        self.0.inc();
    }
}

/// A number that goes up and down, for each value of its labels.
#[derive(Debug, Clone, Default)]
pub struct Gauges<const N: usize>(pub(super) Family<Labels<N>, Gauge<f64, AtomicU64>>);

impl<const N: usize> Gauges<N> {
    /// It is so much now with these labels, whose values must be few.
    pub fn set(&self, labels: Labels<N>, value: f64) {
        self.0.get_or_create_owned(&labels).set(value);
    }

    /// Adds to the number with these labels, whose values must be few.
    pub fn change(&self, labels: Labels<N>, by: f64) {
        self.0.get_or_create_owned(&labels).inc_by(by);
    }
}
