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
    /// False for kinds without a namespace.
    pub namespaced: bool,
}

impl Resource {
    /// `group/version`, or `version` alone for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.to_owned() } else { format!("{}/{}", self.group, self.version) }
    }

    /// URL path of the collection, in one namespace if given.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let root = if self.group.is_empty() { "/api/" } else { "/apis/" };
        let api = self.api_version();
        match namespace.filter(|_| self.namespaced) {
            Some(namespace) => format!("{root}{api}/namespaces/{namespace}/{}", self.plural),
            None => format!("{root}{api}/{}", self.plural),
        }
    }
}

/// In which form objects are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Whole, as protobuf: what the API server is built with.
    Protobuf,
    /// Metadata alone, as protobuf: anything.
    Metadata,
    /// Whole, as JSON: custom resources, which the API server has in no other form.
    Json,
}

/// A kind with a lean record.
pub trait Kind: Sized + Send + Sync + 'static {
    /// Where the API server serves it.
    const RESOURCE: Resource;

    /// In which form it is watched.
    const FORM: Form = Form::Protobuf;

    /// Whether a cluster has so many and so large ones that the start waits for their list. It is then asked for in one
    /// answer over a connection of its own, which takes the server half the time of a stream.
    const MANY: bool = false;

    /// Reads one object (the inside of the `runtime.Unknown` envelope).
    fn decode(context: &Decode, object: &[u8]) -> Result<Self, DecodeError>;

    /// The object's metadata.
    fn meta(&self) -> &Meta;

    /// The reference by which a child names this object as its managing controller (apimachinery, NewControllerRef).
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
