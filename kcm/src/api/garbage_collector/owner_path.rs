//! The object that is read for an owner's name.
//!
//! The API server does not check the names in ownerReferences: they may contain anything, even names that no object can
//! have. A name must never change the path of a request. Therefore names with path separators and percent signs are
//! resolved here, without a request. The result is that of upstream, whose client joins the name to the path and
//! removes dot segments. If the path leads to another object, or to nothing, the owner does not exist. If it leads to a
//! list or a discovery document, or is refused by the API server, that is an error, and the dependent stays.

use kinds::Resource;

/// Maximum length of a name that is looked up, in bytes. Percent-encoded, a longer one may not fit into a request.
const MAX_NAME_BYTES: usize = 5 * 1024;

/// The meaning of a name at the end of an object's path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// The object with this name.
    Object(&'a str),
    /// No object: the owner does not exist.
    Nothing,
    /// Not an object: no read can ever show whether the owner exists.
    Undecidable,
}

/// Returns the target of an owner's name, for a resource in a namespace.
pub fn target<'a>(resource: &Resource, namespace: &str, name: &'a str) -> Target<'a> {
    // The API server refuses to look up a name with a percent sign. That does not prove that the owner does not exist.
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('%') {
        return Target::Undecidable;
    }
    if !name.contains('/') && !matches!(name, "." | "..") {
        return Target::Object(name);
    }
    let collection = resource.path(Some(namespace));
    let collection: Vec<&str> = collection.split('/').filter(|segment| !segment.is_empty()).collect();
    let path = cleaned(&collection, name);
    match path.strip_prefix(&*collection) {
        Some([]) => Target::Undecidable,
        Some([last]) => name.split('/').rfind(|segment| segment == last).map_or(Target::Nothing, Target::Object),
        Some(_) => Target::Nothing,
        None if is_object_or_below(&path) => Target::Nothing,
        None => Target::Undecidable,
    }
}

/// Returns the segments of a path after a name was joined to it and its dot segments were removed.
fn cleaned<'a>(collection: &[&'a str], name: &'a str) -> Vec<&'a str> {
    let mut path = collection.to_vec();
    for segment in name.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(path.pop()),
            other => path.push(other),
        }
    }
    path
}

/// Returns true if a path is that of an object of any kind, or of a subresource.
fn is_object_or_below(path: &[&str]) -> bool {
    match path {
        ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] => match rest {
            ["namespaces", _, in_namespace @ ..] => in_namespace.len() != 1,
            other => other.len() > 1,
        },
        _ => false,
    }
}
