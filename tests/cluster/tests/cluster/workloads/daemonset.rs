//! Observable behaviour of a DaemonSet: pods on the selected nodes, revisions, status, events, kubectl.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_active, is_ready, names, owner, pod, template, uids, with};
use cluster_tests::{Faults, Manager, Observer, QUIET, Space, View, during, eventually};
use control_plane::behaviour::{BEHAVIOUR, FAIL};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::robustness::invariants::{only_declared, until_constant, until_quiet};
use crate::robustness::scenario::Scenario;

/// The label and taint that reserve a test's nodes for its pods.
const SPACE_KEY: &str = "example.com/space";
const HASH: &str = "controller-revision-hash";

/// The nodes of one test.
pub struct Fleet {
    nodes: Api<Node>,
    space: Space,
}

impl Fleet {
    /// Returns the nodes of a test, without creating any.
    fn all_of(space: &Space) -> Self {
        Self { nodes: Api::all(space.bed.client.clone()), space: space.clone() }
    }

    /// Creates this number of nodes.
    pub async fn of(space: &Space, count: usize) -> Result<Self> {
        let fleet = Self::all_of(space);
        for at in 0..count {
            fleet.add(at).await?;
        }
        Ok(fleet)
    }

    fn name(&self, at: usize) -> String {
        format!("{}-{at}", self.space.namespace)
    }

    async fn add(&self, at: usize) -> Result<()> {
        let (name, ours) = (self.name(at), &self.space.namespace);
        let room = json!({"cpu": "8", "memory": "8Gi", "pods": "100"});
        let node = json!({
            "metadata": {
                "name": name, "labels": {SPACE_KEY: ours, "kubernetes.io/hostname": name},
                "annotations": {"kwok.x-k8s.io/node": "fake"},
            },
            "spec": {"taints": [{"key": SPACE_KEY, "value": ours, "effect": "NoSchedule"}]},
            "status": {"capacity": room, "allocatable": room},
        });
        self.nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
        // Admission taints new nodes; the controller that removes the taint does not run.
        self.taint(at, &[]).await
    }

    async fn patch(&self, at: usize, patch: Value) -> Result<()> {
        self.nodes.patch(&self.name(at), &PatchParams::default(), &Patch::Merge(&patch)).await?;
        Ok(())
    }

    /// Replaces a node's taints: by the one against pods of other tests, and another one for each of `effects`.
    async fn taint(&self, at: usize, effects: &[&str]) -> Result<()> {
        let ours = json!({"key": SPACE_KEY, "value": self.space.namespace, "effect": "NoSchedule"});
        let more = effects.iter().map(|effect| json!({"key": "example.com/more", "effect": effect}));
        let taints: Vec<Value> = [ours].into_iter().chain(more).collect();
        self.patch(at, json!({"spec": {"taints": taints}})).await
    }

    /// Deletes the nodes, so that they do not affect other tests.
    pub async fn delete_nodes(self) -> Result<()> {
        for node in self.nodes.list(&Default::default()).await?.items {
            let name = node.name_any();
            if node.labels().get(SPACE_KEY).or_else(|| node.labels().get("formerly")) == Some(&self.space.namespace) {
                self.nodes.delete(&name, &DeleteParams::default()).await?;
            }
        }
        Ok(())
    }
}

/// Returns a DaemonSet for the nodes of a test.
pub fn daemon_set(space: &Space, name: &str) -> Value {
    let mut template = template(name, "example.com/image:1", &json!({}));
    template["spec"]["nodeSelector"] = json!({SPACE_KEY: space.namespace});
    template["spec"]["tolerations"] = json!([{"key": SPACE_KEY, "operator": "Exists"}]);
    json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
    })
}

/// Returns the numbers of desired, current, misscheduled, ready, updated, available and unavailable pods.
fn counts(set: &DaemonSet) -> [i32; 7] {
    let status = set.status.clone().unwrap_or_default();
    [
        status.desired_number_scheduled,
        status.current_number_scheduled,
        status.number_misscheduled,
        status.number_ready,
        status.updated_number_scheduled.unwrap_or(0),
        status.number_available.unwrap_or(0),
        status.number_unavailable.unwrap_or(0),
    ]
}

