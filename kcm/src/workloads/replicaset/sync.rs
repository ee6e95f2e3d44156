//! One reconcile of a set of pods: gather, claim, manage, write the status.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kinds::Pod;
use kinds::meta::ObjectKey;
use kinds::replicaset::ReplicaSetStatus;
use kinds::selector::Selector;
use runtime::consistency::Observed;
use runtime::controller_ref::Owner;
use runtime::debounce::StatusDebouncer;
use runtime::handover::{self, Children, Handover};
use runtime::queue::Queue;
use runtime::slow_start::slow_start;
use runtime::store::{Store, by_controller, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use tracing::{debug, error, info};

use super::decide::{self, Gates, Manage};
use super::metrics::DeletionAges;
use super::pod_set::PodSet;
use crate::context::Clock;
use crate::pods::control::PodControl;
use crate::pods::ranking::Ranking;
use crate::pods::refusals::{Attempt, Refusals};
use crate::pods::status_write::{StatusWrite, finish, put_status};

/// The controller's state.
pub struct PodSets<K: PodSet> {
    pub sets: Arc<Store<K>>,
    pub control: PodControl,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    pub gates: Gates,
    /// None for kinds without the metric.
    pub deletion_ages: Option<DeletionAges>,
    pub handover: Handover,
    pub refusals: Refusals,
    pub debouncer: StatusDebouncer,
}

/// The set of one reconcile.
struct Work<'a, K> {
    key: &'a ObjectKey,
    owner: &'a K,
    /// Number of pods that the set owns, in any state.
    owned: usize,
    /// The set's active pods.
    active: Vec<Arc<Pod>>,
    /// Number of the set's pods that are being deleted and have not ended.
    terminating: usize,
    /// The cache contained all known deletions when the pods were read from it (see [`Handover::observe`]).
    are_deletions_cached: bool,
}

/// The result of managing the pods.
#[derive(Debug, Default)]
struct ManageResult {
    /// The reason why pods could not be created or deleted, for the status.
    failure: Option<String>,
    /// The failure happened in this reconcile, which ends with an error.
    is_error: bool,
    /// Delay until the next reconcile.
    next: Option<Duration>,
}

impl ManageResult {
    fn failed(message: impl Into<String>) -> Self {
        Self { failure: Some(message.into()), is_error: true, next: None }
    }
}

impl<K: PodSet> Reconcile for PodSets<K> {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl<K: PodSet> PodSets<K> {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.is_caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(owner) = self.sets.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        let set = owner.replica_set();
        if let Selector::Invalid(why) = &set.selector {
            error!(reason = why, "skipping a ReplicaSet or ReplicationController with an invalid selector");
            return Ok(Outcome::Done);
        }
        // A write whose response was lost may have created or deleted a pod, and the cache may not contain that change.
        if self.control.consistency.take_lost(key) {
            self.handover.require(&set.meta);
        }
        let work = self.gather(key, &*owner).await?;
        match self.manage(&work).await? {
            Some(managed) => self.report(&work, managed).await,
            None => Ok(Outcome::WaitingForCache),
        }
    }

    fn forget(&self, key: &ObjectKey) {
        self.control.consistency.forget(key);
        self.handover.forget(key);
        self.refusals.forget(key);
        self.debouncer.forget(key);
    }

