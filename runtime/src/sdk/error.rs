//! Why a reconcile could not do what it wanted.

use crate::worker::ReconcileError;
use crate::write::WriteError;

/// Why a reconcile could not do what it wanted; it is tried again later.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server was asked in vain.
    #[error("{doing}: {error}")]
    Write {
        /// What was tried, on what.
        doing: String,
        /// What came of it.
        error: WriteError,
    },
    /// A child that would be applied belongs to another object.
    #[error("{child} is controlled by {owner}: delete it, or choose another name")]
    Taken {
        /// The child.
        child: String,
        /// Whose it is.
        owner: String,
    },
    /// A child's kind is not watched.
    #[error("{0} is none of the controller's children: declare it by .owns::<{0}>()")]
    NotOwned(&'static str),
    /// An object that cannot be written as it is.
    #[error("{what}: {problem}")]
    Malformed {
        /// The object, or its kind.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Any other reason.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// An error of your own.
    pub fn other(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Other(error.into())
    }

    /// The object changed meanwhile: what was decided is to be decided anew.
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
