//! Kubelets that only mount volumes: they report a volume as in use before they wait for its attachment, and as no
//! longer in use before they remove its pod.
//!
//! Each node has one task, so that its status has one writer. The kubelets act without delay, so that only the
//! manager's time is measured.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use control_plane::lock::lock;
use futures::StreamExt;
use futures::channel::mpsc::{self, UnboundedReceiver, UnboundedSender};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::sleep;

use super::follow::{Change, Task, follow};
use super::{NAMESPACE, objects};
use crate::bench::api::{self, Patch};

/// Pause after a failed pass.
const RETRY_AFTER: Duration = Duration::from_millis(500);

/// Kubelets of all nodes, with the state that they observe.
pub struct Kubelets {
    observed: Arc<Mutex<ObservedState>>,
    _tasks: Vec<Task>,
}

#[derive(Default)]
struct ObservedState {
    /// Existing pods; true: the pod runs.
    pods: HashMap<String, bool>,
    /// The number of attached volumes in each node's status.
    attached: HashMap<String, usize>,
}

/// A change for the kubelet of one node.
enum NodeChange {
    /// A pod that should be started or, if it is being deleted, removed.
    Pod { name: String, volume: String, is_ending: bool },
    /// Unique names of the node's attached volumes.
    Attached(BTreeSet<String>),
}

type Inboxes = HashMap<String, UnboundedSender<NodeChange>>;

impl Kubelets {
    /// Starts the kubelets of these nodes, which exist.
    pub async fn start(client: &Client, nodes: &[String]) -> Result<Self> {
        let observed = Arc::new(Mutex::new(ObservedState::default()));
        let (mut inboxes, mut tasks) = (Inboxes::new(), Vec::new());
        for node in nodes {
            let (inbox, changes) = mpsc::unbounded();
            inboxes.insert(node.clone(), inbox);
            tasks.push(Task::spawn(Kubelet::new(client.clone(), node.clone()).run(changes)));
        }
        let inboxes = Arc::new(inboxes);
        let (state, pod_inboxes) = (observed.clone(), inboxes.clone());
        tasks.push(
            follow(Api::<Pod>::namespaced(client.clone(), NAMESPACE), move |change| {
                apply_pod(&mut lock(&state), &pod_inboxes, change);
            })
            .await?,
        );
        let (state, node_inboxes) = (observed.clone(), inboxes);
        tasks.push(
            follow(Api::<Node>::all(client.clone()), move |change| {
                apply_node(&mut lock(&state), &node_inboxes, change);
            })
            .await?,
        );
        Ok(Self { observed, _tasks: tasks })
    }

    /// Returns the number of pods that exist, and of those that run.
    pub fn pods(&self) -> (usize, usize) {
        let observed = lock(&self.observed);
        (observed.pods.len(), observed.pods.values().filter(|is_running| **is_running).count())
    }

    /// Returns true if a pod runs.
    pub fn is_running(&self, pod: &str) -> bool {
        lock(&self.observed).pods.get(pod) == Some(&true)
    }

    /// Returns the number of volumes that nodes' statuses list as attached.
    pub fn attached(&self) -> usize {
        lock(&self.observed).attached.values().sum()
    }
}

fn apply_pod(observed: &mut ObservedState, inboxes: &Inboxes, change: Change<Pod>) {
    let pod = match change {
        Change::Applied(pod) => pod,
        Change::Deleted(name) => {
            observed.pods.remove(&name);
            return;
        }
    };
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_running = phase == Some("Running");
    observed.pods.insert(pod.name_any(), is_running);
    let is_ending = pod.metadata.deletion_timestamp.is_some();
    let spec = pod.spec.as_ref();
    let inbox = spec.and_then(|spec| inboxes.get(spec.node_name.as_deref()?));
    if let Some(inbox) = inbox.filter(|_| is_ending || !is_running) {
        let volumes = spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let claim = volumes.filter_map(|volume| volume.persistent_volume_claim.as_ref()).next();
        let claim = claim.map(|source| source.claim_name.as_str()).unwrap_or_default();
        let volume = objects::unique_name(&objects::volume_name(claim));
        // The receiver lives as long as the pods are followed.
        let _ = inbox.unbounded_send(NodeChange::Pod { name: pod.name_any(), volume, is_ending });
    }
}

