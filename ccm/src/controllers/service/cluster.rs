//! What one reconcile needs of Kubernetes, so that it can be played without an API server.

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::service::Ingress;
use kinds::{GatedPod, Service, Uid};
use providers::{EndpointTarget, LoadBalancerId, NodeTarget, async_trait};
use runtime::events::{EventType, ObjectReference};

use super::pod_conditions::PodCondition;

/// Why a Service could not be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is not there any more, or another one by now: whatever replaced it is a change of its own.
    #[error("the Service is gone")]
    Gone,
    /// It may or may not have been done.
    #[error("{0}")]
    Failed(String),
}

/// Kubernetes, as one reconcile sees it.
#[async_trait]
pub trait Cluster: Send + Sync + 'static {
    /// The Service of this name.
    fn service(&self, key: &ObjectKey) -> Option<Arc<Service>>;

    /// All Services, as the store has them.
    fn services(&self) -> Vec<Arc<Service>>;

    /// The nodes that may take traffic: the same list, shared, until it changes.
    fn nodes(&self) -> Arc<[NodeTarget]>;

    /// A Service's endpoints, ordered by port name, address and port; `None` if endpoints are not watched.
    fn endpoints(&self, service: &Service) -> Option<Arc<[EndpointTarget]>>;

    /// Returns whether all Nodes, and all EndpointSlices if those are watched, could be decoded.
    fn decodes_all(&self) -> bool;

    /// A pod with its readiness gates; `None` too if pods are not watched.
    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<GatedPod>>;

    /// All pods of a namespace that have readiness gates; none if pods are not watched.
    fn gated_pods(&self, namespace: &str) -> Vec<Arc<GatedPod>>;

    /// Writes the condition that a pod waits for.
    async fn set_pod_condition(&self, pod: &GatedPod, condition: &PodCondition) -> Result<(), Refusal>;

    /// Says something about a Service.
    fn record_event(&self, about: &ObjectReference, kind: EventType, reason: &'static str, message: String);

    /// Whether the server itself, not only a store, has this Service held by our finalizer and not being deleted.
    async fn is_held(&self, service: &Service) -> Result<bool, Refusal>;

    /// The Services that the server itself has, of whatever type, as namespace and name with their uid.
    async fn live(&self) -> Result<Vec<(ObjectKey, Uid)>, Refusal>;

    /// Adds the finalizer.
    async fn hold(&self, service: &Service) -> Result<(), Refusal>;

    /// Writes the ways in into the Service's status.
    async fn publish(&self, service: &Service, ingress: &[Ingress]) -> Result<(), Refusal>;

    /// Removes the finalizer, and the ways in from the status, if asked.
    async fn release(&self, service: &Service, clear_status: bool) -> Result<(), Refusal>;
}

/// A Service as events name it, also when it is gone.
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
