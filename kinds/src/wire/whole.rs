//! Whole objects in records, as the base of a PUT without a read before it.

use crate::wire::WireError;
use crate::wire::splice::trimmed;

/// Maximum size in bytes. Users determine the size of their objects, but must not determine the memory of a record: a
/// larger object is read from the API server before it is written.
const LIMIT: usize = 8 << 10;

/// A whole object (the content of the envelope) without managed fields, at the version of its record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeObject(Box<[u8]>);

impl WholeObject {
    /// Returns a copy of an object for its record; `None` if it is too large.
    ///
    /// # Errors
    /// When `object` is not well-formed.
    pub fn read(object: &[u8]) -> Result<Option<Box<Self>>, WireError> {
        let trimmed = trimmed(object)?;
        Ok((trimmed.len() <= LIMIT).then(|| Box::new(Self(trimmed.into()))))
    }

    /// Returns the object.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::schema::object_meta;
    use crate::wire::{Put, find};

    fn object(annotation: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(1, |meta| {
            meta.put_str(object_meta::NAME, "data");
            meta.put_str(object_meta::MANAGED_FIELDS, &"f".repeat(2 * LIMIT));
            meta.put_entry(object_meta::ANNOTATIONS, "note", annotation);
        });
        object.put_message(2, |spec| spec.put_str(99, "unknown"));
        object
    }

    #[test]
    fn whole_object_keeps_unknown_fields_but_no_managed_fields() {
        let whole = WholeObject::read(&object("")).expect("well-formed").expect("small enough");
        assert_eq!(find(find(whole.bytes(), 1), object_meta::NAME), b"data");
        assert_eq!(find(find(whole.bytes(), 1), object_meta::MANAGED_FIELDS), b"");
        assert_eq!(find(find(whole.bytes(), 2), 99), b"unknown");
    }

    #[test]
    fn large_object_is_not_kept() {
        assert_eq!(WholeObject::read(&object(&"x".repeat(LIMIT))).expect("well-formed"), None);
    }
}
