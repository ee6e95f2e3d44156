//! One reconcile of a Deployment: gather, claim, act in the decided mode, write the status.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::deployment::DeploymentStatus;
use kinds::meta::ObjectKey;
use kinds::raw_object::AnnotationEdits;
use kinds::selector::Selector;
use kinds::{Deployment, Kind, Pod, ReplicaSet, Time};
use runtime::consistency::Consistency;
use runtime::controller_ref::Owner;
use runtime::debounce::StatusDebouncer;
use runtime::events::{EventType, Recorder, about};
use runtime::queue::Queue;
use runtime::store::{Cached, Store, by_controller, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{ObjectResponse, WriteError, Writer};
use tracing::{debug, error, info};

use super::decide::{Step, SyncMode, next_step, old_pods_running, surplus_history, sync_mode};
use super::decide_revision::{is_ours, new_replica_set, new_set_update, revision_edit, rollback};
use super::decide_scale::{Scale, resize, scaled_notice};
use super::decide_status::{
    is_complete, note_collision, note_create_failed, note_created, note_found, note_pause, recheck_after, status,
    write_delay,
};
use super::notice::Notice;
use super::sets::{Sets, possible_match};
use crate::context::Clock;
use crate::pods::creation_gate::CreationGate;
use crate::pods::refusals::{Attempt, Refusals};
use crate::pods::status_write::{StatusWrite, put_status};

/// The controller's state.
pub struct Deployments {
    pub deployments: Arc<Store<Deployment>>,
    pub sets: Arc<Store<ReplicaSet>>,
    pub pods: Arc<Store<Pod>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Arc<Consistency>,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    pub debouncer: StatusDebouncer,
    pub gate: CreationGate,
    pub refusals: Refusals,
    /// True if the status has the number of terminating pods (gate DeploymentReplicaSetTerminatingReplicas).
    pub counts_terminating: bool,
}

/// The reason why a reconcile ends early.
enum Stop {
    /// An object has changed or was deleted since it was read: the key is requeued with backoff.
    Outdated,
    /// The new ReplicaSet cannot be created: the namespace is being deleted.
    NamespaceTerminating,
    /// The creation of the new ReplicaSet was refused, and may be repeated after this delay.
    Waits(Duration),
    /// A request failed, or the Deployment is invalid.
    Failed(ReconcileError),
}

impl From<WriteError> for Stop {
    fn from(error: WriteError) -> Self {
        if error.is_conflict() || error.is_not_found() { Self::Outdated } else { Self::Failed(error.into()) }
    }
}

/// The Deployment of one reconcile.
struct Work<'a> {
    key: &'a ObjectKey,
    deployment: &'a Deployment,
    sets: Sets,
    /// The status with the conditions that record the actions so far.
    noted: DeploymentStatus,
    /// The cache contained all earlier deletions by this process when the sets were read from it.
    are_deletions_cached: bool,
    now: Time,
}

