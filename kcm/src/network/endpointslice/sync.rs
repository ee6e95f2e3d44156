//! One reconcile of a Service's slices: gather, decide, write, record events.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::endpoint::LAST_CHANGE_TRIGGER_TIME;
use kinds::endpoint_slice::Endpoint;
use kinds::intern::Labels;
use kinds::meta::ObjectKey;
use kinds::metadata_edit::{Annotations, NewMetadata};
use kinds::node::ZONE;
use kinds::service::ServiceType;
use kinds::{Kind, Node, Pod, Service, Str};
use runtime::debounce::StatusDebouncer;
use runtime::events::{EventType, Recorder, about};
use runtime::former_owners::FormerOwners;
use runtime::lock::lock;
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::WriteError;

use super::decide::{self, decide};
use super::decision::{Decision, EventText, View};
use super::desired::{Members, Place, members};
use super::metrics::Metrics;
use super::topology::Topology;
use crate::network::service_endpoints::IDLE_REMOVAL_DELAY;
use crate::network::service_endpoints::selectors::pods_of;
use crate::network::service_endpoints::slice_writes::{
    Plan, SliceMetadata, SliceWrites, WriteCounts, WriteFailure, prefix,
};
use crate::network::service_endpoints::trigger::{self, TriggerTimes};
use crate::pods::refusals::Attempt;

/// The controller's state.
pub struct EndpointSlices {
    pub services: Arc<Store<Service>>,
    pub pods: Arc<Store<Pod>>,
    pub nodes: Arc<Store<Node>>,
    pub writes: SliceWrites,
    pub recorder: Recorder,
    pub triggers: TriggerTimes,
    pub topology: Arc<Topology>,
    pub debouncer: StatusDebouncer,
    pub metrics: Arc<Metrics>,
    /// Maximum number of endpoints in a slice.
    pub max_endpoints: usize,
    /// Services with pods that are left out because their node is missing.
    pub stranded: Arc<Mutex<HashSet<ObjectKey>>>,
    /// Services from before this leadership term whose slices were compared with the API server's.
    pub compared: Mutex<HashSet<ObjectKey>>,
    /// The Services from before this leadership term.
    pub former: FormerOwners,
}

impl Reconcile for EndpointSlices {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async { self.metrics.synced(self.sync(key).await) }.boxed()
    }
}

