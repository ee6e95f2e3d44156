//! Metadata for a PUT or POST: labels and owners replaced, annotations edited or replaced, finalizers added or removed.

use crate::intern::Labels;
use crate::meta::OwnerRef;
use crate::wire::schema::object_meta;
use crate::wire::splice::{with_part, without_managed_fields};
use crate::wire::{Put, WireError, copy_fields, find, map_entry};

/// Metadata is field 1 of every object.
const METADATA: u32 = 1;

/// The desired annotations of an object.
#[derive(Debug, Clone, Copy)]
pub enum Annotations<'a> {
    /// These values (`None` removes the key); other annotations are kept.
    Edited(&'a [(&'a str, Option<&'a str>)]),
    /// These values; all other annotations are removed.
    Exactly(&'a Labels),
}

/// The metadata of an object that is written.
#[derive(Debug, Clone, Copy)]
pub struct NewMetadata<'a> {
    /// All labels.
    pub labels: &'a Labels,
    /// The desired annotations.
    pub annotations: Annotations<'a>,
    /// The only owner, if owners are to be replaced.
    pub owner: Option<&'a OwnerRef>,
}

impl NewMetadata<'_> {
    fn put(&self, meta: &mut Vec<u8>) {
        for (key, value) in &**self.labels {
            meta.put_entry(object_meta::LABELS, key, value);
        }
        match self.annotations {
            Annotations::Edited(edits) => {
                for (key, value) in edits {
                    value.iter().for_each(|value| meta.put_entry(object_meta::ANNOTATIONS, key, value));
                }
            }
            Annotations::Exactly(all) => {
                all.iter().for_each(|(key, value)| meta.put_entry(object_meta::ANNOTATIONS, key, value))
            }
        }
        if let Some(owner) = self.owner {
            owner.put(meta, object_meta::OWNER_REFERENCES);
        }
    }

    fn keeps_annotation(&self, entry: &[u8]) -> bool {
        match self.annotations {
            Annotations::Edited(edits) => {
                !map_entry(entry).is_ok_and(|(key, _)| edits.iter().any(|(edited, _)| *edited == key))
            }
            Annotations::Exactly(_) => false,
        }
    }

    /// Returns the beginning of an object for a PUT: the metadata of `object` without managed fields (a PUT without
    /// them does not change the server's), with the labels, the annotations and the owner (if there is one) of `self`.
    ///
    /// # Errors
    /// When `object` is not well-formed.
    pub fn rewrite(&self, object: &[u8]) -> Result<Vec<u8>, WireError> {
        let (mut trimmed, mut meta) = (Vec::new(), Vec::new());
        without_managed_fields(find(object, METADATA), &mut trimmed)?;
        copy_fields(&trimmed, &mut meta, |field| match field.number {
            object_meta::LABELS => false,
            object_meta::ANNOTATIONS => self.keeps_annotation(field.value.bytes()),
            object_meta::OWNER_REFERENCES => self.owner.is_none(),
            _ => true,
        })?;
        self.put(&mut meta);
        let mut rewritten = Vec::with_capacity(meta.len() + 16);
        rewritten.put_bytes(METADATA, &meta);
        Ok(rewritten)
    }

    /// Returns the beginning of a new object. A name that ends with `-` is completed by the server.
    pub fn create(&self, namespace: &str, name: &str) -> Vec<u8> {
        let mut object = Vec::new();
        object.put_message(METADATA, |meta| {
            meta.put_str(if name.ends_with('-') { object_meta::GENERATE_NAME } else { object_meta::NAME }, name);
            meta.put_str(object_meta::NAMESPACE, namespace);
            self.put(meta);
        });
        object
    }
}

/// Returns a copy of `object` for a PUT with these annotations set (`Some`) or removed (`None`).
///
/// # Errors
/// When `object` is not well-formed.
pub fn annotated(object: &[u8], edits: &[(&str, Option<&str>)]) -> Result<Vec<u8>, WireError> {
    with_part(object, METADATA, |meta| {
        let mut copy = Vec::with_capacity(meta.len() + 128);
        let edited = |entry: &[u8]| map_entry(entry).is_ok_and(|(key, _)| edits.iter().any(|(edit, _)| *edit == key));
        copy_fields(meta, &mut copy, |field| {
            field.number != object_meta::MANAGED_FIELDS
                && !(field.number == object_meta::ANNOTATIONS && edited(field.value.bytes()))
        })?;
        for (key, value) in edits {
            if let Some(value) = value {
                copy.put_entry(object_meta::ANNOTATIONS, key, value);
            }
        }
        Ok(copy)
    })
}

/// Returns a copy of `object` for a PUT with a finalizer appended. The object must not have it yet.
///
/// # Errors
/// When `object` is not well-formed.
pub fn with_finalizer(object: &[u8], finalizer: &str) -> Result<Vec<u8>, WireError> {
    with_part(object, METADATA, |meta| {
        let mut copy = Vec::with_capacity(meta.len() + finalizer.len() + 2);
        without_managed_fields(meta, &mut copy)?;
        copy.put_str(object_meta::FINALIZERS, finalizer);
        Ok(copy)
    })
}

