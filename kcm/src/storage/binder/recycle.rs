//! Pods that wipe released volumes: created, awaited and deleted, one step for each reconcile.
//!
//! Upstream: pkg/volume/util/recyclerclient. Upstream blocks a background task until the pod has ended; here the change
//! of the pod requeues the volume.

use std::sync::Arc;

use kinds::meta::{ObjectKey, Uid};
use kinds::persistent_volume::Source;
use kinds::pod::Phase;
use kinds::{Kind, PersistentVolume, Pod, Str};
use serde_json::{Value, json};
use tracing::info;

use super::decide_volume::{RecyclePlugin, claim_uid, recycle_plugin};
use super::draft::Stop;
use super::reconciler::Binder;
use super::recycler_pod::{Recycler, pod_name};
use super::recycling::Run;

/// Progress of wiping a volume.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    /// The pod runs; its end requeues the volume.
    Running,
    /// The volume is empty.
    Succeeded,
    /// The volume may still contain data; the wipe is retried later.
    Failed(String),
}

fn source(volume: &PersistentVolume) -> Option<Value> {
    match &volume.source {
        Source::HostPath { path } => Some(json!({"hostPath": {"path": &**path}})),
        Source::Nfs { server, path } => Some(json!({"nfs": {"server": &**server, "path": &**path}})),
        _ => None,
    }
}

impl Binder {
    /// Creates the pod that wipes a volume, or checks its progress.
    pub async fn run_recycler(&self, volume: &PersistentVolume, plugin: RecyclePlugin) -> Result<Progress, Stop> {
        let recycler = match &self.settings.recyclers {
            Ok(recyclers) => recyclers.of(plugin),
            Err(problem) => return Ok(Progress::Failed(problem.clone())),
        };
        let key = ObjectKey::new(recycler.namespace(), pod_name(&volume.meta.name));
        let Some(run) = self.recycling.get(&volume.meta.name).filter(|run| run.is_of(volume)) else {
            return self.start_recycler(volume, recycler, &key).await;
        };
        let Some(end) = self.end_of_recycler(&run).await? else { return Ok(Progress::Running) };
        self.recycling.end_run(&volume.meta.name);
        let deleted = self.writer.delete(&Pod::RESOURCE, &run.key, &run.pod).await;
        match (end, deleted) {
            (Err(why), _) => Ok(Progress::Failed(format!("failed to recycle volume: {why}"))),
            (Ok(()), Err(error)) if !error.is_object_deleted() => {
                Ok(Progress::Failed(format!("failed to delete recycler pod: {error}")))
            }
            (Ok(()), _) => Ok(Progress::Succeeded),
        }
    }

    async fn start_recycler(
        &self,
        volume: &PersistentVolume,
        recycler: &Recycler,
        key: &ObjectKey,
    ) -> Result<Progress, Stop> {
        let Some(source) = source(volume) else {
            return Ok(Progress::Failed("volume is neither a host path nor an NFS volume".into()));
        };
        let pod = recycler.pod(&volume.meta.name, &source, volume.storage());
        let response = match self.writer.create_json(&Pod::RESOURCE, &key.namespace, &pod).await {
            Ok(response) => response,
            Err(error) if error.is_already_exists() => return self.delete_old_recycler(key).await,
            Err(error) if error.refused().is_some() => {
                return Ok(Progress::Failed(format!("unexpected error creating recycler pod: {error}")));
            }
            Err(error) => return Err(Stop::Failed(error)),
        };
        let created = response.meta().map_err(runtime::write::WriteError::from)?;
        info!(volume = &*volume.meta.name, pod = %key, "wiping released volume");
        let run = Run {
            volume: volume.meta.uid.clone(),
            claim: claim_uid(volume).cloned(),
            key: key.clone(),
            pod: created.uid,
            version: self.pods.progress().written(created.version),
        };
        self.recycling.insert(&volume.meta.name, run);
        Ok(Progress::Running)
    }

    async fn delete_old_recycler(&self, key: &ObjectKey) -> Result<Progress, Stop> {
        let old = self.writer.get(&Pod::RESOURCE, key).await?.meta().map_err(runtime::write::WriteError::from)?;
        match self.writer.delete(&Pod::RESOURCE, key, &old.uid).await {
            Err(error) if !error.is_object_deleted() => {
                Ok(Progress::Failed(format!("failed to delete old recycler pod {key}: {error}")))
            }
            _ => Ok(Progress::Failed("old recycler pod found, will retry later".to_owned())),
        }
    }

    /// Deletes the pod that wipes a volume, if there is one: the volume must no longer be wiped, for example because an
    /// administrator made it available or changed its policy. Differs from upstream, whose pod continues.
    pub async fn stop_recycler(&self, volume: &PersistentVolume) -> Result<(), Stop> {
        if self.recycling.get(&volume.meta.name).is_some() {
            return self.stop_run(&volume.meta.name).await;
        }
        let Some(pod) = self.cached_recycler(volume) else { return Ok(()) };
        self.delete_recycler(&volume.meta.name, &pod.meta.key(), &pod.meta.uid).await
    }

    /// Deletes the pod that this process has created to wipe a volume, if there is one.
    pub async fn stop_run(&self, volume: &Str) -> Result<(), Stop> {
        let Some(run) = self.recycling.get(volume) else { return Ok(()) };
        self.delete_recycler(volume, &run.key, &run.pod).await?;
        self.recycling.end_run(volume);
        Ok(())
    }

    async fn delete_recycler(&self, volume: &Str, key: &ObjectKey, uid: &Uid) -> Result<(), Stop> {
        info!(volume = &**volume, pod = %key, "deleting the recycler pod: its volume must not be wiped");
        match self.writer.delete(&Pod::RESOURCE, key, uid).await {
            Err(error) if !error.is_object_deleted() => Err(Stop::Failed(error)),
            _ => Ok(()),
        }
    }

    /// Returns the pod that may still wipe a volume according to the cache. An earlier process may have created it.
    fn cached_recycler(&self, volume: &PersistentVolume) -> Option<Arc<Pod>> {
        let recycler = self.settings.recyclers.as_ref().ok()?.of(recycle_plugin(volume)?);
        let pod = self.pods.get(&ObjectKey::new(recycler.namespace(), pod_name(&volume.meta.name)))?;
        let has_ended = pod.meta.is_deleting() || matches!(pod.phase, Phase::Succeeded | Phase::Failed);
        (!has_ended).then_some(pod)
    }

    /// Returns the result of a pod; `None` while it runs.
    async fn end_of_recycler(&self, run: &Run) -> Result<Option<Result<(), String>>, Stop> {
        let key = &run.key;
        let Some(pod) = self.pods.get_with_uid(&key.namespace, &key.name, &run.pod) else {
            // A pod that the cache does not contain yet counts as running.
            let is_current = self.pods.progress().contains(&run.version);
            return Ok(is_current.then(|| Err("recycler pod was deleted".to_owned())));
        };
        Ok(match pod.phase {
            Phase::Succeeded => Some(Ok(())),
            Phase::Failed => {
                let current = self.writer.get_json(&Pod::RESOURCE, key).await?;
                let message = current["status"]["message"].as_str().unwrap_or("pod failed, pod.Status.Message unknown");
                Some(Err(message.to_owned()))
            }
            _ => None,
        })
    }
}
