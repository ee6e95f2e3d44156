//! Lean records of Kubernetes objects, decoded straight from protobuf.
//!
//! A record holds what controllers decide on and nothing else: a decoded pod is some 300 bytes where the full typed
//! object takes 27 KB and more. There is one file a kind; none of them does IO and none holds policy.
//!
//! * [`wire`] reads and writes protobuf without a schema: what is not asked for is skipped by its length, and a
//!   message is changed by splicing, so that fields we do not know survive a write.
//! * [`schema`] is the one list of field numbers; a test compares it with upstream's `generated.proto` files.
//! * [`intern`] shares equal strings, label sets, owner lists and raw templates between records.

pub mod allocation;
pub mod amount;
pub mod certificate_signing_request;
pub mod cluster_role;
pub mod cluster_trust_bundle;
pub mod config_map;
pub mod controller_revision;
pub mod cronjob;
pub mod daemonset;
pub mod deployment;
pub mod device_taint_rule;
pub mod endpoint;
pub mod endpoint_slice;
pub mod endpoints;
pub mod envelope;
pub mod gated_pod;
pub mod head;
pub mod horizontal_pod_autoscaler;
pub mod intern;
pub mod intstr;
pub mod ip;
pub mod ip_address;
pub mod job;
pub mod lease;
pub mod meta;
pub mod namespace;
pub mod namespace_ending;
pub mod node;
pub mod node_cloud;
pub mod node_selector;
pub mod persistent_volume_claim;
pub mod placement;
pub mod pod;
pub mod pod_certificate_request;
pub mod pod_disruption_budget;
pub mod pod_edit;
pub mod quantity;
pub mod replicaset;
pub mod replicationcontroller;
pub mod resource_claim;
pub mod resource_quota;
pub mod resource_slice;
pub mod schema;
pub mod secret;
pub mod selector;
mod selector_text;
pub mod service;
pub mod service_account;
pub mod service_cidr;
pub mod splice;
pub mod statefulset;
pub mod status;
pub mod storage_claim;
pub mod taint;
pub mod template;
pub mod wire;
pub mod workload;

use std::sync::Arc;

pub use certificate_signing_request::CertificateSigningRequest;
pub use cluster_role::ClusterRole;
pub use cluster_trust_bundle::ClusterTrustBundle;
pub use config_map::ConfigMap;
pub use controller_revision::ControllerRevision;
pub use cronjob::CronJob;
pub use daemonset::DaemonSet;
pub use deployment::Deployment;
pub use device_taint_rule::DeviceTaintRule;
pub use endpoint_slice::EndpointSlice;
pub use endpoints::Endpoints;
pub use gated_pod::GatedPod;
pub use horizontal_pod_autoscaler::HorizontalPodAutoscaler;
pub use intern::{Interner, Str};
pub use ip_address::IpAddress;
pub use job::Job;
pub use lease::Lease;
pub use meta::{Meta, OwnerRef, Time, Uid};
pub use namespace::Namespace;
pub use node::Node;
pub use persistent_volume_claim::PersistentVolumeClaim;
pub use pod::Pod;
pub use pod_certificate_request::PodCertificateRequest;
pub use pod_disruption_budget::PodDisruptionBudget;
pub use replicaset::ReplicaSet;
pub use replicationcontroller::ReplicationController;
pub use resource_quota::ResourceQuota;
pub use resource_slice::ResourceSlice;
pub use secret::Secret;
pub use service::Service;
pub use service_account::ServiceAccount;
pub use service_cidr::ServiceCidr;
pub use statefulset::StatefulSet;
pub use taint::{Taint, Toleration, Tolerations};

/// Why an object could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not well-formed protobuf.
    #[error("malformed protobuf: {0}")]
    Wire(#[from] wire::WireError),
    /// A field that every object has is missing or cannot be read.
    #[error("{field} {problem}")]
    Field {
        /// Path of the field, as in the API reference.
        field: &'static str,
        /// What is wrong with it.
        problem: String,
    },
}

impl DecodeError {
    /// An error about one field.
    pub fn field(field: &'static str, problem: impl Into<String>) -> Self {
        Self::Field { field, problem: problem.into() }
    }
}

/// Rare parts of a record, decoded only when an enabled controller needs them. A kind gives its bits names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sections(pub u32);

impl Sections {
    /// True when all parts of `wanted` are included.
    pub fn contains(self, wanted: Sections) -> bool {
        self.0 & wanted.0 == wanted.0
    }
}

impl std::ops::BitOr for Sections {
    type Output = Sections;
    fn bitor(self, other: Sections) -> Sections {
        Sections(self.0 | other.0)
    }
}

/// What a decoder needs beside the bytes.
#[derive(Debug, Clone)]
pub struct Decode {
    /// Where equal parts of records are shared.
    pub interner: Arc<Interner>,
    /// The rare parts to decode.
    pub sections: Sections,
}

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