/// Waits for a status.
async fn until_status(space: &Space, name: &str, expected: [i32; 7]) -> Result<DaemonSet> {
    eventually(format!("status {expected:?}"), || async {
        let set: DaemonSet = space.get(name).await?;
        ensure!(counts(&set) == expected, "status {:?}", counts(&set));
        ensure!(set.status.as_ref().and_then(|status| status.observed_generation) == set.metadata.generation);
        Ok(set)
    })
    .await
}

/// Waits for the end of a rollout: a ready pod of the current template on each of this many nodes.
pub async fn rolled_out(space: &Space, name: &str, nodes: i32) -> Result<DaemonSet> {
    let set = until_status(space, name, [nodes, nodes, 0, nodes, nodes, nodes, 0]).await?;
    eventually("only current pods exist", || async {
        let pods = space.list::<Pod>(name).await?;
        ensure!(i32::try_from(pods.len())? == nodes, "pods {:?}", names(&pods));
        ensure!(pods.iter().all(|pod| is_active(pod) && is_ready(pod)));
        Ok(())
    })
    .await?;
    Ok(set)
}

/// Changes the image of the template.
pub async fn set_image(space: &Space, name: &str, version: u32) -> Result<()> {
    let image = format!("main=example.com/image:{version}");
    space.kubectl(&["set", "image", &format!("daemonset/{name}"), &image]).await?;
    Ok(())
}

/// Returns the revisions by number.
pub async fn revisions(space: &Space, name: &str) -> Result<BTreeMap<i64, ControllerRevision>> {
    let revisions = space.list::<ControllerRevision>(name).await?;
    Ok(revisions.into_iter().map(|revision| (revision.revision.unwrap_or_default(), revision)).collect())
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).unwrap_or_default()
}

/// Checks owner, labels, affinity and tolerations of a pod of the DaemonSet `agent`.
fn check_daemon_pod(pod: &Pod, hash: &str) -> Result<()> {
    ensure!(owner(pod) == "agent" && pod.name_any().starts_with("agent-"));
    ensure!(
        pod.labels().get(HASH).is_some_and(|label| label == hash) && pod.labels()["pod-template-generation"] == "1"
    );
    let spec = pod.spec.as_ref().context("no spec")?;
    let affinity = serde_json::to_value(&spec.affinity)?;
    let terms = &affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let by_name = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_of(pod)]}]}]);
    ensure!(*terms == by_name, "{terms}");
    let keys: Vec<&str> = spec.tolerations.iter().flatten().filter_map(|one| one.key.as_deref()).collect();
    let added = ["not-ready", "unreachable", "disk-pressure", "memory-pressure", "pid-pressure", "unschedulable"];
    let expected = [SPACE_KEY.to_owned()].into_iter().chain(added.map(|key| format!("node.kubernetes.io/{key}")));
    ensure!(keys == expected.collect::<Vec<_>>(), "{keys:?}");
    Ok(())
}

