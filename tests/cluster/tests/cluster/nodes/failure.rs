//! A scenario of failing nodes, with upstream's manager and with ours: conditions, taints and events must be the same,
//! and ours must not be slower.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_active, is_ready, uids};
use cluster_tests::{Call, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::ResourceExt as _;
use kube::api::Api;
use serde_json::json;

use crate::nodes::lifecycle::{
    FLAGS, TOLERATION_SECONDS, all_ready, bed, evictable_replica_set, nodes, patch_node, pods_on_node,
};
use crate::upstream::manager::{UPSTREAM, start_upstream_with};

/// Seconds by which ours may be slower: both managers check nodes once a second.
const TOLERANCE_SECONDS: f64 = 2.5;

/// The observed facts, and the duration of each phase in seconds.
#[derive(Default)]
struct Record {
    facts: BTreeSet<String>,
    phases: BTreeMap<&'static str, f64>,
}

impl Record {
    fn add(&mut self, phase: &str, fact: &str) {
        self.facts.insert(format!("{phase}: {fact}"));
    }

    /// Records a node's conditions and taints.
    fn node(&mut self, phase: &str, node: &Node) {
        let name = node.name_any();
        for condition in node.status.iter().flat_map(|status| status.conditions.iter().flatten()) {
            let (reason, message) = (condition.reason.as_deref(), condition.message.as_deref());
            let text = (&condition.type_, &condition.status, reason.unwrap_or_default(), message.unwrap_or_default());
            self.add(phase, &format!("{name} {text:?}"));
        }
        for taint in node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()) {
            let has_time = taint.time_added.is_some();
            self.add(phase, &format!("{name} taint {} {:?} {} {has_time}", taint.key, taint.value, taint.effect));
        }
    }

    /// Records the texts of events, without names of pods and numbers of repetitions.
    async fn events(&mut self, space: &Space) -> Result<()> {
        let everywhere: Api<Event> = Api::all(space.bed.client.clone());
        for event in everywhere.list(&Default::default()).await? {
            let about = &event.involved_object;
            let components = event.source.iter().filter_map(|source| source.component.as_deref());
            if !components.into_iter().any(|component| component.ends_with("-controller")) {
                continue;
            }
            let mut text = event.message.clone().unwrap_or_default();
            if about.kind.as_deref() == Some("Pod") {
                text = text.replace(about.name.as_deref().unwrap_or_default(), "<pod>");
            }
            text = text.replace(&space.namespace, "<namespace>");
            let kind = about.kind.as_deref().unwrap_or_default();
            let (source, kinds) = (event.source.unwrap_or_default().component, (event.type_, event.reason));
            // Events of ReplicaSets contain generated names in any order.
            if kind == "ReplicaSet" {
                continue;
            }
            self.add("events", &format!("{source:?} {kind} {kinds:?} {text}"));
        }
        Ok(())
    }

    async fn phase<T>(&mut self, name: &'static str, state_reached: impl Future<Output = Result<T>>) -> Result<T> {
        let started = Instant::now();
        let result = state_reached.await.with_context(|| name)?;
        self.phases.insert(name, started.elapsed().as_secs_f64());
        Ok(result)
    }
}

async fn ready_is(space: &Space, name: &str, status: &str, taints: usize) -> Result<Node> {
    ready_within(space, name, status, taints..=taints).await
}

async fn ready_within(space: &Space, name: &str, status: &str, taints: RangeInclusive<usize>) -> Result<Node> {
    eventually(format!("{name} is {status} with {taints:?} taints"), || async {
        let node = nodes(space).get(name).await?;
        let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
        ensure!(ready.is_some_and(|ready| ready.status == status), "{ready:?}");
        let found = node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).map_or(0, Vec::len);
        ensure!(taints.contains(&found), "{:?}", node.spec);
        Ok(node)
    })
    .await
}

/// Waits until all pods of the set are ready, on these nodes only.
async fn until_all_on(space: &Space, count: usize, nodes_with_pods: &[&str]) -> Result<()> {
    eventually(format!("{count} pods run on {nodes_with_pods:?}"), || async {
        let pods = space.pods("web").await?;
        let on_nodes: usize = nodes_with_pods.iter().map(|node| pods_on_node(&pods, node).len()).sum();
        ensure!(pods.len() == count && on_nodes == count && pods.iter().all(is_ready), "{on_nodes} of {}", pods.len());
        Ok(())
    })
    .await
}

