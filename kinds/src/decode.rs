//! The context of decoders, and their errors.

use std::sync::Arc;

use crate::intern::Interner;
use crate::wire::WireError;

/// The reason why an object could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not well-formed protobuf, or have too many elements.
    #[error("malformed protobuf: {0}")]
    Wire(#[from] WireError),
    /// A field, or the whole body, is missing or invalid.
    #[error("{field} {problem}")]
    Field {
        /// Path of the field, as in the API reference, or another name of the part, such as `body`.
        field: &'static str,
        /// The problem.
        problem: String,
    },
}

impl DecodeError {
    /// Returns an error about one field.
    pub fn field(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Field { field, problem: problem.into() }
    }
}

/// A set of sections: rarely needed parts of a record, each decoded only if an enabled controller needs it. Each kind
/// defines a constant for each of its bits; some bits are options of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sections(pub u32);

impl Sections {
    /// Returns true if all parts of `wanted` are included.
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

/// The context of a decoder.
#[derive(Debug, Clone)]
pub struct Decode {
    /// The pool in which equal parts of records are shared.
    pub interner: Arc<Interner>,
    /// The sections to decode.
    pub sections: Sections,
}
