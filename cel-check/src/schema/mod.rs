//! Conversion of OpenAPI schemas to types.
//!
//! A type is resolved one level at a time, when an expression selects a field. Objects have far more fields than
//! expressions use, and in a hostile document the number of fields can grow exponentially with the depth.

mod document;
mod members;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use document::Schema;
pub use document::{Document, DocumentError, GroupVersionKind};

use crate::escape;
use crate::types::{Fields, LazyFields, ObjectType, Simple, Type};

/// Maximum number of lists and maps that are nested without an object between them.
const MAX_DEPTH: u32 = 64;

/// The fields of an object, resolved from its schema on demand.
#[derive(Debug)]
struct SchemaFields {
    document: Arc<Document>,
    schema: Arc<Schema>,
    /// The references that were followed from the root to this schema.
    path: Option<Arc<Path>>,
    /// The object is a whole Kubernetes object, which has a kind and metadata even if its schema lacks them.
    is_resource: bool,
    /// The number of the root type, which distinguishes types with the same name.
    origin: u64,
}

/// The references that were followed to a schema, the last one first. A reference that occurs twice is circular.
#[derive(Debug)]
struct Path {
    reference: String,
    outer: Option<Arc<Self>>,
}

/// The number of the next root type; see [`LazyFields::origin`].
static NEXT_ORIGIN: AtomicU64 = AtomicU64::new(0);

/// Returns the type of a kind, or `None` if the document has no schema for it.
///
/// The type is dyn if the schema has no type.
pub fn type_of_kind(document: &Arc<Document>, kind: &GroupVersionKind) -> Option<Type> {
    let schema = document.kind(kind)?;
    let origin = NEXT_ORIGIN.fetch_add(1, Ordering::Relaxed);
    let place = Place { document, origin, path: None, depth: 0 };
    Some(place.resolved(schema, &kind.kind, true).unwrap_or(Type::DYN))
}

/// The position of a schema in a document.
struct Place<'a> {
    document: &'a Arc<Document>,
    origin: u64,
    path: Option<Arc<Path>>,
    depth: u32,
}

impl Place<'_> {
    /// Returns the type of a schema, or of the schema that it refers to; `None` if expressions cannot use it.
    fn type_of(mut self, schema: &Arc<Schema>, name: &str) -> Option<Type> {
        if self.depth > MAX_DEPTH {
            return Some(Type::DYN);
        }
        let Some(reference) = schema.reference() else {
            return self.resolved(schema, name, schema.is_embedded_resource);
        };
        let mut outer = self.path.as_ref();
        while let Some(path) = outer {
            if path.reference == reference {
                return Some(Type::object(name, []));
            }
            outer = path.outer.as_ref();
        }
        self.path = Some(Arc::new(Path { reference: reference.to_owned(), outer: self.path.take() }));
        let document = self.document;
        match document.resolve_reference(reference) {
            Some(target) => self.resolved(target, name, target.is_embedded_resource),
            // The document has no such schema: the type of the value is unknown.
            None => Some(Type::DYN),
        }
    }

    /// Returns the type of a schema that is not a reference.
    fn resolved(self, schema: &Arc<Schema>, name: &str, is_resource: bool) -> Option<Type> {
        if schema.is_int_or_string() {
            return Some(Type::DYN);
        }
        Some(match schema.kind.as_str() {
            "array" => Type::list(self.inner().type_of(schema.items.as_ref()?, &format!("{name}.@idx"))?),
            "object" => match &schema.additional_properties {
                Some(values) => Type::map(Type::STRING, self.inner().type_of(values, &format!("{name}.@elem"))?),
                None => self.object(schema, name, is_resource),
            },
            "string" => Type::Simple(match schema.format.as_str() {
                "byte" => Simple::Bytes,
                "duration" => Simple::Duration,
                "date" | "date-time" => Simple::Timestamp,
                _ => Simple::String,
            }),
            "boolean" => Type::BOOL,
            "number" => Type::Simple(Simple::Double),
            "integer" => Type::INT,
            _ => return None,
        })
    }

    fn inner(&self) -> Self {
        Self { document: self.document, origin: self.origin, path: self.path.clone(), depth: self.depth + 1 }
    }

    fn object(self, schema: &Arc<Schema>, name: &str, is_resource: bool) -> Type {
        let fields = SchemaFields {
            document: self.document.clone(),
            schema: schema.clone(),
            path: self.path,
            is_resource,
            origin: self.origin,
        };
        Type::Object(Arc::new(ObjectType { name: name.to_owned(), fields: Fields::Lazy(Box::new(fields)) }))
    }
}

impl LazyFields for SchemaFields {
    fn field(&self, owner: &str, field: &str) -> Option<Type> {
        let name = format!("{owner}.{field}");
        if self.is_resource && !self.has_metadata() {
            match field {
                "kind" | "apiVersion" => return Some(Type::STRING),
                "metadata" => {
                    return Some(Type::object(&name, [("name", Type::STRING), ("generateName", Type::STRING)]));
                }
                _ => {}
            }
        }
        let schema = self.schema.properties.get(&escape::unescape(field)?)?;
        self.place().type_of(schema, &name)
    }

    fn origin(&self) -> u64 {
        self.origin
    }
}

