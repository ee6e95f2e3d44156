//! The Writer: the only way to change anything.
//!
//! A write is sent under its controller's identity and rate limit, and only while this process leads. It is never
//! repeated here: a write without a conclusive answer is reported ([`WriteError::is_lost`]), so that the caller reads from
//! the API server before it acts again. When the server asks to wait, the key of the reconcile is requeued with that delay.
//! Bodies are protobuf; a patch is JSON.

mod dynamic;
mod list;
mod path;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Limited};
use kinds::envelope::{self, ApiStatus};
use kinds::meta::{Meta, ObjectKey, Uid};
use kinds::wire::find;
use kinds::{Decode, DecodeError, Interner, Kind, Resource};

use crate::client::media::{JSON, METADATA_LIST, PROTOBUF};
use crate::client::rate::TokenBucket;
use crate::client::{Clients, Identity, SendError, refusal, retry_after};
use crate::fence::Fence;
use crate::journal::{note, note_retry_after};
use crate::text::percent_encode;

const METADATA_ONLY: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/vnd.kubernetes.protobuf";
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
/// Longest time for a read, its whole answer included: the API server ends each request that is no watch after 60 s.
const READ_TIMEOUT: Duration = Duration::from_secs(65);
/// Longest answer in bytes.
const LONGEST_ANSWER: usize = 64 << 20;
const EVENTS: Resource = Resource { group: "", version: "v1", kind: "Event", plural: "events", namespaced: true };
/// Objects a page of a list that is read whole.
const PAGE: u32 = 500;

pub use dynamic::{Deletion, Propagation, Scale};
pub use list::MetaList;
pub use path::InvalidName;

/// Why something was not changed, or may not have been.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The server said no; its words are for people too.
    #[error("{0}")]
    Refused(ApiStatus),
    /// This process does not lead any more: nothing was sent.
    #[error("this process no longer holds the lease; nothing was sent")]
    NotLeading,
    /// A name cannot be part of a path: nothing was sent, and nothing can be until that name changes.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The request cannot be put into HTTP: nothing was sent.
    #[error("the request is invalid, nothing was sent: {0}")]
    InvalidRequest(#[from] http::Error),
    /// Certainly nothing was sent.
    #[error(transparent)]
    NotSent(SendError),
    /// The server may have done it.
    #[error(transparent)]
    Lost(SendError),
    /// It was done, but the answer makes no sense.
    #[error("the server's answer cannot be read: {0}")]
    Unreadable(#[from] DecodeError),
}

impl WriteError {
    fn status(&self) -> Option<&ApiStatus> {
        match self {
            Self::Refused(status) => Some(status),
            _ => None,
        }
    }

    fn has_reason(&self, reason: &str, code: u16) -> bool {
        self.status().is_some_and(|status| status.reason == reason || status.reason.is_empty() && status.code == code)
    }

    /// There is no such object.
    pub fn is_not_found(&self) -> bool {
        self.has_reason("NotFound", 404)
    }

    /// The name is taken.
    pub fn is_already_exists(&self) -> bool {
        self.has_reason("AlreadyExists", 0)
    }

    /// The object changed since it was read, or is another one by now.
    pub fn is_conflict(&self) -> bool {
        self.has_reason("Conflict", 409)
    }

    /// The object that was meant is gone, whether or not another one has its name by now. A conflict alone does not say
    /// so: the server also answers with one when others write faster than it can merge a patch.
    pub fn is_gone(&self) -> bool {
        self.is_not_found() || self.status().is_some_and(|status| is_other_uid(&status.message))
    }

    /// The server cannot make sense of the request.
    pub fn is_invalid(&self) -> bool {
        self.has_reason("Invalid", 422)
    }

    /// The namespace is going away: nothing can be created in it any more.
    pub fn is_namespace_terminating(&self) -> bool {
        self.status().is_some_and(|status| status.has_cause("NamespaceTerminating"))
    }

    /// The server's words of why it refused, and its code; `None` if it did not answer.
    pub fn refused(&self) -> Option<&ApiStatus> {
        self.status()
    }

    /// A name cannot be part of a request's path; only a change of the object that it comes from helps.
    pub fn is_invalid_name(&self) -> bool {
        matches!(self, Self::InvalidName(_))
    }

    /// The server may have done it, though there is no answer that says so. Read from the API server before acting again.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Lost(_) | Self::Unreadable(_) => true,
            Self::Refused(status) => is_inconclusive(status),
            Self::NotLeading | Self::InvalidName(_) | Self::InvalidRequest(_) | Self::NotSent(_) => false,
        }
    }

    /// The time after which the server asks to retry, at most a minute.
    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(self.status()?)
    }
}

