//! The Writer: the only way to change objects.
//!
//! A write is sent under its controller's identity and rate limit, and only while this process leads. It is never
//! repeated here: a write without a conclusive response is reported ([`WriteError::is_lost`]), so that the caller reads
//! from the API server before it acts again. If the server returns a Retry-After, the key of a reconcile that fails is
//! requeued no sooner than after that delay. Objects are sent as protobuf if the fields of their kind are known.
//! Patches, deletions, scales and events are JSON.

mod dynamic;
mod list;
mod path;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use kinds::envelope::{self, ApiStatus};
use kinds::meta::{Meta, ObjectKey, Uid};
use kinds::wire::find;
use kinds::{Decode, DecodeError, Interner, Kind, Resource};

use crate::client::media::{JSON, PROTOBUF};
use crate::client::rate::TokenBucket;
use crate::client::{Clients, Identity, SendError, refusal, retry_after};
use crate::fence::Fence;
use crate::journal::{note, note_retry_after};
use crate::stale;
use crate::text::percent_encode;

/// Only the metadata of an object, if the server supports that for its kind.
const METADATA_ONLY: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/vnd.kubernetes.protobuf";
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";
const MERGE: &str = "application/merge-patch+json";
const JSON_PATCH: &str = "application/json-patch+json";
const APPLY: &str = "application/apply-patch+yaml";
/// Maximum size of a response in bytes: about forty of the largest objects that the API server stores by default.
const MAX_RESPONSE_BYTES: usize = 64 << 20;
const EVENTS: Resource = Resource { group: "", version: "v1", kind: "Event", plural: "events", namespaced: true };

pub use dynamic::{Deletion, Propagation, Scale};
pub use list::{MetaList, PageSize, VersionPage};
pub use path::{InvalidName, ReadPath};

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The server refused the request. Its message is shown to users, too.
    #[error("{0}")]
    Refused(ApiStatus),
    /// This process no longer leads: nothing was sent.
    #[error("this process no longer holds the lease; nothing was sent")]
    NotLeading,
    /// The deletion would be based on an outdated record: nothing was sent.
    #[error("nothing is deleted: the newest state of {0} cannot be decoded, and the cache has an older one")]
    Stale(String),
    /// A name cannot be part of a path: nothing was sent, and a retry fails until that name changes.
    #[error(transparent)]
    InvalidName(#[from] InvalidName),
    /// The request cannot be encoded: nothing was sent.
    #[error("the request is invalid, nothing was sent: {0}")]
    InvalidRequest(#[from] http::Error),
    /// The request was certainly not executed: it was not sent, or was refused with 401 and there is no new token.
    #[error(transparent)]
    NotSent(SendError),
    /// The server may have executed the request.
    #[error(transparent)]
    Lost(SendError),
    /// The request was executed, but the response is too long to be read.
    #[error(transparent)]
    TooLong(SendError),
    /// The request was executed, but the response cannot be decoded.
    #[error("the server's response cannot be read: {0}")]
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
        self.status().is_some_and(|status| {
            status.reason == reason || status.reason.is_empty() && status.code == code && !status.is_from_proxy()
        })
    }

    /// Returns true if the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.has_reason("NotFound", 404)
    }

    /// Returns true if the name is taken.
    pub fn is_already_exists(&self) -> bool {
        self.has_reason("AlreadyExists", 0)
    }

    /// Returns true if the object changed since it was read, or was replaced.
    pub fn is_conflict(&self) -> bool {
        self.has_reason("Conflict", 409)
    }

    /// Returns true if the object no longer exists, even if another one has its name now. A conflict alone does not
    /// prove the deletion: the server also returns a conflict when other clients write faster than it can merge a
    /// patch.
    pub fn is_object_deleted(&self) -> bool {
        self.is_not_found() || self.status().is_some_and(|status| is_other_uid(&status.message))
    }

    /// Returns true if the server considers the request invalid.
    pub fn is_invalid(&self) -> bool {
        self.has_reason("Invalid", 422)
    }

    /// Returns true if the namespace is being deleted: nothing can be created in it.
    pub fn is_namespace_terminating(&self) -> bool {
        self.status().is_some_and(|status| status.has_cause("NamespaceTerminating"))
    }

    /// Returns the error that the server returned; `None` if the request failed in another way.
    pub fn refused(&self) -> Option<&ApiStatus> {
        self.status()
    }

    /// Returns true if the server has decided against the request, so the same request would be refused again: by
    /// a quota, a policy, its validation, or an admission webhook, also if that cannot be called. Conflicts, overload
    /// and other failures of the server are not denials.
    pub fn is_denied(&self) -> bool {
        self.status().is_some() && !self.is_lost() && !self.is_conflict() && self.retry_after().is_none()
    }

    /// Returns true if a name cannot be part of a request's path; the object that contains it must change first.
    pub fn is_invalid_name(&self) -> bool {
        matches!(self, Self::InvalidName(_))
    }

    /// Returns true if the server may have executed the request although no response confirms it. Read from the API
    /// server before acting again.
    pub fn is_lost(&self) -> bool {
        match self {
            Self::Lost(_) | Self::TooLong(_) | Self::Unreadable(_) => true,
            Self::Refused(status) => is_inconclusive(status),
            Self::NotLeading | Self::Stale(_) | Self::InvalidName(_) | Self::InvalidRequest(_) | Self::NotSent(_) => {
                false
            }
        }
    }

    /// Returns the delay after which the server allows a retry, at most a minute.
    pub fn retry_after(&self) -> Option<Duration> {
        retry_after(self.status()?)
    }
}

