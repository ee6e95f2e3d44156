//! Identities of requests: the process itself, or a controller's service account.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::TokenRequest;
use kube::client::Body;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::causes::{problem, with_causes};
use super::refusal::retry_after_header;
use crate::lock::lock;

/// The namespace of the controllers' service accounts.
const NAMESPACE: &str = "kube-system";
/// Requested lifetime of a token.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Minimum lifetime that the server grants. If a token seems to have a shorter one, the clocks differ.
const MIN_LIFETIME: Duration = Duration::from_secs(600);
/// The fraction of its lifetime after which a token is replaced.
const REPLACE_AFTER: f64 = 0.8;
/// Time for which a failure is returned to all callers; longer if the server has requested it by a Retry-After.
const FAILURE_TTL: Duration = Duration::from_secs(1);
/// Time between a failed TokenRequest and the next one, if there is an older token.
const RENEWAL_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Maximum size of the response to a TokenRequest, in bytes.
const MAX_RESPONSE_BYTES: usize = 1 << 20;
/// Maximum time to get a token.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The identity of a request.
#[derive(Debug, Clone)]
pub enum Identity {
    /// The process's own credentials.
    Own,
    /// A service account in `kube-system`, over connections without a client certificate.
    ServiceAccount(Arc<ServiceAccountToken>),
}

/// The bearer token of a service account in `kube-system`, replaced before it expires.
///
/// Follows controller-manager `pkg/clientbuilder.DynamicControllerClientBuilder`: tokens come from TokenRequests and
/// live one hour; a missing account is created; a token is replaced when a fifth of its lifetime is left.
pub struct ServiceAccountToken(Arc<Account>);

struct Account {
    own: kube::Client,
    name: String,
    user_name: String,
    state: Mutex<State>,
    /// Held during a TokenRequest, so that callers share one request.
    renewing: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    live: Option<LiveToken>,
    /// The last failure since the last success, and its time.
    failed: Option<(Instant, TokenError)>,
}

/// The token in use, with the times of its replacement and expiry.
struct LiveToken {
    token: Arc<str>,
    replace_at: Instant,
    expires_at: Instant,
}

/// The cached result of the last TokenRequest.
enum CachedToken {
    Token(Arc<str>),
    /// A valid token that should be replaced soon.
    Aging(Arc<str>),
    Failure(TokenError),
}

/// The reason why there is no token.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TokenError {
    /// There is no complete response: no connection, a lost connection, or a timeout.
    #[error("service account {account}: {step} failed: {problem}")]
    Unreachable {
        /// `kube-system/<name>`.
        account: String,
        /// The step that failed.
        step: &'static str,
        /// The problem.
        problem: String,
    },
    /// The server refused the request.
    #[error("service account {account}: {step} was refused with {status}: {message}")]
    Refused {
        /// `kube-system/<name>`.
        account: String,
        /// The step that was refused.
        step: &'static str,
        /// The HTTP status.
        status: u16,
        /// The message of the server.
        message: String,
        /// The delay before the next request that the server has requested.
        retry_after: Option<Duration>,
    },
    /// The response contains no token.
    #[error("service account {account}: the response to the TokenRequest contains no token")]
    NoToken {
        /// `kube-system/<name>`.
        account: String,
    },
}

impl TokenError {
    /// Returns the delay before the next TokenRequest that the server has requested.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            Self::Unreachable { .. } | Self::NoToken { .. } => None,
        }
    }
}

impl ServiceAccountToken {
    /// Returns the token of `kube-system/<name>`, which the client `own` requests on first use.
    #[must_use]
    pub fn new(own: kube::Client, name: &str) -> Self {
        Self(Arc::new(Account {
            own,
            name: name.to_owned(),
            user_name: format!("system:serviceaccount:{NAMESPACE}:{name}"),
            state: Mutex::default(),
            renewing: Arc::default(),
        }))
    }

    /// Returns the user name that the token authenticates.
    #[must_use]
    pub fn user_name(&self) -> &str {
        &self.0.user_name
    }

    /// Returns a token for the next request. Concurrent callers share one TokenRequest. A token that has not expired is
    /// returned immediately; after 80 % of its lifetime, it is also replaced in the background. If it cannot be
    /// replaced, it stays in use until the server refuses it.
    ///
    /// # Errors
    /// [`TokenError`] when there is none. For one second, or as long as the server requests, later callers get the same
    /// error without another request.
    pub async fn token(&self) -> Result<Arc<str>, TokenError> {
        match self.0.cached() {
            Some(CachedToken::Token(token)) => Ok(token),
            Some(CachedToken::Failure(error)) => Err(error),
            Some(CachedToken::Aging(token)) => {
                self.renew_in_background();
                Ok(token)
            }
            None => {
                let _renewing = self.0.renewing.lock().await;
                match self.0.cached() {
                    Some(CachedToken::Token(token) | CachedToken::Aging(token)) => Ok(token),
                    Some(CachedToken::Failure(error)) => Err(error),
                    None => self.0.renew().await,
                }
            }
        }
    }

    /// Discards the token `used`, which the server refused with 401. A newer token is kept.
    pub fn invalidate(&self, used: &str) {
        let mut state = self.0.state();
        if state.live.as_ref().is_some_and(|live| *live.token == *used) {
            state.live = None;
        }
    }

    fn renew_in_background(&self) {
        let Ok(renewing) = self.0.renewing.clone().try_lock_owned() else { return };
        let account = self.0.clone();
        tokio::spawn(async move {
            // A failure is recorded and logged by `renew`; the callers already have a token.
            let _ = account.renew().await;
            drop(renewing);
        });
    }
}