/// Whether an error of the server leaves open if the write was done: its storage did not answer in time, or a proxy lost the
/// connection to it. Certain are refusals by an admission webhook, which come before anything is stored, and those of a
/// server that asks to retry because it does not handle requests now. (k8s.io/apiserver pkg/storage/errors,
/// InterpretCreateError; pkg/endpoints/handlers/finisher; pkg/admission/plugin/webhook/errors)
fn is_inconclusive(status: &ApiStatus) -> bool {
    match status.code {
        501 => false,
        503 => status.retry_after.is_none(),
        408 | 500.. => !status.message.contains("failed calling webhook"),
        _ => false,
    }
}

/// Whether these words say that the object has not the uid that the request names: of a precondition, as updates and
/// deletions have it; of an apply to nothing; of a patch, which can only try to change the uid (k8s.io/apiserver
/// pkg/storage, Preconditions.Check; pkg/registry/rest, BeforeDelete; pkg/endpoints/handlers, applyPatcher;
/// k8s.io/apimachinery pkg/api/validation, ValidateObjectMetaAccessorUpdate).
fn is_other_uid(message: &str) -> bool {
    ["UID in precondition", "UID in the precondition", "uid mismatch", "metadata.uid: Invalid value"]
        .iter()
        .any(|words| message.contains(words))
}

/// An object as the server returned it.
#[derive(Debug)]
pub struct Answer(Bytes);

impl Answer {
    /// The object without its envelope.
    pub fn object(&self) -> Result<&[u8], DecodeError> {
        envelope::unwrap(&self.0)
    }

    /// The object's metadata.
    pub fn meta(&self) -> Result<Meta, DecodeError> {
        Meta::decode(&Interner::default(), find(self.object()?, 1), |_, _| {})
    }

    /// The whole object as a record.
    pub fn decode<K: Kind>(&self, context: &Decode) -> Result<K, DecodeError> {
        K::decode(context, self.object()?)
    }
}

/// Changes objects on behalf of one controller.
#[derive(Clone)]
pub struct Writer {
    clients: Arc<Clients>,
    identity: Identity,
    limit: Arc<TokenBucket>,
    fence: Fence,
}

impl Writer {
    /// A writer with this identity and rate limit, that writes only while the fence holds.
    pub fn new(clients: Arc<Clients>, identity: Identity, limit: Arc<TokenBucket>, fence: Fence) -> Self {
        Self { clients, identity, limit, fence }
    }

    /// Creates an object of `resource` in a namespace; `object` is its message without envelope. Answers with its
    /// metadata only when `whole` is false.
    pub async fn create(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &[u8],
        whole: bool,
    ) -> Result<Answer, WriteError> {
        let accept = if whole { PROTOBUF } else { METADATA_ONLY };
        let body = envelope::wrap(resource, object).into();
        self.send(Method::POST, path::collection(resource, Some(namespace))?, PROTOBUF, accept, body).await
    }

    /// Creates an object that is given as JSON, where its parts are known as JSON only. Answers with its metadata.
    pub async fn create_json(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &serde_json::Value,
    ) -> Result<Answer, WriteError> {
        let body = object.to_string().into();
        self.send(Method::POST, path::collection(resource, Some(namespace))?, JSON, METADATA_ONLY, body).await
    }

    /// Replaces an object, or one of its subresources; `object` is its message without envelope and carries the
    /// version that it is based on.
    pub async fn replace(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        object: &[u8],
    ) -> Result<Answer, WriteError> {
        let body = envelope::wrap(resource, object).into();
        self.send(Method::PUT, path::object(resource, key, subresource)?, PROTOBUF, PROTOBUF, body).await
    }

    /// Changes an object by a strategic merge patch. A `metadata.uid` in the patch makes it a precondition.
    pub async fn patch(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        patch: &serde_json::Value,
    ) -> Result<Answer, WriteError> {
        let body = patch.to_string().into();
        self.send(Method::PATCH, path::object(resource, key, None)?, STRATEGIC_MERGE, METADATA_ONLY, body).await
    }

    /// As [`Writer::patch`], through the object's status subresource.
    pub async fn patch_status(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        patch: &serde_json::Value,
    ) -> Result<Answer, WriteError> {
        let path = path::object(resource, key, Some("status"))?;
        self.send(Method::PATCH, path, STRATEGIC_MERGE, METADATA_ONLY, patch.to_string().into()).await
    }

    /// Changes an object by a JSON merge patch. A `metadata.uid` in the patch makes it a precondition.
    pub async fn merge_patch(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        patch: &serde_json::Value,
    ) -> Result<Answer, WriteError> {
        let body = patch.to_string().into();
        self.send(Method::PATCH, path::object(resource, key, None)?, MERGE, METADATA_ONLY, body).await
    }