pub async fn each_node_gets_a_daemon_pod(space: Space) -> Result<()> {
    let fleet = Fleet::of(&space, 3).await?;
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<DaemonSet>(daemon_set(&space, "agent")).await?;
    rolled_out(&space, "agent", 3).await?;
    let pods = space.pods("agent").await?;
    let nodes: BTreeSet<&str> = pods.iter().map(node_of).collect();
    ensure!(nodes == [0, 1, 2].map(|at| fleet.name(at)).iter().map(String::as_str).collect(), "{nodes:?}");
    let revision = revisions(&space, "agent").await?.remove(&1).context("no first revision")?;
    let hash = revision.labels().get(HASH).context("no hash")?;
    ensure!(revision.name_any() == format!("agent-{hash}") && owner(&revision) == "agent");
    for pod in &pods {
        check_daemon_pod(pod, hash)?;
    }
    eventually("an event for each pod", || async {
        let events = space.events("agent").await?;
        for pod in &pods {
            let expected_event = format!("Normal SuccessfulCreate Created pod: {}", pod.name_any());
            ensure!(events.get(&expected_event) == Some(&1), "{events:?}");
        }
        Ok(())
    })
    .await?;

    fleet.add(3).await?;
    rolled_out(&space, "agent", 4).await?;
    fleet.patch(3, json!({"metadata": {"labels": {SPACE_KEY: null, "formerly": space.namespace}}})).await?;
    rolled_out(&space, "agent", 3).await?;
    let victim = names(&space.pods("agent").await?)[0].clone();
    space.delete::<Pod>(&victim).await?;
    eventually("the deleted pod is replaced", || async {
        let pods = space.pods("agent").await?;
        ensure!(!names(&pods).contains(&victim) && pods.len() == 3);
        Ok(())
    })
    .await?;
    rolled_out(&space, "agent", 3).await?;

    until_quiet(&faults).await?;
    let writes = faults.writes();
    fleet.patch(0, json!({"metadata": {"annotations": {"heartbeat": "1"}}})).await?;
    fleet.patch(0, json!({"metadata": {"labels": {"example.com/other": "label"}}})).await?;
    during(QUIET, "unrelated changes of a node cause no write", || async {
        ensure!(faults.writes() == writes);
        Ok(())
    })
    .await?;
    only_declared(&faults, &["daemonset-controller"])?;
    fleet.delete_nodes().await
}

pub async fn taints_decide_which_daemon_pods_stay(space: Space) -> Result<()> {
    let fleet = Fleet::of(&space, 2).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<DaemonSet>(daemon_set(&space, "agent")).await?;
    rolled_out(&space, "agent", 2).await?;
    let before = uids(&space.pods("agent").await?);
    fleet.taint(0, &["NoSchedule"]).await?;
    until_status(&space, "agent", [1, 1, 1, 1, 1, 1, 0]).await?;
    fleet.patch(0, json!({"spec": {"unschedulable": true}})).await?;
    fleet.patch(0, json!({"spec": {"unschedulable": null}})).await?;
    fleet.taint(0, &[]).await?;
    rolled_out(&space, "agent", 2).await?;
    ensure!(uids(&space.pods("agent").await?) == before, "a pod that tolerates the taints was replaced");
    fleet.taint(0, &["NoSchedule", "NoExecute"]).await?;
    rolled_out(&space, "agent", 1).await?;
    fleet.taint(0, &["PreferNoSchedule"]).await?;
    rolled_out(&space, "agent", 2).await?;
    fleet.delete_nodes().await
}

pub async fn affinity_and_node_names_select_nodes(space: Space) -> Result<()> {
    let fleet = Fleet::of(&space, 3).await?;
    for (at, size) in [(0, "4"), (1, "16"), (2, "64")] {
        fleet.patch(at, json!({"metadata": {"labels": {"example.com/size": size}}})).await?;
    }
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let spec = |spec: Value| json!({"spec": {"template": {"spec": spec}}});
    let affinity = |term: Value| {
        spec(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [term],
        }}}}))
    };
    let size = |operator: &str, value: &str| {
        affinity(json!({"matchExpressions": [
            {"key": "example.com/size", "operator": operator, "values": [value]},
        ]}))
    };
    let by_name = |operator: &str| {
        affinity(json!({"matchFields": [
            {"key": "metadata.name", "operator": operator, "values": [fleet.name(1)]},
        ]}))
    };
    for (name, chosen, nodes) in [
        ("large", size("Gt", "8"), &[1, 2][..]),
        ("small", size("Lt", "8"), &[0]),
        ("others", size("NotIn", "16"), &[0, 2]),
        ("one", by_name("In"), &[1]),
        ("rest", by_name("NotIn"), &[0, 2]),
        ("bound", spec(json!({"nodeName": fleet.name(2)})), &[2]),
    ] {
        space.create::<DaemonSet>(with(daemon_set(&space, name), chosen)).await?;
        rolled_out(&space, name, i32::try_from(nodes.len())?).await.context(name)?;
        let pods = space.pods(name).await?;
        let found: BTreeSet<String> = pods.iter().map(|pod| node_of(pod).to_owned()).collect();
        ensure!(found == nodes.iter().map(|at| fleet.name(*at)).collect(), "{name}: {found:?}");
    }
    fleet.delete_nodes().await
}

