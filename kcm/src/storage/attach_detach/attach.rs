//! Attaches a volume to a node: requests the attachment, waits for the driver, and reports the result in the node's
//! status and in events.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use kinds::meta::ObjectKey;
use kinds::{Kind, Str, Uid, VolumeAttachment};
use runtime::events::{EventType, about};
use runtime::text::{MAX_MESSAGE_BYTES, shortened};
use runtime::worker::ReconcileError;
use runtime::write::WriteError;
use serde_json::json;
use tokio::time::Instant;
use tracing::{debug, info};

use super::changes::Scope;
use super::decide::Step;
use super::memory::{SiteMemory, WaitReason};
use super::metrics::Operation;
use super::observe::Place;
use super::reconcile::{AttachDetach, Recheck, Subject};
use super::{decide_wait, messages};
use crate::storage::volume_name::{Plugin, attachment_name};

/// Period after which an event reports a driver that has not attached a volume yet. The event is repeated after each
/// further period.
///
/// Upstream: pkg/volume/csi, csiTimeout.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(2 * 60);

impl AttachDetach {
    /// Requests the attachment.
    pub async fn attach(&self, subject: &Subject<'_>, place: &Place, memory: &mut SiteMemory) -> Recheck {
        if memory.must_confirm {
            // Until the cached node reports the volume as in use, the node is not read from the API server: its kubelet
            // may be dead and never report the volume. A change of the node requeues the volume.
            if !place.site.is_in_use {
                return Ok(None);
            }
            if let Some(pause) = self.pause_until_in_use(subject, place).await? {
                return Ok(Some(pause));
            }
        }
        memory.must_confirm = false;
        memory.attach_started = Some(subject.now);
        memory.is_announced = false;
        memory.reported_wait = None;
        let Plugin::Csi { driver, handle } = subject.plugin else {
            memory.is_held = true;
            memory.is_attached = true;
            self.list(subject, place, memory);
            return Ok(None);
        };
        let observation = subject.observation;
        let source = match (&observation.inline, &observation.volume) {
            (Some(inline), _) => json!({"inlineVolumeSpec": inline.spec}),
            (None, Some(volume)) => json!({"persistentVolumeName": &*volume.meta.name}),
            // The PersistentVolume was deleted: the attachment would have no volume to name.
            (None, None) => return Ok(None),
        };
        let name = attachment_name(driver, handle, &place.node);
        info!(volume = %observation.label, node = %place.node, attachment = %name, "attaching volume");
        let body = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment", "metadata": {"name": name},
            "spec": {"attacher": driver, "nodeName": &*place.node, "source": source},
        });
        let response = self.writer.create_json(&VolumeAttachment::RESOURCE, "", &body).await;
        let created = match response {
            Err(error) if error.is_already_exists() => self.read_attachment(name).await,
            response => response.and_then(|response| Ok(Some(response.meta()?.version))),
        };
        match created {
            Ok(version) => {
                if let Some(version) = version {
                    self.consistency.wrote(subject.key, &self.caches.attachments, version);
                }
                memory.uncertain_since = None;
                memory.is_attached = true;
                Ok(Some(ATTACH_TIMEOUT))
            }
            Err(error) => Err(self.attach_failed(subject, place, memory, &error)),
        }
    }

    /// Returns `None` if the node's kubelet uses the volume, according to the API server. If not, the cache is behind,
    /// and the next reconcile of the volume waits for the cache: returns the pause before it.
    async fn pause_until_in_use(
        &self,
        subject: &Subject<'_>,
        place: &Place,
    ) -> Result<Option<Duration>, ReconcileError> {
        let node = self.read_node(&place.node).await?;
        let Some(node) = &*node else {
            return Err(ReconcileError::new(format!(
                "node {} is deleted; waiting until the cache contains the deletion",
                place.node
            )));
        };
        let is_in_use = node.volumes.as_ref().is_some_and(|volumes| volumes.uses(subject.name));
        Ok((!is_in_use).then(|| self.await_node(subject, place, node)))
    }

    /// Reads an attachment from the API server. Returns its version; `None` if it was deleted in the meantime.
    async fn read_attachment(&self, name: String) -> Result<Option<u64>, WriteError> {
        match self.writer.get(&VolumeAttachment::RESOURCE, &ObjectKey::new("", name)).await {
            Ok(response) => Ok(Some(response.meta()?.version)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn attach_failed(
        &self,
        subject: &Subject<'_>,
        place: &Place,
        memory: &mut SiteMemory,
        error: &WriteError,
    ) -> ReconcileError {
        if error.is_lost() {
            // The attachment may have been created: it counts as existing until its state is known.
            memory.uncertain_since = Some(Instant::now());
            memory.is_attached = true;
        }
        let message = messages::refused(&error.to_string());
        if !matches!(error, WriteError::NotLeading) {
            self.report_failure(subject, place, memory.attach_started, &message);
        }
        ReconcileError::new(message)
    }

    /// Reports errors and slowness of the driver. Returns the time until the next check; `None` for volumes that
    /// kubelets attach.
    pub fn await_attach(&self, subject: &Subject<'_>, place: &Place, memory: &mut SiteMemory) -> Option<Duration> {
        memory.is_announced = false;
        let Plugin::Csi { driver, handle } = subject.plugin else { return None };
        let started = *memory.attach_started.get_or_insert(subject.now);
        if let Some(attachment) = &place.attachment
            && let Some(error) = &attachment.attach_error
            && attachment.meta.version != memory.reported_version
        {
            memory.reported_version = attachment.meta.version;
            self.report_failure(subject, place, Some(started), error);
        }
        let elapsed = subject.now - started;
        if elapsed < ATTACH_TIMEOUT {
            return Some(ATTACH_TIMEOUT - elapsed);
        }
        memory.attach_started = Some(subject.now);
        self.report_failure(subject, place, Some(started), &messages::timed_out(driver, handle));
        Some(ATTACH_TIMEOUT)
    }

    fn report_failure(&self, subject: &Subject<'_>, place: &Place, started: Option<Instant>, error: &str) {
        debug!(volume = %subject.name, error, "volume is not attached yet");
        self.record(subject, place, EventType::Warning, messages::FAILED, |label| messages::failed(label, error));
        self.operations.failed(Operation::Attach, subject.plugin, started);
    }

    /// Lists an attached volume in the node's status, and records an event about each pod that uses the volume, unless
    /// the attachment was announced before.
    pub fn list(&self, subject: &Subject<'_>, place: &Place, memory: &mut SiteMemory) {
        self.set_listed(subject, place, true, true);
        if memory.is_announced {
            return;
        }
        memory.is_announced = true;
        // If the status already lists the volume, the previous leader has recorded the events.
        if memory.attach_started.is_some() || !place.site.is_listed {
            self.record(subject, place, EventType::Normal, messages::ATTACHED, messages::attached);
            self.operations.succeeded(Operation::Attach, subject.plugin, memory.attach_started.take());
        }
    }

    /// Records one event for each reason about each pod that uses the volume on the node: first the volume has to be
    /// detached from another node, or all PersistentVolumes have to be decodable. Returns the time until the events are
    /// due; `None` if they are recorded or not needed.
    pub fn report_wait(&self, subject: &Subject<'_>, place: &Place, memory: &mut SiteMemory) -> Option<Duration> {
        let reason = if subject.observation.is_exclusive { WaitReason::Exclusive } else { WaitReason::Undecodable };
        if memory.reported_wait == Some(reason) {
            return None;
        }
        let (places, steps) = (&subject.observation.places, subject.steps);
        let occupants = || subject.occupants.iter().map(move |at| (&places[*at], &steps[*at]));
        let others = || occupants().filter(move |(other, _)| other.node != place.node);
        #[cfg(test)]
        self.memory.visit(subject.occupants.len());
        let time_to_report = |(other, step): (&Place, &Step)| {
            let has_failed = other.attachment.as_ref().is_some_and(|attachment| attachment.detach_error.is_some());
            decide_wait::time_to_report(&other.site, *step, has_failed)
        };
        let remaining = others().filter_map(time_to_report).min()?;
        if !remaining.is_zero() {
            return Some(remaining);
        }
        memory.reported_wait = Some(reason);
        if reason == WaitReason::Undecodable {
            info!(volume = %subject.name, node = %place.node, "waiting until all PersistentVolumes can be decoded");
            self.record(subject, place, EventType::Warning, messages::FAILED, messages::undecodable);
            return None;
        }
        let users_on = |place: &Place| self.users_on(subject, &place.node);
        let users: Vec<ObjectKey> = others().flat_map(|(other, _)| users_on(other).into_keys()).collect();
        info!(volume = %subject.name, node = %place.node, "waiting until the volume is detached from another node");
        let label = &subject.observation.label;
        // The message names the pods on the other nodes. It is built once for each namespace, because thousands of pods
        // may use the volume there, and thousands may wait on this node.
        let waiting = users_on(place);
        let namespaces: BTreeSet<&str> = waiting.keys().map(|pod| &*pod.namespace).collect();
        let message =
            |namespace| (namespace, shortened(messages::waiting(label, namespace, &users), MAX_MESSAGE_BYTES));
        let messages: HashMap<&str, String> = namespaces.into_iter().map(message).collect();
        self.record_each(&waiting, EventType::Warning, messages::FAILED, |pod| {
            messages.get(&*pod.namespace).cloned().unwrap_or_default()
        });
        None
    }

    /// Returns the pods that use the volume on a node.
    fn users_on(&self, subject: &Subject<'_>, node: &Str) -> BTreeMap<ObjectKey, Uid> {
        let mut users = self.memory.users(subject.name, &Scope::Nodes([node.clone()].into()));
        users.remove(node).unwrap_or_default()
    }

    fn record(
        &self,
        subject: &Subject<'_>,
        place: &Place,
        kind: EventType,
        reason: &'static str,
        message: impl Fn(&str) -> String,
    ) {
        let users = self.users_on(subject, &place.node);
        self.record_each(&users, kind, reason, |_| message(&subject.observation.label));
    }

    /// Records an event about each of the pods.
    fn record_each(
        &self,
        pods: &BTreeMap<ObjectKey, Uid>,
        kind: EventType,
        reason: &'static str,
        message: impl Fn(&ObjectKey) -> String,
    ) {
        for (key, uid) in pods {
            if let Some(pod) = self.caches.pods.get_with_uid(&key.namespace, &key.name, uid) {
                self.recorder.event(&about(&*pod), kind, reason, message(key));
            }
        }
    }
}
