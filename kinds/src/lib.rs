//! Lean records of Kubernetes objects, decoded straight from protobuf.
//!
//! A record contains only the fields that controllers read: a decoded pod takes about 300 bytes, the full typed object
//! 27 KB and more. Each kind has its own module. No module does IO or contains policy.
//!
//! The modules, from the bottom up; each imports only modules that precede it in this list:
//!
//! 1. [`wire`] reads and writes protobuf without code generated from a schema: fields that are not needed are skipped
//!    by their length, and a message is changed by splicing, so that a write keeps unknown fields. [`schema`]
//!    lists the field numbers of kinds; a test compares it with upstream's `generated.proto` files.
//! 2. [`intern`] shares equal strings, label sets, owner lists and raw templates between records.
//! 3. `value`: quantities, label selectors, IP addresses, times, conditions.
//! 4. `decode`: the context of decoders, and their errors. Then [`meta`]: metadata; [`Kind`]: the trait of all kinds;
//!    [`metadata_edit`]: metadata for a write; [`envelope`]: the messages around objects.
//! 5. [`template`] and `scheduling`: the parts that several workloads have in common.
//! 6. One folder per API group. `core` comes after most of them, because its kinds refer to others; `storage`, whose
//!    attachments contain the specs of volumes, is the last. Kinds are public under flat names, such as [`pod`] and
//!    [`Pod`].

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod admissionregistration;
mod apiserverinternal;
mod apps;
mod autoscaling;
mod batch;
mod certificates;
mod coordination;
mod core;
mod decode;
pub mod envelope;
pub mod intern;
mod kind;
pub mod meta;
pub mod metadata_edit;
mod networking;
mod policy;
mod rbac;
mod resource;
mod scheduling;
mod scheduling_api;
mod storage;
mod storagemigration;
pub mod template;
mod value;
pub mod wire;

pub use crate::admissionregistration::validating_admission_policy;
pub use crate::apiserverinternal::storage_version;
pub use crate::apps::{controller_revision, daemonset, deployment, replicaset, statefulset};
pub use crate::autoscaling::horizontal_pod_autoscaler;
pub use crate::batch::{cronjob, job};
pub use crate::certificates::{certificate_signing_request, cluster_trust_bundle, pod_certificate_request};
pub use crate::coordination::lease;
pub use crate::core::pod::gated as gated_pod;
pub use crate::core::{
    config_map, endpoints, namespace, namespace_deletion, node, node_cloud, node_volumes, persistent_volume,
    persistent_volume_claim, persistent_volume_claim_usage, pod, replicationcontroller, resource_quota, secret,
    service, service_account,
};
pub use crate::networking::{endpoint, endpoint_slice, ip_address, service_cidr};
pub use crate::policy::pod_disruption_budget;
pub use crate::rbac::cluster_role;
pub use crate::resource::{
    claim_edit, claim_state, device_allocation, device_taint_rule, pool_status_request, published_slice,
    resource_claim, resource_claim_template, resource_slice,
};
pub use crate::scheduling::{claim_entry, node_selector, placement, taint};
pub use crate::scheduling_api::{pod_group, pod_group_workload};
pub use crate::storage::{csi_driver, csi_node, storage_class, volume_attachment, volume_attributes_class};
pub use crate::storagemigration::storage_version_migration;
pub use crate::template::{pod_edit, raw_object};
pub use crate::value::{access_modes, condition, int_or_string, ip, names, quantity, resource_list, selector};
pub use crate::wire::{schema, splice, whole};

pub use crate::admissionregistration::validating_admission_policy::ValidatingAdmissionPolicy;
pub use crate::apiserverinternal::storage_version::StorageVersion;
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
pub use crate::core::persistent_volume::PersistentVolume;
pub use crate::core::persistent_volume_claim::PersistentVolumeClaim;
pub use crate::core::pod::Pod;
pub use crate::core::pod::gated::GatedPod;
pub use crate::core::replicationcontroller::ReplicationController;
pub use crate::core::resource_quota::ResourceQuota;
pub use crate::core::secret::Secret;
pub use crate::core::service::Service;
pub use crate::core::service_account::ServiceAccount;
pub use crate::decode::{Decode, DecodeError, Sections};
pub use crate::intern::{Interner, Str};
pub use crate::kind::{Form, Kind, Resource};
pub use crate::meta::{Meta, OwnerRef, Time, Uid};
pub use crate::networking::endpoint_slice::EndpointSlice;
pub use crate::networking::ip_address::IpAddress;
pub use crate::networking::service_cidr::ServiceCidr;
pub use crate::policy::pod_disruption_budget::PodDisruptionBudget;
pub use crate::rbac::cluster_role::ClusterRole;
pub use crate::resource::device_taint_rule::DeviceTaintRule;
pub use crate::resource::pool_status_request::ResourcePoolStatusRequest;
pub use crate::resource::resource_claim::ResourceClaim;
pub use crate::resource::resource_claim_template::ResourceClaimTemplate;
pub use crate::resource::resource_slice::ResourceSlice;
pub use crate::scheduling::taint::{Taint, Toleration, Tolerations};
pub use crate::scheduling_api::pod_group::PodGroup;
pub use crate::storage::csi_driver::CsiDriver;
pub use crate::storage::csi_node::CsiNode;
pub use crate::storage::storage_class::StorageClass;
pub use crate::storage::volume_attachment::VolumeAttachment;
pub use crate::storage::volume_attributes_class::VolumeAttributesClass;
pub use crate::storagemigration::storage_version_migration::StorageVersionMigration;
