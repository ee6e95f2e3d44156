//! PodGroups, device pools, storage versions, migrations and policies that one manager began to process and the other
//! one continues, in both directions.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cluster_tests::objects::{pod, with};
use cluster_tests::{Bed, Faults, Manager, Space, eventually};
use control_plane::Options;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use serde_json::{Value, json};

use crate::upstream::manager::{UPSTREAM, start_upstream};

/// Upstream's migrator reads the garbage collector's cache.
const CONTROLLERS: &str = "podgroup-protection-controller,resourcepoolstatusrequest-controller,\
                           storage-version-migrator-controller,storageversion-garbage-collector-controller,\
                           validatingadmissionpolicy-status-controller,garbage-collector-controller";
const GATES: &str = "--feature-gates=GenericWorkload=true,DRAResourcePoolStatus=true,StorageVersionAPI=true";
const IDENTITY: &str = "-lapiserver.kubernetes.io/identity=kube-apiserver";

/// One of the two managers.
enum Side {
    Upstream,
    Ours(Manager),
}

impl Side {
    async fn start(space: &Space, is_upstream: bool) -> Result<Self> {
        if is_upstream {
            start_upstream(&space.bed.cluster, CONTROLLERS, &[GATES])?;
            return Ok(Self::Upstream);
        }
        let controllers = format!("--controllers={CONTROLLERS}");
        let flags = [GATES, &controllers, "--enable-garbage-collector=true"];
        Ok(Self::Ours(Manager::start_cluster_wide(space, &Faults::default(), &flags).await?))
    }

    async fn stop(self, space: &Space) -> Result<()> {
        match self {
            Self::Upstream => space.bed.cluster.kill(UPSTREAM),
            Self::Ours(manager) => manager.stop().await.map(drop),
        }
    }
}

fn create(space: &Space, object: &Value) -> Result<()> {
    space.bed.cluster.kubectl_with_input(&["create", "-f", "-"], &object.to_string())?;
    Ok(())
}

async fn read(space: &Space, kind: &str, name: &str) -> Result<Value> {
    Ok(serde_json::from_str(&space.kubectl(&["get", kind, name, "-o", "json"]).await?)?)
}

fn policy(name: &str, expression: &str) -> Value {
    let rule = json!({
        "apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"], "operations": ["CREATE"],
    });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": expression}],
        },
    })
}

fn request(name: &str) -> Value {
    json!({
        "apiVersion": "resource.k8s.io/v1alpha3", "kind": "ResourcePoolStatusRequest",
        "metadata": {"name": name}, "spec": {"driver": "gpu.example.com"},
    })
}

fn migration(name: &str) -> Value {
    json!({
        "apiVersion": "storagemigration.k8s.io/v1", "kind": "StorageVersionMigration", "metadata": {"name": name},
        "spec": {"resource": {"group": "", "resource": "configmaps"}},
    })
}

/// Creates a PodGroup with a running pod, and deletes it: it stays while the pod runs.
async fn delete_group_in_use(space: &Space, name: &str) -> Result<()> {
    let metadata = json!({"name": name, "namespace": space.namespace});
    create(
        space,
        &json!({
            "apiVersion": "scheduling.k8s.io/v1beta1", "kind": "PodGroup", "metadata": metadata,
            "spec": {"schedulingPolicy": {"basic": {}}},
        }),
    )?;
    let spec = json!({"nodeName": "without-kubelet", "schedulingGroup": {"podGroupName": name}});
    let member = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": {"namespace": space.namespace}});
    create(space, &with(pod(name, "web"), member))?;
    space.kubectl(&["delete", "podgroup", name, "--wait=false"]).await?;
    Ok(())
}

/// Creates a StorageVersion with an entry of the running API server, and one of an API server that no longer runs.
async fn report_storage_version(space: &Space, name: &str) -> Result<()> {
    let path = "jsonpath={.items[0].metadata.name}";
    let living = space.bed.cluster.kubectl(&["get", "lease", "-n", "kube-system", IDENTITY, "-o", path])?;
    create(
        space,
        &json!({
            "apiVersion": "internal.apiserver.k8s.io/v1alpha1", "kind": "StorageVersion", "metadata": {"name": name},
            "spec": {},
        }),
    )?;
    let entry = |server: &str| {
        json!({
            "apiServerID": server, "encodingVersion": "v1", "decodableVersions": ["v1"], "servedVersions": ["v1"],
        })
    };
    let status =
        json!({"storageVersions": [entry(&living), entry("apiserver-stopped")], "commonEncodingVersion": "v1"});
    let patch = json!({"status": status}).to_string();
    let of = ["storageversion", name, "--subresource=status", "--type=merge", "-p", &patch];
    space.kubectl(&[&["patch"], &of[..]].concat()).await?;
    Ok(())
}

