//! The requests of a list-watch, and what may come back instead of an answer.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use kinds::envelope::ApiStatus;
use kinds::{Form, Resource};
use kube::client::Body;
use rand::Rng;

use super::frames::FrameError;
use crate::client::media::{JSON, METADATA_LIST, PROTOBUF};
use crate::client::{Clients, Identity, Lane, SendError, refusal, retry_after};
use crate::text::percent_encode;

const PROTOBUF_STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";
/// Metadata instead of whole objects; what cannot be had as protobuf is not watched.
const METADATA_STREAM: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;stream=watch";
/// Objects a page where the server has no streaming lists.
const PAGE: u32 = 500;
/// Objects a page in JSON, which is held whole: a page of the largest objects, 1.5 MiB by etcd's default, has to fit.
const JSON_PAGE: u32 = 100;
/// Longest page that is held whole, in bytes.
const LONGEST_PAGE: usize = 256 << 20;

/// Why a list or watch ended.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// No answer.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The request cannot be made, for example from the server's own words.
    #[error("no request can be made: {0}")]
    Request(String),
    /// The server answered with an error.
    #[error("the server refused: {0}")]
    Refused(ApiStatus),
    /// The body could not be read.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The server sent what is no watch event or list.
    #[error("the server sent something unreadable: {0}")]
    Unreadable(#[from] kinds::DecodeError),
    /// A streaming list ended before it was complete; nothing is concluded from a part of a list.
    #[error("the streaming list ended before it was complete")]
    Incomplete,
    /// A defect in this process.
    #[error("panic: {0}")]
    Panicked(String),
    /// The server's state is older than what it showed before.
    #[error("the server is at version {now}, after it had been at {before}")]
    BackInTime {
        /// Version now.
        now: u64,
        /// Version before.
        before: u64,
    },
}

impl WatchError {
    /// The version that we asked to go on from is gone: only a new list helps.
    pub fn is_expired(&self) -> bool {
        matches!(self, Self::Refused(status) if status.code == 410 || status.reason == "Expired" || status.reason == "Gone")
    }

    /// The time after which the server asks to retry; zero if it does not.
    pub fn retry_after(&self) -> Duration {
        match self {
            Self::Refused(status) => retry_after(status).unwrap_or_default(),
            _ => Duration::ZERO,
        }
    }

    /// The server does not offer streaming lists (an old one, or the feature is off).
    pub fn no_streaming(&self) -> bool {
        matches!(self, Self::Refused(status) if matches!(status.code, 400 | 406 | 422))
    }
}

/// The part of a kind that is watched.
#[derive(Debug, Clone)]
pub struct Scope {
    /// The kind.
    pub resource: Resource,
    /// One namespace, or all.
    pub namespace: Option<String>,
    /// What its objects come as.
    pub form: Form,
}

impl Scope {
    fn uri(&self, query: &str) -> String {
        format!("{}?{}{query}", self.resource.path(self.namespace.as_deref()), self.own_namespace())
    }

    /// What a watch is to answer with.
    pub fn stream_type(&self) -> &'static str {
        match self.form {
            Form::Protobuf => PROTOBUF_STREAM,
            Form::Metadata => METADATA_STREAM,
            Form::Json => JSON,
        }
    }

    /// What a list is to answer with.
    pub fn list_type(&self) -> &'static str {
        match self.form {
            Form::Protobuf => PROTOBUF,
            Form::Metadata => METADATA_LIST,
            Form::Json => JSON,
        }
    }

    /// Who sees one namespace only sees that of all Namespaces, too.
    fn own_namespace(&self) -> String {
        match &self.namespace {
            Some(name) if self.resource.group.is_empty() && self.resource.kind == "Namespace" => {
                format!("fieldSelector=metadata.name%3D{name}&")
            }
            _ => String::new(),
        }
    }

    /// A watch that first sends everything there is, in the newest state.
    pub fn streaming_list(&self) -> String {
        let seconds = timeout_seconds();
        self.uri(&format!(
            "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&timeoutSeconds={seconds}"
        ))
    }

    /// All there is, in the newest state.
    pub fn whole(&self) -> String {
        let uri = self.uri("");
        uri.trim_end_matches(['?', '&']).to_owned()
    }

    /// A watch that goes on after a version.
    pub fn watch(&self, version: u64) -> String {
        let seconds = timeout_seconds();
        self.uri(&format!("watch=true&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds={seconds}"))
    }

    /// The shortest list that shows the newest version.
    pub fn newest(&self) -> String {
        self.uri("limit=1")
    }

    /// A page of a list in the newest state.
    pub fn page(&self, next: &str) -> String {
        let next = if next.is_empty() { String::new() } else { format!("&continue={}", percent_encode(next)) };
        let limit = if self.form == Form::Json { JSON_PAGE } else { PAGE };
        self.uri(&format!("limit={limit}{next}"))
    }
}

