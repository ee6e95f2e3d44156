//! The paths of requests: the only place where names become parts of a URL.
//!
//! Names come from tenants: ownerReferences, annotations and scale targets may name anything. Each name is one segment
//! of the path, percent-encoded, so that it can neither add a query nor lead to another object or collection. A name
//! that cannot be a segment is refused before anything is sent. Upstream: client-go, rest.Request and metadata.Client.

use std::fmt;

use kinds::Resource;
use kinds::meta::ObjectKey;

use crate::text::{percent_encode, percent_encode_segment};

/// Maximum length of a segment in bytes before it is escaped. The names of objects are much shorter; even an escaped
/// name, which may be three times as long, fits into a request.
const MAX_SEGMENT_BYTES: usize = 16 * 1024;

/// Maximum number of bytes of a refused name in the error message.
const MAX_SHOWN_BYTES: usize = 64;

/// A name that cannot be a segment of a request's path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidName {
    /// The part of the path, such as `namespace`.
    part: &'static str,
    /// The first bytes of the name.
    name: String,
    problem: &'static str,
}

impl fmt::Display for InvalidName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, name, problem } = self;
        write!(f, "invalid {part} {name:?}: it {problem}; nothing was sent")
    }
}

impl std::error::Error for InvalidName {}

/// Returns the namespace in a request's path; empty if there is none.
pub(super) fn namespace_of(path: &str) -> &str {
    path.split_once("/namespaces/").and_then(|(_, rest)| rest.split('/').next()).unwrap_or_default()
}

/// Returns the path of a collection, in one namespace if the kind has namespaces and one is given.
pub(super) fn collection(resource: &Resource, namespace: Option<&str>) -> Result<String, InvalidName> {
    let version = segment("API version", resource.version)?;
    let plural = segment("resource", resource.plural)?;
    let api = match resource.group {
        "" => format!("/api/{version}"),
        group => format!("/apis/{}/{version}", segment("API group", group)?),
    };
    match namespace.filter(|_| resource.namespaced) {
        Some(namespace) => Ok(format!("{api}/namespaces/{}/{plural}", segment("namespace", namespace)?)),
        None => Ok(format!("{api}/{plural}")),
    }
}

/// Returns the path of an object or of one of its subresources.
pub(super) fn object(resource: &Resource, key: &ObjectKey, subresource: Option<&str>) -> Result<String, InvalidName> {
    if key.name.contains('%') {
        return Err(invalid("name", &key.name, "contains '%'"));
    }
    let mut path = referenced(resource, key)?;
    if let Some(subresource) = subresource {
        path.push('/');
        path.push_str(&segment("subresource", subresource)?);
    }
    Ok(path)
}

/// Like [`object`], for an object that is only known by a reference. Like upstream's client for metadata, it accepts a
/// `%` in the name and leaves its validation to the API server.
pub(super) fn referenced(resource: &Resource, key: &ObjectKey) -> Result<String, InvalidName> {
    Ok(format!("{}/{}", collection(resource, Some(&key.namespace))?, segment("name", &key.name)?))
}

/// The path and query of a read that is not about an object of a [`Resource`], such as a metric.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReadPath(String);

impl ReadPath {
    /// Joins segments, each of which is escaped.
    ///
    /// # Errors
    /// When one of them cannot be a segment.
    pub fn new(segments: &[&str]) -> Result<Self, InvalidName> {
        let mut path = String::new();
        for name in segments {
            path.push('/');
            path.push_str(&segment("path segment", name)?);
        }
        Ok(Self(path))
    }

    /// Adds a parameter to the query.
    #[must_use]
    pub fn with_parameter(mut self, name: &str, value: &str) -> Self {
        self.0.push(if self.0.contains('?') { '&' } else { '?' });
        self.0.push_str(&format!("{}={}", percent_encode(name), percent_encode(value)));
        self
    }

    /// Returns the path with the query.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns a name as a segment of a path.
fn segment(part: &'static str, name: &str) -> Result<String, InvalidName> {
    let problem = match name {
        "" => "is empty",
        "." | ".." => "is a dot segment",
        name if name.contains('/') => "contains '/'",
        name if name.len() > MAX_SEGMENT_BYTES => "is too long",
        name => return Ok(percent_encode_segment(name)),
    };
    Err(invalid(part, name, problem))
}

fn invalid(part: &'static str, name: &str, problem: &'static str) -> InvalidName {
    InvalidName { part, name: name[..name.floor_char_boundary(MAX_SHOWN_BYTES)].to_owned(), problem }
}

#[cfg(test)]
mod tests {
    use http::Uri;
    use proptest::prelude::*;

