//! A ReplicaSet with faults: after any fault, the final state is the same, and no pod is created twice.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{names, replica_set};
use cluster_tests::{Call, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use runtime::manager::ExitReason;
use serde_json::json;

use crate::robustness::invariants::until_quiet;
use crate::robustness::scenario::{Scenario, created_pods};
use crate::workloads::replicaset::settled;

/// Creates 3 pods, deletes one, scales to 5, scales to 2.
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

/// Writes: three pods, a replacement, two more pods, three deletions, and a status for each of four states.
pub const SCENARIO: Scenario = Scenario {
    name: "replicaset",
    flags: &["--controllers=replicaset-controller"],
    kind: "replicasets",
    run: |space| Box::pin(scenario(space)),
    pods: 6,
    writes: 6 + 3 + 4,
    fails: &[("create pods ", 1), ("create pods ", 3), ("update replicasets/status ", 2), ("delete pods ", 2)],
    ..Scenario::EMPTY
};

pub async fn frozen_watch_leads_to_no_surplus_pods(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<ReplicaSet>(replica_set("web", 2)).await?;
    settled(&space, "web", 2).await?;
    faults.freeze("pods");
    space.scale::<ReplicaSet>("web", 6).await?;
    eventually("the manager creates the missing pods", || async {
        ensure!(created_pods(&faults) == 6, "created {}", created_pods(&faults));
        Ok(())
    })
    .await?;
    // Each change of the ReplicaSet leads to a reconcile, while the new pods are not in the cache.
    for n in 0..6 {
        space.patch::<ReplicaSet>("web", json!({"metadata": {"annotations": {"turn": n.to_string()}}})).await?;
        during(Duration::from_millis(500), "no surplus pod while the watch delivers nothing", || async {
            ensure!(created_pods(&faults) == 6, "created {}", created_pods(&faults));
            Ok(())
        })
        .await?;
    }
    faults.thaw("pods");
    settled(&space, "web", 6).await?;
    ensure!(created_pods(&faults) == 6, "created {}", created_pods(&faults));
    until_quiet(&faults).await
}

/// Leader election times: shorter than usual, and long enough for a leader to survive a pause of the machine of five
/// seconds.
pub const ELECT: [&str; 4] = [
    "--leader-elect=true",
    "--leader-elect-lease-duration=12s",
    "--leader-elect-renew-deadline=10s",
    "--leader-elect-retry-period=500ms",
];

/// Starts two managers: the first leads and has created three pods.
async fn start_pair(space: &Space) -> Result<[(Manager, Faults); 2]> {
    let (first, second) = (Faults::default(), Faults::default());
    let leader = Manager::start_with(space, &first, &ELECT).await?;
    space.create::<ReplicaSet>(replica_set("web", 3)).await?;
    settled(space, "web", 3).await?;
    let standby = Manager::start_with(space, &second, &ELECT).await?;
    second.until_watching(&["pods"]).await?;
    // In this time, the standby completes its first list: tests may freeze a watch only after that.
    second.none_while_quiet(Call::is_object_write).await?;
    Ok([(leader, first), (standby, second)])
}

pub async fn standby_continues_after_the_leader_is_killed(space: Space) -> Result<()> {
    let [(leader, first), (_standby, second)] = start_pair(&space).await?;
    // The leader crashes after two of four more pods are created.
    first.add(Rule::on(Verb::Create, "pods", Effect::CrashAfter).nth(2));
    space.scale::<ReplicaSet>("web", 7).await?;
    first.crashes().await;
    leader.crash().await;
    settled(&space, "web", 7).await?;
    let made = created_pods(&first) + created_pods(&second);
    ensure!(made == 7 && created_pods(&second) >= 1, "created {} and {}", created_pods(&first), created_pods(&second));
    until_quiet(&second).await
}

pub async fn standby_continues_while_the_leader_is_paused(space: Space) -> Result<()> {
    let [(leader, first), (_standby, second)] = start_pair(&space).await?;
    first.pause(true);
    space.scale::<ReplicaSet>("web", 7).await?;
    settled(&space, "web", 7).await?;
    ensure!(created_pods(&second) == 4, "created {}", created_pods(&second));
    let ended = leader.until_ended().await?;
    ensure!(matches!(ended, ExitReason::LeaseLost(_)), "the paused leader ended with {ended:?}");
    first.pause(false);
    until_quiet(&second).await?;
    ensure!(
        created_pods(&first) == 3 && created_pods(&second) == 4,
        "created {} and {}",
        created_pods(&first),
        created_pods(&second)
    );
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
    // The rule counts as met when the request is sent; the pod exists only when the server has responded.
    eventually("the response is lost", || async {
        ensure!(faults.unmet() == 0 && created_pods(&faults) == 3, "created {}", created_pods(&faults));
        Ok(())
    })
    .await?;
    during(QUIET, "the manager waits for the pod that is not in its cache", || async {
        ensure!(created_pods(&faults) == 3, "created {}", created_pods(&faults));
        Ok(())
    })
    .await?;
    faults.thaw("pods");
    settled(&space, "web", 4).await?;
    ensure!(created_pods(&faults) == 4, "created {}", created_pods(&faults));
    Ok(())
}

pub async fn new_leader_with_a_stale_cache_reads_pods_first(space: Space) -> Result<()> {
    let [(leader, first), (_standby, second)] = start_pair(&space).await?;
    second.freeze("pods");
    space.scale::<ReplicaSet>("web", 7).await?;
    settled(&space, "web", 7).await?;
    leader.crash().await;
    space.patch::<ReplicaSet>("web", json!({"metadata": {"annotations": {"turn": "next"}}})).await?;
    eventually("the new leader lists the pods", || async {
        let lists = second.count(|call| call.to_string() == "list pods");
        ensure!(lists > 0, "{:?}", second.requests());
        Ok(())
    })
    .await?;
    during(QUIET, "the new leader creates no pod that exists already", || async {
        ensure!(created_pods(&second) == 0, "created {}", created_pods(&second));
        Ok(())
    })
    .await?;
    second.thaw("pods");
    until_quiet(&second).await?;
    ensure!(
        created_pods(&first) == 7 && created_pods(&second) == 0,
        "created {} and {}",
        created_pods(&first),
        created_pods(&second)
    );
    settled(&space, "web", 7).await?;
    Ok(())
}