    /// As [`Writer::merge_patch`]; changes are recorded under this field manager.
    pub async fn merge_patch_as(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        manager: &str,
        patch: &serde_json::Value,
    ) -> Result<Answer, WriteError> {
        let path = format!("{}?fieldManager={}", path::object(resource, key, None)?, percent_encode(manager));
        self.send(Method::PATCH, path, MERGE, METADATA_ONLY, patch.to_string().into()).await
    }

    /// Applies fields of an object, or of one of its subresources, as `manager`, also those that others own.
    pub async fn apply(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        manager: &str,
        object: &serde_json::Value,
    ) -> Result<Answer, WriteError> {
        let path = format!(
            "{}?fieldManager={}&force=true",
            path::object(resource, key, subresource)?,
            percent_encode(manager)
        );
        self.send(Method::PATCH, path, APPLY, METADATA_ONLY, object.to_string().into()).await
    }

    /// As [`Writer::apply`]; answers with the whole object as JSON.
    pub async fn apply_whole(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        manager: &str,
        object: &serde_json::Value,
    ) -> Result<Bytes, WriteError> {
        let path =
            format!("{}?fieldManager={}&force=true", path::object(resource, key, None)?, percent_encode(manager));
        Ok(self.send(Method::PATCH, path, APPLY, JSON, object.to_string().into()).await?.0)
    }

    /// Deletes the object with this name if it has not changed since it was read.
    pub async fn delete_unchanged(&self, resource: &Resource, key: &ObjectKey, read: &Meta) -> Result<(), WriteError> {
        let options = serde_json::json!({
            "kind": "DeleteOptions", "apiVersion": "v1",
            "preconditions": { "uid": read.uid.to_string(), "resourceVersion": read.version.to_string() },
        });
        let path = path::object(resource, key, None)?;
        self.send(Method::DELETE, path, "application/json", METADATA_ONLY, options.to_string().into()).await?;
        Ok(())
    }

