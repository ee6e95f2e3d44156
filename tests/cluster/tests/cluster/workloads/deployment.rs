//! Observable behaviour of a Deployment: ReplicaSets, conditions, revisions, events, and kubectl's reports.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use cluster_tests::objects::{conditions, deployment, image, is_ready, names, owner, replica_set, uids, with};
use cluster_tests::{Faults, Manager, QUIET, Space, during, eventually};
use control_plane::behaviour::{BEHAVIOUR, TERMINATING, UNREADY};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PropagationPolicy};
use serde_json::{Value, json};

/// The annotation with a Deployment's or ReplicaSet's revision.
const REVISION: &str = "deployment.kubernetes.io/revision";

/// Waits for the end of a rollout: all pods are of the newest template and available, and the status is up to date.
pub async fn rolled_out(space: &Space, name: &str, replicas: i32) -> Result<Deployment> {
    eventually(format!("{name} is rolled out with {replicas} pods"), || async {
        let deployment: Deployment = space.get(name).await?;
        let status = deployment.status.clone().unwrap_or_default();
        let counts = [status.replicas, status.updated_replicas, status.ready_replicas, status.available_replicas];
        ensure!(counts.map(Option::unwrap_or_default) == [replicas; 4], "status {status:?}");
        ensure!(status.unavailable_replicas.unwrap_or(0) == 0 && status.terminating_replicas.unwrap_or(0) == 0);
        ensure!(status.observed_generation == deployment.metadata.generation);
        ensure!(
            conditions(&deployment)
                == ["Available=True MinimumReplicasAvailable", "Progressing=True NewReplicaSetAvailable"],
            "conditions {:?}",
            conditions(&deployment)
        );
        let pods = space.pods(name).await?;
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        ensure!([pods.len(), ready] == [usize::try_from(replicas)?; 2], "{ready} ready of {:?}", names(&pods));
        Ok(deployment)
    })
    .await
}

/// Returns the ReplicaSet with a revision.
pub async fn revision(space: &Space, name: &str, revision: &str) -> Result<ReplicaSet> {
    let sets: Vec<ReplicaSet> = space.list(name).await?;
    let all: Vec<(String, Option<String>)> =
        sets.iter().map(|set| (set.name_any(), set.annotations().get(REVISION).cloned())).collect();
    sets.into_iter()
        .find(|set| set.annotations().get(REVISION).is_some_and(|found| found == revision))
        .with_context(|| format!("no revision {revision} among {all:?}"))
}

/// Changes the image of the template.
pub async fn set_image(space: &Space, name: &str, version: u32) -> Result<()> {
    let image = format!("main=example.com/image:{version}");
    space.kubectl(&["set", "image", &format!("deployment/{name}"), &image]).await?;
    Ok(())
}

/// Returns the desired size of a ReplicaSet.
pub fn wanted(set: &ReplicaSet) -> i32 {
    set.spec.replicas.unwrap_or(1)
}

/// Returns a patch of the template whose pods never become ready.
fn unready() -> Value {
    json!({"spec": {"template": {"metadata": {"annotations": {BEHAVIOUR: UNREADY}}}}})
}

