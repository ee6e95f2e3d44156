//! Policy: the pods of a StatefulSet to create, repair and delete next.
//!
//! A plan consists of stages. The steps of a stage are executed one after the other or concurrently. After a failure,
//! no further stage is executed. If pods are ordered, a plan ends with the first pod that has to become ready.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use kinds::pod::Phase;
use kinds::statefulset::Strategy;
use kinds::{Pod, StatefulSet};

use super::identity::{self, Member};
use crate::pods::availability;

/// The feature gates that influence a plan.
#[derive(Debug, Clone, Copy)]
pub struct Gates {
    /// MaxUnavailableStatefulSet
    pub max_unavailable: bool,
    /// StatefulSetRecreateStrategy
    pub recreate: bool,
    /// StatefulSetSemanticRevisionComparison
    pub semantic: bool,
}

/// The revision that a pod is created from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodRevision {
    /// The revision of the last complete rollout.
    Current,
    /// The newest revision.
    Update,
}

/// The defects of an existing pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Defects {
    /// One of the pod's claims is missing or is being deleted. In a plan, this is set only for a pending pod.
    pub claims: bool,
    /// A claim has wrong owners.
    pub owners: bool,
    /// The retention policy cannot be applied to a claim: see [`super::retention::Verdict::foreign`].
    pub conflict: bool,
    /// The pod lacks the label with its name, or a volume of its ordinal.
    pub pod: bool,
}

impl Defects {
    fn any(self) -> bool {
        self.claims || self.owners || self.conflict || self.pod
    }
}

/// An action for one ordinal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Create the claims and the pod of an ordinal.
    Create(i32, PodRevision),
    /// Repair a pod and its claims.
    Repair(Member, Defects),
    /// Delete a pod.
    Delete(Arc<Pod>),
}

/// A stage of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The steps.
    pub steps: Vec<Step>,
    /// The steps are executed concurrently, in growing batches; otherwise one after the other.
    pub concurrent: bool,
}

/// The phase of a Recreate update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recreation {
    /// Pods of old revisions are being deleted.
    Deleting,
    /// Old pods are deleted, and new ones are created.
    Creating,
}

/// The stages to execute, and the resulting state.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The stages, in this order.
    pub stages: Vec<Stage>,
    /// The phase of a Recreate update.
    pub recreation: Option<Recreation>,
    /// The pod that an ordered StatefulSet waits for.
    pub waits_for: Option<Member>,
    /// Missing and unavailable pods of a rolling update, for the metric; `None` if they were not counted.
    pub unavailable: Option<usize>,
}

impl Plan {
    /// Returns true if a pod is deleted.
    pub fn deletes(&self) -> bool {
        self.steps().any(|step| matches!(step, Step::Delete(_)))
    }

    /// Returns the number of pods that are created, or get missing claims.
    pub fn creations(&self) -> usize {
        self.steps().filter(|step| step.creates()).count()
    }

    /// Removes the creations, and all stages after the first one with a creation, as if the creation had failed.
    pub fn postpone_creations(&mut self) {
        if let Some(first) = self.stages.iter().position(|stage| stage.steps.iter().any(Step::creates)) {
            self.stages.truncate(first + 1);
            let stage = &mut self.stages[first];
            if stage.concurrent {
                stage.steps.retain(|step| !step.creates());
            } else {
                let first = stage.steps.iter().position(Step::creates).unwrap_or(0);
                stage.steps.truncate(first);
            }
        }
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.stages.iter().flat_map(|stage| &stage.steps)
    }
}

impl Step {
    /// Returns true if the step creates a pod or a claim.
    fn creates(&self) -> bool {
        matches!(self, Self::Create(..) | Self::Repair(_, Defects { claims: true, .. }))
    }
}

/// The input of a plan.
pub struct PlanInput<'a> {
    /// The StatefulSet.
    pub set: &'a StatefulSet,
    /// Its pods.
    pub members: &'a [Member],
    /// Name of the revision of the last complete rollout.
    pub current: &'a str,
    /// Name of the newest revision.
    pub update: &'a str,
    /// Returns the defects of a pod.
    pub defects: &'a dyn Fn(&Member) -> Defects,
    /// Returns true if a claim of an ordinal belongs to a previous pod, and must be deleted before a new pod is
    /// created.
    pub is_stale: &'a dyn Fn(i32) -> bool,
    /// Feature gates.
    pub gates: Gates,
    /// The current time.
    pub now: Timestamp,
}