/// A node becomes unresponsive, its pods are replaced on another one, and it recovers.
async fn one_fails(space: &Space, record: &mut Record) -> Result<()> {
    space.create::<ReplicaSet>(evictable_replica_set("web", 6, 3)).await?;
    let pods = all_ready(space, 6).await?;
    let on_failed_node = pods_on_node(&pods, "node-0");
    ensure!(!on_failed_node.is_empty() && on_failed_node.len() < 6, "{} pods on node-0", on_failed_node.len());
    space.bed.cluster.stop_node("node-0").await?;
    let node = record.phase("the unresponsive node is tainted", ready_is(space, "node-0", "Unknown", 2)).await?;
    record.node("lost", &node);
    record.phase("its pods are replaced", until_all_on(space, 6, &["node-1"])).await?;
    for pod in &on_failed_node {
        if let Some(pod) = space.api::<Pod>().get_opt(&pod.name_any()).await? {
            record.add("left", &format!("active {} ready {}", is_active(&pod), is_ready(&pod)));
            let conditions = pod.status.and_then(|status| status.conditions).unwrap_or_default();
            for condition in conditions.iter().filter(|condition| condition.type_ != "PodScheduled") {
                record.add(
                    "left",
                    &format!("{} {} {:?} {:?}", condition.type_, condition.status, condition.reason, condition.message),
                );
            }
        }
    }
    space.bed.cluster.resume_node("node-0").await?;
    let node = record.phase("the node recovers", ready_is(space, "node-0", "True", 0)).await?;
    record.add("recovered", &format!("taints {:?}", node.spec.and_then(|spec| spec.taints)));
    record.events(space).await
}

/// One of three zones fails and its pods are evicted; then all fail, and no pod is evicted. Upstream queues nodes for
/// eviction before it detects that all have failed: at random, a taint may remain and pods may be evicted.
async fn zones_fail(space: &Space, record: &mut Record, ours: bool) -> Result<()> {
    for (node, zone) in [("node-0", "a"), ("node-1", "b"), ("node-2", "c")] {
        patch_node(space, node, json!({"metadata": {"labels": {"topology.kubernetes.io/zone": zone}}})).await?;
    }
    space.create::<ReplicaSet>(evictable_replica_set("web", 6, TOLERATION_SECONDS)).await?;
    all_ready(space, 6).await?;
    space.bed.cluster.stop_node("node-0").await?;
    record.phase("pods of the failed zone are replaced", until_all_on(space, 6, &["node-1", "node-2"])).await?;
    let before: BTreeSet<String> = uids(&space.pods("web").await?).into_iter().collect();
    for node in ["node-1", "node-2"] {
        space.bed.cluster.stop_node(node).await?;
    }
    let taints = if ours { 1..=1 } else { 1..=2 };
    for name in ["node-0", "node-1", "node-2"] {
        let failed_node = ready_within(space, name, "Unknown", taints.clone());
        let mut node = record.phase("all nodes have failed", failed_node).await?;
        let kept = node.spec.iter_mut().flat_map(|spec| &mut spec.taints);
        kept.for_each(|taints| taints.retain(|taint| taint.effect != "NoExecute"));
        record.node("all failed", &node);
    }
    if ours {
        during(Duration::from_secs(TOLERATION_SECONDS.unsigned_abs()) + QUIET, "no pod is evicted", || async {
            let now: BTreeSet<String> = uids(&space.pods("web").await?).into_iter().collect();
            ensure!(now == before, "{before:?} became {now:?}");
            Ok(())
        })
        .await?;
    }
    space.bed.cluster.resume_node("node-1").await?;
    record.phase("one node recovers", ready_is(space, "node-1", "True", 0)).await?;
    // Not compared: if upstream had begun to evict a node's pods when all nodes failed, the node counts as evicted, and
    // its pods possibly stay.
    if !ours {
        return Ok(());
    }
    eventually("all pods are on the recovered node", || async {
        let pods = space.pods("web").await?;
        ensure!(
            pods.len() == 6 && pods_on_node(&pods, "node-1").len() == 6,
            "{} of {}",
            pods_on_node(&pods, "node-1").len(),
            pods.len()
        );
        Ok(())
    })
    .await
}

async fn run(ours: bool) -> Result<Record> {
    let mut record = Record::default();
    let faults = Faults::default();
    for (count, name) in [(2, "one-fails"), (3, "zones-fail")] {
        let space = bed(count).await?.space(name).await?;
        let _manager = if ours {
            Some(Manager::start_cluster_wide(&space, &faults, &FLAGS).await?)
        } else {
            start_upstream_with(&space.bed.cluster, &FLAGS)?;
            None
        };
        let result = match count {
            2 => one_fails(&space, &mut record).await,
            _ => zones_fail(&space, &mut record, ours).await,
        };
        result.with_context(|| name)?;
        if !ours {
            space.bed.cluster.kill(UPSTREAM)?;
        }
    }
    Ok(record)
}

/// Upstream's manager watches all nodes, so this needs separate control planes.
pub async fn failing_nodes_are_handled_as_in_upstream(_: Space) -> Result<()> {
    let upstream = run(false).await.context("upstream")?;
    let ours = run(true).await.context("ours")?;
    let mut slower = Vec::new();
    for (phase, theirs) in &upstream.phases {
        let took = ours.phases.get(phase).copied().unwrap_or(f64::INFINITY);
        println!("{phase}: ours {took:.1} s, upstream {theirs:.1} s");
        if took > theirs + TOLERANCE_SECONDS {
            slower.push(*phase);
        }
    }
    let missing: Vec<_> = upstream.facts.difference(&ours.facts).collect();
    let surplus: Vec<_> = ours.facts.difference(&upstream.facts).collect();
    ensure!(missing.is_empty() && surplus.is_empty(), "only upstream: {missing:#?}\nonly ours: {surplus:#?}");
    ensure!(slower.is_empty(), "slower than upstream: {slower:?}");
    Ok(())
}

