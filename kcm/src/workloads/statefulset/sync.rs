//! One reconcile of a StatefulSet: gather, claim, revisions, plan, carry out, status, history.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::Timestamp;
use kinds::meta::ObjectKey;
use kinds::selector::Selector;
use kinds::statefulset::Strategy;
use kinds::{ControllerRevision, Kind, PersistentVolumeClaim, Pod, StatefulSet, Str};
use runtime::consistency::Consistency;
use runtime::controller_ref::Owner;
use runtime::debounce::StatusDebouncer;
use runtime::events::{EventType, Recorder, about};
use runtime::queue::Queue;
use runtime::store::{Store, by_controller, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use tracing::error;

use super::act::Work;
use super::decide::{Gates, Plan, Situation, Step};
use super::identity::{self, Member};
use super::keys::is_member;
use super::status::{self, Revisions};
use crate::context::Clock;
use crate::workloads::controller_revisions::{History, Memory, Unmatched, surplus};

/// When deletions that were asked for do not show in the store, it is looked at again after this time.
const DELETIONS_PATIENCE: Duration = Duration::from_secs(5);

/// The controller's state.
pub struct StatefulSets {
    pub sets: Arc<Store<StatefulSet>>,
    pub pods: Arc<Store<Pod>>,
    pub claims: Arc<Store<PersistentVolumeClaim>>,
    pub revisions: Arc<Store<ControllerRevision>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Arc<Consistency>,
    pub memory: Arc<Memory>,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    pub gates: Gates,
    pub debouncer: StatusDebouncer,
    /// StatefulSets from before our time whose pods were compared with the server's: what another leader deleted last
    /// may not have reached our stores when we began.
    pub looked: Mutex<HashSet<ObjectKey>>,
    /// When our time began.
    pub begun: OnceLock<Timestamp>,
}

impl Reconcile for StatefulSets {
    type Key = ObjectKey;

    fn begin(&self) {
        self.begun.get_or_init(|| (self.clock)());
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl StatefulSets {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(set) = self.sets.get(key) else {
            self.consistency.forget(key);
            self.looked().remove(key);
            self.debouncer.forget(key);
            return Ok(Outcome::Done);
        };
        if !self.caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        if let Selector::Invalid(why) = &set.selector {
            error!(why, "the StatefulSet's selector is invalid; nothing is done for it");
            return Ok(Outcome::Done);
        }
        let reference = set.controller_ref();
        let history = History {
            owner: &set.meta,
            reference: &reference,
            revisions: &self.revisions,
            consistency: &self.consistency,
            writer: &self.writer,
        };
        let sorted = history.claim::<StatefulSet>(&set.selector, Unmatched::Ignored).await?;
        let members = self.members(key, &set).await?;
        if !self.consistency.deletions_seen(key, &self.pods) {
            return Ok(Outcome::RequeueAfter(DELETIONS_PATIENCE));
        }
        let Some(template) = &set.template else { return Ok(Outcome::Done) };
        if set.strategy == Strategy::Recreate && !self.gates.recreate {
            return Err(self.unknown_strategy(&set));
        }
        let deleting = set.meta.is_deleting() && !set.status.update_revision.is_empty();
        let revisions = if deleting {
            let (current, update) = (set.status.current_revision.clone(), set.status.update_revision.clone());
            Revisions { current, update, collisions: set.status.collision_count }
        } else {
            match self.resolve(&set, template, &history, &sorted).await? {
                Some(revisions) => revisions,
                None => return Ok(Outcome::RequeueWithBackoff),
            }
        };
        let work = Work::new(self, key, &set, template, history, revisions);
        let carried_out = match self.work(&work, &members).await {
            Ok(true) => Ok(()),
            Ok(false) => return Ok(Outcome::WaitingForCache),
            Err(error) => Err(error),
        };
        let outcome = self.report(&work, &members).await;
        let trimmed = self.trim(&work, &members, &sorted).await;
        carried_out?;
        let outcome = outcome?;
        trimmed?;
        Ok(outcome)
    }

    fn unknown_strategy(&self, set: &StatefulSet) -> ReconcileError {
        let message = format!(
            "statefulset {} uses Recreate strategy but feature gate StatefulSetRecreateStrategy is disabled",
            set.meta.key()
        );
        self.recorder.event(&about(set), EventType::Warning, "UnknownStrategy", message.clone());
        ReconcileError::new(message)
    }

    /// Plans and carries out; false when our picture of the pods turns out to be old.
    async fn work(&self, work: &Work<'_>, members: &[Member]) -> Result<bool, ReconcileError> {
        let set = work.set;
        if set.meta.is_deleting() {
            return Ok(true);
        }
        let plan = self.plan(work, members);
        let deletes = plan.stages.iter().flat_map(|stage| &stage.steps).any(|step| matches!(step, Step::Delete(_)));
        if deletes && !self.knows_its_pods(work.key, set).await? {
            return Ok(false);
        }
        work.carry_out(plan).await?;
        Ok(true)
    }

    fn plan(&self, work: &Work<'_>, members: &[Member]) -> Plan {
        let situation = Situation {
            set: work.set,
            members,
            current: &work.revisions.current,
            update: &work.revisions.update,
            defects: &|member| work.defects(member),
            is_stale: &|ordinal| work.has_stale_claim(ordinal),
            gates: self.gates,
            now: (self.clock)(),
        };
        situation.plan()
    }

    /// Whether the stores show all that was written for a key; if not, the key comes back when they do.
    fn caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || {
            let (queue, key) = (self.queue.clone(), key.clone());
            move || queue.add(key)
        };
        self.consistency.caught_up(key, &self.sets, wake())
            && self.consistency.caught_up(key, &self.pods, wake())
            && self.consistency.caught_up(key, &self.claims, wake())
            && self.consistency.caught_up(key, &self.revisions, wake())
    }

    fn looked(&self) -> std::sync::MutexGuard<'_, HashSet<ObjectKey>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before the first deletion for a StatefulSet that is older than our time: compares its pods with the server's
    /// once. True when our store is not behind; else the key comes back when it is not.
    async fn knows_its_pods(&self, key: &ObjectKey, set: &StatefulSet) -> Result<bool, ReconcileError> {
        let begun = self.begun.get_or_init(|| (self.clock)());
        if set.meta.created.0 > begun.as_second() || !self.looked().insert(key.clone()) {
            return Ok(true);
        }
        let Some(selector) = set.selector.query() else { return Ok(true) };
        let listed = self.writer.list_meta(&Pod::RESOURCE, &key.namespace, &selector).await.inspect_err(|_| {
            self.looked().remove(key);
        })?;
        let newest = listed.iter().filter(|pod| pod.is_controlled_by(&set.meta.uid)).map(|pod| pod.version).max();
        if let Some(newest) = newest {
            self.consistency.wrote(key, &self.pods, newest);
        }
        // A pod that is gone from the server may still be in our store.
        for pod in self.pods.by_index(&by_controller(), owned_by(&set.meta.uid)) {
            if pod.is_active() && !listed.iter().any(|known| known.uid == pod.meta.uid) {
                self.consistency.deleting(key, &pod.meta);
            }
        }
        Ok(self.caught_up(key) && self.consistency.deletions_seen(key, &self.pods))
    }

    /// The pods of a StatefulSet, adopted ones among them.
    async fn members(&self, key: &ObjectKey, set: &StatefulSet) -> Result<Vec<Member>, ReconcileError> {
        let mut children = self.pods.by_index(&by_controller(), owned_by(&set.meta.uid));
        let orphans = self.pods.by_index(&by_controller(), orphans_in(&set.meta.namespace));
        children.extend(orphans.into_iter().filter(|pod| is_member(set, &pod.meta)));
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

    /// Writes the status if it differs, and says when to look again.
    async fn report(&self, work: &Work<'_>, members: &[Member]) -> Result<Outcome, ReconcileError> {
        let (set, key, now) = (work.set, work.key, (self.clock)());
        let done = work.done();
        let status = status::status(set, members, &work.revisions, &done, now);
        let wait = self.debouncer.wait(key, status::delay(set, &status));
        if status != set.status && wait.is_none() {
            let body = set.status_update(&status);
            match self.writer.replace(&StatefulSet::RESOURCE, key, Some("status"), &body).await {
                Ok(answer) => {
                    if let Ok(meta) = answer.meta() {
                        self.consistency.wrote(key, &self.sets, meta.version);
                    }
                }
                // The status was computed from what is no longer true: the change that is on its way leads to another.
                Err(error) if error.is_conflict() => return Ok(Outcome::RequeueWithBackoff),
                Err(error) if error.is_not_found() => return Ok(Outcome::Done),
                Err(error) => return Err(error.into()),
            }
            if let Some(news) = status::news(&set.status, &status) {
                self.recorder.event(&about(set), EventType::Warning, status::ROLLOUT_BLOCKED, news.to_owned());
            }
        }
        let next = status::next_check(set, &status, members, now);
        let patience = status::patience(set, &work.revisions.update, done.waits_for.as_ref(), now);
        Ok(next.into_iter().chain(patience).chain(wait).min().map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Deletes revisions beyond the history limit.
    async fn trim(
        &self,
        work: &Work<'_>,
        members: &[Member],
        sorted: &[Arc<ControllerRevision>],
    ) -> Result<(), ReconcileError> {
        let kept = usize::try_from(work.set.history_limit).unwrap_or(usize::MAX);
        if sorted.len() <= kept || self.pods.undecodable() > 0 || self.revisions.undecodable() > 0 {
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
