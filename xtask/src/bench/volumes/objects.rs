//! Claims, their volumes and attachments as in a cluster with a CSI driver: before provisioning, or bound and attached.

use std::fmt::Write;

use anyhow::Result;
use kube::Client;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::bench::api::{self, Patch};

/// The CSI driver, which is also the provisioner.
pub const DRIVER: &str = "bench.csi.example.com";

/// The class of all claims.
const CLASS: &str = "fast";

/// The field managers of bound and attached objects.
const BINDER: &str = "kube-controller-manager";
const PROVISIONER: &str = "csi-provisioner";
const ATTACHER: &str = "csi-attacher";

const PROTECTED_BY_PROVISIONER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// Finalizer of an attachment, until the driver has detached the volume.
pub const PROTECTED_BY_ATTACHER: &str = "external-attacher/bench-csi-example-com";

/// The collection of PersistentVolumes.
pub const VOLUMES: &str = "/api/v1/persistentvolumes";

/// The collection of VolumeAttachments.
pub const ATTACHMENTS: &str = "/apis/storage.k8s.io/v1/volumeattachments";

/// Returns the collection of a namespace's claims.
pub fn claims(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims")
}

/// Returns the name of a claim.
pub fn claim_name(number: u32) -> String {
    format!("data-{number}")
}

/// Returns the name and handle of a bound claim's volume.
pub fn volume_name(claim: &str) -> String {
    format!("volume-of-{claim}")
}

/// Returns the name of a volume in a node's status.
pub fn unique_name(handle: &str) -> String {
    format!("kubernetes.io/csi/{DRIVER}^{handle}")
}

/// Creates the driver's CSIDriver and StorageClass.
pub async fn create_class(client: &Client) -> Result<()> {
    let driver = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": { "name": DRIVER },
        "spec": { "attachRequired": true },
    });
    api::create(client, "/apis/storage.k8s.io/v1/csidrivers", "bench", &driver).await?;
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": CLASS },
        "provisioner": DRIVER, "reclaimPolicy": "Delete", "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": true,
    });
    api::create(client, "/apis/storage.k8s.io/v1/storageclasses", "bench", &class).await.map(drop)
}

/// Registers the driver on a node.
pub async fn create_csi_node(client: &Client, node: &str) -> Result<()> {
    let registered = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": node },
        "spec": { "drivers": [{ "name": DRIVER, "nodeID": node }] },
    });
    api::create(client, "/apis/storage.k8s.io/v1/csinodes", "kubelet", &registered).await.map(drop)
}

/// Returns a claim for which the driver has to provision a volume.
pub fn claim(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "labels": { "app.kubernetes.io/name": "database" } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
            "resources": { "requests": { "storage": "10Gi" } },
        },
    })
}

/// Returns the volume that the driver provisions for a claim.
pub fn volume(name: &str, namespace: &str, claim: &str, claim_uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name,
            "annotations": {
                PROVISIONED_BY: DRIVER,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
            },
            "finalizers": [PROTECTED_BY_PROVISIONER],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "10Gi" }, "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem",
            "csi": {
                "driver": DRIVER, "volumeHandle": name, "fsType": "ext4",
                "volumeAttributes": { "storage.kubernetes.io/csiProvisionerIdentity": format!("1767601800-{DRIVER}") },
            },
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim,
                "uid": claim_uid,
            },
        },
    })
}

/// Creates a claim and its volume as they are after provisioning and binding.
pub async fn create_bound(client: &Client, namespace: &str, claim: &str) -> Result<()> {
    let volume_name = volume_name(claim);
    let mut complete = self::claim(claim);
    complete["metadata"]["annotations"] = json!({
        "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
        "volume.kubernetes.io/storage-provisioner": DRIVER, "volume.beta.kubernetes.io/storage-provisioner": DRIVER,
    });
    complete["spec"]["volumeName"] = volume_name.as_str().into();
    let uid = api::create(client, &claims(namespace), BINDER, &complete).await?;
    api::create(client, VOLUMES, PROVISIONER, &volume(&volume_name, namespace, claim, &uid)).await?;
    let bound = json!({ "status": { "phase": "Bound" } });
    api::patch(client, &format!("{VOLUMES}/{volume_name}/status"), BINDER, Patch::Merge, &bound).await?;
    let bound = json!({ "status": {
        "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "10Gi" },
    } });
    api::patch(client, &format!("{}/{claim}/status", claims(namespace)), BINDER, Patch::Merge, &bound).await
}

/// Creates the attachment of a bound claim's volume to a node, as it is once the volume is attached.
pub async fn create_attached(client: &Client, claim: &str, node: &str) -> Result<()> {
    let volume = volume_name(claim);
    let name = attachment_name(&volume, node);
    let attachment = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
        "metadata": { "name": name, "finalizers": [PROTECTED_BY_ATTACHER] },
        "spec": { "attacher": DRIVER, "nodeName": node, "source": { "persistentVolumeName": volume } },
    });
    api::create(client, ATTACHMENTS, BINDER, &attachment).await?;
    let attached = json!({ "status": { "attached": true } });
    api::patch(client, &format!("{ATTACHMENTS}/{name}/status"), ATTACHER, Patch::Merge, &attached).await
}

/// Returns the name that manager and kubelet give an attachment.
fn attachment_name(handle: &str, node: &str) -> String {
    let mut name = String::from("csi-");
    for byte in Sha256::digest(format!("{handle}{DRIVER}{node}")) {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

/// Adds a volume of a claim to a pod.
pub fn mount(pod: &mut Value, claim: &str) {
    let volume = json!({ "name": "data", "persistentVolumeClaim": { "claimName": claim } });
    let mounted = json!({ "name": "data", "mountPath": "/var/lib/data" });
    let lists = [("/spec/volumes", volume), ("/spec/containers/0/volumeMounts", mounted)];
    for (list, item) in lists {
        if let Some(list) = pod.pointer_mut(list).and_then(Value::as_array_mut) {
            list.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::workload::App;

    #[test]
    fn mounted_claim_is_in_the_pod_and_its_container() {
        let mut pod = App { namespace: "a".into(), name: "b".into(), replicas: 1 }.pod(0, "node-0", "uid");
        mount(&mut pod, "data-7");
        let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
        assert!(volumes.iter().any(|volume| volume["persistentVolumeClaim"]["claimName"] == "data-7"));
        let mounts = pod["spec"]["containers"][0]["volumeMounts"].as_array().expect("mounts");
        assert!(mounts.iter().any(|mount| mount["name"] == "data"));
    }

    #[test]
    fn attachment_name_is_a_hash_of_handle_driver_and_node() {
        let (first, second) = (attachment_name("a", "node-1"), attachment_name("a", "node-2"));
        assert!(first.len() == 68 && first.starts_with("csi-") && first != second, "{first} {second}");
    }
}
