//! Conversion between the names of properties in schemas and the names of fields in expressions.
//!
//! The name of a property need not be a valid identifier; it is escaped: `a.b` is selected as `a__dot__b`.

use crate::keywords::is_keyword;

/// The texts that are escaped, with the names in their escape sequences.
const ESCAPES: [(&str, &str); 4] = [("__", "underscores"), (".", "dot"), ("-", "dash"), ("/", "slash")];

/// Returns the name of the field for a property, or `None` if no expression can select it.
pub fn escape(property: &str) -> Option<String> {
    if property.is_empty() || property.starts_with(|character: char| character.is_ascii_digit()) {
        return None;
    }
    if is_keyword(property) {
        return Some(format!("__{property}__"));
    }
    let mut escaped = String::with_capacity(property.len());
    let mut rest = property;
    while let Some(character) = rest.chars().next() {
        if let Some((text, name)) = ESCAPES.iter().find(|(text, _)| rest.starts_with(text)) {
            escaped.push_str("__");
            escaped.push_str(name);
            escaped.push_str("__");
            rest = &rest[text.len()..];
        } else if character.is_ascii_alphanumeric() || character == '_' {
            escaped.push(character);
            rest = &rest[1..];
        } else {
            return None;
        }
    }
    Some(escaped)
}

/// Returns the name of the property for a field; `None` if no property is escaped to that name.
pub fn unescape(field: &str) -> Option<String> {
    let inner = field.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    if let Some(keyword) = inner.filter(|inner| is_keyword(inner)) {
        return Some(keyword.to_owned());
    }
    let mut property = String::with_capacity(field.len());
    let mut rest = field;
    while let Some(at) = rest.find("__") {
        property.push_str(&rest[..at]);
        rest = &rest[at..];
        match ESCAPES.iter().find(|(_, name)| sequence(rest, name).is_some()) {
            Some((text, name)) => {
                property.push_str(text);
                rest = sequence(rest, name).unwrap_or_default();
            }
            // A single underscore before an escape sequence.
            None => {
                property.push('_');
                rest = &rest[1..];
            }
        }
    }
    property.push_str(rest);
    (escape(&property).as_deref() == Some(field)).then_some(property)
}

/// Returns the text after the escape sequence `__name__`; `None` if the text does not start with that.
fn sequence<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.strip_prefix("__")?.strip_prefix(name)?.strip_prefix("__")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_escaped_as_upstream_escapes_them() {
        for (property, field) in [
            ("a", Some("a")),
            ("a.b-c/d", Some("a__dot__b__dash__c__slash__d")),
            ("a__b", Some("a__underscores__b")),
            ("namespace", Some("__namespace__")),
            ("namespaces", Some("namespaces")),
            ("_a_", Some("_a_")),
            ("1a", None),
            ("a b", None),
            ("", None),
            ("\u{fc}", None),
        ] {
            assert_eq!(escape(property).as_deref(), field, "{property}");
        }
        assert_eq!(unescape("__dots__"), None);
    }

    proptest! {
        #[test]
        fn unescape_inverts_escape(property in "[a-z_./-]{1,12}") {
            let field = escape(&property).expect("only allowed characters");
            prop_assert_eq!(unescape(&field), Some(property));
        }

        #[test]
        fn unescape_takes_any_text(field in ".{0,40}") {
            let _ = unescape(&field);
        }
    }
}
