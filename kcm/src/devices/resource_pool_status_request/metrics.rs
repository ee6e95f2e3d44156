//! Metrics under upstream's names. Upstream: pkg/controller/resourcepoolstatusrequest/metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;

use kinds::Str;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::lock::lock;
use runtime::metrics::{Histograms, OTHER, counters, limited_entry};

/// Number of buckets of durations; each bound is twice the previous one.
const BUCKETS: i32 = 15;
/// The first bound in seconds.
const FIRST_BOUND: f64 = 0.001;

/// Counts and durations by driver.
#[derive(Debug)]
pub struct Metrics {
    /// Numbers of status writes, and of those that failed.
    writes: Mutex<BTreeMap<Str, [u64; 2]>>,
    durations: Histograms<1>,
}

impl Default for Metrics {
    fn default() -> Self {
        let bounds = (0..BUCKETS).map(|power| FIRST_BOUND * 2f64.powi(power)).collect();
        Self { writes: Mutex::default(), durations: Histograms::new(bounds) }
    }
}

impl Metrics {
    /// Counts a request whose status was written, or could not be, after this number of seconds.
    pub fn processed(&self, driver: &Str, is_written: bool, seconds: f64) {
        let mut writes = lock(&self.writes);
        let counts = limited_entry(&mut writes, driver.clone(), || OTHER.into());
        counts[0] += 1;
        counts[1] += u64::from(!is_written);
        drop(writes);
        self.durations.observe([("driver_name", driver.to_string())], seconds);
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let writes = lock(&self.writes).clone();
        for (at, name, help) in [
            (0, "requests_processed", "Total number of ResourcePoolStatusRequests processed"),
            (
                1,
                "request_processing_errors",
                "Total number of errors encountered while processing ResourcePoolStatusRequests",
            ),
        ] {
            let name = format!("resourcepoolstatusrequest_controller_{name}");
            let of_driver =
                |(driver, counts): (&Str, &[u64; 2])| ([("driver_name", driver.to_string())], counts[at] as f64);
            // As in upstream, a driver without failures has no series of failures.
            let counted = writes.iter().filter(|(_, counts)| counts[at] > 0);
            counters(&mut encoder, &name, help, counted.map(of_driver))?;
        }
        let name = "resourcepoolstatusrequest_controller_request_processing_duration_seconds";
        self.durations.encode(&mut encoder, name, "Time taken to process a ResourcePoolStatusRequest")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn requests_failures_and_durations_are_counted_by_driver() {
        let metrics = Arc::new(Metrics::default());
        let registry = runtime::metrics::Metrics::default();
        registry.collect(metrics.clone());
        for (driver, is_written) in [("a.example.com", true), ("a.example.com", false), ("b.example.com", true)] {
            metrics.processed(&driver.into(), is_written, 0.5);
        }
        let text = registry.text();
        for (series, count) in [
            ("requests_processed_total{driver_name=\"a.example.com\"}", 2),
            ("requests_processed_total{driver_name=\"b.example.com\"}", 1),
            ("request_processing_errors_total{driver_name=\"a.example.com\"}", 1),
            ("request_processing_duration_seconds_count{driver_name=\"a.example.com\"}", 2),
            ("request_processing_duration_seconds_count{driver_name=\"b.example.com\"}", 1),
        ] {
            let line = format!("resourcepoolstatusrequest_controller_{series} {count}");
            assert!(text.lines().any(|found| found.trim_end_matches(".0") == line), "{line} in {text}");
        }
    }

    #[test]
    fn series_of_failures_begins_with_the_first_failure() {
        let metrics = Arc::new(Metrics::default());
        let registry = runtime::metrics::Metrics::default();
        registry.collect(metrics.clone());
        metrics.processed(&"gpu.example.com".into(), true, 0.1);
        let name = "resourcepoolstatusrequest_controller_request_processing_errors_total{";
        assert!(!registry.text().contains(name), "{}", registry.text());
        metrics.processed(&"gpu.example.com".into(), false, 0.1);
        assert!(registry.text().contains(name), "{}", registry.text());
    }
}
