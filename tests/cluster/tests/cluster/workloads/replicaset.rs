//! Effects of a ReplicaSet that users can observe: pods, status, conditions and events.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{counts, is_ready, names, owner, replica_set, uids, with};
use cluster_tests::{Faults, Manager, QUIET, Space, during, eventually};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::api::{DeleteParams, PropagationPolicy};
use serde_json::json;

use crate::robustness::scenario::created_pods;

/// Waits for a ReplicaSet with `replicas` pods, all ready and available, and a status with these numbers.
pub async fn settled(space: &Space, name: &str, replicas: i32) -> Result<ReplicaSet> {
    eventually(format!("{name} has {replicas} pods"), || async {
        let set: ReplicaSet = space.get(name).await?;
        ensure!(counts(&set) == [replicas, replicas, replicas, replicas, 0], "status {:?}", set.status);
        ensure!(set.status.as_ref().and_then(|status| status.observed_generation) == set.metadata.generation);
        let pods = space.pods(name).await?;
        // The status may be outdated: it may count a pod that was replaced in the meantime.
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        ensure!([pods.len(), ready] == [usize::try_from(replicas)?; 2], "{ready} ready of {:?}", names(&pods));
        Ok(set)
    })
    .await
}

pub async fn pods_are_created_and_reported(space: Space) -> Result<()> {
    let manager = Manager::start(&space, &Faults::default()).await?;
    let made: ReplicaSet = space.create(replica_set("web", 3)).await?;
    let set = settled(&space, "web", 3).await?;
    ensure!(set.status.as_ref().is_some_and(|status| status.conditions.is_none()), "conditions {:?}", set.status);

    let pods = space.pods("web").await?;
    for pod in &pods {
        let owners = pod.metadata.owner_references.clone().unwrap_or_default();
        ensure!(
            serde_json::to_value(&owners)?
                == json!([{
                    "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": made.metadata.uid,
                    "controller": true, "blockOwnerDeletion": true,
                }]),
            "owners {owners:?}"
        );
        ensure!(pod.metadata.generate_name.as_deref() == Some("web-"));
        let fields = pod.metadata.managed_fields.clone().unwrap_or_default();
        ensure!(
            fields.first().and_then(|field| field.manager.as_deref()) == Some("kube-controller-manager"),
            "{fields:?}"
        );
    }
    eventually("an event for each pod", || async {
        let events = space.events("web").await?;
        let expected =
            names(&pods).iter().map(|name| (format!("Normal SuccessfulCreate Created pod: {name}"), 1)).collect();
        ensure!(events == expected, "events {events:?}");
        Ok(())
    })
    .await?;
    manager.stop().await?;
    Ok(())
}

pub async fn deleted_pods_are_replaced(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ReplicaSet>(replica_set("web", 3)).await?;
    settled(&space, "web", 3).await?;
    let before = space.pods("web").await?;
    let victim = names(&before).first().context("no pod")?.clone();
    space.delete::<Pod>(&victim).await?;
    eventually("the pod is replaced", || async {
        let now = names(&space.pods("web").await?);
        ensure!(now.len() == 3 && !now.contains(&victim), "pods {now:?}");
        Ok(())
    })
    .await?;
    settled(&space, "web", 3).await?;
    let after = uids(&space.pods("web").await?);
    let kept = uids(&before).iter().filter(|uid| after.contains(uid)).count();
    ensure!(kept == 2, "the other pods were not kept");
    Ok(())
}

pub async fn replicaset_scales_up_and_down(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ReplicaSet>(replica_set("web", 2)).await?;
    settled(&space, "web", 2).await?;
    for replicas in [7, 3, 0, 1] {
        let before = uids(&space.pods("web").await?);
        space.kubectl(&["scale", "replicaset", "web", &format!("--replicas={replicas}")]).await?;
        settled(&space, "web", replicas).await?;
        let after = uids(&space.pods("web").await?);
        let kept = before.iter().filter(|uid| after.contains(uid)).count();
        ensure!(kept == before.len().min(after.len()), "surplus deletions: {before:?} -> {after:?}");
    }
    eventually("each deletion has an event", || async {
        let events = space.events("web").await?;
        let deleted: i32 = events
            .iter()
            .filter(|(event, _)| event.starts_with("Normal SuccessfulDelete"))
            .map(|(_, count)| count)
            .sum();
        ensure!(deleted == 7, "events {events:?}");
        Ok(())
    })
    .await
}