pub async fn rollout_leaves_the_expected_status_and_events(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let made: Deployment = space.create(deployment("web", 3)).await?;
    let rolled_out_deployment = rolled_out(&space, "web", 3).await?;
    ensure!(
        rolled_out_deployment.annotations().get(REVISION).is_some_and(|revision| revision == "1"),
        "{:?}",
        rolled_out_deployment.annotations()
    );

    let set = revision(&space, "web", "1").await?;
    let hash = set.labels().get("pod-template-hash").context("no hash")?.clone();
    ensure!(set.name_any() == format!("web-{hash}") && wanted(&set) == 3);
    ensure!(set.owner_references().iter().any(|owner| Some(&owner.uid) == made.metadata.uid.as_ref()));
    let annotations: Vec<(&str, &str)> = set.annotations().iter().map(|(name, value)| (&**name, &**value)).collect();
    ensure!(
        annotations
            == [
                ("deployment.kubernetes.io/desired-replicas", "3"),
                ("deployment.kubernetes.io/max-replicas", "4"),
                (REVISION, "1"),
            ],
        "annotations {annotations:?}"
    );
    for pod in space.pods("web").await? {
        ensure!(pod.labels().get("pod-template-hash") == Some(&hash) && owner(&pod) == set.name_any());
    }
    eventually("the scaling is reported", || async {
        let events = space.events("web").await?;
        let expected = format!("Normal ScalingReplicaSet Scaled up replica set web-{hash} from 0 to 3");
        ensure!(events == [(expected, 1)].into(), "events {events:?}");
        Ok(())
    })
    .await?;
    let output = space.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await?;
    ensure!(output.contains("successfully rolled out"), "{output}");
    space.kubectl(&["wait", "deployment/web", "--for=condition=Available", "--timeout=180s"]).await?;
    Ok(())
}

/// Statuses in which only the number of terminating pods differs are delayed: by two seconds for a ReplicaSet and three
/// for a Deployment. The end of the last terminating pod of a complete rollout is not. A busy machine may delay it, too,
/// so one of several attempts has to be fast.
pub async fn last_terminating_pod_of_a_rollout_is_reported_without_delay(space: Space) -> Result<()> {
    const ATTEMPTS: u32 = 4;
    const LIMIT: Duration = Duration::from_millis(1500);
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let lingering = json!({"spec": {"template": {"metadata": {"annotations": {BEHAVIOUR: TERMINATING}}}}});
    space.create::<Deployment>(with(deployment("web", 1), lingering)).await?;
    rolled_out(&space, "web", 1).await?;
    let status = || async { anyhow::Ok(space.get::<Deployment>("web").await?.status.unwrap_or_default()) };
    let mut times = Vec::new();
    for attempt in 0..ATTEMPTS {
        let old = names(&space.pods("web").await?).first().context("no pod")?.clone();
        set_image(&space, "web", attempt + 2).await?;
        eventually("the rollout is complete, and its old pod terminates", || async {
            let pods = space.pods("web").await?;
            ensure!(pods.len() == 1 && !names(&pods).contains(&old), "{:?}", names(&pods));
            let status = status().await?;
            let counts = [status.replicas, status.updated_replicas, status.available_replicas];
            ensure!(counts == [Some(1); 3] && status.terminating_replicas == Some(1), "{status:?}");
            Ok(())
        })
        .await?;
        let begun = Instant::now();
        space.api::<Pod>().delete(&old, &DeleteParams::default().grace_period(0)).await?;
        eventually("no pod terminates", || async {
            let status = status().await?;
            ensure!(status.terminating_replicas.unwrap_or(0) == 0, "{status:?}");
            Ok(())
        })
        .await?;
        times.push(begun.elapsed());
        if begun.elapsed() < LIMIT {
            return Ok(());
        }
    }
    bail!("the status was late in all attempts: {times:?}")
}

