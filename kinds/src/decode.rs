//! What a decoder is given, and the errors that it returns.

use std::sync::Arc;

use crate::intern::Interner;
use crate::wire::WireError;

/// Why an object could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not well-formed protobuf.
    #[error("malformed protobuf: {0}")]
    Wire(#[from] WireError),
    /// A field that every object has is missing or cannot be read.
    #[error("{field} {problem}")]
    Field {
        /// Path of the field, as in the API reference.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl DecodeError {
    /// An error about one field.
    pub fn field(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Field { field, problem: problem.into() }
    }
}

/// Rare parts of a record, decoded only when an enabled controller needs them. A kind gives its bits names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sections(pub u32);

impl Sections {
    /// True when all parts of `wanted` are included.
    pub fn contains(self, wanted: Sections) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl std::ops::BitOr for Sections {
    type Output = Sections;
    fn bitor(self, other: Sections) -> Sections {
        Sections(self.0 | other.0)
    }
}

/// What a decoder needs beside the bytes.
#[derive(Debug, Clone)]
pub struct Decode {
    /// Where equal parts of records are shared.
    pub interner: Arc<Interner>,
    /// The rare parts to decode.
    pub sections: Sections,
}
