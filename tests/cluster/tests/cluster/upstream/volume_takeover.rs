//! Upstream's manager and ours replace each other while claims are bound, provisioned, expanded and deleted: nothing is
//! bound twice, lost or left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::with;
use cluster_tests::{Bed, Call, Faults, Manager, Space, eventually};
use control_plane::Options;
use control_plane::csi::Driver;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use crate::storage::objects::{claim, start_driver, volume, volumes};
use crate::upstream::manager::{UPSTREAM, start_upstream_with};

const CONTROLLERS: &str = "--controllers=persistentvolume-binder-controller,persistentvolume-expander-controller,\
                           persistentvolume-protection-controller,persistentvolumeclaim-protection-controller";

/// Number of claims in each step. The manager is replaced when a few of them are done.
const CLAIMS: usize = 30;

/// Starts a control plane without nodes: the volumes here are never used.
async fn bed() -> Result<Arc<Bed>> {
    let options = Options { kwok: false, scheduler: false, ..Options::default() };
    Ok(Arc::new(Bed::without_accounts(options).await?))
}

/// The active manager.
enum ActiveManager {
    Ours(Manager),
    Upstreams,
}

impl ActiveManager {
    async fn ours(space: &Space, faults: &Faults) -> Result<Self> {
        Ok(Self::Ours(Manager::start_cluster_wide(space, faults, &[CONTROLLERS]).await?))
    }

    fn upstreams(space: &Space) -> Result<Self> {
        start_upstream_with(&space.bed.cluster, &[CONTROLLERS])?;
        Ok(Self::Upstreams)
    }

    /// Kills the manager and starts the other one.
    async fn replace(self, space: &Space) -> Result<Self> {
        match self {
            Self::Ours(manager) => {
                manager.crash().await;
                Self::upstreams(space)
            }
            Self::Upstreams => {
                space.bed.cluster.kill(UPSTREAM)?;
                Self::ours(space, &Faults::default()).await
            }
        }
    }
}

fn names(kind: &str) -> impl Iterator<Item = String> {
    let kind = kind.to_owned();
    (0..CLAIMS).map(move |at| format!("{kind}-{at}"))
}

/// Creates claims of the namespace's class.
async fn create_claims(space: &Space, kind: &str) -> Result<()> {
    let of_class = json!({"spec": {"storageClassName": space.namespace}});
    let claims =
        names(kind).map(async |name| space.create::<PersistentVolumeClaim>(with(claim(&name), of_class.clone())).await);
    try_join_all(claims).await?;
    Ok(())
}

/// Returns the claims of the namespace, by name.
async fn claims(space: &Space) -> Result<BTreeMap<String, PersistentVolumeClaim>> {
    let claims = space.list::<PersistentVolumeClaim>("").await?;
    Ok(claims.into_iter().filter_map(|claim| Some((claim.metadata.name.clone()?, claim))).collect())
}

/// Returns the volumes of the namespace's class.
async fn volumes_of(space: &Space) -> Result<Vec<PersistentVolume>> {
    let all: Api<PersistentVolume> = Api::all(space.bed.client.clone());
    let mut found = all.list(&ListParams::default()).await?.items;
    let is_ours = |volume: &PersistentVolume| {
        volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref()) == Some(&space.namespace)
    };
    found.retain(is_ours);
    Ok(found)
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
}

/// Returns true if the protection controller has written its condition: the last write for a claim that is bound and
/// not used.
fn is_reported_unused(claim: &PersistentVolumeClaim) -> bool {
    let conditions = claim.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|conditions| conditions.iter().any(|condition| condition.type_ == "Unused"))
}

fn capacity(claim: &PersistentVolumeClaim) -> Option<String> {
    let capacity = claim.status.as_ref()?.capacity.as_ref()?;
    Some(capacity.get("storage")?.0.clone())
}

/// Waits until this number of claims, or more, are in a state.
async fn until(space: &Space, what: &str, min: usize, is_so: fn(&PersistentVolumeClaim) -> bool) -> Result<()> {
    eventually(format!("{min} claims are {what}"), || async {
        let found = claims(space).await?.values().filter(|claim| is_so(claim)).count();
        ensure!(found >= min, "{found}");
        Ok(())
    })
    .await
}

/// Checks that each claim has a volume of its own, and that the volume refers to the claim.
async fn each_has_its_volume(space: &Space, number: usize) -> Result<()> {
    let (claims, volumes) = (claims(space).await?, volumes_of(space).await?);
    let mut taken = BTreeSet::new();
    for (name, claim) in &claims {
        let named = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).context("no volume")?;
        let of_name = |volume: &&PersistentVolume| volume.metadata.name.as_ref() == Some(&named);
        let volume = volumes.iter().find(of_name).with_context(|| format!("{name}: no volume {named}"))?;
        let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.clone()).unwrap_or_default();
        ensure!(reference.uid == claim.metadata.uid, "{name}: {named} is bound to {reference:?}");
        ensure!(taken.insert(named.clone()), "{named} is bound twice");
    }
    ensure!(taken.len() == number, "{} claims are bound", taken.len());
    Ok(())
}