/// Returns the error of a request without a usable response.
fn without_response(error: SendError) -> WriteError {
    match error {
        SendError::NotSent { .. } | SendError::Token(_) => WriteError::NotSent(error),
        SendError::Lost { .. } => WriteError::Lost(error),
        SendError::TooLong { .. } => WriteError::TooLong(error),
    }
}

/// Returns true if the server may have executed the write although it returned an error: its storage did not respond in
/// time, or a proxy lost the connection to the server. Three of these errors (408 and 5xx) prove that nothing was
/// written: a 501, a failed admission webhook, which is called before anything is stored, and a 503 with Retry-After,
/// by which a server refuses to handle the request. Upstream: k8s.io/apiserver pkg/storage/errors,
/// InterpretCreateError; pkg/endpoints/handlers/finisher; pkg/admission/plugin/webhook/errors.
fn is_inconclusive(status: &ApiStatus) -> bool {
    match status.code {
        501 => false,
        503 => status.retry_after.is_none(),
        408 | 500.. => !status.message.contains("failed calling webhook"),
        _ => false,
    }
}

/// Returns true if the message means that the object has another uid than the request: from a precondition of an update
/// or deletion; from an apply to a missing object; from a patch, which can only try to change the uid. Upstream:
/// k8s.io/apiserver pkg/storage, Preconditions.Check; pkg/registry/rest, BeforeDelete; pkg/endpoints/handlers,
/// applyPatcher; k8s.io/apimachinery pkg/api/validation, ValidateObjectMetaAccessorUpdate.
fn is_other_uid(message: &str) -> bool {
    ["UID in precondition", "UID in the precondition", "uid mismatch", "metadata.uid: Invalid value"]
        .iter()
        .any(|words| message.contains(words))
}

/// The body of a successful response: usually an object.
#[derive(Debug)]
pub struct ObjectResponse(Bytes);

impl ObjectResponse {
    /// Returns the object without its envelope.
    pub fn object(&self) -> Result<&[u8], DecodeError> {
        envelope::unwrap(&self.0)
    }

    /// Returns the object's metadata.
    pub fn meta(&self) -> Result<Meta, DecodeError> {
        Meta::decode(&Interner::default(), find(self.object()?, 1), |_, _| {})
    }

    /// Returns the whole object as a record.
    pub fn decode<K: Kind>(&self, context: &Decode) -> Result<K, DecodeError> {
        K::decode(context, self.object()?)
    }
}

/// Returns the path of a server-side apply by this field manager that takes over fields of other managers.
fn applied_by(manager: &str, path: String) -> String {
    format!("{path}?fieldManager={}&force=true", percent_encode(manager))
}

