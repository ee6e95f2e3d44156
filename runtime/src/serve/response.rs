//! Responses in upstream's formats: plain texts, JSON, and the API's Status for refusals.

use bytes::Bytes;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde::Serialize;

use super::user::User;
use crate::metrics::Exposition;
use crate::text::quoted;

/// A response with its whole body.
pub(super) type FullResponse = Response<Full<Bytes>>;

const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// Creates a response that must not be cached. Upstream: apiserver, WithCacheControl.
fn response(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> FullResponse {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let mut set = |name: HeaderName, value: &'static str| {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    };
    set(CONTENT_TYPE, content_type);
    set(X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(CACHE_CONTROL, "no-cache, private");
    response
}

/// Creates a text response.
pub(super) fn plain(status: StatusCode, text: impl Into<Bytes>) -> FullResponse {
    response(status, PLAIN, text)
}

/// Creates a response with metrics.
pub(super) fn metrics(exposition: Exposition) -> FullResponse {
    let mut response = response(StatusCode::OK, PLAIN, exposition.body);
    // A format has no characters that a header cannot have.
    if let Ok(media_type) = HeaderValue::try_from(exposition.media_type) {
        response.headers_mut().insert(CONTENT_TYPE, media_type);
    }
    response
}

/// Creates a response with a JSON value.
pub(super) fn json(value: &serde_json::Value) -> FullResponse {
    response(StatusCode::OK, JSON, value.to_string())
}

/// Creates a response with a JSON text.
pub(super) fn raw_json(text: String) -> FullResponse {
    response(StatusCode::OK, JSON, text)
}

/// Creates a response with a text of a media type.
pub(super) fn text(media_type: &'static str, text: String) -> FullResponse {
    response(StatusCode::OK, media_type, text)
}

/// Creates a response with a YAML text.
pub(super) fn yaml(text: String) -> FullResponse {
    response(StatusCode::OK, "application/yaml", text)
}

/// Creates a response with an HTML page.
pub(super) fn html(text: impl Into<Bytes>) -> FullResponse {
    response(StatusCode::OK, "text/html; charset=utf-8", text)
}

/// Creates a response with a self-contained HTML page: it may load and run nothing, and must not be framed.
pub(super) fn page(text: String) -> FullResponse {
    let mut response = html(text);
    let policy =
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    response.headers_mut().insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

/// Creates the response for an unknown page.
pub(super) fn not_found() -> FullResponse {
    plain(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// The API's Status, with its fields in the order of the API server.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Refusal<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    message: &'a str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Empty>,
    code: u16,
}

#[derive(Serialize)]
struct Empty {}

fn refusal(status: StatusCode, reason: &'static str, message: &str, details: Option<Empty>) -> FullResponse {
    let refusal = Refusal {
        kind: "Status",
        api_version: "v1",
        metadata: Empty {},
        status: "Failure",
        message,
        reason,
        details,
        code: status.as_u16(),
    };
    // Texts and numbers can always be serialized; Go escapes an ampersand as a number.
    let body = serde_json::to_string(&refusal).unwrap_or_default().replace('&', "\\u0026");
    response(status, JSON, body + "\n")
}

/// Creates the response for invalid credentials. Upstream: apiserver, filters.Unauthorized.
pub(super) fn unauthorized() -> FullResponse {
    let mut response = refusal(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized", None);
    // Upstream sets this header only after authentication.
    response.headers_mut().remove(X_CONTENT_TYPE_OPTIONS);
    response
}

/// Creates the response to a connection with too many requests under review.
pub(super) fn too_many_requests() -> FullResponse {
    let message = "too many requests of this connection wait for authentication";
    let mut response = refusal(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message, None);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Creates the response if none of the offered media types is accepted. Upstream: apiserver, handlers/negotiation,
/// NewNotAcceptableError.
pub(super) fn not_acceptable(offered: &[String]) -> FullResponse {
    let message = format!("only the following media types are accepted: {}", offered.join(", "));
    refusal(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", &message, None)
}

/// Creates the response for a missing permission. Upstream: apiserver, responsewriters.Forbidden.
pub(super) fn forbidden(user: &User, verb: &str, path: &str, reason: &str) -> FullResponse {
    let sentence = escape_markup(&format!("User {} cannot {verb} path {}", quoted(&user.name), quoted(path)));
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    refusal(StatusCode::FORBIDDEN, "Forbidden", &format!("forbidden: {sentence}{reason}"), Some(Empty {}))
}

/// Creates the response for a failed permission check. Upstream: apiserver, responsewriters.InternalError.
pub(super) fn internal(uri: &str, problem: &str) -> FullResponse {
    let text = escape_markup(&format!("Internal Server Error: {}: {problem}\n", quoted(uri)));
    plain(StatusCode::INTERNAL_SERVER_ERROR, text)
}

/// Escapes everything that a browser could interpret as markup.
fn escape_markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use serde_json::json;

    use super::*;

    async fn body(response: FullResponse) -> String {
        String::from_utf8(response.into_body().collect().await.expect("whole").to_bytes().to_vec()).expect("text")
    }

    #[tokio::test]
    async fn refusals_equal_upstreams_statuses() {
        let status: serde_json::Value =
            serde_json::from_str(&body(forbidden(&User::anonymous(), "get", "/<m>", "")).await).expect("JSON");
        assert_eq!(status["message"], "forbidden: User \"system:anonymous\" cannot get path \"/&lt;m&gt;\"");
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(403)));
        let with_reason: serde_json::Value =
            serde_json::from_str(&body(forbidden(&User::anonymous(), "get", "/", "no")).await).expect("JSON");
        assert_eq!(with_reason["message"], "forbidden: User \"system:anonymous\" cannot get path \"/\": no");
        assert_eq!(
            body(unauthorized()).await,
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\
             \"message\":\"Unauthorized\",\"reason\":\"Unauthorized\",\"code\":401}\n"
        );
        assert_eq!(body(internal("/a", "b")).await, "Internal Server Error: \"/a\": b\n");
    }
}
