//! Metrics of the requests to the API server.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::histogram::histogram;
use super::labels::Labels;

/// Histograms with bounds for requests. Upstream: component-base, metrics/prometheus/restclient.
#[derive(Clone, Debug)]
struct Latency;

impl MetricConstructor<Histogram> for Latency {
    fn new_metric(&self) -> Histogram {
        histogram([0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0])
    }
}

/// Histograms with bounds for sizes. Upstream: component-base, metrics/prometheus/restclient.
#[derive(Clone, Debug)]
struct Size;

impl MetricConstructor<Histogram> for Size {
    fn new_metric(&self) -> Histogram {
        const KIB: f64 = 1024.0;
        const MIB: f64 = 1024.0 * KIB;
        let sizes = [KIB, 4.0 * KIB, 16.0 * KIB, 64.0 * KIB, 256.0 * KIB, MIB, 4.0 * MIB, 16.0 * MIB];
        histogram([64.0, 256.0, 512.0].into_iter().chain(sizes))
    }
}

/// Counts requests to the API server. Cheap to clone; clones share their counts.
#[derive(Clone, Debug)]
pub struct RestClient {
    requests: Family<Labels<3>, Counter>,
    duration: Family<Labels<2>, Histogram, Latency>,
    limited: Family<Labels<2>, Histogram, Latency>,
    request_sizes: Family<Labels<2>, Histogram, Size>,
    response_sizes: Family<Labels<2>, Histogram, Size>,
    transports: Transports,
}

/// Counts sets of connections with the same credentials. Upstream: client-go, transport.
#[derive(Clone, Debug, Default)]
struct Transports {
    existing: Gauge,
    created: Family<Labels<1>, Counter>,
    deleted: Family<Labels<1>, Counter>,
    reloads: Family<Labels<2>, Counter>,
    rotations_ended: Counter,
}

/// The result of reading the certificate authorities and client certificates again, as upstream names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CaReload {
    /// The files are as before.
    Unchanged,
    /// New connections use the new files.
    Updated,
    /// A file cannot be read.
    ReadError,
    /// The files cannot be used.
    ParseError,
}

impl CaReload {
    /// Returns the labels `result` and `reason`.
    fn labels(self) -> Labels<2> {
        let (result, reason) = match self {
            Self::Unchanged => ("success", "unchanged"),
            Self::Updated => ("success", "updated"),
            Self::ReadError => ("failure", "read_error"),
            Self::ParseError => ("failure", "ca_parse_error"),
        };
        [("result", result.to_owned()), ("reason", reason.to_owned())]
    }
}

impl Default for RestClient {
    fn default() -> Self {
        Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(Latency),
            limited: Family::new_with_constructor(Latency),
            request_sizes: Family::new_with_constructor(Size),
            response_sizes: Family::new_with_constructor(Size),
            transports: Transports::default(),
        }
    }
}

impl Transports {
    fn register(&self, registry: &mut Registry) {
        registry.register(
            "rest_client_transport_cache_entries",
            "Number of sets of connections with the same credentials",
            self.existing.clone(),
        );
        registry.register(
            "rest_client_transport_create_calls",
            "Number of sets of connections created, partitioned by result (miss: created)",
            self.created.clone(),
        );
        registry.register(
            "rest_client_transport_cache_gc_calls",
            "Number of sets of connections that were replaced, partitioned by result",
            self.deleted.clone(),
        );
        registry.register(
            "rest_client_transport_ca_reload",
            "Number of checks of the certificates' files for changes, partitioned by result and reason",
            self.reloads.clone(),
        );
        registry.register(
            "rest_client_transport_cert_rotation_gc_calls",
            "Number of times that a rotation of certificates ended because its connections are no longer used",
            self.rotations_ended.clone(),
        );
    }
}

