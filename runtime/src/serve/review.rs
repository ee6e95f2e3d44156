//! Reviews by the API server: the user of a token (TokenReview) and the permissions of a user (SubjectAccessReview).
//!
//! Reviews change no object. Therefore they may be repeated, unlike the requests of a Writer.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use rand::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::review_metrics::ReviewMetrics;
use crate::client::rate::TokenBucket;
use crate::client::{Clients, Identity, refusal, retry_after};
use crate::lock::lock;

/// Maximum time for a response, including retries. Upstream: apiserver, DelegatingAuthenticationOptions.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Backoff: five attempts, 0.5 s growing by half, with jitter. Upstream: apiserver,
/// DefaultAuthWebhookRetryBackoff.
const MAX_ATTEMPTS: i32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Upstream's limits of reviews per second, and of their burst.
const QPS: f32 = 200.0;
const BURST: u32 = 400;
/// Maximum size of a review in bytes: it repeats the request, with the groups and extra fields of one user.
const MAX_BODY_BYTES: usize = 4 << 20;

/// The reason why there is no result.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum ReviewError {
    /// The server cannot be reached, or the response was truncated.
    #[error("{path} cannot be reached: {problem}")]
    Unreachable {
        /// The path on the server.
        path: String,
        /// The problem.
        problem: String,
    },
    /// The server refused the request.
    #[error("{path}: {message}")]
    Refused {
        /// The path on the server.
        path: String,
        /// The HTTP status.
        code: u16,
        /// The server's message.
        message: String,
        /// The delay after which the server allows a retry.
        retry_after: Option<Duration>,
    },
    /// The response is not the requested object.
    #[error("{path}: the server's response cannot be read")]
    Unreadable {
        /// The path on the server.
        path: String,
    },
}

/// The last error of a request whose retries may exceed the time.
#[derive(Default)]
struct LastError(Mutex<Option<ReviewError>>);

impl LastError {
    fn set(&self, error: ReviewError) {
        *lock(&self.0) = Some(error);
    }

    /// Returns the error of a request whose time is over.
    fn timed_out(self, path: &str) -> ReviewError {
        let path = path.to_owned();
        match self.0.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => ReviewError::Unreachable { path, problem: format!("no response within {TIMEOUT:?}") },
            Some(ReviewError::Refused { code, message, retry_after, .. }) => {
                let delay =
                    retry_after.map(|delay| format!(", which requested a delay of {delay:?}")).unwrap_or_default();
                let message = format!("{message}{delay}; no other response within {TIMEOUT:?}");
                ReviewError::Refused { path, code, message, retry_after }
            }
            Some(ReviewError::Unreachable { problem, .. }) => {
                let problem = format!("{problem}; no response within {TIMEOUT:?}");
                ReviewError::Unreachable { path, problem }
            }
            Some(error @ ReviewError::Unreadable { .. }) => error,
        }
    }
}

/// Sends reviews to the API server at a limited rate.
pub(super) struct Reviewer {
    clients: Clients,
    limit: TokenBucket,
    metrics: ReviewMetrics,
}

impl Reviewer {
    pub(super) fn new(clients: Clients, metrics: ReviewMetrics) -> Self {
        Self { clients, limit: TokenBucket::new(QPS, BURST), metrics }
    }

    /// Posts a review and returns it with its status.
    pub(super) async fn review<R: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        review: &R,
    ) -> Result<R, ReviewError> {
        let body = Bytes::from(serde_json::to_vec(review).map_err(|_| ReviewError::Unreadable { path: path.into() })?);
        let last = LastError::default();
        let response = tokio::time::timeout(TIMEOUT, self.send_with_retries(Method::POST, path, body, &last)).await;
        // The parser's message may quote the token, so it is not passed on.
        serde_json::from_slice(&response.unwrap_or_else(|_| Err(last.timed_out(path)))?)
            .map_err(|_| ReviewError::Unreadable { path: path.into() })
    }

    /// Reads an object without retries, as upstream reads its settings at startup.
    pub(super) async fn read<R: DeserializeOwned>(&self, path: &str) -> Result<R, ReviewError> {
        let last = LastError::default();
        let response = tokio::time::timeout(TIMEOUT, self.send_once(Method::GET, path, Bytes::new(), &last)).await;
        serde_json::from_slice(&response.unwrap_or_else(|_| Err(last.timed_out(path)))?)
            .map_err(|_| ReviewError::Unreadable { path: path.into() })
    }

    async fn send_with_retries(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
        last: &LastError,
    ) -> Result<Bytes, ReviewError> {
        let mut attempt = 1;
        loop {
            let error = match self.send_once(method.clone(), path, body.clone(), last).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            if attempt == MAX_ATTEMPTS || !is_retriable(&error) {
                return Err(error);
            }
            last.set(error.clone());
            let jitter = rand::rng().random_range(1.0..1.2);
            let pause = FIRST_PAUSE.mul_f64(1.5_f64.powi(attempt - 1) * jitter);
            tokio::time::sleep(pause.max(requested_delay(&error))).await;
            attempt += 1;
        }
    }

    async fn send_once(&self, method: Method, path: &str, body: Bytes, last: &LastError) -> Result<Bytes, ReviewError> {
        self.limit.acquire("").await;
        let unreachable = |problem: String| ReviewError::Unreachable { path: path.into(), problem };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| unreachable(error.to_string()))?;
        let mut pending = self.metrics.begin();
        let response = self.clients.send(&Identity::Own, request, MAX_BODY_BYTES).await;
        pending.code = response.as_ref().ok().map(|response| response.status().as_u16());
        drop(pending);
        let response = response.map_err(|error| unreachable(error.to_string()))?;
        if !response.status().is_success() {
            // The body of the refusal may never end.
            last.set(ReviewError::Refused {
                path: path.into(),
                code: response.status().as_u16(),
                message: format!("refused with {}", response.status()),
                retry_after: None,
            });
            let status = refusal(response).await;
            let message = format!("{} ({})", status.message, status.code);
            let retry_after = retry_after(&status);
            return Err(ReviewError::Refused { path: path.into(), code: status.code, message, retry_after });
        }
        let body = response.into_body().collect().await.map_err(|error| unreachable(error.to_string()))?;
        Ok(body.to_bytes())
    }
}

