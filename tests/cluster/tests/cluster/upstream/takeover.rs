//! Upstream's manager and ours take rollouts over from each other, and recreate no pod without need.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{deployment, is_ready, names, uids, with};
use cluster_tests::{Bed, Call, Faults, Manager, Observer, Space, eventually};
use http::Request;
use http::header::ACCEPT;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::Pod;
use kube::client::Body;
use serde_json::{Value, json};

use crate::upstream::manager::{ROLLOUTS, UPSTREAM, start_upstream};
use crate::upstream::statefulset_takeover::rich;
use crate::workloads::daemonset::{self, Fleet, daemon_set};
use crate::workloads::deployment::{revision, rolled_out, set_image};

const DAEMONS: &str = "daemonset-controller";

/// Begins an update and waits until it is half done: at least two pods of the new revision are ready, and old pods
/// remain.
async fn begin_rollout(space: &Space, version: u32) -> Result<BTreeSet<String>> {
    set_image(space, "web", version).await?;
    let image = format!("example.com/image:{version}");
    eventually(format!("a part of the pods has version {version}"), || async {
        let pods = space.pods("web").await?;
        let (new, old): (Vec<Pod>, Vec<Pod>) = pods.into_iter().partition(|pod| {
            let spec = pod.spec.as_ref();
            spec.and_then(|spec| spec.containers.first()?.image.clone()).as_ref() == Some(&image)
        });
        ensure!(
            new.iter().filter(|pod| is_ready(pod)).count() >= 2 && !old.is_empty(),
            "{} and {}",
            new.len(),
            old.len()
        );
        Ok(uids(&new).into_iter().collect())
    })
    .await
}

/// Waits for the end of the rollout; fails unless the pods of its first half still exist, and one pod was created for
/// each replica.
async fn check_rollout(
    space: &Space,
    version: u32,
    half: &BTreeSet<String>,
    observer: &Observer,
    made: usize,
) -> Result<()> {
    rolled_out(space, "web", 6).await?;
    let end: BTreeSet<String> = uids(&space.pods("web").await?).into_iter().collect();
    ensure!(half.is_subset(&end), "pods of version {version} were recreated: {half:?} -> {end:?}");
    let view = observer.current().await?;
    ensure!(view.pods_ever.len() == made, "{} pods were created instead of {made}", view.pods_ever.len());
    ensure!(view.sets_ever.len() == version as usize, "{} ReplicaSets for {version} versions", view.sets_ever.len());
    Ok(())
}

/// Takeovers in both directions. Upstream's manager watches all namespaces, so this needs a separate control plane.
pub async fn rollouts_continue_under_the_other_manager(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    let space = bed.space("takeover").await?;
    let observer = Observer::start(&space, |_| Ok(())).await?;
    start_upstream(&bed.cluster, ROLLOUTS, &[])?;
    space.create::<Deployment>(with(deployment("web", 6), json!({"spec": {"minReadySeconds": 2}}))).await?;
    rolled_out(&space, "web", 6).await?;
    let half = begin_rollout(&space, 2).await?;
    bed.cluster.kill(UPSTREAM)?;

    let faults = Faults::default();
    let manager = Manager::start(&space, &faults).await?;
    check_rollout(&space, 2, &half, &observer, 12).await.context("from upstream to ours")?;
    let half = begin_rollout(&space, 3).await?;
    manager.crash().await;

    start_upstream(&bed.cluster, ROLLOUTS, &[])?;
    check_rollout(&space, 3, &half, &observer, 18).await.context("from ours to upstream")?;
    space.kubectl(&["rollout", "undo", "deployment/web"]).await?;
    eventually("upstream's manager undoes the update", || async { revision(&space, "web", "4").await }).await?;
    rolled_out(&space, "web", 6).await?;
    bed.cluster.kill(UPSTREAM)?;

    let sets: Vec<ReplicaSet> = space.list("web").await?;
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    faults.until_watching(&["deployments"]).await?;
    faults.none_while_quiet(Call::is_write).await?;
    ensure!(uids(&space.list::<ReplicaSet>("web").await?) == uids(&sets));
    Ok(())
}

