//! Effects of failing and recovering nodes that users can observe: conditions, taints, replaced pods, and evictions
//! that stop when too many nodes fail.
//!
//! Each test has a separate control plane, because it stops nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cluster_tests::objects::{is_active, is_ready, pod, replica_set, with};
use cluster_tests::{Bed, Faults, Manager, QUIET, Space, Verb, during, eventually};
use control_plane::Options;
use futures::try_join;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams};
use serde_json::{Value, json};

use crate::robustness::invariants::only_declared;

const CONTROLLERS: [&str; 2] = ["node-lifecycle-controller", "taint-eviction-controller"];

const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The duration of kubelets' Leases, which they renew every two seconds.
const LEASE_SECONDS: u32 = 8;

/// Time after which nodes count as unresponsive: longer than a pause of the machine or of the fake kubelets.
const GRACE: Duration = Duration::from_secs(12);

/// Time for which pods tolerate an unresponsive node: longer than the time between the detections of two nodes that
/// were stopped at the same time.
pub const TOLERATION_SECONDS: i64 = 8;

/// Flags of node controllers with short periods, and of the controllers that pods need.
pub const FLAGS: [&str; 5] = [
    "--controllers=serviceaccount,replicaset,nodelifecycle,taint-eviction-controller",
    "--node-monitor-period=1s",
    "--node-monitor-grace-period=12s",
    "--node-startup-grace-period=12s",
    "--node-eviction-rate=5",
];

/// Starts a control plane with this many nodes, whose kubelets can be stopped.
pub async fn bed(nodes: u32) -> Result<Arc<Bed>> {
    let options = Options { nodes, node_lease_seconds: LEASE_SECONDS, ..Options::default() };
    Ok(Arc::new(Bed::without_accounts(options).await?))
}

/// Returns the API of nodes, as the admin.
pub fn nodes(space: &Space) -> Api<Node> {
    Api::all(space.bed.client.clone())
}

/// Changes a node by a merge patch.
pub async fn patch_node(space: &Space, name: &str, patch: Value) -> Result<()> {
    nodes(space).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

/// Returns a node's taints as `<key>:<effect>`, sorted.
fn taints(node: &Node) -> Vec<String> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let mut taints: Vec<String> = taints.map(|taint| format!("{}:{}", taint.key, taint.effect)).collect();
    taints.sort();
    taints
}

/// Returns status and reason of a condition.
fn condition(node: &Node, kind: &str) -> (String, String) {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found = conditions.into_iter().find(|condition| condition.type_ == kind);
    found.map(|found| (found.status.clone(), found.reason.clone().unwrap_or_default())).unwrap_or_default()
}

async fn until_tainted(space: &Space, name: &str, expected: &[&str]) -> Result<Node> {
    eventually(format!("{name} has the taints {expected:?}"), || async {
        let node = nodes(space).get(name).await?;
        ensure!(taints(&node) == expected, "{:?} {:?}", taints(&node), condition(&node, "Ready"));
        Ok(node)
    })
    .await
}

/// Returns a ReplicaSet whose pods are evicted from an unresponsive node after this many seconds.
pub fn evictable_replica_set(name: &str, replicas: i32, seconds: i64) -> Value {
    let toleration =
        |key| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let tolerations = json!([toleration("node.kubernetes.io/not-ready"), toleration(UNREACHABLE)]);
    with(replica_set(name, replicas), json!({"spec": {"template": {"spec": {"tolerations": tolerations}}}}))
}

/// Returns the pods on a node.
pub fn pods_on_node(pods: &[Pod], node: &str) -> Vec<Pod> {
    let on = |pod: &&Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    pods.iter().filter(on).cloned().collect()
}

/// Waits until the set has this many pods and all are ready.
pub async fn all_ready(space: &Space, count: usize) -> Result<Vec<Pod>> {
    eventually(format!("{count} pods are ready"), || async {
        let pods = space.pods("web").await?;
        ensure!(pods.len() == count && pods.iter().all(is_ready), "{} pods", pods.len());
        Ok(pods)
    })
    .await
}

/// Returns the messages of the events of a node.
async fn messages_of(space: &Space, node: &str) -> Result<Vec<String>> {
    let events: Api<Event> = Api::namespaced(space.bed.client.clone(), "default");
    let about = |event: &Event| event.involved_object.name.as_deref() == Some(node);
    let events = events.list(&Default::default()).await?.items;
    Ok(events.into_iter().filter(about).map(|event| event.message.unwrap_or_default()).collect())
}

