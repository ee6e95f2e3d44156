//! One reconcile of a Service: read its request, then take one action after another until the load balancer is as
//! requested or a retry has to wait.
//!
//! Changes of Services, nodes and endpoints, retries and checks for drift all use the same key. So no two calls for one
//! Service ever run concurrently.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kinds::Service;
use kinds::meta::ObjectKey;
use providers::{
    CloudError, ErrorKind, LoadBalancerId, LoadBalancerSpec, LoadBalancers, NodeTarget, Progress, Targeting, Targets,
};
use runtime::events::EventType::{self, Normal, Warning};
use runtime::worker::{Outcome, ReconcileError};
use tokio::time::Instant;
use tracing::{info, warn};

use super::annotations;
use super::audit::Scope;
use super::cluster::{Cluster, Refusal, about};
use super::decide::{self, DesiredState};
use super::decide_action::{self, Action, Request, Wanted, next_action};
use super::load_balancer_state::{Announced, EnsuredLoadBalancer, LoadBalancerState, LoadBalancerStates, Pause};
use super::metrics::Hosts;
use super::readiness_gates;
use crate::cloud::retry::{self, LastReport};

pub(super) type SyncResult = Result<Outcome, ReconcileError>;

/// Maximum number of nodes that a message lists. Upstream: service controller, maxNodeNamesToLog.
const MAX_NODE_NAMES: usize = 20;

/// Reconciles the load balancers of Services.
pub struct LoadBalancerReconciler<S> {
    pub kubernetes: S,
    pub cloud: Arc<dyn LoadBalancers>,
    /// `--cluster-name`.
    pub cluster: String,
    /// Interval between two checks for drift, before jitter.
    pub resync: Duration,
    pub states: LoadBalancerStates,
    pub hosts: Hosts,
}

/// The Service of one reconcile.
pub(super) struct Subject<'a> {
    pub key: &'a ObjectKey,
    pub id: LoadBalancerId,
    pub service: &'a Service,
}