/// Watches end by themselves after five to ten minutes, not all at once (client-go, tools/cache, Reflector).
fn timeout_seconds() -> u32 {
    rand::rng().random_range(300..600)
}

/// Opens a watch, or a list that is read object by object.
pub async fn open(
    clients: &Clients,
    uri: String,
    accept: &str,
) -> Result<impl futures::Stream<Item = Result<Bytes, String>> + Unpin + use<>, WatchError> {
    Ok(chunks(answered(clients, Lane::Watch, uri, accept).await?))
}

/// Opens a whole list over a connection of its own.
pub async fn whole(
    clients: &Clients,
    uri: String,
    accept: &str,
) -> Result<impl futures::Stream<Item = Result<Bytes, String>> + Unpin + use<>, WatchError> {
    Ok(chunks(answered(clients, Lane::Alone, uri, accept).await?))
}

fn chunks(answer: Response<Body>) -> impl futures::Stream<Item = Result<Bytes, String>> + Unpin {
    answer.into_body().into_data_stream().map(|chunk| chunk.map_err(|error| error.to_string())).boxed()
}

/// Reads one page of a list into one buffer.
pub async fn page(clients: &Clients, uri: String, accept: &str) -> Result<Bytes, WatchError> {
    get(clients, None, uri, accept).await
}

/// Reads a response whole, within the client's limits of time and size.
async fn get(clients: &Clients, lane: Option<Lane>, uri: String, accept: &str) -> Result<Bytes, WatchError> {
    let mut request = reading(uri, accept)?;
    if let Some(lane) = lane {
        request.extensions_mut().insert(lane);
    }
    let answer = clients.send(&Identity::Own, request, LONGEST_PAGE).await?;
    if answer.status() != StatusCode::OK {
        return Err(WatchError::Refused(refusal(answer).await));
    }
    let body = answer.into_body().collect().await.map_err(|error| FrameError::Body(error.to_string()))?;
    Ok(body.to_bytes())
}

fn reading(uri: String, accept: &str) -> Result<Request<Bytes>, WatchError> {
    let request = Request::builder().method(Method::GET).uri(uri).header(header::ACCEPT, accept);
    request.body(Bytes::new()).map_err(|error| WatchError::Request(error.to_string()))
}

async fn answered(clients: &Clients, lane: Lane, uri: String, accept: &str) -> Result<Response<Body>, WatchError> {
    let answer = clients.open(lane, reading(uri, accept)?).await?;
    if answer.status() == StatusCode::OK {
        return Ok(answer);
    }
    Err(WatchError::Refused(refusal(answer).await))
}

/// How long the server may take to come up before anything is asked of it (cmd/kube-controller-manager/app,
/// WaitForAPIServer).
const UP: Duration = Duration::from_secs(10);

/// Whether the server serves a resource in this version.
///
/// # Errors
/// When it does not answer, also after a while.
pub async fn serves(clients: &Clients, resource: &Resource) -> Result<bool, WatchError> {
    let root = if resource.group.is_empty() { "/api/" } else { "/apis/" };
    let uri = format!("{root}{}", resource.api_version());
    let deadline = tokio::time::Instant::now() + UP;
    loop {
        match served(clients, &uri, resource.plural).await {
            Err(WatchError::Refused(status)) if status.code == 404 => return Ok(false),
            Err(_) if tokio::time::Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(500)).await,
            answer => return answer,
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

/// Waits between tries: 0.8 s doubling to 30 s, with jitter; anew after two quiet minutes (client-go, Reflector).
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
    /// How long to wait now.
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
    fn who_sees_one_namespace_sees_one_namespace_object() {
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