impl Reconcile for Deployments {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl Deployments {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(deployment) = self.deployments.get(key) else {
            self.consistency.forget(key);
            self.refusals.forget(key);
            self.debouncer.forget(key);
            return Ok(Outcome::Done);
        };
        if let Selector::Invalid(why) = &deployment.selector {
            error!(reason = why, "skipping a Deployment with an invalid selector");
            return Ok(Outcome::Done);
        }
        let observed = self.consistency.observe(key, &self.sets, |sets| candidates(&deployment, sets));
        let claimed = self.claim(key, &deployment, observed.children).await?;
        let Some(owned) = self.read_settled(key, claimed) else { return Ok(Outcome::WaitingForCache) };
        let now = Time((self.clock)().as_second());
        let mut work = Work {
            key,
            deployment: &deployment,
            sets: Sets::split(&deployment, &owned),
            noted: deployment.status.clone(),
            are_deletions_cached: observed.are_deletions_cached,
            now,
        };
        let mode = sync_mode(&deployment, &work.sets);
        let status = match self.act(&mut work, mode).await {
            Ok(Some(status)) => status,
            Ok(None) => return Ok(Outcome::Done),
            Err(stop) => return self.end_early(&work, stop).await,
        };
        let edits =
            if deployment.meta.is_deleting() { AnnotationEdits::new() } else { revision_edit(&deployment, &work.sets) };
        let again = if mode == SyncMode::Rollout { recheck_after(&deployment, &status, now) } else { None };
        let write_delay = if edits.is_empty() { write_delay(&deployment, &status) } else { Duration::ZERO };
        if let Some(later) = self.debouncer.wait(key, write_delay) {
            return Ok(Outcome::RequeueAfter(again.map_or(later, |again| again.min(later))));
        }
        if status != deployment.status || !edits.is_empty() {
            match self.put_status(key, &deployment, &status, &edits).await? {
                StatusWrite::Written(_) => {}
                StatusWrite::Outdated | StatusWrite::Deleted => return Ok(Outcome::RequeueWithBackoff),
            }
        }
        Ok(again.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Ends a reconcile early.
    async fn end_early(&self, work: &Work<'_>, stop: Stop) -> Result<Outcome, ReconcileError> {
        // The status must record the actions so far: the next reconcile cannot detect them.
        if work.noted != work.deployment.status {
            match self.put_status(work.key, work.deployment, &work.noted, &AnnotationEdits::new()).await {
                Ok(StatusWrite::Written(_)) => {}
                Ok(StatusWrite::Outdated | StatusWrite::Deleted) => {
                    info!("the Deployment has changed: the status of a reconcile that ended early was not written");
                }
                Err(error) => {
                    info!(%error, "failed to write the status of a Deployment whose reconcile ended early");
                }
            }
        }
        match stop {
            Stop::Outdated => Ok(Outcome::RequeueWithBackoff),
            Stop::NamespaceTerminating => Ok(Outcome::Done),
            Stop::Waits(left) => Ok(Outcome::RequeueAfter(left)),
            Stop::Failed(error) => Err(error),
        }
    }

    /// Returns true if the caches contain all writes of this process for a key. If not, the key is requeued once they
    /// do.
    fn caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || self.queue.waker(key);
        self.consistency.caught_up(key, &self.deployments, wake())
            && self.consistency.caught_up(key, &self.sets, wake())
    }

    /// Reads the sets again. Returns `None` if another controller of this process has just written a set, or is about
    /// to, and the cache does not contain that write yet: a decision would be outdated, and its writes refused. The key
    /// is requeued once the cache is up to date.
    fn read_settled(&self, key: &ObjectKey, claimed: Vec<Arc<ReplicaSet>>) -> Option<Vec<Arc<ReplicaSet>>> {
        let read = |set: Arc<ReplicaSet>| match self.sets.read_settled(&set.meta.key(), self.queue.waker(key)) {
            Cached::Lagging => None,
            // The cache may not contain the adoption of a set yet.
            Cached::Current(newer) if newer.meta.uid == set.meta.uid && newer.meta.version > set.meta.version => {
                Some(newer)
            }
            Cached::Current(_) | Cached::Absent => Some(set),
        };
        claimed.into_iter().map(read).collect()
    }

    async fn claim(
        &self,
        key: &ObjectKey,
        deployment: &Deployment,
        children: Vec<Arc<ReplicaSet>>,
    ) -> Result<Vec<Arc<ReplicaSet>>, ReconcileError> {
        let owner = Owner { meta: &deployment.meta, reference: deployment.controller_ref(), writer: &self.writer };
        let matches = |set: &ReplicaSet| deployment.selector.matches(&set.meta.labels);
        let claimed = owner.claim::<Deployment, ReplicaSet>(children, matches).await;
        for version in &claimed.written {
            self.consistency.wrote(key, &self.sets, *version);
        }
        if claimed.errors.is_empty() {
            Ok(claimed.children)
        } else {
            Err(ReconcileError::new(claimed.errors.join(", ")))
        }
    }