/// Returns a spec with values that have several serializations: quantities, numbers, text that JSON escapes, defaults.
fn intricate() -> Value {
    json!({"spec": {"minReadySeconds": 1, "template": {
        "metadata": {"annotations": {"note": "a<b & c>d \u{2028} \"quoted\" \\ \t \u{1} é"}, "labels": {"tier": "node"}},
        "spec": {
            "terminationGracePeriodSeconds": 7,
            "securityContext": {"runAsUser": 1000, "sysctls": [{"name": "net.ipv4.ip_local_port_range", "value": "1 2"}]},
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 7, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}},
            ]}},
            "volumes": [
                {"name": "scratch", "emptyDir": {"sizeLimit": "0.5Gi"}},
                {"name": "host", "hostPath": {"path": "/var/log"}},
                {"name": "info", "downwardAPI": {"items": [{"path": "cpu", "resourceFieldRef": {
                    "containerName": "main", "resource": "limits.cpu", "divisor": "1m",
                }}]}},
            ],
            "initContainers": [{"name": "first", "image": "example.com/first:1", "restartPolicy": "Always"}],
            "containers": [{
                "name": "main", "image": "example.com/image:1", "args": ["--a=<b>&c", ""],
                "env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}, {"name": "E"}],
                "resources": {"limits": {"cpu": "1500m", "memory": "1e3"}, "requests": {"cpu": "0.1", "memory": "1k"}},
                "ports": [{"containerPort": 80, "hostPort": 8080}],
                "livenessProbe": {"httpGet": {"port": "web", "path": "/live"}, "initialDelaySeconds": 0},
                "readinessProbe": {"tcpSocket": {"port": 80}},
                "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
                "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
            }],
        },
    }}})
}

/// Waits until a manager has reconciled a DaemonSet, by a change of its spec that replaces no pod.
async fn until_reconciled(space: &Space, min_ready_seconds: i32) -> Result<()> {
    space.patch::<DaemonSet>("agent", json!({"spec": {"minReadySeconds": min_ready_seconds}})).await?;
    daemonset::rolled_out(space, "agent", NODES).await?;
    Ok(())
}

const NODES: i32 = 3;

/// Begins an update, and waits until some nodes, but not all, have a new pod.
async fn begin_update(space: &Space, version: u32) -> Result<()> {
    daemonset::set_image(space, "agent", version).await?;
    let wanted = format!("example.com/image:{version}");
    eventually(format!("a node has version {version}"), || async {
        let pods = space.pods("agent").await?;
        let is_new = |pod: &&Pod| {
            let main = pod.spec.iter().flat_map(|spec| &spec.containers).find(|container| container.name == "main");
            main.is_some_and(|main| main.image.as_ref() == Some(&wanted))
        };
        let updated = i32::try_from(pods.iter().filter(is_new).count())?;
        ensure!((1..NODES).contains(&updated), "{updated} updated");
        Ok(())
    })
    .await
}

/// Fails unless this number of pods was ever created, and these revisions exist.
async fn check_created(space: &Space, observer: &Observer, pods: usize, numbers: &[i64]) -> Result<()> {
    let ever = observer.current().await?.pods_ever.len();
    ensure!(ever == pods, "{ever} pods were created instead of {pods}");
    let revisions = daemonset::revisions(space, "agent").await?;
    ensure!(revisions.keys().eq(numbers), "revisions {:?} instead of {numbers:?}", revisions.keys());
    Ok(())
}

