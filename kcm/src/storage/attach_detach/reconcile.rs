//! One reconcile of a volume: gather, decide, act on each of its nodes.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kinds::meta::ObjectKey;
use kinds::{Kind, Node, Str, VolumeAttachment};
use runtime::consistency::Consistency;
use runtime::events::Recorder;
use runtime::queue::Queue;
use runtime::store::Store;
use runtime::wake::Wake;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::{WriteError, Writer};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::debug;

use super::backoff::Backoff;
use super::changes::{Extent, Pods, Scope};
use super::decide::{Attachment, CACHE_RECHECK, Rules, Site, Step, UNDECODABLE_RECHECK, decide};
use super::memory::{Memory, SiteMemory, Sites};
use super::metrics::{Operation, Operations};
use super::observe::{Caches, NamedVolume, Observation, Place};
use crate::shared_read::SharedReads;
use crate::storage::volume_name::Plugin;

/// Settings from the command line.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Volumes in use are never detached because of a timeout.
    pub is_timeout_disabled: bool,
    /// Interval at which the volumes that pods use are reconciled again; `None` if they are not.
    pub sync_period: Option<Duration>,
}

/// State that the reconcilers of volumes and nodes share.
pub struct AttachDetach {
    pub caches: Caches,
    pub memory: Memory,
    pub consistency: Consistency,
    pub writer: Writer,
    pub recorder: Recorder,
    pub volume_queue: Arc<Queue<Str>>,
    pub node_queue: Arc<Queue<Str>>,
    /// Drivers with unresolved attachments (see `unresolved`).
    pub driver_queue: Arc<Queue<Str>>,
    pub operations: Operations,
    pub settings: Settings,
    /// Nodes, read from the API server.
    pub node_reads: SharedReads<Option<Node>>,
    /// State at the start of this leadership term.
    pub term: Term,
}

/// For each kind, the API server's history, which a restore from a backup replaces, and the version in it that the
/// cache must reach in this leadership term. The previous leader may have written objects that the caches do not
/// contain yet.
#[derive(Debug, Default)]
pub struct Term {
    attachments: OnceCell<(u64, u64)>,
    /// Only nodes record the volumes that kubelets attach. Other volumes do not wait for this version.
    nodes: OnceCell<(u64, u64)>,
}

/// Reconciles volumes by their unique names.
pub struct Volumes(pub Arc<AttachDetach>);

impl Reconcile for Volumes {
    type Key = Str;

    fn reconcile<'a>(&'a self, key: &'a Str) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        self.0.sync(key).boxed()
    }
}

/// A volume while it is reconciled.
pub struct Subject<'a> {
    pub name: &'a Str,
    pub plugin: Plugin<'a>,
    pub observation: &'a Observation,
    /// The next steps, in the order of the observation's places.
    pub steps: &'a [Step],
    /// The positions of the places that may have the volume. Thousands of other places may wait for the volume.
    pub occupants: &'a [usize],
    /// The nodes that the observation covers.
    pub scope: &'a Scope,
    /// The volume's key in [`AttachDetach::consistency`].
    pub key: &'a ObjectKey,
    pub now: Instant,
}

/// Time until a node of a volume has to be checked again; `None` if it need not be.
pub type Recheck = Result<Option<Duration>, ReconcileError>;

impl AttachDetach {
    async fn sync(&self, name: &Str) -> Result<Outcome, ReconcileError> {
        let Some(plugin) = Plugin::of(name) else {
            debug!(volume = %name, "ignoring a volume of an unknown plugin");
            return Ok(Outcome::Done);
        };
        let key = ObjectKey::new("", name.clone());
        if !self.is_current(name, plugin, &key).await? {
            return Ok(Outcome::WaitingForCache);
        }
        let now = Instant::now();
        let volume = self.caches.volume(name, plugin);
        let extent = self.extent(&volume, now);
        let read = |_: &Store<VolumeAttachment>| self.caches.observe(&volume, &extent, &self.memory, now);
        let observed = self.consistency.observe(&key, &self.caches.attachments, read);
        if !observed.are_deletions_cached {
            self.memory.changes.postponed(name, extent);
            // No change requeues the volume if its deletion is never in the cache.
            return Ok(Outcome::RequeueAfter(CACHE_RECHECK));
        }
        let observation = observed.children;
        #[cfg(test)]
        self.memory.visit(observation.places.len());
        let sites: Vec<Site> = observation.places.iter().map(|place| place.site.clone()).collect();
        let rules = Rules {
            is_exclusive: observation.is_for_one_node(),
            is_timeout_disabled: self.settings.is_timeout_disabled,
            may_have_undecodable_users: observation.may_have_undecodable_users,
        };
        let steps = decide(&sites, rules);
        let occupants: Vec<usize> = (0..sites.len()).filter(|at| sites[*at].occupies()).collect();
        let mut memories: Vec<SiteMemory> = observation.places.iter().map(|place| place.memory.clone()).collect();
        let subject = Subject {
            name,
            plugin,
            observation: &observation,
            steps: &steps,
            occupants: &occupants,
            scope: &extent.nodes,
            key: &key,
            now,
        };
        let acts = observation.places.iter().zip(&steps).zip(&mut memories);
        let mut rechecks = join_all(acts.map(|((place, step), memory)| self.act(&subject, place, *step, memory))).await;
        let ended = Instant::now();
        let pauses = memories.iter().filter_map(|memory| memory.backoff?.remaining(ended));
        rechecks.extend(pauses.map(|pause| Ok(Some(pause))));
        self.remember(&subject, memories);
        self.outcome(name, &extent, rechecks, sites.iter().any(|site| site.is_wanted))
    }