impl RestClient {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "rest_client_requests",
            "Number of HTTP requests, partitioned by status code, method, and host",
            self.requests.clone(),
        );
        registry.register(
            "rest_client_request_duration_seconds",
            "Request latency in seconds. Broken down by verb, and host",
            self.duration.clone(),
        );
        registry.register(
            "rest_client_rate_limiter_duration_seconds",
            "Client side rate limiter latency in seconds. Broken down by verb, and host",
            self.limited.clone(),
        );
        registry.register(
            "rest_client_request_size_bytes",
            "Request size in bytes. Broken down by verb and host",
            self.request_sizes.clone(),
        );
        registry.register(
            "rest_client_response_size_bytes",
            "Response size in bytes. Broken down by verb and host",
            self.response_sizes.clone(),
        );
        self.transports.register(registry);
    }

    /// Records a new set of connections.
    pub(crate) fn transport_created(&self) {
        self.transports.created.get_or_create_owned(&[("result", "miss".to_owned())]).inc();
        self.transports.existing.inc();
    }

    /// Records that a set of connections was replaced by a new one.
    pub(crate) fn transport_replaced(&self) {
        self.transports.deleted.get_or_create_owned(&[("result", "deleted".to_owned())]).inc();
        self.transports.existing.dec();
    }

    /// Records a check of the certificates' files.
    pub(crate) fn certificates_checked(&self, result: CaReload) {
        self.transports.reloads.get_or_create_owned(&result.labels()).inc();
    }

    /// Records the end of the checks, because the clients were dropped.
    pub(crate) fn rotation_ended(&self) {
        self.transports.rotations_ended.inc();
    }

    /// Records the response of `host` (with its port) by its status `code`; `None` if there was none.
    pub fn responded(&self, method: &str, host: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        let labels = [("code", code), ("method", method.to_owned()), ("host", host.to_owned())];
        self.requests.get_or_create_owned(&labels).inc();
    }

    /// Records the time until the head of a response, or until the request failed. Not called for watches, as in
    /// client-go.
    pub fn took(&self, method: &str, host: &str, time: Duration) {
        let labels = [("verb", method.to_owned()), ("host", host.to_owned())];
        self.duration.get_or_create(&labels).observe(time.as_secs_f64());
    }

    /// Records the size of a request's body; a read has none and counts as empty.
    pub fn sent(&self, method: &str, host: &str, bytes: usize) {
        let labels = [("verb", method.to_owned()), ("host", host.to_owned())];
        self.request_sizes.get_or_create(&labels).observe(bytes as f64);
    }

    /// Records the size of a whole response.
    pub fn received(&self, method: &str, host: &str, bytes: usize) {
        let labels = [("verb", method.to_owned()), ("host", host.to_owned())];
        self.response_sizes.get_or_create(&labels).observe(bytes as f64);
    }

    /// Records the time that a request waited for its rate limit.
    pub fn waited(&self, method: &str, host: &str, time: Duration) {
        let labels = [("verb", method.to_owned()), ("host", host.to_owned())];
        self.limited.get_or_create(&labels).observe(time.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::super::Metrics;
    use super::*;

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
    }

    #[test]
    fn transports_are_counted_under_upstreams_names() {
        let (metrics, requests) = (Metrics::new(), RestClient::default());
        metrics.rest_client(&requests);
        requests.transport_created();
        requests.transport_created();
        requests.transport_replaced();
        for result in [CaReload::Unchanged, CaReload::Updated, CaReload::ReadError, CaReload::ParseError] {
            requests.certificates_checked(result);
        }
        let text = metrics.text();
        for line in [
            "# TYPE rest_client_transport_cache_entries gauge",
            "rest_client_transport_cache_entries 1",
            "rest_client_transport_create_calls_total{result=\"miss\"} 2",
            "rest_client_transport_cache_gc_calls_total{result=\"deleted\"} 1",
            "rest_client_transport_ca_reload_total{result=\"success\",reason=\"updated\"} 1",
            "rest_client_transport_ca_reload_total{result=\"failure\",reason=\"ca_parse_error\"} 1",
            "rest_client_transport_cert_rotation_gc_calls_total 0",
        ] {
            has(&text, line);
        }
    }

    #[test]
    fn requests_are_counted_by_code_and_verb() {
        let (metrics, requests) = (Metrics::new(), RestClient::default());
        metrics.rest_client(&requests);
        requests.responded("GET", "a:6443", Some(200));
        requests.responded("POST", "a:6443", None);
        requests.took("GET", "a:6443", Duration::from_millis(30));
        requests.waited("POST", "a:6443", Duration::from_secs(3));
        requests.sent("GET", "a:6443", 0);
        requests.sent("POST", "a:6443", 300);
        requests.received("GET", "a:6443", 70_000);
        let text = metrics.text();
        for line in [
            "# TYPE rest_client_requests_total counter",
            "rest_client_requests_total{code=\"200\",method=\"GET\",host=\"a:6443\"} 1",
            "rest_client_requests_total{code=\"<error>\",method=\"POST\",host=\"a:6443\"} 1",
            "rest_client_request_duration_seconds_bucket{le=\"0.025\",verb=\"GET\",host=\"a:6443\"} 0",
            "rest_client_request_duration_seconds_bucket{le=\"0.1\",verb=\"GET\",host=\"a:6443\"} 1",
            "rest_client_rate_limiter_duration_seconds_count{verb=\"POST\",host=\"a:6443\"} 1",
            "rest_client_request_size_bytes_bucket{le=\"512\",verb=\"POST\",host=\"a:6443\"} 1",
            "rest_client_request_size_bytes_count{verb=\"POST\",host=\"a:6443\"} 1",
            "rest_client_request_size_bytes_bucket{le=\"64\",verb=\"GET\",host=\"a:6443\"} 1",
            "rest_client_response_size_bytes_bucket{le=\"65536\",verb=\"GET\",host=\"a:6443\"} 0",
            "rest_client_response_size_bytes_bucket{le=\"1.6777216e+07\",verb=\"GET\",host=\"a:6443\"} 1",
        ] {
            has(&text, line);
        }
    }
}