/// Takeovers in both directions, each in the middle of an update and again after it.
pub async fn daemon_pods_are_kept_by_the_other_manager(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    let space = bed.space("takeover").await?;
    let fleet = Fleet::of(&space, NODES.try_into()?).await?;
    let observer = Observer::start(&space, |_| Ok(())).await?;
    start_upstream(&bed.cluster, DAEMONS, &[])?;
    space.create::<DaemonSet>(with(daemon_set(&space, "agent"), intricate())).await?;
    daemonset::rolled_out(&space, "agent", NODES).await?;
    begin_update(&space, 2).await?;
    bed.cluster.kill(UPSTREAM)?;

    let manager = Manager::start(&space, &Faults::default()).await?;
    daemonset::rolled_out(&space, "agent", NODES).await?;
    check_created(&space, &observer, 6, &[1, 2]).await.context("from upstream to ours")?;
    begin_update(&space, 3).await?;
    manager.crash().await;

    start_upstream(&bed.cluster, DAEMONS, &[])?;
    daemonset::rolled_out(&space, "agent", NODES).await?;
    check_created(&space, &observer, 9, &[1, 2, 3]).await.context("from ours to upstream")?;
    until_reconciled(&space, 2).await?;
    check_created(&space, &observer, 9, &[1, 2, 3]).await.context("after the update, under upstream's manager")?;
    space.kubectl(&["rollout", "undo", "daemonset/agent"]).await?;
    eventually("upstream's manager undoes the update", || async {
        check_created(&space, &observer, 12, &[1, 3, 4]).await
    })
    .await?;
    daemonset::rolled_out(&space, "agent", NODES).await?;
    bed.cluster.kill(UPSTREAM)?;

    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    faults.until_watching(&["daemonsets"]).await?;
    faults.none_while_quiet(Call::is_write).await?;
    until_reconciled(&space, 1).await?;
    check_created(&space, &observer, 12, &[1, 3, 4]).await.context("after the update, under our manager")?;
    fleet.delete_nodes().await
}

/// Creates a DaemonSet and a StatefulSet without pods, and returns the data of their revisions as stored by the server.
async fn create_revisions(space: &Space) -> Result<[Vec<u8>; 2]> {
    let mut agent = with(daemon_set(space, "agent"), intricate());
    agent["spec"]["template"]["spec"]["nodeSelector"] = json!({"example.com/no": "such-node"});
    space.create::<DaemonSet>(agent).await?;
    space.create::<StatefulSet>(rich("web", 0)).await?;
    Ok([read_revision(space, "agent").await?, read_revision(space, "web").await?])
}

/// Waits for an app's only revision; returns its data byte for byte, because parsed JSON would hide differences.
async fn read_revision(space: &Space, app: &str) -> Result<Vec<u8>> {
    let name = eventually(format!("{app} has a revision"), || async {
        let revisions = space.list::<ControllerRevision>(app).await?;
        ensure!(revisions.len() == 1, "{} revisions", revisions.len());
        Ok(names(&revisions).remove(0))
    })
    .await?;
    let request = Request::get(format!("/apis/apps/v1/namespaces/{}/controllerrevisions/{name}", space.namespace))
        .header(ACCEPT, "application/vnd.kubernetes.protobuf")
        .body(Body::empty())?;
    let response = space.bed.client.send(request).await?.into_body().collect_bytes().await?;
    Ok(kinds::ControllerRevision::data_of(kinds::envelope::unwrap(&response)?).to_vec())
}

/// Both managers create the same revisions from the same templates.
pub async fn revisions_equal_upstreams_byte_for_byte(_: Space) -> Result<()> {
    let bed = Bed::start().await?;
    let (theirs, ours) = (bed.space("theirs").await?, bed.space("ours").await?);
    start_upstream(&bed.cluster, &format!("{DAEMONS},statefulset-controller"), &[])?;
    let expected = create_revisions(&theirs).await?;
    bed.cluster.kill(UPSTREAM)?;
    let _manager = Manager::start(&ours, &Faults::default()).await?;
    let made = create_revisions(&ours).await?;
    for (kind, (expected, made)) in ["DaemonSet", "StatefulSet"].iter().zip(expected.iter().zip(&made)) {
        ensure!(expected.len() > 1000, "{kind}: {} bytes prove nothing", expected.len());
        let [expected, made] = [expected, made].map(|data| String::from_utf8_lossy(data));
        ensure!(expected == made, "{kind}: upstream's {expected}, ours {made}");
    }
    Ok(())
}