/// Returns true if a retry may succeed. Upstream: apiserver, webhook.DefaultShouldRetry.
fn is_retriable(error: &ReviewError) -> bool {
    match error {
        ReviewError::Unreachable { .. } => true,
        ReviewError::Refused { code, retry_after, .. } => {
            const TRANSIENT: [StatusCode; 3] =
                [StatusCode::TOO_MANY_REQUESTS, StatusCode::INTERNAL_SERVER_ERROR, StatusCode::GATEWAY_TIMEOUT];
            TRANSIENT.iter().any(|transient| transient.as_u16() == *code) || retry_after.is_some()
        }
        ReviewError::Unreadable { .. } => false,
    }
}

/// Returns the delay that the server requests before a retry.
fn requested_delay(error: &ReviewError) -> Duration {
    match error {
        ReviewError::Refused { retry_after, .. } => retry_after.unwrap_or_default(),
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::StreamBody;
    use k8s_openapi::api::authentication::v1::TokenReview;
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::client::{ConnectOptions, ProxyEnvironment, RequestLayer, connect};
    use crate::metrics::Metrics;
    use crate::testing;

    const PATH: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

    #[tokio::test(start_paused = true)]
    async fn transient_refusal_is_retried_after_the_requested_delay() {
        // (status, seconds of Retry-After, number of requests, seconds that they take at least)
        for (code, seconds, expected, min) in [
            (504, 0, 2, 0),
            (500, 0, 2, 0),
            (429, 0, 2, 0),
            (429, 3, 2, 3),
            (503, 4, 2, 4),
            (503, 0, 1, 0),
            (403, 0, 1, 0),
        ] {
            let requests = Arc::new(AtomicUsize::new(0));
            let counted = requests.clone();
            let clients = testing::clients(move |_, _, _| match counted.fetch_add(1, Ordering::SeqCst) {
                0 => {
                    let details = json!({"retryAfterSeconds": seconds});
                    (code, json!({"kind": "Status", "code": code, "details": details}).to_string().into_bytes())
                }
                _ => (201, b"{}".to_vec()),
            });
            let reviewer = Reviewer::new((*clients.await).clone(), ReviewMetrics::new(&Metrics::new(), "authn"));
            let started = Instant::now();
            let reviewed = reviewer.review(PATH, &TokenReview::default()).await;
            assert_eq!(reviewed.is_ok(), expected == 2, "{code}");
            assert_eq!(requests.load(Ordering::SeqCst), expected, "{code}");
            assert!(started.elapsed() >= Duration::from_secs(min), "{code}: {:?}", started.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_with_a_longer_delay_than_the_time_of_a_review_is_reported() {
        let refusal = json!({"kind": "Status", "code": 429, "message": "too many requests",
            "details": {"retryAfterSeconds": 30}});
        let clients = testing::clients(move |_, _, _| (429, refusal.to_string().into_bytes())).await;
        let reviewer = Reviewer::new((*clients).clone(), ReviewMetrics::new(&Metrics::new(), "authn"));
        let error = reviewer.review(PATH, &TokenReview::default()).await.expect_err("a refusal");
        assert_eq!(
            error.to_string(),
            format!("{PATH}: too many requests (429), which requested a delay of 30s; no other response within 10s")
        );
        assert!(matches!(error, ReviewError::Refused { code: 429, .. }));
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_whose_body_never_ends_is_reported() {
        let layer = RequestLayer::new(|_, _, _| {
            Box::pin(async {
                // The time to read the body begins here, and ends after that of the review.
                tokio::time::sleep(Duration::from_secs(1)).await;
                let body = StreamBody::new(futures::stream::pending()).boxed_unsync();
                Ok(http::Response::builder().status(503).body(body).expect("a response"))
            })
        });
        let options = ConnectOptions {
            master: Some("http://127.0.0.1:9".into()),
            proxies: ProxyEnvironment::default(),
            layer: Some(layer),
            ..ConnectOptions::default()
        };
        let clients = connect(&options).await.expect("clients");
        let reviewer = Reviewer::new(clients, ReviewMetrics::new(&Metrics::new(), "authn"));
        let error = reviewer.review(PATH, &TokenReview::default()).await.expect_err("a refusal");
        assert!(matches!(error, ReviewError::Refused { code: 503, .. }), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn review_without_a_response_in_time_is_counted_as_an_error() {
        let clients = testing::slow_clients(2 * TIMEOUT, |_, _, _| (201, b"{}".to_vec())).await;
        let metrics = Metrics::new();
        let reviewer = Reviewer::new((*clients).clone(), ReviewMetrics::new(&metrics, "authn"));
        let reviewed = reviewer.review(PATH, &TokenReview::default()).await;
        assert!(matches!(reviewed, Err(ReviewError::Unreachable { .. })));
        let (text, line) = (metrics.text(), "apiserver_delegated_authn_request_total{code=\"<error>\"} 1");
        assert!(text.lines().any(|own| own == line), "{text}");
    }
}
