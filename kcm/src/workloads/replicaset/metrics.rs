//! Metric of the ages of deleted pods, under upstream's name. Upstream: pkg/controller/replicaset/metrics.

use std::sync::Arc;

use jiff::Timestamp;
use kinds::Pod;
use runtime::metrics::{Histograms, Metrics, powers_of_two};

const HELP: &str = "The ratio of chosen deleted pod's ages to the current youngest pod's age (at the time). Should be <2. The intent of this metric is to measure the rough efficacy of the sorting (and deletion) of pods when a replicaset scales down. This only considers Ready pods when calculating and reporting.";

/// Histogram of [`age_ratios`].
#[derive(Debug)]
pub struct DeletionAges(Histograms<0>);

impl DeletionAges {
    /// Registers the histogram.
    pub fn register(metrics: &Metrics) -> Self {
        let bounds = powers_of_two(0.25, 6);
        let ages = metrics.histograms("replicaset_controller_sorting_deletion_age_ratio", HELP, bounds);
        Self(ages.served_while_empty())
    }

    /// Records the pods that a scale-down deletes.
    pub fn record(&self, active: &[Arc<Pod>], deleted: &[Arc<Pod>], now: Timestamp) {
        age_ratios(active, deleted, now).into_iter().for_each(|ratio| self.0.observe([], ratio));
    }
}

/// Returns the ages of the deleted ready pods, divided by that of the youngest ready pod and rounded down as in
/// upstream. Returns nothing if all pods are deleted: then no pods were chosen by rank.
fn age_ratios(active: &[Arc<Pod>], deleted: &[Arc<Pod>], now: Timestamp) -> Vec<f64> {
    if deleted.len() == active.len() {
        return Vec::new();
    }
    let age = |pod: &Pod| now.as_second().saturating_sub(pod.meta.created.0).max(0);
    let youngest = active.iter().filter(|pod| pod.ready).map(|pod| age(pod)).min().unwrap_or_default();
    // Times are whole seconds: a youngest age of zero counts as one second.
    let ratio = |pod: &Arc<Pod>| (age(pod) / youngest.max(1)) as f64;
    deleted.iter().filter(|pod| pod.ready).map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{NOW, now, pod};
    use super::*;
    use kinds::Time;

    #[test]
    fn age_ratio_compares_deleted_pods_with_the_youngest_ready_one() {
        let aged = |name: &str, age: i64, ready: bool| {
            let mut pod = pod(name);
            pod.meta.created = Time(NOW - age);
            pod.ready = ready;
            Arc::new(pod)
        };
        let (young, old, older) = (aged("a", 100, true), aged("b", 199, true), aged("c", 500, true));
        let (unready, new) = (aged("d", 10, false), aged("e", 0, true));
        let all = [&young, &old, &older, &unready].map(Arc::clone);
        for (name, active, deleted, expected) in [
            ("the youngest", &all[..], vec![young.clone()], vec![1.0]),
            ("rounded down", &all[..], vec![old.clone(), older.clone()], vec![1.0, 5.0]),
            ("not ready", &all[..], vec![unready.clone()], vec![]),
            ("all", &all[..2], vec![young.clone(), old.clone()], vec![]),
            ("of this second", &[new.clone(), older.clone()], vec![new.clone()], vec![0.0]),
        ] {
            assert_eq!(age_ratios(active, &deleted, now()), expected, "{name}");
        }
    }
}
