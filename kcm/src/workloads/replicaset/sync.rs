//! One reconcile of a set of pods: gather, claim, manage, status.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use kinds::meta::ObjectKey;
use kinds::replicaset::ReplicaSetStatus;
use kinds::selector::Selector;
use kinds::{Kind, Pod};
use runtime::consistency::Consistency;
use runtime::controller_ref::Owner;
use runtime::debounce::StatusDebouncer;
use runtime::events::{EventType, Recorder, about};
use runtime::queue::Queue;
use runtime::slow_start::slow_start;
use runtime::store::{Store, by_controller, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tracing::{debug, error, info};

use super::decide::{self, Manage};
use super::pod_set::PodSet;
use crate::context::Clock;

/// The controller's state.
pub struct PodSets<K: PodSet> {
    pub sets: Arc<Store<K>>,
    pub pods: Arc<Store<Pod>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Arc<Consistency>,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    /// Sets from before our time whose pods were compared with the server's: what another leader did last may
    /// not have reached our stores when we began.
    pub looked: Mutex<HashSet<ObjectKey>>,
    pub debouncer: StatusDebouncer,
    /// When our time began.
    pub begun: OnceLock<Timestamp>,
}

impl<K: PodSet> Reconcile for PodSets<K> {
    type Key = ObjectKey;

    fn begin(&self) {
        self.begun.get_or_init(|| (self.clock)());
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl<K: PodSet> PodSets<K> {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(owner) = self.sets.get(key) else {
            self.consistency.forget(key);
            self.looked().remove(key);
            self.debouncer.forget(key);
            return Ok(Outcome::Done);
        };
        if !self.caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        let set = owner.replica_set();
        if let Selector::Invalid(why) = &set.selector {
            error!(why, "the selector is invalid; nothing is done for it");
            return Ok(Outcome::Done);
        }
        if self.consistency.take_lost(key) && !self.look(key, &owner).await? {
            return Ok(Outcome::WaitingForCache);
        }
        let deletions_seen = self.consistency.deletions_seen(key, &self.pods);
        let mut children = self.pods.by_index(&by_controller(), owned_by(&set.meta.uid));
        children.extend(self.pods.by_index(&by_controller(), orphans_in(&set.meta.namespace)));
        let terminating = children
            .iter()
            .filter(|pod| pod.is_terminating() && pod.meta.is_controlled_by(&set.meta.uid))
            .filter(|pod| set.selector.matches(&pod.meta.labels))
            .count();
        children.retain(|pod| pod.is_active());
        let active = self.claim(key, &owner, children).await?;

        let mut failure = None;
        if deletions_seen && !set.meta.is_deleting() {
            let now = (self.clock)();
            let plan = decide::manage(&active, set.replicas, now, || self.related(&owner));
            if !matches!(plan, Manage::Nothing) && !self.knows_its_pods(key, &owner).await? {
                return Ok(Outcome::WaitingForCache);
            }
            failure = match plan {
                Manage::Nothing => None,
                Manage::Create(count) => self.create(key, &owner, count).await,
                Manage::Delete(victims) => self.delete(key, &owner, victims).await,
            };
        }
        let now = (self.clock)();
        let terminating = K::TELLS_TERMINATING.then_some(terminating);
        let status = decide::status(set, &active, terminating, failure.as_deref(), now);
        let mut next = decide::next_check(&status, &active, set.min_ready_seconds, now);
        let wait = match status == set.status {
            true => self.debouncer.wait(key, Duration::ZERO),
            false => self.debouncer.wait_damped(key, decide::patience(set, &status), decide::is_loss(set, &status)),
        };
        match wait {
            Some(later) => next = Some(next.map_or(later, |next| next.min(later))),
            None if status != set.status => {
                if let Some(outcome) = self.put_status(key, &owner, &status).await? {
                    return failure.map_or(Ok(outcome), |message| Err(ReconcileError::new(message)));
                }
            }
            None => {}
        }
        if let Some(message) = failure {
            return Err(ReconcileError::new(message));
        }
        Ok(next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// Writes the status; an outcome says that it could not be, and why the sync ends.
    async fn put_status(
        &self,
        key: &ObjectKey,
        set: &K,
        status: &ReplicaSetStatus,
    ) -> Result<Option<Outcome>, ReconcileError> {
        // The Deployment's controller may have changed the set since this sync began.
        let Some(_underway) = self.sets.begin_write(key, set.meta().version) else {
            return Ok(Some(Outcome::RequeueWithBackoff));
        };
        let body = set.replica_set().status_update(status);
        match self.writer.replace(&K::RESOURCE, key, Some("status"), &body).await {
            Ok(answer) => {
                if let Ok(meta) = answer.meta() {
                    self.consistency.wrote(key, &self.sets, meta.version);
                    self.sets.wrote(key, meta.version);
                }
                Ok(None)
            }
            // The status was computed from what is no longer true: the change that is on its way leads to another.
            Err(error) if error.is_conflict() => Ok(Some(Outcome::RequeueWithBackoff)),
            Err(error) if error.is_not_found() => Ok(Some(Outcome::Done)),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the stores show all that was written for a key, and the set as this process wrote it last; if not,
    /// the key comes back when they do.
    fn caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || {
            let (queue, key) = (self.queue.clone(), key.clone());
            move || queue.add(key)
        };
        self.sets.is_settled(key, wake())
            && self.consistency.caught_up(key, &self.sets, wake())
            && self.consistency.caught_up(key, &self.pods, wake())
    }

    fn looked(&self) -> std::sync::MutexGuard<'_, HashSet<ObjectKey>> {
        self.looked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before the first creation or deletion for a set that is older than our time: look at the server once.
    async fn knows_its_pods(&self, key: &ObjectKey, set: &K) -> Result<bool, ReconcileError> {
        let begun = self.begun.get_or_init(|| (self.clock)());
        if set.meta().created.0 > begun.as_second() || !self.looked().insert(key.clone()) {
            return Ok(true);
        }
        self.look(key, set).await
    }

    /// Compares our pods with the server's; true when our store is not behind. Else the key comes back when it is not.
    async fn look(&self, key: &ObjectKey, set: &K) -> Result<bool, ReconcileError> {
        let Some(selector) = set.replica_set().selector.query() else { return Ok(true) };
        let listed = self.writer.list_meta(&Pod::RESOURCE, &key.namespace, &selector).await.inspect_err(|_| {
            self.consistency.lost(key);
            self.looked().remove(key);
        })?;
        let newest = listed.iter().filter(|pod| pod.is_controlled_by(&set.meta().uid)).map(|pod| pod.version).max();
        if let Some(newest) = newest {
            self.consistency.wrote(key, &self.pods, newest);
        }
        // A pod that is gone from the server may still be in our store.
        for pod in self.pods.by_index(&by_controller(), owned_by(&set.meta().uid)) {
            if pod.is_active() && !listed.iter().any(|known| known.uid == pod.meta.uid) {
                self.consistency.deleting(key, &pod.meta);
            }
        }
        Ok(self.caught_up(key) && self.consistency.deletions_seen(key, &self.pods))
    }

    async fn claim(&self, key: &ObjectKey, set: &K, children: Vec<Arc<Pod>>) -> Result<Vec<Arc<Pod>>, ReconcileError> {
        let owner = Owner { meta: set.meta(), reference: set.controller_ref(), writer: &self.writer };
        let claimed = owner.claim::<K, Pod>(children, |pod| set.replica_set().selector.matches(&pod.meta.labels)).await;
        for version in claimed.written {
            self.consistency.wrote(key, &self.pods, version);
        }
        if claimed.errors.is_empty() {
            Ok(claimed.children)
        } else {
            Err(ReconcileError::new(claimed.errors.join(", ")))
        }
    }

    /// Pods of all sets of the same owner.
    fn related(&self, set: &K) -> Vec<Arc<Pod>> {
        let siblings = match set.meta().controller() {
            Some(controller) => self.sets.by_index(&by_controller(), owned_by(&controller.uid)),
            None => Vec::new(),
        };
        siblings
            .iter()
            .flat_map(|sibling| self.pods.by_index(&by_controller(), owned_by(&sibling.meta().uid)))
            .collect()
    }

    /// Creates pods, slowly at first; returns what went wrong.
    async fn create(&self, key: &ObjectKey, set: &K, count: usize) -> Option<String> {
        let Some(template) = set.replica_set().template.as_ref().filter(|template| !template.labels.is_empty()) else {
            return Some("unable to create pods, no labels".to_owned());
        };
        debug!(need = set.replica_set().replicas, count, "too few pods; creating");
        let body = template.pod(key, &set.controller_ref());
        let (created, error) = slow_start(count, |_| self.create_one(key, set, &body)).await;
        if error.is_some() {
            info!(created, skipped = count - created, "could not create all pods");
        }
        error.map(|error| error.to_string())
    }

    async fn create_one(&self, key: &ObjectKey, set: &K, body: &[u8]) -> Result<(), WriteError> {
        let created = self.writer.create(&Pod::RESOURCE, &key.namespace, body, false).await;
        match created.and_then(|answer| answer.meta().map_err(WriteError::from)) {
            Ok(pod) => {
                self.consistency.wrote(key, &self.pods, pod.version);
                let message = format!("Created pod: {}", pod.name);
                self.recorder.event(&about(set), EventType::Normal, "SuccessfulCreate", message);
                Ok(())
            }
            // All further creations would fail too, and nobody need be told.
            Err(error) if error.is_namespace_terminating() => Ok(()),
            Err(error) => {
                if error.is_lost() {
                    self.consistency.lost(key);
                }
                let message = format!("Error creating: {error}");
                self.recorder.event(&about(set), EventType::Warning, "FailedCreate", message);
                Err(error)
            }
        }
    }

    /// Deletes pods, all at once; returns what went wrong first.
    async fn delete(&self, key: &ObjectKey, set: &K, victims: Vec<Arc<Pod>>) -> Option<String> {
        let unreadable = self.pods.undecodable();
        if unreadable > 0 {
            return Some(format!("not deleting pods while {unreadable} pods cannot be decoded (see the log)"));
        }
        debug!(need = set.replica_set().replicas, count = victims.len(), "too many pods; deleting");
        let deletions = victims.iter().map(|pod| async move {
            let uid = &pod.meta.uid;
            self.consistency.deleting(key, &pod.meta);
            match self.writer.delete(&Pod::RESOURCE, &pod.meta.key(), uid).await {
                Ok(()) => {
                    let message = format!("Deleted pod: {}", pod.meta.name);
                    self.recorder.event(&about(set), EventType::Normal, "SuccessfulDelete", message);
                    None
                }
                // Gone already: the store will show it.
                Err(error) if error.is_not_found() => None,
                Err(error) => {
                    // A deletion may be repeated: it is bound to the uid.
                    self.consistency.not_deleting(key, uid);
                    let message = format!("Error deleting: {error}");
                    self.recorder.event(&about(set), EventType::Warning, "FailedDelete", message);
                    Some(format!("unable to delete pods: {error}"))
                }
            }
        });
        join_all(deletions).await.into_iter().flatten().next()
    }
}
