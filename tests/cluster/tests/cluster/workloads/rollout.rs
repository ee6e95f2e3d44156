//! Rollouts, checked at every intermediate state: never too many or too few pods, even after faults.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{deployment, is_active, is_ready, with};
use cluster_tests::{Faults, Manager, Observer, Space, View, during, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use runtime::manager::ExitReason;
use serde_json::json;

use crate::robustness::faults::ELECT;
use crate::robustness::invariants::until_quiet;
use crate::robustness::scenario::Scenario;
use crate::robustness::scenario::created_pods;
use crate::workloads::deployment::{revision, rolled_out, set_image, wanted};

/// Checks that ReplicaSets request at most `max` pods, and that at least `min_ready` pods are ready.
fn within(view: &View, min_ready: usize, max: i32) -> Result<()> {
    let requested: i32 = view.sets.values().map(wanted).sum();
    ensure!(requested <= max, "{requested} pods are requested, {max} are allowed");
    let ready = view.pods.values().filter(|pod| is_active(pod) && is_ready(pod)).count();
    ensure!(ready >= min_ready, "{ready} pods are ready, at least {min_ready} should be");
    Ok(())
}

pub async fn update_stays_within_its_limits(space: Space) -> Result<()> {
    for (name, surge, unavailable) in [("both", 2, 1), ("surge", 1, 0), ("unavailable", 0, 2)] {
        let space = space.bed.space(name).await?;
        let _manager = Manager::start(&space, &Faults::default()).await?;
        let rolling =
            json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}}});
        space.create::<Deployment>(with(deployment("web", 6), rolling)).await?;
        rolled_out(&space, "web", 6).await?;
        let observer = Observer::start(&space, move |view| within(view, 6 - unavailable, 6 + surge)).await;
        let observer = observer.context(name)?;
        set_image(&space, "web", 2).await?;
        eventually("the next revision has a ReplicaSet", || async { revision(&space, "web", "2").await }).await?;
        rolled_out(&space, "web", 6).await?;
        observer.verdict().await.with_context(|| format!("{name} in {}", space.namespace))?;
        let made = observer.view().pods_ever.len();
        ensure!(made == 12, "{made} pods instead of 12");
    }
    Ok(())
}

pub async fn recreation_never_overlaps(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let recreate = json!({"spec": {"strategy": {"type": "Recreate"}}});
    space.create::<Deployment>(with(deployment("web", 4), recreate)).await?;
    rolled_out(&space, "web", 4).await?;
    let observer = Observer::start(&space, |view| {
        let images: BTreeSet<_> =
            view.pods.values().filter_map(|pod| pod.spec.as_ref()?.containers.first()?.image.clone()).collect();
        ensure!(images.len() <= 1, "old and new at the same time: {images:?}");
        Ok(())
    })
    .await?;
    for version in 2..=3 {
        set_image(&space, "web", version).await?;
        eventually("the next revision has a ReplicaSet", || async {
            revision(&space, "web", &version.to_string()).await
        })
        .await?;
        rolled_out(&space, "web", 4).await?;
    }
    observer.verdict().await?;
    ensure!(observer.view().pods_ever.len() == 12, "{} pods instead of 12", observer.view().pods_ever.len());
    Ok(())
}

pub async fn frozen_watch_leads_to_no_second_replicaset(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<Deployment>(deployment("web", 2)).await?;
    rolled_out(&space, "web", 2).await?;
    let observer = Observer::start(&space, |view| within(view, 2, 3)).await?;
    faults.freeze("replicasets");
    set_image(&space, "web", 2).await?;
    eventually("the new ReplicaSet is created", || async {
        ensure!(observer.view().sets_ever.len() == 2);
        Ok(())
    })
    .await?;
    // Each change of the Deployment leads to a reconcile, while the new ReplicaSet is not in the cache.
    for turn in 0..6 {
        space.patch::<Deployment>("web", json!({"metadata": {"annotations": {"turn": turn.to_string()}}})).await?;
        during(Duration::from_millis(500), "no further ReplicaSet is created", || async {
            let created = faults.count(|call| call.to_string() == "create replicasets");
            ensure!(created == 2, "created {created}");
            Ok(())
        })
        .await?;
    }
    faults.thaw("replicasets");
    rolled_out(&space, "web", 2).await?;
    observer.verdict().await?;
    ensure!(observer.view().sets_ever.len() == 2);
    until_quiet(&faults).await
}

