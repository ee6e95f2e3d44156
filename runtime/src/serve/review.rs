//! Questions to the API server: whose token is this (TokenReview), and may that user do that (SubjectAccessReview).
//!
//! Reviews change nothing, so that they may be repeated, unlike anything that a Writer sends.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use rand::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::access_metrics::ReviewMetrics;
use crate::client::rate::TokenBucket;
use crate::client::{Clients, Identity, refusal};

/// Longest time for an answer, repetitions included (apiserver, DelegatingAuthenticationOptions).
const TIMEOUT: Duration = Duration::from_secs(10);
/// Upstream's backoff: five tries, 0.5 s growing by half, with jitter (apiserver, DefaultAuthWebhookRetryBackoff).
const TRIES: i32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Upstream's limit of reviews per second, and of those at once.
const QPS: f32 = 200.0;
const BURST: u32 = 400;
/// Longest review in bytes: it repeats the request, with the groups and extra fields of one user.
const LONGEST_BODY: usize = 4 << 20;

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum ReviewError {
    /// The server cannot be asked, or the answer broke off.
    #[error("{path} cannot be asked: {problem}")]
    Unreachable {
        /// The path on the server.
        path: String,
        /// What went wrong.
        problem: String,
    },
    /// The server said no.
    #[error("{path}: {message}")]
    Refused {
        /// The path on the server.
        path: String,
        /// The HTTP status.
        code: u16,
        /// The server's words.
        message: String,
    },
    /// The answer is not what was asked for.
    #[error("{path}: the server's answer cannot be read")]
    Unreadable {
        /// The path on the server.
        path: String,
    },
}

/// Asks the API server, at a bounded rate.
pub(super) struct Reviewer {
    clients: Clients,
    limit: TokenBucket,
    metrics: ReviewMetrics,
}

impl Reviewer {
    pub(super) fn new(clients: Clients, metrics: ReviewMetrics) -> Self {
        Self { clients, limit: TokenBucket::new(QPS, BURST), metrics }
    }

    /// Posts a review and returns it with its status filled in.
    pub(super) async fn review<R: Serialize + DeserializeOwned>(
        &self,
        path: &str,
        review: &R,
    ) -> Result<R, ReviewError> {
        let body = Bytes::from(serde_json::to_vec(review).map_err(|_| ReviewError::Unreadable { path: path.into() })?);
        let answer = tokio::time::timeout(TIMEOUT, self.ask(Method::POST, path, body)).await;
        let silence =
            |_| ReviewError::Unreachable { path: path.into(), problem: format!("no answer within {TIMEOUT:?}") };
        // The parser's message may quote the token, so it is not passed on.
        serde_json::from_slice(&answer.map_err(silence)??).map_err(|_| ReviewError::Unreadable { path: path.into() })
    }

    /// Reads an object; once, as upstream reads its settings at the start.
    pub(super) async fn read<R: DeserializeOwned>(&self, path: &str) -> Result<R, ReviewError> {
        let answer = tokio::time::timeout(TIMEOUT, self.once(Method::GET, path, Bytes::new())).await;
        let silence =
            |_| ReviewError::Unreachable { path: path.into(), problem: format!("no answer within {TIMEOUT:?}") };
        serde_json::from_slice(&answer.map_err(silence)??).map_err(|_| ReviewError::Unreadable { path: path.into() })
    }

    async fn ask(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ReviewError> {
        let mut tries = 1;
        loop {
            let error = match self.once(method.clone(), path, body.clone()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if tries == TRIES || !may_pass(&error) {
                return Err(error);
            }
            let jitter = rand::rng().random_range(1.0..1.2);
            tokio::time::sleep(FIRST_PAUSE.mul_f64(1.5_f64.powi(tries - 1) * jitter)).await;
            tries += 1;
        }
    }

    async fn once(&self, method: Method, path: &str, body: Bytes) -> Result<Bytes, ReviewError> {
        self.limit.acquire().await;
        let unreachable = |problem: String| ReviewError::Unreachable { path: path.into(), problem };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|error| unreachable(error.to_string()))?;
        let begun = Instant::now();
        let answer = self.clients.send(&Identity::Own, request, LONGEST_BODY).await;
        self.metrics.record(answer.as_ref().ok().map(|answer| answer.status().as_u16()), begun.elapsed());
        let answer = answer.map_err(|error| unreachable(error.to_string()))?;
        if !answer.status().is_success() {
            let status = refusal(answer).await;
            let message = format!("{} ({})", status.message, status.code);
            return Err(ReviewError::Refused { path: path.into(), code: status.code, message });
        }
        let body = answer.into_body().collect().await.map_err(|error| unreachable(error.to_string()))?;
        Ok(body.to_bytes())
    }
}

/// Whether the same question may be answered a moment later (apiserver, webhook.DefaultShouldRetry).
fn may_pass(error: &ReviewError) -> bool {
    match error {
        ReviewError::Unreachable { .. } => true,
        ReviewError::Refused { code, .. } => {
            *code == StatusCode::TOO_MANY_REQUESTS.as_u16() || *code == StatusCode::INTERNAL_SERVER_ERROR.as_u16()
        }
        ReviewError::Unreadable { .. } => false,
    }
}