pub async fn daemonset_is_rolled_out_and_back_by_kubectl(space: Space) -> Result<()> {
    let fleet = Fleet::of(&space, 2).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<DaemonSet>(with(daemon_set(&space, "agent"), json!({"spec": {"revisionHistoryLimit": 1}}))).await?;
    rolled_out(&space, "agent", 2).await?;
    set_image(&space, "agent", 2).await?;
    let output = space.kubectl(&["rollout", "status", "daemonset/agent"]).await?;
    ensure!(output.contains("successfully rolled out"), "{output}");
    rolled_out(&space, "agent", 2).await?;
    let output = space.kubectl(&["rollout", "history", "daemonset/agent"]).await?;
    ensure!(output.contains("\n1 ") && output.contains("\n2 "), "{output}");
    let second = space.kubectl(&["rollout", "history", "daemonset/agent", "--revision=2"]).await?;
    ensure!(second.contains("example.com/image:2"), "{second}");
    let first = uids(&revisions(&space, "agent").await?.into_values().take(1).collect::<Vec<_>>());

    space.kubectl(&["rollout", "undo", "daemonset/agent"]).await?;
    eventually("the first revision has the number 3", || async {
        let revisions = revisions(&space, "agent").await?;
        ensure!(revisions.keys().copied().collect::<Vec<_>>() == [2, 3], "{:?}", revisions.keys());
        ensure!(uids(&[revisions[&3].clone()]) == first, "the first revision was replaced by another object");
        Ok(())
    })
    .await?;
    rolled_out(&space, "agent", 2).await?;
    space.kubectl(&["rollout", "restart", "daemonset/agent"]).await?;
    eventually("two revisions are kept", || async {
        let revisions = revisions(&space, "agent").await?;
        ensure!(revisions.keys().copied().collect::<Vec<_>>() == [3, 4], "{:?}", revisions.keys());
        Ok(())
    })
    .await?;
    rolled_out(&space, "agent", 2).await?;
    space.kubectl(&["rollout", "undo", "daemonset/agent", "--to-revision=3"]).await?;
    eventually("the third revision has the number 5", || async {
        let revisions = revisions(&space, "agent").await?;
        ensure!(revisions.keys().copied().collect::<Vec<_>>() == [4, 5], "{:?}", revisions.keys());
        Ok(())
    })
    .await?;
    rolled_out(&space, "agent", 2).await?;
    fleet.delete_nodes().await
}

/// A node is drained for maintenance: its daemon pod is kept, all other pods are evicted, and it is used again
/// afterwards.
pub async fn drained_node_keeps_its_daemon_pod(space: Space) -> Result<()> {
    let fleet = Fleet::of(&space, 2).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<DaemonSet>(daemon_set(&space, "agent")).await?;
    rolled_out(&space, "agent", 2).await?;
    let daemons = uids(&space.pods("agent").await?);
    space.create::<Pod>(with(pod("guest", "guest"), json!({"spec": {"nodeName": fleet.name(0)}}))).await?;
    let drain = ["drain", &fleet.name(0), "--ignore-daemonsets", "--force", "--timeout=180s"];
    space.kubectl(&drain).await?;
    ensure!(space.api::<Pod>().get_opt("guest").await?.is_none(), "the guest was not evicted");
    rolled_out(&space, "agent", 2).await?;
    ensure!(uids(&space.pods("agent").await?) == daemons, "the drain replaced a daemon pod");
    space.kubectl(&["uncordon", &fleet.name(0)]).await?;
    rolled_out(&space, "agent", 2).await?;
    ensure!(uids(&space.pods("agent").await?) == daemons, "a daemon pod was replaced after uncordon");
    fleet.delete_nodes().await
}

