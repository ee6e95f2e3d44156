//! One reconcile of a DaemonSet: revisions, claim, create and delete, replace, history, status.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use kinds::daemonset::REVISION_HASH_LABEL;
use kinds::intern::label;
use kinds::meta::ObjectKey;
use kinds::placement::Placement;
use kinds::selector::Selector;
use kinds::{ControllerRevision, DaemonSet, Kind, Node, Pod, Uid};
use runtime::consistency::Consistency;
use runtime::controller_ref::Owner;
use runtime::debounce::StatusDebouncer;
use runtime::events::{EventType, Recorder, about};
use runtime::queue::Queue;
use runtime::slow_start::slow_start;
use runtime::store::{Store, by_controller, index_key, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tracing::{debug, error, info};

use super::decide::{self, BURST, Backoff, Notice, Plan};
use super::decide_place::{Place, added_tolerations, places};
use super::decide_revision::surplus;
use super::decide_roll::{bounds, roll};
use super::keys::ALL_NODES;
use super::revisions::{Known, Stop};
use crate::context::Clock;
use crate::workloads::controller_revisions::{History, Memory};

/// The controller's state.
pub struct DaemonSets {
    pub sets: Arc<Store<DaemonSet>>,
    pub pods: Arc<Store<Pod>>,
    pub nodes: Arc<Store<Node>>,
    pub revisions: Arc<Store<ControllerRevision>>,
    pub writer: Writer,
    pub recorder: Recorder,
    pub consistency: Arc<Consistency>,
    pub queue: Arc<Queue<ObjectKey>>,
    pub clock: Clock,
    /// Whether tolerations may compare numbers.
    pub comparing: bool,
    /// Which revision each template is.
    pub memory: Arc<Memory>,
    /// Since when counts of pods that are on their way wait to be written.
    pub debouncer: StatusDebouncer,
    /// How long failed pods wait, for a DaemonSet as it was observed last.
    pub backoffs: Mutex<HashMap<ObjectKey, (Uid, i64, Backoff)>>,
    /// DaemonSets from before our time whose pods were compared with the server's: what another leader did last may
    /// not have reached our stores when we began.
    pub looked: Mutex<HashSet<ObjectKey>>,
    /// When our time began.
    pub begun: OnceLock<Timestamp>,
}

/// One DaemonSet at work.
pub struct Work<'a> {
    pub key: &'a ObjectKey,
    pub set: &'a DaemonSet,
    pub placement: &'a Placement,
    /// Its pods.
    pub pods: Vec<Arc<Pod>>,
}

impl Reconcile for DaemonSets {
    type Key = ObjectKey;