    /// Acts in a sync mode. Returns the status to write, or `None` if the next reconcile writes the status.
    async fn act(&self, work: &mut Work<'_>, mode: SyncMode) -> Result<Option<DeploymentStatus>, Stop> {
        match mode {
            SyncMode::Refuse => {
                self.record_notice(work.deployment, &Notice::selecting_all());
                let generation = work.deployment.meta.generation.max(work.noted.observed_generation);
                return Ok(Some(DeploymentStatus { observed_generation: generation, ..work.noted.clone() }));
            }
            SyncMode::Report => {}
            SyncMode::Hold | SyncMode::Resize | SyncMode::Rollout | SyncMode::RollBack(_) => {
                self.keep_new_set(work).await?
            }
        }
        match mode {
            SyncMode::RollBack(revision) => {
                if work.sets.new.is_none() {
                    self.create(work).await?;
                }
                self.roll_back(work, revision).await?;
                return Ok(None);
            }
            SyncMode::Hold | SyncMode::Resize => {
                let scales = resize(work.deployment, &work.sets);
                self.scale(work, scales).await?;
                if mode == SyncMode::Hold {
                    self.clean(work).await?;
                }
            }
            SyncMode::Rollout => self.roll_out(work).await?,
            SyncMode::Refuse | SyncMode::Report => {}
        }
        Ok(Some(self.status(work, mode == SyncMode::Rollout)))
    }

    /// Records a pause or resume in the status. Updates annotations and `minReadySeconds` of the new set, if it exists.
    async fn keep_new_set(&self, work: &mut Work<'_>) -> Result<(), Stop> {
        note_pause(work.deployment, &mut work.noted, work.now);
        let Some(new) = work.sets.new.clone() else { return Ok(()) };
        if let Some(edits) = new_set_update(work.deployment, &work.sets) {
            self.put_set(work, &new, new.replicas, work.deployment.min_ready_seconds, &edits).await?;
        }
        note_found(work.deployment, &mut work.noted, &new.meta.name, work.now);
        Ok(())
    }

    async fn roll_out(&self, work: &mut Work<'_>) -> Result<(), Stop> {
        loop {
            match next_step(work.deployment, &work.sets, || self.old_pods_running(&work.sets)) {
                Step::Create => self.create(work).await?,
                Step::Scale(scales) => return self.scale(work, scales).await,
                Step::Wait => return Ok(()),
                Step::Settled => {
                    let status = self.status(work, true);
                    return if is_complete(work.deployment, &status) { self.clean(work).await } else { Ok(()) };
                }
                Step::Unsupported(kind) => {
                    let message = format!("unexpected deployment strategy type: {kind}");
                    return Err(Stop::Failed(ReconcileError { message, terminal: true }));
                }
            }
        }
    }

    fn status(&self, work: &Work<'_>, rollout: bool) -> DeploymentStatus {
        let mut status = status(work.deployment, &work.noted, &work.sets, rollout, work.now);
        if !self.counts_terminating {
            status.terminating_replicas = None;
        }
        status
    }

    fn old_pods_running(&self, sets: &Sets) -> bool {
        let pods =
            |set: &Arc<ReplicaSet>| self.pods.by_index(&by_controller(), owned_by(&set.meta.namespace, &set.meta.uid));
        let pods: Vec<_> = sets.old.iter().flat_map(pods).collect();
        old_pods_running(sets, pods.iter().map(|pod| &**pod))
    }

