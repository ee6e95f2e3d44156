//! Errors of a reconcile.

use crate::worker::ReconcileError;
use crate::write::WriteError;

/// The reason why a reconcile failed. The key is requeued with backoff, unless its namespace is being deleted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error("{action}: {error}")]
    Write {
        /// The operation and its object.
        action: String,
        /// The error.
        error: Box<WriteError>,
    },
    /// The child belongs to another object.
    #[error("{child} is controlled by {owner}: delete it, or choose another name")]
    Taken {
        /// The child.
        child: String,
        /// The current owner.
        owner: String,
    },
    /// The kind of the child was not declared by [`For::owns`](super::For::owns).
    #[error("{0} is not declared as a child of the controller: add .owns::<{0}>() to it")]
    NotOwned(&'static str),
    /// The object cannot be written.
    #[error("{what}: {problem}")]
    Malformed {
        /// The object, or its kind.
        what: String,
        /// The problem.
        problem: String,
    },
    /// Any other reason.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps an error of the operator.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// Returns true if the object has changed since it was read, so the decision has to be repeated.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Write { error, .. } if error.is_conflict())
    }
}

impl From<Error> for ReconcileError {
    fn from(error: Error) -> Self {
        let terminal = matches!(&error, Error::Write { error, .. } if error.is_namespace_terminating());
        Self { message: error.to_string(), terminal }
    }
}
