//! Sends one request under one identity and reports whether it may have been executed.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use tokio::time::timeout;

use super::lane::{Lane, Taken};
use super::reload::bearer;
use super::{Clients, Identity, TokenError};

/// Maximum time for a read including its whole body, or for the head of a response that is read piece by piece. The API
/// server ends every request except watches after a minute.
const READ_TIMEOUT: Duration = Duration::from_secs(70);

/// Maximum body that is held in memory as a whole, in bytes. No object comes near it.
const LONGEST_BODY: usize = 256 << 20;

/// The reason why a request has no response.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// Certainly nothing was sent: the request may be repeated.
    #[error("{method} {path} was not sent: {problem}")]
    NotSent {
        /// The request's method.
        method: Method,
        /// The request's path, without its query.
        path: String,
        /// The problem.
        problem: String,
    },
    /// The server may have executed the request: read the state before repeating it.
    #[error("{method} {path} has no response, the server may have executed it: {problem}")]
    Lost {
        /// The request's method.
        method: Method,
        /// The request's path, without its query.
        path: String,
        /// The problem.
        problem: String,
    },
    /// There is no token for the service account: nothing was sent.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl SendError {
    /// Reports whether the server has certainly not received the request.
    #[must_use]
    pub fn not_sent(&self) -> bool {
        match self {
            Self::NotSent { .. } | Self::Token(_) => true,
            Self::Lost { .. } => false,
        }
    }
}

impl Clients {
    /// Sends `request` (its URI is a path on the server) as `identity`. Returns any response of the server, including
    /// API errors.
    ///
    /// A write (any method except GET and HEAD) must complete within
    /// [`write_timeout`](super::ConnectOptions::write_timeout), a read within 70 s. If a request of a service account
    /// gets a 401, it is sent once more with a new token, because a 401 means that nothing was executed. Nothing else
    /// is ever repeated.
    ///
    /// # Errors
    /// [`SendError::NotSent`] only if no connection had accepted the request; [`SendError::Lost`] in all other cases
    /// without a response, including timeouts.
    pub async fn send(&self, identity: &Identity, request: Request<Bytes>) -> Result<Response<Body>, SendError> {
        let account = match identity {
            Identity::Own => return self.exchange(&self.own, request).await,
            Identity::ServiceAccount(account) => account,
        };
        let token = account.token().await?;
        let again = request.clone();
        let answer = self.exchange(&self.bearer, self.signed(request, &token, account.user_name())?).await?;
        if answer.status() != StatusCode::UNAUTHORIZED {
            return Ok(answer);
        }
        account.invalidate(&token);
        let token = account.token().await?;
        let answer = self.exchange(&self.bearer, self.signed(again, &token, account.user_name())?).await?;
        if answer.status() == StatusCode::UNAUTHORIZED {
            account.invalidate(&token);
        }
        Ok(answer)
    }

    fn signed(&self, mut request: Request<Bytes>, token: &str, user_name: &str) -> Result<Request<Bytes>, SendError> {
        let Some(authorization) = bearer(token) else {
            return Err(SendError::NotSent {
                method: request.method().clone(),
                path: request.uri().path().to_owned(),
                problem: format!("the token of {user_name} holds characters no header can carry"),
            });
        };
        let agent = HeaderValue::try_from(format!("{}/{user_name}", self.user_agent));
        let headers = request.headers_mut();
        headers.insert(AUTHORIZATION, authorization);
        if let Ok(agent) = agent {
            headers.entry(USER_AGENT).or_insert(agent);
        }
        Ok(request)
    }

    /// Opens a response that is read piece by piece, under the process's own identity: a watch or a long list. Only the
    /// head of the response has a deadline; the caller limits the size of the body and the time without data.
    ///
    /// # Errors
    /// [`SendError`] as [`Clients::send`].
    #[allow(clippy::disallowed_methods, reason = "the watches read through here")]
    pub(crate) async fn open(&self, lane: Lane, mut request: Request<Bytes>) -> Result<Response<Body>, SendError> {
        request.extensions_mut().insert(lane);
        let client = self.own.clone();
        attempt(request, READ_TIMEOUT, async move |request| client.send(request).await.map_err(problem)).await
    }

    async fn exchange(&self, client: &kube::Client, request: Request<Bytes>) -> Result<Response<Body>, SendError> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let limit = if is_read { READ_TIMEOUT } else { self.write_timeout };
        attempt(request, limit, async |request| whole(client, request).await).await
    }
}

/// Sends a request within `limit`. Distinguishes a request that was certainly not sent from one that may have arrived.
async fn attempt(
    request: Request<Bytes>,
    limit: Duration,
    send: impl AsyncFnOnce(Request<Body>) -> Result<Response<Body>, String>,
) -> Result<Response<Body>, SendError> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let mut request = request.map(Body::from);
    let taken = Taken::default();
    request.extensions_mut().insert(taken.clone());
    let outcome = timeout(limit, send(request)).await.unwrap_or_else(|_| Err(format!("no response within {limit:?}")));
    outcome.map_err(|problem| {
        if taken.get() {
            SendError::Lost { method, path, problem }
        } else {
            SendError::NotSent { method, path, problem }
        }
    })
}

/// Returns the response with its whole body.
#[allow(clippy::disallowed_methods, reason = "the Writer sends through here")]
async fn whole(client: &kube::Client, request: Request<Body>) -> Result<Response<Body>, String> {
    let taken = request.extensions().get::<Taken>().cloned();
    let answer = client.send(request).await.map_err(problem)?;
    // A response proves that the request was sent, even if reading the body fails.
    if let Some(taken) = taken {
        taken.set(true);
    }
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, LONGEST_BODY).collect().await.map_err(|error| chain(&*error))?;
    Ok(Response::from_parts(head, Body::from(body.to_bytes())))
}

/// Returns the message of a client error without its wrapping.
pub(super) fn problem(error: kube::Error) -> String {
    match error {
        kube::Error::Service(cause) => chain(&*cause),
        other => chain(&other),
    }
}

/// Returns an error with its causes, each once.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}
