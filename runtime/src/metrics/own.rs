//! What single controllers count, and metrics that come as text from elsewhere.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;

use super::{Histograms, Labels, Metrics, counters};
use crate::expectations::Expectations;

/// A histogram of durations in seconds.
#[derive(Debug, Clone)]
pub struct Seconds(Histogram);

impl Seconds {
    /// Something took so many seconds.
    pub fn observe(&self, seconds: f64) {
        self.0.observe(seconds);
    }
}

/// A counter for each value of its labels.
#[derive(Debug, Clone, Default)]
pub struct Counts<const N: usize>(Family<Labels<N>, Counter>);

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
pub struct Count(Counter);

impl Count {
    /// One more.
    pub fn add(&self) {
        self.0.inc();
    }
}

/// A number that goes up and down, for each value of its labels.
#[derive(Debug, Clone, Default)]
pub struct Gauges<const N: usize>(Family<Labels<N>, Gauge<f64, AtomicU64>>);

impl<const N: usize> Gauges<N> {
    /// It is so much now with these labels, whose values must be few.
    pub fn set(&self, labels: Labels<N>, value: f64) {
        self.0.get_or_create_owned(&labels).set(value);
    }
}

/// Syncs that waited for a store to show what was written: `<subsystem>_stale_sync_skips_total`, by the kind that was
/// waited for.
#[derive(Debug)]
pub struct StaleSyncs {
    /// As `job_controller`.
    pub subsystem: &'static str,
    /// The kind that the controller is for, as upstream's help calls it.
    pub kind: &'static str,
    /// The controller's.
    pub expectations: Arc<Expectations>,
}

impl Collector for StaleSyncs {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let samples = self.expectations.skips().into_iter().map(|((group, resource), count)| {
            ([("group", group.to_owned()), ("resource", resource.to_owned())], count as f64)
        });
        let help = format!("Total number of {} syncs skipped due to a stale watch cache.", self.kind);
        counters(&mut encoder, &format!("{}_stale_sync_skips", self.subsystem), &help, samples)
    }
}

type Source = Box<dyn Fn() -> String + Send + Sync>;

/// Sources of metrics that are text already.
#[derive(Default)]
pub(super) struct Texts(Mutex<Vec<Source>>);

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Texts")
    }
}

impl Texts {
    /// What all sources say now.
    pub(super) fn read(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|source| source()).collect()
    }
}

impl Metrics {
    /// Adds a histogram of seconds with these upper bounds; each name only once.
    pub fn seconds(&self, name: &str, help: &str, bounds: &[f64]) -> Seconds {
        let histogram = Histogram::new(bounds.iter().copied());
        self.registry().register(name, help, histogram.clone());
        Seconds(histogram)
    }

    /// Adds a counter, whose name is given without `_total`; each name only once.
    pub fn counts<const N: usize>(&self, name: &str, help: &str) -> Counts<N> {
        let counts = Family::default();
        self.registry().register(name, help, counts.clone());
        Counts(counts)
    }

    /// Adds a counter without labels, whose name is given without `_total`; each name only once.
    pub fn count(&self, name: &str, help: &str) -> Count {
        let count = Counter::default();
        self.registry().register(name, help, count.clone());
        Count(count)
    }

    /// Adds gauges; each name only once.
    pub fn gauges<const N: usize>(&self, name: &str, help: &str) -> Gauges<N> {
        let gauges = Family::default();
        self.registry().register(name, help, gauges.clone());
        Gauges(gauges)
    }

    /// Adds histograms with labels and these upper bounds; each name only once.
    pub fn histograms<const N: usize>(&self, name: &str, help: &str, bounds: Vec<f64>) -> Histograms<N> {
        let histograms = Histograms::new(bounds);
        self.registry().register(name, help, histograms.0.clone());
        histograms
    }

    /// Adds a source of metrics that are in the text format already.
    pub fn append(&self, source: impl Fn() -> String + Send + Sync + 'static) {
        self.texts.0.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(source));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controllers_count_is_told_in_the_text_format() {
        let metrics = Metrics::default();
        metrics.seconds("wait_seconds", "Waiting.", &[1.0, 4.0]).observe(2.0);
        let counts = metrics.counts("calls", "Calls.");
        counts.add([("operation", "list".into())]);
        counts.add([("operation", "list".into())]);
        metrics.append(|| "other_total 7\n".into());
        metrics.count("quiet", "Nothing.");
        metrics.gauges("size", "Size.").set([("zone", "a".into())], 2.5);
        metrics.histograms("time", "Time.", vec![1.0]).observe([("code", "200".into())], 3.0);
        let text = metrics.text();
        for line in [
            "wait_seconds_bucket{le=\"4\"} 1",
            "calls_total{operation=\"list\"} 2",
            "other_total 7",
            "quiet_total 0",
            "size{zone=\"a\"} 2.5",
            "time_bucket{le=\"1\",code=\"200\"} 0",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} in {text}");
        }
    }
}