pub async fn kubectl_undoes_and_restarts_a_rollout(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Deployment>(deployment("web", 2)).await?;
    rolled_out(&space, "web", 2).await?;
    let first = revision(&space, "web", "1").await?;
    set_image(&space, "web", 2).await?;
    space.kubectl(&["rollout", "status", "deployment/web", "--timeout=180s"]).await?;
    rolled_out(&space, "web", 2).await?;
    let history = space.kubectl(&["rollout", "history", "deployment/web"]).await?;
    ensure!(history.lines().filter(|line| line.starts_with(['1', '2'])).count() == 2, "{history}");
    let second = space.kubectl(&["rollout", "history", "deployment/web", "--revision=2"]).await?;
    ensure!(second.contains("example.com/image:2"), "{second}");

    space.kubectl(&["rollout", "undo", "deployment/web"]).await?;
    eventually("the first ReplicaSet has revision 3", || async {
        let third = revision(&space, "web", "3").await?;
        ensure!(third.uid() == first.uid(), "another ReplicaSet was created");
        let history = third.annotations().get("deployment.kubernetes.io/revision-history");
        ensure!(history.is_some_and(|history| history == "1"), "history {history:?}");
        Ok(())
    })
    .await?;
    let back = rolled_out(&space, "web", 2).await?;
    ensure!(back.annotations().get(REVISION).is_some_and(|revision| revision == "3"));
    ensure!(image(first.spec.template.as_ref()) == "example.com/image:1");

    let before = uids(&space.pods("web").await?);
    space.kubectl(&["rollout", "restart", "deployment/web"]).await?;
    eventually("the restart is revision 4", || async { revision(&space, "web", "4").await }).await?;
    rolled_out(&space, "web", 2).await?;
    let after = uids(&space.pods("web").await?);
    ensure!(after.iter().all(|uid| !before.contains(uid)), "a pod was not restarted");
    space.kubectl(&["rollout", "undo", "deployment/web", "--to-revision=2"]).await?;
    let fifth =
        eventually("the second ReplicaSet has revision 5", || async { revision(&space, "web", "5").await }).await?;
    ensure!(image(fifth.spec.template.as_ref()) == "example.com/image:2");
    rolled_out(&space, "web", 2).await?;
    Ok(())
}

pub async fn history_is_limited(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Deployment>(with(deployment("web", 1), json!({"spec": {"revisionHistoryLimit": 1}}))).await?;
    rolled_out(&space, "web", 1).await?;
    for version in 2..=4 {
        set_image(&space, "web", version).await?;
        eventually("the next revision", || async { revision(&space, "web", &version.to_string()).await }).await?;
        rolled_out(&space, "web", 1).await?;
    }
    eventually("only the newest ReplicaSet and one old one remain", || async {
        let sets: Vec<ReplicaSet> = space.list("web").await?;
        ensure!(sets.len() == 2, "left {:?}", names(&sets));
        Ok(())
    })
    .await?;
    revision(&space, "web", "3").await?;
    revision(&space, "web", "4").await?;
    Ok(())
}

pub async fn pause_stops_a_rollout_but_not_scaling(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Deployment>(deployment("web", 2)).await?;
    rolled_out(&space, "web", 2).await?;
    space.kubectl(&["rollout", "pause", "deployment/web"]).await?;
    set_image(&space, "web", 2).await?;
    space.kubectl(&["scale", "deployment/web", "--replicas=4"]).await?;
    eventually("the Deployment is scaled and paused", || async {
        let paused: Deployment = space.get("web").await?;
        let status = paused.status.clone().unwrap_or_default();
        ensure!(status.observed_generation == paused.metadata.generation);
        ensure!((status.replicas, status.available_replicas) == (Some(4), Some(4)), "status {status:?}");
        ensure!(conditions(&paused)[1] == "Progressing=Unknown DeploymentPaused", "{:?}", conditions(&paused));
        Ok(())
    })
    .await?;
    during(QUIET, "there is one ReplicaSet", || async {
        ensure!(space.list::<ReplicaSet>("web").await?.len() == 1);
        Ok(())
    })
    .await?;
    space.kubectl(&["rollout", "resume", "deployment/web"]).await?;
    eventually("the rollout continues", || async { revision(&space, "web", "2").await }).await?;
    rolled_out(&space, "web", 4).await?;
    Ok(())
}

