//! Metrics of TokenReviews and SubjectAccessReviews, under upstream's names.

use tokio::time::Instant;

use crate::metrics::{Counts, Histograms, Metrics};

/// Upper bounds of the duration of a review. Upstream: apiserver, authenticatorfactory.
const REVIEW_SECONDS: [f64; 8] = [0.25, 0.5, 0.7, 1.0, 1.5, 3.0, 5.0, 10.0];

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

    /// Begins a request.
    pub(super) fn begin(&self) -> PendingReview<'_> {
        PendingReview { metrics: self, started: Instant::now(), code: None }
    }
}

/// A request without a response. It is counted when it is dropped; a timeout drops it with the future of the request.
pub(super) struct PendingReview<'a> {
    metrics: &'a ReviewMetrics,
    started: Instant,
    /// The status of the response.
    pub(super) code: Option<u16>,
}

impl Drop for PendingReview<'_> {
    fn drop(&mut self) {
        let code = self.code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.metrics.requests.add([("code", code.clone())]);
        self.metrics.seconds.observe([("code", code)], self.started.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reviews_are_counted_under_upstreams_names() {
        let metrics = Metrics::default();
        let reviews = ReviewMetrics::new(&metrics, "authn");
        for (code, millis) in [(Some(201), 600), (None, 1000)] {
            let mut pending = reviews.begin();
            pending.code = code;
            tokio::time::advance(Duration::from_millis(millis)).await;
        }
        let text = metrics.text();
        for line in [
            "# TYPE apiserver_delegated_authn_request_total counter",
            "apiserver_delegated_authn_request_total{code=\"<error>\"} 1",
            "apiserver_delegated_authn_request_duration_seconds_bucket{le=\"0.7\",code=\"201\"} 1",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
        }
    }
}
