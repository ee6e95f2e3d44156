//! What went wrong in a cloud, told by what the caller can do about it.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What the caller can do about a failed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// What the call names is not there. Never an answer to "is this instance there?": that is `Gone`.
    NotFound,
    /// The cloud asks for fewer calls.
    Throttled {
        /// How long to wait, if the cloud said so.
        after: Option<Duration>,
    },
    /// The credentials do not allow the call: an operator's to fix, tried again slowly.
    Denied,
    /// A limit of the account is reached: freed by deleting or by asking the cloud for more, tried again slowly.
    Quota,
    /// Somebody else changed or owns the thing: look again before acting.
    Conflict,
    /// What was asked for can never work: the user's to fix, not tried again before it changes.
    Invalid,
    /// Anything that may go away by itself: outages, timeouts, connections, answers that got lost.
    Transient,
}

impl ErrorKind {
    /// The kind as a word for metrics' labels: few, and never changing.
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

/// A failed call to a cloud.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{operation}: {message}{}", RequestSuffix(.request_id.as_deref()))]
pub struct CloudError {
    /// What the caller can do about it.
    pub kind: ErrorKind,
    /// The cloud's own name of the call that failed, or the provider's name of the step before any call.
    pub operation: String,
    /// What the cloud's support asks for, if the cloud gave one.
    pub request_id: Option<String>,
    /// For people: names the field, its value and the fix where it is the user's to fix.
    pub message: String,
}

struct RequestSuffix<'a>(Option<&'a str>);

impl fmt::Display for RequestSuffix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |id| write!(f, " (request {id})"))
    }
}

impl CloudError {
    /// An error of `kind` in `operation`, without a request id.
    pub fn new(kind: ErrorKind, operation: impl Into<String>, message: impl Into<String>) -> Self {
        Self { kind, operation: operation.into(), request_id: None, message: message.into() }
    }

    /// The same error with the id that the cloud gave the request.
    #[must_use]
    pub fn with_request_id(mut self, id: impl Into<String>) -> Self {
        self.request_id = Some(id.into());
        self
    }

    /// An annotation that can never work: says which one, what it holds, and what to write instead.
    pub fn invalid_annotation(key: &str, value: &str, fix: &str) -> Self {
        Self::new(ErrorKind::Invalid, "ReadAnnotations", format!("annotation {key} is {value:?}: {fix}"))
    }

    /// A field of the Service that can never work with this cloud: says which one, what it holds, and what to do.
    pub fn invalid_field(field: &str, value: impl fmt::Display, fix: &str) -> Self {
        Self::new(ErrorKind::Invalid, "ReadSpec", format!("{field} is \"{value}\": {fix}"))
    }

    /// Trying again is of no use until the object changes.
    pub fn is_invalid(&self) -> bool {
        self.kind == ErrorKind::Invalid
    }

    /// The thing is not there.
    pub fn is_not_found(&self) -> bool {
        self.kind == ErrorKind::NotFound
    }

    /// How long the cloud asked to be left alone, if it did.
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
    fn an_error_says_what_failed_and_how_to_find_it() {
        let error = CloudError::new(ErrorKind::Quota, "CreateBalancer", "20 of 20 balancers are in use");
        assert_eq!(error.to_string(), "CreateBalancer: 20 of 20 balancers are in use");
        assert_eq!(
            error.with_request_id("r-1").to_string(),
            "CreateBalancer: 20 of 20 balancers are in use (request r-1)"
        );
    }

    #[test]
    fn a_users_error_names_field_value_and_fix() {
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
    fn only_a_throttle_asks_for_a_pause() {
        let after = Duration::from_secs(3);
        let throttled = CloudError::new(ErrorKind::Throttled { after: Some(after) }, "ListRoutes", "slow down");
        assert_eq!(throttled.retry_after(), Some(after));
        for kind in [ErrorKind::NotFound, ErrorKind::Denied, ErrorKind::Quota, ErrorKind::Conflict, ErrorKind::Invalid]
        {
            assert_eq!(CloudError::new(kind, "X", "y").retry_after(), None, "{}", kind.as_str());
        }
    }
}