/// Rolls out, updates, scales and rolls back.
async fn scenario(space: Space) -> Result<()> {
    space.create::<Deployment>(deployment("web", 2)).await?;
    rolled_out(&space, "web", 2).await?;
    set_image(&space, "web", 2).await?;
    eventually("the next revision has a ReplicaSet", || async { revision(&space, "web", "2").await }).await?;
    rolled_out(&space, "web", 2).await?;
    space.scale::<Deployment>("web", 3).await?;
    rolled_out(&space, "web", 3).await?;
    space.kubectl(&["rollout", "undo", "deployment/web"]).await?;
    eventually("the first ReplicaSet has revision 3", || async { revision(&space, "web", "3").await }).await?;
    rolled_out(&space, "web", 3).await?;
    Ok(())
}

/// Creates 8 pods (2, 2 for the update, 1 by scaling, 3 for the rollback) and two ReplicaSets; the other writes are
/// updates and statuses.
pub const SCENARIO: Scenario = Scenario {
    name: "deployment",
    flags: &["--controllers=deployment-controller,replicaset-controller"],
    kind: "deployments",
    run: |space| Box::pin(scenario(space)),
    judge: |view| {
        ensure!(view.sets_ever.len() <= 2, "{} ReplicaSets were created instead of 2", view.sets_ever.len());
        within(view, 0, 4)
    },
    pods: 8,
    writes: 30,
    fails: &[
        ("create replicasets ", 2),
        ("update replicasets ", 2),
        ("update deployments/status ", 2),
        ("update deployments/status ", 5),
    ],
    ..Scenario::EMPTY
};

/// All requests and responses of a leader are held back in the middle of an update until its Lease has expired. It must
/// not continue when they are released.
pub async fn lease_loss_during_a_rollout_leads_to_no_lost_pod(space: Space) -> Result<()> {
    let (first, second) = (Faults::default(), Faults::default());
    let leader = Manager::start_with(&space, &first, &ELECT).await?;
    let observer = Observer::start(&space, |view| {
        let requested: i32 = view.sets.values().map(wanted).sum();
        ensure!(requested <= 8, "{requested} pods are requested, 8 are allowed");
        Ok(())
    })
    .await?;
    // Pods become available only after two seconds, so that the update does not end before the Lease expires.
    let slowly = json!({"spec": {"minReadySeconds": 2}});
    space.create::<Deployment>(with(deployment("web", 6), slowly)).await?;
    rolled_out(&space, "web", 6).await?;
    let standby = Manager::start_with(&space, &second, &ELECT).await?;
    second.until_watching(&["pods"]).await?;
    set_image(&space, "web", 2).await?;
    eventually("some pods are new", || async {
        ensure!(created_pods(&first) > 6, "{} pods were created", created_pods(&first));
        Ok(())
    })
    .await?;
    first.pause(true);
    rolled_out(&space, "web", 6).await?;
    let ended = leader.until_ended().await?;
    ensure!(matches!(ended, ExitReason::LeaseLost(_)), "the paused manager ended with {ended:?}");
    let halves = (created_pods(&first), created_pods(&second));
    ensure!(halves.1 > 0, "the first manager created all pods: this proves nothing");
    first.pause(false);
    until_quiet(&second).await?;
    observer.verdict().await?;
    let view = observer.view();
    ensure!(view.pods_ever.len() == 12, "{} pods were created instead of 12: {halves:?}", view.pods_ever.len());
    ensure!(view.sets_ever.len() == 2, "{} ReplicaSets", view.sets_ever.len());
    standby.crash().await;
    Ok(())
}
