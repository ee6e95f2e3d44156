//! As whom a request is sent: the process itself, or a controller's service account.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
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

use super::send::{chain, problem};

/// The namespace of the controllers' service accounts.
const NAMESPACE: &str = "kube-system";
/// How long a token is asked to live.
const LIFETIME: Duration = Duration::from_secs(3600);
/// The server grants no less; an apparently shorter life is a clock that differs from the server's.
const LEAST_LIFETIME: Duration = Duration::from_secs(600);
/// The part of its life after which a token is replaced.
const REPLACE_AFTER: f64 = 0.8;
/// A failure is the answer to everyone for so long.
const REMEMBER_FAILURE: Duration = Duration::from_secs(1);
/// A token that could not be replaced is used for this time before the server is asked again.
const RENEWAL_PAUSE: Duration = Duration::from_secs(10);
/// Longest answer to a TokenRequest, in bytes.
const LONGEST_ANSWER: usize = 1 << 20;
/// Longest time to get a token.
const TIMEOUT: Duration = Duration::from_secs(30);

/// As whom a request is sent.
#[derive(Debug, Clone)]
pub enum Identity {
    /// The process's own credentials.
    Own,
    /// A service account in `kube-system`, over connections without client certificate.
    ServiceAccount(Arc<ServiceAccountToken>),
}

/// The bearer token of a service account in `kube-system`, replaced before it expires.
///
/// Follows controller-manager `pkg/clientbuilder.DynamicControllerClientBuilder`: tokens by
/// TokenRequest for one hour, the account made when it is missing, a new token when a fifth of its
/// life is left.
pub struct ServiceAccountToken(Arc<Account>);

struct Account {
    own: kube::Client,
    name: String,
    user_name: String,
    state: Mutex<State>,
    /// Held while asking for a token, so that callers share one request.
    asking: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    failed: Option<(Instant, TokenError)>,
}

struct Live {
    token: Arc<str>,
    replace_at: Instant,
    expires_at: Instant,
}

/// The answer to a caller without a request to the server.
enum Known {
    Token(Arc<str>),
    /// Good for now; a new one should be requested.
    Aging(Arc<str>),
    Failure(TokenError),
}

/// Why there is no token.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TokenError {
    /// The server cannot be asked.
    #[error("service account {account}: {step} failed: {problem}")]
    Unreachable {
        /// `kube-system/<name>`.
        account: String,
        /// What was tried.
        step: &'static str,
        /// What went wrong.
        problem: String,
    },
    /// The server said no.
    #[error("service account {account}: {step} was refused with {status}: {message}")]
    Refused {
        /// `kube-system/<name>`.
        account: String,
        /// What was tried.
        step: &'static str,
        /// The HTTP status.
        status: u16,
        /// The server's words.
        message: String,
    },
    /// The server's answer is not a token.
    #[error("service account {account}: the answer to the TokenRequest holds no token")]
    NoToken {
        /// `kube-system/<name>`.
        account: String,
    },
}

impl ServiceAccountToken {
    /// The token of `kube-system/<name>`, asked for with `own` when first needed.
    #[must_use]
    pub fn new(own: kube::Client, name: &str) -> Self {
        Self(Arc::new(Account {
            own,
            name: name.to_owned(),
            user_name: format!("system:serviceaccount:{NAMESPACE}:{name}"),
            state: Mutex::default(),
            asking: Arc::default(),
        }))
    }

    /// The user as whom the token authenticates.
    #[must_use]
    pub fn user_name(&self) -> &str {
        &self.0.user_name
    }

    /// A token for the next request. Callers at the same time share one TokenRequest. A token that has not expired is
    /// returned immediately and replaced in the background; one that cannot be replaced stays in use until the server
    /// refuses it.
    ///
    /// # Errors
    /// [`TokenError`] when there is none; for a second after, the same again without asking the
    /// server.
    pub async fn token(&self) -> Result<Arc<str>, TokenError> {
        match self.0.known() {
            Some(Known::Token(token)) => Ok(token),
            Some(Known::Failure(error)) => Err(error),
            Some(Known::Aging(token)) => {
                self.renew_in_background();
                Ok(token)
            }
            None => {
                let _asking = self.0.asking.lock().await;
                match self.0.known() {
                    Some(Known::Token(token) | Known::Aging(token)) => Ok(token),
                    Some(Known::Failure(error)) => Err(error),
                    None => self.0.renew().await,
                }
            }
        }
    }

    /// Forgets the token `used`, which the server answered with 401. A newer one stays.
    pub fn invalidate(&self, used: &str) {
        let mut state = self.0.state();
        if state.live.as_ref().is_some_and(|live| *live.token == *used) {
            state.live = None;
        }
    }

    fn renew_in_background(&self) {
        let Ok(asking) = self.0.asking.clone().try_lock_owned() else { return };
        let account = self.0.clone();
        tokio::spawn(async move {
            // A failure is remembered and logged; the callers have a token.
            let _ = account.renew().await;
            drop(asking);
        });
    }
}

