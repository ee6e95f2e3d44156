//! What a process counts, in one registry, under upstream's names where upstream has one.
//!
//! The text is Prometheus' classic format (0.0.4), because that is what upstream's managers answer whatever a scraper
//! accepts: a dashboard, `kubectl get --raw` and old scrapers see the same names, types and bucket bounds. What only
//! this runtime counts is called `controllers_*`.

mod own;
mod process;
mod text;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use own::{Count, Counts, Gauges, Seconds, StaleSyncs};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
pub use text::exposition;

use crate::controller::WorkCounts;
use crate::election::Fence;
use crate::events::Recorder;
use crate::watch::WatchStats;

/// Labels of one sample.
pub type Labels<const N: usize> = [(&'static str, String); N];

/// All metrics of a process.
#[derive(Debug, Default)]
pub struct Metrics {
    registry: Mutex<Registry>,
    texts: own::Texts,
}

impl Metrics {
    /// A registry with what every process has: its use of the system's resources.
    #[must_use]
    pub fn new() -> Self {
        let metrics = Self::default();
        metrics.collect(process::Process);
        metrics
    }

    /// Adds a source of metrics; each name must come from one source only.
    pub fn collect(&self, source: impl Collector) {
        self.registry().register_collector(Box::new(source));
    }

    /// Adds what is counted about requests to the API server.
    pub fn rest_client(&self, requests: &RestClient) {
        let mut registry = self.registry();
        registry.register(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host",
            requests.requests.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host",
            requests.duration.clone(),
        );
        registry.register(
            "rest_client_rate_limiter_duration_seconds",
            "Client side rate limiter latency in seconds. Broken down by verb, and host",
            requests.limited.clone(),
        );
    }

    /// Everything as text, for `Content-Type: text/plain; version=0.0.4`.
    #[must_use]
    pub fn text(&self) -> String {
        exposition(&self.registry()) + &self.texts.read()
    }

    fn registry(&self) -> std::sync::MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Histograms with upstream's bounds for requests (component-base, metrics/prometheus/restclient).
#[derive(Clone, Debug)]
struct Latency;

impl MetricConstructor<Histogram> for Latency {
    fn new_metric(&self) -> Histogram {
        Histogram::new([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
    }
}

/// Counts requests to the API server; cheap to clone, all clones count together.
#[derive(Clone, Debug)]
pub struct RestClient {
    requests: Family<Labels<3>, Counter>,
    duration: Family<Labels<2>, Histogram, Latency>,
    limited: Family<Labels<2>, Histogram, Latency>,
}

impl Default for RestClient {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(Latency),
            limited: Family::new_with_constructor(Latency),
        }
    }
}

impl RestClient {
    /// A request to `host` (with its port) was answered with the status `code`, or not at all.
    pub fn answered(&self, method: &str, host: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = [("code", code), ("method", method.to_owned()), ("host", host.to_owned())];
        self.requests.get_or_create_owned(&labels).inc();
    }

    /// The head of an answer took so long. A watch's is not counted, as in client-go.
    pub fn took(&self, method: &str, host: &str, time: Duration) {
        let labels = [("verb", method.to_owned()), ("host", host.to_owned())];
        self.duration.get_or_create(&labels).observe(time.as_secs_f64());
    }

    /// A request waited so long for its rate limit.
    pub fn waited(&self, method: &str, host: &str, time: Duration) {
        let labels = [("verb", method.to_owned()), ("host", host.to_owned())];
        self.limited.get_or_create(&labels).observe(time.as_secs_f64());
    }
}

/// One family of samples that are read when they are asked for; counters come without their `_total`.
fn family<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    metric: impl Fn(f64) -> Box<dyn EncodeMetric>,
    kind: MetricType,
    samples: impl IntoIterator<Item = (Labels<N>, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        if labels.is_empty() {
            return metric(value).encode(family);
        }
        metric(value).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Appends gauges that are read when they are asked for.
///
/// # Errors
/// When the text cannot be written.
pub fn gauges<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<N>, f64)>,
) -> fmt::Result {
    family(encoder, name, help, |value| Box::new(ConstGauge::new(value)), MetricType::Gauge, samples)
}

/// Appends counts whose upstream names don't end in `_total`, as a counter's must: they are of no type.
///
/// # Errors
/// When the text cannot be written.
pub fn untyped<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<N>, f64)>,
) -> fmt::Result {
    family(encoder, name, help, |value| Box::new(ConstGauge::new(value)), MetricType::Unknown, samples)
}

