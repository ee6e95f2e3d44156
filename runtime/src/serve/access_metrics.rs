//! Metrics of authentication and authorization at the HTTPS port, under upstream's names.

use std::time::{Duration, Instant};

use crate::metrics::{Counts, Gauges, Histograms, Metrics};

/// Upper bounds of the duration of a review (apiserver, authenticatorfactory).
const REVIEW_SECONDS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

/// Upper bounds of histograms for which upstream has none (prometheus, DefBuckets).
const DEFAULT_SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Counts the requests for reviews of one kind: `apiserver_delegated_authn_*` or `apiserver_delegated_authz_*`.
pub(super) struct ReviewMetrics {
    requests: Counts<1>,
    seconds: Histograms<1>,
}

impl ReviewMetrics {
    /// Adds the families of reviews to a registry; `purpose` is `authn` or `authz`.
    pub(super) fn new(metrics: &Metrics, purpose: &str) -> Self {
        let name = |family: &str| format!("apiserver_delegated_{purpose}_{family}");
        Self {
            requests: metrics.counts(&name("request"), "Number of HTTP requests partitioned by status code."),
            seconds: metrics.histograms(
                &name("request_duration_seconds"),
                "Request latency in seconds. Broken down by status code.",
                REVIEW_SECONDS.to_vec(),
            ),
        }
    }

    /// Records a request by its status code; `None` if there was no response.
    pub(super) fn record(&self, code: Option<u16>, duration: Duration) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests.add([("code", code.clone())]);
        self.seconds.observe([("code", code)], duration.as_secs_f64());
    }
}

/// Counts requests with a bearer token: `authentication_token_cache_*`.
pub(super) struct TokenCacheMetrics {
    requests: Counts<1>,
    seconds: Histograms<1>,
    fetches: Counts<1>,
    active: Gauges<1>,
}

impl TokenCacheMetrics {
    /// Adds the families to a registry.
    pub(super) fn new(metrics: &Metrics) -> Self {
        let name = |family: &str| format!("authentication_token_cache_{family}");
        Self {
            requests: metrics.counts(&name("request"), "Bearer tokens by whether their review was cached"),
            seconds: metrics.histograms(
                &name("request_duration_seconds"),
                "Time to authenticate a bearer token in seconds",
                DEFAULT_SECONDS.to_vec(),
            ),
            fetches: metrics.counts(&name("fetch"), "TokenReviews by their success"),
            active: metrics
                .gauges(&name("active_fetch_count"), "TokenReviews in flight, and requests that wait for one"),
        }
    }

    /// Records a request whose token was authenticated or refused.
    pub(super) fn finished(&self, hit: bool, started: Instant) {
        let status = || [("status", if hit { "hit" } else { "miss" }.to_owned())];
        self.requests.add(status());
        self.seconds.observe(status(), started.elapsed().as_secs_f64());
    }

    /// Records the end of a TokenReview.
    pub(super) fn fetched(&self, ok: bool) {
        self.fetches.add([("status", if ok { "ok" } else { "error" }.to_owned())]);
    }

    /// Counts a TokenReview as in flight until the result is dropped.
    pub(super) fn in_flight(&self) -> Active<'_> {
        Active::begin(&self.active, "in_flight")
    }

    /// Counts a request as waiting until the result is dropped.
    pub(super) fn blocked(&self) -> Active<'_> {
        Active::begin(&self.active, "blocked")
    }
}

/// A guard that is counted by a gauge while it exists.
pub(super) struct Active<'a> {
    gauge: &'a Gauges<1>,
    status: &'static str,
}

impl<'a> Active<'a> {
    fn begin(gauge: &'a Gauges<1>, status: &'static str) -> Self {
        gauge.change([("status", status.to_owned())], 1.0);
        Self { gauge, status }
    }
}

impl Drop for Active<'_> {
    fn drop(&mut self) {
        self.gauge.change([("status", self.status.to_owned())], -1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_and_tokens_are_counted_under_upstreams_names() {
        let metrics = Metrics::default();
        let (reviews, tokens) = (ReviewMetrics::new(&metrics, "authn"), TokenCacheMetrics::new(&metrics));
        reviews.record(Some(201), Duration::from_millis(600));
        reviews.record(None, Duration::from_secs(1));
        tokens.finished(true, Instant::now());
        tokens.fetched(false);
        let blocked = tokens.blocked();
        drop(tokens.in_flight());
        let text = metrics.text();
        for line in [
            "# TYPE apiserver_delegated_authn_request_total counter",
            "apiserver_delegated_authn_request_total{code=\"<error>\"} 1",
            "apiserver_delegated_authn_request_duration_seconds_bucket{le=\"0.7\",code=\"201\"} 1",
            "authentication_token_cache_request_total{status=\"hit\"} 1",
            "authentication_token_cache_fetch_total{status=\"error\"} 1",
            "authentication_token_cache_active_fetch_count{status=\"blocked\"} 1.0",
            "authentication_token_cache_active_fetch_count{status=\"in_flight\"} 0.0",
            "# TYPE authentication_token_cache_request_duration_seconds histogram",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
        drop(blocked);
    }
}