    /// Creates the new set, or finds an existing one.
    async fn create(&self, work: &mut Work<'_>) -> Result<(), Stop> {
        let deployment = work.deployment;
        if self.use_possible_match(work).await? {
            return Ok(());
        }
        if !self.gate.is_open(&work.key.namespace) {
            return Err(Stop::NamespaceTerminating);
        }
        let attempt = Attempt::new(&deployment.meta, 1, work.sets.all().count());
        if let Some(waiting) = self.refusals.waiting(work.key, &attempt) {
            debug!(
                reason = waiting.message, left = ?waiting.left,
                "not creating the new ReplicaSet yet: the last attempt was refused"
            );
            return Err(Stop::Waits(waiting.left));
        }
        let new = new_replica_set(deployment, &work.sets).ok_or_else(no_template)?;
        let body = deployment.new_replica_set(&new).ok_or_else(no_template)?;
        match self.writer.create(&ReplicaSet::RESOURCE, &work.key.namespace, &body, true).await {
            Ok(response) => {
                self.refusals.forget(work.key);
                self.apply_response(work, &response)?;
                note_created(deployment, &mut work.noted, &new.name, work.now);
                if let Some(notice) = scaled_notice(&new.name, 0, new.replicas) {
                    self.record_notice(deployment, &notice);
                }
                Ok(())
            }
            Err(error) if error.is_already_exists() => {
                let key = ObjectKey { namespace: work.key.namespace.clone(), name: new.name.into() };
                let response = self.writer.get(&ReplicaSet::RESOURCE, &key).await?;
                let found: ReplicaSet = response.decode(self.sets.decoding()).map_err(WriteError::from)?;
                if is_ours(deployment, &found) {
                    // In the cache the set may have an outdated template, so it was counted as an old set.
                    work.sets.old.retain(|set| set.meta.uid != found.meta.uid);
                    return self.apply_response(work, &response);
                }
                note_collision(&mut work.noted);
                info!(name = %key.name, count = work.noted.collision_count, "the name of the new ReplicaSet is taken; trying another");
                Err(Stop::Failed(error.into()))
            }
            Err(error) if error.is_namespace_terminating() => {
                self.gate.close(&work.key.namespace);
                Err(Stop::NamespaceTerminating)
            }
            Err(error) if error.is_lost() => Err(Stop::Failed(error.into())),
            Err(error) => {
                self.refusals.failed(work.key, attempt, &error);
                let text = error.to_string();
                let notice = note_create_failed(deployment, &mut work.noted, &new.name, &text, work.now);
                self.record_notice(deployment, &notice);
                Err(Stop::Failed(error.into()))
            }
        }
    }

    /// Reads an old set and the Deployment again if their templates may be equal, but were written by different
    /// versions of the API server. Returns true if they are equal: then the old set becomes the new one.
    async fn use_possible_match(&self, work: &mut Work<'_>) -> Result<bool, Stop> {
        let Some(candidate) = possible_match(work.deployment, &work.sets) else { return Ok(false) };
        let set = self.writer.get(&ReplicaSet::RESOURCE, &candidate.meta.key()).await?;
        let set: ReplicaSet = set.decode(self.sets.decoding()).map_err(WriteError::from)?;
        let deployment = self.writer.get(&Deployment::RESOURCE, work.key).await?;
        let deployment: Deployment = deployment.decode(self.deployments.decoding()).map_err(WriteError::from)?;
        if deployment.meta.generation != work.deployment.meta.generation {
            return Err(Stop::Outdated);
        }
        let same = is_ours(&deployment, &set);
        if same {
            work.sets.old.retain(|old| old.meta.uid != set.meta.uid);
            work.sets.new = Some(Arc::new(set));
        }
        Ok(same)
    }

    async fn scale(&self, work: &mut Work<'_>, scales: Vec<Scale>) -> Result<(), Stop> {
        for scale in scales {
            self.put_set(work, &scale.set, scale.replicas, scale.set.min_ready_seconds, &scale.annotations).await?;
            if let Some(notice) = scale.notice() {
                self.record_notice(work.deployment, &notice);
            }
        }
        Ok(())
    }