/// Returns true if a pod is running and ready. Upstream: pkg/controller/statefulset, isRunningAndReady.
pub fn is_running_and_ready(pod: &Pod) -> bool {
    pod.phase == Phase::Running && pod.ready
}

/// Returns the number of pods that may be unavailable: a percentage rounds down, and the minimum is one. `None` for a
/// text that is not a percentage. Upstream: pkg/controller/statefulset, getStatefulSetMaxUnavailable.
pub fn max_unavailable(set: &StatefulSet) -> Option<usize> {
    let bound = set.rolling.as_ref().and_then(|rolling| rolling.max_unavailable.as_ref());
    let count = bound.map_or(Some(1), |bound| bound.scaled(set.replicas, false))?;
    Some(usize::try_from(count).unwrap_or(0).max(1))
}

/// Returns the revision that a missing pod is created from. Upstream: pkg/controller/statefulset,
/// newVersionedStatefulSetPod.
pub fn revision_of_missing(set: &StatefulSet, ordinal: i32) -> PodRevision {
    let count_at_current = match &set.rolling {
        Some(rolling) => i64::from(rolling.partition),
        None if set.strategy == Strategy::RollingUpdate => i64::from(set.status.current_replicas),
        None => 0,
    };
    if i64::from(ordinal) < i64::from(set.start) + count_at_current {
        PodRevision::Current
    } else {
        PodRevision::Update
    }
}

/// Maximum number of missing ordinals that one reconcile plans: a StatefulSet may have two billion replicas.
const MAX_MISSING_ORDINALS: usize = 500;

/// An ordinal that should have a pod.
struct OrdinalSlot<'a> {
    ordinal: i32,
    member: Option<&'a Member>,
}

/// The desired ordinals of a StatefulSet, and its other pods.
struct Ordinals<'a> {
    /// Desired ordinals in ascending order; of the missing ones only the first [`MAX_MISSING_ORDINALS`].
    slots: Vec<OrdinalSlot<'a>>,
    /// Number of all desired ordinals without a pod.
    missing: usize,
    /// Surplus pods, from the highest ordinal down.
    condemned: Vec<&'a Member>,
}

/// Returns the desired ordinals, beginning with `start`. `members` are their pods in ascending order.
fn slots<'a>(start: i32, replicas: usize, members: &[&'a Member]) -> Vec<OrdinalSlot<'a>> {
    let mut slots =
        Vec::with_capacity(members.len() + MAX_MISSING_ORDINALS.min(replicas.saturating_sub(members.len())));
    let mut ordinal = i64::from(start);
    let mut members = members.iter().copied().peekable();
    let mut missing = 0;
    let end = ordinal.saturating_add(i64::try_from(replicas).unwrap_or(i64::MAX)).min(i64::from(i32::MAX));
    while ordinal < end {
        let next = members.peek().map_or(end, |member| i64::from(member.ordinal));
        let Ok(at) = i32::try_from(ordinal) else { break };
        if next == ordinal {
            slots.push(OrdinalSlot { ordinal: at, member: members.next() });
        } else if missing < MAX_MISSING_ORDINALS {
            missing += 1;
            slots.push(OrdinalSlot { ordinal: at, member: None });
        } else {
            ordinal = next;
            continue;
        }
        ordinal += 1;
    }
    slots
}

