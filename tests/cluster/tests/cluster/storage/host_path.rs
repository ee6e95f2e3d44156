//! Provisioning of host-path volumes: each is a directory of this machine.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::with;
use cluster_tests::{Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::Api;
use serde_json::{Value, json};

use super::binder::{BINDER, FLAGS, Storage};
use super::objects::ClusterWide;
use crate::robustness::invariants::only_declared;

/// The provisioner of host-path volumes.
pub const HOST_PATH: &str = "kubernetes.io/host-path";
/// The flag that enables it.
pub const ENABLED: &str = "--enable-hostpath-provisioner=true";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Returns the name of the volume that is provisioned for a claim.
pub fn volume_of(claim: &PersistentVolumeClaim) -> Result<String> {
    Ok(format!("pvc-{}", claim.metadata.uid.as_ref().context("no uid")?))
}

/// Returns the directory that is provisioned for a claim.
pub fn directory_of(claim: &PersistentVolumeClaim) -> Result<String> {
    Ok(format!("/tmp/hostpath_pv/{}", claim.metadata.uid.as_ref().context("no uid")?))
}

/// Starts a manager that provisions host-path volumes.
async fn start(space: &Space, faults: &Faults) -> Result<Manager> {
    Manager::start_with(space, faults, &[FLAGS[0], FLAGS[1], ENABLED]).await
}

/// Waits until an event about a claim has a type, a reason and a message with this text.
async fn until_reported(space: &Space, claim: &str, wanted: &str) -> Result<()> {
    eventually(format!("an event about {claim}: {wanted}"), || async {
        let events = space.events(claim).await?;
        ensure!(events.keys().any(|event| event.contains(wanted)), "{events:?}");
        Ok(())
    })
    .await
}

fn annotation<'a>(claim: &'a PersistentVolumeClaim, name: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Returns fields of a claim with this class, and with the node that the scheduler would have chosen for its pod.
fn on_node(class: &str, node: &str) -> Value {
    json!({"metadata": {"annotations": {SELECTED_NODE: node}}, "spec": {"storageClassName": class}})
}

fn check_volume(volume: &PersistentVolume, claim: &PersistentVolumeClaim, class: &str) -> Result<()> {
    let annotations = volume.metadata.annotations.clone().unwrap_or_default();
    for (name, value) in [
        ("pv.kubernetes.io/bound-by-controller", "yes"),
        ("pv.kubernetes.io/provisioned-by", HOST_PATH),
        ("kubernetes.io/createdby", "hostpath-dynamic-provisioner"),
    ] {
        ensure!(annotations.get(name).is_some_and(|found| found == value), "{name}: {annotations:?}");
    }
    let finalizers = volume.metadata.finalizers.clone().unwrap_or_default();
    ensure!(finalizers.contains(&"kubernetes.io/pv-controller".to_owned()), "{finalizers:?}");
    let spec = volume.spec.clone().context("no spec")?;
    let capacity = spec.capacity.unwrap_or_default().remove("storage");
    ensure!(capacity.is_some_and(|capacity| capacity.0 == "3Gi"));
    ensure!(spec.access_modes.is_some_and(|modes| modes == ["ReadWriteOnce"]));
    ensure!(spec.persistent_volume_reclaim_policy.is_some_and(|policy| policy == "Delete"));
    ensure!(spec.storage_class_name.is_some_and(|name| name == class));
    ensure!(spec.host_path.context("no host path")?.path == directory_of(claim)?);
    ensure!(spec.claim_ref.context("no reference")?.uid == claim.metadata.uid);
    Ok(())
}

/// Upstream's cases 11-1, 11-13 and 12-1.
pub async fn directory_is_provisioned_for_a_claim_and_deleted_with_it(space: Space) -> Result<()> {
    let (storage, faults) = (Storage::new(&space), Faults::default());
    let manager = start(&space, &faults).await?;
    storage.create_class(HOST_PATH, "Immediate", "Delete").await?;
    let request = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
    storage.create_claim("data", request).await?;
    let claim = storage.until_claim_phase("data", "Bound").await?;
    let (name, directory) = (volume_of(&claim)?, directory_of(&claim)?);
    check_volume(&storage.volumes.get(&name).await?, &claim, &storage.class)?;
    until_reported(
        &space,
        "data",
        &format!("Normal ProvisioningSucceeded Successfully provisioned volume {name} using {HOST_PATH}"),
    )
    .await?;
    std::fs::write(format!("{directory}/file"), "data")?;
    storage.delete_claim("data").await?;
    eventually("directory and volume are deleted, except for the protection of the volume", || async {
        ensure!(!Path::new(&directory).exists(), "{directory} exists");
        let found = storage.volumes.get_opt(&name).await?;
        ensure!(found.is_none_or(|volume| volume.metadata.deletion_timestamp.is_some()), "the volume exists");
        Ok(())
    })
    .await?;
    manager.stop().await?;
    only_declared(&faults, &[BINDER])
}

/// Upstream's cases 11-4, 11-20 and 11-25, and claims for a node.
pub async fn claim_that_cannot_be_provisioned_is_reported_and_may_leave_its_node(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let _manager = start(&space, &Faults::default()).await?;
    let nodes = Api::<Node>::all(space.bed.client.clone()).list(&Default::default()).await?;
    let node = nodes.items.into_iter().find_map(|node| node.metadata.name).context("no node")?;
    let options = format!("{}-options", storage.class);
    for (class, mount_options) in [(&storage.class, json!([])), (&options, json!(["ro", "noatime"]))] {
        let class = json!({
            "metadata": {"name": class}, "provisioner": HOST_PATH, "volumeBindingMode": "WaitForFirstConsumer",
            "mountOptions": mount_options,
        });
        ClusterWide::<StorageClass>::of(&space).create(class).await?;
    }
    let source = json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "other"}}});
    let block = json!({"spec": {"volumeMode": "Block"}});
    let of_class = |node: &str| on_node(&storage.class, node);
    for (claim, fields, message, keeps_node) in [
        ("options", on_node(&options, &node), "has mount options [ro noatime]", true),
        ("source", with(of_class(&node), source), "Only CSI plugin can provision a claim with a datasource", true),
        ("nowhere", of_class("lost"), "Failed to get target node: node \"lost\" not found", true),
        ("block", with(of_class(&node), block), "does not support block volume provisioning", false),
    ] {
        storage.create_claim(claim, fields).await?;
        until_reported(&space, claim, message).await?;
        eventually(format!("{claim} keeps its node: {keeps_node}"), || async {
            let claim = storage.claim(claim).await?;
            ensure!(annotation(&claim, SELECTED_NODE).is_some() == keeps_node, "{:?}", claim.metadata.annotations);
            Ok(())
        })
        .await?;
        let events = space.events(claim).await?;
        ensure!(events.keys().any(|event| event.starts_with("Warning ProvisioningFailed ")), "{events:?}");
        ensure!(!Path::new(&directory_of(&storage.claim(claim).await?)?).exists(), "{claim} has a directory");
    }

    // A file has the place of the directory. Once it is deleted and a node is chosen again, the claim is provisioned.
    let claim = storage.create_claim("data", json!({})).await?;
    let directory = directory_of(&claim)?;
    std::fs::create_dir_all("/tmp/hostpath_pv")?;
    std::fs::write(&directory, "")?;
    let choose =
        || space.patch::<PersistentVolumeClaim>("data", json!({"metadata": {"annotations": {SELECTED_NODE: node}}}));
    choose().await?;
    until_reported(&space, "data", "Warning ProvisioningFailed Failed to provision volume with StorageClass").await?;
    eventually("the scheduler can choose again", || async {
        let claim = storage.claim("data").await?;
        ensure!(annotation(&claim, SELECTED_NODE).is_none(), "{:?}", claim.metadata.annotations);
        Ok(())
    })
    .await?;
    std::fs::remove_file(&directory)?;
    choose().await?;
    let bound = storage.until_claim_phase("data", "Bound").await?;
    ensure!(Path::new(&directory).is_dir() && volume_of(&bound)? == volume_of(&claim)?);
    std::fs::remove_dir_all(directory)?;
    Ok(())
}

