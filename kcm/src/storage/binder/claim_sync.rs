//! One reconcile of a claim: gather, decide, act.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::metadata_edit::annotated;
use kinds::persistent_volume::{MIGRATED_TO, Phase as VolumePhase, with_phase};
use kinds::persistent_volume_claim::{Phase, StatusEdit, with_class, with_condition, with_status};
use kinds::{Kind, PersistentVolume, PersistentVolumeClaim, StorageClass, Str, Time};
use runtime::store::Cached;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::WriteError;
use tracing::{debug, info};

use super::decide_claim::{
    BindWrite, ClaimStep, Cluster, Notice, Search, bound_status, lost_status, may_have_any_volume, next_bind_write,
    next_step, unbound_status,
};
use super::draft::{Draft, Stop};
use super::keys::volume_key;
use super::migration_edits::{annotation_edit, requested_from};
use super::reconciler::Binder;
use super::references::{referring_to_claim, referring_to_volume};
use super::volume_index::is_bound_to_another;
use crate::storage::indexes::{pods_by_claim, using_claim};
use crate::storage::unused::{condition, refers};

/// Reconciles claims.
pub struct Claims(pub Arc<Binder>);

/// Result of a binding's writes to the volume.
enum VolumeWrite {
    /// There was none, or it was refused.
    None,
    /// The volume was written at this version, by this or by another client.
    At(u64),
    /// The response was lost, and the volume is unchanged or cannot be read: the API server may still make the write.
    Unknown,
}

impl Reconcile for Claims {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async {
            let binder = &*self.0;
            match binder.claims.read_settled(key, binder.claim_queue.waker(key)) {
                Cached::Current(claim) => binder.sync_claim(&claim).await.or_else(Stop::into_outcome),
                Cached::Absent => {
                    binder.forget_claim(key);
                    Ok(Outcome::Done)
                }
                Cached::Lagging => Ok(Outcome::WaitingForCache),
            }
        }
        .boxed()
    }
}

impl Cluster for Binder {
    fn volume(&self, name: &str) -> Option<Arc<PersistentVolume>> {
        self.volumes.get(&volume_key(name))
    }

    fn class(&self, name: &str) -> Option<Arc<StorageClass>> {
        self.classes.get(&ObjectKey::new("", name))
    }

    fn is_class_undecodable(&self, name: &str) -> bool {
        self.classes.undecodable_without_record().contains(&ObjectKey::new("", name))
    }

    fn may_have_undecodable_volume(&self, claim: &PersistentVolumeClaim) -> bool {
        self.volumes.any_undecodable(|stale| stale.is_none_or(|volume| !is_bound_to_another(volume, claim)))
    }

    fn find(&self, claim: &PersistentVolumeClaim, is_limited: bool) -> Search {
        self.matcher.find(claim, is_limited)
    }

    fn default_class(&self) -> Option<Str> {
        if self.classes.undecodable() > 0 {
            return None;
        }
        let defaults = self.classes.all().into_iter().filter(|class| class.is_default);
        // Of several default classes the newest counts, or the first by name among those of the same age.
        let best =
            defaults.min_by(|a, b| b.meta.created.cmp(&a.meta.created).then_with(|| a.meta.name.cmp(&b.meta.name)));
        best.map(|class| class.meta.name.clone())
    }

    fn unscheduled_pods(&self, claim: &PersistentVolumeClaim) -> Vec<Str> {
        let pods = self.pods_using(&claim.meta.key());
        let mut names: Vec<Str> =
            pods.iter().filter(|pod| pod.node.is_empty()).map(|pod| pod.meta.name.clone()).collect();
        names.sort_unstable();
        names
    }
}

impl Binder {
    fn forget_claim(&self, key: &ObjectKey) {
        self.stop_waiting(key);
        self.operations.forget_provision(key);
    }

    fn stop_waiting(&self, key: &ObjectKey) {
        self.matcher.stop_waiting(key);
        self.notices.forget::<PersistentVolumeClaim>(key);
    }

    /// Confirms with the API server that the cached volume of a claim is current, before the claim is marked as lost.
    ///
    /// The two caches are not equally old: the cache of claims may contain a binding, while the cache of volumes does
    /// not contain the volume yet.
    async fn confirm_loss(&self, claim: &PersistentVolumeClaim) -> Result<(), Stop> {
        if claim.volume_name.is_empty() {
            return Ok(());
        }
        let key = volume_key(claim.volume_name.clone());
        let cached = self.volumes.get(&key).map(|volume| volume.meta.version);
        let current = match self.writer.get(&PersistentVolume::RESOURCE, &key).await {
            Ok(response) => Some(response.meta().map_err(WriteError::from)?.version),
            // A tenant may write any volume name into a claim, and no volume can have an invalid name.
            Err(error) if error.is_not_found() || error.is_invalid_name() => None,
            Err(error) => return Err(Stop::Failed(error)),
        };
        if cached == current { Ok(()) } else { Err(Stop::Outdated) }
    }