/// Histograms of one family, by their labels; cheap to clone, all clones count together.
#[derive(Debug, Clone)]
pub struct Histograms<const N: usize>(Family<Labels<N>, Histogram, Bounds>);

#[derive(Debug, Clone)]
struct Bounds(Vec<f64>);

impl MetricConstructor<Histogram> for Bounds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl<const N: usize> Histograms<N> {
    /// Empty histograms with these upper bounds.
    #[must_use]
    pub fn new(bounds: Vec<f64>) -> Self {
        Self(Family::new_with_constructor(Bounds(bounds)))
    }

    /// Counts a value.
    pub fn observe(&self, labels: Labels<N>, value: f64) {
        self.0.get_or_create(&labels).observe(value);
    }

    /// Appends them under a name.
    ///
    /// # Errors
    /// When the text cannot be written.
    pub fn encode(&self, encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str) -> fmt::Result {
        self.0.encode(encoder.encode_descriptor(name, help, None, MetricType::Histogram)?)
    }
}

/// So many bounds, each twice the one before (component-base, metrics.ExponentialBuckets).
#[must_use]
pub fn powers_of_two(first: f64, count: i32) -> Vec<f64> {
    powers(first, 2.0, count)
}

/// So many bounds, each `factor` times the one before (component-base, metrics.ExponentialBuckets).
#[must_use]
pub fn powers(first: f64, factor: f64, count: i32) -> Vec<f64> {
    (0..count).map(|power| first * factor.powi(power)).collect()
}

/// Appends counts that are read when they are asked for; the name is without its `_total`.
///
/// # Errors
/// When the text cannot be written.
pub fn counters<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    samples: impl IntoIterator<Item = (Labels<N>, f64)>,
) -> fmt::Result {
    family(encoder, name, help, |value| Box::new(ConstCounter::new(value)), MetricType::Counter, samples)
}

/// Leadership: `leader_election_master_status` and `leader_election_slowpath_total`.
#[derive(Debug)]
pub struct Leadership {
    /// The name of the lease.
    pub lease: String,
    /// The state of the election.
    pub fence: Fence,
}

impl Collector for Leadership {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let name = || [("name", self.lease.clone())];
        let leads = u8::from(self.fence.is_leader());
        gauges(
            &mut encoder,
            "leader_election_master_status",
            "Gauge of if the reporting system is master of the relevant lease, 0 indicates backup, 1 indicates master. 'name' is the string used to identify the lease. Please make sure to group by name.",
            [(name(), f64::from(leads))],
        )?;
        counters(
            &mut encoder,
            "leader_election_slowpath",
            "Total number of slow path exercised in renewing leader leases. 'name' is the string used to identify the lease. Please make sure to group by name.",
            [(name(), self.fence.slow_renewals() as f64)],
        )
    }
}

/// The controllers of a process: which run, which should and are not here, and what became of their work.
pub struct Controllers {
    /// The manager's name, for instance `kube-controller-manager`.
    pub manager: &'static str,
    /// What upstream calls some of them in `running_managed_controllers`: name there and here.
    pub running_as: &'static [(&'static str, &'static str)],
    /// Each controller with its counts.
    pub running: Vec<(&'static str, Arc<WorkCounts>)>,
    /// Controllers that are switched on and not in this binary.
    pub missing: Vec<&'static str>,
    /// They run while this process leads.
    pub fence: Fence,
}

impl fmt::Debug for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controllers").field("manager", &self.manager).finish_non_exhaustive()
    }
}