/// Upstream's cases 11-3, and 11-9 to 11-12: the API server refuses the volume, and its directory is deleted.
pub async fn directory_of_a_refused_volume_is_deleted(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    storage.create_class(HOST_PATH, "Immediate", "Delete").await?;
    let disabled = Manager::start_with(&space, &Faults::default(), &FLAGS).await?;
    let claim = storage.create_claim("data", json!({})).await?;
    let directory = directory_of(&claim)?;
    let why = format!("Failed to create provisioner: provisioning in volume plugin {HOST_PATH:?} is disabled");
    until_reported(&space, "data", &why).await?;
    ensure!(!Path::new(&directory).exists(), "a directory was created without the flag");
    disabled.stop().await?;

    let refusal = Rule::on(Verb::Create, "persistentvolumes", Effect::Refuse(403, None)).times(usize::MAX);
    let faults = Faults::script([refusal]);
    let refused = start(&space, &faults).await?;
    let key = format!("{}/data", space.namespace);
    let why = format!("Warning ProvisioningFailed Error creating provisioned PV object for claim {key}: ");
    until_reported(&space, "data", &why).await?;
    eventually("the directory of the refused volume is deleted", || async {
        ensure!(!Path::new(&directory).exists());
        Ok(())
    })
    .await?;
    refused.stop().await?;

    let _manager = start(&space, &Faults::default()).await?;
    let bound = storage.until_claim_phase("data", "Bound").await?;
    ensure!(Path::new(&directory).is_dir(), "the volume has no directory");
    during(QUIET, "the directory stays", || async {
        ensure!(Path::new(&directory).is_dir());
        Ok(())
    })
    .await?;
    storage.delete_claim("data").await?;
    eventually("the directory is deleted", || async {
        ensure!(!Path::new(&directory_of(&bound)?).exists());
        Ok(())
    })
    .await
}
