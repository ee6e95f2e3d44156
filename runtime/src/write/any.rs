//! Writes to objects of any kind, by their metadata: what the garbage collector and the namespace controller do.

use http::Method;
use kinds::Resource;
use kinds::meta::{Meta, ObjectKey, Uid};
use serde_json::json;

use super::{METADATA_ONLY, WriteError, Writer, object_path};

/// The answer to the deletion of a collection is the list of what was deleted, whatever its kind.
const LIST_OR_STATUS: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";

/// What becomes of an object's dependents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They stay and lose their owner.
    Orphan,
    /// They go after the object.
    Background,
    /// They go before the object.
    Foreground,
}

impl Propagation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Orphan => "Orphan",
            Self::Background => "Background",
            Self::Foreground => "Foreground",
        }
    }
}

/// How one object is deleted.
#[derive(Debug, Clone, Copy)]
pub struct Deletion<'a> {
    /// The object's uid: another object of the name stays.
    pub uid: &'a Uid,
    /// The version that the decision is based on, if it must not have changed since.
    pub version: Option<u64>,
    /// What becomes of its dependents.
    pub propagation: Propagation,
}

impl Writer {
    /// Reads the metadata of one object from the server itself.
    ///
    /// # Errors
    /// As [`Writer::get`].
    pub async fn get_meta(&self, resource: &Resource, key: &ObjectKey) -> Result<Meta, WriteError> {
        let path = object_path(resource, key, None);
        Ok(self.send(Method::GET, path, "", METADATA_ONLY, bytes::Bytes::new()).await?.meta()?)
    }

    /// Deletes one object under preconditions.
    ///
    /// # Errors
    /// A conflict when the object is another one, or not in the version that it must be in.
    pub async fn delete_object(
        &self,
        resource: &Resource,
        key: &ObjectKey,
        deletion: Deletion<'_>,
    ) -> Result<(), WriteError> {
        let mut preconditions = json!({ "uid": deletion.uid.to_string() });
        if let Some(version) = deletion.version {
            preconditions["resourceVersion"] = version.to_string().into();
        }
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1",
            "preconditions": preconditions, "propagationPolicy": deletion.propagation.as_str(),
        });
        let path = object_path(resource, key, None);
        self.send(Method::DELETE, path, "application/json", METADATA_ONLY, options.to_string().into()).await?;
        Ok(())
    }

    /// Deletes all objects of a kind in a namespace, in the background.
    ///
    /// # Errors
    /// When one of them could not be deleted; others may be gone all the same.
    pub async fn delete_collection(&self, resource: &Resource, namespace: &str) -> Result<(), WriteError> {
        let options = json!({
            "kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": Propagation::Background.as_str(),
        });
        let path = resource.path(Some(namespace));
        self.send(Method::DELETE, path, "application/json", LIST_OR_STATUS, options.to_string().into()).await?;
        Ok(())
    }
}
