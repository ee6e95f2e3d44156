//! Released volumes: deleted, wiped, or left to external provisioners and administrators.
//!
//! Upstream: pkg/controller/volume/persistentvolume, reclaimVolume.

use std::sync::Arc;

use kinds::metadata_edit::without_finalizers;
use kinds::{Kind, PersistentVolume, Pod};
use runtime::worker::Outcome;
use tracing::info;

use super::decide_claim::{Cluster, Notice};
use super::decide_volume::{Reclaim, RecyclePlugin, decide_reclaim, is_released};
use super::draft::{Draft, Stop};
use super::host_path;
use super::names::{CONTROLLER_FINALIZER, HOST_PATH};
use super::reconciler::Binder;
use super::recycle::Progress;
use super::volume_index::claim_key;

impl Binder {
    /// Reclaims a volume that is released or failed.
    pub async fn reclaim(&self, volume: &PersistentVolume) -> Result<Outcome, Stop> {
        self.operations.reclaim_started(volume, self.class(volume.class()).as_deref());
        let reclaim = decide_reclaim(volume);
        if !matches!(reclaim, Reclaim::Recycle(_)) {
            self.stop_recycler(volume).await?;
        }
        match reclaim {
            Reclaim::Leave => Ok(Outcome::Done),
            Reclaim::Fail(notice) => {
                self.fail_volume(volume, &notice).await?;
                Ok(Outcome::RequeueAfter(self.settings.sync_period))
            }
            Reclaim::DeleteHostPath(path) => self.delete_directory(volume, path).await,
            Reclaim::Recycle(plugin) => self.recycle(volume, plugin).await,
            Reclaim::NotRecyclable => self.fail_recycling(volume).await,
        }
    }

    /// Reports that pods still use a volume or, if none does, that no plugin can delete its data. Upstream has the
    /// same order.
    async fn fail_recycling(&self, volume: &PersistentVolume) -> Result<Outcome, Stop> {
        if let Some(notice) = event_about_users(&self.users_of_released(volume)) {
            self.notices.record_waiting(volume, &notice);
        } else {
            let notice = Notice::warning("VolumeFailedRecycle", "No recycler plugin found for the volume!");
            self.fail_volume(volume, &notice).await?;
        }
        Ok(Outcome::RequeueAfter(self.settings.sync_period))
    }

    /// Reads a volume and its claim from the API server. Returns the volume if its data may be deleted.
    ///
    /// A reconcile with an outdated cache must not delete data: the version of the volume, and with it the reclaim
    /// policy, must be the one that was decided on. The volume's claim must no longer exist, or have another volume.
    async fn confirm_release<'a>(
        &'a self,
        volume: &PersistentVolume,
    ) -> Result<Option<Draft<'a, PersistentVolume>>, Stop> {
        let draft = Draft::read(&self.volumes, &self.writer, volume).await?;
        let Some(key) = claim_key(volume) else { return Ok(None) };
        let claim = match self.uncached_claim(&key).await {
            // No claim can have this name. As in upstream, such a reference does not release a volume, but a volume
            // that was released before is reclaimed.
            Err(Stop::Failed(error)) if error.is_invalid_name() => None,
            claim => claim?,
        };
        Ok(is_released(&draft.record, claim.as_ref()).then_some(draft))
    }

    async fn delete_directory(&self, volume: &PersistentVolume, path: String) -> Result<Outcome, Stop> {
        let Some(mut draft) = self.confirm_release(volume).await? else { return Ok(Outcome::Done) };
        let name = &volume.meta.name;
        let deleted = tokio::task::spawn_blocking(move || host_path::delete(&path)).await;
        if let Err(why) = deleted.unwrap_or_else(|error| Err(error.to_string())) {
            drop(draft);
            self.operations.reclaim_failed(name);
            self.fail_volume(volume, &Notice::warning("VolumeFailedDelete", why.as_str())).await?;
            return Err(Stop::Error(why));
        }
        if draft.record.meta.finalizers.iter().any(|finalizer| &**finalizer == CONTROLLER_FINALIZER) {
            draft.put(None, |object| without_finalizers(object, &[CONTROLLER_FINALIZER])).await?;
        }
        info!(volume = &**name, plugin = HOST_PATH, "deleting volume: its storage was deleted");
        let deletion = self.writer.delete(&PersistentVolume::RESOURCE, &volume.meta.key(), &volume.meta.uid).await;
        match deletion {
            Err(error) if !error.is_object_deleted() => Err(Stop::Failed(error)),
            _ => Ok(Outcome::Done),
        }
    }

    async fn recycle(&self, volume: &PersistentVolume, plugin: RecyclePlugin) -> Result<Outcome, Stop> {
        let later = Ok(Outcome::RequeueAfter(self.settings.sync_period));
        let name = &volume.meta.name;
        if let Some(left) = self.recycling.pause(name, self.settings.sync_period) {
            return Ok(Outcome::RequeueAfter(left));
        }
        let Some(draft) = self.confirm_release(volume).await? else {
            self.stop_recycler(volume).await?;
            return Ok(Outcome::Done);
        };
        drop(draft);
        if claim_key(volume).is_some_and(|claim| self.pods.undecodable_in(&claim.namespace) > 0) {
            return Err(Stop::Error("not wiping the volume: a pod that may use it cannot be decoded".to_owned()));
        }
        if let Some(notice) = event_about_users(&self.users_of_released(volume)) {
            self.notices.record_waiting(volume, &notice);
            return later;
        }
        match self.run_recycler(volume, plugin).await? {
            Progress::Running => later,
            Progress::Failed(why) => {
                self.recycling.set_failed(name);
                let notice = Notice::warning("VolumeFailedRecycle", format!("Recycle failed: {why}"));
                self.fail_volume(volume, &notice).await?;
                later
            }
            Progress::Succeeded => {
                info!(volume = &**name, "volume was recycled");
                self.recycling.forget(name);
                self.notices.record(volume, &Notice::normal("VolumeRecycled", "Volume recycled"));
                self.unbind(volume).await?;
                Ok(Outcome::Done)
            }
        }
    }

    /// Returns the pods that still use a released volume. Pods that use a new claim of the same name do not use this
    /// volume.
    fn users_of_released(&self, volume: &PersistentVolume) -> Vec<Arc<Pod>> {
        match claim_key(volume) {
            Some(key) if self.claims.get(&key).is_none() => self.pods_using(&key),
            _ => Vec::new(),
        }
    }
}

/// Returns the event that names the pods that still use a released volume; `None` if there are none.
pub fn event_about_users(pods: &[Arc<Pod>]) -> Option<Notice> {
    let mut names: Vec<String> = pods.iter().map(|pod| pod.meta.key().to_string()).collect();
    names.sort_unstable();
    let message = format!("Volume is used by pods: {}", names.join(","));
    (!names.is_empty()).then(|| Notice::normal("VolumeFailedRecycle", message))
}
