//! One reconcile of an autoscaler: read the scale, measure, decide, change the scale, write the status.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::horizontal_pod_autoscaler::MetricStatus;
use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use kinds::{HorizontalPodAutoscaler, Interner, Kind, Pod, Resource, Uid};
use runtime::events::{EventType, Recorder, about};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::store::{Cached, Store};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{Scale, WriteError};
use tokio::time::Instant;
use tracing::{info, warn};

use super::counts::{Action, Counts, Fault};
use super::decide::{self, ABLE_TO_SCALE, CombinedProposal, Draft, Failure, Proposal, SCALING_ACTIVE, ScaleSource};
use super::measure::{Measuring, Subject};
use super::overlap::{self, Overlaps};
use super::pace::Memory;
use crate::context::Clock;

/// Maximum number of attempts to change a scale, if conflicts occur. Upstream: client-go/util/retry, DefaultRetry.
const TRIES: usize = 5;

/// The delay of the next decision after another client changed the target.
const CONFLICT_DELAY: Duration = Duration::from_millis(100);

/// Settings from the command line.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Interval between syncs of an autoscaler.
    pub period: Duration,
    /// Default stabilization window of scaling down: the age up to which recommendations count.
    pub window: Duration,
    /// Default tolerance: the relative deviation of a metric from its target value up to which the workload is not
    /// scaled.
    pub tolerance: f64,
}

/// The state of one autoscaler, with the uid of the object that it belongs to.
pub struct OwnedMemory {
    owner: Uid,
    memory: Arc<Mutex<Memory>>,
}

/// The controller's state.
pub struct Autoscalers {
    pub autoscalers: Arc<Store<HorizontalPodAutoscaler>>,
    pub pods: Arc<Store<Pod>>,
    pub measuring: Measuring,
    pub overlaps: Overlaps,
    pub memories: Mutex<HashMap<ObjectKey, OwnedMemory>>,
    /// The last read scale of each autoscaler's target. It is read again once the target has changed.
    pub scales: Mutex<HashMap<ObjectKey, Arc<Scale>>>,
    pub recorder: Recorder,
    pub queue: Arc<Queue<ObjectKey>>,
    pub counts: Arc<Counts>,
    pub clock: Clock,
    pub settings: Settings,
    /// Start of the process; times in memories are relative to it.
    pub start: Instant,
    pub interner: Interner,
}

/// The failure of a sync.
struct SyncError {
    message: String,
    fault: Fault,
}

impl SyncError {
    fn new(message: String) -> Self {
        Self { message, fault: Fault::Internal }
    }
}

/// The number of pods that the target should have.
struct Recommendation {
    desired: i32,
    reason: String,
    metrics: Vec<MetricStatus>,
    /// The failure of a metric that did not prevent the recommendation.
    problem: Option<SyncError>,
}

/// The result of a sync.
struct SyncResult {
    action: Action,
    problem: Option<SyncError>,
    outcome: Outcome,
}

/// The result of a change of the scale.
enum RescaleResult {
    Done,
    /// Another client scaled or replaced the target, or changed its selector, at the same time.
    Conflict,
    Failed(WriteError),
}

impl Reconcile for Autoscalers {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Autoscalers {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        // Waits until the cache contains this process's last write of the autoscaler.
        let autoscaler = match self.autoscalers.read_settled(key, self.queue.waker(key)) {
            Cached::Current(autoscaler) => autoscaler,
            Cached::Absent => {
                self.forget(key);
                return Ok(Outcome::Done);
            }
            Cached::Lagging => {
                self.counts.stale();
                return Ok(Outcome::WaitingForCache);
            }
        };
        let began = Instant::now();
        let ended = self.scale(key, autoscaler).await;
        let fault = ended.problem.as_ref().map_or(Fault::None, |problem| problem.fault);
        self.counts.reconciled(ended.action, fault, began.elapsed());
        match ended.problem {
            Some(problem) => Err(ReconcileError::new(problem.message)),
            None => Ok(ended.outcome),
        }
    }

    async fn scale(&self, key: &ObjectKey, autoscaler: Arc<HorizontalPodAutoscaler>) -> SyncResult {
        let mut draft = Draft::of(&autoscaler, (self.clock)());
        match self.adjust(key, autoscaler, &mut draft).await {
            Ok(ended) => ended,
            Err(problem) => SyncResult { action: Action::None, problem: Some(problem), outcome: Outcome::Done },
        }
    }

