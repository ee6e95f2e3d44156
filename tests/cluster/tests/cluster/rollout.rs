//! Rollouts judged at every state on the way: never too many, never too few, and the same through faults.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{deployment, is_active, is_ready, with};
use cluster_tests::{Call, Effect, Faults, Manager, Observer, QUIET, Rule, Space, View, during, eventually, variants};
use k8s_openapi::api::apps::v1::Deployment;
use runtime::manager::Ended;
use serde_json::json;

use crate::deployment::{revision, rolled_out, set_image, wanted};
use crate::faults::{ELECT, created, lives};
use crate::invariants::quiet;

/// ReplicaSets ask for at most `most` pods, and at least `least` of those that there are stay ready.
fn within(view: &View, least: usize, most: i32) -> Result<()> {
    let asked: i32 = view.sets.values().map(wanted).sum();
    ensure!(asked <= most, "{asked} pods are asked for, {most} at most");
    let ready = view.pods.values().filter(|pod| is_active(pod) && is_ready(pod)).count();
    ensure!(ready >= least, "{ready} pods are ready, {least} at least");
    Ok(())
}

pub async fn an_update_keeps_within_its_bounds(space: Space) -> Result<()> {
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
        eventually("the next revision", || async { revision(&space, "web", "2").await }).await?;
        rolled_out(&space, "web", 6).await?;
        observer.verdict().with_context(|| format!("{name} in {}", space.namespace))?;
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
        eventually("the next revision", || async { revision(&space, "web", &version.to_string()).await }).await?;
        rolled_out(&space, "web", 4).await?;
    }
    observer.verdict()?;
    ensure!(observer.view().pods_ever.len() == 12, "{} pods instead of 12", observer.view().pods_ever.len());
    Ok(())
}

pub async fn a_frozen_watch_leads_to_no_second_set(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<Deployment>(deployment("web", 2)).await?;
    rolled_out(&space, "web", 2).await?;
    let observer = Observer::start(&space, |view| within(view, 2, 3)).await?;
    faults.freeze("replicasets");
    set_image(&space, "web", 2).await?;
    eventually("the new ReplicaSet is made", || async {
        ensure!(observer.view().sets_ever.len() == 2);
        Ok(())
    })
    .await?;
    // Each change of the Deployment makes it look again at ReplicaSets that it cannot see yet.
    for turn in 0..6 {
        space.patch::<Deployment>("web", json!({"metadata": {"annotations": {"turn": turn.to_string()}}})).await?;
        during(Duration::from_millis(500), "one write, and then patience", || async {
            let created = faults.count(|call| call.to_string() == "create replicasets");
            ensure!(created == 2, "created {created}");
            Ok(())
        })
        .await?;
    }
    faults.thaw("replicasets");
    rolled_out(&space, "web", 2).await?;
    observer.verdict()?;
    ensure!(observer.view().sets_ever.len() == 2);
    quiet(&faults).await
}

/// How many places to crash at are tried of all that there are.
const SAMPLE: usize = 10;

/// What the scenario makes: 2, 2 more for the update, 1 by scaling, 3 more for going back.
const PODS: usize = 8;

/// A scenario whose end is known: roll out, update, scale, go back.
async fn scenario(space: &Space) -> Result<()> {
    space.create::<Deployment>(deployment("web", 2)).await?;
    rolled_out(space, "web", 2).await?;
    set_image(space, "web", 2).await?;
    eventually("the next revision", || async { revision(space, "web", "2").await }).await?;
    rolled_out(space, "web", 2).await?;
    space.scale::<Deployment>("web", 3).await?;
    rolled_out(space, "web", 3).await?;
    space.kubectl(&["rollout", "undo", "deployment/web"]).await?;
    eventually("the first revision again", || async { revision(space, "web", "3").await }).await?;
    rolled_out(space, "web", 3).await?;
    Ok(())
}

/// Plays the scenario with a fault; answers how many writes it took.
async fn play(space: &Space, rule: Rule) -> Result<usize> {
    let faults = Faults::script([rule]);
    let observer = Observer::start(space, |view| {
        let asked: i32 = view.sets.values().map(wanted).sum();
        ensure!(asked <= 4, "{asked} pods are asked for, 4 at most");
        Ok(())
    })
    .await?;
    tokio::select! {
        played = scenario(space) => played?,
        lived = lives(space, &faults) => lived?,
    }
    observer.verdict()?;
    let view = observer.view();
    ensure!(view.sets_ever.len() == 2, "{} ReplicaSets were made instead of 2", view.sets_ever.len());
    ensure!(view.pods_ever.len() == PODS, "{} pods were made instead of {PODS}", view.pods_ever.len());
    let after = Faults::default();
    let _manager = Manager::start(space, &after).await?;
    eventually("the new one has listed", || async {
        ensure!(after.most_watches().contains_key("deployments"));
        Ok(())
    })
    .await?;
    during(QUIET, "there is nothing left to do", || async {
        ensure!(after.writes() == 0, "{:?}", after.seen());
        Ok(())
    })
    .await?;
    Ok(faults.count(Call::is_deed))
}