impl Collector for Controllers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let runs = u8::from(self.fence.is_leader());
        gauges(
            &mut encoder,
            "running_managed_controllers",
            "Indicates where instances of a controller are currently running",
            self.running
                .iter()
                .map(|(name, _)| {
                    self.running_as.iter().find(|(_, own)| own == name).map_or(*name, |(theirs, _)| *theirs)
                })
                .map(|name| ([("name", name.into()), ("manager", self.manager.into())], f64::from(runs))),
        )?;
        gauges(
            &mut encoder,
            "controllers_missing",
            "Controllers that are switched on and not in this binary",
            self.missing.iter().map(|name| ([("name", (*name).into())], 1.0)),
        )?;
        let outcomes = self.running.iter().flat_map(|(name, counts)| {
            let outcome = |outcome: &str, count: &AtomicU64| {
                let labels = [("controller", (*name).to_owned()), ("outcome", outcome.to_owned())];
                (labels, count.load(Ordering::Relaxed) as f64)
            };
            [
                outcome("succeeded", &counts.succeeded),
                outcome("failed", &counts.failed),
                outcome("panicked", &counts.panicked),
                outcome("parked", &counts.parked),
            ]
        });
        counters(&mut encoder, "controllers_reconciles", "Runs of reconcilers by their outcome", outcomes)
    }
}

/// The stores and their watches.
pub struct Stores(pub Vec<Arc<dyn WatchStats>>);

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stores({})", self.0.len())
    }
}

impl Collector for Stores {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let each = |value: fn(&dyn WatchStats) -> f64| {
            self.0.iter().map(move |stats| ([("resource", stats.resource())], value(&**stats)))
        };
        gauges(
            &mut encoder,
            "controllers_store_objects",
            "Objects kept in memory",
            each(|stats| stats.objects() as f64),
        )?;
        gauges(
            &mut encoder,
            "controllers_store_undecodable_objects",
            "Objects that the API server has and that cannot be decoded; nothing of their kind is deleted meanwhile",
            each(|stats| stats.undecodable() as f64),
        )?;
        counters(
            &mut encoder,
            "controllers_watch_restarts",
            "Watches that broke or had to list anew",
            each(|stats| stats.restarts() as f64),
        )
    }
}

/// What became of events.
pub struct Events(pub Vec<Recorder>);

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({})", self.0.len())
    }
}

impl Collector for Events {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Several recorders may speak for one component: one sample for all of them.
        let mut sums = std::collections::BTreeMap::new();
        for recorder in &self.0 {
            let counts = recorder.counts();
            for (outcome, count) in [
                ("written", counts.written),
                ("dropped", counts.dropped),
                ("filtered", counts.filtered),
                ("abandoned", counts.abandoned),
            ] {
                *sums.entry((recorder.component(), outcome)).or_insert(0) += count;
            }
        }
        counters(
            &mut encoder,
            "controllers_events",
            "Events by what became of them",
            sums.into_iter().map(|((component, outcome), count)| {
                ([("component", component.to_owned()), ("outcome", outcome.to_owned())], count as f64)
            }),
        )
    }
}

/// `kubernetes_build_info`: the version of Kubernetes that the process stands for, and its own.
#[derive(Debug)]
pub struct BuildInfo {
    /// As `v1.37.0`.
    pub git_version: &'static str,
    /// The part of the version before the first dot.
    pub major: &'static str,
    /// The part after it.
    pub minor: &'static str,
}

const PLATFORM: &str = if cfg!(target_arch = "aarch64") { "linux/arm64" } else { "linux/amd64" };

