//! Sends one request under one identity and reports whether it may have been executed.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, USER_AGENT};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use kube::client::Body;
use tokio::time::timeout;

use super::bearer::bearer;
use super::causes::{problem, with_causes};
use super::clients::Clients;
use super::identity::{Identity, TokenError};
use super::lane::{Accepted, Lane};

/// Maximum time for a read including its body, or for the head of a response that is read piece by piece. The API
/// server ends every request except watches after 60 s.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(65);

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
    /// The server returned success with a body beyond the caller's limit: a write was done.
    #[error("{method} {path}: response is longer than {limit} bytes")]
    TooLong {
        /// The request's method.
        method: Method,
        /// The request's path, without its query.
        path: String,
        /// The caller's limit, in bytes.
        limit: usize,
    },
    /// There is no token for the service account: the request was not sent, or was refused with 401 and has no new
    /// token.
    #[error(transparent)]
    Token(#[from] TokenError),
}

impl SendError {
    /// Returns true if the server has certainly not executed the request.
    #[must_use]
    pub fn not_sent(&self) -> bool {
        match self {
            Self::NotSent { .. } | Self::Token(_) => true,
            Self::Lost { .. } | Self::TooLong { .. } => false,
        }
    }
}

/// Cause of a failed attempt, before it is known whether the request was sent.
enum Failure {
    /// There are no credentials, no connection, or no complete response in time.
    Problem(String),
    /// The body exceeds this number of bytes.
    TooLong(usize),
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self::Problem(problem(error))
    }
}

impl Clients {
    /// Sends `request` (its URI is a path on the server) as `identity`; returns the server's response, including errors
    /// of the API.
    ///
    /// A successful response is read whole: at most `max_bytes` bytes, a write (any method but GET and HEAD) within
    /// [`write_timeout`](super::ConnectOptions::write_timeout), a read within 65 s. The caller reads the body of an
    /// error (`refusal`): an error is reported as an error even if its body never ends. If the server responds to a
    /// service account with 401, the request is sent again with a new token: a 401 means that it was not executed.
    /// No other request is ever repeated.
    ///
    /// # Errors
    /// [`SendError::NotSent`] only when no connection had accepted the request; [`SendError::Token`] when the service
    /// account has no token; [`SendError::TooLong`] when a successful response exceeds the limit; [`SendError::Lost`]
    /// in all other cases without a complete response, including timeouts.
    pub async fn send(
        &self,
        identity: &Identity,
        request: Request<Bytes>,
        max_bytes: usize,
    ) -> Result<Response<Body>, SendError> {
        let account = match identity {
            Identity::Own => return self.exchange(&self.own, request, max_bytes).await,
            Identity::ServiceAccount(account) => account,
        };
        let token = account.token().await?;
        let again = request.clone();
        let response =
            self.exchange(&self.bearer, self.signed(request, &token, account.user_name())?, max_bytes).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        account.invalidate(&token);
        let token = account.token().await?;
        let response = self.exchange(&self.bearer, self.signed(again, &token, account.user_name())?, max_bytes).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            account.invalidate(&token);
        }
        Ok(response)
    }

    fn signed(&self, mut request: Request<Bytes>, token: &str, user_name: &str) -> Result<Request<Bytes>, SendError> {
        let Some(authorization) = bearer(token) else {
            return Err(SendError::NotSent {
                method: request.method().clone(),
                path: request.uri().path().to_owned(),
                problem: format!("the token of {user_name} contains characters that are not valid in a header"),
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
        attempt(request, READ_TIMEOUT, async move |request| Ok(client.send(request).await?)).await
    }

    async fn exchange(
        &self,
        client: &kube::Client,
        request: Request<Bytes>,
        max_bytes: usize,
    ) -> Result<Response<Body>, SendError> {
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let time = if is_read { READ_TIMEOUT } else { self.write_timeout };
        attempt(request, time, async |request| whole(client, request, max_bytes).await).await
    }
}

/// Sends a request within `time`. Distinguishes requests that were certainly not sent from those that may have arrived.
async fn attempt(
    request: Request<Bytes>,
    time: Duration,
    send: impl AsyncFnOnce(Request<Body>) -> Result<Response<Body>, Failure>,
) -> Result<Response<Body>, SendError> {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let mut request = request.map(Body::from);
    let accepted = Accepted::default();
    request.extensions_mut().insert(accepted.clone());
    let timed_out = |_| Err(Failure::Problem(format!("no complete response within {time:?}")));
    let outcome = timeout(time, send(request)).await.unwrap_or_else(timed_out);
    outcome.map_err(|failure| match failure {
        Failure::TooLong(limit) => SendError::TooLong { method, path, limit },
        Failure::Problem(problem) if accepted.get() => SendError::Lost { method, path, problem },
        Failure::Problem(problem) => SendError::NotSent { method, path, problem },
    })
}

/// Returns a successful response with its whole body, or an error of the API whose body is not read yet.
#[allow(clippy::disallowed_methods, reason = "the Writer sends through here")]
async fn whole(client: &kube::Client, request: Request<Body>, max_bytes: usize) -> Result<Response<Body>, Failure> {
    let accepted = request.extensions().get::<Accepted>().cloned();
    let response = client.send(request).await?;
    // A response proves that the request was sent, even if its body cannot be read.
    if let Some(accepted) = accepted {
        accepted.set(true);
    }
    if !response.status().is_success() {
        return Ok(response);
    }
    let (head, body) = response.into_parts();
    let body = Limited::new(body, max_bytes).collect().await.map_err(|error| {
        if error.is::<LengthLimitError>() {
            Failure::TooLong(max_bytes)
        } else {
            Failure::Problem(with_causes(&*error))
        }
    })?;
    Ok(Response::from_parts(head, Body::from(body.to_bytes())))
}
