//! Errors of a cloud, classified by the caller's possible reaction.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The classes of failed calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The resource that the call names does not exist. Not for an instance that is described: its state is `Gone`.
    NotFound,
    /// The cloud requests a lower call rate.
    Throttled {
        /// The delay that the cloud requests, if any.
        after: Option<Duration>,
    },
    /// The credentials do not allow the call: an operator must act; retried slowly.
    Denied,
    /// A limit of the account is reached: freed by deletions or by a higher limit; retried slowly.
    Quota,
    /// Another client changed or owns the resource: read again before acting.
    Conflict,
    /// The request can never succeed: the user must change it; not retried before that.
    Invalid,
    /// Anything that may be temporary: outages, timeouts, connections, lost responses.
    Transient,
}

impl ErrorKind {
    /// Returns the kind as a label for metrics: few values, and stable.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotFound => "not_found",
            Self::Throttled { .. } => "throttled",
            Self::Denied => "denied",
            Self::Quota => "quota",
            Self::Conflict => "conflict",
            Self::Invalid => "invalid",
            Self::Transient => "transient",
        }
    }
}

/// Maximum length of a message in bytes, without the mark of a truncation: it becomes an event, a condition and a log
/// line, and an annotation's value can have up to 256 KiB.
const MAX_MESSAGE_BYTES: usize = 8 << 10;

/// Maximum length of a value in a message in bytes.
const MAX_VALUE_BYTES: usize = 256;

/// Truncates a text to a number of bytes and marks the truncation.
fn shortened(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit));
        text.push('…');
    }
    text
}

/// Returns a value in quotes, truncated.
fn quoted(value: &str) -> String {
    format!("{:?}", shortened(value.to_owned(), MAX_VALUE_BYTES))
}

/// A failed call to a cloud.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{operation}: {message}{}", RequestSuffix(.request_id.as_deref()))]
pub struct CloudError {
    /// The class of the error.
    pub kind: ErrorKind,
    /// The cloud's name of the failed call, or the provider's name of a step before any call.
    pub operation: String,
    /// The request id for the cloud's support, if the cloud returned one.
    pub request_id: Option<String>,
    /// A human-readable message: names the field, its value and the fix if the user must act.
    pub message: String,
}

struct RequestSuffix<'a>(Option<&'a str>);

impl fmt::Display for RequestSuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |id| write!(f, " (request {id})"))
    }
}

impl CloudError {
    /// Creates an error of `kind` in `operation`, without a request id.
    pub fn new(kind: ErrorKind, operation: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            kind,
            operation: operation.into(),
            request_id: None,
            message: shortened(message.into(), MAX_MESSAGE_BYTES),
        }
    }

    /// Adds the id that the cloud assigned to the request.
    #[must_use]
    pub fn with_request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// Creates the error of an annotation that can never work: names its key, its value, and the fix.
    pub fn invalid_annotation(key: &str, value: &str, fix: &str) -> Self {
        Self::new(ErrorKind::Invalid, "ReadAnnotations", format!("annotation {key} is {}: {fix}", quoted(value)))
    }

    /// Creates the error of a Service field that can never work with this cloud: names the field, its value, and the
    /// fix.
    pub fn invalid_field(field: &str, value: impl fmt::Display, fix: &str) -> Self {
        Self::new(ErrorKind::Invalid, "ReadSpec", format!("{field} is {}: {fix}", quoted(&value.to_string())))
    }

    /// Returns true if a retry cannot succeed until the object changes.
    pub fn is_invalid(&self) -> bool {
        self.kind == ErrorKind::Invalid
    }

    /// Returns true if the resource does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }

    /// Returns the delay that the cloud requested, if any.
    pub fn retry_after(&self) -> Option<Duration> {
        match self.kind {
            ErrorKind::Throttled { after } => after,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_the_operation_and_the_request() {
        let error = CloudError::new(ErrorKind::Quota, "CreateBalancer", "20 of 20 balancers are in use");
        assert_eq!(error.to_string(), "CreateBalancer: 20 of 20 balancers are in use");
        assert_eq!(
            error.with_request_id("r-1").to_string(),
            "CreateBalancer: 20 of 20 balancers are in use (request r-1)"
        );
    }

    #[test]
    fn invalid_error_names_field_value_and_fix() {
        let error = CloudError::invalid_annotation("example.com/scheme", "inside", "use internal or internet-facing");
        assert!(error.is_invalid());
        assert_eq!(
            error.to_string(),
            "ReadAnnotations: annotation example.com/scheme is \"inside\": use internal or internet-facing"
        );
        let error = CloudError::invalid_field("spec.loadBalancerIP", "10.0.0.1", "leave it empty");
        assert_eq!(error.to_string(), "ReadSpec: spec.loadBalancerIP is \"10.0.0.1\": leave it empty");
    }

    #[test]
    fn long_values_and_messages_are_truncated() {
        let long = "ä".repeat(1 << 17);
        for error in [
            CloudError::invalid_annotation("example.com/scheme", &long, "use internal"),
            CloudError::invalid_field("spec.scheme", &long, "use internal"),
        ] {
            assert!(error.message.len() < 400 && error.message.ends_with("…\": use internal"), "{}", error.message);
        }
        let error = CloudError::new(ErrorKind::Transient, "X", &*long);
        assert!(error.message.len() <= MAX_MESSAGE_BYTES + '…'.len_utf8(), "{}", error.message.len());
    }

    #[test]
    fn only_throttling_has_a_retry_delay() {
        let after = Duration::from_secs(3);
        let throttled = CloudError::new(ErrorKind::Throttled { after: Some(after) }, "ListRoutes", "slow down");
        assert_eq!(throttled.retry_after(), Some(after));
        for kind in [ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::Quota, ErrorKind::Conflict, ErrorKind::Invalid]
        {
            assert_eq!(CloudError::new(kind, "X", "y").retry_after(), None, "{}", kind.as_str());
        }
    }
}
