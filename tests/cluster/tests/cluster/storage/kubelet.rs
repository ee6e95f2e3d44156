//! Kubelets that only mount: they report the volumes of their pods as in use, wait until the controller has attached
//! them, and start and end the pods.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use cluster_tests::{Bed, eventually};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// Label of a node with its zone, and the driver's topology key.
pub const ZONE: &str = "topology.test/zone";

const PASS_INTERVAL: Duration = Duration::from_millis(100);

/// A node with a kubelet, which stops when this value is dropped.
pub struct Kubelet {
    /// Name of the node.
    pub node: String,
    bed: Arc<Bed>,
    /// If true, no further pass begins. The lock is held during a pass, so that `stop` waits for its end.
    is_stopped: Arc<Mutex<bool>>,
    task: JoinHandle<()>,
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Kubelet {
    /// Registers a node on which a CSI driver runs; with a zone, the driver distinguishes nodes by it. Only pods that
    /// tolerate everything are scheduled to it.
    pub async fn start(bed: &Arc<Bed>, node: &str, driver: &str, zone: Option<&str>) -> Result<Self> {
        // Without its Lease, the control plane's fake kubelets ignore the node and its pods.
        let leases: Api<Lease> = Api::namespaced(bed.client.clone(), "kube-node-lease");
        let lease = json!({
            "metadata": {"name": node},
            "spec": {"holderIdentity": "test", "leaseDurationSeconds": 86_400, "renewTime": MicroTime(Timestamp::now())},
        });
        leases.create(&PostParams::default(), &serde_json::from_value(lease)?).await?;
        let nodes: Api<Node> = Api::all(bed.client.clone());
        let mut labels = json!({"kubernetes.io/hostname": node, "attach-detach-test": driver});
        if let Some(zone) = zone {
            labels[ZONE] = zone.into();
        }
        let room = json!({"cpu": "64", "memory": "64Gi", "pods": "1000"});
        let made = json!({
            "metadata": {
                "name": node,
                "annotations": {"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
                "labels": labels,
            },
            "spec": {"taints": [{"key": "test", "value": "volumes", "effect": "NoSchedule"}]},
            "status": {"capacity": room, "allocatable": room},
        });
        nodes.create(&PostParams::default(), &serde_json::from_value(made)?).await?;
        let csi: CSINode = serde_json::from_value(json!({
            "metadata": {"name": node},
            "spec": {"drivers": [{"name": driver, "nodeID": node, "topologyKeys": zone.map(|_| [ZONE])}]},
        }))?;
        Api::all(bed.client.clone()).create(&PostParams::default(), &csi).await?;
        let is_stopped = Arc::new(Mutex::new(false));
        let kubelet = KubeletLoop { bed: bed.clone(), node: node.to_owned() };
        let shared = is_stopped.clone();
        let task = tokio::spawn(async move {
            let mut last_error = String::new();
            loop {
                let stopped = shared.lock().await;
                if !*stopped && let Err(error) = kubelet.pass().await {
                    let text = format!("{error:#}");
                    if text != last_error {
                        tracing::warn!(node = kubelet.node, error = text, "pass of the test's kubelet failed");
                        last_error = text;
                    }
                }
                drop(stopped);
                sleep(PASS_INTERVAL).await;
            }
        });
        let kubelet = Self { node: node.to_owned(), bed: bed.clone(), is_stopped, task };
        kubelet.set_ready(true).await?;
        Ok(kubelet)
    }

    /// Stops the kubelet: the node's status stays as it is, and its pods are neither started nor ended.
    pub async fn stop(&self) {
        *self.is_stopped.lock().await = true;
    }

    /// Sets the node's condition Ready.
    pub async fn set_ready(&self, is_ready: bool) -> Result<()> {
        let status = if is_ready { "True" } else { "Unknown" };
        let condition = json!({"type": "Ready", "status": status, "reason": "Test", "message": "",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z"});
        patch_status(&self.bed, &self.node, json!({"conditions": [condition]})).await
    }

    /// Sets the node's taints.
    pub async fn set_taints(&self, taints: Value) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.bed.client.clone());
        let patch = json!({"spec": {"taints": taints}});
        nodes.patch(&self.node, &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Returns the unique names that the node's status lists as attached, and as in use.
    pub async fn volumes(&self) -> Result<(BTreeSet<String>, BTreeSet<String>)> {
        let nodes: Api<Node> = Api::all(self.bed.client.clone());
        Ok(volumes_of(&nodes.get(&self.node).await?))
    }

    /// Waits until the node has no volumes.
    pub async fn until_empty(&self) -> Result<()> {
        eventually(format!("{} has no volumes", self.node), || async {
            let (attached, in_use) = self.volumes().await?;
            anyhow::ensure!(attached.is_empty() && in_use.is_empty(), "{attached:?} {in_use:?}");
            Ok(())
        })
        .await
    }
}

async fn patch_status(bed: &Bed, node: &str, status: Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(bed.client.clone());
    let patch = json!({"status": status});
    nodes
        .patch_status(node, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .context("patch the node's status")?;
    Ok(())
}

fn volumes_of(node: &Node) -> (BTreeSet<String>, BTreeSet<String>) {
    let status = node.status.clone().unwrap_or_default();
    let attached = status.volumes_attached.unwrap_or_default().into_iter().map(|volume| volume.name).collect();
    (attached, status.volumes_in_use.unwrap_or_default().into_iter().collect())
}

/// The passes of a kubelet over the pods of its node.
struct KubeletLoop {
    bed: Arc<Bed>,
    node: String,
}

impl KubeletLoop {
    /// Runs one pass over the pods of the node, in the order of a kubelet: a volume is reported as in use before the
    /// wait for its attachment, and until after it is unmounted.
    async fn pass(&self) -> Result<()> {
        let pods: Api<Pod> = Api::all(self.bed.client.clone());
        let nodes: Api<Node> = Api::all(self.bed.client.clone());
        let of_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let (mut ending, mut wanted) = (Vec::new(), Vec::new());
        for pod in pods.list(&of_node).await?.items {
            if pod.metadata.deletion_timestamp.is_some() {
                ending.push(pod);
            } else {
                let volumes = self.volumes_of(&pod).await?;
                wanted.push((pod, volumes));
            }
        }
        let (attached, in_use) = volumes_of(&nodes.get(&self.node).await?);
        let mut needed = BTreeSet::new();
        for (_, volumes) in &wanted {
            needed.extend(volumes.iter().flatten().map(|(name, _)| name.clone()));
        }
        if in_use != needed {
            patch_status(&self.bed, &self.node, json!({"volumesInUse": needed})).await?;
        }
        for (pod, volumes) in wanted {
            let Some(volumes) = volumes else { continue };
            if !is_running(&pod) && self.are_attached(&volumes, &attached).await? {
                self.set_running(&pod).await?;
            }
        }
        for pod in ending {
            let namespaced: Api<Pod> = self.api_of(&pod);
            let name = pod.metadata.name.unwrap_or_default();
            let deleted = namespaced.delete(&name, &DeleteParams::default().grace_period(0)).await;
            match deleted {
                Err(kube::Error::Api(refusal)) if refusal.code == 404 => {}
                deleted => drop(deleted?),
            }
        }
        Ok(())
    }

    fn api_of<K: cluster_tests::Namespaced>(&self, pod: &Pod) -> Api<K> {
        Api::namespaced(self.bed.client.clone(), pod.metadata.namespace.as_deref().unwrap_or_default())
    }

    /// Returns unique names and attachments of a pod's volumes; `None` while a claim is not bound.
    async fn volumes_of(&self, pod: &Pod) -> Result<Option<Vec<(String, String)>>> {
        let claims: Api<PersistentVolumeClaim> = self.api_of(pod);
        let persistent: Api<PersistentVolume> = Api::all(self.bed.client.clone());
        let mut found = Vec::new();
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.clone()).unwrap_or_default();
        for source in volumes.into_iter().filter_map(|volume| volume.persistent_volume_claim) {
            let claim = claims.get(&source.claim_name).await?;
            if claim.status.and_then(|status| status.phase).as_deref() != Some("Bound") {
                return Ok(None);
            }
            let volume = persistent.get(&claim.spec.and_then(|spec| spec.volume_name).unwrap_or_default()).await?;
            if let Some(csi) = volume.spec.and_then(|spec| spec.csi) {
                let unique = format!("kubernetes.io/csi/{}^{}", csi.driver, csi.volume_handle);
                found.push((unique, attachment_name(&csi.volume_handle, &csi.driver, &self.node)));
            }
        }
        Ok(Some(found))
    }

    async fn are_attached(&self, volumes: &[(String, String)], attached: &BTreeSet<String>) -> Result<bool> {
        let attachments: Api<VolumeAttachment> = Api::all(self.bed.client.clone());
        for (name, attachment) in volumes {
            if !attached.contains(name) {
                return Ok(false);
            }
            let found = attachments.get_opt(attachment).await?;
            let is_usable = found.is_some_and(|found| {
                found.metadata.deletion_timestamp.is_none() && found.status.is_some_and(|status| status.attached)
            });
            if !is_usable {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn set_running(&self, pod: &Pod) -> Result<()> {
        let now = "2026-01-01T00:00:00Z";
        let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let containers: Vec<Value> = containers
            .map(|container| {
                json!({"name": container.name, "image": container.image, "imageID": "", "ready": true, "started": true,
                    "restartCount": 0, "state": {"running": {"startedAt": now}}})
            })
            .collect();
        let status = json!({
            "phase": "Running", "containerStatuses": containers, "podIP": "10.9.9.9", "startTime": now,
            "conditions": [condition("Ready"), condition("ContainersReady"), condition("Initialized"), condition("PodScheduled")],
        });
        let pods: Api<Pod> = self.api_of(pod);
        let name = pod.metadata.name.clone().unwrap_or_default();
        pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(&json!({"status": status}))).await?;
        Ok(())
    }
}

fn is_running(pod: &Pod) -> bool {
    pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"))
}

/// Returns the name of a VolumeAttachment that kubelets expect.
pub fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    use ring::digest;
    let hash = digest::digest(&digest::SHA256, format!("{handle}{driver}{node}").as_bytes());
    let hex: String = hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("csi-{hex}")
}