async fn crash_at(space: &Space, places: impl Iterator<Item = usize>) -> Result<()> {
    let rule = |n| {
        let effect = if n % 2 == 0 { Effect::CrashAfter } else { Effect::CrashBeforeAnswer };
        (format!("crash at write {n}"), Rule::new(Call::is_deed, effect).nth(n))
    };
    play_each(space, places.map(rule).collect()).await
}

/// Plays the scenario once with each rule.
async fn play_each(space: &Space, rules: Vec<(String, Rule)>) -> Result<()> {
    variants(space, rules, |space, rule| async move {
        play(&space, rule).await?;
        Ok(())
    })
    .await
}

async fn undisturbed(space: &Space) -> Result<usize> {
    let writes = play(space, Rule::new(|_| false, Effect::NotSent)).await?;
    ensure!(writes > 30, "only {writes} writes: the scenario is not what it says");
    Ok(writes)
}

/// `CLUSTER_SEED` chooses another sample of places.
pub async fn crash_after_a_sample_of_writes(space: Space) -> Result<()> {
    let seed: usize = std::env::var("CLUSTER_SEED").ok().map_or(Ok(1), |seed| seed.parse())?;
    let writes = undisturbed(&space).await?;
    crash_at(&space, (0..SAMPLE).map(|n| 1 + (seed * 7 + n * writes / SAMPLE) % writes)).await
}

pub async fn crash_after_every_write(space: Space) -> Result<()> {
    let writes = undisturbed(&space).await?;
    crash_at(&space, 1..=writes).await
}

pub async fn each_write_fails_each_way(space: Space) -> Result<()> {
    type Matches = fn(&Call) -> bool;
    let writes: [(&str, Matches, usize); 4] = [
        ("ReplicaSet creation", |call| call.to_string() == "create replicasets", 2),
        ("ReplicaSet scaling", |call| call.to_string().starts_with("update replicasets "), 2),
        ("status", |call| call.resource == "deployments/status", 2),
        ("revision", |call| call.to_string().starts_with("update deployments "), 1),
    ];
    let mut rules = Vec::new();
    for (what, matches, n) in writes {
        rules.extend(
            cluster_tests::fails().map(|(how, effect)| (format!("{what}: {how}"), Rule::new(matches, effect).nth(n))),
        );
    }
    play_each(&space, rules).await
}

/// A leader stands still in the middle of an update until its lease is gone; it may not go on when it wakes.
pub async fn a_lease_lost_in_the_middle_costs_no_pod(space: Space) -> Result<()> {
    let (first, second) = (Faults::default(), Faults::default());
    let leader = Manager::start_with(&space, &first, &ELECT).await?;
    let observer = Observer::start(&space, |view| {
        let asked: i32 = view.sets.values().map(wanted).sum();
        ensure!(asked <= 8, "{asked} pods are asked for, 8 at most");
        Ok(())
    })
    .await?;
    // Pods count only after a while, so that the update does not end before the lease does.
    let slowly = json!({"spec": {"minReadySeconds": 2}});
    space.create::<Deployment>(with(deployment("web", 6), slowly)).await?;
    rolled_out(&space, "web", 6).await?;
    let standby = Manager::start_with(&space, &second, &ELECT).await?;
    eventually("the standby watches", || async {
        ensure!(second.most_watches().contains_key("pods"));
        Ok(())
    })
    .await?;
    set_image(&space, "web", 2).await?;
    eventually("some pods are new", || async {
        ensure!(created(&first) > 6, "{} pods were made", created(&first));
        Ok(())
    })
    .await?;
    first.pause(true);
    rolled_out(&space, "web", 6).await?;
    let ended = leader.ended().await?;
    ensure!(matches!(ended, Ended::LeaseLost(_)), "the paused one ended with {ended:?}");
    let halves = (created(&first), created(&second));
    ensure!(halves.1 > 0, "the first one did it all: this proves nothing");
    first.pause(false);
    quiet(&second).await?;
    observer.verdict()?;
    let view = observer.view();
    ensure!(view.pods_ever.len() == 12, "{} pods were made instead of 12: {halves:?}", view.pods_ever.len());
    ensure!(view.sets_ever.len() == 2, "{} ReplicaSets", view.sets_ever.len());
    standby.crash().await;
    Ok(())
}
