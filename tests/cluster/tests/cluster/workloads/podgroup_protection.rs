//! PodGroups that are being deleted stay as long as one of their pods has not finished.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cluster_tests::objects::{pod, with};
use cluster_tests::{Bed, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use control_plane::Options;
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use serde_json::{Value, json};

use crate::robustness::invariants::only_declared;

const NAME: &str = "podgroup-protection-controller";
const GATE: &str = "--feature-gates=GenericWorkload=true";
const FINALIZER: &str = "scheduling.k8s.io/podgroup-protection";

/// Creates a PodGroup without claims.
pub async fn create_group(space: &Space, name: &str) -> Result<()> {
    let metadata = json!({"name": name, "namespace": space.namespace});
    let group = json!({
        "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata,
        "spec": {"schedulingPolicy": {"basic": {}}},
    });
    space.bed.cluster.kubectl_with_input(&["create", "-f", "-"], &group.to_string())?;
    Ok(())
}

/// Creates a pod of a group, on a node that has no kubelet. The typed client lacks the field `schedulingGroup`.
fn create_member(space: &Space, name: &str, group: &str) -> Result<()> {
    let spec = json!({"nodeName": "without-kubelet", "schedulingGroup": {"podGroupName": group}});
    let object = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": {"namespace": space.namespace}});
    let member = with(pod(name, "web"), object);
    space.bed.cluster.kubectl_with_input(&["create", "-f", "-"], &member.to_string())?;
    Ok(())
}

/// Deletes a PodGroup, without waiting for the end.
pub async fn delete_group(space: &Space, name: &str) -> Result<()> {
    space.kubectl(&["delete", "podgroup", name, "--wait=false"]).await?;
    Ok(())
}

async fn stays(space: &Space, name: &str) -> Result<()> {
    during(QUIET, format!("group {name} stays"), || async {
        let group: Value = serde_json::from_str(&space.kubectl(&["get", "podgroup", name, "-o", "json"]).await?)?;
        ensure!(group["metadata"]["finalizers"] == json!([FINALIZER]), "{group}");
        Ok(())
    })
    .await
}

/// Waits until a PodGroup is deleted.
pub async fn until_group_deleted(space: &Space, name: &str) -> Result<()> {
    eventually(format!("group {name} is deleted"), || async {
        let left = space.kubectl(&["get", "podgroup", name, "--ignore-not-found", "-o", "name"]).await?;
        ensure!(left.is_empty(), "it still exists");
        Ok(())
    })
    .await
}

pub async fn group_stays_until_its_pods_have_finished(_: Space) -> Result<()> {
    let flags = [GATE, "--runtime-config=scheduling.k8s.io/v1beta1=true"].map(str::to_owned).to_vec();
    let options = Options { kwok: false, scheduler: false, extra_apiserver_flags: flags, ..Options::default() };
    let bed = Arc::new(Bed::without_accounts(options).await?);
    let space = bed.space("groups").await?;
    space.create::<ServiceAccount>(json!({"metadata": {"name": "default"}})).await?;
    for group in ["empty", "finishing", "deleted", "unseen"] {
        create_group(&space, group).await?;
    }
    create_member(&space, "finishing", "finishing")?;
    create_member(&space, "deleted", "deleted")?;
    let faults = Faults::script([Rule::on(Verb::Update, "podgroups", Effect::LostBefore)]);
    let manager = Manager::start_cluster_wide(&space, &faults, &[GATE, &format!("--controllers={NAME}")]).await?;
    for group in ["empty", "finishing", "deleted"] {
        delete_group(&space, group).await?;
    }
    until_group_deleted(&space, "empty").await?;
    stays(&space, "finishing").await?;
    space.patch_status::<Pod>("finishing", json!({"status": {"phase": "Succeeded"}})).await?;
    until_group_deleted(&space, "finishing").await?;
    stays(&space, "deleted").await?;
    space.kubectl(&["delete", "pod", "deleted", "--force", "--grace-period=0"]).await?;
    until_group_deleted(&space, "deleted").await?;
    // The cache does not contain the pod; only an uncached read can find it.
    faults.freeze("pods");
    create_member(&space, "unseen", "unseen")?;
    delete_group(&space, "unseen").await?;
    stays(&space, "unseen").await?;
    faults.thaw("pods");
    space.kubectl(&["delete", "pod", "unseen", "--force", "--grace-period=0"]).await?;
    until_group_deleted(&space, "unseen").await?;
    manager.stop().await?;
    only_declared(&faults, &[NAME])
}