/// Checks that an unresponsive node does not change, including the times in its conditions, for longer than a new
/// manager needs for its decision. After a start, both managers first remove the NoExecute taint and add it again
/// later, so that only NoSchedule taints are compared.
async fn stays_unresponsive(space: &Space, before: &Node) -> Result<()> {
    let text = |node: &Node| -> Result<String> {
        let mut conditions = node.status.clone().and_then(|status| status.conditions).unwrap_or_default();
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        let mut taints = node.spec.clone().and_then(|spec| spec.taints).unwrap_or_default();
        taints.retain(|taint| taint.effect == "NoSchedule");
        Ok(serde_json::to_string(&(conditions, taints))?)
    };
    let before = text(before)?;
    during(Duration::from_secs(9), "the node is still unresponsive", || async {
        let now = text(&nodes(space).get("node-0").await?)?;
        ensure!(now == before, "{before} became {now}");
        Ok(())
    })
    .await?;
    ready_is(space, "node-0", "Unknown", 2).await?;
    Ok(())
}

/// A node becomes unresponsive under one manager and recovers under the other, in both directions. Upstream's manager
/// watches all nodes, so this needs a separate control plane.
pub async fn lost_nodes_recover_under_the_other_manager(_: Space) -> Result<()> {
    let space = bed(2).await?.space("lost").await?;
    start_upstream_with(&space.bed.cluster, &FLAGS)?;
    space.create::<ReplicaSet>(evictable_replica_set("web", 4, 600)).await?;
    let pods = uids(&all_ready(&space, 4).await?);
    space.bed.cluster.stop_node("node-0").await?;
    let lost = ready_is(&space, "node-0", "Unknown", 2).await?;
    space.bed.cluster.kill(UPSTREAM)?;

    let manager = Manager::start_cluster_wide(&space, &Faults::default(), &FLAGS).await?;
    stays_unresponsive(&space, &lost).await.context("from upstream to ours")?;
    space.bed.cluster.resume_node("node-0").await?;
    ready_is(&space, "node-0", "True", 0).await.context("unresponsive under upstream, recovered under ours")?;
    space.bed.cluster.stop_node("node-0").await?;
    let lost = ready_is(&space, "node-0", "Unknown", 2).await?;
    manager.crash().await;

    start_upstream_with(&space.bed.cluster, &FLAGS)?;
    stays_unresponsive(&space, &lost).await.context("from ours to upstream")?;
    space.bed.cluster.resume_node("node-0").await?;
    ready_is(&space, "node-0", "True", 0).await.context("unresponsive under ours, recovered under upstream")?;
    ensure!(uids(&space.list::<Pod>("web").await?) == pods, "all pods should be kept for ten minutes");
    Ok(())
}

/// A node becomes unresponsive and recovers, with a crash at one of the writes of node controllers.
async fn recover_with_a_crash(n: usize, effect: Effect) -> Result<()> {
    let space = bed(2).await?.space("crash").await?;
    let is_node_write = |call: &Call| {
        let resource = call.resource.as_str();
        call.is_object_write()
            && (resource.starts_with("nodes") || resource == "pods/status" || call.verb == Verb::Delete)
    };
    let faults = Faults::script([Rule::new(is_node_write, effect).nth(n)]);
    let managers = async {
        loop {
            let manager = Manager::start_cluster_wide(&space, &faults, &FLAGS).await?;
            faults.crashes().await;
            manager.crash().await;
        }
        #[allow(unreachable_code, reason = "gives the loop its type")]
        anyhow::Ok(())
    };
    let scenario = async {
        space.create::<ReplicaSet>(evictable_replica_set("web", 4, 2)).await?;
        let pods = all_ready(&space, 4).await?;
        let on_healthy_node = uids(&pods_on_node(&pods, "node-1"));
        space.bed.cluster.stop_node("node-0").await?;
        until_all_on(&space, 4, &["node-1"]).await?;
        let replaced = uids(&space.pods("web").await?);
        ensure!(
            on_healthy_node.iter().all(|uid| replaced.contains(uid)),
            "pods of the healthy node were deleted: {on_healthy_node:?} {replaced:?}"
        );
        space.bed.cluster.resume_node("node-0").await?;
        ready_is(&space, "node-0", "True", 0).await?;
        ensure!(uids(&space.pods("web").await?) == replaced, "replaced pods were moved again");
        anyhow::Ok(())
    };
    tokio::select! {
        result = scenario => result?,
        never = managers => never?,
    }
    ensure!(faults.unmet() == 0, "the fault did not occur");
    Ok(())
}

pub async fn crash_after_a_sample_of_writes(_: Space) -> Result<()> {
    for (n, effect) in [(1, Effect::CrashAfter), (2, Effect::CrashBeforeResponse), (4, Effect::CrashAfter)] {
        let what = format!("{effect:?} at write {n}");
        recover_with_a_crash(n, effect).await.context(what)?;
    }
    Ok(())
}