    /// Returns true if the caches contain all writes of this process for a key: those of the set, and those of its
    /// pods. If not, the key is requeued once the caches contain them.
    fn is_caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || self.queue.waker(key);
        self.sets.is_settled(key, wake())
            && self.control.consistency.caught_up(key, &self.sets, wake())
            && self.control.consistency.caught_up(key, &self.control.pods, wake())
    }

    /// Claims the set's pods: adopts those that match, and releases those that no longer do.
    async fn gather<'a>(&self, key: &'a ObjectKey, owner: &'a K) -> Result<Work<'a, K>, ReconcileError> {
        let set = owner.replica_set();
        let pods = &self.control.pods;
        let Observed { mut children, are_deletions_cached } = self.handover.observe(&self.children(owner), |pods| {
            pods.by_index(&by_controller(), owned_by(&set.meta.namespace, &set.meta.uid))
        });
        let owned = children.len();
        children.extend(pods.by_index(&by_controller(), orphans_in(&set.meta.namespace)));
        let terminating = children
            .iter()
            .filter(|pod| pod.is_terminating() && pod.meta.is_controlled_by(&set.meta.uid))
            .filter(|pod| set.selector.matches(&pod.meta.labels))
            .count();
        children.retain(|pod| pod.is_active());
        let claims = Owner { meta: owner.meta(), reference: owner.controller_ref(), writer: &self.control.writer };
        let claimed = claims.claim::<K, Pod>(children, |pod| set.selector.matches(&pod.meta.labels)).await;
        for version in claimed.written {
            self.control.consistency.wrote(key, pods, version);
        }
        if !claimed.errors.is_empty() {
            return Err(ReconcileError::new(claimed.errors.join(", ")));
        }
        Ok(Work { key, owner, owned, active: claimed.children, terminating, are_deletions_cached })
    }

    /// Creates or deletes pods. Returns `None` if nothing was done, because the key waits for the cache.
    async fn manage(&self, work: &Work<'_, K>) -> Result<Option<ManageResult>, ReconcileError> {
        let key = work.key;
        let set = work.owner.replica_set();
        if set.meta.is_deleting() {
            return Ok(Some(ManageResult::default()));
        }
        if !work.are_deletions_cached {
            return Ok(Some(ManageResult { next: Some(handover::RECHECK_DELAY), ..ManageResult::default() }));
        }
        let now = (self.clock)();
        let ranking = || Ranking::new(&self.related(work.owner), self.gates.deletion_cost, now);
        let plan = decide::manage(&work.active, set.replicas, ranking);
        if !matches!(plan, Manage::Nothing) && self.handover.is_due(&set.meta) {
            self.compare(work).await?;
            return Ok(None);
        }
        Ok(Some(match plan {
            Manage::Nothing => {
                self.refusals.forget(key);
                ManageResult::default()
            }
            Manage::Create(count) => self.create(work, count).await,
            Manage::Delete(victims) => self.delete(work, victims).await,
        }))
    }

    /// Compares the set's pods with the API server's, and requeues the key once the cache is up to date.
    async fn compare(&self, work: &Work<'_, K>) -> Result<(), ReconcileError> {
        let children = self.children(work.owner);
        self.handover.compare(&self.sets, &children).await?;
        let delay = self.handover.delay_after_compare(&children, self.is_caught_up(work.key));
        self.queue.add_after(work.key.clone(), delay);
        Ok(())
    }

    fn children<'a>(&'a self, owner: &'a K) -> Children<'a, Pod> {
        let control = &self.control;
        Children {
            owner: owner.meta(),
            selector: &owner.replica_set().selector,
            store: &control.pods,
            consistency: &control.consistency,
            writer: &control.writer,
        }
    }

    /// Returns the pods of all sets of the same owner; none if the set has no owner.
    fn related(&self, set: &K) -> Vec<Arc<Pod>> {
        let namespace = &set.meta().namespace;
        let siblings = match set.meta().controller() {
            Some(controller) => self.sets.by_index(&by_controller(), owned_by(namespace, &controller.uid)),
            None => Vec::new(),
        };
        siblings
            .iter()
            .flat_map(|sibling| self.control.pods.by_index(&by_controller(), owned_by(namespace, &sibling.meta().uid)))
            .collect()
    }

    /// Creates pods with a slow start.
    async fn create(&self, work: &Work<'_, K>, count: usize) -> ManageResult {
        let key = work.key;
        let set = work.owner.replica_set();
        let Some(template) = set.template.as_ref().filter(|template| !template.labels.is_empty()) else {
            return ManageResult::failed("unable to create pods, no labels");
        };
        if !self.control.gate.is_open(&key.namespace) {
            debug!("not creating pods: the namespace is being deleted");
            return ManageResult::default();
        }
        let attempt = Attempt::new(&set.meta, count, work.owned);
        if let Some(waiting) = self.refusals.waiting(key, &attempt) {
            debug!(
                reason = waiting.message, left = ?waiting.left,
                "not creating pods yet: the last attempt was refused"
            );
            return ManageResult { failure: Some(waiting.message), is_error: false, next: Some(waiting.left) };
        }
        debug!(need = set.replicas, count, "too few pods; creating");
        let body = template.pod(key, &work.owner.controller_ref());
        let (created, error) = slow_start(count, |_| self.control.create(key, work.owner, &body)).await;
        let Some(error) = error else {
            self.refusals.forget(key);
            return ManageResult::default();
        };
        info!(created, skipped = count - created, "could not create all pods");
        let Some(error) = error.into_failure() else { return ManageResult::default() };
        self.refusals.failed(key, attempt.after(created), &error);
        ManageResult::failed(error.to_string())
    }

    /// Deletes pods concurrently; reports the first failure.
    async fn delete(&self, work: &Work<'_, K>, victims: Vec<Arc<Pod>>) -> ManageResult {
        if let Err(why) = self.control.check_decodable(&work.key.namespace) {
            return ManageResult::failed(why);
        }
        debug!(need = work.owner.replica_set().replicas, count = victims.len(), "too many pods; deleting");
        if let Some(ages) = &self.deletion_ages {
            ages.record(&work.active, &victims, (self.clock)());
        }
        let deletions = victims.iter().map(|pod| self.control.delete(work.key, work.owner, pod));
        match join_all(deletions).await.into_iter().find_map(Result::err) {
            Some(error) => ManageResult::failed(format!("unable to delete pods: {error}")),
            None => ManageResult::default(),
        }
    }

    /// Writes the status unless the write is delayed.
    async fn report(&self, work: &Work<'_, K>, managed: ManageResult) -> Result<Outcome, ReconcileError> {
        let key = work.key;
        let set = work.owner.replica_set();
        let now = (self.clock)();
        let reports_terminating = K::REPORTS_TERMINATING && self.gates.terminating_replicas;
        let terminating = reports_terminating.then_some(work.terminating);
        let status = decide::status(set, &work.active, terminating, managed.failure.as_deref(), now);
        let available = decide::next_check(&status, &work.active, set.min_ready_seconds, now);
        let wait = if status == set.status {
            self.debouncer.wait(key, Duration::ZERO)
        } else {
            self.debouncer.wait_damped(key, decide::write_delay(set, &status), decide::is_loss(set, &status))
        };
        let mut again = None;
        if wait.is_none() && status != set.status {
            again = self.put_status(key, work.owner, &status).await?;
        }
        let failure = managed.failure.filter(|_| managed.is_error).map(ReconcileError::new);
        if let (Some(outcome), None) = (again, &failure) {
            return Ok(outcome);
        }
        finish(&self.queue, key, [available, wait, managed.next].into_iter().flatten().min(), failure)
    }

    /// Writes the status. Returns the outcome of the reconcile if it could not be written.
    async fn put_status(
        &self,
        key: &ObjectKey,
        owner: &K,
        status: &ReplicaSetStatus,
    ) -> Result<Option<Outcome>, ReconcileError> {
        // The Deployment's controller may have changed the set since this reconcile began.
        let Some(_underway) = self.sets.begin_write(key, owner.meta().version) else {
            return Ok(Some(Outcome::RequeueWithBackoff));
        };
        let control = &self.control;
        let body = owner.replica_set().status_update(status);
        match put_status(&control.writer, &control.consistency, &self.sets, key, &body).await? {
            StatusWrite::Written(response) => {
                if let Ok(meta) = response.meta() {
                    self.sets.wrote(key, meta.version);
                }
                Ok(None)
            }
            StatusWrite::Outdated => Ok(Some(Outcome::RequeueWithBackoff)),
            StatusWrite::Deleted => Ok(Some(Outcome::Done)),
        }
    }
}
