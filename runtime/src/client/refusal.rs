//! The API server's reason for refusing a request.

use std::time::Duration;

use http::{HeaderMap, Response, header};
use http_body_util::{BodyExt, Limited};
use kinds::envelope::{self, ApiStatus, ContinueToken};
use kube::client::Body;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::timeout;

use crate::text::{MAX_MESSAGE_BYTES, shortened};

/// Maximum time to read the body of an error.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of the body of an error, in bytes.
const MAX_BODY_BYTES: usize = 1 << 20;

/// Maximum delay before a retry; a longer Retry-After is shortened to it.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Returns the delay after which the server allows a retry, at most a minute.
pub(crate) fn retry_after(status: &ApiStatus) -> Option<Duration> {
    status.retry_after.map(limited)
}

/// Returns the delay of a Retry-After header in seconds, at most a minute.
pub(super) fn retry_after_header(headers: &HeaderMap) -> Option<Duration> {
    header_seconds(headers).map(limited)
}

fn limited(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER)
}

fn header_seconds(headers: &HeaderMap) -> Option<u32> {
    headers.get(header::RETRY_AFTER)?.to_str().ok()?.parse().ok()
}

/// The fields of a `Status` in JSON.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    code: u16,
    reason: String,
    message: String,
    metadata: Option<Value>,
    details: Option<Value>,
}

/// Returns the error in a response; without a `Status` of the API in the body, one derived from the HTTP status.
pub(crate) async fn refusal(response: Response<Body>) -> ApiStatus {
    let code = response.status().as_u16();
    let retry_after = header_seconds(response.headers());
    let body = timeout(TIMEOUT, Limited::new(response.into_body(), MAX_BODY_BYTES).collect()).await;
    let body = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
    let read = envelope::unwrap(&body).and_then(ApiStatus::decode).ok().or_else(|| json_status(&body));
    let mut status = read.unwrap_or_else(|| ApiStatus {
        message: String::from_utf8_lossy(&body).trim().chars().take(300).collect(),
        ..ApiStatus::default()
    });
    status.message = shortened(status.message, MAX_MESSAGE_BYTES);
    status.code = code;
    status.retry_after = status.retry_after.or(retry_after);
    status
}

/// Parses a `Status` in JSON; `None` if the body is something else.
fn json_status(body: &[u8]) -> Option<ApiStatus> {
    let head: Head = serde_json::from_slice(body).ok().filter(|head: &Head| head.code != 0)?;
    let details = head.details.unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let causes = details["causes"].as_array().map(Vec::as_slice).unwrap_or_default();
    Some(ApiStatus {
        code: head.code,
        reason: head.reason,
        message: head.message,
        next: ContinueToken::boxed(&text(&head.metadata.unwrap_or_default()["continue"])),
        causes: causes.iter().map(|cause| (text(&cause["reason"]), text(&cause["message"]))).collect(),
        retry_after: details["retryAfterSeconds"]
            .as_u64()
            .filter(|seconds| *seconds > 0)
            .and_then(|seconds| seconds.try_into().ok()),
    })
}

#[cfg(test)]
mod tests {
    use proptest::strategy::Strategy as _;
    use serde_json::json;

    use super::*;

    proptest::proptest! {
        #[test]
        fn any_body_of_an_error_is_read(
            body in proptest::prelude::prop_oneof![
                proptest::collection::vec(proptest::prelude::any::<u8>(), 0..60),
                "\\{(\"(code|reason|message|details|metadata)\":(1|70000|null|\"x\"|\\{\\}|\\[1\\]|\\{\"causes\":(1|\\[\\{\\}\\]),\"retryAfterSeconds\":(-1|1e99)\\}),){0,5}\"code\":400\\}"
                    .prop_map(String::into_bytes),
            ],
            has_magic: bool,
            retry_after in "[0-9a-z -]{0,12}",
        ) {
            let body = if has_magic { [&b"k8s\0"[..], &body].concat() } else { body };
            let response = Response::builder().status(400).header(header::RETRY_AFTER, retry_after).body(Body::from(body));
            let response = response.expect("a response");
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
            let status = runtime.block_on(refusal(response));
            proptest::prop_assert!(status.code == 400 && status.message.len() <= MAX_MESSAGE_BYTES + 4);
        }
    }

    #[tokio::test]
    async fn long_message_of_an_aggregated_api_is_truncated() {
        let body = json!({"kind": "Status", "code": 500, "reason": "InternalError", "message": "x".repeat(1 << 19)});
        let response = Response::builder().status(500).body(Body::from(body.to_string().into_bytes()));
        let read = refusal(response.expect("a response")).await;
        assert_eq!((read.code, &*read.reason), (500, "InternalError"));
        assert!(read.message.len() <= MAX_MESSAGE_BYTES + '…'.len_utf8(), "{}", read.message.len());
    }

    #[test]
    fn json_status_is_parsed_only_from_an_error_body() {
        let body = json!({"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no",
            "details": {"causes": [{"reason": "NamespaceTerminating", "message": "going"}]}});
        let read = json_status(body.to_string().as_bytes()).expect("a status");
        assert!(read.has_cause("NamespaceTerminating") && read.code == 403 && read.message == "no");
        assert_eq!(json_status(b"{}"), None);
        assert_eq!(json_status(b"<html>"), None);
    }
}