impl Collector for BuildInfo {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let labels = [
            ("build_date", ""),
            ("compiler", "rustc"),
            ("git_commit", ""),
            ("git_tree_state", ""),
            ("git_version", self.git_version),
            ("go_version", ""),
            ("major", self.major),
            ("minor", self.minor),
            ("platform", PLATFORM),
        ]
        .map(|(name, value)| (name, value.to_owned()));
        gauges(
            &mut encoder,
            "kubernetes_build_info",
            "A metric with a constant '1' value labeled by version, compiler and platform",
            [(labels, 1.0)],
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Queue, QueueOptions, QueueStats, Queues};

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
    }

    #[test]
    fn queues_have_upstreams_names_types_and_bounds() {
        let queue = Queue::new(QueueOptions::named("replicaset"));
        queue.add("a".to_owned());
        let metrics = Metrics::new();
        metrics.collect(Queues::new([queue.clone() as Arc<dyn QueueStats>]));
        let text = metrics.text();
        for line in [
            "# HELP workqueue_adds_total Total number of adds handled by workqueue",
            "# TYPE workqueue_adds_total counter",
            "workqueue_adds_total{name=\"replicaset\"} 1",
            "# TYPE workqueue_retries_total counter",
            "# TYPE workqueue_depth gauge",
            "workqueue_depth{name=\"replicaset\"} 1",
            "# TYPE workqueue_queue_duration_seconds histogram",
            "workqueue_queue_duration_seconds_bucket{le=\"1e-08\",name=\"replicaset\"} 0",
            "workqueue_queue_duration_seconds_bucket{le=\"9.999999999999999e-06\",name=\"replicaset\"} 0",
            "workqueue_queue_duration_seconds_bucket{le=\"0.001\",name=\"replicaset\"} 0",
            "workqueue_queue_duration_seconds_bucket{le=\"10\",name=\"replicaset\"} 0",
            "workqueue_queue_duration_seconds_bucket{le=\"+Inf\",name=\"replicaset\"} 0",
            "# TYPE workqueue_work_duration_seconds histogram",
            "# TYPE workqueue_unfinished_work_seconds gauge",
            "# TYPE workqueue_longest_running_processor_seconds gauge",
        ] {
            has(&text, line);
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"), "{text}");
    }

    #[test]
    fn requests_are_counted_by_code_and_told_by_verb() {
        let (metrics, requests) = (Metrics::new(), RestClient::default());
        metrics.rest_client(&requests);
        requests.answered("GET", "a:6443", Some(200));
        requests.answered("POST", "a:6443", None);
        requests.took("GET", "a:6443", Duration::from_millis(30));
        requests.waited("POST", "a:6443", Duration::from_secs(3));
        let text = metrics.text();
        for line in [
            "# TYPE rest_client_requests_total counter",
            "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"a:6443\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"POST\",host=\"a:6443\"} 1",
            "rest_client_request_duration_seconds_bucket{le=\"0.025\",verb=\"GET\",host=\"a:6443\"} 0",
            "rest_client_request_duration_seconds_bucket{le=\"0.1\",verb=\"GET\",host=\"a:6443\"} 1",
            "rest_client_rate_limiter_duration_seconds_count{verb=\"POST\",host=\"a:6443\"} 1",
        ] {
            has(&text, line);
        }
    }

    #[test]
    fn a_process_tells_its_leadership_controllers_and_version() {
        let counts = Arc::new(WorkCounts::default());
        counts.failed.fetch_add(2, Ordering::Relaxed);
        let metrics = Metrics::new();
        metrics.collect(Leadership { lease: "kube-controller-manager".into(), fence: Fence::open() });
        metrics.collect(Controllers {
            manager: "kube-controller-manager",
            running_as: &[("nodeipam", "node-ipam-controller")],
            running: vec![("replicaset-controller", counts), ("node-ipam-controller", Arc::default())],
            missing: vec!["job-controller"],
            fence: Fence::open(),
        });
        metrics.collect(BuildInfo { git_version: "v1.37.0", major: "1", minor: "37" });
        let text = metrics.text();
        for line in [
            "leader_election_master_status{name=\"kube-controller-manager\"} 1.0",
            "leader_election_slowpath_total{name=\"kube-controller-manager\"} 0.0",
            "running_managed_controllers{name=\"replicaset-controller\",manager=\"kube-controller-manager\"} 1.0",
            "running_managed_controllers{name=\"nodeipam\",manager=\"kube-controller-manager\"} 1.0",
            "controllers_missing{name=\"job-controller\"} 1.0",
            "controllers_reconciles_total{controller=\"replicaset-controller\",outcome=\"failed\"} 2.0",
        ] {
            has(&text, line);
        }
        assert!(text.contains("git_version=\"v1.37.0\""), "{text}");
    }

    #[test]
    fn a_process_knows_its_own_size() {
        let text = Metrics::new().text();
        for name in [
            "process_cpu_seconds_total",
            "process_max_fds",
            "process_open_fds",
            "process_resident_memory_bytes",
            "process_start_time_seconds",
            "process_virtual_memory_bytes",
        ] {
            let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
            let value: f64 = line.and_then(|line| line.rsplit_once(' ')).expect(name).1.parse().expect(name);
            assert!(value >= 0.0 && (name.contains("cpu") || value > 0.0), "{name} {value}");
        }
    }
}
