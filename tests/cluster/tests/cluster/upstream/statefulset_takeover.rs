//! StatefulSets under upstream's manager and ours: the same revisions, no pod recreated, fewer writes.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_ready, uids, with};
use cluster_tests::{Bed, Call, Faults, Manager, Space, eventually};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{WatchEvent, WatchParams};
use serde_json::{Value, json};

use crate::upstream::manager::{UPSTREAM, start_upstream};
use crate::workloads::statefulset::{set_image, settled, stateful_set};

const CONTROLLER: &str = "statefulset-controller";

/// Returns a template with everything whose serialization may differ: quantities, characters that Go escapes, long
/// numbers, defaults of many kinds.
pub fn rich(name: &str, replicas: i32) -> Value {
    with(
        stateful_set(name, replicas),
        json!({
            "metadata": {"annotations": {"note": "<b>&\"\\é\u{2028}"}},
            "spec": {"template": {
                "metadata": {"annotations": {"html": "<a href='x'>&amp;</a>\u{2029}\t\n", "number": "1e3"}},
                "spec": {
                    "terminationGracePeriodSeconds": 4_000_000_000_i64,
                    "securityContext": {"runAsUser": 1000, "sysctls": []},
                    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 5, "podAffinityTerm": {
                            "topologyKey": "zone", "labelSelector": {"matchExpressions": [
                                {"key": "app", "operator": "In", "values": ["a", "b"]}]}}}]}},
                    "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60}],
                    "volumes": [
                        {"name": "tmp", "emptyDir": {"sizeLimit": "0.5Gi"}},
                        {"name": "api", "projected": {"sources": [{"downwardAPI": {"items": [
                            {"path": "cpu", "resourceFieldRef": {"containerName": "main", "resource": "limits.cpu"}}]}}]}},
                    ],
                    "containers": [{
                        "name": "main", "image": "example.com/image:1",
                        "args": ["--a=<b>", "x && y > z", "tab\tquote\"back\\"],
                        "env": [
                            {"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                            {"name": "EMPTY", "value": ""},
                        ],
                        "ports": [{"containerPort": 80, "name": "http"}],
                        "resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}, "requests": {"cpu": "0.1"}},
                        "readinessProbe": {"httpGet": {"port": "http"}, "initialDelaySeconds": 0},
                        "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "sleep 1 && kill -TERM 1"]}}},
                    }],
                },
            }},
        }),
    )
}

/// Returns all revisions with their numbers, labels, and data as the server returns it.
async fn revisions(space: &Space) -> Result<BTreeMap<String, (i64, Value, Value)>> {
    let revisions: Vec<ControllerRevision> = space.list("").await?;
    let row = |each: &ControllerRevision| -> Result<_> {
        let labels = serde_json::to_value((&each.metadata.labels, &each.metadata.annotations))?;
        let name = each.metadata.name.clone().context("no name")?;
        Ok((name, (each.revision.unwrap_or(0), labels, serde_json::to_value(&each.data)?)))
    };
    revisions.iter().map(row).collect()
}

/// Sets another image, and waits until one to three pods have it.
async fn half_way(space: &Space, version: u32) -> Result<Vec<String>> {
    set_image(space, "web", version).await?;
    let image = format!("example.com/image:{version}");
    eventually(format!("a part of the pods has version {version}"), || async {
        let pods = space.pods("web").await?;
        let is_new = |pod: &&Pod| {
            pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.clone()).as_ref() == Some(&image)
        };
        let new: Vec<Pod> = pods.iter().filter(is_new).cloned().collect();
        ensure!(!new.is_empty() && new.len() < 4 && new.iter().all(is_ready), "{} of {}", new.len(), pods.len());
        Ok(uids(&new))
    })
    .await
}