/// Changes objects under the identity of one controller. Each method returns the error of its request.
#[derive(Clone)]
pub struct Writer {
    clients: Arc<Clients>,
    identity: Identity,
    limit: Arc<TokenBucket>,
    fence: Fence,
}

impl Writer {
    /// Creates a writer with this identity and rate limit that writes only while the fence is open.
    pub fn new(clients: Arc<Clients>, identity: Identity, limit: Arc<TokenBucket>, fence: Fence) -> Self {
        Self { clients, identity, limit, fence }
    }

    /// Creates an object of `resource` in a namespace; `object` is its message without envelope. The response contains
    /// only its metadata if `whole` is false.
    pub async fn create(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &[u8],
        whole: bool,
    ) -> Result<ObjectResponse, WriteError> {
        let accept = if whole { PROTOBUF } else { METADATA_ONLY };
        let body = envelope::wrap(resource, object).into();
        self.send(Method::POST, path::collection(resource, Some(namespace))?, PROTOBUF, accept, body).await
    }

    /// Creates an object that is given as JSON, for kinds whose fields are known only as JSON. Returns its metadata.
    pub async fn create_json(
        &self,
        resource: &Resource,
        namespace: &str,
        object: &serde_json::Value,
    ) -> Result<ObjectResponse, WriteError> {
        let body = object.to_string().into();
        self.send(Method::POST, path::collection(resource, Some(namespace))?, JSON, METADATA_ONLY, body).await
    }

    /// Replaces an object, or one of its subresources; `object` is its message without envelope and contains the
    /// version that it is based on.
    pub async fn replace(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        object: &[u8],
    ) -> Result<ObjectResponse, WriteError> {
        let body = envelope::wrap(resource, object).into();
        self.send(Method::PUT, path::object(resource, key, subresource)?, PROTOBUF, PROTOBUF, body).await
    }

    /// Changes an object by a strategic merge patch. A `metadata.uid` in the patch is a precondition.
    pub async fn patch(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        patch: &serde_json::Value,
    ) -> Result<ObjectResponse, WriteError> {
        self.send_patch(path::object(resource, key, None)?, STRATEGIC_MERGE, patch).await
    }

    /// Like [`Writer::patch`], through the object's status subresource.
    pub async fn patch_status(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        patch: &serde_json::Value,
    ) -> Result<ObjectResponse, WriteError> {
        self.send_patch(path::object(resource, key, Some("status"))?, STRATEGIC_MERGE, patch).await
    }

    /// Changes the status of an object by the operations of a JSON Patch (RFC 6902). Its `test` operations are
    /// preconditions: if one fails, the write is refused as invalid. The response contains the whole object if `whole`,
    /// otherwise only its metadata.
    pub async fn json_patch_status(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        operations: &serde_json::Value,
        whole: bool,
    ) -> Result<ObjectResponse, WriteError> {
        let path = path::object(resource, key, Some("status"))?;
        let accept = if whole { PROTOBUF } else { METADATA_ONLY };
        self.send(Method::PATCH, path, JSON_PATCH, accept, operations.to_string().into()).await
    }

    /// Changes an object by a JSON merge patch. A `metadata.uid` in the patch is a precondition.
    pub async fn merge_patch(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        patch: &serde_json::Value,
    ) -> Result<ObjectResponse, WriteError> {
        self.send_patch(path::object(resource, key, None)?, MERGE, patch).await
    }

    /// Like [`Writer::merge_patch`]; changes are recorded under this field manager.
    pub async fn merge_patch_as(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        manager: &str,
        patch: &serde_json::Value,
    ) -> Result<ObjectResponse, WriteError> {
        let path = format!("{}?fieldManager={}", path::object(resource, key, None)?, percent_encode(manager));
        self.send(Method::PATCH, path, MERGE, METADATA_ONLY, patch.to_string().into()).await
    }

