//! One reconcile of a DaemonSet: claim, revisions, create and delete, replace, history, status.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kinds::daemonset::REVISION_HASH_LABEL;
use kinds::intern::label;
use kinds::meta::ObjectKey;
use kinds::placement::Placement;
use kinds::selector::Selector;
use kinds::{DaemonSet, Kind, Node, Pod};
use runtime::controller_ref::Owner;
use runtime::events::{EventType, about};
use runtime::handover::{self, Children};
use runtime::lock::lock;
use runtime::slow_start::slow_start;
use runtime::store::{by_controller, index_key, orphans_in, owned_by};
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use tracing::{debug, error, info};

use super::decide::{self, BURST, Backoff, Notice, Plan};
use super::decide_place::{Place, added_tolerations, places};
use super::decide_revision::surplus;
use super::decide_roll::{bounds, roll};
use super::decide_unknown::UnknownNodes;
use super::keys::ALL_NODES;
use super::revisions::{Stop, TemplateRevisions};
use super::state::{DaemonSets, Work};
use crate::pods::refusals::Attempt;
use crate::pods::status_write::{StatusWrite, finish, put_status};
use crate::workloads::controller_revisions::History;

impl Reconcile for DaemonSets {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.sync(key).boxed()
    }
}

impl DaemonSets {
    async fn sync(&self, key: &ObjectKey) -> Result<Outcome, ReconcileError> {
        if !self.is_caught_up(key) {
            return Ok(Outcome::WaitingForCache);
        }
        let Some(set) = self.sets.get(key) else {
            self.forget(key);
            return Ok(Outcome::Done);
        };
        if let Selector::Invalid(why) = &set.selector {
            error!(reason = why, "skipping a DaemonSet with an invalid selector");
            return Ok(Outcome::Done);
        }
        if set.selector.is_everything() {
            let message = "This daemon set is selecting all pods. A non-empty selector is required.".to_owned();
            self.control.recorder.event(&about(&*set), EventType::Warning, "SelectingAll", message);
            return Ok(Outcome::Done);
        }
        let Some(placement) = set.placement.clone().filter(|_| !set.meta.is_deleting()) else {
            return Ok(Outcome::Done);
        };
        if !self.control.gate.is_open(&key.namespace) {
            debug!("skipping a DaemonSet: its namespace is being deleted");
            return Ok(Outcome::Done);
        }
        if self.control.consistency.take_lost(key) {
            self.handover.require(&set.meta);
        }
        let mut work = self.gather(key, &set, &placement).await?;
        let known = match self.find_revisions(&work).await {
            Ok(known) => known,
            Err(Stop::Outdated) => return Ok(Outcome::RequeueWithBackoff),
            Err(Stop::Refused(left)) => return Ok(Outcome::RequeueAfter(left)),
            Err(Stop::Failed(error)) => return Err(error),
        };
        let (nodes, undecodable) = self.nodes.by_index_and_undecodable(&ALL_NODES, index_key(()));
        work.unknown_nodes = UnknownNodes::new(undecodable);
        let places = self.places(&placement, nodes, &work.pods).await?;
        let acted = match self.act(&work, &places, &known).await {
            ActionResult { waiting_for_cache: true, .. } => return Ok(Outcome::WaitingForCache),
            acted => acted,
        };
        let reported = self.report(&work, &places, &known, acted.is_decided).await;
        let (wait, failure) = match (reported, acted.failure) {
            (Ok(StatusReport::Outdated), None) => return Ok(Outcome::RequeueWithBackoff),
            (Ok(StatusReport::Waits(wait)), failure) => (Some(wait), failure),
            (Ok(StatusReport::Done | StatusReport::Outdated), failure) => (None, failure),
            (Err(error), failure) => (None, Some(failure.unwrap_or(error))),
        };
        let available = decide::next_check(&places, set.min_ready_seconds, (self.clock)());
        finish(&self.queue, key, [acted.again, available, wait].into_iter().flatten().min(), failure)
    }