pub async fn stuck_rollout_is_reported(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Deployment>(with(deployment("web", 2), json!({"spec": {"progressDeadlineSeconds": 3}}))).await?;
    rolled_out(&space, "web", 2).await?;
    space.patch::<Deployment>("web", unready()).await?;
    eventually("the deadline is exceeded", || async {
        let stuck: Deployment = space.get("web").await?;
        ensure!(
            conditions(&stuck)
                == ["Available=True MinimumReplicasAvailable", "Progressing=False ProgressDeadlineExceeded"],
            "conditions {:?}",
            conditions(&stuck)
        );
        Ok(())
    })
    .await?;
    let output = space.kubectl(&["rollout", "status", "deployment/web"]).await;
    let output = format!("{:#}", output.err().context("kubectl reports a success")?);
    ensure!(output.contains("exceeded its progress deadline"), "{output}");
    space.kubectl(&["rollout", "undo", "deployment/web"]).await?;
    rolled_out(&space, "web", 2).await?;
    Ok(())
}

pub async fn scaling_during_a_rollout_is_proportional(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let rolling = json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 3, "maxUnavailable": 2}}}});
    space.create::<Deployment>(with(deployment("web", 10), rolling)).await?;
    rolled_out(&space, "web", 10).await?;
    space.patch::<Deployment>("web", unready()).await?;
    let sizes = |old: i32, new: i32| {
        let space = space.clone();
        eventually(format!("{old} old and {new} new pods are desired"), move || {
            let space = space.clone();
            async move {
                let found =
                    (wanted(&revision(&space, "web", "1").await?), wanted(&revision(&space, "web", "2").await?));
                ensure!(found == (old, new), "sizes {found:?}");
                Ok(())
            }
        })
    };
    sizes(8, 5).await?;
    space.kubectl(&["scale", "deployment/web", "--replicas=15"]).await?;
    sizes(11, 7).await
}

pub async fn taken_name_counts_as_a_collision(space: Space) -> Result<()> {
    let manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Deployment>(deployment("web", 1)).await?;
    rolled_out(&space, "web", 1).await?;
    let name = revision(&space, "web", "1").await?.name_any();
    manager.stop().await?;
    space.delete::<Deployment>("web").await?;
    space.delete::<ReplicaSet>(&name).await?;
    space.kubectl(&["delete", "pods", "--all", "--wait=false"]).await?;
    eventually("everything is deleted", || async {
        ensure!(space.pods("").await?.is_empty() && space.list::<ReplicaSet>("").await?.is_empty());
        Ok(())
    })
    .await?;

    let foreign = with(replica_set("foreign", 0), json!({"metadata": {"name": name}}));
    space.create::<ReplicaSet>(foreign).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Deployment>(deployment("web", 1)).await?;
    let rolled_out_deployment = rolled_out(&space, "web", 1).await?;
    let status = rolled_out_deployment.status.unwrap_or_default();
    ensure!(status.collision_count == Some(1), "status {status:?}");
    ensure!(revision(&space, "web", "1").await?.name_any() != name);
    ensure!(owner(&space.get::<ReplicaSet>(&name).await?).is_empty(), "the foreign ReplicaSet was adopted");
    Ok(())
}

pub async fn orphans_are_adopted_with_their_pods(space: Space) -> Result<()> {
    let manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<Deployment>(deployment("web", 2)).await?;
    rolled_out(&space, "web", 2).await?;
    let (set, pods) = (revision(&space, "web", "1").await?, uids(&space.pods("web").await?));
    manager.stop().await?;
    // The garbage collector does not run: the test removes the owner references, as for an orphaning deletion.
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    space.api::<Deployment>().delete("web", &orphan).await?;
    space.patch::<ReplicaSet>(&set.name_any(), json!({"metadata": {"ownerReferences": null}})).await?;
    space.patch::<Deployment>("web", json!({"metadata": {"finalizers": null}})).await?;

    let _manager = Manager::start(&space, &Faults::default()).await?;
    let again: Deployment = space.create(deployment("web", 2)).await?;
    rolled_out(&space, "web", 2).await?;
    let adopted = revision(&space, "web", "1").await?;
    ensure!(adopted.uid() == set.uid() && adopted.owner_references()[0].uid == again.uid().unwrap_or_default());
    ensure!(uids(&space.pods("web").await?) == pods, "pods were recreated");
    Ok(())
}
