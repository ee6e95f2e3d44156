//! The [`Cluster`] of the running controller: reads from the caches unless a method requires an uncached read, and
//! writes as patches of the status subresource.

use std::sync::{Arc, Mutex};

use kinds::meta::ObjectKey;
use kinds::service::Ingress;
use kinds::{EndpointSlice, GatedPod, Kind, Node, Service, Uid};
use providers::{EndpointTarget, NodeTarget, PodRef, async_trait};
use runtime::consistency::Consistency;
use runtime::events::{EventType, ObjectReference, Recorder};
use runtime::lock::lock;
use runtime::store::{Store, by_namespace, index_key};
use runtime::wake::Wake;
use runtime::write::{ObjectResponse, WriteError, Writer};
use serde_json::{Value, json};

use super::annotations::AnnotationEdits;
use super::cluster::{Cluster, Refusal};
use super::decide::{self, FINALIZER};
use super::pod_conditions::{self, PodCondition};
use super::targets;
use crate::context::Clock;

/// The API server, through caches and a writer.
pub struct Kubernetes {
    pub services: Arc<Store<Service>>,
    pub nodes: Arc<Store<Node>>,
    /// EndpointSlices, if the provider may have endpoints as targets.
    pub slices: Option<Arc<Store<EndpointSlice>>>,
    /// Pods and the prefix of their readiness gates, if the controller sets the conditions of these gates.
    pub pods: Option<(Arc<Store<GatedPod>>, &'static str)>,
    /// Pod conditions written by this process that the cache may not contain yet.
    pub pod_consistency: Consistency,
    pub clock: Clock,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Consistency,
    /// The nodes that may take traffic, as last gathered.
    pub gathered: Mutex<Option<Arc<[NodeTarget]>>>,
}

impl Kubernetes {
    /// Gathers the nodes again. Returns true if the list changed.
    pub fn gather_nodes(&self) -> bool {
        let nodes = self.nodes.by_index(&by_namespace(), index_key(""));
        let list = targets::nodes(&nodes);
        let mut gathered = lock(&self.gathered);
        let changed = gathered.as_deref() != Some(&*list);
        if changed {
            *gathered = Some(list.into());
        }
        changed
    }

    /// Returns true if the cache contains this process's writes to a Service. If not, `wake` runs once it does.
    pub fn caught_up(&self, key: &ObjectKey, wake: Wake) -> bool {
        self.consistency.caught_up(key, &self.services, wake)
    }

    /// Removes the record of this process's writes to a Service that no longer exists.
    pub fn forget_if_deleted(&self, key: &ObjectKey) {
        if self.services.get(key).is_none() {
            self.consistency.forget(key);
        }
    }

    async fn patch(&self, service: &Service, mut patch: Value) -> Result<(), Refusal> {
        let key = service.meta.key();
        patch["metadata"]["uid"] = json!(service.meta.uid.to_string());
        let written = self.writer.patch_status(&Service::RESOURCE, &key, &patch).await;
        match written.and_then(|response: ObjectResponse| Ok(response.meta()?)) {
            Ok(meta) => {
                self.consistency.wrote(&key, &self.services, meta.version);
                Ok(())
            }
            Err(error) => Err(refusal(&error)),
        }
    }
}

fn refusal(error: &WriteError) -> Refusal {
    match error {
        _ if error.is_object_deleted() => Refusal::Deleted,
        _ if error.is_conflict() => Refusal::Changed,
        _ => Refusal::Failed(error.to_string()),
    }
}

#[async_trait]
impl Cluster for Kubernetes {
    fn service(&self, key: &ObjectKey) -> Option<Arc<Service>> {
        self.services.get(key)
    }

    fn services(&self) -> Vec<Arc<Service>> {
        self.services.all()
    }

    fn nodes(&self) -> Arc<[NodeTarget]> {
        let gathered = lock(&self.gathered).clone();
        gathered.unwrap_or_else(|| {
            self.gather_nodes();
            lock(&self.gathered).clone().unwrap_or_default()
        })
    }

    fn decodes_all(&self) -> bool {
        self.nodes.undecodable() == 0 && self.slices.as_ref().is_none_or(|slices| slices.undecodable() == 0)
    }

