//! Responses of the infrastructure cluster's API server as errors of a cloud.

use std::time::Duration;

use providers::{CloudError, ErrorKind};
use serde::Deserialize;

/// Maximum number of characters of the API server's message in an error.
const MAX_MESSAGE_CHARS: usize = 500;

/// Maximum delay that the API server may request.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// A `Status` of the API. If the body is something else, only the message is set, to the whole body.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Status {
    kind: String,
    reason: String,
    message: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    name: String,
    retry_after_seconds: u64,
}

impl Status {
    /// Reads the body of an error.
    pub fn read(body: &[u8]) -> Self {
        let read = serde_json::from_slice::<Self>(body).ok().filter(|status| status.kind == "Status");
        read.unwrap_or_else(|| Self { message: String::from_utf8_lossy(body).trim().to_owned(), ..Self::default() })
    }

    /// Returns true if an object with this name certainly does not exist.
    ///
    /// A server that does not serve the kind also responds with 404, but without the object's name.
    pub fn proves_absence(&self, name: &str) -> bool {
        self.reason == "NotFound" && self.details.name == name
    }

    /// Returns true if a creation was refused because the name is taken.
    pub fn is_taken(&self) -> bool {
        self.reason == "AlreadyExists"
    }
}

/// Converts the response to a refused request to the error of a cloud.
pub(crate) fn refusal(operation: &str, code: u16, status: &Status, retry_after: Option<u64>) -> CloudError {
    let message: String = status.message.chars().take(MAX_MESSAGE_CHARS).collect();
    let kind = match code {
        // Quotas are enforced by admission, whose refusals have no reason of their own.
        403 if message.contains("exceeded quota") => ErrorKind::Quota,
        401 | 403 => ErrorKind::Denied,
        404 => ErrorKind::NotFound,
        409 => ErrorKind::Conflict,
        400 | 422 => ErrorKind::Invalid,
        429 => {
            let seconds = Some(status.details.retry_after_seconds).filter(|seconds| *seconds > 0).or(retry_after);
            ErrorKind::Throttled { after: seconds.map(|s| Duration::from_secs(s).min(MAX_RETRY_AFTER)) }
        }
        _ => ErrorKind::Transient,
    };
    CloudError::new(kind, operation, format!("the infrastructure cluster returned {code}: {message}"))
}

/// Converts `NotFound` and `Invalid` to `Transient`, for calls whose contract does not allow them: the user's Service
/// is not the reason.
pub(crate) fn as_retryable(error: CloudError) -> CloudError {
    match error.kind {
        ErrorKind::NotFound | ErrorKind::Invalid => CloudError { kind: ErrorKind::Transient, ..error },
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(json: &str) -> Status {
        Status::read(json.as_bytes())
    }

    #[test]
    fn http_status_and_reason_determine_the_kind() {
        let quota =
            r#"{"kind": "Status", "reason": "Forbidden", "message": "services \"a\" is forbidden: exceeded quota: q"}"#;
        let slow = r#"{"kind": "Status", "details": {"retryAfterSeconds": 7}}"#;
        for (code, body, header, kind) in [
            (401, "", None, ErrorKind::Denied),
            (403, "{}", None, ErrorKind::Denied),
            (403, quota, None, ErrorKind::Quota),
            (404, "404 page not found", None, ErrorKind::NotFound),
            (409, "", None, ErrorKind::Conflict),
            (422, "", None, ErrorKind::Invalid),
            (429, "", None, ErrorKind::Throttled { after: None }),
            (429, "", Some(3), ErrorKind::Throttled { after: Some(Duration::from_secs(3)) }),
            (429, slow, Some(3), ErrorKind::Throttled { after: Some(Duration::from_secs(7)) }),
            (429, "", Some(86_400), ErrorKind::Throttled { after: Some(MAX_RETRY_AFTER) }),
            (500, "", None, ErrorKind::Transient),
            (302, "<html>", None, ErrorKind::Transient),
        ] {
            assert_eq!(refusal("GetService", code, &status(body), header).kind, kind, "{code} {body}");
        }
    }

    #[test]
    fn only_a_status_about_the_object_proves_its_absence() {
        let absent = r#"{"kind": "Status", "reason": "NotFound", "details": {"name": "a", "kind": "services"}}"#;
        assert!(status(absent).proves_absence("a"));
        assert!(!status(absent).proves_absence("b"));
        assert!(!status(r#"{"kind": "Status", "reason": "NotFound"}"#).proves_absence("a"));
        assert!(!status("404 page not found").proves_absence("a"));
        assert!(!status(r#"{"reason": "NotFound", "details": {"name": "a"}}"#).proves_absence("a"), "not a Status");
    }

    #[test]
    fn long_message_is_cut() {
        let error = refusal("GetService", 500, &status(&"x".repeat(100_000)), None);
        assert!(error.message.len() < 600, "{}", error.message.len());
    }
}