/// Checks the condition and the events of a pod that was evicted from a failed node.
async fn check_evicted(space: &Space, pod: &Pod) -> Result<()> {
    // A pod whose termination the fake kubelet had begun may have been deleted.
    if let Some(remaining) = space.api::<Pod>().get_opt(&pod.name_any()).await? {
        ensure!(!is_active(&remaining) && !is_ready(&remaining), "{remaining:?}");
        let conditions = remaining.status.and_then(|status| status.conditions).unwrap_or_default();
        let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget");
        ensure!(
            target.is_some_and(|target| target.reason.as_deref() == Some("DeletionByTaintManager")
                && target.observed_generation.is_some()),
            "{conditions:?}"
        );
    }
    let name = format!("{}/{}", space.namespace, pod.name_any());
    eventually("the eviction is reported", || async {
        let events = space.events(&pod.name_any()).await?;
        for expected in [
            format!("Normal TaintManagerEviction Marking for deletion Pod {name}"),
            "Warning NodeNotReady Node is not ready".to_owned(),
        ] {
            ensure!(events.get(&expected) == Some(&1), "{expected} in {events:?}");
        }
        Ok(())
    })
    .await
}

pub async fn pods_are_evicted_from_a_failed_node_until_it_recovers(_: Space) -> Result<()> {
    let space = bed(2).await?.space("dead-node").await?;
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &FLAGS).await?;
    space.create::<ReplicaSet>(evictable_replica_set("web", 6, 2)).await?;
    let pods = all_ready(&space, 6).await?;
    let on_failed_node = pods_on_node(&pods, "node-0");
    ensure!(!on_failed_node.is_empty() && on_failed_node.len() < 6, "{} pods on node-0", on_failed_node.len());
    eventually("the deprecated labels are added", || async {
        let labels = nodes(&space).get("node-0").await?.labels().clone();
        ensure!(labels.get("beta.kubernetes.io/os").is_some_and(|os| os == "linux"), "{labels:?}");
        ensure!(labels.get("beta.kubernetes.io/arch").is_some_and(|arch| arch == "amd64"), "{labels:?}");
        Ok(())
    })
    .await?;

    space.bed.cluster.stop_node("node-0").await?;
    let unreachable = [format!("{UNREACHABLE}:NoExecute"), format!("{UNREACHABLE}:NoSchedule")];
    let unreachable: Vec<&str> = unreachable.iter().map(String::as_str).collect();
    let node = until_tainted(&space, "node-0", &unreachable).await?;
    for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
        ensure!(condition(&node, kind) == ("Unknown".into(), "NodeStatusUnknown".into()), "{kind} of {node:?}");
    }
    let on_node_1 = eventually("the pods are replaced on the other node", || async {
        let pods = space.pods("web").await?;
        let replaced = pods_on_node(&pods, "node-1");
        ensure!(replaced.len() == 6 && replaced.iter().all(is_ready), "{} of {}", replaced.len(), pods.len());
        Ok(replaced)
    })
    .await?;
    for pod in &on_failed_node {
        check_evicted(&space, pod).await?;
    }

    space.bed.cluster.resume_node("node-0").await?;
    let node = until_tainted(&space, "node-0", &[]).await?;
    ensure!(condition(&node, "Ready").0 == "True", "{node:?}");
    let pods = space.pods("web").await?;
    ensure!(pods_on_node(&pods, "node-1").len() == on_node_1.len(), "replaced pods were moved again");
    let messages = messages_of(&space, "node-0").await?;
    for expected in
        ["Node node-0 event: Registered Node node-0 in Controller", "Node node-0 status is now: NodeNotReady"]
    {
        ensure!(messages.iter().filter(|message| *message == expected).count() == 1, "{expected} in {messages:?}");
    }
    let deletions = faults.count(|call| call.verb == Verb::Delete && call.resource == "pods");
    ensure!(deletions == on_failed_node.len(), "{deletions} deletions of {} pods", on_failed_node.len());
    only_declared(&faults, &CONTROLLERS)
}