/// Returns a copy of `object` for a PUT without these finalizers; others keep their order.
///
/// # Errors
/// When `object` is not well-formed.
pub fn without_finalizers(object: &[u8], finalizers: &[&str]) -> Result<Vec<u8>, WireError> {
    with_part(object, METADATA, |meta| {
        let mut copy = Vec::with_capacity(meta.len());
        copy_fields(meta, &mut copy, |field| match field.number {
            object_meta::MANAGED_FIELDS => false,
            object_meta::FINALIZERS => !finalizers.contains(&field.value.str()),
            _ => true,
        })?;
        Ok(copy)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::intern::Interner;
    use crate::meta::{Meta, Uid};

    fn read(object: &[u8]) -> (Meta, Vec<(String, String)>) {
        let mut annotations = Vec::new();
        let keep = |key: &str, value: &str| annotations.push((key.to_owned(), value.to_owned()));
        let meta = Meta::decode(&Interner::default(), find(object, METADATA), keep).expect("well-formed");
        (meta, annotations)
    }

    #[test]
    fn rewrite_keeps_all_other_metadata() {
        let mut object = Vec::new();
        object.put_message(METADATA, |meta| {
            meta.put_str(object_meta::NAME, "web");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.put_entry(object_meta::LABELS, "old", "1");
            meta.put_entry(object_meta::ANNOTATIONS, "kept", "1");
            meta.put_entry(object_meta::ANNOTATIONS, "set", "old");
            meta.put_entry(object_meta::ANNOTATIONS, "removed", "1");
            meta.put_str(object_meta::MANAGED_FIELDS, "large");
            meta.put_str(object_meta::FINALIZERS, "held");
            meta.put_str(99, "unknown");
        });
        let labels: Labels = Arc::new([("app".into(), "web".into())]);
        let edits = [("set", Some("new")), ("removed", None)];
        let metadata = NewMetadata { labels: &labels, annotations: Annotations::Edited(&edits), owner: None };
        let rewritten = metadata.rewrite(&object).expect("well-formed");
        let (meta, annotations) = read(&rewritten);
        assert_eq!((meta.version, &meta.labels, &*meta.finalizers[0]), (7, &labels, "held"));
        assert_eq!(annotations, [("kept".into(), "1".into()), ("set".into(), "new".into())]);
        assert_eq!(find(find(&rewritten, METADATA), 99), b"unknown");
        assert!(find(find(&rewritten, METADATA), object_meta::MANAGED_FIELDS).is_empty());
    }

    #[test]
    fn owners_and_all_annotations_can_be_replaced() {
        let owner = |uid: &str| OwnerRef {
            api_version: "v1".into(),
            kind: "Endpoints".into(),
            name: "web".into(),
            uid: Uid::parse(uid),
            controller: Some(true),
            block_owner_deletion: Some(true),
        };
        let empty: Labels = Arc::new([]);
        let (former, new) = (owner("a"), owner("b"));
        let edits = [("why", Some("because"))];
        let metadata = NewMetadata { labels: &empty, annotations: Annotations::Edited(&edits), owner: Some(&former) };
        let mut created = Vec::new();
        created.put_message(METADATA, |meta| {
            meta.put_str(object_meta::RESOURCE_VERSION, "1");
            meta.extend(find(&metadata.create("ns", "web-1"), METADATA));
        });
        let (meta, annotations) = read(&created);
        assert_eq!((&*meta.owners, annotations.len()), (std::slice::from_ref(&former), 1));
        let metadata = NewMetadata { labels: &empty, annotations: Annotations::Exactly(&empty), owner: Some(&new) };
        let (meta, annotations) = read(&metadata.rewrite(&created).expect("well-formed"));
        assert_eq!((&*meta.owners, annotations.len()), (std::slice::from_ref(&new), 0));
        assert_eq!(find(find(&metadata.create("ns", "web-"), METADATA), object_meta::GENERATE_NAME), b"web-");
    }

    #[test]
    fn edits_of_annotations_and_finalizers_keep_all_other_fields_except_managed_fields() {
        let mut object = Vec::new();
        object.put_message(METADATA, |meta| {
            meta.put_str(object_meta::NAME, "data");
            meta.put_str(object_meta::RESOURCE_VERSION, "7");
            meta.put_entry(object_meta::ANNOTATIONS, "kept", "1");
            meta.put_entry(object_meta::ANNOTATIONS, "removed", "1");
            meta.put_str(object_meta::FINALIZERS, "first");
            meta.put_str(object_meta::FINALIZERS, "second");
            meta.put_str(object_meta::MANAGED_FIELDS, "large");
            meta.put_str(99, "unknown");
        });
        object.put_str(77, "unknown too");
        let edited =
            annotated(&object, &[("set", Some("2")), ("removed", None), ("absent", None)]).expect("well-formed");
        let edited = with_finalizer(&edited, "third").expect("well-formed");
        let edited = without_finalizers(&edited, &["first", "absent"]).expect("well-formed");
        let (meta, annotations) = read(&edited);
        assert_eq!((meta.version, &*meta.finalizers), (7, &["second".into(), "third".into()][..]));
        assert_eq!(annotations, [("kept".into(), "1".into()), ("set".into(), "2".into())]);
        assert_eq!((find(find(&edited, METADATA), 99), find(&edited, 77)), (&b"unknown"[..], &b"unknown too"[..]));
        assert!(find(find(&edited, METADATA), object_meta::MANAGED_FIELDS).is_empty());
    }
}