impl EndpointSlices {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(service) = self.services.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        if service.kind == ServiceType::ExternalName || service.selector.is_empty() {
            // Changes of nodes no longer requeue the Service. The trigger times remain, as in upstream.
            self.topology.set(key, Default::default());
            lock(&self.stranded).remove(key);
            return Ok(Outcome::Done);
        }
        if !self.writes.caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        if self.writes.consistency.take_lost(key) && !self.writes.compare_with_server(key).await? {
            return Ok(Outcome::WaitingForCache);
        }
        self.sync_selected(key, &service).await
    }

    /// Reconciles the slices of a Service that selects pods.
    async fn sync_selected(&self, key: &ObjectKey, service: &Service) -> Result<Outcome, ReconcileError> {
        let pods = pods_of(service, &self.pods);
        let members = members(service, &pods, |node| self.place(node));
        let is_undecodable = |node: &Str| self.nodes.is_undecodable(&ObjectKey::new("", node.clone()));
        if let Some((pod, node)) = members.stranded.iter().find(|(_, node)| is_undecodable(node)) {
            return Err(ReconcileError::new(format!("the node {node} of pod {pod} cannot be decoded (see the log)")));
        }
        let triggered = self.triggers.observe(key, service, &pods);
        let labels = decide::labels(service);
        let mut decision = self.decide(key, service, &members, &labels);
        let mut plan = std::mem::take(&mut decision.now);
        let triggered = triggered.filter(|_| !plan.is_empty());
        let waits = if decision.later.is_empty() { None } else { self.debouncer.wait(key, IDLE_REMOVAL_DELAY) };
        if waits.is_none() {
            self.debouncer.forget(key);
            plan.append(std::mem::take(&mut decision.later));
        }
        if service.meta.is_deleting() {
            plan.create.clear();
        }
        if !plan.create.is_empty()
            && let Some(outcome) = self.compare(key, service).await?
        {
            return Ok(outcome);
        }
        // A delayed change is counted when it is written.
        let is_counted = waits.is_none() || !plan.is_empty();
        if is_counted {
            self.metrics.decided(key, service, &decision);
        }
        let attempt = self.writes.attempt(key, &service.meta, &plan).with_inputs(service.meta.version);
        let refused = self.writes.refused_before(key, &plan, &attempt);
        if refused.is_some() {
            plan.keep_updates();
        } else {
            self.topology.set(key, std::mem::take(&mut decision.allocated));
            self.record_events(service, decision.events);
        }
        let triggered = triggered.and_then(trigger::text);
        let (counts, written) = self.write(key, service, &labels, triggered.as_deref(), &plan, attempt).await;
        self.metrics.wrote(&counts);
        if let Err(failed) = written {
            return Err(self.not_written(key, service, &members, failed));
        }
        if let Some(left) = refused {
            return Ok(Outcome::RequeueAfter(waits.map_or(left, |waits| waits.min(left))));
        }
        if is_counted {
            self.metrics.completed(service, &plan, &counts);
        }
        self.triggers.settled(key);
        self.report_stranded_pods(key, service, &members)?;
        Ok(waits.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    fn record_events(&self, service: &Service, events: Vec<EventText>) {
        for (kind, reason, message) in events {
            self.recorder.event(&about(service), kind, reason, message);
        }
    }

    /// Returns the error of a reconcile whose write failed. Records an event if this process still leads: as in
    /// upstream, also for a conflict or a slice that no longer exists.
    fn not_written(
        &self,
        key: &ObjectKey,
        service: &Service,
        members: &Members,
        failed: WriteFailure,
    ) -> ReconcileError {
        match failed {
            WriteFailure { error: error @ WriteError::NotLeading, .. } => error.into(),
            WriteFailure { error, what, .. } => {
                let mut messages = stranded_messages(key, members);
                messages.push(format!("failed to {what} for Service {key}: {error}"));
                self.failed(key, service, messages)
            }
        }
    }

    fn forget(&self, key: &ObjectKey) {
        self.triggers.forget(key);
        self.topology.set(key, Default::default());
        self.debouncer.forget(key);
        self.metrics.forget(key);
        self.writes.consistency.forget(key);
        self.writes.refusals.forget(key);
        self.compared().remove(key);
        lock(&self.stranded).remove(key);
    }

    /// Returns the location of a node. A pod that is not bound counts as one whose node is missing, as in upstream.
    fn place(&self, node: &Str) -> Place {
        match self.nodes.get(&ObjectKey::new("", node.clone())) {
            Some(node) => {
                let zone = node.meta.labels.iter().find(|(key, _)| &**key == ZONE).map(|(_, zone)| zone.clone());
                Place::Known(zone.filter(|zone| !zone.is_empty()))
            }
            None => Place::Missing,
        }
    }

    fn decide(&self, key: &ObjectKey, service: &Service, members: &Members, labels: &Labels) -> Decision {
        // The pod of an endpoint that seems surplus may be one that cannot be decoded.
        let unreadable = self.pods.undecodable_in(&key.namespace) > 0;
        let is_readable = |endpoint: &Endpoint| {
            let target = endpoint.target.as_ref();
            target.is_none_or(|t| self.pods.get(&ObjectKey::new(t.namespace().clone(), t.name().clone())).is_some())
        };
        decide(&View {
            service,
            members,
            existing: &self.writes.existing(key),
            labels,
            max_endpoints: self.max_endpoints,
            may_be_removed: &|endpoint| !unreadable || is_readable(endpoint),
            shares: self.topology.shares().filter(|_| service.wants_topology_hints()).as_ref(),
            was_allocated: self.topology.is_allocated(key),
        })
    }

    /// Compares the slices with the API server's once, before the first creation for a Service that is older than this
    /// leadership term. Then the reconcile ends, because its decision is older than the comparison.
    async fn compare(&self, key: &ObjectKey, service: &Service) -> Result<Option<Outcome>, ReconcileError> {
        if !self.former.contains(&service.meta) || !self.compared().insert(key.clone()) {
            return Ok(None);
        }
        let compared = async {
            self.former.begin(&self.services, &self.writes.writer).await?;
            self.writes.compare_with_server(key).await
        };
        let compared = compared.await;
        if compared.is_err() {
            self.compared().remove(key);
        }
        Ok(Some(if compared? { Outcome::RequeueAfter(Duration::ZERO) } else { Outcome::WaitingForCache }))
    }

    async fn write(
        &self,
        key: &ObjectKey,
        service: &Service,
        labels: &Labels,
        triggered: Option<&str>,
        plan: &Plan,
        attempt: Attempt,
    ) -> (WriteCounts, Result<(), WriteFailure>) {
        let edits = [(LAST_CHANGE_TRIGGER_TIME, triggered)];
        let owner = service.controller_ref();
        let updated = NewMetadata { labels, annotations: Annotations::Edited(&edits), owner: None };
        let metadata =
            SliceMetadata { prefix: &prefix(&key.name), new: NewMetadata { owner: Some(&owner), ..updated }, updated };
        self.writes.write(key, &metadata, plan, attempt).await
    }

    /// Remembers a Service while pods are left out because their node is missing. For such pods, records an event and
    /// returns an error.
    fn report_stranded_pods(
        &self,
        key: &ObjectKey,
        service: &Service,
        members: &Members,
    ) -> Result<(), ReconcileError> {
        if members.stranded.is_empty() {
            lock(&self.stranded).remove(key);
            return Ok(());
        }
        lock(&self.stranded).insert(key.clone());
        Err(self.failed(key, service, stranded_messages(key, members)))
    }

    fn failed(&self, key: &ObjectKey, service: &Service, mut messages: Vec<String>) -> ReconcileError {
        let what = if messages.len() == 1 { messages.remove(0) } else { format!("[{}]", messages.join(", ")) };
        let message = format!("Error updating Endpoint Slices for Service {key}: {what}");
        self.recorder.event(&about(service), EventType::Warning, "FailedToUpdateEndpointSlices", message);
        ReconcileError::new(what)
    }

    fn compared(&self) -> MutexGuard<'_, HashSet<ObjectKey>> {
        lock(&self.compared)
    }
}

/// Returns a message for each pod that is left out because its node is missing.
fn stranded_messages(key: &ObjectKey, members: &Members) -> Vec<String> {
    let each = |(pod, node): &(Str, Str)| format!("skipping Pod {pod} for Service {key}: Node {node} Not Found");
    let mut messages: Vec<String> = members.stranded.iter().map(each).collect();
    messages.sort_unstable();
    messages
}
