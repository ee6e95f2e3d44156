//! One reconcile of a volume: gather, decide, act on each of its nodes.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kinds::meta::ObjectKey;
use kinds::{Kind, Str, VolumeAttachment};
use runtime::consistency::Consistency;
use runtime::events::Recorder;
use runtime::queue::Queue;
use runtime::store::Store;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::Writer;
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::debug;

use super::decide::{Attachment, Rules, Site, Step, decide};
use super::memory::{Memory, SiteMemory, Sites};
use super::metrics::Operations;
use super::observe::{Caches, Observation, Place};
use crate::storage::volume_name::Plugin;

/// Settings from the command line.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Volumes in use are never detached only because of the time.
    pub is_timeout_disabled: bool,
    /// Volumes that pods use are reconciled again after this time; `None` if they are not.
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
    pub operations: Operations,
    pub settings: Settings,
    /// History and version that the cache of VolumeAttachments must have reached in this leadership term.
    pub term: OnceCell<(u64, u64)>,
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
        if !self.is_current(name, &key).await? {
            return Ok(Outcome::WaitingForCache);
        }
        let now = Instant::now();
        let read = |_: &Store<VolumeAttachment>| self.caches.observe(name, plugin, &self.memory, now);
        let observed = self.consistency.observe(&key, &self.caches.attachments, read);
        if !observed.are_deletions_cached {
            return Ok(Outcome::WaitingForCache);
        }
        let observation = observed.children;
        let sites: Vec<Site> = observation.places.iter().map(|place| place.site.clone()).collect();
        let rules =
            Rules { is_exclusive: observation.is_exclusive, is_timeout_disabled: self.settings.is_timeout_disabled };
        let steps = decide(&sites, rules);
        let mut memories: Vec<SiteMemory> = observation.places.iter().map(|place| place.memory.clone()).collect();
        let subject = Subject { name, plugin, observation: &observation, key: &key, now };
        let acts = observation.places.iter().zip(&steps).zip(&mut memories);
        let rechecks = join_all(acts.map(|((place, step), memory)| self.act(&subject, place, *step, memory))).await;
        self.remember(&subject, memories);
        self.outcome(rechecks, sites.iter().any(|site| site.is_wanted))
    }

    /// Returns true if the cache contains all attachments that this process, or the previous leader, has created.
    async fn is_current(&self, name: &Str, key: &ObjectKey) -> Result<bool, ReconcileError> {
        let attachments = &self.caches.attachments;
        let wake = || self.volume_queue.waker(name);
        let (history, newest) = *self.term.get_or_try_init(|| self.newest_attachment()).await?;
        let progress = attachments.progress();
        if progress.history() == history && progress.version() < newest {
            progress.when_reached(newest, wake());
            return Ok(false);
        }
        Ok(self.consistency.caught_up(key, attachments, wake()))
    }

    /// Returns the newest version of any VolumeAttachment of the API server. The previous leader may have requested
    /// attachments that the cache does not contain yet.
    async fn newest_attachment(&self) -> Result<(u64, u64), ReconcileError> {
        let history = self.caches.attachments.progress().history();
        let all = self.writer.list_meta(&VolumeAttachment::RESOURCE, "", "").await?;
        Ok((history, all.iter().map(|meta| meta.version).max().unwrap_or(0)))
    }

    async fn act(&self, subject: &Subject<'_>, place: &Place, step: Step, memory: &mut SiteMemory) -> Recheck {
        if !matches!(step, Step::AwaitOtherNode) {
            memory.is_wait_reported &= place.site.is_wanted;
        }
        if step != Step::List && place.site.is_wanted && place.site.is_listed {
            self.set_listed(subject, place, false, true);
        }
        match step {
            Step::Idle => Ok(None),
            Step::Attach => self.attach(subject, place, memory).await,
            Step::AwaitAttach => Ok(self.await_attach(subject, place, memory)),
            Step::List => {
                self.list(subject, place, memory);
                Ok(None)
            }
            Step::AwaitOtherNode => {
                self.report_wait(subject, place, memory);
                Ok(None)
            }
            Step::AwaitDetach => {
                self.await_detach(subject, place, memory);
                Ok(None)
            }
            Step::AwaitUnmount(remaining) => Ok(remaining),
            Step::Unlist => {
                self.set_listed(subject, place, false, is_awaited(subject, place));
                Ok(None)
            }
            Step::Detach(forced) => self.detach(subject, place, forced, memory).await,
        }
    }

    /// Decides whether the node's status lists the volume, and whether a pod waits for that.
    pub fn set_listed(&self, subject: &Subject<'_>, place: &Place, is_listed: bool, is_awaited: bool) {
        if self.memory.decide_listing(&place.node, subject.name, is_listed, is_awaited) {
            debug!(volume = %subject.name, node = %place.node, is_listed, "changing the node's attached volumes");
            self.node_queue.add_coalesced(place.node.clone());
        }
    }

    /// Stores the memory of each node where the volume is still wanted, attached or listed.
    fn remember(&self, subject: &Subject<'_>, memories: Vec<SiteMemory>) {
        let mut sites = Sites::new();
        for (place, memory) in subject.observation.places.iter().zip(memories) {
            let site = &place.site;
            let is_attached =
                site.attachment != Attachment::Absent && (place.attachment.is_some() || memory.is_attached);
            if site.is_wanted || site.is_listed || is_attached || memory.is_held || memory.uncertain_since.is_some() {
                sites.insert(place.node.clone(), memory);
            } else {
                self.operations.detached(subject.plugin, memory.detach_started);
            }
        }
        self.memory.store(subject.name, sites);
    }

    fn outcome(&self, rechecks: Vec<Recheck>, is_wanted: bool) -> Result<Outcome, ReconcileError> {
        let mut next = self.settings.sync_period.filter(|_| is_wanted);
        for recheck in rechecks {
            next = match (next, recheck?) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        Ok(next.map_or(Outcome::Done, Outcome::RequeueAfter))
    }
}

/// Returns true if the detachment of a volume from a node is urgent: pods on other nodes wait for it, or the node is
/// unhealthy.
fn is_awaited(subject: &Subject<'_>, place: &Place) -> bool {
    let others = || subject.observation.places.iter().filter(|other| other.node != place.node);
    let is_contended = subject.observation.is_exclusive && others().any(|other| other.site.is_wanted);
    is_contended || !place.site.node.is_ready || place.site.node.is_out_of_service
}