    /// Decides on the number of pods, changes the scale and writes the status. A failure that ends the reconcile early
    /// is returned as an error, after an attempt to write the status.
    async fn adjust(
        &self,
        key: &ObjectKey,
        mut autoscaler: Arc<HorizontalPodAutoscaler>,
        draft: &mut Draft,
    ) -> Result<SyncResult, SyncError> {
        let gates = self.measuring.gates;
        let (resource, scale) = self.read_scale(key, &autoscaler, draft).await?;
        let current = scale.replicas;
        let memory = self.memory(key, &autoscaler.meta.uid);
        lock(&memory).begin(current, self.start.elapsed());
        decide::clear_scaled_to_zero(&autoscaler, current, draft, gates);

        let recommendation = self.recommend(key, &autoscaler, &scale, &memory, draft).await?;
        let Recommendation { desired, reason, metrics, problem } = recommendation;
        if desired != current {
            let scales_to_zero = decide::sets_scaled_to_zero(&autoscaler, current, desired, gates);
            if scales_to_zero {
                autoscaler = self.write_scaled_to_zero(key, autoscaler, draft).await?;
            }
            // The cache may not contain the change yet: the old scale would count as current.
            lock(&self.scales).remove(key);
            match self.rescale(&resource, &autoscaler, scale, desired).await {
                RescaleResult::Done => {}
                RescaleResult::Conflict => {
                    // The failure of a metric is not reported here: the next reconcile reads the metrics again.
                    return Ok(SyncResult {
                        action: Action::None,
                        problem: None,
                        outcome: Outcome::RequeueAfter(CONFLICT_DELAY),
                    });
                }
                RescaleResult::Failed(error) => {
                    let message = format!("New size: {desired}; reason: {reason}; error: {error}");
                    self.warn(&autoscaler, "FailedRescale", message);
                    let message = format!("the HPA controller was unable to update the target scale: {error}");
                    draft.set(ABLE_TO_SCALE, false, "FailedUpdateScale", &message);
                    draft.set_observed(&autoscaler, current, metrics, gates);
                    self.write_anyway(key, &autoscaler, draft).await;
                    return Err(SyncError::new(format!("failed to rescale {}: {error}", target(&autoscaler))));
                }
            }
            self.record_rescale(&autoscaler, current, desired, &reason, draft);
            lock(&memory).scaled(current, desired, autoscaler.behavior.as_deref(), self.start.elapsed());
            decide::set_scaled_to_zero(draft, scales_to_zero, gates);
            draft.scaled();
        }
        draft.set_observed(&autoscaler, current, metrics, gates);
        draft.status.desired_replicas = desired;
        self.counts.desired(key, desired);
        // The target has the desired scale even if the status cannot be written: the action is counted in any case.
        let unwritten = self.write(key, &autoscaler, draft).await.err();
        Ok(SyncResult {
            action: Action::of(current, desired),
            problem: unwritten.or(problem),
            outcome: Outcome::RequeueAfter(self.settings.period),
        })
    }

    /// Returns the state of an autoscaler: an empty one if the object is new, or was deleted and created again.
    fn memory(&self, key: &ObjectKey, uid: &Uid) -> Arc<Mutex<Memory>> {
        let mut memories = lock(&self.memories);
        let new = || OwnedMemory { owner: uid.clone(), memory: Arc::default() };
        let known = memories.entry(key.clone()).or_insert_with(new);
        if known.owner != *uid {
            *known = new();
        }
        known.memory.clone()
    }

    /// Reads the target's scale and sets the condition `AbleToScale`.
    async fn read_scale(
        &self,
        key: &ObjectKey,
        autoscaler: &HorizontalPodAutoscaler,
        draft: &mut Draft,
    ) -> Result<(Resource, Arc<Scale>), SyncError> {
        match self.scale_of(key, autoscaler).await {
            Ok(found) => {
                let message = "the HPA controller was able to get the target's current scale";
                draft.set(ABLE_TO_SCALE, true, "SucceededGetScale", message);
                Ok(found)
            }
            Err(problem) => {
                self.warn(autoscaler, "FailedGetScale", problem.message.clone());
                let message =
                    format!("the HPA controller was unable to get the target's current scale: {}", problem.message);
                draft.set(ABLE_TO_SCALE, false, "FailedGetScale", &message);
                self.write_anyway(key, autoscaler, draft).await;
                Err(problem)
            }
        }
    }

