//! The parts of an OpenAPI document from which types are derived.

use std::collections::HashMap;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::members::{member, members};

/// A document that is not well-formed.
#[derive(Debug, thiserror::Error)]
#[error("OpenAPI document: {0}")]
pub struct DocumentError(#[from] serde_json::Error);

/// A kind with its group and version. Prints as Kubernetes prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(default)]
pub struct GroupVersionKind {
    /// The group; empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
}

impl Display for GroupVersionKind {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

/// The schemas of one API group and version, without descriptions and validations.
#[derive(Debug)]
pub struct Document {
    schemas: Schemas,
    kinds: HashMap<GroupVersionKind, String>,
}

/// Schemas by their names.
type Schemas = HashMap<String, Arc<Schema>>;

const PREFIX: &str = "#/components/schemas/";

impl Document {
    /// Parses an OpenAPI v3 document. Values of unexpected types are treated as missing where possible. A schema that
    /// has an unexpected form, or more than 128 levels, is treated as missing; the other schemas of the document are
    /// not affected.
    ///
    /// # Errors
    /// When the text is not JSON.
    pub fn read(text: &[u8]) -> Result<Self, DocumentError> {
        serde_json::from_slice::<IgnoredAny>(text)?;
        let (mut schemas, mut kinds) = (Schemas::new(), HashMap::new());
        for (name, definition) in members(member(member(text, "components"), "schemas")) {
            let name: Result<String, _> = serde_json::from_slice(name);
            let (Ok(name), Ok(schema)) = (name, serde_json::from_slice::<Schema>(definition)) else { continue };
            for kind in &schema.kinds {
                kinds.insert(kind.clone(), name.clone());
            }
            schemas.insert(name, Arc::new(schema));
        }
        Ok(Self { schemas, kinds })
    }

    /// Returns the schema of a kind.
    pub(super) fn kind(&self, kind: &GroupVersionKind) -> Option<&Arc<Schema>> {
        self.schemas.get(self.kinds.get(kind)?)
    }

    /// Returns the schema that a `$ref` names.
    pub(super) fn resolve_reference(&self, reference: &str) -> Option<&Arc<Schema>> {
        self.schemas.get(reference.strip_prefix(PREFIX).unwrap_or(reference))
    }
}

/// An OpenAPI schema, reduced to the fields that determine a type.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Schema {
    #[serde(rename = "$ref")]
    reference: Option<String>,
    #[serde(rename = "allOf")]
    all_of: Vec<Self>,
    /// The OpenAPI type, such as `object`; empty if there is none.
    #[serde(rename = "type", deserialize_with = "first_text")]
    pub kind: String,
    /// The OpenAPI format, such as `date-time`; empty if there is none.
    pub format: String,
    /// The schema of a list's elements.
    #[serde(deserialize_with = "schema_only")]
    pub items: Option<Arc<Self>>,
    /// The fields of an object.
    #[serde(deserialize_with = "schemas_by_name")]
    pub properties: Schemas,
    /// The schema of a map's values.
    #[serde(rename = "additionalProperties", deserialize_with = "schema_only")]
    pub additional_properties: Option<Arc<Self>>,
    #[serde(rename = "x-kubernetes-int-or-string")]
    is_int_or_string: bool,
    /// The object is a whole Kubernetes object, with `kind`, `apiVersion` and `metadata`.
    #[serde(rename = "x-kubernetes-embedded-resource")]
    pub is_embedded_resource: bool,
    #[serde(rename = "x-kubernetes-group-version-kind")]
    kinds: Vec<GroupVersionKind>,
}

impl Schema {
    /// Returns the `$ref` of this schema, if it has one. If the reference has a description or a default, it is wrapped
    /// in `allOf`.
    pub fn reference(&self) -> Option<&str> {
        self.reference.as_deref().or_else(|| self.all_of.iter().find_map(|schema| schema.reference()))
    }

    /// Returns true if the value may be an integer or a string.
    pub fn is_int_or_string(&self) -> bool {
        self.is_int_or_string || self.format == "int-or-string"
    }
}

/// Deserializes schemas by their names.
fn schemas_by_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Schemas, D::Error> {
    let schemas = HashMap::<String, Schema>::deserialize(deserializer)?;
    Ok(schemas.into_iter().map(|(name, schema)| (name, Arc::new(schema))).collect())
}

/// Deserializes a string, or the first element of a list of strings.
fn first_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct Text;

    impl<'de> Visitor<'de> for Text {
        type Value = String;

        fn expecting(&self, out: &mut Formatter<'_>) -> fmt::Result {
            out.write_str("a type or a list of types")
        }

        fn visit_str<E>(self, text: &str) -> Result<String, E> {
            Ok(text.to_owned())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<String, A::Error> {
            let first = texts.next_element::<String>()?;
            while texts.next_element::<IgnoredAny>()?.is_some() {}
            Ok(first.unwrap_or_default())
        }
    }

    deserializer.deserialize_any(Text)
}

/// Deserializes a schema; `None` for a boolean, null or a list of schemas.
fn schema_only<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Arc<Schema>>, D::Error> {
    struct SchemaVisitor;

    impl<'de> Visitor<'de> for SchemaVisitor {
        type Value = Option<Arc<Schema>>;

        fn expecting(&self, out: &mut Formatter<'_>) -> fmt::Result {
            out.write_str("a schema or a boolean")
        }

        fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(None)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut schemas: A) -> Result<Self::Value, A::Error> {
            while schemas.next_element::<IgnoredAny>()?.is_some() {}
            Ok(None)
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
            Schema::deserialize(MapAccessDeserializer::new(map)).map(|schema| Some(Arc::new(schema)))
        }
    }

    deserializer.deserialize_any(SchemaVisitor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(definitions: &str) -> Document {
        Document::read(format!(r#"{{"components": {{"schemas": {{{definitions}}}}}}}"#).as_bytes()).expect("JSON")
    }

    #[test]
    fn schema_that_cannot_be_parsed_hides_no_other_schema() {
        let nested = format!("{}{{}}{}", r#"{"properties": {"a": "#.repeat(200), "}}".repeat(200));
        for (name, schema) in [("nested", &*nested), ("unexpected", r#"{"properties": 1}"#)] {
            let document =
                document(&format!(r##""a}}": {{"type": "object"}}, "x": {schema}, "b": {{"$ref": "#/c"}}"##));
            assert!(document.resolve_reference("a}").is_some() && document.resolve_reference("b").is_some(), "{name}");
            assert!(document.resolve_reference("x").is_none(), "{name}");
        }
    }

    #[test]
    fn document_without_schemas_is_empty() {
        for text in ["{}", "[]", "null", r#"{"components": null}"#, r#"{"components": {"schemas": []}}"#] {
            assert!(Document::read(text.as_bytes()).expect("JSON").schemas.is_empty(), "{text}");
        }
        for text in ["", "{", r#"{"components": {"schemas": {"a": }}}"#] {
            assert!(Document::read(text.as_bytes()).is_err(), "{text}");
        }
    }
}
