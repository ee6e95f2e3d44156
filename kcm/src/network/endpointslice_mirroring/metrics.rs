//! Metrics of the controller, under upstream's names. Upstream: pkg/controller/endpointslicemirroring/metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kinds::EndpointSlice;
use kinds::endpoint_slice::MIRRORED;
use kinds::ip::Family;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::metrics::{Histograms, gauges, plain_counters, powers_of_two};
use runtime::store::Store;

use super::decide::Decision;

/// The metrics, and the cache that the sizes are read from.
pub struct Counts {
    slices: Arc<Store<EndpointSlice>>,
    /// Maximum number of mirrored addresses of a subset.
    max_endpoints: usize,
    /// Successful creations, updates and deletions.
    changes: [AtomicU64; 3],
    added: Histograms<0>,
    updated: Histograms<0>,
    removed: Histograms<0>,
    skipped: Histograms<0>,
    duration: Histograms<0>,
}

impl Counts {
    /// Creates empty metrics, which read the sizes of slices from this cache.
    pub fn new(slices: Arc<Store<EndpointSlice>>, max_endpoints: usize) -> Self {
        let endpoints = || Histograms::new(powers_of_two(2.0, 15));
        Self {
            slices,
            max_endpoints,
            changes: Default::default(),
            added: endpoints(),
            updated: endpoints(),
            removed: endpoints(),
            skipped: endpoints(),
            duration: Histograms::new(powers_of_two(0.001, 15)),
        }
    }

    /// Counts a decision.
    pub fn decided(&self, decision: &Decision) {
        let changes = decision.changes;
        self.skipped.observe([], decision.skipped as f64);
        self.added.observe([], changes.added as f64);
        self.updated.observe([], changes.updated as f64);
        self.removed.observe([], changes.removed as f64);
    }

    /// Counts successful creations, updates and deletions.
    pub fn wrote(&self, writes: [usize; 3]) {
        for (sum, count) in self.changes.iter().zip(writes) {
            sum.fetch_add(count as u64, Ordering::Relaxed);
        }
    }

    /// Records the duration of a sync.
    pub fn took(&self, time: Duration) {
        self.duration.observe([], time.as_secs_f64());
    }

    /// Returns the numbers of endpoints in mirrored slices, of mirrored slices, and of slices that are needed for them:
    /// several slices of a Service with the same family and ports may have fewer endpoints than fit into one.
    pub(super) fn sizes(&self) -> [usize; 3] {
        let mut slices = self.slices.all();
        slices.retain(|slice| slice.manager() == Some(MIRRORED));
        let mut groups: BTreeMap<_, usize> = BTreeMap::new();
        for slice in &slices {
            let contents = &slice.contents;
            let service = (&slice.meta.namespace, slice.service());
            let group = groups.entry((service, contents.family.map(Family::name), &contents.ports)).or_default();
            *group += contents.endpoints.len();
        }
        let needed = groups.values().map(|endpoints| endpoints.div_ceil(self.max_endpoints)).sum();
        [groups.values().sum(), slices.len(), needed]
    }
}

impl fmt::Debug for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counts")
    }
}

/// Encodes [`Counts`] when metrics are collected.
#[derive(Debug)]
pub struct CountsCollector(pub Arc<Counts>);

impl Collector for CountsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let name = |name: &str| format!("endpoint_slice_mirroring_controller_{name}");
        let sizes = [
            ("endpoints_desired", "Number of endpoints desired"),
            ("num_endpoint_slices", "Number of EndpointSlices"),
            ("desired_endpoint_slices", "Number of EndpointSlices that would exist with perfect endpoint allocation"),
        ];
        for ((own, help), size) in sizes.into_iter().zip(self.0.sizes()) {
            gauges(encoder, &name(own), help, [([], size as f64)])?;
        }
        let changes = ["create", "update", "delete"].into_iter().zip(&self.0.changes);
        let changes = changes
            .map(|(operation, count)| ([("operation", operation.to_owned())], count.load(Ordering::Relaxed) as f64));
        plain_counters(encoder, &name("changes"), "Number of EndpointSlice changes", changes)?;
        for (histograms, own, help) in [
            (&self.0.added, "endpoints_added_per_sync", "Number of endpoints added on each Endpoints sync"),
            (&self.0.updated, "endpoints_updated_per_sync", "Number of endpoints updated on each Endpoints sync"),
            (&self.0.removed, "endpoints_removed_per_sync", "Number of endpoints removed on each Endpoints sync"),
            (
                &self.0.skipped,
                "addresses_skipped_per_sync",
                "Number of addresses skipped on each Endpoints sync due to being invalid or exceeding MaxEndpointsPerSubset",
            ),
            (&self.0.duration, "endpoints_sync_duration", "Duration of syncEndpoints() in seconds"),
        ] {
            histograms.encode(encoder, &name(own), help)?;
        }
        Ok(())
    }
}
