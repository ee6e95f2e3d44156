//! Metrics of decisions and writes.

use std::sync::Arc;

use kinds::int_or_string::IntOrString;
use kinds::{Service, Str};
use runtime::metrics::Metrics as Registry;

use super::super::metrics::Metrics;
use super::builders::{Fixture, labels, port, service};
use crate::network::service_endpoints::slice_writes::{Plan, WriteCounts};

const PREFIX: &str = "endpoint_slice_controller_";

/// The sum and the number of observed values.
type Observed = (f64, f64);

struct Bench {
    metrics: Arc<Metrics>,
    registry: Registry,
    fixture: Fixture,
}

impl Bench {
    fn new(service: Service, pods: impl IntoIterator<Item = u8>) -> Self {
        let (metrics, registry) = (Arc::<Metrics>::default(), Registry::new());
        registry.collect(metrics.clone());
        Self { metrics, registry, fixture: Fixture::new(service, pods) }
    }

    /// Reconciles the Service. All writes succeed, except that nothing is created while the namespace is being deleted.
    fn sync(&mut self, is_terminating: bool) {
        let service = &self.fixture.service;
        let mut decision = self.fixture.decide();
        self.metrics.decided(&service.meta.key(), service, &decision);
        let mut plan = std::mem::take(&mut decision.now);
        plan.append(decision.later);
        let Plan { create, update, delete } = &plan;
        let created = if is_terminating { 0 } else { create.len() };
        let written = WriteCounts { created, updated: update.len(), deleted: delete.len() };
        self.metrics.completed(service, &plan, &written);
        self.fixture.apply(&plan);
    }

    fn value(&self, line: &str) -> f64 {
        let text = self.registry.text();
        let found = text.lines().find_map(|found| found.strip_prefix(PREFIX)?.strip_prefix(line));
        found.map_or(0.0, |value| value.trim().parse().expect("a number"))
    }

    fn observed(&self, name: &str, labels: &str) -> Observed {
        (self.value(&format!("{name}_sum{labels} ")), self.value(&format!("{name}_count{labels} ")))
    }

    /// Returns the numbers of added and of removed endpoints, and of changed slices.
    fn histograms(&self) -> [Observed; 3] {
        let changed = "{topology=\"Disabled\",traffic_distribution=\"\"}";
        let [added, removed] = ["endpoints_added_per_sync", "endpoints_removed_per_sync"];
        [
            self.observed(added, "{}"),
            self.observed(removed, "{}"),
            self.observed("endpointslices_changed_per_sync", changed),
        ]
    }
}

/// Upstream: k8s.io/endpointslice, reconcileByAddressType.
#[test]
fn each_family_is_observed_separately() {
    let families: Vec<Str> = vec!["IPv4".into(), "IPv6".into()];
    let mut bench = Bench::new(Service { ip_families: families, ..service() }, [1, 2, 3]);
    bench.sync(false);
    assert_eq!(bench.histograms(), [(6.0, 2.0), (0.0, 2.0), (2.0, 2.0)], "a slice of each family");
    bench.fixture.pods.remove(&3);
    bench.sync(false);
    assert_eq!(bench.histograms(), [(6.0, 4.0), (2.0, 4.0), (4.0, 4.0)], "an endpoint of each family is removed");
    // One family is no longer wanted: its slice is deleted, which is not part of the other family's changes.
    bench.fixture.service.ip_families = vec!["IPv4".into()];
    bench.sync(false);
    assert_eq!(bench.histograms(), [(6.0, 5.0), (2.0, 5.0), (4.0, 5.0)]);
    assert_eq!(bench.value("endpoints_desired "), 2.0);
    assert_eq!(bench.value("num_endpoint_slices "), 1.0);
}

/// Upstream: k8s.io/endpointslice, reconcileByAddressType: slices of ports that are no longer desired are deleted
/// without counting their endpoints.
#[test]
fn endpoints_of_ports_that_are_no_longer_desired_do_not_count_as_removed() {
    let mut bench = Bench::new(service(), [1, 2]);
    bench.sync(false);
    bench.fixture.service.ports = vec![port("", IntOrString::Int(81))];
    bench.sync(false);
    assert_eq!(bench.histograms(), [(4.0, 2.0), (0.0, 2.0), (2.0, 2.0)]);
    bench.fixture.pods.clear();
    bench.sync(false);
    assert_eq!(bench.histograms(), [(4.0, 3.0), (0.0, 3.0), (3.0, 3.0)], "no pod has any port");
}

#[test]
fn changed_slices_are_not_observed_while_the_namespace_is_being_deleted() {
    let mut bench = Bench::new(service(), [1]);
    bench.sync(true);
    assert_eq!(bench.histograms(), [(1.0, 1.0), (0.0, 1.0), (0.0, 0.0)]);
}

#[test]
fn distribution_without_services_counts_zero() {
    let mut bench = Bench::new(Service { traffic_distribution: Some("PreferClose".into()), ..service() }, [1]);
    let count = "services_count_by_traffic_distribution{traffic_distribution=\"PreferClose\"} ";
    for _ in 0..2 {
        bench.sync(false);
        assert_eq!(bench.value(count), 1.0);
    }
    let changed = |topology: &str, distribution: &str| {
        format!("{{topology=\"{topology}\",traffic_distribution=\"{distribution}\"}}")
    };
    let observed = |bench: &Bench, labels: String| bench.observed("endpointslices_changed_per_sync", &labels);
    assert_eq!(observed(&bench, changed("Disabled", "PreferClose")), (1.0, 2.0));
    let mut second = bench.fixture.service.clone();
    second.meta.name = "other".into();
    let first = std::mem::replace(&mut bench.fixture, Fixture::new(second, [1]));
    bench.sync(false);
    assert_eq!(bench.value(count), 2.0, "two Services");
    bench.metrics.forget(&first.service.meta.key());
    assert_eq!(bench.value(count), 1.0, "one of them is deleted");
    bench.fixture.service.traffic_distribution = None;
    bench.sync(false);
    assert!(bench.registry.text().contains(&format!("{PREFIX}{count}0")));
    bench.fixture.service.traffic_distribution = Some("PreferClose".into());
    bench.fixture.service.annotations = labels(&[("service.kubernetes.io/topology-mode", "Auto")]);
    bench.sync(false);
    assert_eq!(bench.value(count), 0.0, "the annotation takes precedence");
    assert_eq!(observed(&bench, changed("Auto", "")), (0.0, 1.0));
}

/// Upstream: k8s.io/endpointslice/metrics, Cache.
#[test]
fn sums_include_each_service_until_it_is_deleted() {
    let sums = |bench: &Bench| {
        ["endpoints_desired ", "num_endpoint_slices ", "desired_endpoint_slices "].map(|name| bench.value(name))
    };
    let mut bench = Bench::new(service(), 1..=4);
    bench.fixture.max_endpoints = 2;
    bench.sync(false);
    assert_eq!(sums(&bench), [4.0, 2.0, 2.0]);
    for number in [1, 3] {
        bench.fixture.pods.remove(&number);
    }
    bench.sync(false);
    assert_eq!(sums(&bench), [2.0, 2.0, 1.0], "one slice would suffice");
    let mut other = service();
    other.meta.name = "other".into();
    let first = std::mem::replace(&mut bench.fixture, Fixture::new(other, []));
    bench.sync(false);
    assert_eq!(sums(&bench), [2.0, 3.0, 2.0], "an empty slice counts");
    bench.metrics.forget(&first.service.meta.key());
    assert_eq!(sums(&bench), [0.0, 1.0, 1.0]);
}