impl<S: Cluster> LoadBalancerReconciler<S> {
    /// Returns the scope of an audit.
    pub fn audit_scope(&self) -> Scope<'_, S> {
        Scope { kubernetes: &self.kubernetes, cloud: &*self.cloud, cluster: &self.cluster, states: &self.states }
    }

    /// Reports all Services with load balancers of this provider, before the first reconcile.
    pub fn report_existing(&self) {
        let features = self.cloud.features();
        for service in self.kubernetes.services() {
            let desired = decide::desired_state(&service, &features.classes, false);
            if desired == DesiredState::LoadBalancer
                && let Ok(spec) = decide::spec_without_ranges(&service, &self.cluster, &features.annotations)
            {
                self.cloud.existed(&spec);
            }
        }
    }

    /// Reconciles one Service.
    pub async fn sync(&self, key: &ObjectKey) -> SyncResult {
        let service = self.kubernetes.service(key);
        let mut state = self.states.get(key);
        let outcome = self.run(key, service.as_deref(), &mut state).await;
        self.states.put(key, state);
        outcome
    }

    async fn run(&self, key: &ObjectKey, service: Option<&Service>, state: &mut LoadBalancerState) -> SyncResult {
        let own = service.map(|service| decide::id(&service.meta, &self.cluster));
        if let Some(id) = decide_action::previous(state, own.as_ref())
            && let Some(outcome) = self.delete_without_finalizer(&id, None, state).await
        {
            return Ok(outcome);
        }
        let (Some(service), Some(id)) = (service, own) else {
            *state = LoadBalancerState::default();
            return Ok(Outcome::Done);
        };
        state.reset_for(&service.meta.uid);
        let subject = Subject { key, id, service };
        let request = self.request(&subject, state);
        match request.rejection() {
            Some(error) => self.reject(&subject, state, error),
            None if request.wanted().is_none_or(|wanted| wanted.targets.is_some()) => {
                state.last_rejection = LastReport::default();
            }
            None => {}
        }
        let outcome = loop {
            let action = next_action(service, &request, state, Instant::now());
            if let Some(outcome) = self.act(&subject, action, state).await? {
                break outcome;
            }
        };
        match request.with_endpoints() {
            Some((spec, targets)) => {
                let next_probe = readiness_gates::update(&self.kubernetes, &*self.cloud, spec, targets, state).await;
                Ok(readiness_gates::requeue_within(outcome, next_probe))
            }
            None => Ok(outcome),
        }
    }

    /// Executes one action. Returns `None` if another one follows.
    async fn act(
        &self,
        subject: &Subject<'_>,
        action: Action<'_>,
        state: &mut LoadBalancerState,
    ) -> Result<Option<Outcome>, ReconcileError> {
        let Subject { id, service, .. } = subject;
        Ok(Some(match action {
            Action::Forget => {
                *state = LoadBalancerState::default();
                Outcome::Done
            }
            Action::Wait(wait) => after(wait),
            Action::DeleteWithoutFinalizer => {
                self.delete_without_finalizer(id, Some(service), state).await.unwrap_or(Outcome::Done)
            }
            Action::CleanUp { clear_status } => self.clean_up(subject, state, clear_status).await?,
            Action::RejectUnwatched => {
                let message = "the requested load balancer needs endpoints as targets, and this process does not watch \
                               EndpointSlices: request nodes as targets";
                self.reject(subject, state, &CloudError::new(ErrorKind::Invalid, "ReadEndpoints", message));
                Outcome::Done
            }
            Action::Follow(wanted) => self.follow(subject, wanted, state).await,
            Action::UpdateWhileWaiting { wanted, targets, wait } => {
                after(self.update_while_waiting(wanted, targets, wait, state).await)
            }
            Action::Update { wanted, targets, from } => {
                return Ok(self.update(subject, (wanted, targets), from, state).await);
            }
            Action::Publish { next_check } => {
                self.publish_ensured(subject, state).await?;
                Outcome::RequeueAfter(next_check)
            }
            Action::Ensure { wanted, targets, announce, drift } => {
                self.ensure(subject, (wanted, targets), (announce, drift), state).await?
            }
        }))
    }

    /// Reads the request of the Service. First records the objects that the request depends on, so that their changes
    /// requeue the Service.
    fn request(&self, subject: &Subject<'_>, state: &mut LoadBalancerState) -> Request {
        let service = subject.service;
        match decide::desired_state(service, &self.cloud.features().classes, state.load_balancer.is_some()) {
            DesiredState::Nothing => return Request::Nothing,
            DesiredState::Cleanup => return Request::Removal,
            DesiredState::LoadBalancer => {}
        }
        let mut spec = match decide::spec(service, &self.cluster, &self.cloud.features().annotations) {
            Ok(spec) => spec,
            Err(error) => return self.invalid(subject, error, decide::spec_without_ranges, state),
        };
        self.complete(subject.key, &mut spec, &BTreeSet::new(), state);
        match self.cloud.targeting(&spec) {
            Err(error) => self.invalid(subject, error, decide::spec, state),
            Ok(Targeting::Elsewhere) => Request::Elsewhere,
            Ok(targeting) => {
                state.stop_following();
                self.set_targeting(subject.key, targeting, state);
                Request::Wanted(self.wanted(subject, Arc::new(spec), targeting, state))
            }
        }
    }

    /// Returns an invalid request, with the last valid request if it is known, else with the valid part of this
    /// request.
    fn invalid(
        &self,
        subject: &Subject<'_>,
        error: CloudError,
        read: fn(&Service, &str, &[String]) -> Result<LoadBalancerSpec, CloudError>,
        state: &mut LoadBalancerState,
    ) -> Request {
        let last = state.last_spec.clone().filter(|spec| spec.id == subject.id);
        let last = last.filter(|_| !state.is_deleting()).zip(state.last_targeting);
        if let Some((last, targeting)) = last {
            self.set_targeting(subject.key, targeting, state);
            let last = self.wanted(subject, last, targeting, state);
            return Request::Invalid { error, last: Some(last), follow: None };
        }
        let spec = read(subject.service, &self.cluster, &self.cloud.features().annotations).ok();
        let follow = spec.map(|spec| self.wanted_to_follow(subject, spec, state));
        Request::Invalid { error, last: None, follow }
    }

    /// Records the kind of targets. From then on, changes of such targets requeue the Service, even during a pause
    /// after a failed call.
    fn set_targeting(&self, key: &ObjectKey, targeting: Targeting, state: &mut LoadBalancerState) {
        if state.targeting != Some(targeting) {
            state.has_both_kinds |= state.targeting.is_some() && state.load_balancer.is_some();
            state.targeting = Some(targeting);
            self.states.put(key, state.clone());
        }
    }

    fn wanted(
        &self,
        subject: &Subject<'_>,
        spec: Arc<LoadBalancerSpec>,
        targeting: Targeting,
        state: &LoadBalancerState,
    ) -> Wanted {
        let mut targets = self.targets(subject, &spec, targeting);
        // Until a change of the kind of targets is complete, the load balancer may have endpoints.
        let is_changing = state.has_both_kinds || (state.load_balancer.is_some() && state.ensured.is_none());
        if let Some(targets) = targets.as_mut().filter(|_| is_changing && targeting == Targeting::Nodes) {
            targets.endpoints = self.kubernetes.endpoints(subject.service).unwrap_or_default();
        }
        Wanted { spec, targeting, targets, has_both_kinds: state.has_both_kinds }
    }

    /// Removes from a request the annotations that the provider writes. Adds the other Services to which the load
    /// balancer sends traffic: those that the request names, and `more`. Changes of these requeue this Service.
    pub(super) fn complete(
        &self,
        key: &ObjectKey,
        spec: &mut LoadBalancerSpec,
        more: &BTreeSet<String>,
        state: &mut LoadBalancerState,
    ) {
        let written = self.cloud.features().written_annotations;
        spec.annotations.retain(|name, _| !annotations::is_written(name, written));
        let named = |name: String| ObjectKey { namespace: key.namespace.clone(), name: name.into() };
        let others = self.cloud.others(spec).into_iter().chain(more.iter().cloned()).map(named).collect();
        if state.others != others {
            state.others = others;
            self.states.put(key, state.clone());
        }
        let found = state.others.iter().filter_map(|other| self.kubernetes.service(other));
        spec.others = found.map(|other| (other.meta.name.to_string(), decide::other(&other))).collect();
    }

    /// Returns the targets of the load balancer, or `None` if endpoints are needed and not watched.
    pub(super) fn targets(
        &self,
        subject: &Subject<'_>,
        spec: &LoadBalancerSpec,
        targeting: Targeting,
    ) -> Option<Targets> {
        let nodes = self.kubernetes.nodes();
        let incomplete = !self.kubernetes.decodes_all();
        if targeting != Targeting::Endpoints {
            return Some(Targets { nodes, incomplete, ..Targets::default() });
        }
        let endpoints = self.kubernetes.endpoints(subject.service)?;
        let of_other = |name: &String| {
            let key = ObjectKey { namespace: subject.key.namespace.clone(), name: name.as_str().into() };
            let endpoints = self.kubernetes.service(&key).and_then(|other| self.kubernetes.endpoints(&other));
            (name.clone(), endpoints.unwrap_or_default())
        };
        let others = spec.others.keys().map(of_other).collect();
        Some(Targets { nodes, endpoints, others, incomplete })
    }

    pub(super) fn record(
        &self,
        id: &LoadBalancerId,
        service: Option<&Service>,
        kind: EventType,
        reason: &'static str,
        text: &str,
    ) {
        self.kubernetes.record_event(&about(id, service), kind, reason, text.to_owned());
    }

    /// Records that the request cannot be fulfilled.
    fn reject(&self, subject: &Subject<'_>, state: &mut LoadBalancerState, error: &CloudError) {
        let message = format!("Error syncing load balancer: {}", retry::message(error));
        if state.last_rejection.update(&message, Instant::now()) {
            self.record(&subject.id, Some(subject.service), Warning, "SyncLoadBalancerFailed", &message);
            info!(service = %subject.id, %error, "rejected the request of a Service: it cannot be fulfilled");
        }
    }

    async fn set_targets(&self, wanted: &Wanted, targets: &Targets) -> Result<(), CloudError> {
        let begun = Instant::now();
        let result = self.cloud.set_targets(&wanted.spec, targets).await;
        self.hosts.record_update(begun.elapsed(), result.as_ref().err());
        result
    }

    /// Updates targets while the retry of a failed call waits. Returns the remaining pause, or a shorter delay if the
    /// update has to be repeated before the pause ends.
    async fn update_while_waiting(
        &self,
        wanted: &Wanted,
        targets: &Targets,
        wait: Option<Duration>,
        state: &mut LoadBalancerState,
    ) -> Option<Duration> {
        state.last_targets = Some(wanted.remembered(targets));
        let error = match self.set_targets(wanted, targets).await {
            Err(error) if !error.is_not_found() => error,
            _ => return wait,
        };
        warn!(service = %wanted.spec.id, %error, "updating targets failed while a retry waits");
        state.last_targets = None;
        let retry = retry::retry_after(error.kind, state.failures);
        wait.into_iter().chain(retry).min()
    }

    /// Updates the targets of a load balancer that is otherwise as requested. Returns `None` if another action follows.
    async fn update(
        &self,
        subject: &Subject<'_>,
        (wanted, targets): (&Wanted, &Targets),
        from: EnsuredLoadBalancer,
        state: &mut LoadBalancerState,
    ) -> Option<Outcome> {
        state.ensured = None;
        state.last_targets = Some(targets.clone());
        match self.set_targets(wanted, targets).await {
            Ok(()) => {
                let same_nodes = names(&from.targets).eq(names(targets));
                state.ensured = Some(EnsuredLoadBalancer { targets: targets.clone(), ..from });
                state.clear_failures();
                // There is no event for changed labels and addresses of nodes, or for changed pods: these change too
                // often.
                if wanted.targeting == Targeting::Nodes && !same_nodes {
                    self.announce_hosts(subject, targets);
                }
                None
            }
            // Another client deleted the load balancer; the next action creates it again.
            Err(error) if error.is_not_found() => None,
            Err(error) => Some(self.record_failed_update(subject, wanted, state, (&targets.nodes, &error))),
        }
    }

    fn announce_hosts(&self, subject: &Subject<'_>, targets: &Targets) {
        if targets.nodes.is_empty() {
            self.announce_no_nodes(subject);
        } else {
            let message = "Updated load balancer with new hosts";
            self.record(&subject.id, Some(subject.service), Normal, "UpdatedLoadBalancer", message);
        }
    }

    fn announce_no_nodes(&self, subject: &Subject<'_>) {
        let message = "There are no available nodes for LoadBalancer";
        self.record(&subject.id, Some(subject.service), Warning, "UnAvailableLoadBalancer", message);
    }

    fn record_failed_update(
        &self,
        subject: &Subject<'_>,
        wanted: &Wanted,
        state: &mut LoadBalancerState,
        (nodes, error): (&[NodeTarget], &CloudError),
    ) -> Outcome {
        let message = format!(
            "Error updating load balancer with new hosts {} [node names limited, total number of nodes: {}], error: {}",
            listed(nodes),
            nodes.len(),
            retry::message(error)
        );
        let request = Some(wanted.spec.clone());
        let event = ("UpdateLoadBalancerFailed", message);
        self.record_failed_call((&subject.id, Some(subject.service)), state, error, event, request)
    }

    /// Brings the load balancer to the requested state. Upstream: service controller, syncLoadBalancerIfNeeded.
    async fn ensure(
        &self,
        subject: &Subject<'_>,
        (wanted, targets): (&Wanted, &Targets),
        (announce, drift): (bool, bool),
        state: &mut LoadBalancerState,
    ) -> SyncResult {
        let Subject { key, id, service } = subject;
        let spec = &wanted.spec;
        if announce {
            state.announced = Some(Announced::Ensuring(spec.clone()));
            self.record(id, Some(service), Normal, "EnsuringLoadBalancer", "Ensuring load balancer");
        }
        if !self.ensure_finalizer(subject, state).await? {
            return Ok(Outcome::RequeueWithBackoff);
        }
        if wanted.targeting == Targeting::Nodes && targets.nodes.is_empty() && !drift {
            self.announce_no_nodes(subject);
        }
        state.load_balancer = Some(id.clone());
        state.last_spec = Some(spec.clone());
        state.last_targeting = Some(wanted.targeting);
        state.ensured = None;
        state.last_targets = Some(wanted.remembered(targets));
        // Stored before the call: even if the call does not return, an audit must not report its resources as leaked.
        self.states.put(key, state.clone());
        let ensured = match self.cloud.ensure(spec, targets).await {
            Ok(ensured) => ensured,
            Err(error) => {
                let message =
                    format!("Error syncing load balancer: failed to ensure load balancer: {}", retry::message(&error));
                let event = ("SyncLoadBalancerFailed", message);
                return Ok(self.record_failed_call((id, Some(service)), state, &error, event, Some(spec.clone())));
            }
        };
        state.clear_failures();
        for warning in ensured.warnings.iter().filter(|warning| !state.warnings.contains(warning)) {
            self.record(id, Some(service), Warning, "LoadBalancerWarning", warning);
        }
        state.warnings = ensured.warnings;
        state.ingress = Some(decide::ingress(&ensured.status));
        state.annotations = Some(ensured.annotations);
        match ensured.progress {
            Progress::After(delay) => {
                self.publish(subject, state).await?;
                Ok(Outcome::RequeueAfter(retry::requested_delay(delay)))
            }
            Progress::Settled => {
                let resync = decide::resync_after(self.resync, &spec.id.uid);
                let check = |delay| retry::requested_delay(decide::check_after(delay, &spec.id.uid)).min(resync);
                let next_check = ensured.check_after.map_or(resync, check);
                let due = Instant::now() + next_check;
                let targets = wanted.remembered(targets);
                state.ensured = Some(EnsuredLoadBalancer { spec: spec.clone(), targets, due });
                state.has_both_kinds = false;
                self.publish_ensured(subject, state).await?;
                Ok(Outcome::RequeueAfter(next_check))
            }
        }
    }

    /// Adds the finalizer if it is missing, so that the Service outlives its load balancer. Returns false if the
    /// Service changed or was deleted.
    async fn ensure_finalizer(
        &self,
        subject: &Subject<'_>,
        state: &mut LoadBalancerState,
    ) -> Result<bool, ReconcileError> {
        let service = subject.service;
        let in_cache = decide::has_finalizer(&service.meta);
        if in_cache && state.is_finalizer_confirmed {
            return Ok(true);
        }
        // The previous leader may have removed the finalizer after this cache was filled.
        if in_cache {
            match self.kubernetes.has_finalizer(service).await {
                Ok(true) => {
                    state.is_finalizer_confirmed = true;
                    return Ok(true);
                }
                Ok(false) | Err(Refusal::Deleted) => return Ok(false),
                Err(error) => return Err(self.record_failed_write(subject, state, "read the Service", &error)),
            }
        }
        match self.kubernetes.add_finalizer(service).await {
            Ok(()) => {
                state.is_finalizer_confirmed = true;
                if state.load_balancer.is_none() {
                    self.cloud.starts_empty(&subject.id);
                }
                Ok(true)
            }
            // A previous leader may have added the finalizer.
            Err(Refusal::Deleted | Refusal::Changed) => Ok(false),
            Err(error) => Err(self.record_failed_write(subject, state, "add load balancer cleanup finalizer", &error)),
        }
    }

    /// Publishes a load balancer that is as requested, then records the end of the operation that an event announced.
    /// If the write fails, its retry records the end.
    async fn publish_ensured(
        &self,
        subject: &Subject<'_>,
        state: &mut LoadBalancerState,
    ) -> Result<(), ReconcileError> {
        self.publish(subject, state).await?;
        if state.announced.take().is_some() {
            let message = "Ensured load balancer";
            self.record(&subject.id, Some(subject.service), Normal, "EnsuredLoadBalancer", message);
        }
        Ok(())
    }

    /// Writes the status and the provider's annotations if they differ.
    async fn publish(&self, subject: &Subject<'_>, state: &mut LoadBalancerState) -> Result<(), ReconcileError> {
        let service = subject.service;
        let ingress = decide_action::unpublished(service, state);
        let wanted = state.annotations.as_ref();
        let edits = wanted.map(|wanted| annotations::edits(service, wanted, self.cloud.features().written_annotations));
        let edits = edits.unwrap_or_default();
        let written = match (ingress, edits.is_empty()) {
            (None, true) => Ok(()),
            (ingress, _) => self.kubernetes.publish(service, ingress, &edits).await,
        };
        match written {
            Ok(()) => {
                self.cloud.published(&subject.id);
                Ok(())
            }
            Err(Refusal::Deleted) => Ok(()),
            Err(error) => Err(self.record_failed_write(subject, state, "update load balancer status", &error)),
        }
    }

    pub(super) fn record_failed_write(
        &self,
        subject: &Subject<'_>,
        state: &mut LoadBalancerState,
        what: &str,
        error: &Refusal,
    ) -> ReconcileError {
        let message = format!("Error syncing load balancer: failed to {what}: {error}");
        if state.last_report.update(&message, Instant::now()) {
            self.record(&subject.id, Some(subject.service), Warning, "SyncLoadBalancerFailed", &message);
        }
        ReconcileError::new(message)
    }

    /// Records a failed call, and sets the pause. Returns the outcome that waits for the end of the pause.
    pub(super) fn record_failed_call(
        &self,
        (id, service): (&LoadBalancerId, Option<&Service>),
        state: &mut LoadBalancerState,
        error: &CloudError,
        (reason, message): (&'static str, String),
        request: Option<Arc<LoadBalancerSpec>>,
    ) -> Outcome {
        let now = Instant::now();
        state.failures = state.failures.saturating_add(1);
        warn!(service = %id, %error, failures = state.failures, "cloud call failed");
        if state.last_report.update(&message, now) {
            self.record(id, service, Warning, reason, &message);
        }
        let delay = match (retry::retry_after(error.kind, state.failures), &request) {
            // A user cannot fix an invalid deletion: the error is a defect of the provider, and a later attempt may
            // succeed.
            (None, None) => Some(retry::MAX_WAIT),
            (delay, _) => delay,
        };
        let throttled = matches!(error.kind, ErrorKind::Throttled { .. });
        state.pause = Some(Pause { until: delay.map(|delay| now + delay), request, throttled });
        after(delay)
    }
}

/// Returns the outcome that requeues after a time, or only when something changes.
pub(super) fn after(wait: Option<Duration>) -> Outcome {
    wait.map_or(Outcome::Done, Outcome::RequeueAfter)
}

/// Returns the nodes of targets as name and provider ID.
fn names(targets: &Targets) -> impl Iterator<Item = (&str, Option<&str>)> {
    targets.nodes.iter().map(|node| (node.name.as_str(), node.provider_id.as_deref()))
}

/// Returns the names of nodes for a message, limited in number. Upstream: service controller, loggableNodeNames.
fn listed(nodes: &[NodeTarget]) -> String {
    let mut names: Vec<_> = nodes.iter().take(MAX_NODE_NAMES).map(|node| node.name.clone()).collect();
    if nodes.len() > MAX_NODE_NAMES {
        names.push(format!("<{} more>", nodes.len() - MAX_NODE_NAMES));
    }
    format!("[{}]", names.join(" "))
}