    /// Returns the number of pods that the target should have: the proposal of the metrics, a bound, or the current
    /// number if scaling is disabled.
    async fn recommend(
        &self,
        key: &ObjectKey,
        autoscaler: &HorizontalPodAutoscaler,
        scale: &Scale,
        memory: &Mutex<Memory>,
        draft: &mut Draft,
    ) -> Result<Recommendation, SyncError> {
        let (current, gates) = (scale.replicas, self.measuring.gates);
        let without_metrics = |desired, reason| Recommendation { desired, reason, metrics: Vec::new(), problem: None };
        match decide::scale_source(autoscaler, current, gates) {
            ScaleSource::Disabled => {
                let message = "scaling is disabled since the replica count of the target is zero";
                draft.set(SCALING_ACTIVE, false, "ScalingDisabled", message);
                if !gates.scale_to_zero {
                    draft.remove(decide::SCALED_TO_ZERO);
                }
                Ok(without_metrics(current, String::new()))
            }
            ScaleSource::Bound(bound, reason) => Ok(without_metrics(bound, reason.to_owned())),
            ScaleSource::Metrics => {
                let CombinedProposal { wanted, statuses: metrics, error, spec } =
                    self.combine(key, autoscaler, scale, draft).await;
                let fault = if spec { Fault::Spec } else { Fault::Internal };
                let problem = error.map(|message| SyncError { message, fault });
                let Some((wanted, name)) = wanted else {
                    return Err(self.give_up(key, autoscaler, draft, current, metrics, problem).await);
                };
                let settings = (self.settings.window, self.start.elapsed(), gates);
                let proposed = (wanted, name.as_str());
                let (desired, reason) =
                    decide::settle(autoscaler, &mut lock(memory), current, proposed, draft, settings);
                Ok(Recommendation { desired, reason, metrics, problem })
            }
        }
    }

    /// Reports a change of the scale as a condition, an event and a log line.
    fn record_rescale(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        current: i32,
        desired: i32,
        reason: &str,
        draft: &mut Draft,
    ) {
        let message = format!("the HPA controller was able to update the target scale to {desired}");
        draft.set(ABLE_TO_SCALE, true, "SucceededRescale", &message);
        let message = format!("New size: {desired}; reason: {reason}");
        self.recorder.event(&about(autoscaler), EventType::Normal, "SuccessfulRescale", message);
        info!(current, desired, reason, "rescaled");
    }

    /// Records in the status and in an event that the metrics do not suffice to compute a number of pods.
    async fn give_up(
        &self,
        key: &ObjectKey,
        autoscaler: &HorizontalPodAutoscaler,
        draft: &mut Draft,
        current: i32,
        metrics: Vec<MetricStatus>,
        problem: Option<SyncError>,
    ) -> SyncError {
        draft.set_observed(autoscaler, current, metrics, self.measuring.gates);
        self.write_anyway(key, autoscaler, draft).await;
        let SyncError { message, fault } = problem.unwrap_or_else(|| SyncError::new(String::new()));
        self.warn(autoscaler, "FailedComputeMetricsReplicas", message.clone());
        let target = target(autoscaler);
        let message =
            format!("failed to compute desired number of replicas based on listed metrics for {target}: {message}");
        SyncError { message, fault }
    }

    /// Returns the target's scale, and the resource that it is served as.
    async fn scale_of(
        &self,
        key: &ObjectKey,
        autoscaler: &HorizontalPodAutoscaler,
    ) -> Result<(Resource, Arc<Scale>), SyncError> {
        let (version, kind) = (&*autoscaler.target.api_version, &*autoscaler.target.kind);
        let group = match version.split('/').collect::<Vec<_>>()[..] {
            [_] => "",
            [group, _] => group,
            _ => {
                let message = format!("unexpected GroupVersion string: {version}");
                return Err(SyncError { message, fault: Fault::Spec });
            }
        };
        let scales = &self.measuring.scales;
        let served = scales.of_group_kind(group, kind).await.map_err(|error| SyncError::new(error.to_string()))?;
        let Some(served) = served else {
            return Err(SyncError::new(format!("no matches for kind {kind:?} in group {group:?}")));
        };
        // If the resource has no scale subresource, the error of the API server becomes the message.
        let resource = served.resource;
        let target = target_key(autoscaler);
        let known = lock(&self.scales).get(key).cloned();
        if let Some(scale) = known.filter(|scale| scales.is_current(&resource, &target, scale)) {
            return Ok((resource, scale));
        }
        let scale = scales.get(&resource, &target).await.map_err(|error| SyncError::new(error.to_string()))?;
        let scale = Arc::new(scale);
        lock(&self.scales).insert(key.clone(), scale.clone());
        Ok((resource, scale))
    }