/// Two takeovers in each direction, each in the middle of an update.
pub async fn updates_continue_under_the_other_manager(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    let space = bed.space("takeover").await?;
    start_upstream(&bed.cluster, CONTROLLER, &[])?;
    space.create::<StatefulSet>(with(stateful_set("web", 5), json!({"spec": {"minReadySeconds": 1}}))).await?;
    space.create::<StatefulSet>(rich("rich", 1)).await?;
    settled(&space, "web", 5, 1).await?;
    settled(&space, "rich", 1, 1).await?;
    let half = half_way(&space, 2).await?;
    bed.cluster.kill(UPSTREAM)?;

    let rich_before = uids(&space.list::<Pod>("rich").await?);
    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    settled(&space, "web", 5, 2).await?;
    let end = uids(&space.list::<Pod>("web").await?);
    ensure!(half.iter().all(|uid| end.contains(uid)), "from upstream to ours: {half:?} -> {end:?}");
    // A change outside the template: our manager compares its own bytes with those of upstream's revision.
    space.scale::<StatefulSet>("rich", 2).await?;
    settled(&space, "rich", 2, 1).await?;
    let rich_after = uids(&space.list::<Pod>("rich").await?);
    ensure!(rich_before.iter().all(|uid| rich_after.contains(uid)), "pods were recreated");
    ensure!(revisions(&space).await?.len() == 3, "{:?}", revisions(&space).await?.keys());
    let half = half_way(&space, 3).await?;
    manager.crash().await;

    // Upstream's manager compares its own bytes with those of our revision.
    start_upstream(&bed.cluster, CONTROLLER, &[])?;
    settled(&space, "web", 5, 3).await?;
    let end = uids(&space.list::<Pod>("web").await?);
    ensure!(half.iter().all(|uid| end.contains(uid)), "from ours to upstream: {half:?} -> {end:?}");
    space.scale::<StatefulSet>("rich", 1).await?;
    settled(&space, "rich", 1, 1).await?;
    let known = revisions(&space).await?;
    ensure!(known.len() == 4, "{:?}", known.keys());
    bed.cluster.kill(UPSTREAM)?;

    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    faults.until_watching(&["statefulsets"]).await?;
    faults.none_while_quiet(Call::is_write).await?;
    ensure!(revisions(&space).await? == known);
    Ok(())
}

/// The actions for which the writes of both managers are compared: create, update, scale up and down, undo.
async fn scenario(space: &Space) -> Result<()> {
    space.create::<StatefulSet>(rich("web", 4)).await?;
    settled(space, "web", 4, 1).await?;
    set_image(space, "web", 2).await?;
    settled(space, "web", 4, 2).await?;
    space.scale::<StatefulSet>("web", 6).await?;
    settled(space, "web", 6, 2).await?;
    space.scale::<StatefulSet>("web", 2).await?;
    settled(space, "web", 2, 2).await?;
    space.kubectl(&["rollout", "undo", "statefulset/web"]).await?;
    settled(space, "web", 2, 1).await?;
    Ok(())
}

/// Runs the scenario; returns the numbers of status writes, events, and creations and deletions of pods.
async fn count_writes(space: &Space) -> Result<[usize; 3]> {
    let from_the_start = WatchParams::default().timeout(290);
    let mut sets = space.api::<StatefulSet>().watch(&from_the_start, "0").await?.boxed();
    let mut pods = space.api::<Pod>().watch(&from_the_start, "0").await?.boxed();
    let scenario = scenario(space);
    tokio::pin!(scenario);
    let (mut versions, mut changes) = (0, 0);
    loop {
        tokio::select! {
            ended = &mut scenario => break ended?,
            event = sets.next() => {
                let event = event.context("the watch of StatefulSets ended before the scenario")??;
                versions += usize::from(matches!(event, WatchEvent::Modified(_)));
            }
            event = pods.next() => {
                let event = event.context("the watch of pods ended before the scenario")??;
                changes += usize::from(matches!(event, WatchEvent::Added(_) | WatchEvent::Deleted(_)));
            }
        }
    }
    let events: Vec<Event> = space.list("").await?;
    let events = events.iter().filter(|event| event.involved_object.kind.as_deref() == Some("StatefulSet"));
    let recorded: i32 = events.map(|event| event.count.unwrap_or(1)).sum();
    // Four changes are the user's: the image, two scales and the undo.
    let statuses = usize::checked_sub(versions, 4).with_context(|| format!("only {versions} changes were observed"))?;
    Ok([statuses, usize::try_from(recorded)?, changes])
}

/// Runs the scenario under both managers, and compares the numbers of changes that watches deliver, and the final
/// revisions.
pub async fn statefulset_controller_writes_less_than_upstream(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    let theirs = bed.space("theirs").await?;
    start_upstream(&bed.cluster, CONTROLLER, &[])?;
    let upstream = count_writes(&theirs).await?;
    bed.cluster.kill(UPSTREAM)?;
    let space = bed.space("ours").await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let ours = count_writes(&space).await?;
    ensure!(revisions(&space).await? == revisions(&theirs).await?, "the revisions of the two managers differ");
    println!("statuses, events, creations and deletions of pods: ours {ours:?}, upstream {upstream:?}");
    let all = |counts: [usize; 3]| counts.iter().sum::<usize>();
    ensure!(all(ours) * 10 <= all(upstream) * 8, "ours {ours:?}, upstream {upstream:?}");
    Ok(())
}