    async fn sync_claim(&self, claim: &Arc<PersistentVolumeClaim>) -> Result<Outcome, Stop> {
        if self.correct_migration(claim).await? {
            return Ok(Outcome::Done);
        }
        if !may_have_any_volume(claim) {
            // The claim may have waited before a user named its volume. A volume that becomes free must now wake
            // another claim.
            self.matcher.stop_waiting(&claim.meta.key());
        }
        match next_step(claim, self).map_err(Stop::Error)? {
            ClaimStep::Bind { volume, is_found } => self.bind_held(claim, &volume, is_found).await,
            ClaimStep::Pend(notice) => {
                if let Some(notice) = notice {
                    self.notices.record_waiting(&**claim, &notice);
                }
                self.put_claim_status(claim, unbound_status(claim, Phase::Pending)).await?;
                Ok(Outcome::RequeueAfter(self.settings.sync_period))
            }
            ClaimStep::Lose(notice) => {
                let Some(edit) = lost_status(claim) else { return Ok(Outcome::Done) };
                self.confirm_loss(claim).await?;
                self.put_claim_status(claim, Some(edit)).await?;
                info!(claim = %claim.meta.key(), volume = &*claim.volume_name, reason = notice.reason, "claim lost its volume");
                self.notices.record(&**claim, &notice);
                Ok(Outcome::Done)
            }
            ClaimStep::DecideAgain => Ok(Outcome::RequeueWithBackoff),
            ClaimStep::AssignClass(class) => self.assign_class(claim, &class).await,
            ClaimStep::Provision(class) => self.provision(claim, &class).await,
            ClaimStep::Retry(notice, problem) => {
                self.notices.record_waiting(&**claim, &notice);
                Err(Stop::Error(problem))
            }
        }
    }

    /// Sets or removes the annotation of a migrated provisioner. Returns true if the claim was written.
    async fn correct_migration(&self, claim: &PersistentVolumeClaim) -> Result<bool, Stop> {
        let Some(edit) = annotation_edit(requested_from(claim), claim.annotation(MIGRATED_TO)) else {
            return Ok(false);
        };
        let mut draft = Draft::open(&self.claims, &self.writer, claim).await?;
        draft.put(None, |object| annotated(object, &[(MIGRATED_TO, edit.value())])).await?;
        Ok(true)
    }

    async fn put_claim_status(&self, claim: &PersistentVolumeClaim, edit: Option<StatusEdit<'_>>) -> Result<(), Stop> {
        let Some(edit) = edit else { return Ok(()) };
        let mut draft = Draft::open(&self.claims, &self.writer, claim).await?;
        draft.put_status(|object| with_status(object, &edit)).await
    }

    /// Gives a claim the default class.
    async fn assign_class(&self, claim: &PersistentVolumeClaim, class: &str) -> Result<Outcome, Stop> {
        let assigned = async {
            let mut draft = Draft::open(&self.claims, &self.writer, claim).await?;
            draft.put(None, |object| with_class(object, class)).await
        };
        let result = assigned.await;
        if !matches!(result, Err(Stop::Outdated)) {
            self.operations.class_assigned(result.is_ok());
        }
        result.map(|()| Outcome::Done)
    }

    /// Binds a claim to a volume that no other claim may take in the meantime.
    async fn bind_held(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        volume: &Arc<PersistentVolume>,
        is_found: bool,
    ) -> Result<Outcome, Stop> {
        let is_settled = next_bind_write(claim, volume) == BindWrite::ClaimStatus
            && bound_status(claim, volume).map_err(Stop::Error)?.is_none();
        if is_settled && !is_found {
            self.stop_waiting(&claim.meta.key());
            return Ok(Outcome::Done);
        }
        let name = &volume.meta.name;
        if !is_found && !self.matcher.hold(name, &claim.meta.key()) {
            return Ok(Outcome::RequeueWithBackoff);
        }
        let mut write = VolumeWrite::None;
        let result = self.bind(claim, volume, &mut write).await;
        self.end_hold(claim, volume, write);
        match &result {
            Ok(()) if is_found => self.operations.provision_succeeded(&claim.meta.key()),
            Err(Stop::Failed(_) | Stop::Error(_)) if is_found => self.operations.provision_failed(&claim.meta.key()),
            _ => {}
        }
        result?;
        self.stop_waiting(&claim.meta.key());
        Ok(Outcome::Done)
    }

    /// Ends the hold of a volume after a binding, or keeps it until the cache contains the volume as it was written.
    fn end_hold(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume, write: VolumeWrite) {
        let key = claim.meta.key();
        let held = (&volume.meta.name, &key);
        let current = || self.volumes.get(&volume.meta.key());
        let written = match write {
            VolumeWrite::None => None,
            VolumeWrite::At(version) => Some(version),
            // No waiting claim is woken: it must not take the volume.
            VolumeWrite::Unknown => return self.matcher.keep_hold(held, volume.meta.version, current),
        };
        if let Some(waiting) = self.matcher.release(held, written, current) {
            self.claim_queue.add(waiting);
        }
        if let Some(written) = written {
            self.matcher.expire_hold(self.volumes.progress(), held.0, written);
        }
    }