/// Waits until a policy's current generation was checked, with this number of warnings.
async fn until_policy_checked(space: &Space, name: &str, warnings: usize) -> Result<()> {
    eventually(format!("policy {name} has {warnings} warnings"), || async {
        let policy = read(space, "validatingadmissionpolicy", name).await?;
        let found = policy["status"]["typeChecking"]["expressionWarnings"].as_array().map_or(0, Vec::len);
        ensure!(policy["status"]["observedGeneration"] == policy["metadata"]["generation"], "{policy}");
        ensure!(found == warnings, "{policy}");
        Ok(())
    })
    .await
}

async fn until_request_completed(space: &Space, name: &str) -> Result<()> {
    eventually(format!("request {name} is completed"), || async {
        let request = read(space, "resourcepoolstatusrequest", name).await?;
        ensure!(request["status"]["poolCount"] == 0, "{request}");
        Ok(())
    })
    .await
}

/// Waits until a migration succeeds. Changes a ConfigMap, because upstream's cache must have reached the version at
/// which the migration began.
async fn until_migrated(space: &Space, name: &str) -> Result<()> {
    eventually(format!("migration {name} succeeds"), || async {
        let written = jiff::Timestamp::now().to_string();
        space.patch::<ConfigMap>("map", json!({"data": {"written": written}})).await?;
        let migration = read(space, "storageversionmigration", name).await?;
        let conditions = migration["status"]["conditions"].as_array().context("no conditions")?;
        ensure!(conditions.iter().any(|it| it["type"] == "Succeeded" && it["status"] == "True"), "{migration}");
        Ok(())
    })
    .await
}

async fn until_one_entry(space: &Space, name: &str) -> Result<()> {
    eventually(format!("storage version {name} has one entry"), || async {
        let version = read(space, "storageversion", name).await?;
        let count = version["status"]["storageVersions"].as_array().map_or(0, Vec::len);
        ensure!(count == 1, "{version}");
        Ok(())
    })
    .await
}

/// Returns the versions of the complete objects, which the other manager must not change.
async fn versions_of_complete_objects(space: &Space, name: &str) -> Result<Vec<Value>> {
    let mut versions = Vec::new();
    for (kind, name) in [
        ("resourcepoolstatusrequest", name.to_owned()),
        ("storageversionmigration", name.to_owned()),
        ("storageversion", format!("example.com.{name}")),
    ] {
        versions.push(read(space, kind, &name).await?["metadata"]["resourceVersion"].take());
    }
    Ok(versions)
}

/// Starts all tasks under one manager, and completes them under the other one.
async fn pass_on(space: &Space, name: &str, upstream_first: bool) -> Result<()> {
    let first = Side::start(space, upstream_first).await?;
    delete_group_in_use(space, name).await?;
    create(space, &policy(name, "object.spec.replicas > 'a'"))?;
    create(space, &request(name))?;
    create(space, &migration(name))?;
    let version = format!("example.com.{name}");
    report_storage_version(space, &version).await?;
    until_policy_checked(space, name, 1).await?;
    until_request_completed(space, name).await?;
    until_migrated(space, name).await?;
    until_one_entry(space, &version).await?;
    let before = versions_of_complete_objects(space, name).await?;
    first.stop(space).await?;

    space.patch_status::<Pod>(name, json!({"status": {"phase": "Succeeded"}})).await?;
    let group = read(space, "podgroup", name).await?;
    ensure!(group["metadata"]["deletionTimestamp"].is_string(), "{group}");
    let second = Side::start(space, !upstream_first).await?;
    eventually("the PodGroup is deleted", || async {
        let left = space.kubectl(&["get", "podgroup", name, "--ignore-not-found", "-o", "name"]).await?;
        ensure!(left.is_empty(), "{left}");
        Ok(())
    })
    .await?;
    let right = policy(name, "object.spec.replicas > 1").to_string();
    space.bed.cluster.kubectl_with_input(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &right)?;
    until_policy_checked(space, name, 0).await?;
    let next = format!("{name}-next");
    create(space, &request(&next))?;
    create(space, &migration(&next))?;
    until_request_completed(space, &next).await?;
    until_migrated(space, &next).await?;
    ensure!(versions_of_complete_objects(space, name).await? == before, "complete objects were written again");
    second.stop(space).await
}

pub async fn small_controllers_continue_under_the_other_manager(_: Space) -> Result<()> {
    let flags = [GATES, "--runtime-config=api/all=true"].map(str::to_owned).to_vec();
    let options = Options { kwok: false, scheduler: false, extra_apiserver_flags: flags, ..Options::default() };
    let space = Arc::new(Bed::without_accounts(options).await?).space("takeover").await?;
    space.create::<ServiceAccount>(json!({"metadata": {"name": "default"}})).await?;
    space.create::<ConfigMap>(json!({"metadata": {"name": "map"}})).await?;
    pass_on(&space, "theirs", true).await.context("from upstream to ours")?;
    pass_on(&space, "ours", false).await.context("from ours to upstream")
}