/// Fails unless at least `min_ready` pods are ready and no node has more than `max` pods. Pods that are being deleted
/// do not count.
fn check_pods_on_nodes(view: &View, min_ready: usize, max: usize) -> Result<()> {
    let ready = view.pods.values().filter(|pod| is_active(pod) && is_ready(pod)).count();
    ensure!(ready >= min_ready, "{ready} pods are ready instead of at least {min_ready}");
    let mut pods_per_node: BTreeMap<String, usize> = BTreeMap::new();
    for pod in view.pods.values().filter(|pod| is_active(pod)) {
        *pods_per_node.entry(node_of(pod).to_owned()).or_default() += 1;
    }
    pods_per_node.remove("");
    ensure!(pods_per_node.values().all(|pods| *pods <= max), "{pods_per_node:?}");
    Ok(())
}

pub async fn update_stays_within_its_limits(space: Space) -> Result<()> {
    for (name, unavailable, surge) in [("one", 1, 0), ("two", 2, 0), ("surge", 0, 1), ("percent", 0, 2)] {
        let space = space.bed.space(name).await?;
        let fleet = Fleet::of(&space, 4).await?;
        let _manager = Manager::start(&space, &Faults::default()).await?;
        let surge_bound = if name == "percent" { json!("50%") } else { json!(surge) };
        let rolling = json!({"spec": {"updateStrategy": {"rollingUpdate": {
            "maxUnavailable": unavailable, "maxSurge": surge_bound,
        }}}});
        space.create::<DaemonSet>(with(daemon_set(&space, "agent"), rolling)).await?;
        rolled_out(&space, "agent", 4).await.context(name)?;
        let max = if surge > 0 { 2 } else { 1 };
        let observer = Observer::start(&space, move |view| check_pods_on_nodes(view, 4 - unavailable, max)).await?;
        set_image(&space, "agent", 2).await?;
        rolled_out(&space, "agent", 4).await.context(name)?;
        observer.verdict().await.with_context(|| format!("{name} in {}", space.namespace))?;
        let created = observer.view().pods_ever.len();
        ensure!(created == 8, "{name}: {created} pods were created instead of 8");
        fleet.delete_nodes().await?;
    }
    Ok(())
}

pub async fn on_delete_update_waits_for_manual_deletion(space: Space) -> Result<()> {
    let fleet = Fleet::of(&space, 2).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let on_delete = json!({"spec": {"updateStrategy": {"type": "OnDelete"}, "minReadySeconds": 1}});
    space.create::<DaemonSet>(with(daemon_set(&space, "agent"), on_delete)).await?;
    rolled_out(&space, "agent", 2).await?;
    let before = space.pods("agent").await?;
    set_image(&space, "agent", 2).await?;
    until_status(&space, "agent", [2, 2, 0, 2, 0, 2, 0]).await?;
    during(QUIET, "nothing is replaced", || async {
        ensure!(uids(&space.pods("agent").await?) == uids(&before));
        Ok(())
    })
    .await?;
    space.delete::<Pod>(&before[0].name_any()).await?;
    until_status(&space, "agent", [2, 2, 0, 2, 1, 2, 0]).await?;
    fleet.delete_nodes().await
}

pub async fn failed_pods_are_replaced_with_backoff(space: Space) -> Result<()> {
    let fleet = Fleet::of(&space, 1).await?;
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    let failing = json!({"spec": {"template": {"metadata": {"annotations": {BEHAVIOUR: FAIL}}}}});
    let surge = json!({"spec": {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}}});
    for (name, more) in [("agent", json!({})), ("surging", surge)] {
        let created = || faults.count(|call| call.to_string() == "create pods");
        let before = created();
        let begun = std::time::Instant::now();
        space.create::<DaemonSet>(with(with(daemon_set(&space, name), failing.clone()), more)).await?;
        eventually("three pods are created", || async {
            ensure!(created() - before >= 3, "{}", created() - before);
            Ok(())
        })
        .await?;
        // The first replacement is immediate, the second one follows after a second.
        ensure!(
            begun.elapsed() >= std::time::Duration::from_secs(1),
            "{name}: three pods were created within {:?}",
            begun.elapsed()
        );
        let expected_event = format!("Warning FailedDaemonPod Found failed daemon pod {}/{name}-", space.namespace);
        eventually("the failure is reported", || async {
            let events = space.events(name).await?;
            ensure!(events.keys().any(|event| event.starts_with(&expected_event)), "{events:?}");
            Ok(())
        })
        .await?;
        space.delete::<DaemonSet>(name).await?;
        eventually("the DaemonSet is deleted", || async {
            ensure!(space.list::<DaemonSet>(name).await?.is_empty());
            Ok(())
        })
        .await?;
        // The last reconcile of the deleted DaemonSet may still create a pod.
        until_constant("creating pods", created).await?;
    }
    fleet.delete_nodes().await
}

