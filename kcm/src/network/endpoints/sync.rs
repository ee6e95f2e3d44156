//! One reconcile of a Service's Endpoints: gather, decide, write.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::endpoint::LAST_CHANGE_TRIGGER_TIME;
use kinds::endpoints::{Endpoints, OVER_CAPACITY};
use kinds::meta::ObjectKey;
use kinds::metadata_edit::{Annotations, NewMetadata};
use kinds::service::ServiceType;
use kinds::{Kind, Pod, Service};
use runtime::consistency::Consistency;
use runtime::debounce::StatusDebouncer;
use runtime::events::{EventType, ObjectReference, Recorder, about};
use runtime::queue::Queue;
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tracing::debug;

use super::decide::{DesiredEndpoints, TRUNCATED, Write, desired, write};
use super::initial_endpoints::InitialEndpoints;
use crate::network::service_endpoints::IDLE_REMOVAL_DELAY;
use crate::network::service_endpoints::pace::Pace;
use crate::network::service_endpoints::selectors::pods_of;
use crate::network::service_endpoints::subsets::TooLarge;
use crate::network::service_endpoints::trigger::{self, TriggerTimes};
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::{Attempt, Refusals};

/// The controller's state.
pub struct AllEndpoints {
    pub services: Arc<Store<Service>>,
    pub pods: Arc<Store<Pod>>,
    pub endpoints: Arc<Store<Endpoints>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Arc<Consistency>,
    pub queue: Arc<Queue<ObjectKey>>,
    pub triggers: TriggerTimes,
    pub debouncer: StatusDebouncer,
    pub initial_endpoints: Arc<InitialEndpoints>,
    pub gate: CreationGate,
    pub refusals: Refusals,
    pub pace: Pace,
}

impl Reconcile for AllEndpoints {
    type Key = ObjectKey;

