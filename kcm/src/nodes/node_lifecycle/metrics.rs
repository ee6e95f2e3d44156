//! Metrics of zones, under upstream's names. Upstream: pkg/controller/nodelifecycle, metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use kinds::Str;
use runtime::lock::lock;
use runtime::metrics::{Counts, Gauges, Metrics, Seconds, powers};

use super::decide_zones::Census;

/// The metrics.
pub struct ZoneMetrics {
    size: Gauges<1>,
    health: Gauges<1>,
    unhealthy: Gauges<1>,
    evictions: Counts<1>,
    one: Seconds,
    all: Seconds,
    known: Mutex<BTreeSet<Str>>,
}

fn label(zone: &Str) -> [(&'static str, String); 1] {
    [("zone", zone.to_string())]
}

impl ZoneMetrics {
    /// Registers the metrics.
    pub fn register(metrics: &Metrics) -> Self {
        Self {
            size: metrics.gauges("node_collector_zone_size", "Gauge measuring number of registered Nodes per zones."),
            health: metrics
                .gauges("node_collector_zone_health", "Gauge measuring percentage of healthy nodes per zone."),
            unhealthy: metrics.gauges(
                "node_collector_unhealthy_nodes_in_zone",
                "Gauge measuring number of not Ready Nodes per zones.",
            ),
            evictions: metrics.counts(
                "node_collector_evictions",
                "Number of Node evictions that happened since current instance of NodeController started.",
            ),
            one: metrics.seconds(
                "node_collector_update_node_health_duration_seconds",
                "Duration in seconds for NodeController to update the health of a single node.",
                &powers(0.001, 4.0, 8),
            ),
            all: metrics.seconds(
                "node_collector_update_all_nodes_health_duration_seconds",
                "Duration in seconds for NodeController to update the health of all nodes.",
                &powers(0.01, 4.0, 8),
            ),
            known: Mutex::default(),
        }
    }

    /// Records the result of a pass.
    pub fn counted(&self, census: &BTreeMap<Str, Census>) {
        let mut known = lock(&self.known);
        for zone in known.iter().filter(|zone| !census.contains_key(*zone)) {
            self.set(zone, Census::default());
        }
        known.retain(|zone| census.contains_key(zone));
        for (zone, count) in census {
            if known.insert(zone.clone()) {
                self.evictions.add_many(label(zone), 0);
            }
            self.set(zone, *count);
        }
    }

    fn set(&self, zone: &Str, count: Census) {
        let (size, ready) = (count.size as f64, count.ready as f64);
        self.size.set(label(zone), size);
        // A zone without nodes counts as healthy.
        self.health.set(label(zone), if count.size == 0 { 100.0 } else { 100.0 * ready / size });
        self.unhealthy.set(label(zone), size - ready);
    }

    /// Records that a node was tainted to evict its pods.
    pub fn evicted(&self, zone: &Str) {
        self.evictions.add(label(zone));
    }

    /// Records the duration of a pass, in total and per node.
    pub fn took(&self, time: Duration, nodes: usize) {
        self.all.observe(time.as_secs_f64());
        for _ in 0..nodes {
            self.one.observe(time.as_secs_f64() / nodes as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_reported_after_their_last_node_was_deleted() {
        let metrics = Metrics::default();
        let zones = ZoneMetrics::register(&metrics);
        let has = |line: &str| {
            let text = metrics.text();
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        };
        zones.counted(&[("a".into(), Census { size: 4, ready: 3 })].into());
        for line in [
            "node_collector_zone_size{zone=\"a\"} 4.0",
            "node_collector_zone_health{zone=\"a\"} 75.0",
            "node_collector_unhealthy_nodes_in_zone{zone=\"a\"} 1.0",
            "node_collector_evictions_total{zone=\"a\"} 0",
        ] {
            has(line);
        }
        zones.evicted(&"a".into());
        zones.counted(&BTreeMap::new());
        for line in [
            "node_collector_zone_size{zone=\"a\"} 0.0",
            "node_collector_zone_health{zone=\"a\"} 100.0",
            "node_collector_evictions_total{zone=\"a\"} 1",
        ] {
            has(line);
        }
        zones.took(Duration::from_secs(2), 4);
        has("node_collector_update_all_nodes_health_duration_seconds_sum 2.0");
        has("node_collector_update_node_health_duration_seconds_count 4");
    }
}