/// Binds claims to static volumes while the manager is replaced.
async fn bind_under_both(space: &Space, mut active: ActiveManager) -> Result<ActiveManager> {
    let host_path = json!({"hostPath": {"path": "/tmp/never-created"}, "storageClassName": space.namespace});
    let each = (0..CLAIMS + 3).map(|at| volume(&format!("{}-{at}", space.namespace), host_path.clone()));
    try_join_all(each.map(async |object| volumes(space).create(object).await)).await?;
    create_claims(space, "data").await?;
    until(space, "bound", 3, is_bound).await?;
    active = active.replace(space).await?;
    until(space, "bound", CLAIMS, is_bound).await?;
    each_has_its_volume(space, CLAIMS).await?;
    Ok(active)
}

/// Returns uid and version of all volumes and claims.
async fn versions_of_claims_and_volumes(space: &Space) -> Result<BTreeMap<String, String>> {
    let bed = space.bed.clone();
    let kinds = "persistentvolumes,persistentvolumeclaims";
    let list = move || bed.cluster.kubectl(&["get", kinds, "--all-namespaces", "--output=json"]);
    let list: Value = serde_json::from_str(&tokio::task::spawn_blocking(list).await??)?;
    let row = |item: &Value| {
        let text = |field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
        (format!("{} {}/{}", item["kind"], text("namespace"), text("name")), text("uid") + &text("resourceVersion"))
    };
    Ok(list["items"].as_array().into_iter().flatten().map(row).collect())
}

/// Takeovers in both directions; after the last one, our manager changes no object.
pub async fn binding_continues_under_the_other_manager(_: Space) -> Result<()> {
    let bed = bed().await?;
    let (first, second) = (bed.space("from-upstream").await?, bed.space("from-ours").await?);
    let active = bind_under_both(&first, ActiveManager::upstreams(&first)?).await.context("upstream's, then ours")?;
    let active = bind_under_both(&second, active).await.context("ours, then upstream's")?;
    for space in [&first, &second] {
        until(space, "reported as unused", CLAIMS, is_reported_unused).await?;
    }
    let ActiveManager::Upstreams = active else { anyhow::bail!("our manager runs instead of upstream's") };
    bed.cluster.kill(UPSTREAM)?;
    let before = versions_of_claims_and_volumes(&first).await?;
    let faults = Faults::default();
    let ActiveManager::Ours(manager) = ActiveManager::ours(&first, &faults).await? else {
        anyhow::bail!("upstream's manager runs instead of ours")
    };
    faults.until_watching(&["persistentvolumeclaims"]).await?;
    faults.none_while_quiet(Call::is_object_write).await?;
    manager.stop().await?;
    ensure!(versions_of_claims_and_volumes(&first).await? == before, "a claim or volume was changed");
    Ok(())
}

/// Returns the number of volumes for which the driver executed an action. A sidecar may repeat a call.
fn done(driver: &Driver, verb: &str) -> Result<usize> {
    let history = driver.history()?;
    let volume = |event: &String| {
        let mut words = event.split(' ');
        (words.next() == Some(verb)).then(|| words.next().map(ToOwned::to_owned)).flatten()
    };
    Ok(history.iter().filter_map(volume).collect::<BTreeSet<_>>().len())
}

async fn patch_claims(space: &Space, kind: &str, patch: &Value) -> Result<()> {
    let all = names(kind).map(async |name| space.patch::<PersistentVolumeClaim>(&name, patch.clone()).await);
    try_join_all(all).await?;
    Ok(())
}

/// Provisions, expands and deletes while the manager is replaced in the middle of each.
async fn provision_expand_and_delete_under_both(
    space: &Space,
    driver: &Driver,
    mut active: ActiveManager,
) -> Result<ActiveManager> {
    create_claims(space, "data").await?;
    until(space, "bound", 2, is_bound).await?;
    active = active.replace(space).await?;
    until(space, "bound", CLAIMS, is_bound).await?;
    each_has_its_volume(space, CLAIMS).await?;

    let larger = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
    patch_claims(space, "data", &larger).await?;
    until(space, "expanded", 2, |claim| capacity(claim).as_deref() == Some("2Gi")).await?;
    active = active.replace(space).await?;
    until(space, "expanded", CLAIMS, |claim| capacity(claim).as_deref() == Some("2Gi")).await?;

    let deleted = names("data").map(async |name| space.delete::<PersistentVolumeClaim>(&name).await);
    try_join_all(deleted).await?;
    eventually("some claims no longer exist", || async {
        let left = claims(space).await?.len();
        ensure!(left < CLAIMS, "{left}");
        Ok(())
    })
    .await?;
    active = active.replace(space).await?;
    eventually("no claim and no volume is left", || async {
        let left = (claims(space).await?.len(), volumes_of(space).await?.len());
        ensure!(left == (0, 0), "{left:?}");
        Ok(())
    })
    .await?;
    for verb in ["create", "expand", "delete"] {
        ensure!(done(driver, verb)? == CLAIMS, "{verb}: {} volumes", done(driver, verb)?);
    }
    ensure!(driver.violations()?.is_empty(), "{:?}", driver.violations()?);
    Ok(active)
}

pub async fn csi_volumes_are_provisioned_expanded_and_deleted_across_takeovers(_: Space) -> Result<()> {
    let bed = bed().await?;
    let (first, second) = (bed.space("from-upstream").await?, bed.space("from-ours").await?);
    let mut active = ActiveManager::upstreams(&first)?;
    for space in [&first, &second] {
        let name = &space.namespace;
        let driver = start_driver(space, &[], "Immediate").await?;
        active = provision_expand_and_delete_under_both(space, &driver, active)
            .await
            .with_context(|| format!("in {name}"))?;
        driver.stop()?;
    }
    Ok(())
}
