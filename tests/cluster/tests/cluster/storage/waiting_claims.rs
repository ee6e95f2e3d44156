//! Observable behaviour of claims that wait for a volume.

use anyhow::{Result, ensure};
use cluster_tests::{Faults, Manager, Space, eventually};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

use super::binder::{FLAGS, Storage};

/// Two claims wait for a volume. The larger claim then names a volume that is too small. A new volume fits both claims
/// and is bound to the other one.
pub async fn free_volume_requeues_no_claim_that_names_another_one(space: Space) -> Result<()> {
    let storage = Storage::new(&space);
    let flags = [FLAGS[0], "--pvclaimbinder-sync-period=24h"];
    let _manager = Manager::start_with(&space, &Faults::default(), &flags).await?;
    let of_size = |storage: &str| json!({"spec": {"resources": {"requests": {"storage": storage}}}});
    storage.create_volume("tiny", json!({"spec": {"capacity": {"storage": "1Mi"}}})).await?;
    storage.until_volume_phase("tiny", "Available").await?;
    for (claim, size) in [("data", "1Gi"), ("named", "2Gi")] {
        storage.create_claim(claim, of_size(size)).await?;
    }
    let until_reported = |claim: &'static str, reason: &'static str| {
        let space = &space;
        eventually(format!("{claim} has an event {reason}"), move || async move {
            let events = space.events(claim).await?;
            ensure!(events.keys().any(|event| event.contains(reason)), "{events:?}");
            Ok(())
        })
    };
    until_reported("data", "ProvisioningFailed").await?;
    until_reported("named", "ProvisioningFailed").await?;
    let name = json!({"spec": {"volumeName": storage.name("tiny")}});
    space.patch::<PersistentVolumeClaim>("named", name).await?;
    until_reported("named", "VolumeMismatch").await?;
    storage.create_volume("free", json!({"spec": {"capacity": {"storage": "5Gi"}}})).await?;
    storage.until_bound("data", "free").await?;
    Ok(())
}
