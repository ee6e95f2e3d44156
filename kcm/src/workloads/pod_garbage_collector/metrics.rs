//! Metrics of force-deleted pods and of failures, under upstream's names. Upstream: pkg/controller/podgc/metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use kinds::Str;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::lock::lock;
use runtime::metrics::{OTHER, counters, limited_entry};

use super::decide::Reason;

/// By namespace and reason: attempts, and failed ones.
type Tries = BTreeMap<(Str, &'static str), [u64; 2]>;

/// The metrics.
#[derive(Debug, Clone, Default)]
pub struct Counts(Arc<Mutex<Tries>>);

impl Counts {
    /// Counts one pod.
    pub fn count(&self, namespace: &Str, reason: Reason, failed: bool) {
        let mut counts = lock(&self.0);
        let key = (namespace.clone(), reason.as_str());
        let [tries, failures] = limited_entry(&mut counts, key, || (OTHER.into(), reason.as_str()));
        *tries += 1;
        *failures += u64::from(failed);
    }
}

impl Collector for Counts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = lock(&self.0).clone();
        let samples = |at: usize| {
            counts.iter().filter(move |(_, counts)| counts[at] > 0).map(move |((namespace, reason), counts)| {
                let labels = [("namespace", namespace.to_string()), ("reason", (*reason).to_owned())];
                (labels, counts[at] as f64)
            })
        };
        let help = "Number of pods that are being forcefully deleted since the Pod GC Controller started.";
        counters(&mut encoder, "pod_gc_collector_force_delete_pods", help, samples(0))?;
        let help =
            "Number of errors encountered when forcefully deleting the pods since the Pod GC Controller started.";
        counters(&mut encoder, "pod_gc_collector_force_delete_pod_errors", help, samples(1))
    }
}

#[cfg(test)]
mod tests {
    use runtime::metrics::Metrics;

    use super::*;

    #[test]
    fn pods_are_counted_by_namespace_and_reason() {
        let (counts, metrics) = (Counts::default(), Metrics::default());
        counts.count(&"ns".into(), Reason::Orphaned, false);
        counts.count(&"ns".into(), Reason::Orphaned, true);
        metrics.collect(counts);
        let text = metrics.text();
        for line in [
            "pod_gc_collector_force_delete_pods_total{namespace=\"ns\",reason=\"orphaned\"} 2",
            "pod_gc_collector_force_delete_pod_errors_total{namespace=\"ns\",reason=\"orphaned\"} 1",
        ] {
            assert!(text.lines().any(|found| found.trim_end_matches(".0") == line), "no {line} in {text}");
        }
    }
}