    fn begin(&self) {
        let left = self.initial_endpoints.take().into_iter().filter(|key| self.services.get(key).is_none());
        left.for_each(|key| self.queue.add_background(key));
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl AllEndpoints {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(service) = self.services.get(key) else {
            self.triggers.forget(key);
            self.debouncer.forget(key);
            self.consistency.forget(key);
            self.refusals.forget(key);
            return self.clean_up(key).await;
        };
        if service.kind == ServiceType::ExternalName || service.selector.is_empty() {
            return Ok(Outcome::Done);
        }
        if !self.consistency.caught_up(key, &self.endpoints, self.queue.waker(key)) {
            return Ok(Outcome::WaitingForCache);
        }
        if self.pods.undecodable_in(&key.namespace) > 0 {
            return Err(ReconcileError::new(
                "not writing Endpoints while pods of the namespace cannot be decoded (see the log): their addresses \
                 would be removed",
            ));
        }
        let pods = pods_of(&service, &self.pods);
        let triggered = self.triggers.observe(key, &service, &pods);
        let desired = desired(&service, &pods).map_err(|TooLarge| ReconcileError {
            message: "the Service's pods differ in too many ports".to_owned(),
            terminal: true,
        })?;
        let current = self.endpoints.get(key);
        if let Some(left) = self.refused_before(key, &service, current.as_deref()) {
            return Ok(Outcome::RequeueAfter(left));
        }
        let triggered = match write(current.as_deref(), &desired) {
            Write::No => {
                self.debouncer.forget(key);
                self.triggers.settled(key);
                return Ok(Outcome::Done);
            }
            Write::Later => {
                self.triggers.settled(key);
                if let Some(later) = self.debouncer.wait(key, IDLE_REMOVAL_DELAY) {
                    return Ok(Outcome::RequeueAfter(later));
                }
                None
            }
            Write::Now => triggered,
        };
        self.debouncer.forget(key);
        let triggered = triggered.and_then(trigger::text);
        let written = self.pace.add(self.write(key, current.as_deref(), &desired, triggered.as_deref())).await;
        self.queue.cool_down(key, self.pace.cooldown(1));
        match &written {
            Err(error) if current.is_none() => self.refusals.failed(key, attempt(&service), error),
            Err(_) => {}
            Ok(_) => self.refusals.forget(key),
        }
        self.finish(key, current.as_deref(), written)
    }

    /// Returns the remaining backoff after a refused creation of Endpoints; `None` if they exist or may be created now.
    fn refused_before(&self, key: &ObjectKey, service: &Service, current: Option<&Endpoints>) -> Option<Duration> {
        let waiting = self.refusals.waiting(key, &attempt(service)).filter(|_| current.is_none())?;
        debug!(
            reason = waiting.message, left = ?waiting.left,
            "not creating Endpoints yet: the last attempt was refused"
        );
        Some(waiting.left)
    }

    /// Returns the outcome of a reconcile by the result of its write.
    fn finish(
        &self,
        key: &ObjectKey,
        current: Option<&Endpoints>,
        written: Result<Option<u64>, WriteError>,
    ) -> Result<Outcome, ReconcileError> {
        match written {
            Ok(None) => Ok(Outcome::Done),
            Ok(Some(version)) => {
                self.consistency.wrote(key, &self.endpoints, version);
                self.triggers.settled(key);
                Ok(Outcome::Done)
            }
            Err(error) if error.is_namespace_terminating() => {
                self.gate.close(&key.namespace);
                Ok(Outcome::Done)
            }
            Err(error @ WriteError::NotLeading) => Err(error.into()),
            // As in upstream, a conflict is recorded, too, although it only means that the decision was based on an
            // outdated cache.
            Err(error) => {
                self.record_failure(key, current, &error);
                Err(error.into())
            }
        }
    }

    /// Creates or updates the Endpoints. Returns their version, or `None` if nothing can be created in the namespace.
    async fn write(
        &self,
        key: &ObjectKey,
        current: Option<&Endpoints>,
        desired: &DesiredEndpoints,
        triggered: Option<&str>,
    ) -> Result<Option<u64>, WriteError> {
        let mark = desired.is_truncated.then_some(TRUNCATED);
        let edits = [(LAST_CHANGE_TRIGGER_TIME, triggered), (OVER_CAPACITY, mark)];
        let metadata = NewMetadata { labels: &desired.labels, annotations: Annotations::Edited(&edits), owner: None };
        let response = match current.and_then(|current| current.update(&metadata, &desired.subsets)) {
            Some(object) => {
                let object = object.map_err(|error| WriteError::Unreadable(error.into()))?;
                self.writer.replace(&Endpoints::RESOURCE, key, None, &object).await?
            }
            None if !self.gate.is_open(&key.namespace) => return Ok(None),
            None => {
                let object = Endpoints::create(&key.namespace, &key.name, &metadata, &desired.subsets);
                self.writer.create(&Endpoints::RESOURCE, &key.namespace, &object, false).await?
            }
        };
        Ok(Some(response.meta()?.version))
    }

    /// Records an event about a failed write of Endpoints, which may not exist.
    ///
    /// Differs from upstream: an event about Endpoints that do not exist has their namespace. Upstream leaves it out,
    /// so that the event is stored in the namespace `default`.
    fn record_failure(&self, key: &ObjectKey, current: Option<&Endpoints>, error: &WriteError) {
        let (about, reason, message) = match current {
            Some(current) => {
                (about(current), "FailedToUpdateEndpoint", format!("Failed to update endpoint {key}: {error}"))
            }
            None => (
                ObjectReference {
                    api_version: Endpoints::RESOURCE.api_version().into(),
                    kind: Endpoints::RESOURCE.kind.into(),
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                    ..ObjectReference::default()
                },
                "FailedToCreateEndpoint",
                format!("Failed to create endpoint for service {key}: {error}"),
            ),
        };
        self.recorder.event(&about, EventType::Warning, reason, message);
    }

    /// Deletes the Endpoints of a deleted Service. An uncached read confirms the deletion, because the watch of
    /// Services may lag, and Endpoints that a user wrote could not be restored.
    async fn clean_up(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(left) = self.endpoints.get(key).filter(|endpoints| !endpoints.meta.is_deleting()) else {
            return Ok(Outcome::Done);
        };
        match self.writer.get(&Service::RESOURCE, key).await {
            // The watch will deliver the Service.
            Ok(_) => return Ok(Outcome::Done),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
        match self.writer.delete(&Endpoints::RESOURCE, key, &left.meta.uid).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(Outcome::Done),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns an attempt to create the Endpoints of a Service. Services have no generation: each version is another input.
fn attempt(service: &Service) -> Attempt {
    Attempt::new(&service.meta, 1, 0).with_inputs(service.meta.version)
}