    /// Deletes the object with this name and uid, under the kind's own propagation policy.
    pub async fn delete(&self, resource: &Resource, key: &ObjectKey, uid: &Uid) -> Result<(), WriteError> {
        let options = serde_json::json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "preconditions": { "uid": uid.to_string() },
        });
        let path = path::object(resource, key, None)?;
        self.send(Method::DELETE, path, "application/json", METADATA_ONLY, options.to_string().into()).await?;
        Ok(())
    }

    /// Reads an object from the server itself, not from a store.
    pub async fn get(&self, resource: &Resource, key: &ObjectKey) -> Result<Answer, WriteError> {
        self.send(Method::GET, path::object(resource, key, None)?, "", PROTOBUF, Bytes::new()).await
    }

    /// Reads an object from the server itself, as JSON: for who must know how the server spells it.
    pub async fn get_json(&self, resource: &Resource, key: &ObjectKey) -> Result<serde_json::Value, WriteError> {
        let answer = self.send(Method::GET, path::object(resource, key, None)?, "", JSON, Bytes::new()).await?;
        let read = serde_json::from_slice(&answer.0);
        Ok(read.map_err(|error| DecodeError::field("body", format!("is not JSON: {error}")))?)
    }

    /// Reads the metadata of a namespace's objects that match a label selector from the server itself; with an empty
    /// namespace, of all of them.
    pub async fn list_meta(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<Meta>, WriteError> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let path = format!("{}?labelSelector={}", path::collection(resource, namespace)?, percent_encode(selector));
        let answer = self.send(Method::GET, path, "", METADATA_LIST, Bytes::new()).await?;
        let interner = Interner::default();
        let page = envelope::page(&answer.0)?;
        Ok(page
            .items
            .into_iter()
            .map(|item| Meta::decode(&interner, find(item, 1), |_, _| {}))
            .collect::<Result<_, _>>()?)
    }

    /// Reads an object of a kind without namespaces from the server itself, with the version that the server has reached
    /// by now; `None` if there is no such object.
    pub async fn read_with_version<K: Kind>(
        &self,
        decode: &Decode,
        name: &str,
    ) -> Result<(u64, Option<K>), WriteError> {
        let selector = percent_encode(&format!("metadata.name={name}"));
        let path = format!("{}?fieldSelector={selector}", path::collection(&K::RESOURCE, None)?);
        let answer = self.send(Method::GET, path, "", PROTOBUF, Bytes::new()).await?;
        let page = envelope::page(&answer.0)?;
        let read = page.items.first().map(|item| K::decode(decode, item)).transpose()?;
        Ok((page.version, read))
    }

    /// Reads all objects of a namespace, or with an empty namespace all of the kind, from the server itself, page by page,
    /// and shows each to `visit`, without its envelope.
    pub async fn list_each(
        &self,
        resource: &Resource,
        namespace: &str,
        mut visit: impl FnMut(&[u8]),
    ) -> Result<(), WriteError> {
        let namespace = Some(namespace).filter(|namespace| !namespace.is_empty());
        let mut next = String::new();
        loop {
            let path = format!("{}?limit={PAGE}{next}", path::collection(resource, namespace)?);
            let answer = self.send(Method::GET, path, "", PROTOBUF, Bytes::new()).await?;
            let page = envelope::page(&answer.0)?;
            page.items.iter().for_each(|item| visit(item));
            if page.next.is_empty() {
                return Ok(());
            }
            next = format!("&continue={}", percent_encode(page.next));
        }
    }

    /// Creates an event, given as JSON.
    pub(crate) async fn post_event(&self, namespace: &str, event: Bytes) -> Result<Answer, WriteError> {
        self.send(Method::POST, path::collection(&EVENTS, Some(namespace))?, JSON, JSON, event).await
    }

    /// Changes an event by a strategic merge patch.
    pub(crate) async fn patch_event(&self, namespace: &str, name: &str, patch: Bytes) -> Result<Answer, WriteError> {
        let path = path::object(&EVENTS, &ObjectKey::new(namespace, name), None)?;
        self.send(Method::PATCH, path, STRATEGIC_MERGE, JSON, patch).await
    }

    /// Sends one request and notes it for the reconcile that it belongs to.
    async fn send(
        &self,
        method: Method,
        path: String,
        content_type: &str,
        accept: &str,
        body: Bytes,
    ) -> Result<Answer, WriteError> {
        let is_read = method == Method::GET;
        let what = format!("{method} {}", path.split_once('?').map_or(&*path, |(path, _)| path));
        let answer = self.send_unnoted(method, path, content_type, accept, body).await;
        let error = answer.as_ref().err();
        tracing::trace!(request = what, error = error.map(tracing::field::display), "request sent");
        if let Some(delay) = error.and_then(WriteError::retry_after) {
            note_retry_after(delay);
        }
        match error {
            None if is_read => {}
            None => note(|| what),
            Some(error) => note(|| format!("{what}: {error}")),
        }
        answer
    }

    async fn send_unnoted(
        &self,
        method: Method,
        path: String,
        content_type: &str,
        accept: &str,
        body: Bytes,
    ) -> Result<Answer, WriteError> {
        let is_read = method == Method::GET;
        let mut request = Request::builder().method(method.clone()).uri(path).header(header::ACCEPT, accept);
        if !content_type.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.body(body)?;
        let waited = self.limit.acquire().await;
        self.clients.metrics.waited(method.as_str(), self.clients.host(), waited);
        if is_read {
            return self.read(request).await;
        }
        if !self.fence.holds() {
            return Err(WriteError::NotLeading);
        }
        let what = (method, request.uri().path().to_owned());
        // The fence may end after a part of the request was sent, which cannot be found out from here.
        self.fence.run(self.exchange(request)).await.unwrap_or_else(|| {
            let (method, path) = what;
            let problem = "this process no longer holds the lease".to_owned();
            Err(WriteError::Lost(SendError::Lost { method, path, problem }))
        })
    }

    /// Reads within a time that bounds the whole answer: no reconcile waits for ever, whatever the path leads to.
    async fn read(&self, request: Request<Bytes>) -> Result<Answer, WriteError> {
        let what = (request.method().clone(), request.uri().path().to_owned());
        tokio::time::timeout(READ_TIMEOUT, self.exchange(request)).await.unwrap_or_else(|_| {
            let (method, path) = what;
            let problem = format!("no complete answer within {READ_TIMEOUT:?}");
            Err(WriteError::Lost(SendError::Lost { method, path, problem }))
        })
    }

    async fn exchange(&self, request: Request<Bytes>) -> Result<Answer, WriteError> {
        let method = request.method().clone();
        let (metrics, host) = (&self.clients.metrics, self.clients.host());
        metrics.sent(method.as_str(), host, request.body().len());
        let answer = self
            .clients
            .send(&self.identity, request)
            .await
            .map_err(|error| if error.not_sent() { WriteError::NotSent(error) } else { WriteError::Lost(error) })?;
        if !answer.status().is_success() {
            return Err(WriteError::Refused(refusal(answer).await));
        }
        let body = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        let body = body.map_err(|error| DecodeError::field("body", format!("broke off or is too long: {error}")))?;
        let body = body.to_bytes();
        metrics.received(method.as_str(), host, body.len());
        Ok(Answer(body))
    }
}