    use super::*;

    const CONFIG_MAPS: Resource =
        Resource { group: "", version: "v1", kind: "ConfigMap", plural: "configmaps", namespaced: true };
    const SCALED: Resource =
        Resource { group: "apps", version: "v1", kind: "Deployment", plural: "deployments", namespaced: true };
    const NODES: Resource = Resource { group: "", version: "v1", kind: "Node", plural: "nodes", namespaced: false };

    #[test]
    fn name_becomes_one_escaped_segment() {
        for (name, segment) in [
            ("web", "web"),
            ("system:node", "system:node"),
            ("?watch=true&timeoutSeconds=99999999", "%3Fwatch%3Dtrue%26timeoutSeconds%3D99999999"),
            ("a b", "a%20b"),
            ("#", "%23"),
            ("line\nbreak", "line%0Abreak"),
            ("nul\0", "nul%00"),
            ("語", "%E8%AA%9E"),
            ("...", "..."),
        ] {
            let path = object(&CONFIG_MAPS, &ObjectKey::new("ns", name), None);
            assert_eq!(path, Ok(format!("/api/v1/namespaces/ns/configmaps/{segment}")), "{name:?}");
        }
        let percent = ObjectKey::new("ns", "%2e%2e");
        assert!(object(&CONFIG_MAPS, &percent, None).is_err());
        let escaped = "/api/v1/namespaces/ns/configmaps/%252e%252e";
        assert_eq!(referenced(&CONFIG_MAPS, &percent).as_deref(), Ok(escaped));
        assert_eq!(namespace_of(escaped), "ns");
        assert_eq!(namespace_of("/api/v1/namespaces/ns"), "ns");
        assert_eq!(namespace_of("/api/v1/nodes/namespaces"), "");
        let scale = object(&SCALED, &ObjectKey::new("ns", "web"), Some("scale"));
        assert_eq!(scale.as_deref(), Ok("/apis/apps/v1/namespaces/ns/deployments/web/scale"));
        assert_eq!(object(&NODES, &ObjectKey::new("", "n1"), None).as_deref(), Ok("/api/v1/nodes/n1"));
        assert_eq!(collection(&CONFIG_MAPS, None).as_deref(), Ok("/api/v1/configmaps"));
    }

    #[test]
    fn name_is_refused_when_it_is_not_a_path_segment() {
        let long = "a".repeat(MAX_SEGMENT_BYTES + 1);
        for name in ["", ".", "..", "/", "a/b", "../x", "kube-system/secrets?watch=true", &long] {
            for key in [ObjectKey::new("ns", name), ObjectKey::new(name, "name")] {
                let error = object(&CONFIG_MAPS, &key, None).expect_err(name).to_string();
                assert!(error.len() < 200 && error.ends_with("nothing was sent"), "{error}");
            }
        }
        assert!(object(&CONFIG_MAPS, &ObjectKey::new("ns", "a"), Some("../b")).is_err());
        for name in ["", ".", "..", "a/b"] {
            assert!(ReadPath::new(&["apis", "metrics", name]).is_err(), "{name:?}");
        }
        let odd = Resource { plural: "a/b", ..CONFIG_MAPS };
        assert!(collection(&odd, Some("ns")).is_err());
    }

    #[test]
    fn parameters_follow_the_path_and_are_escaped() {
        let path = ReadPath::new(&["apis", "metrics", "pods", "*", "a?b"]).expect("valid");
        assert_eq!(path.as_str(), "/apis/metrics/pods/*/a%3Fb");
        let path = path.with_parameter("labelSelector", "a=b,c").with_parameter("limit", "1");
        assert_eq!(path.as_str(), "/apis/metrics/pods/*/a%3Fb?labelSelector=a%3Db%2Cc&limit=1");
    }

    proptest! {
        #[test]
        fn any_name_is_refused_or_confined_to_its_segment(name in "\\PC{0,40}|[./%?#&=;\\\\ \\x00-\\x1f]{0,6}") {
            if let Ok(path) = referenced(&CONFIG_MAPS, &ObjectKey::new("ns", &*name)) {
                let uri: Uri = path.parse().expect("a valid path");
                prop_assert_eq!(uri.query(), None);
                prop_assert_eq!(uri.path(), &*path);
                let segments: Vec<&str> = path.split('/').collect();
                prop_assert_eq!(segments.len(), 7);
                prop_assert_eq!(crate::text::percent_decode(segments[6]), Some(name));
            }
        }
    }
}