pub async fn evictions_follow_the_state_of_zones(_: Space) -> Result<()> {
    let space = bed(3).await?.space("zones").await?;
    for node in 0..3 {
        let labels = json!({"topology.kubernetes.io/zone": format!("zone-{node}")});
        patch_node(&space, &format!("node-{node}"), json!({"metadata": {"labels": labels}})).await?;
    }
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &FLAGS).await?;
    space.create::<ReplicaSet>(evictable_replica_set("web", 6, TOLERATION_SECONDS)).await?;
    all_ready(&space, 6).await?;

    space.bed.cluster.stop_node("node-0").await?;
    eventually("pods are evicted from a zone without a ready node while other zones are healthy", || async {
        let pods = space.pods("web").await?;
        ensure!(pods.len() == 6 && pods_on_node(&pods, "node-0").is_empty() && pods.iter().all(is_ready));
        Ok(())
    })
    .await?;

    let before = faults.count(|call| call.verb == Verb::Delete && call.resource == "pods");
    try_join!(space.bed.cluster.stop_node("node-1"), space.bed.cluster.stop_node("node-2"))?;
    let no_schedule = format!("{UNREACHABLE}:NoSchedule");
    for node in ["node-0", "node-1", "node-2"] {
        until_tainted(&space, node, &[&no_schedule]).await?;
    }
    eventually("all pods are unready", || async {
        ensure!(space.pods("web").await?.iter().all(|pod| !is_ready(pod)));
        Ok(())
    })
    .await?;
    during(Duration::from_secs(TOLERATION_SECONDS.unsigned_abs()) + QUIET, "no pod is evicted", || async {
        ensure!(faults.count(|call| call.verb == Verb::Delete && call.resource == "pods") == before);
        Ok(())
    })
    .await?;

    space.bed.cluster.resume_node("node-1").await?;
    until_tainted(&space, "node-1", &[]).await?;
    eventually("when one node has recovered, pods of the others are evicted again", || async {
        let pods = space.pods("web").await?;
        ensure!(
            pods.len() == 6 && pods_on_node(&pods, "node-1").len() == 6,
            "{} pods",
            pods_on_node(&pods, "node-1").len()
        );
        Ok(())
    })
    .await?;
    only_declared(&faults, &CONTROLLERS)
}

pub async fn frozen_lease_watch_marks_no_node_unresponsive(_: Space) -> Result<()> {
    let space = bed(2).await?.space("frozen").await?;
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &FLAGS).await?;
    eventually("the nodes are registered", || async {
        ensure!(!messages_of(&space, "node-0").await?.is_empty() && !messages_of(&space, "node-1").await?.is_empty());
        Ok(())
    })
    .await?;
    let all_ready_nodes = || async {
        for node in nodes(&space).list(&Default::default()).await? {
            ensure!(condition(&node, "Ready").0 == "True" && taints(&node).is_empty(), "{node:?}");
        }
        Ok(())
    };
    faults.freeze("leases");
    let frozen = Instant::now();
    eventually("the lease is read from the API server", || async {
        ensure!(faults.count(|call| call.verb == Verb::Get && call.resource == "leases") > 0);
        Ok(())
    })
    .await?;
    during(GRACE / 2, "all nodes stay ready", all_ready_nodes).await?;
    let reads = faults.count(|call| call.verb == Verb::Get && call.resource == "leases");
    // At most one read for each of two nodes in each grace period.
    let max = 2 * (1 + frozen.elapsed().as_secs() / GRACE.as_secs());
    ensure!(reads as u64 <= max, "the lease was read {reads} times instead of waiting for the watch");
    faults.thaw("leases");
    during(Duration::from_secs(3), "all nodes stay ready", all_ready_nodes).await?;

    space.bed.cluster.stop_node("node-0").await?;
    eventually("a node that fails now is detected", || async {
        let node = nodes(&space).get("node-0").await?;
        ensure!(condition(&node, "Ready").0 == "Unknown");
        Ok(())
    })
    .await
}

pub async fn toleration_seconds_end_and_are_cancelled(_: Space) -> Result<()> {
    let space = bed(1).await?.space("countdown").await?;
    let faults = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &faults, &FLAGS).await?;
    let with_toleration = |seconds: Option<i64>| {
        let toleration = json!({"key": "example.com/away", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
        json!({"spec": {"tolerations": [toleration]}})
    };
    let run = |name: &'static str, what: Value| {
        let space = space.clone();
        async move {
            eventually(format!("{name} is created"), || space.create::<Pod>(with(pod(name, "web"), what.clone()))).await
        }
    };
    run("forever", with_toleration(None)).await?;
    run("long", with_toleration(Some(1000))).await?;
    run("short", with_toleration(Some(2))).await?;
    run("never", json!({})).await?;
    all_ready(&space, 4).await?;
    let away = json!([{"key": "example.com/away", "effect": "NoExecute"}]);
    patch_node(&space, "node-0", json!({"spec": {"taints": away}})).await?;
    eventually("pods that do not tolerate the taint, or no longer tolerate it, are deleted", || async {
        let remaining = cluster_tests::objects::names(&space.pods("web").await?);
        ensure!(remaining == ["forever", "long"], "{remaining:?}");
        Ok(())
    })
    .await?;
    patch_node(&space, "node-0", json!({"spec": {"taints": null}})).await?;
    let expected = format!("Normal TaintManagerEviction Cancelling deletion of Pod {}/long", space.namespace);
    eventually("the eviction is cancelled", || async {
        let events = space.events("long").await?;
        ensure!(events.get(&expected) == Some(&1), "{events:?}");
        Ok(())
    })
    .await?;
    ensure!(space.events("forever").await?.keys().all(|event| !event.contains("TaintManagerEviction")));
    only_declared(&faults, &["taint-eviction-controller"])
}
