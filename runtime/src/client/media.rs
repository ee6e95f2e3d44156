//! Media types of requests and responses.

/// Objects and lists in protobuf.
pub(crate) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// Objects and lists in JSON.
pub(crate) const JSON: &str = "application/json";
/// A list in protobuf that holds only the metadata of its objects.
pub(crate) const METADATA_LIST: &str =
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
