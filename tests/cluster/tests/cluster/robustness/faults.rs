//! A ReplicaSet through faults: whatever breaks, the end is the same, and no pod is made twice.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{names, replica_set};
use cluster_tests::{Call, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use runtime::manager::ExitReason;
use serde_json::json;

use crate::robustness::invariants::quiet;
use crate::robustness::story::Story;
use crate::workloads::replicaset::settled;

/// Create 3, lose one, scale to 5, scale to 2.
async fn scenario(space: Space) -> Result<()> {
    space.create::<ReplicaSet>(replica_set("web", 3)).await?;
    settled(&space, "web", 3).await?;
    let victim = names(&space.pods("web").await?).first().context("no pod")?.clone();
    space.delete::<Pod>(&victim).await?;
    settled(&space, "web", 3).await?;
    space.scale::<ReplicaSet>("web", 5).await?;
    settled(&space, "web", 5).await?;
    space.scale::<ReplicaSet>("web", 2).await?;
    settled(&space, "web", 2).await?;
    Ok(())
}

/// Three pods, one for the victim, two more; a status for each of four sizes.
pub const STORY: Story = Story {
    name: "replicaset",
    flags: &["--controllers=replicaset-controller"],
    kind: "replicasets",
    tell: |space| Box::pin(scenario(space)),
    pods: 6,
    writes: 6 + 3 + 4,
    fails: &[("create pods ", 1), ("create pods ", 3), ("update replicasets/status ", 2), ("delete pods ", 2)],
    ..Story::BLANK
};

/// Runs managers one after the other, each until it crashes.
pub async fn lives(space: &Space, faults: &Faults) -> Result<()> {
    loop {
        let manager = Manager::start(space, faults).await?;
        faults.crashes().await;
        manager.crash().await;
    }
}

/// Pods that were created, whether the manager heard of it or not.
pub fn created(faults: &Faults) -> usize {
    let seen = faults.seen();
    seen.iter()
        .filter(|seen| (seen.call.verb, seen.call.resource.as_str(), seen.status) == (Verb::Create, "pods", Some(201)))
        .count()
}

pub async fn frozen_watch_leads_to_no_surplus_pods(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<ReplicaSet>(replica_set("web", 2)).await?;
    settled(&space, "web", 2).await?;
    faults.freeze("pods");
    space.scale::<ReplicaSet>("web", 6).await?;
    eventually("it creates what is missing", || async {
        ensure!(created(&faults) == 6, "created {}", created(&faults));
        Ok(())
    })
    .await?;
    // Each change of the ReplicaSet makes it look again at pods that it cannot see yet.
    for n in 0..6 {
        space.patch::<ReplicaSet>("web", json!({"metadata": {"annotations": {"turn": n.to_string()}}})).await?;
        during(Duration::from_millis(500), "no pod too many while the watch brings nothing", || async {
            ensure!(created(&faults) == 6, "created {}", created(&faults));
            Ok(())
        })
        .await?;
    }
    faults.thaw("pods");
    settled(&space, "web", 6).await?;
    ensure!(created(&faults) == 6, "created {}", created(&faults));
    quiet(&faults).await
}

/// Times of an election that fit a test.
pub const ELECT: [&str; 4] = [
    "--leader-elect=true",
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
];

/// Two managers, of which the first leads and has made three pods.
async fn pair(space: &Space) -> Result<[(Manager, Faults); 2]> {
    let (first, second) = (Faults::default(), Faults::default());
    let leader = Manager::start_with(space, &first, &ELECT).await?;
    space.create::<ReplicaSet>(replica_set("web", 3)).await?;
    settled(space, "web", 3).await?;
    let standby = Manager::start_with(space, &second, &ELECT).await?;
    eventually("the standby knows the pods", || async {
        ensure!(second.most_watches().contains_key("pods"));
        Ok(())
    })
    .await?;
    // By the end of this the standby also has its first complete list, which a test may want to freeze.
    during(QUIET, "a standby writes nothing", || async {
        ensure!(second.count(Call::is_deed) == 0, "{:?}", second.seen());
        Ok(())
    })
    .await?;
    Ok([(leader, first), (standby, second)])
}

pub async fn standby_continues_after_the_leader_is_killed(space: Space) -> Result<()> {
    let [(leader, first), (_standby, second)] = pair(&space).await?;
    // In the middle of its work: two of four more pods are made.
    first.add(Rule::on(Verb::Create, "pods", Effect::CrashAfter).nth(2));
    space.scale::<ReplicaSet>("web", 7).await?;
    first.crashes().await;
    leader.crash().await;
    settled(&space, "web", 7).await?;
    let made = created(&first) + created(&second);
    ensure!(made == 7 && created(&second) >= 1, "created {} and {}", created(&first), created(&second));
    quiet(&second).await
}

pub async fn standby_continues_while_the_leader_is_paused(space: Space) -> Result<()> {
    let [(leader, first), (_standby, second)] = pair(&space).await?;
    first.pause(true);
    space.scale::<ReplicaSet>("web", 7).await?;
    settled(&space, "web", 7).await?;
    ensure!(created(&second) == 4, "created {}", created(&second));
    let ended = leader.ended().await?;
    ensure!(matches!(ended, ExitReason::LeaseLost(_)), "the paused one ended with {ended:?}");
    first.pause(false);
    quiet(&second).await?;
    ensure!(created(&first) == 3 && created(&second) == 4, "created {} and {}", created(&first), created(&second));
    settled(&space, "web", 7).await?;
    Ok(())
}

pub async fn lost_response_behind_a_frozen_watch_is_resolved(space: Space) -> Result<()> {
    let faults = Faults::script([Rule::on(Verb::Create, "pods", Effect::LostAfter).nth(3)]);
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<ReplicaSet>(replica_set("web", 2)).await?;
    settled(&space, "web", 2).await?;
    faults.freeze("pods");
    space.scale::<ReplicaSet>("web", 4).await?;
    // The rule counts as met when the request goes out; the pod is there only when the server has answered.
    eventually("the answer is lost", || async {
        ensure!(faults.unmet() == 0 && created(&faults) == 3, "created {}", created(&faults));
        Ok(())
    })
    .await?;
    during(QUIET, "it waits for the pod that it cannot see", || async {
        ensure!(created(&faults) == 3, "created {}", created(&faults));
        Ok(())
    })
    .await?;
    faults.thaw("pods");
    settled(&space, "web", 4).await?;
    ensure!(created(&faults) == 4, "created {}", created(&faults));
    Ok(())
}

pub async fn new_leader_with_a_stale_cache_reads_pods_first(space: Space) -> Result<()> {
    let [(leader, first), (_standby, second)] = pair(&space).await?;
    second.freeze("pods");
    space.scale::<ReplicaSet>("web", 7).await?;
    settled(&space, "web", 7).await?;
    leader.crash().await;
    space.patch::<ReplicaSet>("web", json!({"metadata": {"annotations": {"turn": "next"}}})).await?;
    eventually("the successor looks at the pods", || async {
        let looked = second.count(|call| call.to_string() == "list pods");
        ensure!(looked > 0, "{:?}", second.seen());
        Ok(())
    })
    .await?;
    during(QUIET, "it makes no pod that is there already", || async {
        ensure!(created(&second) == 0, "created {}", created(&second));
        Ok(())
    })
    .await?;
    second.thaw("pods");
    quiet(&second).await?;
    ensure!(created(&first) == 7 && created(&second) == 0, "created {} and {}", created(&first), created(&second));
    settled(&space, "web", 7).await?;
    Ok(())
}