impl Account {
    /// Requests a token; to be called with `asking` held.
    async fn renew(&self) -> Result<Arc<str>, TokenError> {
        let asked = tokio::time::timeout(TIMEOUT, self.ask()).await.unwrap_or_else(|_| {
            Err(TokenError::Unreachable {
                account: self.account(),
                step: "TokenRequest",
                problem: format!("no answer within {TIMEOUT:?}"),
            })
        });
        let mut state = self.state();
        match asked {
            Ok(live) => {
                let token = live.token.clone();
                *state = State { live: Some(live), failed: None };
                Ok(token)
            }
            Err(error) => {
                state.failed = Some((Instant::now(), error.clone()));
                match &state.live {
                    Some(old) => {
                        tracing::warn!(%error, "token not replaced; the old one stays");
                        Ok(old.token.clone())
                    }
                    None => Err(error),
                }
            }
        }
    }

    fn known(&self) -> Option<Known> {
        let state = self.state();
        let now = Instant::now();
        let since_failure = state.failed.as_ref().map(|(at, error)| (now.duration_since(*at), error));
        match &state.live {
            Some(live) if now < live.replace_at => Some(Known::Token(live.token.clone())),
            Some(live) if since_failure.is_some_and(|(since, _)| since < RENEWAL_PAUSE) => {
                Some(Known::Token(live.token.clone()))
            }
            Some(live) if now < live.expires_at => Some(Known::Aging(live.token.clone())),
            Some(_) => None,
            None => since_failure
                .filter(|(since, _)| *since < REMEMBER_FAILURE)
                .map(|(_, error)| Known::Failure(error.clone())),
        }
    }

    async fn ask(&self) -> Result<Live, TokenError> {
        match self.request_token().await {
            Err(TokenError::Refused { status: 404, .. }) => {
                self.create_account().await?;
                self.request_token().await
            }
            other => other,
        }
    }

    async fn request_token(&self) -> Result<Live, TokenError> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{}/token", self.name);
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": LIFETIME.as_secs()},
        });
        let answer = self.post("TokenRequest", path, &body).await?;
        // The parser's message may quote the token, so it is not passed on.
        let granted = serde_json::from_slice::<TokenRequest>(&answer)
            .ok()
            .and_then(|granted| granted.status)
            .and_then(|status| Some((status.token?, status.expiration_timestamp?)));
        let Some((token, expires)) = granted.filter(|(token, _)| !token.is_empty()) else {
            return Err(TokenError::NoToken { account: self.account() });
        };
        let (life, now) = (lifetime(expires.0, Timestamp::now()), Instant::now());
        Ok(Live { token: token.into(), replace_at: now + life.mul_f64(REPLACE_AFTER), expires_at: now + life })
    }

    async fn create_account(&self) -> Result<(), TokenError> {
        match self.post_account().await {
            Err(TokenError::Refused { status: 404, .. }) => {
                let namespace = json!({
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": NAMESPACE},
                });
                let made = self.post("creating its namespace", "/api/v1/namespaces".into(), &namespace).await;
                if let Err(error) = made {
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

    #[allow(clippy::disallowed_methods, reason = "asking for a token changes no object")]
    async fn post(&self, step: &'static str, path: String, body: &serde_json::Value) -> Result<Bytes, TokenError> {
        let unreachable = |problem: String| TokenError::Unreachable { account: self.account(), step, problem };
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .header(http::header::ACCEPT, "application/json")
            .body(Body::from(body.to_string().into_bytes()))
            .map_err(|error| unreachable(error.to_string()))?;
        let answer = self.own.send(request).await.map_err(|error| unreachable(problem(error)))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map_err(|error| unreachable(chain(&*error)))?.to_bytes();
        if status.is_success() {
            return Ok(body);
        }
        Err(TokenError::Refused {
            account: self.account(),
            step,
            status: status.as_u16(),
            message: refusal(status, &body),
        })
    }

    fn account(&self) -> String {
        format!("{NAMESPACE}/{}", self.name)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The remaining life of a token that expires at `expires`.
fn lifetime(expires: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(expires.duration_since(now)).unwrap_or_default().max(LEAST_LIFETIME)
}

/// The server's words about a refused request, and the fix for missing rights.
fn refusal(status: StatusCode, body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Refusal {
        message: String,
    }
    let words = serde_json::from_slice::<Refusal>(body)
        .map_or_else(|_| status.canonical_reason().unwrap_or("no reason given").to_owned(), |refusal| refusal.message);
    if status == StatusCode::FORBIDDEN {
        format!("{words}; bind the role system:kube-controller-manager to the own identity")
    } else {
        words
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
        // (seconds to its expiry by this clock, seconds that it is used)
        for (left, wanted) in [(3600, 3600), (1000, 1000), (600, 600), (60, 600), (-50, 600)] {
            let expires = now + jiff::SignedDuration::from_secs(left);
            assert_eq!(lifetime(expires, now), Duration::from_secs(wanted));
        }
    }
}