    /// Applies fields of an object, or of one of its subresources, as `manager`, and takes over fields of other
    /// managers.
    pub async fn apply(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        subresource: Option<&str>,
        manager: &str,
        object: &serde_json::Value,
    ) -> Result<ObjectResponse, WriteError> {
        self.send_patch(applied_by(manager, path::object(resource, key, subresource)?), APPLY, object).await
    }

    /// Like [`Writer::apply`]; returns the whole object as JSON.
    pub async fn apply_whole(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        manager: &str,
        object: &serde_json::Value,
    ) -> Result<Bytes, WriteError> {
        let path = applied_by(manager, path::object(resource, key, None)?);
        Ok(self.send(Method::PATCH, path, APPLY, JSON, object.to_string().into()).await?.0)
    }

    /// Deletes the object with this name if it has not changed since it was read.
    pub async fn delete_unchanged(&self, resource: &Resource, key: &ObjectKey, read: &Meta) -> Result<(), WriteError> {
        let preconditions =
            serde_json::json!({ "uid": read.uid.to_string(), "resourceVersion": read.version.to_string() });
        self.send_deletion(path::object(resource, key, None)?, serde_json::json!({ "preconditions": preconditions }))
            .await
    }

    /// Deletes the object with this name and uid, under the kind's own propagation policy.
    pub async fn delete(&self, resource: &Resource, key: &ObjectKey, uid: &Uid) -> Result<(), WriteError> {
        let options = serde_json::json!({ "preconditions": { "uid": uid.to_string() } });
        self.send_deletion(path::object(resource, key, None)?, options).await
    }

    /// Checks that no deletion in the namespace of `key` is refused because this reconcile has read a stale record. For
    /// reconciles that write something else before a deletion.
    ///
    /// # Errors
    /// [`WriteError::Stale`], as the deletion would return it.
    pub fn check_deletion(&self, key: &ObjectKey) -> Result<(), WriteError> {
        stale::obstacle(&key.namespace).map_or(Ok(()), |object| Err(WriteError::Stale(object)))
    }

    /// Sends a deletion with these options.
    async fn send_deletion(&self, path: String, mut options: serde_json::Value) -> Result<(), WriteError> {
        options["kind"] = "DeleteOptions".into();
        options["apiVersion"] = "v1".into();
        self.send(Method::DELETE, path, JSON, METADATA_ONLY, options.to_string().into()).await?;
        Ok(())
    }

    /// Reads an object from the API server, bypassing the cache.
    pub async fn get(&self, resource: &Resource, key: &ObjectKey) -> Result<ObjectResponse, WriteError> {
        self.send(Method::GET, path::object(resource, key, None)?, "", PROTOBUF, Bytes::new()).await
    }

    /// Reads an object from the API server as JSON, for callers that need the server's exact representation.
    pub async fn get_json(&self, resource: &Resource, key: &ObjectKey) -> Result<serde_json::Value, WriteError> {
        let response = self.send(Method::GET, path::object(resource, key, None)?, "", JSON, Bytes::new()).await?;
        let read = serde_json::from_slice(&response.0);
        Ok(read.map_err(|error| DecodeError::field("body", format!("is not JSON: {error}")))?)
    }