    fn begin(&self) {
        self.begun.get_or_init(|| (self.clock)());
    }

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DaemonSets {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        let Some(set) = self.sets.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        if !self.caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        if let Selector::Invalid(why) = &set.selector {
            error!(why, "the DaemonSet's selector is invalid; nothing is done for it");
            return Ok(Outcome::Done);
        }
        if set.selector.is_everything() {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.".to_owned();
            self.recorder.event(&about(&*set), EventType::Warning, "SelectingAll", message);
            return Ok(Outcome::Done);
        }
        let Some(placement) = set.placement.clone().filter(|_| !set.meta.is_deleting()) else {
            return Ok(Outcome::Done);
        };
        if self.consistency.take_lost(key) && !self.look(key, &set).await? {
            return Ok(Outcome::WaitingForCache);
        }
        let deletions_seen = self.consistency.deletions_seen(key, &self.pods);
        let pods = self.claim(key, &set).await?;
        let work = Work { key, set: &set, placement: &placement, pods };
        let known = match self.know_revisions(&work).await {
            Ok(known) => known,
            Err(Stop::Outdated) => return Ok(Outcome::RequeueWithBackoff),
            Err(Stop::Failed(error)) => return Err(error),
        };
        let nodes = self.nodes.by_index(&ALL_NODES, index_key(()));
        let places = places(work.placement, &nodes, &work.pods, self.comparing);
        let done = if deletions_seen { self.act(&work, &places, &known).await } else { Ok(Acted::default()) };
        let acted = match &done {
            Ok(Acted { waiting_for_cache: true, .. }) => return Ok(Outcome::WaitingForCache),
            _ => deletions_seen,
        };
        let reported = self.report(&work, &places, &known, acted).await;
        let again = done?.again;
        let wait = match reported? {
            Reported::Outdated => return Ok(Outcome::RequeueWithBackoff),
            Reported::Waits(wait) => Some(wait),
            Reported::Done => None,
        };
        let available = decide::next_check(&places, set.min_ready_seconds, (self.clock)());
        Ok(again.into_iter().chain(available).chain(wait).min().map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    fn forget(&self, key: &ObjectKey) {
        self.consistency.forget(key);
        lock(&self.looked).remove(key);
        lock(&self.backoffs).remove(key);
        self.debouncer.forget(key);
    }

    /// Whether the stores show all that was written for a key; if not, the key comes back when they do.
    fn caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || {
            let (queue, key) = (self.queue.clone(), key.clone());
            move || queue.add(key)
        };
        self.consistency.caught_up(key, &self.sets, wake())
            && self.consistency.caught_up(key, &self.pods, wake())
            && self.consistency.caught_up(key, &self.revisions, wake())
    }

    /// Before the first creation or deletion for a DaemonSet that is older than our time: look at the server once.
    async fn knows_its_pods(&self, key: &ObjectKey, set: &DaemonSet) -> Result<bool, ReconcileError> {
        let begun = self.begun.get_or_init(|| (self.clock)());
        if set.meta.created.0 > begun.as_second() || !lock(&self.looked).insert(key.clone()) {
            return Ok(true);
        }
        self.look(key, set).await
    }

    /// Compares our pods with the server's; true when our store is not behind. Else the key comes back when it is not.
    async fn look(&self, key: &ObjectKey, set: &DaemonSet) -> Result<bool, ReconcileError> {
        let Some(selector) = set.selector.query() else { return Ok(true) };
        let listed = self.writer.list_meta(&Pod::RESOURCE, &key.namespace, &selector).await.inspect_err(|_| {
            self.consistency.lost(key);
            lock(&self.looked).remove(key);
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

    async fn claim(&self, key: &ObjectKey, set: &DaemonSet) -> Result<Vec<Arc<Pod>>, ReconcileError> {
        let mut children = self.pods.by_index(&by_controller(), owned_by(&set.meta.uid));
        children.extend(self.pods.by_index(&by_controller(), orphans_in(&set.meta.namespace)));
        let owner = Owner { meta: &set.meta, reference: set.controller_ref(), writer: &self.writer };
        let claimed = owner.claim::<DaemonSet, Pod>(children, |pod| set.selector.matches(&pod.meta.labels)).await;
        for version in claimed.written {
            self.consistency.wrote(key, &self.pods, version);
        }
        if claimed.errors.is_empty() {
            Ok(claimed.children)
        } else {
            Err(ReconcileError::new(claimed.errors.join(", ")))
        }
    }

    /// Brings pods closer to what is asked for. Old pods are replaced only when no node misses or has too many
    /// (pkg/controller/daemon, updateDaemonSet).
    async fn act(&self, work: &Work<'_>, places: &[Place], known: &Known) -> Result<Acted, ReconcileError> {
        let revision = known.revision(work.set);
        let now = (self.clock)();
        let backoff = self.with_backoff(work, |backoff| backoff.clone());
        let mut plan = decide::manage(work.set, places, revision, now, |node| backoff.remaining(node, now));
        let again = plan.again;
        if plan.is_nothing()
            && let Some(bounds) = bounds(work.set, places)
                .map_err(|error| ReconcileError::new(format!("couldn't get unavailable numbers: {error}")))?
        {
            plan = roll(work.set, places, bounds, revision, now);
        }
        if !plan.is_nothing() && !self.knows_its_pods(work.key, work.set).await? {
            return Ok(Acted { waiting_for_cache: true, again });
        }
        self.carry_out(work, plan, revision.hash).await?;
        self.clean_history(work, known).await?;
        Ok(Acted { waiting_for_cache: false, again })
    }

    fn with_backoff<T>(&self, work: &Work<'_>, see: impl FnOnce(&mut Backoff) -> T) -> T {
        let (uid, generation) = (&work.set.meta.uid, work.set.status.observed_generation);
        let mut backoffs = lock(&self.backoffs);
        let entry = backoffs.entry(work.key.clone()).or_insert_with(|| (uid.clone(), generation, Backoff::default()));
        if (&entry.0, entry.1) != (uid, generation) {
            *entry = (uid.clone(), generation, Backoff::default());
        }
        see(&mut entry.2)
    }

    async fn carry_out(&self, work: &Work<'_>, plan: Plan, hash: &str) -> Result<(), ReconcileError> {
        let Plan { mut create, mut delete, notices, .. } = plan;
        for (node, notice) in notices {
            self.tell(work, &node, notice);
        }
        create.truncate(BURST);
        delete.truncate(BURST);
        let created = if create.is_empty() { Ok(()) } else { self.create(work, &create, hash).await };
        let deleted = if delete.is_empty() { Ok(()) } else { self.delete(work, &delete).await };
        match (created, deleted) {
            (Err(first), Err(second)) => Err(ReconcileError::new(format!("[{first}, {second}]"))),
            (created, deleted) => created.and(deleted),
        }
    }

    fn tell(&self, work: &Work<'_>, node: &kinds::Str, notice: Notice) {
        let namespace = &work.key.namespace;
        let (kind, reason, message) = match notice {
            Notice::Failed(pod) => {
                let now = (self.clock)();
                self.with_backoff(work, |backoff| backoff.grow(node, now));
                let message = format!("Found failed daemon pod {namespace}/{pod} on node {node}, will try to kill it");
                (EventType::Warning, "FailedDaemonPod", message)
            }
            Notice::Succeeded(pod) => {
                let message =
                    format!("Found succeeded daemon pod {namespace}/{pod} on node {node}, will try to delete it");
                (EventType::Normal, "SucceededDaemonPod", message)
            }
        };
        self.recorder.event(&about(work.set), kind, reason, message);
    }

    /// Creates a pod for each node, slowly at first.
    async fn create(&self, work: &Work<'_>, nodes: &[kinds::Str], hash: &str) -> Result<(), ReconcileError> {
        let added = added_tolerations(work.placement.host_network);
        let pods = work.set.pods(hash, added).map_err(|error| ReconcileError::new(error.to_string()))?;
        let Some(pods) = pods else { return Ok(()) };
        debug!(count = nodes.len(), "nodes need pods; creating");
        let (created, error) = slow_start(nodes.len(), |at| self.create_one(work, pods.at(&nodes[at], work.set))).await;
        match error {
            None => Ok(()),
            Some(error) => {
                info!(created, skipped = nodes.len() - created, "could not create all pods");
                Err(error.into())
            }
        }
    }

    async fn create_one(&self, work: &Work<'_>, body: Vec<u8>) -> Result<(), WriteError> {
        let created = self.writer.create(&Pod::RESOURCE, &work.key.namespace, &body, false).await;
        match created.and_then(|answer| answer.meta().map_err(WriteError::from)) {
            Ok(pod) => {
                self.consistency.wrote(work.key, &self.pods, pod.version);
                let message = format!("Created pod: {}", pod.name);
                self.recorder.event(&about(work.set), EventType::Normal, "SuccessfulCreate", message);
                Ok(())
            }
            // All further creations would fail too, and nobody need be told.
            Err(error) if error.is_namespace_terminating() => Ok(()),
            Err(error) => {
                if error.is_lost() {
                    self.consistency.lost(work.key);
                }
                let message = format!("Error creating: {error}");
                self.recorder.event(&about(work.set), EventType::Warning, "FailedCreate", message);
                Err(error)
            }
        }
    }

    /// Deletes pods, all at once.
    async fn delete(&self, work: &Work<'_>, victims: &[Arc<Pod>]) -> Result<(), ReconcileError> {
        let unreadable = self.pods.undecodable() + self.nodes.undecodable();
        if unreadable > 0 {
            let message = format!("not deleting pods while {unreadable} pods or nodes cannot be decoded (see the log)");
            return Err(ReconcileError::new(message));
        }
        debug!(count = victims.len(), "pods are to go; deleting");
        let deletions = victims.iter().map(|pod| self.delete_one(work, pod));
        join_all(deletions).await.into_iter().find_map(Result::err).map_or(Ok(()), |error| Err(error.into()))
    }

    async fn delete_one(&self, work: &Work<'_>, pod: &Pod) -> Result<(), WriteError> {
        let (key, uid) = (work.key, &pod.meta.uid);
        self.consistency.deleting(key, &pod.meta);
        match self.writer.delete(&Pod::RESOURCE, &pod.meta.key(), uid).await {
            Ok(()) => {
                let message = format!("Deleted pod: {}", pod.meta.name);
                self.recorder.event(&about(work.set), EventType::Normal, "SuccessfulDelete", message);
                Ok(())
            }
            // Gone already: the store will show it.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => {
                // A deletion may be repeated: it is bound to the uid.
                self.consistency.not_deleting(key, uid);
                let message = format!("Error deleting: {error}");
                self.recorder.event(&about(work.set), EventType::Warning, "FailedDelete", message);
                Err(error)
            }
        }
    }

    /// Deletes revisions that are of no use any more.
    async fn clean_history(&self, work: &Work<'_>, known: &Known) -> Result<(), ReconcileError> {
        let live: HashSet<&str> =
            work.pods.iter().filter_map(|pod| label(&pod.meta.labels, REVISION_HASH_LABEL)).collect();
        let limit = work.set.revision_history_limit.unwrap_or(DEFAULT_HISTORY_LIMIT);
        let reference = work.set.controller_ref();
        let history = self.history(work.set, &reference);
        for revision in surplus(&known.old, &live, limit) {
            history
                .delete(revision)
                .await
                .map_err(|error| ReconcileError::new(format!("failed to clean up revisions of DaemonSet: {error}")))?;
        }
        Ok(())
    }

    /// What is needed to change the revisions of a DaemonSet.
    pub fn history<'a>(&'a self, set: &'a DaemonSet, reference: &'a kinds::OwnerRef) -> History<'a> {
        History {
            owner: &set.meta,
            reference,
            revisions: &self.revisions,
            consistency: &self.consistency,
            writer: &self.writer,
        }
    }

    /// Writes the status if it differs and need not wait.
    async fn report(
        &self,
        work: &Work<'_>,
        places: &[Place],
        known: &Known,
        acted: bool,
    ) -> Result<Reported, ReconcileError> {
        let status = decide::status(work.set, places, known.revision(work.set), (self.clock)(), acted);
        if let Some(wait) = self.debouncer.wait(work.key, decide::delay(work.set, &status)) {
            return Ok(Reported::Waits(wait));
        }
        if status == work.set.status {
            return Ok(Reported::Done);
        }
        let body = work.set.status_update(&status);
        match self.writer.replace(&DaemonSet::RESOURCE, work.key, Some("status"), &body).await {
            Ok(answer) => {
                if let Ok(meta) = answer.meta() {
                    self.consistency.wrote(work.key, &self.sets, meta.version);
                }
                Ok(Reported::Done)
            }
            Err(error) if error.is_conflict() => Ok(Reported::Outdated),
            Err(error) if error.is_not_found() => Ok(Reported::Done),
            Err(error) => Err(error.into()),
        }
    }
}

/// Old revisions that are kept when the DaemonSet does not say how many; the API server always says.
const DEFAULT_HISTORY_LIMIT: i32 = 10;

/// What came of reporting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reported {
    /// The status says what there is.
    Done,
    /// It may be written after this time.
    Waits(Duration),
    /// It was computed from what is no longer true.
    Outdated,
}

/// What came of acting.
#[derive(Debug, Default)]
struct Acted {
    /// Nothing was done yet: our stores are behind the server.
    waiting_for_cache: bool,
    /// When a failed pod that waits may go.
    again: Option<Duration>,
}
