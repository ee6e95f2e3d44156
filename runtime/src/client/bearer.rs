//! The header that authenticates a request by a token.

use http::HeaderValue;

/// Returns the `Authorization` header of a bearer token; `None` if a header cannot contain it.
pub(super) fn bearer(token: &str) -> Option<HeaderValue> {
    let mut header = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    header.set_sensitive(true);
    Some(header)
}
