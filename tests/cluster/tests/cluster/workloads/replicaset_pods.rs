//! Single pods of a ReplicaSet: adoption, release, ranking for deletion, availability, and replacement.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{counts, is_active, is_ready, names, owner, phase, pod, replica_set, uids, with};
use cluster_tests::{Call, Faults, Manager, Observer, QUIET, Space, during, eventually};
use control_plane::behaviour::{BEHAVIOUR, EVICTED, FAIL, FLAP, TERMINATING, UNREADY};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use runtime::lock::lock;
use serde_json::json;
use tokio::time::Instant;

use crate::workloads::replicaset::settled;

pub async fn orphans_are_adopted_and_unselected_pods_released(space: Space) -> Result<()> {
    for name in ["one", "two"] {
        space.create::<Pod>(pod(name, "web")).await?;
    }
    space.create::<Pod>(pod("other", "db")).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ReplicaSet>(replica_set("web", 3)).await?;
    settled(&space, "web", 3).await?;
    let pods = space.pods("web").await?;
    ensure!(pods.iter().all(|pod| owner(pod) == "web"), "not all are owned");
    ensure!(["one", "two"].iter().all(|name| names(&pods).contains(&(*name).to_owned())), "pods {:?}", names(&pods));
    ensure!(owner(&space.get::<Pod>("other").await?).is_empty(), "another app's pod is adopted");

    space.kubectl(&["label", "pod", "one", "app=quarantine", "--overwrite"]).await?;
    eventually("the relabelled pod is released", || async {
        let pod: Pod = space.get("one").await?;
        ensure!(owner(&pod).is_empty(), "owned by {}", owner(&pod));
        Ok(())
    })
    .await?;
    settled(&space, "web", 3).await?;
    ensure!(is_active(&space.get("one").await?), "a released pod was deleted");

    space.kubectl(&["label", "pod", "one", "app=web", "--overwrite"]).await?;
    eventually("the pod is adopted again, and a surplus pod is deleted", || async {
        let pods = space.pods("web").await?;
        ensure!(pods.len() == 3 && pods.iter().all(|pod| owner(pod) == "web"), "pods {:?}", names(&pods));
        Ok(())
    })
    .await
}

pub async fn scaling_down_deletes_the_least_useful_pods_first(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ReplicaSet>(replica_set("web", 6)).await?;
    settled(&space, "web", 6).await?;
    let pods = names(&space.pods("web").await?);
    let [cheap, unready, dear, ..] = &pods[..] else { anyhow::bail!("pods {pods:?}") };
    let cost = "controller.kubernetes.io/pod-deletion-cost";
    space.kubectl(&["annotate", "pod", cheap, &format!("{cost}=-10")]).await?;
    space.kubectl(&["annotate", "pod", dear, &format!("{cost}=100")]).await?;
    // An unready pod is deleted before a ready one with a lower deletion cost.
    space.kubectl(&["annotate", "pod", unready, &format!("{BEHAVIOUR}={UNREADY}"), &format!("{cost}=1000")]).await?;
    eventually("one pod is not ready", || async {
        let set: ReplicaSet = space.get("web").await?;
        ensure!(counts(&set) == [6, 6, 5, 5, 0], "status {:?}", counts(&set));
        Ok(())
    })
    .await?;
    for (replicas, first) in [(5, unready), (4, cheap)] {
        space.scale::<ReplicaSet>("web", replicas).await?;
        settled(&space, "web", replicas).await?;
        let left = names(&space.pods("web").await?);
        ensure!(!left.contains(first), "{first} was not deleted first: {left:?} of {pods:?} are left");
    }
    space.scale::<ReplicaSet>("web", 1).await?;
    settled(&space, "web", 1).await?;
    ensure!(names(&space.pods("web").await?) == [dear.clone()], "the pod with the highest deletion cost was deleted");
    Ok(())
}

pub async fn pod_is_available_after_min_ready_seconds(space: Space) -> Result<()> {
    const MIN_READY: SignedDuration = SignedDuration::from_secs(4);
    let _manager = Manager::start(&space, &Faults::default()).await?;
    // The numbers of available pods in the status, each with the time at which the status write was observed.
    let reported = Arc::new(Mutex::new(Vec::new()));
    let reports = reported.clone();
    let observer = Observer::start(&space, move |view| {
        let available = view.sets.values().map(|set| counts(set)[3]).sum::<i32>();
        lock(&reports).push((Timestamp::now(), usize::try_from(available)?));
        Ok(())
    })
    .await?;
    let later = json!({"spec": {"minReadySeconds": MIN_READY.as_secs()}});
    space.create::<ReplicaSet>(with(replica_set("web", 2), later)).await?;
    settled(&space, "web", 2).await?;
    observer.verdict().await?;
    let mut available_from = Vec::new();
    for pod in space.pods("web").await? {
        available_from.push(ready_since(&pod)?.checked_add(MIN_READY)?);
    }
    for (time, available) in lock(&reported).iter() {
        let max = available_from.iter().filter(|from| *from <= time).count();
        ensure!(*available <= max, "{available} available at {time}, pods are so from {available_from:?}");
    }
    Ok(())
}

