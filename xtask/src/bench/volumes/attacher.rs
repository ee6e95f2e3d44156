//! A CSI attacher without delay, which detects a volume that is attached to two nodes.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use anyhow::Result;
use control_plane::lock::lock;
use futures::StreamExt;
use futures::channel::mpsc;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::PARALLEL;
use super::follow::{Change, Task, follow};
use super::objects::{ATTACHMENTS, PROTECTED_BY_ATTACHER};
use crate::bench::api::{self, Patch};

/// An attacher that serves VolumeAttachments until it is dropped, with the writes of csi-attacher: a finalizer, the
/// status, and the removal of the finalizer.
pub struct Attacher {
    state: Arc<Mutex<State>>,
    _tasks: [Task; 2],
}

#[derive(Default)]
struct State {
    /// Volume and node of each attachment that exists.
    attachments: HashMap<String, (String, String)>,
    /// The node that each volume is attached to.
    nodes: HashMap<String, String>,
    /// UIDs of the attachments for which an operation was begun: attaching, and detaching.
    attaching: HashSet<String>,
    detaching: HashSet<String>,
    violations: Vec<String>,
}

/// The requests to the driver; the value is the attachment's name.
#[derive(Debug, PartialEq)]
enum Operation {
    Attach(String),
    Detach(String),
}

impl Attacher {
    /// Starts to serve all attachments.
    pub async fn start(client: &Client) -> Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let (operations, requests) = mpsc::unbounded();
        let applied_state = state.clone();
        let watch_task = follow(Api::<VolumeAttachment>::all(client.clone()), move |change| {
            let mut state = lock(&applied_state);
            let operation = match change {
                Change::Applied(attachment) => state.apply(&attachment),
                Change::Deleted(name) => {
                    state.forget(&name);
                    None
                }
            };
            if let Some(operation) = operation {
                // The receiver is dropped only after this watch.
                let _ = operations.unbounded_send(operation);
            }
        })
        .await?;
        let client = client.clone();
        let serve_task = Task::spawn(requests.for_each_concurrent(PARALLEL, move |operation| {
            let client = client.clone();
            async move {
                if let Err(error) = serve(&client, &operation).await {
                    eprintln!("  {operation:?} failed: {error:#}");
                }
            }
        }));
        Ok(Self { state, _tasks: [watch_task, serve_task] })
    }

    /// Returns the number of attachments.
    pub fn attachments(&self) -> usize {
        lock(&self.state).attachments.len()
    }

    /// Returns true if a volume has an attachment.
    pub fn has_attachment(&self, volume: &str) -> bool {
        lock(&self.state).attachments.values().any(|(attached, _)| attached == volume)
    }

    /// Returns attachments of volumes that were attached to another node.
    pub fn violations(&self) -> Vec<String> {
        lock(&self.state).violations.clone()
    }
}

impl State {
    /// Applies an attachment; returns the operation that it requires.
    fn apply(&mut self, attachment: &VolumeAttachment) -> Option<Operation> {
        let (name, uid) = (attachment.name_any(), attachment.uid().unwrap_or_default());
        let volume = attachment.spec.source.persistent_volume_name.clone().unwrap_or_default();
        let node = &attachment.spec.node_name;
        self.attachments.insert(name.clone(), (volume.clone(), node.clone()));
        if attachment.metadata.deletion_timestamp.is_none() {
            if attachment.status.as_ref().is_some_and(|status| status.attached) || !self.attaching.insert(uid) {
                return None;
            }
            if let Some(other) = self.nodes.insert(volume.clone(), node.clone()) {
                self.violations.push(format!("{volume}: attached to {node} while it is attached to {other}"));
            }
            return Some(Operation::Attach(name));
        }
        if attachment.finalizers().is_empty() || !self.detaching.insert(uid) {
            return None;
        }
        self.detach(&volume, node);
        Some(Operation::Detach(name))
    }

    /// Applies the deletion of an attachment, which may never have had a finalizer.
    fn forget(&mut self, name: &str) {
        if let Some((volume, node)) = self.attachments.remove(name) {
            self.detach(&volume, &node);
        }
    }

    fn detach(&mut self, volume: &str, node: &str) {
        if self.nodes.get(volume).is_some_and(|attached| attached == node) {
            self.nodes.remove(volume);
        }
    }
}

async fn serve(client: &Client, operation: &Operation) -> Result<()> {
    let finalizers = |list: &[&str]| json!({ "metadata": { "finalizers": list } });
    match operation {
        Operation::Attach(name) => {
            let path = format!("{ATTACHMENTS}/{name}");
            let protected = finalizers(&[PROTECTED_BY_ATTACHER]);
            api::patch(client, &path, "csi-attacher", Patch::Merge, &protected).await?;
            let attached = json!({ "status": { "attached": true } });
            api::patch(client, &format!("{path}/status"), "csi-attacher", Patch::Merge, &attached).await
        }
        Operation::Detach(name) => {
            let path = format!("{ATTACHMENTS}/{name}");
            api::patch(client, &path, "csi-attacher", Patch::Merge, &finalizers(&[])).await
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn attachment(node: &str, changes: &Value) -> VolumeAttachment {
        let mut object = json!({
            "metadata": { "name": format!("on-{node}"), "uid": node, "finalizers": [PROTECTED_BY_ATTACHER] },
            "spec": { "attacher": "driver", "nodeName": node, "source": { "persistentVolumeName": "v" } },
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            object["metadata"][key] = value.clone();
        }
        serde_json::from_value(object).expect("an attachment")
    }

    #[test]
    fn second_node_is_a_violation_until_the_first_is_detached() {
        let mut state = State::default();
        let (plain, deleting) = (json!({}), json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }));
        assert_eq!(state.apply(&attachment("a", &plain)), Some(Operation::Attach("on-a".into())));
        assert_eq!(state.apply(&attachment("a", &plain)), None);
        assert_eq!(state.apply(&attachment("a", &deleting)), Some(Operation::Detach("on-a".into())));
        assert_eq!(state.apply(&attachment("a", &deleting)), None);
        assert_eq!(state.apply(&attachment("b", &plain)), Some(Operation::Attach("on-b".into())));
        assert_eq!(state.violations, Vec::<String>::new());
        assert_eq!(state.apply(&attachment("c", &plain)), Some(Operation::Attach("on-c".into())));
        assert_eq!(state.violations.len(), 1);
    }
}
