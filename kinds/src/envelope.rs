//! The envelopes of objects: `runtime.Unknown`, watch events, lists, and the API's error Status.

use crate::decode::DecodeError;
use crate::kind::Resource;
use crate::meta::parse_version;
use crate::wire::schema::{
    api_status, list_meta, object_meta, raw_extension, status_cause, status_details, type_meta, unknown, watch_event,
};
use crate::wire::{Put, fields, find, find_str, map_entry};

/// The first bytes of every protobuf body of the API server.
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// The annotation of the bookmark that ends the initial events of a streaming list.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Returns the object inside a body, without its envelope.
///
/// # Errors
/// When the body does not begin with [`MAGIC`].
pub fn unwrap(body: &[u8]) -> Result<&[u8], DecodeError> {
    let message = body
        .strip_prefix(MAGIC)
        .ok_or_else(|| DecodeError::field("body", "does not start with the protobuf magic of the API server"))?;
    Ok(find(message, unknown::RAW))
}

/// Returns the kind in the envelope of a body; empty if the body is not protobuf of the API server.
pub fn kind(body: &[u8]) -> &str {
    let message = body.strip_prefix(MAGIC).unwrap_or_default();
    find_str(find(message, unknown::TYPE_META), type_meta::KIND)
}

/// Puts an object of `resource` into its envelope.
pub fn wrap(resource: &Resource, object: &[u8]) -> Vec<u8> {
    wrap_as(&resource.api_version(), resource.kind, object)
}

/// Puts an object into its envelope, by API version and kind.
pub fn wrap_as(api_version: &str, kind: &str, object: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(object.len() + 64);
    body.extend_from_slice(MAGIC);
    body.put_message(unknown::TYPE_META, |message| {
        message.put_str(type_meta::API_VERSION, api_version);
        message.put_str(type_meta::KIND, kind);
    });
    body.put_bytes(unknown::RAW, object);
    body
}

/// One frame of a watch.
#[derive(Debug, PartialEq, Eq)]
pub enum WatchEvent<'a> {
    /// The object exists; it may be new or may have existed before.
    Added(&'a [u8]),
    /// The object changed.
    Modified(&'a [u8]),
    /// The object was deleted; this is its last state.
    Deleted(&'a [u8]),
    /// Everything up to this version has been sent; `initial_end` marks the end of a streaming list.
    Bookmark {
        /// The version reached.
        version: u64,
        /// True on the bookmark after the initial events.
        initial_end: bool,
    },
    /// The watch ended with an error.
    Error(ApiStatus),
}

/// Reads one frame of a watch (without its length prefix).
///
/// # Errors
/// When the frame or a bookmark or error in it is not well-formed, or the type of the event is unknown.
pub fn watch_event(frame: &[u8]) -> Result<WatchEvent<'_>, DecodeError> {
    let mut kind = "";
    let mut object = &[][..];
    for field in fields(frame) {
        let field = field?;
        match field.number {
            watch_event::TYPE => kind = field.value.str(),
            watch_event::OBJECT => object = find(field.value.bytes(), raw_extension::RAW),
            _ => {}
        }
    }
    let object = unwrap(object)?;
    match kind {
        "ADDED" => Ok(WatchEvent::Added(object)),
        "MODIFIED" => Ok(WatchEvent::Modified(object)),
        "DELETED" => Ok(WatchEvent::Deleted(object)),
        "BOOKMARK" => bookmark(object),
        "ERROR" => Ok(WatchEvent::Error(ApiStatus::decode(object)?)),
        other => Err(DecodeError::field("type", format!("{other:?} is not a type of watch events"))),
    }
}

/// Returns the kind of the object in a frame of a watch; empty if there is none.
pub fn event_kind(frame: &[u8]) -> &str {
    kind(find(find(frame, watch_event::OBJECT), raw_extension::RAW))
}

/// Reads a bookmark: an object of the watched kind with little more than metadata, which is field 1 in every kind.
fn bookmark(object: &[u8]) -> Result<WatchEvent<'_>, DecodeError> {
    let mut version = "";
    let mut initial_end = false;
    for field in fields(find(object, 1)) {
        let field = field?;
        match field.number {
            object_meta::RESOURCE_VERSION => version = field.value.str(),
            object_meta::ANNOTATIONS => {
                let (key, value) = map_entry(field.value.bytes())?;
                initial_end |= key == INITIAL_EVENTS_END && value == "true";
            }
            _ => {}
        }
    }
    Ok(WatchEvent::Bookmark { version: parse_version(version)?, initial_end })
}

