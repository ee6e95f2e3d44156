//! Maps changes to the keys of budgets, and of pods with an announced disruption (condition `DisruptionTarget`).

use std::sync::Arc;

use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use kinds::{Pod, PodDisruptionBudget};
use runtime::events::{EventType, Recorder, about};
use runtime::queue::Queue;
use runtime::store::{Change, Store, by_namespace, index_key};

/// Enqueues the budgets that changes affect, and the pods with an announced disruption.
pub fn subscribe(
    budgets: &Arc<Store<PodDisruptionBudget>>,
    pods: &Arc<Store<Pod>>,
    queue: &Arc<Queue<ObjectKey>>,
    announced: &Arc<Queue<ObjectKey>>,
    recorder: &Recorder,
) {
    let changed = queue.clone();
    budgets.subscribe(move |change| {
        let Some(key) = budget_key(change) else { return };
        if is_immediate(change) { changed.add(key) } else { changed.add_coalesced(key) }
    });
    let (changed, announced, recorder, budgets) = (queue.clone(), announced.clone(), recorder.clone(), budgets.clone());
    pods.subscribe(move |change| {
        if let Some(pod) = change.new.filter(|pod| is_announced(pod)) {
            announced.add(pod.meta.key());
        }
        if !affects_budgets(change) {
            return;
        }
        let Some(pod) = change.new.or(change.old) else { return };
        let candidates = budgets.by_index(&by_namespace(), index_key(&*pod.meta.namespace));
        for (budget, urgency) in affected(change, &candidates) {
            match urgency {
                Urgency::Immediate => changed.add(budget.meta.key()),
                Urgency::Coalesced => changed.add_coalesced(budget.meta.key()),
            }
        }
        if is_new_or_relabelled(change) {
            warn_about_multiple_budgets(&recorder, pod, &candidates);
        }
    });
}

/// Returns the key of a budget that changed. A deleted budget is reconciled too, so that the controller's state for it
/// is removed before another budget with its name is created.
pub fn budget_key(change: &Change<'_, PodDisruptionBudget>) -> Option<ObjectKey> {
    Some(change.new.or(change.old)?.meta.key())
}

/// Returns true if a budget was created or deleted, or has another spec. A change of its status alone, by this
/// controller or the eviction API, is coalesced: the eviction API has already decremented the number for the pod.
fn is_immediate(change: &Change<'_, PodDisruptionBudget>) -> bool {
    match (change.old, change.new) {
        (Some(old), Some(new)) => old.meta.generation != new.meta.generation || old.meta.uid != new.meta.uid,
        _ => true,
    }
}

/// Returns true if a pod was created or deleted, or changed in a field that budgets use: readiness, deletion, labels,
/// owners, or UID.
pub fn affects_budgets(change: &Change<'_, Pod>) -> bool {
    let (Some(old), Some(new)) = (change.old, change.new) else { return true };
    (old.ready, old.meta.is_deleting(), &old.meta.labels, &old.meta.owners, &old.meta.uid)
        != (new.ready, new.meta.is_deleting(), &new.meta.labels, &new.meta.owners, &new.meta.uid)
}

/// The urgency of a new count of a budget's pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Fewer pods may be disrupted: until the new number is written, the old one allows too many evictions.
    Immediate,
    /// The number of pods that may be disrupted increases or does not change.
    Coalesced,
}

/// Number of budgets up to which a change of a pod that all of them select may be urgent.
///
/// The eviction API refuses to evict a pod that several budgets select. So the change matters only to evictions of
/// other pods of these budgets, but each budget has to count all of its pods again: a thousand budgets of the same pods
/// would be counted without a pause during a rollout of the pods. Upstream counts for one of the budgets.
const MANY_BUDGETS: usize = 10;

/// Returns the budgets of a namespace whose pods have to be counted again after a change of a pod.
pub fn affected<'a>(
    change: &Change<'_, Pod>,
    budgets: &'a [Arc<PodDisruptionBudget>],
) -> Vec<(&'a PodDisruptionBudget, Urgency)> {
    let urgent = budgets.iter().filter_map(|budget| Some((&**budget, urgency(change, &budget.selector)?)));
    let mut affected: Vec<_> = urgent.collect();
    if affected.len() > MANY_BUDGETS {
        affected.iter_mut().for_each(|(_, urgency)| *urgency = Urgency::Coalesced);
    }
    affected
}

/// Returns the urgency of a new count for the budget with this selector after a change of a pod; `None` if the change
/// does not affect it.
pub fn urgency(change: &Change<'_, Pod>, selector: &Selector) -> Option<Urgency> {
    let [old, new] = [change.old, change.new].map(|pod| pod.filter(|pod| selector.matches(&pod.meta.labels)));
    let is_healthy = |pod: Option<&Arc<Pod>>| pod.is_some_and(|pod| pod.ready && !pod.meta.is_deleting());
    match (old, new) {
        (None, None) => None,
        // With a new pod, one more pod may have to be healthy.
        (None, Some(_)) => Some(Urgency::Immediate),
        _ if is_healthy(old) && !is_healthy(new) => Some(Urgency::Immediate),
        _ => Some(Urgency::Coalesced),
    }
}

/// Returns true if the pod is new, or has other labels than before.
fn is_new_or_relabelled(change: &Change<'_, Pod>) -> bool {
    change.new.is_some_and(|new| change.old.is_none_or(|old| old.meta.labels != new.meta.labels))
}

/// Returns true while a pod has the condition `DisruptionTarget` and its disruption may never happen: the condition was
/// not set by the kubelet, and the pod is neither being deleted nor finished. Upstream: pkg/controller/disruption,
/// nonTerminatingPodHasStaleDisruptionCondition.
pub fn is_announced(pod: &Pod) -> bool {
    let is_target =
        pod.disruption.as_ref().is_some_and(|condition| condition.target_since.is_some() && !condition.by_kubelet);
    is_target && pod.is_active()
}

fn warn_about_multiple_budgets(recorder: &Recorder, pod: &Pod, budgets: &[Arc<PodDisruptionBudget>]) {
    let protecting = budgets.iter().filter(|budget| budget.selector.matches(&pod.meta.labels));
    let names: Vec<&str> = protecting.map(|budget| &*budget.meta.name).collect();
    let Some(first) = names.iter().min().filter(|_| names.len() > 1) else { return };
    let (namespace, name) = (&*pod.meta.namespace, &*pod.meta.name);
    let message =
        format!("Pod {namespace:?}/{name:?} matches multiple PodDisruptionBudgets.  Chose {first:?} arbitrarily.");
    recorder.event(&about(pod), EventType::Warning, "MultiplePodDisruptionBudgets", message);
}