    fn endpoints(&self, service: &Service) -> Option<Arc<[EndpointTarget]>> {
        let slices = self.slices.as_ref()?;
        let found = slices.by_index(&targets::BY_SERVICE, targets::slices_of(&service.meta));
        let mut endpoints = targets::endpoints(&found);
        targets::add_provider_ids(&mut endpoints, |name| self.nodes.get(&ObjectKey::new("", name)));
        if let Some((pods, prefix)) = &self.pods {
            let pod = |pod: &PodRef| pods.get(&ObjectKey::new(pod.namespace.as_str(), pod.name.as_str()));
            pod_conditions::admit_waiting(&mut endpoints, pod, prefix);
        }
        Some(endpoints.into())
    }

    fn pod(&self, namespace: &str, name: &str) -> Option<Arc<GatedPod>> {
        let (pods, _) = self.pods.as_ref()?;
        let key = ObjectKey::new(namespace, name);
        // No wake needed: this process's write arrives as a change of the pod, which requeues the Service.
        let caught_up = self.pod_consistency.caught_up(&key, pods, Wake::none());
        let pod = pods.get(&key);
        if pod.is_none() {
            self.pod_consistency.forget(&key);
        }
        pod.filter(|_| caught_up)
    }

    fn gated_pods(&self, namespace: &str) -> Vec<Arc<GatedPod>> {
        let Some((pods, _)) = &self.pods else { return Vec::new() };
        let mut all = pods.by_index(&by_namespace(), index_key(namespace));
        all.retain(|pod| !pod.gates.is_empty());
        all
    }

    async fn set_pod_condition(&self, pod: &GatedPod, condition: &PodCondition) -> Result<(), Refusal> {
        let Some((pods, _)) = &self.pods else { return Ok(()) };
        let key = pod.meta.key();
        let patch = condition.patch(&pod.meta.uid, (self.clock)());
        let written = self.writer.patch_status(&GatedPod::RESOURCE, &key, &patch).await;
        match written.and_then(|response: ObjectResponse| Ok(response.meta()?)) {
            Ok(meta) => {
                self.pod_consistency.wrote(&key, pods, meta.version);
                Ok(())
            }
            Err(error) => Err(refusal(&error)),
        }
    }

    fn record_event(&self, about: &ObjectReference, kind: EventType, reason: &'static str, message: String) {
        self.recorder.event(about, kind, reason, message);
    }

    async fn has_finalizer(&self, service: &Service) -> Result<bool, Refusal> {
        let read = self.writer.get_meta(&Service::RESOURCE, &service.meta.key()).await;
        let meta = read.map_err(|error| refusal(&error))?;
        if meta.uid != service.meta.uid {
            return Err(Refusal::Deleted);
        }
        Ok(decide::has_finalizer(&meta) && !meta.is_deleting())
    }

    async fn list_uncached(&self) -> Result<Vec<(ObjectKey, Uid)>, Refusal> {
        let all = self.writer.list_meta(&Service::RESOURCE, "", "").await.map_err(|error| refusal(&error))?;
        Ok(all.into_iter().map(|meta| (meta.key(), meta.uid)).collect())
    }

    async fn add_finalizer(&self, service: &Service) -> Result<(), Refusal> {
        // With the version as a precondition, success means that no previous leader has added the finalizer.
        let version = service.meta.version.to_string();
        self.patch(service, json!({ "metadata": { "finalizers": [FINALIZER], "resourceVersion": version } })).await
    }

    async fn publish(
        &self,
        service: &Service,
        ingress: Option<&[Ingress]>,
        annotations: &AnnotationEdits,
    ) -> Result<(), Refusal> {
        let mut patch = json!({ "metadata": {} });
        if let Some(ingress) = ingress {
            patch["status"] = json!({ "loadBalancer": decide::ingress_patch(ingress) });
        }
        if !annotations.is_empty() {
            patch["metadata"]["annotations"] = json!(annotations);
        }
        self.patch(service, patch).await
    }

    async fn release(
        &self,
        service: &Service,
        clear_status: bool,
        annotations: &AnnotationEdits,
    ) -> Result<(), Refusal> {
        let mut patch = json!({ "metadata": { "$deleteFromPrimitiveList/finalizers": [FINALIZER] } });
        if !annotations.is_empty() {
            patch["metadata"]["annotations"] = json!(annotations);
        }
        if clear_status {
            patch["status"] = json!({ "loadBalancer": decide::ingress_patch(&[]) });
        }
        self.patch(service, patch).await
    }
}