    /// Returns the combined proposal of the autoscaler's metrics.
    async fn combine(
        &self,
        key: &ObjectKey,
        autoscaler: &HorizontalPodAutoscaler,
        scale: &Scale,
        draft: &mut Draft,
    ) -> CombinedProposal {
        let (selector, pods) = match self.pods_of(key, autoscaler, scale, draft) {
            Ok(found) => found,
            Err(error) => {
                return CombinedProposal { wanted: None, statuses: Vec::new(), error: Some(error), spec: false };
            }
        };
        let subject = Subject {
            autoscaler,
            scale,
            selector: &selector,
            pods: &pods,
            tolerances: decide::tolerances(autoscaler, self.settings.tolerance, self.measuring.gates),
            now: (self.clock)(),
        };
        let mut proposals = Vec::with_capacity(autoscaler.metrics.len());
        for metric in &autoscaler.metrics {
            let began = Instant::now();
            let proposal = decide::proposal(metric, self.measuring.measure(metric, &subject).await);
            let (action, fault) = outcome(&proposal, autoscaler.status.current_replicas);
            self.counts.measured(action, fault, metric.source.kind(), began.elapsed());
            if let Err(failure) = &proposal {
                self.warn(autoscaler, failure.reason, failure.message.clone());
            }
            proposals.push(proposal);
        }
        decide::combine(proposals, scale.replicas, draft)
    }

    /// Returns the selector of the target's pods, and the pods. Fails if the selector is empty or invalid, or another
    /// autoscaler selects some of the pods too. Upstream: pkg/controller/podautoscaler, validateAndParseSelector.
    fn pods_of(
        &self,
        key: &ObjectKey,
        autoscaler: &HorizontalPodAutoscaler,
        scale: &Scale,
        draft: &mut Draft,
    ) -> Result<(Arc<Selector>, Vec<Arc<Pod>>), String> {
        if scale.selector.is_empty() {
            let why = "selector is required".to_owned();
            self.warn(autoscaler, "SelectorRequired", why.clone());
            draft.set(SCALING_ACTIVE, false, "InvalidSelector", "the HPA target's scale is missing a selector");
            return Err(why);
        }
        let selector = Arc::new(Selector::parse(&self.interner, &scale.selector).map_err(|why| {
            let why = format!("couldn't convert selector into a corresponding internal selector object: {why}");
            self.warn(autoscaler, "InvalidSelector", why.clone());
            draft.set(SCALING_ACTIVE, false, "InvalidSelector", &why);
            why
        })?);
        self.overlaps.put(key, &selector);
        let pods = overlap::pods_of(&key.namespace, &selector, &self.pods);
        let max = if self.measuring.gates.optimized_selectors { 2 } else { usize::MAX };
        let selecting = self.overlaps.selecting(&key.namespace, &pods, max);
        if selecting.len() > 1 {
            let selector = &scale.selector;
            let autoscalers = overlap::printed(&selecting);
            let why = format!("pods by selector {selector} are controlled by more than one HPA (e.g. {autoscalers})");
            self.warn(autoscaler, "AmbiguousSelector", why.clone());
            draft.set(SCALING_ACTIVE, false, "AmbiguousSelector", &why);
            return Err(why);
        }
        Ok((selector, pods))
    }

    /// Sets `ScaledToZero` before a target is scaled to zero. Otherwise, if this process ended right after the scaling,
    /// the zero would count as a user's decision, and the target would never be scaled up again.
    async fn write_scaled_to_zero(
        &self,
        key: &ObjectKey,
        autoscaler: Arc<HorizontalPodAutoscaler>,
        draft: &Draft,
    ) -> Result<Arc<HorizontalPodAutoscaler>, SyncError> {
        let mut announced = draft.clone();
        announced.status = autoscaler.status.clone();
        decide::set_scaled_to_zero(&mut announced, true, self.measuring.gates);
        Ok(self.write(key, &autoscaler, &announced).await?.unwrap_or(autoscaler))
    }

