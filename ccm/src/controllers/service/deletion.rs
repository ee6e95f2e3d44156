//! The steps of a reconcile that delete a Service's load balancer.

use std::collections::BTreeMap;
use std::sync::Arc;

use kinds::Service;
use providers::{Deletion, LoadBalancerId, LoadBalancerSpec, Observed, Targeting};
use runtime::events::EventType::Normal;
use runtime::worker::Outcome;
use tokio::time::Instant;
use tracing::warn;

use super::cluster::{Cluster, Refusal};
use super::load_balancer_state::{Announced, LoadBalancerState};
use super::reconcile::{LoadBalancerReconciler, Subject, SyncResult, after};
use super::{annotations, decide, readiness_gates};
use crate::cloud::retry;

/// Maximum number of attempts to release the pods that wait for a deleted load balancer.
const MAX_FAILED_RELEASES: u32 = 10;

impl<S: Cluster> LoadBalancerReconciler<S> {
    /// Deletes a Service's load balancer, and removes the finalizer once everything is deleted.
    pub(super) async fn clean_up(
        &self,
        subject: &Subject<'_>,
        state: &mut LoadBalancerState,
        clear_status: bool,
    ) -> SyncResult {
        let Subject { id, service, .. } = subject;
        if let Some(outcome) = self.delete(id, Some(service), state, "SyncLoadBalancerFailed").await {
            return Ok(outcome);
        }
        if let Some(outcome) = self.release_pods(id, state).await {
            return Ok(outcome);
        }
        let clear_status =
            clear_status && decide::outlives_release(&service.meta) && !decide::published(service).is_empty();
        let none = BTreeMap::new();
        let edits = annotations::edits(service, &none, self.cloud.features().written_annotations);
        match self.kubernetes.release(service, clear_status, &edits).await {
            Ok(()) if state.announced != Some(Announced::DeletingNothing) => {
                self.record(id, Some(service), Normal, "DeletedLoadBalancer", "Deleted load balancer");
            }
            Ok(()) | Err(Refusal::Deleted) => {}
            Err(error) => {
                return Err(self.record_failed_write(subject, state, "remove load balancer cleanup finalizer", &error));
            }
        }
        *state = LoadBalancerState::default();
        Ok(Outcome::Done)
    }

    /// Deletes the load balancer of a Service without the finalizer. Returns `None` once it is deleted.
    pub(super) async fn delete_without_finalizer(
        &self,
        id: &LoadBalancerId,
        service: Option<&Service>,
        state: &mut LoadBalancerState,
    ) -> Option<Outcome> {
        if let Some(outcome) = self.delete(id, service, state, "DeleteLoadBalancerFailed").await {
            return Some(outcome);
        }
        if let Some(outcome) = self.release_pods(id, state).await {
            return Some(outcome);
        }
        self.record(id, service, Normal, "DeletedLoadBalancer", "Deleted load balancer");
        *state = LoadBalancerState::default();
        None
    }

    /// Releases the pods that wait for a deleted load balancer. Returns the outcome while a retry is needed. After
    /// [`MAX_FAILED_RELEASES`] failures the Service is released although pods still wait.
    async fn release_pods(&self, id: &LoadBalancerId, state: &mut LoadBalancerState) -> Option<Outcome> {
        if !readiness_gates::release(&self.kubernetes, id, state.gates.as_ref()).await {
            state.failed_releases += 1;
            if state.failed_releases < MAX_FAILED_RELEASES {
                return Some(Outcome::RequeueWithBackoff);
            }
            warn!(service = %id, "cannot set the readiness conditions of pods that wait for the deleted load balancer; giving up");
        }
        None
    }

    /// Executes one step of a deletion. Returns `None` once everything is deleted.
    async fn delete(
        &self,
        id: &LoadBalancerId,
        service: Option<&Service>,
        state: &mut LoadBalancerState,
        reason: &'static str,
    ) -> Option<Outcome> {
        if let Some(wait) = state.remaining_pause(None, Instant::now()) {
            return Some(after(wait));
        }
        if !state.is_deleting() {
            let is_needless = state.load_balancer.is_none() && self.only_others_have_one(id, service).await;
            if is_needless {
                state.announced = Some(Announced::DeletingNothing);
            } else {
                state.announced = Some(Announced::Deleting);
                self.record(id, service, Normal, "DeletingLoadBalancer", "Deleting load balancer");
            }
        }
        state.last_spec = self.last_spec(id, service, state);
        state.ensured = None;
        state.load_balancer = Some(id.clone());
        if let Some(spec) = state.last_spec.as_ref().filter(|_| state.gates.is_none()) {
            // After a restart, the types of the conditions are read from the load balancer while it still exists. One
            // read is enough for all steps of a deletion.
            state.gates = readiness_gates::find(&self.kubernetes, &*self.cloud, spec).await;
        }
        match self.cloud.delete_last(id, state.last_spec.clone()).await {
            Ok(Deletion::Gone) => None,
            Ok(Deletion::InProgress(delay)) => {
                state.clear_failures();
                Some(Outcome::RequeueAfter(retry::requested_delay(delay)))
            }
            Err(error) => {
                let words = retry::message(&error);
                let message = match reason {
                    "DeleteLoadBalancerFailed" => format!("Error deleting load balancer: {words}"),
                    _ => format!("Error syncing load balancer: failed to delete load balancer: {words}"),
                };
                Some(self.record_failed_call((id, service), state, &error, (reason, message), None))
            }
        }
    }

    /// Returns true if another controller makes the Service's load balancer, and the cloud has none of this controller.
    /// After a takeover, such a Service can have the finalizer, because upstream's service controller adds it before it
    /// reads the annotations.
    async fn only_others_have_one(&self, id: &LoadBalancerId, service: Option<&Service>) -> bool {
        let annotations = self.cloud.features().annotations;
        let spec = service.and_then(|service| decide::spec(service, &self.cluster, &annotations).ok());
        let is_elsewhere = spec.is_some_and(|spec| self.cloud.targeting(&spec) == Ok(Targeting::Elsewhere));
        is_elsewhere && self.cloud.observe(id).await == Ok(Observed::Absent)
    }

    /// Returns the last known desired state of a load balancer: the Service's request, or else the last request in
    /// `state`.
    fn last_spec(
        &self,
        id: &LoadBalancerId,
        service: Option<&Service>,
        state: &LoadBalancerState,
    ) -> Option<Arc<LoadBalancerSpec>> {
        let own = service.filter(|service| service.meta.uid.to_string() == id.uid);
        let read = own.and_then(|own| decide::spec(own, &self.cluster, &self.cloud.features().annotations).ok());
        read.map(Arc::new).or(state.last_spec.clone().filter(|spec| spec.id == *id))
    }
}