    /// Returns the extent of a volume's reconcile, and clears the recorded changes.
    fn extent(&self, volume: &NamedVolume<'_>, now: Instant) -> Extent {
        let is_independent = self.caches.has_independent_nodes(volume);
        let extent = self.memory.changes.take(volume.name, is_independent, now);
        if volume.has_one_definition() { extent } else { Extent { pods: Pods::All, ..extent } }
    }

    /// Requeues a volume because of a change of these nodes and pods.
    pub fn requeue(&self, volume: Str, extent: Extent) {
        self.memory.changes.add(&volume, extent);
        self.volume_queue.add(volume);
    }

    /// Returns true if the caches contain everything that this process has written about a volume, all nodes that it
    /// has read for the volume, and all attachments that the previous leader has written; for a volume that kubelets
    /// attach, also all node statuses of the previous leader.
    async fn is_current(&self, name: &Str, plugin: Plugin<'_>, key: &ObjectKey) -> Result<bool, ReconcileError> {
        let Caches { attachments, nodes, .. } = &self.caches;
        let wake = || self.volume_queue.waker(name);
        let is_in_term = self.has_reached(&self.term.attachments, attachments, wake()).await?
            && (matches!(plugin, Plugin::Csi { .. }) || self.has_reached(&self.term.nodes, nodes, wake()).await?);
        Ok(is_in_term
            && self.consistency.caught_up(key, attachments, wake())
            && self.consistency.caught_up(key, nodes, wake()))
    }

    /// Returns true if a cache is at least as new as the API server was at the first reconcile of this leadership
    /// term, or if the server has another history since then, for example after a restore of etcd.
    async fn has_reached<K: Kind>(
        &self,
        newest: &OnceCell<(u64, u64)>,
        store: &Store<K>,
        wake: Wake,
    ) -> Result<bool, ReconcileError> {
        let progress = store.progress();
        let read = || async {
            let history = progress.history();
            let all = self.writer.list_meta(&K::RESOURCE, "", "").await?;
            Ok::<_, WriteError>((history, all.iter().map(|meta| meta.version).max().unwrap_or(0)))
        };
        let (history, newest) = *newest.get_or_try_init(read).await?;
        let is_behind = progress.history() == history && progress.version() < newest;
        if is_behind {
            progress.when_reached(newest, wake);
        }
        Ok(!is_behind)
    }

    async fn act(&self, subject: &Subject<'_>, place: &Place, step: Step, memory: &mut SiteMemory) -> Recheck {
        if !matches!(step, Step::AwaitOtherNode) && !place.site.is_wanted {
            memory.reported_wait = None;
        }
        if !matches!(step, Step::List | Step::AwaitDecodable) && place.site.is_wanted && place.site.is_listed {
            self.set_listed(subject, place, false, true);
        }
        let result = self.take_step_unless_paused(subject, place, step, memory).await;
        self.expect_change(subject, place, step, memory);
        result
    }

    /// Takes the next step, unless it failed a short time ago.
    async fn take_step_unless_paused(
        &self,
        subject: &Subject<'_>,
        place: &Place,
        step: Step,
        memory: &mut SiteMemory,
    ) -> Recheck {
        let operation = Operation::of(step);
        memory.backoff = memory.backoff.filter(|backoff| backoff.is_for(operation));
        if let Some(remaining) = memory.backoff.and_then(|backoff| backoff.remaining(subject.now)) {
            return Ok(Some(remaining));
        }
        let result = self.take_step(subject, place, step, memory).await;
        let failed = operation.filter(|_| result.is_err());
        memory.backoff = failed.map(|operation| Backoff::after(memory.backoff, operation, Instant::now()));
        result
    }