impl Account {
    /// Requests a token. The caller holds `renewing`.
    async fn renew(&self) -> Result<Arc<str>, TokenError> {
        let result = tokio::time::timeout(TIMEOUT, self.request_with_account()).await.unwrap_or_else(|_| {
            Err(TokenError::Unreachable {
                account: self.account(),
                step: "TokenRequest",
                problem: format!("no response within {TIMEOUT:?}"),
            })
        });
        let mut state = self.state();
        match result {
            Ok(live) => {
                let token = live.token.clone();
                *state = State { live: Some(live), failed: None };
                Ok(token)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                match &state.live {
                    Some(old) => {
                        tracing::warn!(%error, "service account token not renewed; keeping the old one");
                        Ok(old.token.clone())
                    }
                    None => Err(error),
                }
            }
        }
    }

    /// Returns the cached result, if the next caller may use it.
    fn cached(&self) -> Option<CachedToken> {
        let state = self.state();
        let now = Instant::now();
        let since_failure = state.failed.as_ref().map(|(at, error)| (now.duration_since(*at), error));
        let is_within = |(since, error): (Duration, &TokenError), min: Duration| {
            since < min.max(error.retry_after().unwrap_or_default())
        };
        match &state.live {
            Some(live) if now < live.replace_at => Some(CachedToken::Token(live.token.clone())),
            Some(live) if since_failure.is_some_and(|failure| is_within(failure, RENEWAL_RETRY_DELAY)) => {
                Some(CachedToken::Token(live.token.clone()))
            }
            Some(live) if now < live.expires_at => Some(CachedToken::Aging(live.token.clone())),
            Some(_) => None,
            None => since_failure
                .filter(|failure| is_within(*failure, FAILURE_TTL))
                .map(|(_, error)| CachedToken::Failure(error.clone())),
        }
    }

    /// Requests a token. If the service account does not exist, creates it first.
    async fn request_with_account(&self) -> Result<LiveToken, TokenError> {
        match self.request_token().await {
            Err(TokenError::Refused { status: 404, .. }) => {
                self.create_account().await?;
                self.request_token().await
            }
            other => other,
        }
    }

    async fn request_token(&self) -> Result<LiveToken, TokenError> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{}/token", self.name);
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": LIFETIME.as_secs()},
        });
        let response = self.post("TokenRequest", path, &body).await?;
        // The parser's message may quote the token, so it is not passed on.
        let granted = serde_json::from_slice::<TokenRequest>(&response)
            .ok()
            .and_then(|granted| granted.status)
            .and_then(|status| Some((status.token?, status.expiration_timestamp?)));
        let Some((token, expires)) = granted.filter(|(token, _)| !token.is_empty()) else {
            return Err(TokenError::NoToken { account: self.account() });
        };
        let (life, now) = (lifetime(expires.0, Timestamp::now()), Instant::now());
        Ok(LiveToken { token: token.into(), replace_at: now + life.mul_f64(REPLACE_AFTER), expires_at: now + life })
    }

    async fn create_account(&self) -> Result<(), TokenError> {
        match self.post_account().await {
            Err(TokenError::Refused { status: 404, .. }) => {
                let namespace = json!({
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": NAMESPACE},
                });
                let created = self.post("creating its namespace", "/api/v1/namespaces".into(), &namespace).await;
                if let Err(error) = created {
                    tracing::warn!(%error, "namespace not created");
                }
                self.post_account().await
            }
            other => other,
        }
    }

    async fn post_account(&self) -> Result<(), TokenError> {
        let account = json!({
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"namespace": NAMESPACE, "name": self.name},
        });
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts");
        match self.post("creating it", path, &account).await {
            Ok(_) | Err(TokenError::Refused { status: 409, .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    #[allow(clippy::disallowed_methods, reason = "a TokenRequest changes no object")]
    async fn post(&self, step: &'static str, path: String, body: &serde_json::Value) -> Result<Bytes, TokenError> {
        let unreachable = |problem: String| TokenError::Unreachable { account: self.account(), step, problem };
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(body.to_string().into_bytes()))
            .map_err(|error| unreachable(error.to_string()))?;
        let response = self.own.send(request).await.map_err(|error| unreachable(problem(error)))?;
        let status = response.status();
        let retry_after = retry_after_header(response.headers());
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| unreachable(with_causes(&*error)))?.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        Err(TokenError::Refused {
            account: self.account(),
            step,
            status: status.as_u16(),
            message: refusal(status, &body),
            retry_after,
        })
    }

    fn account(&self) -> String {
        format!("{NAMESPACE}/{}", self.name)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Returns the remaining lifetime of a token that expires at `expires`, at least [`MIN_LIFETIME`].
fn lifetime(expires: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(expires.duration_since(now)).unwrap_or_default().max(MIN_LIFETIME)
}

/// Returns the server's message about a refused request, and the fix for missing permissions.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    let message = serde_json::from_slice::<Refusal>(body)
        .map_or_else(|_| status.canonical_reason().unwrap_or("no reason given").to_owned(), |refusal| refusal.message);
    if status == StatusCode::FORBIDDEN {
        format!("{message}; grant that to this user, for example by the ClusterRole system:kube-controller-manager")
    } else {
        message
    }
}

impl fmt::Debug for ServiceAccountToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccountToken").field("account", &self.0.account()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetime_is_never_shorter_than_the_server_grants() {
        let now = Timestamp::UNIX_EPOCH + Duration::from_secs(1_000_000);
        // (seconds until expiry by this clock, seconds of use)
        for (left, wanted) in [(3600, 3600), (1000, 1000), (600, 600), (60, 600), (-50, 600)] {
            let expires = now + jiff::SignedDuration::from_secs(left);
            assert_eq!(lifetime(expires, now), Duration::from_secs(wanted));
        }
    }
}