/// One page of a list.
#[derive(Debug, PartialEq, Eq)]
pub struct Page<'a> {
    /// The list's version as the server has written it. The version of an aggregated API need not be a number.
    pub version: &'a str,
    /// Token for the next page; empty on the last one.
    pub next: &'a str,
    /// The objects.
    pub items: Vec<&'a [u8]>,
}

/// Returns an error if this is the kind of a `Status`, which would be read as a list with one broken object.
pub fn require_list(kind: &str) -> Result<(), DecodeError> {
    if kind == "Status" { Err(DecodeError::field("kind", "is Status, which is not a list")) } else { Ok(()) }
}

impl Page<'_> {
    /// Returns the list's version.
    ///
    /// # Errors
    /// When it is not a number.
    pub fn version(&self) -> Result<u64, DecodeError> {
        parse_version(self.version)
    }
}

/// Reads a list body: metadata is field 1 and items are field 2 in every list kind.
///
/// # Errors
/// When the body is not well-formed, is a `Status`, or has no metadata.
pub fn page(body: &[u8]) -> Result<Page<'_>, DecodeError> {
    require_list(kind(body))?;
    let mut page = Page { version: "", next: "", items: Vec::new() };
    let mut has_metadata = false;
    for field in fields(unwrap(body)?) {
        let field = field?;
        match field.number {
            1 => {
                has_metadata = true;
                page.version = find_str(field.value.bytes(), list_meta::RESOURCE_VERSION);
                page.next = find_str(field.value.bytes(), list_meta::CONTINUE);
            }
            2 => page.items.push(field.value.bytes()),
            _ => {}
        }
    }
    // Without this check, a truncated body would be a list without objects.
    if has_metadata { Ok(page) } else { Err(DecodeError::field("metadata", "of a list is missing")) }
}

/// Returns the version of a list as the server has written it.
///
/// # Errors
/// When the body does not begin with [`MAGIC`].
pub fn list_version_text(body: &[u8]) -> Result<&str, DecodeError> {
    let metadata = find(unwrap(body)?, 1);
    Ok(find_str(metadata, list_meta::RESOURCE_VERSION))
}

/// Returns the version in a list's metadata.
///
/// # Errors
/// When it is not a number.
pub fn list_version(metadata: &[u8]) -> Result<u64, DecodeError> {
    parse_version(find_str(metadata, list_meta::RESOURCE_VERSION))
}

/// The API's error response.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ApiStatus {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, such as `AlreadyExists`.
    pub reason: String,
    /// Human-readable message.
    pub message: String,
    /// Reasons of the causes, such as `NamespaceTerminating`, with their messages.
    pub causes: Vec<(String, String)>,
    /// Seconds after which the server allows a retry.
    pub retry_after: Option<u32>,
    /// Token with which a list whose token has expired can be continued.
    pub next: Option<Box<ContinueToken>>,
}

/// Token of the next page of a list. It is boxed in [`ApiStatus`], so that errors stay small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContinueToken(pub String);

impl ContinueToken {
    /// Returns the token if it is not empty.
    pub fn boxed(text: &str) -> Option<Box<Self>> {
        (!text.is_empty()).then(|| Box::new(Self(text.to_owned())))
    }
}

