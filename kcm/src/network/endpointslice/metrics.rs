//! Metrics of the controller, under upstream's names. Upstream: k8s.io/endpointslice/metrics.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Mutex;

use kinds::meta::ObjectKey;
use kinds::{Service, Str};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use runtime::lock::lock;
use runtime::metrics::{Histograms, gauges, plain_counters, powers_of_two};
use runtime::worker::{Outcome, ReconcileError};

use super::decision::{Decision, SliceCounts};
use crate::network::service_endpoints::pods::families;
use crate::network::service_endpoints::slice_writes::{Plan, WriteCounts};

/// Bounds of histograms for which upstream uses its library's defaults.
const DEFAULT_BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The metrics.
#[derive(Debug)]
pub struct Metrics {
    state: Mutex<State>,
    added: Histograms<0>,
    removed: Histograms<0>,
    changed: Histograms<2>,
}

#[derive(Debug, Default)]
struct State {
    /// By Service: the numbers of endpoints, slices and needed slices of all families, and `trafficDistribution`.
    services: HashMap<ObjectKey, ([usize; 3], Option<Str>)>,
    /// The values of `trafficDistribution` so far. As in upstream, a value that no Service uses any longer is reported
    /// as zero.
    distributions: BTreeSet<Str>,
    /// Successful creations, updates and deletions.
    changes: [u64; 3],
    /// Syncs that succeeded, that had to wait for the cache, and that failed.
    syncs: [u64; 3],
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            added: Histograms::new(powers_of_two(2.0, 15)),
            removed: Histograms::new(powers_of_two(2.0, 15)),
            changed: Histograms::new(DEFAULT_BOUNDS.to_vec()),
        }
    }
}

impl Metrics {
    /// Counts a sync by its outcome.
    pub fn synced(&self, outcome: Result<Outcome, ReconcileError>) -> Result<Outcome, ReconcileError> {
        let which = match outcome {
            Ok(Outcome::WaitingForCache) => 1,
            Ok(_) => 0,
            Err(_) => 2,
        };
        self.with(|state| state.syncs[which] += 1);
        outcome
    }

    /// Counts a decision. Upstream reconciles each family separately, and observes a value for each.
    pub fn decided(&self, key: &ObjectKey, service: &Service, decision: &Decision) {
        let distribution = distribution(service).cloned();
        let mut sizes = [0; 3];
        for SliceCounts { endpoints, slices, needed_slices, added, removed } in decision.tallies.values() {
            self.added.observe([], *added as f64);
            self.removed.observe([], *removed as f64);
            sizes.iter_mut().zip([endpoints, slices, needed_slices]).for_each(|(sum, count)| *sum += count);
        }
        self.with(|state| {
            state.distributions.extend(distribution.clone());
            state.services.insert(key.clone(), (sizes, distribution));
        });
    }

    /// Counts the successful writes of a sync.
    pub fn wrote(&self, written: &WriteCounts) {
        let counts = [written.created, written.updated, written.deleted];
        self.with(|state| state.changes.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count as u64));
    }

    /// Records the number of writes for each family in a sync without failures; none while the namespace is being
    /// deleted, because creations were left out.
    pub fn completed(&self, service: &Service, plan: &Plan, written: &WriteCounts) {
        if written.created < plan.create.len() {
            return;
        }
        let topology = if service.wants_topology_hints() { "Auto" } else { "Disabled" };
        let distribution = distribution(service).map_or("", |value| value);
        for family in families(service) {
            let labels = [("topology", topology.to_owned()), ("traffic_distribution", distribution.to_owned())];
            self.changed.observe(labels, plan.writes_of(family) as f64);
        }
    }

    /// Removes a deleted Service.
    pub fn forget(&self, key: &ObjectKey) {
        self.with(|state| drop(state.services.remove(key)));
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut lock(&self.state))
    }
}

/// Returns the Service's `trafficDistribution`, if its value is known and no annotation overrides it.
fn distribution(service: &Service) -> Option<&Str> {
    let known = ["PreferClose", "PreferSameZone", "PreferSameNode"];
    let wanted = service.traffic_distribution.as_ref().filter(|value| known.contains(&&***value));
    wanted.filter(|_| !service.wants_topology_hints())
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (sums, distributions, changes, syncs) = self.with(|state| {
            let mut sums = [0; 3];
            let mut distributions: HashMap<Str, usize> =
                state.distributions.iter().map(|value| (value.clone(), 0)).collect();
            for (sizes, distribution) in state.services.values() {
                sums.iter_mut().zip(sizes).for_each(|(sum, count)| *sum += count);
                distribution.iter().for_each(|value| *distributions.entry(value.clone()).or_default() += 1);
            }
            (sums, distributions, state.changes, state.syncs)
        });
        let encoder = &mut encoder;
        encode_services(encoder, sums, distributions)?;
        encode_outcomes(encoder, changes, syncs)?;
        self.added.encode(
            encoder,
            "endpoint_slice_controller_endpoints_added_per_sync",
            "Number of endpoints added on each Service sync",
        )?;
        self.removed.encode(
            encoder,
            "endpoint_slice_controller_endpoints_removed_per_sync",
            "Number of endpoints removed on each Service sync",
        )?;
        self.changed.encode(
            encoder,
            "endpoint_slice_controller_endpointslices_changed_per_sync",
            "Number of EndpointSlices changed on each Service sync",
        )
    }
}

/// Encodes the sums over all Services, and the number of Services by `trafficDistribution`.
fn encode_services(
    encoder: &mut DescriptorEncoder<'_>,
    sums: [usize; 3],
    distributions: HashMap<Str, usize>,
) -> fmt::Result {
    let about = [
        ("endpoint_slice_controller_endpoints_desired", "Number of endpoints desired"),
        ("endpoint_slice_controller_num_endpoint_slices", "Number of EndpointSlices"),
        (
            "endpoint_slice_controller_desired_endpoint_slices",
            "Number of EndpointSlices that would exist with perfect endpoint allocation",
        ),
    ];
    for ((name, help), sum) in about.into_iter().zip(sums) {
        gauges(encoder, name, help, [([], sum as f64)])?;
    }
    gauges(
        encoder,
        "endpoint_slice_controller_services_count_by_traffic_distribution",
        "Number of Services using some specific trafficDistribution",
        distributions.into_iter().map(|(value, count)| ([("traffic_distribution", value.to_string())], count as f64)),
    )
}

/// Encodes the counters of changes (creations, updates, deletions) and of syncs (success, stale cache, error).
fn encode_outcomes(encoder: &mut DescriptorEncoder<'_>, changes: [u64; 3], syncs: [u64; 3]) -> fmt::Result {
    plain_counters(
        encoder,
        "endpoint_slice_controller_changes",
        "Number of EndpointSlice changes",
        ["create", "update", "delete"]
            .into_iter()
            .zip(changes)
            .map(|(operation, count)| ([("operation", operation.to_owned())], count as f64)),
    )?;
    plain_counters(
        encoder,
        "endpoint_slice_controller_syncs",
        "Number of EndpointSlice syncs",
        ["success", "stale", "error"]
            .into_iter()
            .zip(syncs)
            .map(|(result, count)| ([("result", result.to_owned())], count as f64)),
    )
}