    /// Returns the places of a DaemonSet's pods. Comparing very many tolerations or affinity terms with many nodes
    /// takes long, and must not delay other tasks.
    async fn places(
        &self,
        placement: &Arc<Placement>,
        nodes: Vec<Arc<Node>>,
        pods: &[Arc<Pod>],
    ) -> Result<Vec<Place>, ReconcileError> {
        let compares_numbers = self.compares_numbers;
        if !placement.is_large() {
            return Ok(places(placement, &nodes, pods, compares_numbers));
        }
        let placement = placement.clone();
        let pods = pods.to_vec();
        let found = tokio::task::spawn_blocking(move || places(&placement, &nodes, &pods, compares_numbers)).await;
        found.map_err(|error| ReconcileError::new(error.to_string()))
    }

    /// Reads and claims the pods of a DaemonSet.
    async fn gather<'a>(
        &self,
        key: &'a ObjectKey,
        set: &'a DaemonSet,
        placement: &'a Placement,
    ) -> Result<Work<'a>, ReconcileError> {
        let observed = self.handover.observe(&self.children(set), |pods| {
            let owned = pods.by_index(&by_controller(), owned_by(&set.meta.namespace, &set.meta.uid));
            (owned, pods.by_index(&by_controller(), orphans_in(&set.meta.namespace)))
        });
        let (owned, orphans) = observed.children;
        Ok(Work {
            key,
            set,
            placement,
            owned: owned.len(),
            pods: self.claim(key, set, [owned, orphans].concat()).await?,
            unknown_nodes: UnknownNodes::default(),
            are_deletions_cached: observed.are_deletions_cached,
        })
    }

    fn forget(&self, key: &ObjectKey) {
        self.control.consistency.forget(key);
        self.handover.forget(key);
        self.refusals.forget(key);
        self.revision_refusals.forget(key);
        self.memory.forget(key);
        lock(&self.backoffs).remove(key);
        self.debouncer.forget(key);
    }

    /// Returns true if the caches contain all writes of this process for a key. If not, the key is requeued once they
    /// do.
    fn is_caught_up(&self, key: &ObjectKey) -> bool {
        let wake = || self.queue.waker(key);
        let consistency = &self.control.consistency;
        consistency.caught_up(key, &self.sets, wake())
            && consistency.caught_up(key, &self.control.pods, wake())
            && consistency.caught_up(key, &self.revisions, wake())
    }

    /// Compares the DaemonSet's pods with the API server's, and requeues the key once the cache is up to date.
    async fn compare(&self, work: &Work<'_>) -> Result<(), ReconcileError> {
        let children = self.children(work.set);
        self.handover.compare(&self.sets, &children).await?;
        let delay = self.handover.delay_after_compare(&children, self.is_caught_up(work.key));
        self.queue.add_after(work.key.clone(), delay);
        Ok(())
    }

    fn children<'a>(&'a self, set: &'a DaemonSet) -> Children<'a, Pod> {
        let control = &self.control;
        Children {
            owner: &set.meta,
            selector: &set.selector,
            store: &control.pods,
            consistency: &control.consistency,
            writer: &control.writer,
        }
    }

    /// Adopts and releases pods. Returns the pods of the DaemonSet.
    async fn claim(
        &self,
        key: &ObjectKey,
        set: &DaemonSet,
        children: Vec<Arc<Pod>>,
    ) -> Result<Vec<Arc<Pod>>, ReconcileError> {
        let owner = Owner { meta: &set.meta, reference: set.controller_ref(), writer: &self.control.writer };
        let claimed = owner.claim::<DaemonSet, Pod>(children, |pod| set.selector.matches(&pod.meta.labels)).await;
        for version in claimed.written {
            self.control.consistency.wrote(key, &self.control.pods, version);
        }
        if claimed.errors.is_empty() {
            Ok(claimed.children)
        } else {
            Err(ReconcileError::new(claimed.errors.join(", ")))
        }
    }

    /// Creates, deletes and replaces pods, unless the cache lacks a known deletion.
    async fn act(&self, work: &Work<'_>, places: &[Place], known: &TemplateRevisions) -> ActionResult {
        if !work.are_deletions_cached {
            return ActionResult { again: Some(handover::RECHECK_DELAY), ..ActionResult::default() };
        }
        let mut acted = ActionResult::default();
        acted.failure = self.decide_and_carry_out(work, places, known, &mut acted).await.err();
        acted.is_decided = true;
        acted
    }

    /// Brings the pods closer to the desired state. Old pods are replaced only if no node lacks a pod or has surplus
    /// pods. Upstream: pkg/controller/daemon, updateDaemonSet.
    async fn decide_and_carry_out(
        &self,
        work: &Work<'_>,
        places: &[Place],
        known: &TemplateRevisions,
        acted: &mut ActionResult,
    ) -> Result<(), ReconcileError> {
        let revision = known.revision(work.set);
        let now = (self.clock)();
        let backoff = self.with_backoff(work, |backoff| backoff.clone());
        // The failed pods of undecodable nodes are not deleted, so that the backoff of these nodes does not grow.
        let unknown = |node: &str| work.unknown_nodes.contains(node).then_some(UNKNOWN_NODES_RECHECK);
        let waits = |node: &str| unknown(node).or_else(|| backoff.remaining(node, now));
        let mut plan = decide::manage(work.set, places, revision, now, waits);
        acted.again = plan.again;
        let mut kept = work.unknown_nodes.keep_pods(&mut plan);
        if plan.is_nothing()
            && let Some(bounds) = bounds(work.set, places)
                .map_err(|error| ReconcileError::new(format!("couldn't get unavailable numbers: {error}")))?
        {
            let limited = work.unknown_nodes.limit(bounds, places);
            plan = roll(work.set, places, limited, revision, now);
            kept += work.unknown_nodes.keep_pods(&mut plan);
            let has_old_pods = || places.iter().flat_map(|place| &place.pods).any(|pod| !revision.is_of(pod));
            if limited != bounds && has_old_pods() {
                acted.again = Some(acted.again.map_or(UNKNOWN_NODES_RECHECK, |again| again.min(UNKNOWN_NODES_RECHECK)));
            }
        }
        if !plan.is_nothing() && self.handover.is_due(&work.set.meta) {
            self.compare(work).await?;
            acted.waiting_for_cache = true;
            return Ok(());
        }
        self.carry_out(work, plan, revision.hash, acted).await?;
        self.clean_history(work, known).await?;
        if kept > 0 {
            let message = format!("not deleting {kept} pods: their nodes cannot be decoded (see the log)");
            return Err(ReconcileError::new(message));
        }
        Ok(())
    }

    fn with_backoff<T>(&self, work: &Work<'_>, use_backoff: impl FnOnce(&mut Backoff) -> T) -> T {
        let uid = &work.set.meta.uid;
        let generation = work.set.status.observed_generation;
        let mut backoffs = lock(&self.backoffs);
        let entry = backoffs.entry(work.key.clone()).or_insert_with(|| (uid.clone(), generation, Backoff::default()));
        if (&entry.0, entry.1) != (uid, generation) {
            *entry = (uid.clone(), generation, Backoff::default());
        }
        use_backoff(&mut entry.2)
    }

    async fn carry_out(
        &self,
        work: &Work<'_>,
        plan: Plan,
        hash: &str,
        acted: &mut ActionResult,
    ) -> Result<(), ReconcileError> {
        let Plan { create, mut delete, notices, .. } = plan;
        for (node, notice) in notices {
            self.record_notice(work, &node, notice);
        }
        delete.truncate(BURST);
        let created = if create.is_empty() {
            self.refusals.forget(work.key);
            Ok(())
        } else {
            self.create(work, create, hash, acted).await
        };
        let deleted = if delete.is_empty() { Ok(()) } else { self.delete(work, &delete).await };
        match (created, deleted) {
            (Err(first), Err(second)) => Err(ReconcileError::new(format!("[{first}, {second}]"))),
            (created, deleted) => created.and(deleted),
        }
    }

    fn record_notice(&self, work: &Work<'_>, node: &kinds::Str, notice: Notice) {
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
        self.control.recorder.event(&about(work.set), kind, reason, message);
    }

    /// Creates a pod for each node with a slow start, unless the same attempt was refused and its backoff has not
    /// ended.
    async fn create(
        &self,
        work: &Work<'_>,
        nodes: Vec<kinds::Str>,
        hash: &str,
        acted: &mut ActionResult,
    ) -> Result<(), ReconcileError> {
        let added = added_tolerations(work.placement.host_network);
        let pods = work.set.pods(hash, added).map_err(|error| ReconcileError::new(error.to_string()))?;
        let Some(pods) = pods else { return Ok(()) };
        let attempt = Attempt::new(&work.set.meta, nodes.len(), work.owned);
        if let Some(waiting) = self.refusals.waiting(work.key, &attempt) {
            debug!(
                reason = waiting.message, left = ?waiting.left,
                "not creating pods yet: the last attempt was refused"
            );
            acted.again = Some(acted.again.map_or(waiting.left, |again| again.min(waiting.left)));
            return Ok(());
        }
        let nodes = decide::attempt_order(nodes, self.refusals.count(work.key));
        debug!(count = nodes.len(), "nodes need pods; creating");
        let create = |at: usize| {
            let body = pods.for_node(&nodes[at], work.set);
            async move { self.control.create(work.key, work.set, &body).await }
        };
        let (created, error) = slow_start(nodes.len(), create).await;
        let Some(error) = error else {
            self.refusals.forget(work.key);
            return Ok(());
        };
        info!(created, skipped = nodes.len() - created, "could not create all pods");
        let Some(error) = error.into_failure() else { return Ok(()) };
        self.refusals.failed(work.key, attempt.after(created), &error);
        Err(error.into())
    }

    /// Deletes pods concurrently.
    async fn delete(&self, work: &Work<'_>, victims: &[Arc<Pod>]) -> Result<(), ReconcileError> {
        self.control.check_decodable(&work.key.namespace).map_err(ReconcileError::new)?;
        debug!(count = victims.len(), "deleting pods");
        let deletions = victims.iter().map(|pod| self.control.delete(work.key, work.set, pod));
        join_all(deletions).await.into_iter().find_map(Result::err).map_or(Ok(()), |error| Err(error.into()))
    }

    /// Deletes revisions beyond the history limit.
    async fn clean_history(&self, work: &Work<'_>, known: &TemplateRevisions) -> Result<(), ReconcileError> {
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

    /// Returns the history of a DaemonSet.
    pub fn history<'a>(&'a self, set: &'a DaemonSet, reference: &'a kinds::OwnerRef) -> History<'a> {
        History {
            owner: &set.meta,
            reference,
            revisions: &self.revisions,
            consistency: &self.control.consistency,
            writer: &self.control.writer,
            gate: &self.control.gate,
            refusals: &self.revision_refusals,
        }
    }

    /// Writes the status if it differs and the write is due.
    async fn report(
        &self,
        work: &Work<'_>,
        places: &[Place],
        known: &TemplateRevisions,
        acted: bool,
    ) -> Result<StatusReport, ReconcileError> {
        let status = decide::status(work.set, places, known.revision(work.set), (self.clock)(), acted);
        if let Some(wait) = self.debouncer.wait(work.key, decide::delay(work.set, &status)) {
            return Ok(StatusReport::Waits(wait));
        }
        if status == work.set.status {
            return Ok(StatusReport::Done);
        }
        let control = &self.control;
        let body = work.set.status_update(&status);
        match put_status(&control.writer, &control.consistency, &self.sets, work.key, &body).await? {
            StatusWrite::Outdated => Ok(StatusReport::Outdated),
            StatusWrite::Written(_) | StatusWrite::Deleted => Ok(StatusReport::Done),
        }
    }
}

/// Delay after which a DaemonSet is reconciled again if an undecodable Node limits its rolling update or has a failed
/// pod. A change that makes the Node decodable requeues the DaemonSet only if it also changes the Node's fitness.
const UNKNOWN_NODES_RECHECK: Duration = Duration::from_secs(60);

/// Number of old revisions that are kept if the spec does not set it. The API server always sets a default.
const DEFAULT_HISTORY_LIMIT: i32 = 10;

/// The result of reporting the status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusReport {
    /// The status is up to date.
    Done,
    /// The write of the status is due after this delay.
    Waits(Duration),
    /// The status was computed from an outdated DaemonSet.
    Outdated,
}

/// The result of creating, deleting and replacing pods.
#[derive(Debug, Default)]
struct ActionResult {
    /// Nothing was done: the cache has to be up to date first.
    waiting_for_cache: bool,
    /// A decision about the pods was made, so the generation counts as observed.
    is_decided: bool,
    /// Time until the next reconcile, for example because a failed pod may be deleted then, or a refused creation
    /// repeated.
    again: Option<Duration>,
    /// The error of the reconcile.
    failure: Option<ReconcileError>,
}