impl ApiStatus {
    /// Reads a `Status` message.
    ///
    /// # Errors
    /// When `message` is not well-formed.
    pub fn decode(message: &[u8]) -> Result<Self, DecodeError> {
        let mut status = Self::default();
        for field in fields(message) {
            let field = field?;
            match field.number {
                api_status::CODE => status.code = u16::try_from(field.value.i32()).unwrap_or_default(),
                api_status::REASON => status.reason = field.value.str().to_owned(),
                api_status::MESSAGE => status.message = field.value.str().to_owned(),
                api_status::METADATA => {
                    let token = String::from_utf8_lossy(find(field.value.bytes(), list_meta::CONTINUE));
                    status.next = ContinueToken::boxed(&token);
                }
                api_status::DETAILS => status.decode_details(field.value.bytes())?,
                _ => {}
            }
        }
        Ok(status)
    }

    fn decode_details(&mut self, message: &[u8]) -> Result<(), DecodeError> {
        for field in fields(message) {
            let field = field?;
            match field.number {
                status_details::RETRY_AFTER_SECONDS => {
                    self.retry_after = u32::try_from(field.value.i32()).ok().filter(|seconds| *seconds > 0);
                }
                status_details::CAUSES => {
                    let text = |number| String::from_utf8_lossy(find(field.value.bytes(), number)).into_owned();
                    self.causes.push((text(status_cause::REASON), text(status_cause::MESSAGE)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns true if the response is HTML: a proxy or load balancer in front of the API server has refused the
    /// request. Such a response proves nothing about objects.
    pub fn is_from_proxy(&self) -> bool {
        self.reason.is_empty() && self.message.trim_start().starts_with('<')
    }

    /// Returns true if one of the causes has this reason.
    pub fn has_cause(&self, reason: &str) -> bool {
        self.causes.iter().any(|(cause, _)| cause == reason)
    }
}

impl std::fmt::Display for ApiStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.message.is_empty() {
            write!(f, "status {} {}", self.code, self.reason)
        } else {
            f.write_str(&self.message)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enveloped_object_round_trips() {
        let body = wrap_as("apps/v1", "ReplicaSet", b"\x0a\x00");
        assert_eq!(unwrap(&body).expect("envelope"), b"\x0a\x00");
        assert!(unwrap(b"{}").is_err());
    }

    fn frame(kind: &str, object: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.put_str(watch_event::TYPE, kind);
        frame.put_message(watch_event::OBJECT, |message| message.put_bytes(1, &wrap_as("v1", "Pod", object)));
        frame
    }

    #[test]
    fn watch_frames_are_distinguished_by_type() {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::RESOURCE_VERSION, "42");
            meta.put_entry(object_meta::ANNOTATIONS, INITIAL_EVENTS_END, "true");
        });
        assert_eq!(watch_event(&frame("ADDED", &object)).expect("frame"), WatchEvent::Added(&object));
        assert_eq!(
            watch_event(&frame("BOOKMARK", &object)).expect("frame"),
            WatchEvent::Bookmark { version: 42, initial_end: true }
        );
        assert!(watch_event(&frame("NOISE", &object)).is_err());
    }

    #[test]
    fn causes_and_retry_after_are_decoded() {
        let mut message = Vec::new();
        message.put_int(api_status::CODE, 429);
        message.put_message(api_status::DETAILS, |details| {
            details.put_int(status_details::RETRY_AFTER_SECONDS, 7);
            details.put_message(status_details::CAUSES, |cause| {
                cause.put_str(status_cause::REASON, "NamespaceTerminating")
            });
        });
        let status = ApiStatus::decode(&message).expect("status");
        assert_eq!((status.code, status.retry_after), (429, Some(7)));
        assert!(status.has_cause("NamespaceTerminating"));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes: Vec<u8>) {
            let _ = watch_event(&bytes);
            let _ = page(&bytes);
            let _ = ApiStatus::decode(&bytes);
        }
    }
}
