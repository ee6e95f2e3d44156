//! Generic ephemeral volumes get their claims exactly once, and never another owner's claim.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{owner, pod, with};
use cluster_tests::{Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use serde_json::{Value, json};

use super::objects::claim;
use crate::robustness::invariants::only_declared;

const NAME: &str = "ephemeral-volume-controller";

fn start_flags() -> [String; 1] {
    [format!("--controllers={NAME}")]
}

async fn start(space: &Space, faults: &Faults) -> Result<Manager> {
    Manager::start_with(space, faults, &[&start_flags()[0]]).await
}

/// Returns a pod that is never scheduled, with a generic ephemeral volume `scratch`.
fn user(name: &str) -> Value {
    let template = with(claim(""), json!({"metadata": {"name": null, "labels": {"app": "web"}}}));
    let volumes =
        json!([{"name": "tmp", "emptyDir": {}}, {"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]);
    with(pod(name, "web"), json!({"spec": {"schedulerName": "none", "volumes": volumes}}))
}

fn creations(faults: &Faults) -> usize {
    faults.count(|call| call.verb == Verb::Create && call.resource == "persistentvolumeclaims")
}

async fn until_claimed(space: &Space, name: &str) -> Result<PersistentVolumeClaim> {
    eventually(format!("claim {name}"), || space.get::<PersistentVolumeClaim>(name)).await
}

pub async fn deleted_claim_of_an_ephemeral_volume_is_created_again(space: Space) -> Result<()> {
    let faults = Faults::default();
    let manager = start(&space, &faults).await?;
    space.create::<Pod>(user("web")).await?;
    let claim = until_claimed(&space, "web-scratch").await?;
    ensure!(owner(&claim) == "web", "{:?}", claim.metadata);
    ensure!(claim.metadata.owner_references.iter().flatten().all(|owner| owner.block_owner_deletion == Some(true)));
    ensure!(claim.metadata.labels == Some(BTreeMap::from([("app".to_owned(), "web".to_owned())])));
    let requested = claim.spec.and_then(|spec| spec.resources).and_then(|resources| resources.requests);
    ensure!(requested.is_some_and(|requests| requests["storage"].0 == "1Gi"));
    let first = claim.metadata.uid.context("no uid")?;
    space.patch::<PersistentVolumeClaim>("web-scratch", json!({"metadata": {"finalizers": null}})).await?;
    space.delete::<PersistentVolumeClaim>("web-scratch").await?;
    eventually("another claim has its name", || async {
        let claim: PersistentVolumeClaim = space.get("web-scratch").await?;
        ensure!(claim.metadata.uid.as_ref() != Some(&first));
        Ok(())
    })
    .await?;
    during(QUIET, "each claim is created once", || async {
        ensure!(creations(&faults) == 2, "{:?}", faults.requests());
        Ok(())
    })
    .await?;
    manager.stop().await?;
    only_declared(&faults, &[NAME])
}

pub async fn claim_of_another_owner_is_reported_and_left_alone(space: Space) -> Result<()> {
    let faults = Faults::default();
    space.create::<PersistentVolumeClaim>(claim("web-scratch")).await?;
    let _manager = start(&space, &faults).await?;
    space.create::<Pod>(user("web")).await?;
    let namespace = &space.namespace;
    let wanted = format!(
        "Warning FailedBinding ephemeral volume scratch: PVC {namespace}/web-scratch was not created for pod \
         {namespace}/web (pod is not owner)"
    );
    eventually("an event reports the other claim", || async {
        let events = space.events("web").await?;
        ensure!(events.contains_key(&wanted), "{events:?}");
        Ok(())
    })
    .await?;
    ensure!(creations(&faults) == 0, "{:?}", faults.requests());
    // Once the name is free, the pod gets its claim.
    space.patch::<PersistentVolumeClaim>("web-scratch", json!({"metadata": {"finalizers": null}})).await?;
    space.delete::<PersistentVolumeClaim>("web-scratch").await?;
    eventually("the pod's own claim", || async {
        ensure!(owner(&space.get::<PersistentVolumeClaim>("web-scratch").await?) == "web");
        Ok(())
    })
    .await
}

/// The response to the creation is lost and the cache of claims is stale: the claim is found by an uncached read,
/// without an event.
pub async fn lost_response_leads_to_no_second_claim_and_no_event(space: Space) -> Result<()> {
    let faults = Faults::script([Rule::on(Verb::Create, "persistentvolumeclaims", Effect::LostAfter)]);
    let _manager = start(&space, &faults).await?;
    faults.until_watching(&["persistentvolumeclaims"]).await?;
    faults.freeze("persistentvolumeclaims");
    space.create::<Pod>(user("web")).await?;
    until_claimed(&space, "web-scratch").await?;
    eventually("the claim is read", || async {
        ensure!(faults.count(|call| call.verb == Verb::Get && call.resource == "persistentvolumeclaims") > 0);
        Ok(())
    })
    .await?;
    faults.thaw("persistentvolumeclaims");
    during(QUIET, "nothing is reported about the owner", || async {
        let events = space.events("web").await?;
        ensure!(events.keys().all(|event| !event.contains("pod is not owner")), "{events:?}");
        ensure!(space.list::<PersistentVolumeClaim>("").await?.len() == 1);
        Ok(())
    })
    .await
}
