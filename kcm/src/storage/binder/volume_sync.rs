//! One reconcile of a volume: gather, decide, act.

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use kinds::meta::ObjectKey;
use kinds::metadata_edit::annotated;
use kinds::persistent_volume::{MIGRATED_TO, PROVISIONED_BY, Phase, with_phase};
use kinds::{Kind, PersistentVolume, PersistentVolumeClaim};
use runtime::store::Cached;
use runtime::worker::{Outcome, Reconcile, ReconcileError};
use runtime::write::WriteError;
use tracing::info;

use super::decide_claim::Notice;
use super::decide_volume::{VolumeStep, is_reclaimable, needs_uncached_claim, next_step};
use super::draft::{Draft, Stop};
use super::migration_edits::{annotation_edit, finalizer_edit};
use super::reconciler::Binder;
use super::references::unbound;
use super::volume_index::claim_key;

/// Reconciles volumes.
pub struct Volumes(pub Arc<Binder>);

impl Reconcile for Volumes {
    type Key = ObjectKey;

    fn reconcile<'a>(&'a self, key: &'a ObjectKey) -> BoxFuture<'a, Result<Outcome, ReconcileError>> {
        async {
            let binder = &*self.0;
            match binder.volumes.read_settled(key, binder.volume_queue.waker(key)) {
                Cached::Current(volume) => binder.sync_volume(&volume).await.or_else(Stop::into_outcome),
                Cached::Absent => binder.forget_volume(key).await.or_else(Stop::into_outcome),
                Cached::Lagging => Ok(Outcome::WaitingForCache),
            }
        }
        .boxed()
    }
}

impl Binder {
    async fn forget_volume(&self, key: &ObjectKey) -> Result<Outcome, Stop> {
        self.notices.forget::<PersistentVolume>(key);
        self.operations.volume_deleted(&key.name);
        self.stop_run(&key.name).await?;
        self.recycling.forget(&key.name);
        Ok(Outcome::Done)
    }

    async fn sync_volume(&self, volume: &PersistentVolume) -> Result<Outcome, Stop> {
        if self.correct_metadata(volume).await? {
            return Ok(Outcome::Done);
        }
        let claim = self.claim_of(volume).await?;
        let step = next_step(volume, claim.as_deref());
        if step != VolumeStep::Reclaim {
            self.stop_recycler(volume).await?;
        }
        match step {
            VolumeStep::SetPhase(phase) => {
                self.put_phase(volume, phase, "").await?;
                Ok(Outcome::Done)
            }
            VolumeStep::ReconcileClaim => {
                if let Some(key) = claim_key(volume) {
                    self.claim_queue.add(key);
                }
                Ok(Outcome::Done)
            }
            VolumeStep::Mismatch(on_volume, on_claim) => {
                self.notices.record_waiting(volume, &on_volume);
                claim.iter().for_each(|claim| self.notices.record_waiting(&**claim, &on_claim));
                Ok(Outcome::RequeueAfter(self.settings.sync_period))
            }
            VolumeStep::Reclaim if is_reclaimable(volume.phase) => self.reclaim(volume).await,
            VolumeStep::Reclaim => {
                info!(volume = &*volume.meta.name, policy = ?volume.reclaim_policy, "releasing volume: its claim was deleted or has another volume");
                self.put_phase(volume, Phase::Released, "").await?;
                // The change of the phase requeues the volume, which is then reclaimed.
                Ok(Outcome::Done)
            }
            VolumeStep::Unbind => {
                self.unbind(volume).await?;
                Ok(Outcome::Done)
            }
        }
    }

    /// Corrects the annotation and the finalizers that name the component that deletes the volume. Returns true if the
    /// volume was written.
    async fn correct_metadata(&self, volume: &PersistentVolume) -> Result<bool, Stop> {
        let provisioner = volume.annotation(PROVISIONED_BY);
        let annotation = annotation_edit(provisioner, volume.annotation(MIGRATED_TO));
        let has = |name: &str| volume.meta.finalizers.iter().any(|finalizer| **finalizer == *name);
        let finalizers = finalizer_edit(provisioner, volume.reclaim_policy, volume.meta.is_deleting(), has);
        if annotation.is_none() && finalizers.is_empty() {
            return Ok(false);
        }
        let mut draft = Draft::open(&self.volumes, &self.writer, volume).await?;
        draft
            .put(None, |object| {
                let edited = finalizers.apply(object)?;
                match annotation {
                    Some(edit) => annotated(&edited, &[(MIGRATED_TO, edit.value())]),
                    None => Ok(edited),
                }
            })
            .await?;
        Ok(true)
    }

    /// Returns the claim that a volume refers to, from the API server if the cache may be behind.
    async fn claim_of(&self, volume: &PersistentVolume) -> Result<Option<Arc<PersistentVolumeClaim>>, Stop> {
        let Some(key) = claim_key(volume) else { return Ok(None) };
        let cached = self.claims.get(&key);
        if needs_uncached_claim(volume, cached.as_deref()) {
            return Ok(self.uncached_claim(&key).await?.map(Arc::new));
        }
        Ok(cached)
    }

    /// Reads a claim from the API server. There are no claims without a namespace.
    pub async fn uncached_claim(&self, key: &ObjectKey) -> Result<Option<PersistentVolumeClaim>, Stop> {
        if key.namespace.is_empty() && !key.name.is_empty() {
            return Ok(None);
        }
        match self.writer.get(&PersistentVolumeClaim::RESOURCE, key).await {
            Ok(response) => Ok(Some(response.decode(self.claims.decoding()).map_err(WriteError::from)?)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(Stop::Failed(error)),
        }
    }

    /// Sets the phase of a volume, unless it is right already. Returns true if it was set.
    pub async fn put_phase(&self, volume: &PersistentVolume, phase: Phase, message: &str) -> Result<bool, Stop> {
        if volume.phase == phase {
            return Ok(false);
        }
        let mut draft = Draft::open(&self.volumes, &self.writer, volume).await?;
        draft.put_status(|object| with_phase(object, phase, message)).await?;
        Ok(true)
    }

    /// Sets the phase Failed with the event's message, and records the event if the phase was another one.
    pub async fn fail_volume(&self, volume: &PersistentVolume, notice: &Notice) -> Result<(), Stop> {
        if self.put_phase(volume, Phase::Failed, &notice.message).await? {
            self.notices.record(volume, notice);
        }
        Ok(())
    }

    /// Makes a volume available again: for any claim if a controller chose the claim, otherwise for the claim's name.
    pub async fn unbind(&self, volume: &PersistentVolume) -> Result<(), Stop> {
        let mut draft = Draft::open(&self.volumes, &self.writer, volume).await?;
        draft.put(None, |object| unbound(object, volume)).await?;
        if draft.record.phase != Phase::Available {
            draft.put_status(|object| with_phase(object, Phase::Available, "")).await?;
        }
        Ok(())
    }
}