    async fn take_step(&self, subject: &Subject<'_>, place: &Place, step: Step, memory: &mut SiteMemory) -> Recheck {
        match step {
            Step::Idle => Ok(None),
            Step::Attach => self.attach(subject, place, memory).await,
            Step::AwaitAttach => Ok(self.await_attach(subject, place, memory)),
            Step::List => {
                self.list(subject, place, memory);
                Ok(None)
            }
            Step::AwaitOtherNode => {
                // The deletion of an undecodable PersistentVolume requeues nothing.
                let recheck = subject.observation.may_have_undecodable_volumes.then_some(UNDECODABLE_RECHECK);
                Ok(earliest(self.report_wait(subject, place, memory), recheck))
            }
            Step::AwaitDetach => {
                self.await_detach(subject, place, memory);
                Ok(None)
            }
            Step::AwaitDecodable => {
                debug!(volume = %subject.name, node = %place.node, "waiting until the attachment can be decoded");
                Ok(Some(UNDECODABLE_RECHECK))
            }
            Step::AwaitUnmount(remaining) => Ok(remaining),
            Step::Unlist => {
                self.set_listed(subject, place, false, is_awaited(subject, place));
                Ok(None)
            }
            Step::Detach(forced) => self.detach(subject, place, forced, memory).await,
        }
    }

    /// Stores the decision whether the node's status lists the volume, and whether a pod waits for the write.
    pub fn set_listed(&self, subject: &Subject<'_>, place: &Place, is_listed: bool, is_awaited: bool) {
        if self.memory.decide_listing(&place.node, subject.name, is_listed, is_awaited) {
            debug!(volume = %subject.name, node = %place.node, is_listed, "changing the node's attached volumes");
            self.node_queue.add(place.node.clone());
        }
    }

    /// Records whether the node's list will change soon because of the volume, so that one write can serve several
    /// volumes.
    fn expect_change(&self, subject: &Subject<'_>, place: &Place, step: Step, memory: &SiteMemory) {
        let has_failed = || place.attachment.as_ref().is_some_and(|attachment| attachment.attach_error.is_some());
        let is_expected = match step {
            Step::Attach | Step::AwaitAttach => {
                matches!(subject.plugin, Plugin::Csi { .. }) && memory.is_attached && !has_failed()
            }
            Step::AwaitUnmount(_) => place.site.is_listed && place.site.node.is_ready,
            _ => false,
        };
        if self.memory.expect_change(&place.node, subject.name, is_expected) {
            self.node_queue.add(place.node.clone());
        }
    }

    /// Stores the memory of each node where the volume is still wanted or listed, or may be attached.
    fn remember(&self, subject: &Subject<'_>, memories: Vec<SiteMemory>) {
        let mut sites = Sites::new();
        for (place, mut memory) in subject.observation.places.iter().zip(memories) {
            let site = &place.site;
            let is_attached =
                site.attachment != Attachment::Absent && (place.attachment.is_some() || memory.is_attached);
            if !is_attached {
                self.operations.detached(subject.plugin, memory.detach_started.take());
            }
            let is_reserved = memory.is_held || memory.is_abandoned && site.is_in_use;
            if site.is_wanted || site.is_listed || is_attached || is_reserved || memory.uncertain_since.is_some() {
                sites.insert(place.node.clone(), memory);
            }
        }
        let ready = self.memory.store(subject.name, subject.scope, sites);
        ready.into_iter().for_each(|node| self.node_queue.add(node));
    }

    /// Combines the results of all nodes. Each failed node is checked again after its own pause; until then, changes of
    /// the others do not affect it.
    pub fn outcome(
        &self,
        name: &Str,
        extent: &Extent,
        rechecks: Vec<Recheck>,
        is_wanted: bool,
    ) -> Result<Outcome, ReconcileError> {
        let mut next = None;
        let mut errors = Vec::new();
        for recheck in rechecks {
            match recheck {
                Ok(recheck) => next = earliest(next, recheck),
                Err(error) => errors.push(error),
            }
        }
        let next = earliest(next, self.settings.sync_period.filter(|_| is_wanted));
        if !self.memory.has_sites(name) {
            self.memory.changes.forget(name);
        }
        let now = Instant::now();
        let next = self.memory.changes.ended(name, extent, next.map(|next| now + next));
        let next = next.map(|next| next.saturating_duration_since(now));
        let Some(error) = combined(errors) else { return Ok(next.map_or(Outcome::Done, Outcome::RequeueAfter)) };
        // The backoff of one node must not delay the checks of the others.
        if let Some(next) = next {
            self.volume_queue.add_after(name.clone(), next);
        }
        Err(error)
    }
}

fn earliest(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// Combines the failures on several nodes. The result is terminal only if all failures are.
fn combined(errors: Vec<ReconcileError>) -> Option<ReconcileError> {
    let terminal = errors.iter().all(|error| error.terminal);
    let messages: Vec<String> = errors.into_iter().map(|error| error.message).collect();
    (!messages.is_empty()).then(|| ReconcileError { message: messages.join("; "), terminal })
}

/// Returns true if the detachment of a volume from a node is urgent: pods on other nodes wait for it, or the node is
/// out of service or not ready.
fn is_awaited(subject: &Subject<'_>, place: &Place) -> bool {
    let others = || subject.observation.places.iter().filter(|other| other.node != place.node);
    let is_contended = subject.observation.is_for_one_node() && others().any(|other| other.site.is_wanted);
    is_contended || !place.site.node.is_ready || place.site.node.is_out_of_service
}
