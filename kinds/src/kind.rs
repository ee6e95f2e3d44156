//! Kinds with a lean record: their API coordinates, and the trait that stores and watches need.

use crate::decode::{Decode, DecodeError};
use crate::meta::{Meta, OwnerRef};

/// The API coordinates of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version within the group.
    pub version: &'static str,
    /// Kind, as in `kind:`.
    pub kind: &'static str,
    /// Plural name, as in URLs.
    pub plural: &'static str,
    /// False for cluster-scoped kinds.
    pub namespaced: bool,
}

impl Resource {
    /// Returns `group/version`, or `version` alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns `plural.group`, or only the plural in the core group, as kubectl formats it. Upstream: apimachinery,
    /// GroupResource.String.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// Returns the URL path of the collection, in one namespace if given.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api/" } else { "/apis/" };
        let api = self.api_version();
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{root}{api}/namespaces/{namespace}/{}", self.plural),
            None => format!("{root}{api}/{}", self.plural),
        }
    }
}

/// The format in which objects are requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Whole objects as protobuf, for kinds that are built into the API server.
    Protobuf,
    /// Metadata only, as protobuf, for all kinds.
    Metadata,
    /// Whole objects as JSON, for custom resources, which the API server does not serve as protobuf.
    Json,
}

/// A kind with a lean record.
pub trait Kind: Sized + Send + Sync + 'static {
    /// The resource under which the API server serves it.
    const RESOURCE: Resource;

    /// The format in which it is watched.
    const FORM: Form = Form::Protobuf;

    /// True for a kind whose objects are numerous or large enough that its list dominates the startup. The list is then
    /// requested in one response over a dedicated connection, which takes the server half the time of a stream.
    const MANY: bool = false;

    /// Decodes one object (the content of the `runtime.Unknown` envelope).
    ///
    /// # Errors
    /// When the object is not well-formed, or its name or its resourceVersion is missing or invalid.
    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError>;

    /// Returns the object's metadata.
    fn meta(&self) -> &Meta;

    /// Returns the maximum memory of the record in bytes, for kinds that an aggregated API may serve: its objects may
    /// be numerous, so the memory of their stores is limited. Zero for all other kinds.
    fn limited_bytes(&self) -> usize {
        0
    }

    /// Returns the controller reference to this object for its dependents. Upstream: apimachinery, NewControllerRef.
    fn controller_ref(&self) -> OwnerRef {
        let meta = self.meta();
        OwnerRef {
            api_version: Self::RESOURCE.api_version().into(),
            kind: Self::RESOURCE.kind.into(),
            name: meta.name.clone(),
            uid: meta.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}
