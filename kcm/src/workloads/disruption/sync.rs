//! One reconcile of a budget: find its pods, read the scale of their owners, count, write the status.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::pod_disruption_budget::BudgetStatus;
use kinds::selector::Selector;
use kinds::{Pod, PodDisruptionBudget, Uid};
use runtime::debounce::StatusDebouncer;
use runtime::events::{EventType, Recorder, about};
use runtime::lock::lock;
use runtime::queue::Queue;
use runtime::store::{Cached, Store, by_namespace, index_key};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use tracing::warn;

use super::decide::{self, Bounds};
use super::owners::{Owners, ScaleError};
use crate::context::Clock;
use crate::pods::indexes::{by_label, pair};
use crate::pods::status_write::{StatusWrite, replace_status};

/// The controller's state.
pub struct Budgets {
    pub budgets: Arc<Store<PodDisruptionBudget>>,
    pub pods: Arc<Store<Pod>>,
    pub owners: Owners,
    pub writer: Writer,
    pub recorder: Recorder,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    /// The last events about each budget, so that they are not repeated while nothing changes.
    pub recorded_events: Mutex<HashMap<ObjectKey, RecordedEvents>>,
    /// The time since which counts without effect on evictions wait to be written.
    pub debouncer: StatusDebouncer,
}

/// An event about a budget.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetEvent {
    kind: EventType,
    reason: &'static str,
    message: String,
}

/// The last events about a budget, with the uid of the budget: another budget with its name gets its own events.
#[derive(Debug)]
pub struct RecordedEvents {
    owner: Uid,
    events: Vec<BudgetEvent>,
}

impl BudgetEvent {
    fn warning(reason: &'static str, message: String) -> Self {
        Self { kind: EventType::Warning, reason, message }
    }
}

impl Reconcile for Budgets {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Budgets {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let budget = match self.budgets.read_settled(key, self.queue.waker(key)) {
            Cached::Current(budget) => budget,
            Cached::Absent => {
                self.recorded_events().remove(key);
                self.debouncer.forget(key);
                return Ok(Outcome::Done);
            }
            Cached::Lagging => return Ok(Outcome::WaitingForCache),
        };
        let mut events = Vec::new();
        let counted = self.count(&budget, &mut events).await;
        self.record_new(key, &budget, events);
        let now = (self.clock)();
        let (status, then) = match counted {
            Ok((bounds, pods)) => {
                let disrupted = decide::disrupted(&budget.status.disrupted_pods, &pods, now);
                for pod in &disrupted.overdue {
                    self.record_overdue(&budget, pod);
                }
                let healthy = decide::healthy(&pods, &disrupted.pending);
                let status = decide::status(&budget, bounds, healthy, disrupted.pending, now);
                (status, disrupted.recheck.map_or(Outcome::Done, Outcome::RequeueAfter))
            }
            Err(error) => {
                warn!(reason = error.message, "pods of the budget cannot be counted; no disruption is allowed");
                let then = if error.transient { Outcome::RequeueWithBackoff } else { Outcome::Done };
                (decide::failed(&budget, &error.message, now), then)
            }
        };
        if status == budget.status {
            self.debouncer.forget(key);
            return Ok(then);
        }
        if let Some(wait) = self.debouncer.wait(key, decide::write_delay(&budget.status, &status)) {
            return Ok(match then {
                Outcome::RequeueAfter(recheck) => Outcome::RequeueAfter(wait.min(recheck)),
                _ => Outcome::RequeueAfter(wait),
            });
        }
        self.write(key, &budget, &status, then).await
    }

    async fn write(
        &self,
        key: &ObjectKey,
        budget: &PodDisruptionBudget,
        status: &BudgetStatus,
        then: Outcome,
    ) -> Result<Outcome, ReconcileError> {
        let body = budget.status_update(status);
        match replace_status::<PodDisruptionBudget>(&self.writer, key, &body).await? {
            StatusWrite::Written(response) => {
                if let Ok(meta) = response.meta() {
                    self.budgets.wrote(key, meta.version);
                }
                Ok(then)
            }
            // Another client wrote first, mostly the eviction API, whose record must not be lost.
            StatusWrite::Outdated => Ok(Outcome::RequeueWithBackoff),
            StatusWrite::Deleted => Ok(Outcome::Done),
        }
    }