    /// Makes the writes of a binding that are still missing. `write` is set to the result of the writes to the volume.
    async fn bind(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        write: &mut VolumeWrite,
    ) -> Result<(), Stop> {
        let mut claim_draft = None;
        let needs_reference = matches!(next_bind_write(claim, volume), BindWrite::VolumeReference { .. });
        if needs_reference {
            // The API server may already have a binding that this cache does not contain: the claim must not take a
            // second volume.
            claim_draft = Some(Draft::read(&self.claims, &self.writer, claim).await?);
        }
        let bound_volume = self.bind_volume(claim, volume, write).await?;
        let volume = bound_volume.as_ref().unwrap_or(volume);
        if next_bind_write(claim, volume) == BindWrite::ClaimStatus
            && bound_status(claim, volume).map_err(Stop::Error)?.is_none()
        {
            return Ok(());
        }
        let mut draft = match claim_draft {
            Some(draft) => draft,
            None => Draft::open(&self.claims, &self.writer, claim).await?,
        };
        if let BindWrite::ClaimReference { by_controller } = next_bind_write(claim, volume) {
            draft.put(None, |object| referring_to_volume(object, volume, by_controller)).await?;
        }
        let bound = draft.record.clone();
        if let Some(edit) = bound_status(&bound, volume).map_err(Stop::Error)? {
            let is_unused = edit.phase.and_then(|_| self.first_unused(&bound));
            let now = Time((self.clock)().as_second());
            draft
                .put_status(|object| {
                    let edited = with_status(object, &edit)?;
                    match is_unused {
                        Some(is_unused) => with_condition(&edited, condition(is_unused), now),
                        None => Ok(edited),
                    }
                })
                .await?;
        }
        debug!(claim = %claim.meta.key(), volume = &*volume.meta.name, "bound claim");
        Ok(())
    }

    /// Returns the first status of the condition `Unused` of a claim that becomes bound, which is written together with
    /// the binding; `None` if it must not be written. If the cache lacks a pod, the controller that maintains the
    /// condition corrects it when the watch delivers the pod.
    pub fn first_unused(&self, claim: &PersistentVolumeClaim) -> Option<bool> {
        if !self.settings.tracks_unused || claim.meta.is_deleting() || claim.unused.is_some() {
            return None;
        }
        // A pod that cannot be decoded may use the claim. The controller that maintains the condition lists the pods.
        if self.pods.undecodable_in(&claim.meta.namespace) > 0 {
            return None;
        }
        let pods = self.pods.by_index(&pods_by_claim(), using_claim(&claim.meta.namespace, &claim.meta.name));
        Some(!pods.iter().any(|pod| refers(pod, claim)))
    }

    /// Makes the missing writes to the volume. Returns the volume if it was written.
    async fn bind_volume(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        write: &mut VolumeWrite,
    ) -> Result<Option<PersistentVolume>, Stop> {
        let next = next_bind_write(claim, volume);
        if !matches!(next, BindWrite::VolumeReference { .. } | BindWrite::VolumePhase) {
            return Ok(None);
        }
        let mut draft = Draft::open(&self.volumes, &self.writer, volume).await?;
        if let BindWrite::VolumeReference { by_controller } = next {
            let referring = draft.put(None, |object| referring_to_claim(object, claim, by_controller)).await;
            if let Err(Stop::Failed(error)) = &referring
                && error.is_lost()
            {
                *write = self.lost_write(volume).await;
            }
            referring?;
            *write = VolumeWrite::At(draft.record.meta.version);
        }
        if draft.record.phase != VolumePhase::Bound {
            draft.put_status(|object| with_phase(object, VolumePhase::Bound, "")).await?;
            *write = VolumeWrite::At(draft.record.meta.version);
        }
        Ok(Some(draft.record.clone()))
    }
}

impl Binder {
    /// Reads a volume after a write to it whose response was lost. If the write takes effect, the claim must not get
    /// another volume before the cache contains the write: this volume would be released, and deleted if its reclaim
    /// policy is Delete.
    async fn lost_write(&self, volume: &PersistentVolume) -> VolumeWrite {
        let Ok(response) = self.writer.get(&PersistentVolume::RESOURCE, &volume.meta.key()).await else {
            return VolumeWrite::Unknown;
        };
        match response.meta() {
            Ok(meta) if meta.version > volume.meta.version => VolumeWrite::At(meta.version),
            _ => VolumeWrite::Unknown,
        }
    }

    /// Records an event about a claim that cannot be provisioned, and requeues the claim after the sync period.
    pub fn wait_for_class(&self, claim: &PersistentVolumeClaim, message: String) -> Outcome {
        self.notices.record_waiting(claim, &Notice::warning("ProvisioningFailed", message));
        Outcome::RequeueAfter(self.settings.sync_period)
    }
}
