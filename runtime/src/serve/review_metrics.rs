//! Metrics of TokenReviews and SubjectAccessReviews, under upstream's names.

use std::time::Duration;

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

    /// Records a request by its status code; `None` if there was no response.
    pub(super) fn record(&self, code: Option<u16>, duration: Duration) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests.add([("code", code.clone())]);
        self.seconds.observe([("code", code)], duration.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_counted_under_upstreams_names() {
        let metrics = Metrics::default();
        let reviews = ReviewMetrics::new(&metrics, "authn");
        reviews.record(Some(201), Duration::from_millis(600));
        reviews.record(None, Duration::from_secs(1));
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