impl SchemaFields {
    fn place(&self) -> Place<'_> {
        Place { document: &self.document, origin: self.origin, path: self.path.clone(), depth: 0 }
    }

    /// Returns true if the schema declares `kind`, `apiVersion`, `metadata.name` and `metadata.generateName`.
    fn has_metadata(&self) -> bool {
        let is = |schemas: &Arc<Schema>, property: &str, kind: &str| {
            schemas.properties.get(property).is_some_and(|schema| self.target(schema).kind == kind)
        };
        let metadata = || {
            let metadata = self.target(self.schema.properties.get("metadata")?);
            Some(is(&metadata, "name", "string") && is(&metadata, "generateName", "string"))
        };
        is(&self.schema, "kind", "string")
            && is(&self.schema, "apiVersion", "string")
            && is(&self.schema, "metadata", "object")
            && metadata().unwrap_or(false)
    }

    /// Returns the schema, or the one that it refers to.
    fn target(&self, schema: &Arc<Schema>) -> Arc<Schema> {
        let target = schema.reference().and_then(|reference| self.document.resolve_reference(reference));
        target.unwrap_or(schema).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widget(spec: &str) -> Type {
        let text = format!(
            r##"{{"components": {{"schemas": {{
                "Widget": {{
                    "type": "object",
                    "properties": {{"spec": {spec}}},
                    "x-kubernetes-group-version-kind": [{{"group": "g", "version": "v1", "kind": "Widget"}}]
                }},
                "Tree": {{"type": "object", "properties": {{
                    "child": {{"allOf": [{{"$ref": "#/components/schemas/Tree"}}], "default": {{}}}},
                    "leaf": {{"type": "string"}}
                }}}},
                "Loop": {{"type": "array", "items": {{"$ref": "#/components/schemas/Loop"}}}}
            }}}}}}"##
        );
        let document = Arc::new(Document::read(text.as_bytes()).expect("a document"));
        let kind = GroupVersionKind { group: "g".to_owned(), version: "v1".to_owned(), kind: "Widget".to_owned() };
        type_of_kind(&document, &kind).expect("a kind")
    }

    fn field(of: &Type, name: &str) -> Option<Type> {
        match of {
            Type::Object(object) => match &object.fields {
                Fields::Lazy(fields) => fields.field(&object.name, name),
                Fields::Known(fields) => fields.get(name).cloned(),
                Fields::Composed | Fields::Unregistered | Fields::Opaque => None,
            },
            _ => None,
        }
    }

    #[test]
    fn schema_becomes_the_type_that_upstream_derives() {
        for (spec, expected) in [
            (r#"{"type": "integer"}"#, Some("int")),
            (r#"{"type": "number"}"#, Some("double")),
            (r#"{"type": "string", "format": "date-time"}"#, Some("timestamp")),
            (r#"{"type": "string", "format": "byte"}"#, Some("bytes")),
            (r#"{"x-kubernetes-int-or-string": true}"#, Some("dyn")),
            (r#"{"type": "string", "format": "int-or-string"}"#, Some("dyn")),
            (r#"{"type": "array", "items": {"type": "boolean"}}"#, Some("list(bool)")),
            (r#"{"type": "array", "items": {"type": "object"}}"#, Some("list(Widget.spec.@idx)")),
            (r#"{"type": "array"}"#, None),
            (r#"{"type": "object", "additionalProperties": {"type": "string"}}"#, Some("map(string, string)")),
            (r#"{"type": "object", "additionalProperties": {}}"#, None),
            (r#"{"type": "object", "additionalProperties": true}"#, Some("Widget.spec")),
            (r#"{"x-kubernetes-preserve-unknown-fields": true}"#, None),
            (r##"{"$ref": "#/components/schemas/Missing"}"##, Some("dyn")),
            (r##"{"$ref": "#/components/schemas/Loop"}"##, Some("list(Widget.spec.@idx)")),
        ] {
            let found = field(&widget(spec), "spec").map(|found| found.to_string());
            assert_eq!(found.as_deref(), expected, "{spec}");
        }
    }

    #[test]
    fn circular_reference_ends_in_an_object_without_fields() {
        let tree = field(&widget(r##"{"$ref": "#/components/schemas/Tree"}"##), "spec").expect("a field");
        assert_eq!(field(&tree, "leaf").expect("a field").to_string(), "string");
        let child = field(&tree, "child").expect("a field");
        assert_eq!(child.to_string(), "Widget.spec.child");
        assert!(field(&child, "leaf").is_none());
    }

    #[test]
    fn resource_whose_schema_lacks_metadata_has_kind_and_name() {
        let widget = widget("{}");
        let metadata = field(&widget, "metadata").expect("metadata");
        assert_eq!(field(&metadata, "name").expect("a name").to_string(), "string");
        assert!(field(&metadata, "labels").is_none());
        assert_eq!(field(&widget, "kind").expect("a kind").to_string(), "string");
    }

    #[test]
    fn types_of_two_roots_differ() {
        let (one, other) = (widget(r#"{"type": "object"}"#), widget(r#"{"type": "object"}"#));
        assert!(one.is_exact(&one) && !one.is_exact(&other));
    }
}