    /// Reads from the API server the metadata of the objects that match a label selector, in a namespace, or in all
    /// namespaces if `namespace` is empty.
    ///
    /// # Errors
    /// As [`Writer::list_metadata`].
    pub async fn list_meta(
        &self,
        resource: &Resource,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<Meta>, WriteError> {
        Ok(self.list_metadata(resource, namespace, selector).await?.items)
    }

    /// Reads a cluster-scoped object from the API server, with the version that the server has reached; `None` if there
    /// is no such object.
    pub async fn read_with_version<K: Kind>(
        &self,
        decode: &Decode,
        name: &str,
    ) -> Result<(u64, Option<K>), WriteError> {
        let selector = percent_encode(&format!("metadata.name={name}"));
        let path = format!("{}?fieldSelector={selector}", path::collection(&K::RESOURCE, None)?);
        let response = self.send(Method::GET, path, "", PROTOBUF, Bytes::new()).await?;
        let page = envelope::page(&response.0)?;
        let read = page.items.first().map(|item| K::decode(decode, item)).transpose()?;
        Ok((page.version()?, read))
    }

    /// Sends a patch of this type. Returns the object's metadata.
    async fn send_patch(
        &self,
        path: String,
        patch_type: &str,
        patch: &serde_json::Value,
    ) -> Result<ObjectResponse, WriteError> {
        self.send(Method::PATCH, path, patch_type, METADATA_ONLY, patch.to_string().into()).await
    }

    /// Creates an event, given as JSON.
    pub(crate) async fn post_event(&self, namespace: &str, event: Bytes) -> Result<ObjectResponse, WriteError> {
        self.send(Method::POST, path::collection(&EVENTS, Some(namespace))?, JSON, JSON, event).await
    }

    /// Changes an event by a strategic merge patch.
    pub(crate) async fn patch_event(
        &self,
        namespace: &str,
        name: &str,
        patch: Bytes,
    ) -> Result<ObjectResponse, WriteError> {
        let path = path::object(&EVENTS, &ObjectKey::new(namespace, name), None)?;
        self.send(Method::PATCH, path, STRATEGIC_MERGE, JSON, patch).await
    }

    /// Sends one request and adds a note to the running reconcile.
    async fn send(
        &self,
        method: Method,
        path: String,
        content_type: &str,
        accept: &str,
        body: Bytes,
    ) -> Result<ObjectResponse, WriteError> {
        let is_read = method == Method::GET;
        let what = format!("{method} {}", path.split_once('?').map_or(&*path, |(path, _)| path));
        let response = self.send_without_note(method, path, content_type, accept, body).await;
        let error = response.as_ref().err();
        tracing::trace!(request = what, error = error.map(tracing::field::display), "request sent");
        if let Some(delay) = error.and_then(WriteError::retry_after) {
            note_retry_after(delay);
        }
        match error {
            None if is_read => {}
            None => note(|| what),
            Some(error) => note(|| format!("{what}: {error}")),
        }
        response
    }

    /// Sends one request within the rate limit, and a write only while the fence is open.
    async fn send_without_note(
        &self,
        method: Method,
        path: String,
        content_type: &str,
        accept: &str,
        body: Bytes,
    ) -> Result<ObjectResponse, WriteError> {
        let is_read = method == Method::GET;
        if method == Method::DELETE
            && let Some(object) = stale::obstacle(path::namespace_of(&path))
        {
            return Err(WriteError::Stale(object));
        }
        let mut request = Request::builder().method(method.clone()).uri(path).header(header::ACCEPT, accept);
        if !content_type.is_empty() {
            request = request.header(header::CONTENT_TYPE, content_type);
        }
        let request = request.body(body)?;
        let waited = self.limit.acquire(path::namespace_of(request.uri().path())).await;
        self.clients.metrics.waited(method.as_str(), self.clients.host(), waited);
        if is_read {
            return self.exchange(request).await;
        }
        if !self.fence.holds() {
            return Err(WriteError::NotLeading);
        }
        let what = (method, request.uri().path().to_owned());
        // If the fence closes during the request, a part of the request may have been sent already.
        self.fence.run(self.exchange(request)).await.unwrap_or_else(|| {
            let (method, path) = what;
            let problem = "this process no longer holds the lease".to_owned();
            Err(WriteError::Lost(SendError::Lost { method, path, problem }))
        })
    }

    /// Sends one request and reads its whole response.
    async fn exchange(&self, request: Request<Bytes>) -> Result<ObjectResponse, WriteError> {
        let method = request.method().clone();
        let (metrics, host) = (&self.clients.metrics, self.clients.host());
        metrics.sent(method.as_str(), host, request.body().len());
        let response =
            self.clients.send(&self.identity, request, MAX_RESPONSE_BYTES).await.map_err(without_response)?;
        if !response.status().is_success() {
            return Err(WriteError::Refused(refusal(response).await));
        }
        let body = response.into_body().collect().await;
        let body = body.map_err(|error| DecodeError::field("body", format!("broke off: {error}")))?.to_bytes();
        metrics.received(method.as_str(), host, body.len());
        Ok(ObjectResponse(body))
    }
}
