//! Annotations that the provider writes to Services. Pure functions.

use std::collections::BTreeMap;

use kinds::Service;

/// Annotations to set, and those to remove (`None`).
pub type AnnotationEdits = BTreeMap<String, Option<String>>;

/// Returns true if the provider writes an annotation.
pub fn is_written(name: &str, prefix: Option<&str>) -> bool {
    prefix.is_some_and(|prefix| !prefix.is_empty() && name.starts_with(prefix))
}

/// Returns the edits after which `wanted` are the Service's only annotations with the provider's prefix. Annotations
/// without the prefix are not edited, even if the provider returns them.
pub fn edits(service: &Service, wanted: &BTreeMap<String, String>, prefix: Option<&str>) -> AnnotationEdits {
    let existing: BTreeMap<&str, &str> = service.annotations.iter().map(|(name, value)| (&**name, &**value)).collect();
    let own = wanted.iter().filter(|(name, _)| is_written(name, prefix));
    let set = own.filter(|(name, value)| existing.get(name.as_str()) != Some(&value.as_str()));
    let outdated = existing.keys().filter(|name| is_written(name, prefix) && !wanted.contains_key(**name));
    let removed = outdated.map(|name| ((*name).to_owned(), None));
    set.map(|(name, value)| (name.clone(), Some(value.clone()))).chain(removed).collect()
}