    async fn roll_back(&self, work: &Work<'_>, revision: i64) -> Result<(), Stop> {
        let back = rollback(work.deployment, &work.sets, revision);
        let body = work.deployment.update(back.template.as_ref(), &back.annotations).ok_or_else(no_template)?;
        let response = self.writer.replace(&Deployment::RESOURCE, work.key, None, &body).await?;
        if let Ok(meta) = response.meta() {
            self.consistency.wrote(work.key, &self.deployments, meta.version);
        }
        self.record_notice(work.deployment, &back.notice);
        Ok(())
    }

    async fn clean(&self, work: &mut Work<'_>) -> Result<(), Stop> {
        if !work.are_deletions_cached || self.sets.undecodable_in(&work.key.namespace) > 0 {
            return Ok(());
        }
        for surplus in surplus_history(work.deployment, &work.sets) {
            let uid = &surplus.meta.uid;
            self.consistency.deleting(work.key, &ReplicaSet::RESOURCE, &surplus.meta);
            match self.writer.delete(&ReplicaSet::RESOURCE, &surplus.meta.key(), uid).await {
                Ok(()) => {}
                // The set is already deleted, or replaced by another set with its name: the watch will deliver that.
                Err(error) if error.is_object_deleted() => {}
                Err(error) => {
                    self.consistency.not_deleting(work.key, uid);
                    return Err(error.into());
                }
            }
            work.sets.old.retain(|set| set.meta.uid != *uid);
        }
        Ok(())
    }

    async fn put_set(
        &self,
        work: &mut Work<'_>,
        set: &ReplicaSet,
        replicas: i32,
        min_ready_seconds: i32,
        edits: &AnnotationEdits,
    ) -> Result<(), Stop> {
        let body = set.update(replicas, min_ready_seconds, edits).ok_or_else(no_template)?;
        let _underway = self.sets.begin_write(&set.meta.key(), set.meta.version).ok_or(Stop::Outdated)?;
        let response = self.writer.replace(&ReplicaSet::RESOURCE, &set.meta.key(), None, &body).await?;
        self.apply_response(work, &response)
    }

    /// Replaces a set with the one that the API server returned, for later decisions of this sync.
    fn apply_response(&self, work: &mut Work<'_>, response: &ObjectResponse) -> Result<(), Stop> {
        let set: ReplicaSet = response.decode(self.sets.decoding()).map_err(WriteError::from)?;
        self.consistency.wrote(work.key, &self.sets, set.meta.version);
        self.sets.wrote(&set.meta.key(), set.meta.version);
        work.sets.replace(Arc::new(set));
        Ok(())
    }

    async fn put_status(
        &self,
        key: &ObjectKey,
        deployment: &Deployment,
        status: &DeploymentStatus,
        edits: &AnnotationEdits,
    ) -> Result<StatusWrite, WriteError> {
        let body = deployment.status_update(status, edits);
        put_status(&self.writer, &self.consistency, &self.deployments, key, &body).await
    }

    fn record_notice(&self, deployment: &Deployment, notice: &Notice) {
        let kind = if notice.warning { EventType::Warning } else { EventType::Normal };
        self.recorder.event(&about(deployment), kind, notice.reason, notice.message.clone());
    }
}

fn no_template() -> Stop {
    Stop::Failed(ReconcileError::new("spec.template is missing; a write would remove it from the object"))
}

/// Returns the cached ReplicaSets that a Deployment owns, and those without a controller in its namespace; none if the
/// selector is empty.
fn candidates(deployment: &Deployment, sets: &Store<ReplicaSet>) -> Vec<Arc<ReplicaSet>> {
    if deployment.selector.is_everything() {
        return Vec::new();
    }
    let owned = sets.by_index(&by_controller(), owned_by(&deployment.meta.namespace, &deployment.meta.uid));
    [owned, sets.by_index(&by_controller(), orphans_in(&deployment.meta.namespace))].concat()
}
