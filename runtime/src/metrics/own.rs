//! What single controllers count, and metrics that come as text from elsewhere.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;

use super::{Labels, Metrics};

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
        self.0.get_or_create_owned(&labels).inc();
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
        let text = metrics.text();
        for line in ["wait_seconds_bucket{le=\"4\"} 1", "calls_total{operation=\"list\"} 2", "other_total 7"] {
            assert!(text.lines().any(|told| told == line), "{line} in {text}");
        }
    }
}
