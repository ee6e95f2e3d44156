//! Lean records of Kubernetes objects, decoded straight from protobuf.
//!
//! A record holds what controllers decide on and nothing else: a decoded pod is some 300 bytes where the full typed
//! object takes 27 KB and more. There is one file a kind; none of them does IO and none holds policy.
//!
//! * [`wire`] reads and writes protobuf without a schema: what is not asked for is skipped by its length, and a
//!   message is changed by splicing, so that fields we do not know survive a write.
//! * [`schema`] is the one list of field numbers; a test compares it with upstream's `generated.proto` files.
//! * [`intern`] shares equal strings, label sets, owner lists and raw templates between records.

mod apps;
mod autoscaling;
mod batch;
mod certificates;
mod coordination;
mod core;
pub mod envelope;
pub mod intern;
pub mod meta;
pub mod metadata_edit;
mod networking;
mod policy;
mod rbac;
mod resource;
mod scheduling;
pub mod template;
mod value;
pub mod wire;

use std::sync::Arc;

pub use crate::apps::{controller_revision, daemonset, deployment, replicaset, statefulset};
pub use crate::autoscaling::horizontal_pod_autoscaler;
pub use crate::batch::{cronjob, job};
pub use crate::certificates::{certificate_signing_request, cluster_trust_bundle, pod_certificate_request};
pub use crate::coordination::lease;
pub use crate::core::pod::gated as gated_pod;
pub use crate::core::{
    config_map, endpoints, namespace, namespace_deletion as namespace_ending, node, node_cloud,
    persistent_volume_claim, persistent_volume_claim_usage as storage_claim, pod, replicationcontroller,
    resource_quota, secret, service, service_account,
};
pub use crate::metadata_edit as head;
pub use crate::networking::{endpoint, endpoint_slice, ip_address, service_cidr};
pub use crate::policy::pod_disruption_budget;
pub use crate::rbac::cluster_role;
pub use crate::resource::{device_allocation as allocation, device_taint_rule, resource_claim, resource_slice};
pub use crate::scheduling::{node_selector, placement, taint};
pub use crate::template::{pod_edit, raw_object as workload};
pub use crate::value::{condition as status, int_or_string as intstr, ip, quantity, resource_list as amount, selector};
pub use crate::wire::{schema, splice};

pub use crate::apps::controller_revision::ControllerRevision;
pub use crate::apps::daemonset::DaemonSet;
pub use crate::apps::deployment::Deployment;
pub use crate::apps::replicaset::ReplicaSet;
pub use crate::apps::statefulset::StatefulSet;
pub use crate::autoscaling::horizontal_pod_autoscaler::HorizontalPodAutoscaler;
pub use crate::batch::cronjob::CronJob;
pub use crate::batch::job::Job;
pub use crate::certificates::certificate_signing_request::CertificateSigningRequest;
pub use crate::certificates::cluster_trust_bundle::ClusterTrustBundle;
pub use crate::certificates::pod_certificate_request::PodCertificateRequest;
pub use crate::coordination::lease::Lease;
pub use crate::core::config_map::ConfigMap;
pub use crate::core::endpoints::Endpoints;
pub use crate::core::namespace::Namespace;
pub use crate::core::node::Node;
pub use crate::core::persistent_volume_claim::PersistentVolumeClaim;
pub use crate::core::pod::Pod;
pub use crate::core::pod::gated::GatedPod;
pub use crate::core::replicationcontroller::ReplicationController;
pub use crate::core::resource_quota::ResourceQuota;
pub use crate::core::secret::Secret;
pub use crate::core::service::Service;
pub use crate::core::service_account::ServiceAccount;
pub use crate::intern::{Interner, Str};
pub use crate::meta::{Meta, OwnerRef, Time, Uid};
pub use crate::networking::endpoint_slice::EndpointSlice;
pub use crate::networking::ip_address::IpAddress;
pub use crate::networking::service_cidr::ServiceCidr;
pub use crate::policy::pod_disruption_budget::PodDisruptionBudget;
pub use crate::rbac::cluster_role::ClusterRole;
pub use crate::resource::device_taint_rule::DeviceTaintRule;
pub use crate::resource::resource_slice::ResourceSlice;
pub use crate::scheduling::taint::{Taint, Toleration, Tolerations};

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
