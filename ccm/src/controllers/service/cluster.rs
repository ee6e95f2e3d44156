//! The part of Kubernetes that one reconcile needs, as a trait: tests implement it without an API server.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::service::Ingress;
use kinds::{GatedPod, Service, Uid};
use providers::{EndpointTarget, LoadBalancerId, NodeTarget, async_trait};
use runtime::events::{EventType, ObjectReference};

use super::annotations::AnnotationEdits;
use super::pod_conditions::PodCondition;

/// The error of a write or of an uncached read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The object was deleted, or replaced by one with the same name. The watch delivers that as a separate change.
    #[error("the object no longer exists")]
    Deleted,
    /// The object was changed after it was cached. The watch delivers that change.
    #[error("the object was changed")]
    Changed,
    /// The request failed. The API server may have applied a write nevertheless.
    #[error("{0}")]
    Failed(String),
}

/// Access of one reconcile to Kubernetes.
#[async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// Returns the cached Service with this name.
    fn service(&self, key: &ObjectKey) -> Option<Arc<Service>>;

    /// Returns all cached Services.
    fn services(&self) -> Vec<Arc<Service>>;

    /// Returns the nodes that may take traffic. All calls share one list, which is replaced after the nodes have
    /// changed.
    fn nodes(&self) -> Arc<[NodeTarget]>;

    /// Returns a Service's endpoints, ordered by port name, address and port; `None` if endpoints are not watched.
    fn endpoints(&self, service: &Service) -> Option<Arc<[EndpointTarget]>>;

    /// Returns true if all Nodes, and all EndpointSlices if those are watched, could be decoded.
    fn decodes_all(&self) -> bool;

    /// Returns a pod with its readiness gates; `None` if it does not exist, if pods are not watched, or while the cache
    /// does not contain this process's last write to it.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<GatedPod>>;

    /// Returns all pods of a namespace that have readiness gates; none if pods are not watched.
    fn gated_pods(&self, namespace: &str) -> Vec<Arc<GatedPod>>;

    /// Writes the condition that a pod waits for.
    async fn set_pod_condition(&self, pod: &GatedPod, condition: &PodCondition) -> Result<(), Refusal>;

    /// Records an event about a Service.
    fn record_event(&self, about: &ObjectReference, kind: EventType, reason: &'static str, message: String);

    /// Returns true if the Service has the finalizer and is not being deleted. This is an uncached read.
    async fn has_finalizer(&self, service: &Service) -> Result<bool, Refusal>;

    /// Returns the keys and UIDs of all Services, of every type. This is an uncached read.
    async fn list_uncached(&self) -> Result<Vec<(ObjectKey, Uid)>, Refusal>;

    /// Adds the finalizer, unless the Service was changed after it was cached.
    async fn add_finalizer(&self, service: &Service) -> Result<(), Refusal>;

    /// Writes the load balancer's addresses, if given, into the Service's status, and the provider's annotations.
    async fn publish(
        &self,
        service: &Service,
        ingress: Option<&[Ingress]>,
        annotations: &AnnotationEdits,
    ) -> Result<(), Refusal>;

    /// Removes the finalizer and the provider's annotations. With `clear_status` it also removes the addresses from the
    /// status.
    async fn release(
        &self,
        service: &Service,
        clear_status: bool,
        annotations: &AnnotationEdits,
    ) -> Result<(), Refusal>;
}

/// Returns the reference that events about a Service use. `service` is `None` after it was deleted.
pub fn about(id: &LoadBalancerId, service: Option<&Service>) -> ObjectReference {
    ObjectReference {
        api_version: "v1".into(),
        kind: "Service".into(),
        namespace: id.namespace.as_str().into(),
        name: id.name.as_str().into(),
        uid: id.uid.as_str().into(),
        resource_version: service.map(|service| service.meta.version.to_string()).unwrap_or_default().into(),
    }
}