fn apply_node(observed: &mut ObservedState, inboxes: &Inboxes, change: Change<Node>) {
    let Change::Applied(node) = change else { return };
    let attached = node.status.as_ref().and_then(|status| status.volumes_attached.as_ref());
    let attached: BTreeSet<String> = attached.into_iter().flatten().map(|volume| volume.name.clone()).collect();
    observed.attached.insert(node.name_any(), attached.len());
    if let Some(inbox) = inboxes.get(&node.name_any()) {
        // The receiver lives as long as the nodes are followed.
        let _ = inbox.unbounded_send(NodeChange::Attached(attached));
    }
}

/// The kubelet of one node.
struct Kubelet {
    client: Client,
    node: String,
    /// Volumes of pods that are not being deleted.
    wanted: BTreeMap<String, String>,
    /// Pods that still have to be started.
    to_start: BTreeSet<String>,
    /// Pods that still have to be removed.
    to_remove: BTreeSet<String>,
    attached: BTreeSet<String>,
    /// The volumes that the node's status reports as in use.
    in_use: BTreeSet<String>,
}

impl Kubelet {
    fn new(client: Client, node: String) -> Self {
        Self {
            client,
            node,
            wanted: BTreeMap::new(),
            to_start: BTreeSet::new(),
            to_remove: BTreeSet::new(),
            attached: BTreeSet::new(),
            in_use: BTreeSet::new(),
        }
    }

    async fn run(mut self, mut changes: UnboundedReceiver<NodeChange>) {
        while let Some(first) = changes.next().await {
            self.apply(first);
            while let Ok(next) = changes.try_recv() {
                self.apply(next);
            }
            while let Err(error) = self.pass().await {
                eprintln!("  the kubelet of {} retries: {}", self.node, error.root_cause());
                sleep(RETRY_AFTER).await;
            }
        }
    }

    fn apply(&mut self, change: NodeChange) {
        match change {
            NodeChange::Attached(attached) => self.attached = attached,
            NodeChange::Pod { name, is_ending: true, .. } => {
                self.to_start.remove(&name);
                // A pod that is being deleted may be reported more than once; it is removed only once.
                if self.wanted.remove(&name).is_some() {
                    self.to_remove.insert(name);
                }
            }
            NodeChange::Pod { name, volume, is_ending: false } => {
                self.wanted.insert(name.clone(), volume);
                self.to_start.insert(name);
            }
        }
    }

    /// Makes the necessary writes, in a kubelet's order.
    async fn pass(&mut self) -> Result<()> {
        let in_use: BTreeSet<String> = self.wanted.values().cloned().collect();
        if in_use != self.in_use {
            let status = json!({ "status": { "volumesInUse": in_use } });
            let path = format!("/api/v1/nodes/{}/status", self.node);
            api::patch(&self.client, &path, "kubelet", Patch::Merge, &status).await?;
            self.in_use = in_use;
        }
        while let Some(name) = self.to_remove.first().cloned() {
            api::delete(&self.client, &format!("{}/{name}", pods())).await?;
            self.to_remove.remove(&name);
        }
        for name in self.pods_to_start() {
            let path = format!("{}/{name}/status", pods());
            api::patch(&self.client, &path, "kubelet", Patch::Merge, &running()).await?;
            self.to_start.remove(&name);
        }
        Ok(())
    }

    fn pods_to_start(&self) -> Vec<String> {
        let is_attached = |name: &String| self.wanted.get(name).is_some_and(|volume| self.attached.contains(volume));
        self.to_start.iter().filter(|name| is_attached(name)).cloned().collect()
    }
}

/// Returns the collection of the bench's pods.
pub fn pods() -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods")
}

/// Returns a merge patch with the status of a pod that runs and is ready.
fn running() -> serde_json::Value {
    let since = "2026-01-05T08:30:00Z";
    let kinds = ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];
    let conditions = kinds.map(|kind| json!({ "type": kind, "status": "True", "lastTransitionTime": since }));
    let container = json!({
        "name": "main", "image": "registry.example.com/database:1", "imageID": "", "ready": true, "started": true,
        "restartCount": 0, "state": { "running": { "startedAt": since } },
    });
    json!({ "status": {
        "phase": "Running", "startTime": since, "podIP": "10.128.0.1", "podIPs": [{ "ip": "10.128.0.1" }],
        "conditions": conditions, "containerStatuses": [container],
    } })
}