/// Returns the time since which a pod has been ready.
fn ready_since(pod: &Pod) -> Result<Timestamp> {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref()).into_iter().flatten();
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready").context("no condition Ready")?;
    Ok(ready.last_transition_time.as_ref().context("no time")?.0)
}

pub async fn terminating_pods_are_counted_and_replaced(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let lingering = json!({"spec": {"template": {"metadata": {"annotations": {BEHAVIOUR: TERMINATING}}}}});
    space.create::<ReplicaSet>(with(replica_set("web", 2), lingering)).await?;
    settled(&space, "web", 2).await?;
    let victim = names(&space.pods("web").await?)[0].clone();
    space.delete::<Pod>(&victim).await?;
    let expect = |expected: [i32; 5]| {
        let space = space.clone();
        eventually(format!("status {expected:?}"), move || {
            let space = space.clone();
            async move {
                let set: ReplicaSet = space.get("web").await?;
                ensure!(counts(&set) == expected, "status {:?}", counts(&set));
                Ok(())
            }
        })
    };
    expect([2, 2, 2, 2, 1]).await?;
    space.scale::<ReplicaSet>("web", 1).await?;
    expect([1, 1, 1, 1, 2]).await?;
    space.kubectl(&["delete", "pod", &victim, "--force", "--grace-period=0"]).await?;
    expect([1, 1, 1, 1, 1]).await
}

/// Pods whose readiness changes continually are kept, and most changes cause no status write.
///
/// Twenty pods together change about forty times a second. A status is written after 50 ms without a change, so there
/// are at most twenty status writes in a second.
pub async fn flapping_pods_are_kept_and_cause_few_status_writes(space: Space) -> Result<()> {
    const MAX_PER_SECOND: f64 = 20.0;
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    let flapping = json!({"spec": {"template": {"metadata": {"annotations": {BEHAVIOUR: FLAP}}}}});
    space.create::<ReplicaSet>(with(replica_set("web", 20), flapping)).await?;
    eventually("all pods exist, and some are ready", || async {
        let pods = space.pods("web").await?;
        ensure!(pods.len() == 20 && pods.iter().any(is_ready));
        Ok(())
    })
    .await?;
    // The pods may all change at the same time: then no response contains both ready and unready pods.
    eventually("some pods are no longer ready", || async {
        ensure!(!space.pods("web").await?.iter().all(is_ready));
        Ok(())
    })
    .await?;
    let is_status_write = |call: &Call| call.resource == "replicasets/status";
    let (before, begun, pods) = (faults.count(is_status_write), Instant::now(), uids(&space.pods("web").await?));
    during(QUIET * 3, "no pod is replaced", || async {
        ensure!(uids(&space.list::<Pod>("web").await?) == pods);
        Ok(())
    })
    .await?;
    let (written, seconds) = (faults.count(is_status_write) - before, begun.elapsed().as_secs_f64());
    ensure!(written > 0, "no status was written: this proves nothing");
    ensure!(
        written as f64 <= MAX_PER_SECOND * seconds + 1.0,
        "{written} statuses in {seconds} s, of about 40 changes a second"
    );
    Ok(())
}

pub async fn failed_and_evicted_pods_are_replaced_and_stay(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ReplicaSet>(replica_set("web", 2)).await?;
    for behaviour in [FAIL, EVICTED] {
        settled(&space, "web", 2).await?;
        check_replacement(&space, behaviour).await?;
    }
    Ok(())
}

/// Lets a pod end in this way; checks that it is replaced and kept.
async fn check_replacement(space: &Space, behaviour: &str) -> Result<()> {
    let before = space.pods("web").await?;
    let failing = names(&before)[0].clone();
    space.kubectl(&["annotate", "pod", &failing, &format!("{BEHAVIOUR}={behaviour}")]).await?;
    eventually("the pod fails", || async {
        ensure!(phase(&space.get::<Pod>(&failing).await?) == "Failed");
        Ok(())
    })
    .await?;
    settled(space, "web", 2).await?;
    let after = space.pods("web").await?;
    ensure!(uids(&after) != uids(&before) && after.iter().all(is_ready));
    during(QUIET, "the failed pod is kept", || async {
        let failed: Pod = space.get(&failing).await.context("the failed pod was deleted")?;
        ensure!(owner(&failed) == "web" && failed.metadata.deletion_timestamp.is_none());
        Ok(())
    })
    .await
}