impl PlanInput<'_> {
    fn is_available(&self, pod: &Pod) -> bool {
        availability::is_available(pod, self.set.min_ready_seconds, self.now)
    }

    fn is_unavailable(&self, pod: &Pod) -> bool {
        !self.is_available(pod) || pod.meta.is_deleting()
    }

    fn is_old(&self, pod: &Pod) -> bool {
        identity::revision(pod) != self.update
    }

    /// Returns true for a pod of an old revision that is not being deleted. Finished pods are deleted by
    /// `plan_ordinal`.
    fn is_replaceable(&self, pod: &Pod) -> bool {
        self.is_old(pod) && !pod.meta.is_deleting() && !pod.is_terminal()
    }

    fn ordinals(&self) -> Ordinals<'_> {
        let by_ordinal: BTreeMap<i32, &Member> = self.members.iter().map(|member| (member.ordinal, member)).collect();
        let (wanted, mut condemned): (Vec<&Member>, Vec<&Member>) =
            by_ordinal.into_values().partition(|member| identity::is_wanted(self.set, member.ordinal));
        condemned.reverse();
        // Ordinals are below `i32::MAX`.
        let replicas = self.set.replicas.max(0).min(i32::MAX.saturating_sub(self.set.start));
        let replicas = usize::try_from(replicas).unwrap_or(0);
        let slots = slots(self.set.start, replicas, &wanted);
        Ordinals { slots, missing: replicas.saturating_sub(wanted.len()), condemned }
    }

    /// Returns the plan. Upstream: pkg/controller/statefulset, updateStatefulSet.
    pub fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        let ordinals = self.ordinals();
        let (slots, condemned) = (&ordinals.slots, &ordinals.condemned);
        if self.set.strategy == Strategy::Recreate && !self.recreate(&mut plan) {
            return plan;
        }
        let done = if self.set.parallel {
            self.plan_parallel(slots, condemned, &mut plan);
            true
        } else {
            self.plan_ordered(slots, condemned, &mut plan)
        };
        if done && self.set.strategy == Strategy::RollingUpdate {
            if self.gates.max_unavailable {
                self.update_within_bounds(&ordinals, &mut plan);
            } else {
                self.update_one(&ordinals, &mut plan);
            }
        }
        plan.stages.retain(|stage| !stage.steps.is_empty());
        plan
    }

    /// Plans the deletion of all pods of old revisions. Returns true if there are none. Upstream:
    /// pkg/controller/statefulset, recreateDeleteAndWait.
    fn recreate(&self, plan: &mut Plan) -> bool {
        let old: Vec<&Member> = self.members.iter().filter(|member| self.is_old(&member.pod)).collect();
        if !old.is_empty() {
            let steps = old.iter().filter(|member| !member.pod.meta.is_deleting());
            let steps: Vec<Step> = steps.map(|member| Step::Delete(member.pod.clone())).collect();
            plan.recreation = Some(Recreation::Deleting);
            if !steps.is_empty() {
                plan.stages.push(Stage { steps, concurrent: true });
            }
        } else if self.current != self.update {
            plan.recreation = Some(Recreation::Creating);
        }
        old.is_empty()
    }

    /// Adds the steps for one desired ordinal. Returns true if an ordered StatefulSet has to wait for it. Upstream:
    /// pkg/controller/statefulset, processReplica.
    fn plan_ordinal(&self, slot: &OrdinalSlot<'_>, steps: &mut Vec<Step>) -> bool {
        let Some(member) = slot.member else {
            if !(self.is_stale)(slot.ordinal) {
                steps.push(Step::Create(slot.ordinal, revision_of_missing(self.set, slot.ordinal)));
            }
            return true;
        };
        let pod = &member.pod;
        if pod.is_terminal() {
            if !pod.meta.is_deleting() {
                steps.push(Step::Delete(pod.clone()));
            }
            return true;
        }
        let all_defects = (self.defects)(member);
        let waits = pod.meta.is_deleting() || !is_running_and_ready(pod) || !self.is_available(pod);
        // While an ordered StatefulSet waits for a pod, only the claims of a pending pod are repaired.
        let is_repairable = !waits || self.set.parallel;
        let is_pending = pod.phase == Phase::Pending;
        let defects = Defects {
            claims: all_defects.claims && is_pending,
            owners: all_defects.owners && (is_repairable || is_pending),
            conflict: all_defects.conflict && is_pending,
            pod: all_defects.pod && is_repairable,
        };
        if defects.any() {
            steps.push(Step::Repair(member.clone(), defects));
        }
        waits
    }

    fn plan_ordered(&self, slots: &[OrdinalSlot<'_>], condemned: &[&Member], plan: &mut Plan) -> bool {
        let mut steps = Vec::new();
        for slot in slots {
            if self.plan_ordinal(slot, &mut steps) {
                plan.waits_for = slot.member.cloned();
                plan.stages.push(Stage { steps, concurrent: false });
                return false;
            }
        }
        steps.extend(self.claim_owner_repairs(condemned));
        if let Some(last) = condemned.first() {
            // A finished pod never becomes ready.
            let is_unhealthy =
                |pod: &Pod| !pod.is_terminal() && (!is_running_and_ready(pod) || !self.is_available(pod));
            // All desired pods are available here, so the first unhealthy pod is the unavailable condemned pod with the
            // lowest ordinal.
            let first = condemned.iter().rev().find(|member| self.is_unavailable(&member.pod));
            let blocks = last.pod.meta.is_deleting()
                || is_unhealthy(&last.pod) && first.is_none_or(|first| first.ordinal != last.ordinal);
            if !blocks {
                steps.push(Step::Delete(last.pod.clone()));
            }
        }
        plan.stages.push(Stage { steps, concurrent: false });
        condemned.is_empty()
    }

    fn plan_parallel(&self, slots: &[OrdinalSlot<'_>], condemned: &[&Member], plan: &mut Plan) {
        let mut steps = Vec::new();
        for slot in slots {
            self.plan_ordinal(slot, &mut steps);
        }
        let deletions = condemned.iter().filter(|member| !member.pod.meta.is_deleting());
        let deletions = deletions.map(|member| Step::Delete(member.pod.clone())).collect();
        for steps in [steps, self.claim_owner_repairs(condemned).collect(), deletions] {
            plan.stages.push(Stage { steps, concurrent: true });
        }
    }

    /// Returns the steps that correct the owners of the claims of condemned pods.
    fn claim_owner_repairs<'a>(&'a self, condemned: &'a [&Member]) -> impl Iterator<Item = Step> + 'a {
        let with_wrong_owners = condemned.iter().filter(|member| (self.defects)(member).owners);
        with_wrong_owners.map(|member| Step::Repair((*member).clone(), Defects { owners: true, ..Defects::default() }))
    }

    /// Returns the lowest ordinal that an update may change.
    fn first_updated(&self) -> i64 {
        i64::from(self.set.start) + i64::from(self.set.rolling.as_ref().map_or(0, |rolling| rolling.partition).max(0))
    }

    /// Returns the ordinals that an update may change, from the highest down.
    fn updated<'a>(&self, ordinals: &'a Ordinals<'a>) -> impl Iterator<Item = &'a OrdinalSlot<'a>> + use<'a> {
        let first = self.first_updated();
        ordinals.slots.iter().rev().take_while(move |slot| i64::from(slot.ordinal) >= first)
    }

    /// Updates one pod at a time; used if the gate MaxUnavailableStatefulSet is off.
    fn update_one(&self, ordinals: &Ordinals<'_>, plan: &mut Plan) {
        if ordinals.missing > MAX_MISSING_ORDINALS {
            return;
        }
        for slot in self.updated(ordinals) {
            // The missing pod is created from the newest revision, and the update waits for it.
            let Some(member) = slot.member else { return };
            if self.is_replaceable(&member.pod) {
                let steps = vec![Step::Delete(member.pod.clone())];
                plan.stages.push(Stage { steps, concurrent: false });
                return;
            }
            if self.is_unavailable(&member.pod) {
                return;
            }
        }
    }

    /// Updates as many pods as may be unavailable. Upstream: pkg/controller/statefulset,
    /// updateStatefulSetAfterInvariantEstablished.
    fn update_within_bounds(&self, ordinals: &Ordinals<'_>, plan: &mut Plan) {
        let Some(bound) = max_unavailable(self.set) else { return };
        let members = ordinals.slots.iter().filter_map(|slot| slot.member);
        let unavailable = ordinals.missing + members.filter(|member| self.is_unavailable(&member.pod)).count();
        plan.unavailable = Some(unavailable);
        let budget = bound.saturating_sub(unavailable);
        let replaceable = |member: &&Member| self.is_replaceable(&member.pod);
        let delete = |member: &Member| Step::Delete(member.pod.clone());
        let mut steps = Vec::new();
        if self.set.parallel {
            // Deleting an unavailable pod does not reduce availability: these pods are deleted regardless of the
            // budget.
            let (available, unavailable): (Vec<_>, Vec<_>) = self
                .updated(ordinals)
                .filter_map(|slot| slot.member)
                .filter(replaceable)
                .partition(|member| self.is_available(&member.pod));
            steps.extend(unavailable.into_iter().chain(available.into_iter().take(budget)).map(delete));
        } else {
            let targets = self.updated(ordinals).filter_map(|slot| slot.member).filter(replaceable);
            steps.extend(targets.take(budget).map(delete));
        }
        plan.stages.push(Stage { steps, concurrent: false });
    }
}
