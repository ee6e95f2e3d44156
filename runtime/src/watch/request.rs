//! The requests of a list-watch, and their errors.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use kinds::envelope::ApiStatus;
use kinds::{Form, Resource};
use rand::Rng;

use super::frames::FrameError;
use crate::client::media::{JSON, METADATA_LIST, PROTOBUF};
use crate::client::{Clients, Identity, Lane, SendError, refusal, retry_after};
use crate::text::percent_encode;

const PROTOBUF_STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// The media type of metadata instead of whole objects; resources that are not available as protobuf are not watched.
const METADATA_STREAM: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;stream=watch";
/// Objects per page if the server does not support streaming lists.
const PAGE_SIZE: u32 = 500;
/// Objects per page in JSON. A page is held in memory as a whole, so a page of the largest objects, 1.5 MiB by etcd's
/// default, has to fit.
const JSON_PAGE_SIZE: u32 = 100;
/// Maximum size in bytes of a page that is held in memory as a whole.
const MAX_PAGE_BYTES: usize = 256 << 20;

/// The reason why a list or watch ended.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The request was not sent, has no response, or one that is too long.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The request cannot be created, for example because of a value that the server sent.
    #[error("the request cannot be created: {0}")]
    Request(String),
    /// The server returned an error.
    #[error("the server refused: {0}")]
    Refused(ApiStatus),
    /// The body could not be read.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The server sent something that is not a watch event or list.
    #[error("the server's data cannot be read: {0}")]
    Unreadable(#[from] kinds::DecodeError),
    /// A streaming list ended before it was complete. The objects that it has delivered stay in the cache.
    #[error("the streaming list ended before it was complete")]
    Incomplete,
    /// The server sends more than any server can have stored.
    #[error("{0}: either the list never ends, or the server has too many objects")]
    TooLarge(&'static str),
    /// The store can record no more undecodable objects of the kind.
    #[error("too many objects of the kind cannot be decoded; correct or delete those that earlier log lines name")]
    TooManyUndecodable,
    /// A defect in this process.
    #[error("panic: {0}")]
    Panicked(String),
    /// The server's state is older than before.
    #[error("the server's resourceVersion went back from {before} to {now}: its storage was restored or replaced")]
    BackInTime {
        /// The current version of the server.
        now: u64,
        /// The version that the store had reached before.
        before: u64,
    },
}

impl WatchError {
    /// Returns true if the version to continue from has expired: only a new list helps.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 410 || status.reason == "Expired" || status.reason == "Gone")
    }

    /// Returns true if the server has sent more objects than the cache may hold.
    pub(super) fn is_too_large(&self) -> bool {
        matches!(self, Self::TooLarge(_) | Self::TooManyUndecodable)
    }

    /// Returns the delay after which the server allows a retry; zero if it states none.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Refused(status) => retry_after(status).unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// Returns true if the server does not support streaming lists (it is an old server, or the feature is off).
    pub fn is_streaming_unsupported(&self) -> bool {
        matches!(self, Self::Refused(status) if matches!(status.code, 400 | 406 | 422))
    }
}

/// The watched part of a kind.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The kind.
    pub resource: Resource,
    /// The only namespace to watch; `None`: all.
    pub namespace: Option<String>,
    /// The format of its objects.
    pub form: Form,
}

impl Scope {
    fn uri(&self, query: &str) -> String {
        format!("{}?{}{query}", self.resource.path(self.namespace.as_deref()), self.own_namespace())
    }

    /// Returns the media type of a watch.
    pub fn stream_type(&self) -> &'static str {
        match self.form {
            Form::Protobuf => PROTOBUF_STREAM,
            Form::Metadata => METADATA_STREAM,
            Form::Json => JSON,
        }
    }

    /// Returns the media type of a list.
    pub fn list_type(&self) -> &'static str {
        match self.form {
            Form::Protobuf => PROTOBUF,
            Form::Metadata => METADATA_LIST,
            Form::Json => JSON,
        }
    }

    /// Returns the query that selects the Namespace object itself, if only one namespace is watched; otherwise nothing.
    fn own_namespace(&self) -> String {
        match &self.namespace {
            Some(name) if self.resource.group.is_empty() && self.resource.kind == "Namespace" => {
                format!("fieldSelector=metadata.name%3D{name}&")
            }
            _ => String::new(),
        }
    }

    /// Returns the URI of a watch that first sends all objects in their newest state.
    pub fn streaming_list(&self) -> String {
        let seconds = timeout_seconds();
        self.uri(&format!(
            "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds={seconds}"
        ))
    }

    /// Returns the URI of a list of all objects in their newest state.
    pub fn whole(&self) -> String {
        let uri = self.uri("");
        uri.trim_end_matches(['?', '&']).to_owned()
    }

    /// Returns the URI of a watch that continues after a version.
    pub fn watch(&self, version: u64) -> String {
        let seconds = timeout_seconds();
        self.uri(&format!("watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}"))
    }

    /// Returns the URI of the shortest list that contains the newest version.
    pub fn newest(&self) -> String {
        self.uri("limit=1")
    }

    /// Returns the URI of a page of a list in the newest state.
    pub fn page(&self, next: &str) -> String {
        let next = if next.is_empty() { String::new() } else { format!("&continue={}", percent_encode(next)) };
        let limit = if self.form == Form::Json { JSON_PAGE_SIZE } else { PAGE_SIZE };
        self.uri(&format!("limit={limit}{next}"))
    }
}