    /// Changes the scale. After a conflict or a lost response, the scale is read and changed again, unless the number
    /// of pods, the selector or the UID has changed: the decision depends on these.
    async fn rescale(
        &self,
        resource: &Resource,
        autoscaler: &HorizontalPodAutoscaler,
        mut scale: Arc<Scale>,
        desired: i32,
    ) -> RescaleResult {
        let scales = &self.measuring.scales;
        let key = target_key(autoscaler);
        let mut tries = 1;
        loop {
            let error = match scales.writer.replace_scale(resource, &key, &scale, desired).await {
                Ok(()) => return RescaleResult::Done,
                Err(error) => error,
            };
            if !error.is_conflict() && !error.is_lost() {
                return RescaleResult::Failed(error);
            }
            let Ok(fresh) = scales.get(resource, &key).await else { return RescaleResult::Failed(error) };
            if error.is_lost() && fresh.uid == scale.uid && fresh.replicas == desired {
                return RescaleResult::Done;
            }
            if (&fresh.uid, fresh.replicas, &fresh.selector) != (&scale.uid, scale.replicas, &scale.selector) {
                return RescaleResult::Conflict;
            }
            if tries == TRIES {
                return RescaleResult::Failed(error);
            }
            tries += 1;
            scale = Arc::new(fresh);
        }
    }

    /// Writes the status after another failure. A failure of the write is only logged.
    async fn write_anyway(&self, key: &ObjectKey, autoscaler: &HorizontalPodAutoscaler, draft: &Draft) {
        if let Err(problem) = self.write(key, autoscaler, draft).await {
            warn!(error = problem.message, "failed to write the status of the HorizontalPodAutoscaler");
        }
    }

    /// Writes the status if it differs. Returns the written object, if any. A conflict is a failure with an event, as in
    /// upstream; [`put_status`](crate::pods::status_write::put_status) would only requeue the key.
    async fn write(
        &self,
        key: &ObjectKey,
        autoscaler: &HorizontalPodAutoscaler,
        draft: &Draft,
    ) -> Result<Option<Arc<HorizontalPodAutoscaler>>, SyncError> {
        if draft.status == autoscaler.status {
            return Ok(None);
        }
        let body = autoscaler.status_update(&draft.status);
        let writer = &self.measuring.scales.writer;
        let response = writer.replace(&HorizontalPodAutoscaler::RESOURCE, key, Some("status"), &body).await;
        let written = response.and_then(|response| {
            let written: HorizontalPodAutoscaler = response.decode(self.autoscalers.decoding())?;
            Ok(written)
        });
        match written {
            Ok(written) => {
                self.autoscalers.wrote(key, written.meta.version);
                Ok(Some(Arc::new(written)))
            }
            Err(error) => {
                if !error.is_not_found() {
                    self.warn(autoscaler, "FailedUpdateStatus", error.to_string());
                }
                Err(SyncError::new(format!("failed to update status for {}: {error}", autoscaler.meta.name)))
            }
        }
    }

    fn forget(&self, key: &ObjectKey) {
        lock(&self.memories).remove(key);
        lock(&self.scales).remove(key);
        self.overlaps.forget(key);
        self.counts.forget(key);
    }

    fn warn(&self, autoscaler: &HorizontalPodAutoscaler, reason: &'static str, message: String) {
        self.recorder.event(&about(autoscaler), EventType::Warning, reason, message);
    }
}

fn outcome(proposal: &Result<Proposal, Failure>, before: i32) -> (Action, Fault) {
    match proposal {
        Ok(proposal) => (Action::of(before, proposal.replicas), Fault::None),
        Err(failure) => (Action::None, if failure.spec { Fault::Spec } else { Fault::Internal }),
    }
}

fn target_key(autoscaler: &HorizontalPodAutoscaler) -> ObjectKey {
    ObjectKey::new(autoscaler.meta.namespace.clone(), autoscaler.target.name.clone())
}

/// Formats the target for messages.
fn target(autoscaler: &HorizontalPodAutoscaler) -> String {
    format!("{}/{}/{}", autoscaler.target.kind, autoscaler.meta.namespace, autoscaler.target.name)
}