    /// Returns the budget's pods and bounds; events are added to `events`.
    async fn count(
        &self,
        budget: &PodDisruptionBudget,
        events: &mut Vec<BudgetEvent>,
    ) -> Result<(Bounds, Vec<Arc<Pod>>), ScaleError> {
        if let Selector::Invalid(why) = &budget.selector {
            events.push(BudgetEvent::warning("NoPods", format!("Failed to get pods: {why}")));
            return Err(ScaleError { message: why.clone(), transient: false });
        }
        let pods = self.pods_of(budget);
        if pods.is_empty() {
            let message = "No matching pods found".to_owned();
            events.push(BudgetEvent { kind: EventType::Normal, reason: "NoPods", message });
        }
        let mut counted = decide::count(pods.len());
        if decide::needs_scale(budget) {
            let desired = self.owners.desired_pods(&pods).await.inspect_err(|error| events.push(not_counted(error)))?;
            if !desired.unmanaged.is_empty() {
                events.push(BudgetEvent::warning("UnmanagedPods", unmanaged(budget)));
            }
            counted = desired.pods;
        }
        let bounds = decide::bounds(budget, counted).map_err(|message| ScaleError { message, transient: false });
        Ok((bounds.inspect_err(|error| events.push(not_counted(error)))?, pods))
    }

    /// Returns the budget's pods. Compares only pods with the rarest label that the budget requires, or all pods of the
    /// namespace if it requires none.
    fn pods_of(&self, budget: &PodDisruptionBudget) -> Vec<Arc<Pod>> {
        let namespace = &budget.meta.namespace;
        let labels = decide::required_labels(&budget.selector);
        let mut pods = if labels.is_empty() {
            self.pods.by_index(&by_namespace(), index_key(&**namespace))
        } else {
            self.pods.by_rarest(&by_label(), labels.iter().map(|label| pair(namespace, label)))
        };
        pods.retain(|pod| pod.meta.namespace == *namespace && budget.selector.matches(&pod.meta.labels));
        pods
    }

    fn recorded_events(&self) -> std::sync::MutexGuard<'_, HashMap<ObjectKey, RecordedEvents>> {
        lock(&self.recorded_events)
    }

    fn record_new(&self, key: &ObjectKey, budget: &PodDisruptionBudget, events: Vec<BudgetEvent>) {
        let owner = budget.meta.uid.clone();
        let before = if events.is_empty() {
            self.recorded_events().remove(key)
        } else {
            self.recorded_events().insert(key.clone(), RecordedEvents { owner, events: events.clone() })
        };
        let before =
            before.filter(|before| before.owner == budget.meta.uid).map_or_else(Vec::new, |before| before.events);
        for event in events.into_iter().filter(|event| !before.contains(event)) {
            self.recorder.event(&about(budget), event.kind, event.reason, event.message);
        }
    }

    /// Records an event about an evicted pod that still exists. The message names the namespace twice, as upstream's
    /// does. Upstream: pkg/controller/disruption, buildDisruptedPodMap.
    fn record_overdue(&self, budget: &PodDisruptionBudget, pod: &Pod) {
        let namespace = &budget.meta.namespace;
        let message = format!("Pod was expected by PDB {namespace}/{namespace} to be deleted but it wasn't");
        self.recorder.event(&about(pod), EventType::Warning, "NotDeleted", message);
    }
}

fn not_counted(error: &ScaleError) -> BudgetEvent {
    let message = format!("Failed to calculate the number of expected pods: {}", error.message);
    BudgetEvent::warning("CalculateExpectedPodCountFailed", message)
}

fn unmanaged(budget: &PodDisruptionBudget) -> String {
    format!(
        "Pods selected by this PodDisruptionBudget (selector: {}) were found to be unmanaged. As a result, the status \
         of the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods \
         please set \".spec.minAvailable\" field of the PDB to an integer value.",
        budget.selector_text()
    )
}