pub async fn quota_is_reported_until_it_is_deleted(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ResourceQuota>(json!({"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}})).await?;
    // The quota controller does not run: the test writes the status.
    space
        .patch_status::<ResourceQuota>("few", json!({"status": {"hard": {"pods": "2"}, "used": {"pods": "0"}}}))
        .await?;
    space.create::<ReplicaSet>(replica_set("web", 4)).await?;

    eventually("the quota's refusal is in the conditions", || async {
        let set: ReplicaSet = space.get("web").await?;
        let status = set.status.clone().unwrap_or_default();
        ensure!(status.replicas == 2, "status {status:?}");
        let conditions = status.conditions.unwrap_or_default();
        let [failure] = &conditions[..] else { anyhow::bail!("conditions {conditions:?}") };
        ensure!(failure.type_.as_deref() == Some("ReplicaFailure") && failure.status.as_deref() == Some("True"));
        ensure!(failure.reason.as_deref() == Some("FailedCreate"), "{failure:?}");
        ensure!(
            failure.message.as_deref().is_some_and(|message| message.contains("exceeded quota: few")),
            "{failure:?}"
        );
        ensure!(failure.last_transition_time.is_some());
        let events = space.events("web").await?;
        ensure!(
            events.keys().any(|event| event.starts_with("Warning FailedCreate Error creating: pods \"web-")),
            "{events:?}"
        );
        Ok(())
    })
    .await?;
    during(QUIET, "the quota allows only two pods", || async {
        ensure!(space.pods("web").await?.len() == 2);
        Ok(())
    })
    .await?;

    space.delete::<ResourceQuota>("few").await?;
    let set = settled(&space, "web", 4).await?;
    ensure!(set.status.and_then(|status| status.conditions).is_none(), "the condition was not removed with its cause");
    Ok(())
}

pub async fn replicaset_of_six_hundred_pods_is_created_and_deleted(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, &["--kube-api-qps=1000", "--kube-api-burst=1000"]).await?;
    space.create::<ReplicaSet>(replica_set("web", 600)).await?;
    eventually("the API server has 600 pods", || async {
        let set: ReplicaSet = space.get("web").await?;
        ensure!(counts(&set)[0] == 600, "status {:?}", counts(&set));
        Ok(())
    })
    .await?;
    // An overloaded API server may refuse some creations; they are retried.
    let created = created_pods(&faults);
    ensure!(created == 600, "{created} creations");
    space.scale::<ReplicaSet>("web", 0).await?;
    settled(&space, "web", 0).await?;
    Ok(())
}

pub async fn pods_of_a_set_with_the_longest_name_have_it_as_prefix(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    // 253 characters, the maximum length of a name. The host name of a pod is truncated.
    let name = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    let set = with(replica_set("web", 1), json!({"metadata": {"name": name}}));
    space.create::<ReplicaSet>(set).await?;
    eventually("a pod is created", || async {
        let pods = space.pods("web").await?;
        let [pod] = &pods[..] else { anyhow::bail!("{} pods", pods.len()) };
        ensure!(owner(pod) == name);
        // The prefix with the dash is valid, so it is kept. Upstream: pkg/controller, getPodsPrefix.
        ensure!(pod.metadata.generate_name == Some(format!("{name}-")), "prefix {:?}", pod.metadata.generate_name);
        Ok(())
    })
    .await
}

pub async fn set_being_deleted_creates_and_adopts_nothing(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ReplicaSet>(replica_set("web", 2)).await?;
    settled(&space, "web", 2).await?;
    let foreground =
        DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..DeleteParams::default() };
    space.api::<ReplicaSet>().delete("web", &foreground).await?;

    let victim = names(&space.pods("web").await?).first().context("no pod")?.clone();
    space.delete::<Pod>(&victim).await?;
    space.create::<Pod>(cluster_tests::objects::pod("orphan", "web")).await?;
    eventually("the status is still updated", || async {
        let set: ReplicaSet = space.get("web").await?;
        ensure!(counts(&set)[0] == 1, "status {:?}", set.status);
        Ok(())
    })
    .await?;
    during(QUIET, "nothing is created or adopted", || async {
        let pods = space.pods("web").await?;
        ensure!(pods.len() == 2, "pods {:?}", names(&pods));
        ensure!(owner(&space.get::<Pod>("orphan").await?).is_empty(), "the orphan is adopted");
        Ok(())
    })
    .await
}

pub async fn overlapping_sets_keep_their_own_pods(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let named = |name: &str| with(replica_set("web", 2), json!({"metadata": {"name": name}}));
    space.create::<ReplicaSet>(named("left")).await?;
    space.create::<ReplicaSet>(named("right")).await?;
    let of = |pods: &[Pod], name: &str| pods.iter().filter(|pod| owner(*pod) == name).count();
    eventually("each ReplicaSet has two pods", || async {
        let pods = space.pods("web").await?;
        ensure!((pods.len(), of(&pods, "left"), of(&pods, "right")) == (4, 2, 2), "pods {:?}", names(&pods));
        Ok(())
    })
    .await?;
    space.scale::<ReplicaSet>("left", 0).await?;
    eventually("only the scaled ReplicaSet loses its pods", || async {
        let pods = space.pods("web").await?;
        ensure!((pods.len(), of(&pods, "right")) == (2, 2), "pods {:?}", names(&pods));
        ensure!(counts(&space.get::<ReplicaSet>("left").await?)[0] == 0);
        Ok(())
    })
    .await?;
    during(QUIET, "neither adopts pods of the other one", || async {
        let pods = space.pods("web").await?;
        ensure!((pods.len(), of(&pods, "right")) == (2, 2), "pods {:?}", names(&pods));
        Ok(())
    })
    .await
}

pub async fn status_follows_labels_of_the_template(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<ReplicaSet>(replica_set("web", 2)).await?;
    settled(&space, "web", 2).await?;
    space
        .patch::<ReplicaSet>("web", json!({"spec": {"template": {"metadata": {"labels": {"tier": "front"}}}}}))
        .await?;
    eventually("old pods lack the new label", || async {
        let set: ReplicaSet = space.get("web").await?;
        ensure!(counts(&set) == [2, 0, 2, 2, 0], "status {:?}", set.status);
        Ok(())
    })
    .await?;
    let pods = names(&space.pods("web").await?);
    space.kubectl(&["label", "pod", &pods[0], "tier=front"]).await?;
    eventually("one pod has the new label", || async {
        let set: ReplicaSet = space.get("web").await?;
        ensure!(counts(&set) == [2, 1, 2, 2, 0], "status {:?}", set.status);
        Ok(())
    })
    .await
}
