//! Volumes, claims and pods with claims, and accessors for tests.

use anyhow::{Context, Result, bail, ensure};
use cluster_tests::objects::{pod, with};
use cluster_tests::{Space, eventually};
use control_plane::csi::Driver;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, StorageClass};
use kube::Resource;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

use crate::auth::serviceaccount::on_bed_without_accounts;

/// Locked by each test whose volumes or classes no manager of another test may process.
static ALONE: Mutex<()> = Mutex::const_new(());

/// Returns a namespace on a control plane where no other test has volumes, claims or classes until the guard is
/// dropped. They have no namespace: on the control plane of most tests, the managers of other tests process them, too.
pub async fn alone(space: &Space) -> Result<(Space, MutexGuard<'static, ()>)> {
    let guard = ALONE.lock().await;
    Ok((on_bed_without_accounts(space).await?, guard))
}

/// Returns a claim of 1 GiB without a class: no provisioner creates a volume for it.
pub fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

/// Returns a volume of 1 GiB with this source, without a class.
pub fn volume(name: &str, source: Value) -> Value {
    with(
        json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
                "persistentVolumeReclaimPolicy": "Retain",
            },
        }),
        json!({"spec": source}),
    )
}

/// Returns a pod on a node without a kubelet, with a volume of this claim. The pod does not change until a test changes
/// it.
pub fn user_on_a_node(name: &str, claim: &str) -> Value {
    with(user(name, claim), json!({"spec": {"nodeName": "without-kubelet"}}))
}

/// Returns a pod that is never scheduled, with a volume of this claim.
pub fn user(name: &str, claim: &str) -> Value {
    let volumes = json!([{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]);
    with(pod(name, "web"), json!({"spec": {"schedulerName": "none", "volumes": volumes}}))
}

/// Starts a driver, and creates its CSIDriver and a class of its volumes, all named for the namespace.
pub async fn start_driver(space: &Space, flags: &[&str], binding: &str) -> Result<Driver> {
    let name = &space.namespace;
    let driver = Driver::start(&space.bed.cluster, name, flags).await?;
    let info = json!({"metadata": {"name": name}, "spec": {"attachRequired": true}});
    ClusterWide::<CSIDriver>::of(space).create(info).await?;
    let class = json!({
        "metadata": {"name": name}, "provisioner": name, "allowVolumeExpansion": true, "volumeBindingMode": binding,
    });
    ClusterWide::<StorageClass>::of(space).create(class).await?;
    Ok(driver)
}

/// Waits until a driver has completed this action. The next action may follow before this one is observed.
pub async fn until_done(driver: &Driver, action: &str) -> Result<()> {
    eventually(format!("the driver's history has {action:?}"), || async {
        let history = driver.history()?;
        ensure!(history.iter().any(|done| done == action), "{history:?}");
        Ok(())
    })
    .await
}

/// A kind without a namespace.
pub trait ClusterScoped:
    Resource<Scope = k8s_openapi::ClusterResourceScope, DynamicType = ()>
    + Clone
    + std::fmt::Debug
    + Serialize
    + DeserializeOwned
{
}

impl<K> ClusterScoped for K where
    K: Resource<Scope = k8s_openapi::ClusterResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
{
}

/// Objects of a kind without a namespace, named for a test's namespace.
pub struct ClusterWide<K> {
    api: Api<K>,
}

impl<K: ClusterScoped> ClusterWide<K> {
    /// Returns the admin's client of the objects.
    pub fn of(space: &Space) -> Self {
        Self { api: Api::all(space.bed.client.clone()) }
    }

    /// Creates an object.
    pub async fn create(&self, object: Value) -> Result<K> {
        let typed: K = serde_json::from_value(object.clone()).with_context(|| format!("read {object}"))?;
        self.api.create(&PostParams::default(), &typed).await.with_context(|| format!("create {object}"))
    }

    /// Reads an object.
    pub async fn get(&self, name: &str) -> Result<K> {
        Ok(self.api.get(name).await?)
    }

    /// Changes an object by a merge patch.
    pub async fn patch(&self, name: &str, patch: Value) -> Result<K> {
        Ok(self.api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?)
    }

    /// Changes an object's status by a merge patch.
    pub async fn patch_status(&self, name: &str, patch: Value) -> Result<K> {
        Ok(self.api.patch_status(name, &PatchParams::default(), &Patch::Merge(&patch)).await?)
    }

    /// Deletes an object.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.api.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Waits until an object no longer exists.
    pub async fn until_deleted(&self, name: &str) -> Result<()> {
        eventually(format!("{name} no longer exists"), || async {
            match self.api.get_opt(name).await? {
                Some(object) => bail!("finalizers {:?}", object.meta().finalizers),
                None => Ok(()),
            }
        })
        .await
    }
}

/// Returns the admin's client of volumes.
pub fn volumes(space: &Space) -> ClusterWide<PersistentVolume> {
    ClusterWide::of(space)
}

/// Sets the status of a bound claim, as the binder does, with this capacity.
pub async fn bind(space: &Space, claim: &str, capacity: &str) -> Result<PersistentVolumeClaim> {
    let status = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": capacity}});
    space.patch_status(claim, json!({"status": status})).await
}

/// Returns status and reason of a claim's condition `Unused`.
pub async fn unused(space: &Space, claim: &str) -> Result<(String, String)> {
    let claim: PersistentVolumeClaim = space.get(claim).await?;
    let conditions = claim.status.and_then(|status| status.conditions).unwrap_or_default();
    let condition = conditions.into_iter().find(|condition| condition.type_ == "Unused").context("no condition")?;
    Ok((condition.status, condition.reason.unwrap_or_default()))
}

/// Waits until a claim's condition `Unused` has this status and reason.
pub async fn until_unused(space: &Space, claim: &str, status: &str, reason: &str) -> Result<()> {
    eventually(format!("the condition of {claim} is {status}"), || async {
        let found = unused(space, claim).await?;
        ensure!(found == (status.to_owned(), reason.to_owned()), "{found:?}");
        Ok(())
    })
    .await
}

/// Waits until a claim no longer exists.
pub async fn until_claim_deleted(space: &Space, name: &str) -> Result<()> {
    eventually(format!("claim {name} no longer exists"), || async {
        match space.api::<PersistentVolumeClaim>().get_opt(name).await? {
            Some(claim) => bail!("finalizers {:?}", claim.metadata.finalizers),
            None => Ok(()),
        }
    })
    .await
}

/// Deletes a pod without a kubelet.
pub async fn delete_with_force(space: &Space, pod: &str) -> Result<()> {
    space.api::<Pod>().delete(pod, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}