pub async fn orphans_are_adopted_and_unselected_pods_released(space: Space) -> Result<()> {
    let fleet = Fleet::of(&space, 2).await?;
    let orphan = json!({"spec": {"nodeName": fleet.name(0)}});
    space.create::<Pod>(with(pod("orphan", "agent"), orphan)).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let on_delete = json!({"spec": {"updateStrategy": {"type": "OnDelete"}}});
    space.create::<DaemonSet>(with(daemon_set(&space, "agent"), on_delete)).await?;
    until_status(&space, "agent", [2, 2, 0, 2, 1, 2, 0]).await?;
    ensure!(owner(&space.get::<Pod>("orphan").await?) == "agent");
    space.patch::<Pod>("orphan", json!({"metadata": {"labels": {"app": "other"}}})).await?;
    rolled_out(&space, "agent", 2).await?;
    ensure!(owner(&space.get::<Pod>("orphan").await?).is_empty(), "the pod was not released");
    fleet.delete_nodes().await
}

pub async fn taken_name_counts_as_a_collision(space: Space) -> Result<()> {
    let fleet = Fleet::of(&space, 1).await?;
    let manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<DaemonSet>(daemon_set(&space, "agent")).await?;
    rolled_out(&space, "agent", 1).await?;
    manager.stop().await?;
    let taken = revisions(&space, "agent").await?.remove(&1).context("no revision")?.name_any();
    space.delete::<DaemonSet>("agent").await?;
    space.delete::<ControllerRevision>(&taken).await?;
    space
        .create::<ControllerRevision>(json!({"metadata": {"name": taken}, "revision": 1, "data": {"another": 1}}))
        .await?;
    eventually("the DaemonSet is deleted", || async {
        ensure!(space.list::<DaemonSet>("agent").await?.is_empty());
        Ok(())
    })
    .await?;
    space.kubectl(&["delete", "pods", "--all", "--force", "--grace-period=0"]).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<DaemonSet>(daemon_set(&space, "agent")).await?;
    let set = rolled_out(&space, "agent", 1).await?;
    ensure!(set.status.and_then(|status| status.collision_count) == Some(1));
    let revision = revisions(&space, "agent").await?.remove(&1).context("no revision")?;
    ensure!(revision.name_any() != taken);
    fleet.delete_nodes().await
}

/// Rolls out on two nodes, updates, and undoes the update.
async fn scenario(space: Space) -> Result<()> {
    Fleet::of(&space, 2).await?;
    space.create::<DaemonSet>(daemon_set(&space, "agent")).await?;
    rolled_out(&space, "agent", 2).await?;
    set_image(&space, "agent", 2).await?;
    rolled_out(&space, "agent", 2).await?;
    space.kubectl(&["rollout", "undo", "daemonset/agent"]).await?;
    rolled_out(&space, "agent", 2).await?;
    let kept = revisions(&space, "agent").await?;
    ensure!(kept.keys().copied().collect::<Vec<_>>() == [2, 3], "{:?}", kept.keys());
    Ok(())
}

/// Writes: two revisions, whose order changes once; six pods, of which four are deleted; a status for each of three
/// rollouts.
pub const SCENARIO: Scenario = Scenario {
    name: "daemonset",
    flags: &["--controllers=daemonset-controller"],
    kind: "daemonsets",
    run: |space| Box::pin(scenario(space)),
    judge: |view| check_pods_on_nodes(view, 0, 1),
    clear: |space| Box::pin(Fleet::all_of(&space).delete_nodes()),
    pods: 6,
    writes: 3 + 6 + 4 + 3,
    fails: &[
        ("create controllerrevisions ", 2),
        ("update controllerrevisions ", 1),
        ("create pods ", 3),
        ("delete pods ", 1),
        ("update daemonsets/status ", 2),
    ],
};
