//! One reconcile of a StatefulSet: gather, claim, find revisions, plan, execute, write the status, clean the history.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use kinds::statefulset::Strategy;
use kinds::template::Template;
use kinds::{ControllerRevision, Kind, Pod, StatefulSet, Str};
use runtime::controller_ref::Owner;
use runtime::events::{EventType, about};
use runtime::handover::{self, Children};
use runtime::store::{Store, by_controller, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use tracing::{debug, error};

use super::act::Work;
use super::decide::{Plan, PlanInput};
use super::identity::{self, Member};
use super::keys::is_member;
use super::revisions::RevisionSearch;
use super::state::StatefulSets;
use super::status::{self, Revisions};
use crate::pods::refusals::Attempt;
use crate::pods::status_write::{StatusWrite, finish, put_status};
use crate::workloads::controller_revisions::{History, UnmatchedRevisions, surplus};

/// The result of executing the plan.
#[derive(Default)]
struct PlanResult {
    /// The cache has to be up to date before anything is deleted.
    waiting_for_cache: bool,
    /// Time until a refused creation may be repeated.
    again: Option<Duration>,
    failure: Option<ReconcileError>,
}

impl Reconcile for StatefulSets {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl StatefulSets {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.is_caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(set) = self.sets.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        if let Selector::Invalid(why) = &set.selector {
            error!(reason = why, "skipping a StatefulSet with an invalid selector");
            return Ok(Outcome::Done);
        }
        let reference = set.controller_ref();
        let history = History {
            owner: &set.meta,
            reference: &reference,
            revisions: &self.revisions,
            consistency: &self.consistency,
            writer: &self.writer,
            gate: &self.gate,
            refusals: &self.revision_refusals,
        };
        let sorted = history.claim::<StatefulSet>(&set.selector, UnmatchedRevisions::Ignored).await?;
        let observed = self.handover.observe(&self.children(&set), |pods| candidates(&set, pods));
        let members = self.members(key, &set, observed.children).await?;
        if !observed.are_deletions_cached {
            return Ok(Outcome::RequeueAfter(handover::RECHECK_DELAY));
        }
        let Some(template) = &set.template else { return Ok(Outcome::Done) };
        if set.strategy == Strategy::Recreate && !self.gates.recreate {
            return Err(self.unknown_strategy(&set));
        }
        // If the StatefulSet or its namespace is being deleted, no pods are created or deleted.
        let is_ending = set.meta.is_deleting() || !self.gate.is_open(&key.namespace);
        if is_ending && !set.meta.is_deleting() && set.status.update_revision.is_empty() {
            debug!("skipping a StatefulSet: its namespace is being deleted");
            return Ok(Outcome::Done);
        }
        let revisions = self.revisions(&set, template, &history, &sorted, is_ending).await?;
        let revisions = match revisions {
            RevisionSearch::Revisions(revisions) => revisions,
            RevisionSearch::Outdated => return Ok(Outcome::RequeueWithBackoff),
            RevisionSearch::Refused(left) => return Ok(Outcome::RequeueAfter(left)),
        };
        let work = Work::new(self, key, &set, template, history, revisions);
        let worked = self.work(&work, &members, is_ending).await;
        if worked.waiting_for_cache {
            return Ok(Outcome::WaitingForCache);
        }
        let reported = self.report(&work, &members).await;
        let trimmed = self.trim(&work, &members, &sorted).await;
        let (next, failure) = match reported {
            Ok(StatusReport::Outdated) if worked.failure.is_none() => return Ok(Outcome::RequeueWithBackoff),
            Ok(StatusReport::Outdated) => (None, worked.failure),
            Ok(StatusReport::Next(next)) => (next, worked.failure),
            Err(error) => (None, worked.failure.or(Some(error))),
        };
        let next = [next, worked.again].into_iter().flatten().min();
        finish(&self.queue, key, next, failure.or(trimmed.err()))
    }

    /// Returns the revisions of the StatefulSet. If the StatefulSet `is_ending` and its status names revisions, returns
    /// these, and creates none.
    async fn revisions(
        &self,
        set: &StatefulSet,
        template: &Template,
        history: &History<'_>,
        sorted: &[Arc<ControllerRevision>],
        is_ending: bool,
    ) -> Result<RevisionSearch, ReconcileError> {
        if is_ending && !set.status.update_revision.is_empty() {
            let (current, update) = (set.status.current_revision.clone(), set.status.update_revision.clone());
            let collisions = set.status.collision_count;
            return Ok(RevisionSearch::Revisions(Revisions { current, update, collisions }));
        }
        self.resolve(set, template, history, sorted).await
    }

    fn forget(&self, key: &ObjectKey) {
        self.consistency.forget(key);
        self.unavailable.forget(key);
        self.handover.forget(key);
        self.refusals.forget(key);
        self.revision_refusals.forget(key);
        self.memory.forget(key);
        self.debouncer.forget(key);
    }

    fn unknown_strategy(&self, set: &StatefulSet) -> ReconcileError {
        let message = format!(
            "statefulset {} uses Recreate strategy but feature gate StatefulSetRecreateStrategy is disabled",
            set.meta.key()
        );
        self.recorder.event(&about(set), EventType::Warning, "UnknownStrategy", message.clone());
        ReconcileError::new(message)
    }

    /// Makes a plan and executes it.
    async fn work(&self, work: &Work<'_>, members: &[Member], is_ending: bool) -> PlanResult {
        let (key, set) = (work.key, work.set);
        if is_ending {
            return PlanResult::default();
        }
        let mut plan = self.plan(work, members);
        if let Some(count) = plan.unavailable {
            self.unavailable.record(key, count);
        }
        if plan.deletes() && self.handover.is_due(&set.meta) {
            let failure = self.compare(key, set).await.err();
            return PlanResult { waiting_for_cache: failure.is_none(), failure, ..PlanResult::default() };
        }
        let attempt = Attempt::new(&set.meta, plan.creations(), members.len());
        let waiting = self.refusals.waiting(key, &attempt).filter(|_| plan.creations() > 0);
        if let Some(waiting) = &waiting {
            debug!(
                reason = waiting.message, left = ?waiting.left,
                "not creating pods yet: the last attempt was refused"
            );
            plan.postpone_creations();
        }
        // While the plan waits for a pod, other pods whose creation was refused may be missing: their backoff
        // continues.
        let is_settled = waiting.is_none() && (plan.creations() > 0 || plan.waits_for.is_none());
        let failure = work.carry_out(plan).await.err();
        match (&failure, work.done().refusal) {
            (None, _) if is_settled => self.refusals.forget(key),
            (Some(_), Some(message)) => {
                self.refusals.refused(key, attempt.after(work.done().created.len()), message);
            }
            _ => {}
        }
        PlanResult { waiting_for_cache: false, again: waiting.map(|waiting| waiting.left), failure }
    }

    fn plan(&self, work: &Work<'_>, members: &[Member]) -> Plan {
        let input = PlanInput {
            set: work.set,
            members,
            current: &work.revisions.current,
            update: &work.revisions.update,
            defects: &|member| work.defects(member),
            is_stale: &|ordinal| work.has_stale_claim(ordinal),
            gates: self.gates,
            now: (self.clock)(),
        };
        input.plan()
    }

    /// Returns true if the caches contain all writes of this process for a key. If not, the key is requeued once they
    /// do.
    fn is_caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || self.queue.waker(key);
        self.consistency.caught_up(key, &self.sets, wake())
            && self.consistency.caught_up(key, &self.pods, wake())
            && self.consistency.caught_up(key, &self.claims, wake())
            && self.consistency.caught_up(key, &self.revisions, wake())
    }

    /// Compares the StatefulSet's pods with the API server's, and requeues the key once the cache is up to date.
    async fn compare(&self, key: &ObjectKey, set: &StatefulSet) -> Result<(), ReconcileError> {
        let children = self.children(set);
        self.handover.compare(&self.sets, &children).await?;
        self.queue.add_after(key.clone(), self.handover.delay_after_compare(&children, self.is_caught_up(key)));
        Ok(())
    }

    fn children<'a>(&'a self, set: &'a StatefulSet) -> Children<'a, Pod> {
        Children {
            owner: &set.meta,
            selector: &set.selector,
            store: &self.pods,
            consistency: &self.consistency,
            writer: &self.writer,
        }
    }

    /// Adopts and releases pods. Returns the pods of the StatefulSet.
    async fn members(
        &self,
        key: &ObjectKey,
        set: &StatefulSet,
        children: Vec<Arc<Pod>>,
    ) -> Result<Vec<Member>, ReconcileError> {
        let owner = Owner { meta: &set.meta, reference: set.controller_ref(), writer: &self.writer };
        let matches = |pod: &Pod| set.selector.matches(&pod.meta.labels) && is_member(set, &pod.meta);
        let claimed = owner.claim::<StatefulSet, Pod>(children, matches).await;
        for version in claimed.written {
            self.consistency.wrote(key, &self.pods, version);
        }
        if !claimed.errors.is_empty() {
            return Err(ReconcileError::new(claimed.errors.join(", ")));
        }
        let member = |pod: Arc<Pod>| Some(Member { ordinal: identity::parse(&pod.meta.name)?.1, pod });
        Ok(claimed.children.into_iter().filter_map(member).collect())
    }

    /// Writes the status unless the write is delayed.
    async fn report(&self, work: &Work<'_>, members: &[Member]) -> Result<StatusReport, ReconcileError> {
        let set = work.set;
        let key = work.key;
        let now = (self.clock)();
        let done = work.done();
        let status = status::status(set, members, &work.revisions, &done, now);
        let wait = self.debouncer.wait(key, status::delay(set, &status));
        if status != set.status && wait.is_none() {
            let body = set.status_update(&status);
            match put_status(&self.writer, &self.consistency, &self.sets, key, &body).await? {
                StatusWrite::Written(_) => {}
                StatusWrite::Outdated => return Ok(StatusReport::Outdated),
                StatusWrite::Deleted => return Ok(StatusReport::Next(None)),
            }
            if let Some(message) = status::new_report(&set.status, &status) {
                self.recorder.event(&about(set), EventType::Warning, status::ROLLOUT_BLOCKED, message.to_owned());
            }
        }
        let next = status::next_check(set, &status, members, now);
        let report_delay = status::report_delay(set, &work.revisions.update, done.waits_for.as_ref(), now);
        Ok(StatusReport::Next([next, report_delay, wait].into_iter().flatten().min()))
    }

    /// Deletes revisions beyond the history limit.
    async fn trim(
        &self,
        work: &Work<'_>,
        members: &[Member],
        sorted: &[Arc<ControllerRevision>],
    ) -> Result<(), ReconcileError> {
        let kept = usize::try_from(work.set.history_limit).unwrap_or(usize::MAX);
        let namespace = &work.set.meta.namespace;
        if sorted.len() <= kept || self.pods.undecodable_in(namespace) + self.revisions.undecodable_in(namespace) > 0 {
            return Ok(());
        }
        let mut live: HashSet<Str> = members.iter().map(|member| identity::revision(&member.pod).into()).collect();
        live.extend([work.revisions.current.clone(), work.revisions.update.clone()]);
        for revision in surplus(sorted, &live, work.set.history_limit) {
            work.history.delete(&revision).await?;
        }
        Ok(())
    }
}

/// The result of reporting the status.
enum StatusReport {
    /// The status was computed from an outdated StatefulSet.
    Outdated,
    /// The status is up to date, or its write is delayed. Contains the delay until the next reconcile.
    Next(Option<Duration>),
}

/// Returns the cached pods that a StatefulSet owns, and the pods without a controller whose names fit the StatefulSet.
fn candidates(set: &StatefulSet, pods: &Store<Pod>) -> Vec<Arc<Pod>> {
    let mut candidates = pods.by_index(&by_controller(), owned_by(&set.meta.namespace, &set.meta.uid));
    let orphans = pods.by_index(&by_controller(), orphans_in(&set.meta.namespace));
    candidates.extend(orphans.into_iter().filter(|pod| is_member(set, &pod.meta)));
    candidates
}