/// Returns the time after which the server ends a watch: five to ten minutes, at random, so that watches do not end at
/// the same time. Upstream: client-go, tools/cache, Reflector.
fn timeout_seconds() -> u32 {
    rand::rng().random_range(300..600)
}

/// Opens a watch, or a list that is read object by object.
pub async fn open(
    clients: &Clients,
    lane: Lane,
    uri: String,
    accept: &str,
) -> Result<impl futures::Stream<Item = Result<Bytes, String>> + Unpin + use<>, WatchError> {
    let response = clients.open(lane, get_request(uri, accept)?).await?;
    if response.status() != StatusCode::OK {
        return Err(WatchError::Refused(refusal(response).await));
    }
    Ok(response.into_body().into_data_stream().map(|chunk| chunk.map_err(|error| error.to_string())).boxed())
}

/// Reads one page of a list into one buffer.
pub async fn page(clients: &Clients, uri: String, accept: &str) -> Result<Bytes, WatchError> {
    get(clients, None, uri, accept).await
}

/// Reads a whole response, within the client's limits of time and size.
async fn get(clients: &Clients, lane: Option<Lane>, uri: String, accept: &str) -> Result<Bytes, WatchError> {
    let mut request = get_request(uri, accept)?;
    if let Some(lane) = lane {
        request.extensions_mut().insert(lane);
    }
    let response = clients.send(&Identity::Own, request, MAX_PAGE_BYTES).await?;
    if response.status() != StatusCode::OK {
        return Err(WatchError::Refused(refusal(response).await));
    }
    let body = response.into_body().collect().await.map_err(|error| FrameError::Body(error.to_string()))?;
    Ok(body.to_bytes())
}

fn get_request(uri: String, accept: &str) -> Result<Request<Bytes>, WatchError> {
    let request = Request::builder().method(Method::GET).uri(uri).header(header::ACCEPT, accept);
    request.body(Bytes::new()).map_err(|error| WatchError::Request(error.to_string()))
}

/// Time for which errors are retried, because the server may still be starting. Upstream:
/// cmd/kube-controller-manager/app, the timeout of WaitForAPIServer.
const STARTUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns true if the server serves a resource in this version.
///
/// # Errors
/// When the server has returned only errors, or no response, for ten seconds.
pub async fn serves(clients: &Clients, resource: &Resource) -> Result<bool, WatchError> {
    let root = if resource.group.is_empty() { "/api/" } else { "/apis/" };
    let uri = format!("{root}{}", resource.api_version());
    let deadline = tokio::time::Instant::now() + STARTUP_TIMEOUT;
    loop {
        match served(clients, &uri, resource.plural).await {
            Err(WatchError::Refused(status)) if status.code == 404 && !status.is_from_proxy() => return Ok(false),
            Err(error) if tokio::time::Instant::now() < deadline => {
                let pause = error.retry_after().max(Duration::from_millis(500));
                tokio::time::sleep_until(deadline.min(tokio::time::Instant::now() + pause)).await;
            }
            response => return response,
        }
    }
}

async fn served(clients: &Clients, uri: &str, plural: &str) -> Result<bool, WatchError> {
    let body = get(clients, Some(Lane::Control), uri.to_owned(), "application/json").await?;
    let list: serde_json::Value = serde_json::from_slice(&body)
        .map_err(|error| kinds::DecodeError::field("APIResourceList", error.to_string()))?;
    let resources = list["resources"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(resources.iter().any(|resource| resource["name"] == plural))
}

/// Delays between attempts: 0.8 s doubling to 30 s, each extended at random to up to twice its length; reset after two
/// minutes without a failure. Upstream: client-go, Reflector.
pub struct Backoff {
    step: u32,
    last: tokio::time::Instant,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { step: 0, last: tokio::time::Instant::now() }
    }
}

impl Backoff {
    /// Returns the next delay.
    pub fn next(&mut self) -> Duration {
        if self.last.elapsed() > Duration::from_secs(120) {
            self.step = 0;
        }
        let base = Duration::from_millis(800).saturating_mul(1 << self.step.min(6)).min(Duration::from_secs(30));
        self.step += 1;
        self.last = tokio::time::Instant::now();
        base.mul_f64(rand::rng().random_range(1.0..2.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_of_a_refused_watch_is_kept_and_capped() {
        for (seconds, delay) in [(None, 0), (Some(5), 5), (Some(86_400), 60)] {
            let status = ApiStatus { code: 429, retry_after: seconds, ..ApiStatus::default() };
            assert_eq!(WatchError::Refused(status).retry_after().as_secs(), delay);
        }
    }

    #[test]
    fn scope_of_one_namespace_watches_only_that_namespace_object() {
        let resource = |kind, plural, namespaced| Resource { group: "", version: "v1", kind, plural, namespaced };
        for (resource, namespace, expected) in [
            (
                resource("Namespace", "namespaces", false),
                Some("a"),
                "/api/v1/namespaces?fieldSelector=metadata.name%3Da&",
            ),
            (resource("Namespace", "namespaces", false), None, "/api/v1/namespaces?limit"),
            (resource("Node", "nodes", false), Some("a"), "/api/v1/nodes?limit"),
            (resource("Pod", "pods", true), Some("a"), "/api/v1/namespaces/a/pods?limit"),
        ] {
            let scope = Scope { resource, namespace: namespace.map(str::to_owned), form: Form::Protobuf };
            assert!(scope.page("").starts_with(expected), "{}", scope.page(""));
        }
    }
}
