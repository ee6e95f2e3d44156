//! Objects for a PUT: some parts replaced, everything else unchanged.

use crate::wire::schema::object_meta;
use crate::wire::{Field, Put, WireError, copy_fields, fields, find, map_entry};

/// Metadata is field 1 of every object.
const METADATA: u32 = 1;

/// Appends an ObjectMeta without `managedFields`, which no controller reads and no write sends.
///
/// # Errors
/// When `message` is not well-formed.
pub fn without_managed_fields(message: &[u8], out: &mut Vec<u8>) -> Result<(), WireError> {
    copy_fields(message, out, |field| field.number != object_meta::MANAGED_FIELDS)
}

/// Returns a copy of `object` with these annotations set, without the fields that `keep` refuses, and with the fields
/// that `put` appends. It has no managed fields: a PUT without them does not change the server's.
///
/// # Errors
/// When `object` is not well-formed.
pub fn edited(
    object: &[u8],
    annotations: &[(&str, &str)],
    keep: impl Fn(&Field<'_>) -> bool,
    put: impl FnOnce(&mut Vec<u8>),
) -> Result<Vec<u8>, WireError> {
    let mut edited = Vec::with_capacity(object.len() + 256);
    for field in fields(object) {
        let field = field?;
        if field.number == METADATA {
            let meta = edited_meta(field.value.bytes(), annotations)?;
            edited.put_bytes(METADATA, &meta);
        } else if keep(&field) {
            edited.extend_from_slice(field.raw);
        }
    }
    put(&mut edited);
    Ok(edited)
}

/// Returns a copy of `object` without managed fields.
///
/// # Errors
/// When `object` is not well-formed.
pub fn trimmed(object: &[u8]) -> Result<Vec<u8>, WireError> {
    edited(object, &[], |_| true, |_| {})
}

fn edited_meta(message: &[u8], annotations: &[(&str, &str)]) -> Result<Vec<u8>, WireError> {
    let mut trimmed = Vec::with_capacity(message.len());
    without_managed_fields(message, &mut trimmed)?;
    let mut meta = Vec::with_capacity(trimmed.len() + 128);
    copy_fields(&trimmed, &mut meta, |field| {
        field.number != object_meta::ANNOTATIONS
            || !map_entry(field.value.bytes()).is_ok_and(|(key, _)| annotations.iter().any(|(set, _)| *set == key))
    })?;
    for (key, value) in annotations {
        meta.put_entry(object_meta::ANNOTATIONS, key, value);
    }
    Ok(meta)
}

/// Returns a copy of `message` without the fields `numbers` and with the fields that `put` appends.
///
/// # Errors
/// When `message` is not well-formed.
pub fn replaced(message: &[u8], numbers: &[u32], put: impl FnOnce(&mut Vec<u8>)) -> Result<Vec<u8>, WireError> {
    let mut copy = Vec::with_capacity(message.len() + 64);
    copy_fields(message, &mut copy, |field| !numbers.contains(&field.number))?;
    put(&mut copy);
    Ok(copy)
}

/// Returns a copy of `object` with `edit` applied to its part `number` (`metadata`, `spec`, `status`). An absent part
/// is edited as an empty message. Managed fields are left out, as in [`edited`]; if the part is the metadata, `edit`
/// has to leave them out.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_part(
    object: &[u8],
    number: u32,
    edit: impl FnOnce(&[u8]) -> Result<Vec<u8>, WireError>,
) -> Result<Vec<u8>, WireError> {
    let part = edit(find(object, number))?;
    let mut copy = Vec::with_capacity(object.len() + part.len() + 16);
    for field in fields(object) {
        let field = field?;
        match field.number {
            METADATA if number != METADATA => {
                let mut meta = Vec::with_capacity(field.value.bytes().len());
                without_managed_fields(field.value.bytes(), &mut meta)?;
                copy.put_bytes(METADATA, &meta);
            }
            other if other == number => {}
            _ => copy.extend_from_slice(field.raw),
        }
    }
    copy.put_bytes(number, &part);
    Ok(copy)
}

/// Returns the key and value of an entry of a `map<string, bytes>`.
///
/// # Errors
/// When `entry` is not well-formed.
pub fn data_entry(entry: &[u8]) -> Result<(&str, &[u8]), WireError> {
    let mut key = "";
    let mut value = &[][..];
    for field in fields(entry) {
        let field = field?;
        match field.number {
            1 => key = field.value.str(),
            2 => value = field.value.bytes(),
            _ => {}
        }
    }
    Ok((key, value))
}

/// Appends an entry of a `map<string, bytes>`.
pub fn put_data(out: &mut Vec<u8>, number: u32, key: &str, value: &[u8]) {
    out.put_message(number, |entry| {
        entry.put_str(1, key);
        entry.put_bytes(2, value);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unedited_fields_are_kept() {
        let mut object = Vec::new();
        object.put_message(METADATA, |meta| {
            meta.put_str(object_meta::NAME, "a");
            meta.put_entry(object_meta::ANNOTATIONS, "kept", "1");
            meta.put_entry(object_meta::ANNOTATIONS, "set", "old");
            meta.put_str(object_meta::MANAGED_FIELDS, "large");
            meta.put_str(99, "unknown");
        });
        put_data(&mut object, 2, "x", b"\xff");
        object.put_str(77, "unknown too");
        let edited = edited(&object, &[("set", "new")], |field| field.number != 2, |out| put_data(out, 2, "y", b"1"))
            .expect("well-formed");

        let mut meta = Vec::new();
        meta.put_str(object_meta::NAME, "a");
        meta.put_entry(object_meta::ANNOTATIONS, "kept", "1");
        meta.put_str(99, "unknown");
        meta.put_entry(object_meta::ANNOTATIONS, "set", "new");
        assert_eq!(find(&edited, METADATA), meta);
        assert_eq!(data_entry(find(&edited, 2)), Ok(("y", &b"1"[..])));
        assert_eq!(find(&edited, 77), b"unknown too");
    }

    #[test]
    fn absent_part_is_edited_as_an_empty_message() {
        let mut object = Vec::new();
        object.put_message(METADATA, |meta| meta.put_str(object_meta::NAME, "a"));
        let with = |object: &[u8], text: &str| {
            with_part(object, 3, |status| replaced(status, &[1], |out| out.put_str(1, text))).expect("well-formed")
        };
        let first = with(&object, "Pending");
        assert_eq!(find(find(&first, 3), 1), b"Pending");
        let second = with(&first, "Bound");
        assert_eq!(fields(find(&second, 3)).count(), 1, "the old value was replaced");
        assert_eq!(find(find(&second, 3), 1), b"Bound");
        assert_eq!(find(&second, METADATA), find(&object, METADATA));
        assert!(with_part(&[0x0a], 3, |status| Ok(status.to_vec())).is_err());
    }
}
