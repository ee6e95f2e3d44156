//! Observable behaviour of a StatefulSet: pods with identities, claims, revisions, status, events, and kubectl.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{is_active, is_ready, names, owner, phase, template, uids, with};
use cluster_tests::{Faults, Manager, Observer, QUIET, Space, View, during, eventually};
use control_plane::behaviour::{BEHAVIOUR, UNREADY};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim, Pod};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use crate::robustness::invariants::until_quiet;
use crate::robustness::scenario::Scenario;

/// Returns a StatefulSet of pods with the label `app=<name>`.
pub fn stateful_set(name: &str, replicas: i32) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": replicas,
            "serviceName": "names",
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, "example.com/image:1", &json!({})),
        },
    })
}

/// Sets the image of the template; the version is its tag.
pub async fn set_image(space: &Space, name: &str, version: u32) -> Result<()> {
    let image = format!("example.com/image:{version}");
    let containers = json!([{"name": "main", "image": image}]);
    space.patch::<StatefulSet>(name, json!({"spec": {"template": {"spec": {"containers": containers}}}})).await?;
    Ok(())
}

/// Returns the pods of a StatefulSet by name, with the tag of their image.
async fn versions(space: &Space, name: &str) -> Result<BTreeMap<String, String>> {
    let pods: Vec<Pod> = space.list(name).await?;
    let version = |pod: &Pod| {
        let image = pod.spec.as_ref()?.containers.first()?.image.clone()?;
        Some((pod.metadata.name.clone()?, image.rsplit(':').next()?.to_owned()))
    };
    Ok(pods.iter().filter_map(version).collect())
}

/// Waits until all pods exist, are ready and have this version, and the status reports a complete update.
pub async fn settled(space: &Space, name: &str, replicas: i32, version: u32) -> Result<StatefulSet> {
    eventually(format!("{name} has {replicas} pods of version {version}"), || async {
        let set: StatefulSet = space.get(name).await?;
        let status = set.status.clone().unwrap_or_default();
        let counts =
            [status.ready_replicas, status.available_replicas, status.current_replicas, status.updated_replicas];
        ensure!(status.replicas == replicas && counts.iter().all(|count| count.unwrap_or(0) == replicas), "{status:?}");
        ensure!(status.observed_generation == set.metadata.generation && status.conditions.is_none(), "{status:?}");
        ensure!(status.current_revision == status.update_revision, "{status:?}");
        let expected = (0..replicas).map(|at| (format!("{name}-{at}"), version.to_string())).collect();
        let pods = versions(space, name).await?;
        ensure!(pods == expected, "pods {pods:?}");
        ensure!(space.pods(name).await?.iter().all(is_ready), "a pod is not ready: the status is outdated");
        Ok(set)
    })
    .await
}

/// Returns the names of revisions and their numbers, oldest first.
async fn history(space: &Space, name: &str) -> Result<Vec<(i64, String)>> {
    let revisions: Vec<ControllerRevision> = space.list(name).await?;
    let mut history: Vec<_> = revisions
        .into_iter()
        .map(|each| (each.revision.unwrap_or(0), each.metadata.name.unwrap_or_default()))
        .collect();
    history.sort();
    Ok(history)
}

pub async fn pods_are_created_in_order_with_their_identities(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start(&space, &faults).await?;
    space.create::<StatefulSet>(stateful_set("web", 3)).await?;
    let set = settled(&space, "web", 3, 1).await?;
    let mut pods = space.pods("web").await?;
    pods.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
    let revision = set.status.and_then(|status| status.update_revision).context("no revision")?;
    for (ordinal, pod) in pods.iter().enumerate() {
        let name = format!("web-{ordinal}");
        let spec = pod.spec.as_ref().context("no spec")?;
        ensure!(spec.hostname.as_deref() == Some(&name) && spec.subdomain.as_deref() == Some("names"));
        ensure!(pod.metadata.generate_name.as_deref() == Some("web-") && owner(pod) == "web");
        let expected = BTreeMap::from([
            ("app".to_owned(), "web".to_owned()),
            ("apps.kubernetes.io/pod-index".to_owned(), ordinal.to_string()),
            ("controller-revision-hash".to_owned(), revision.clone()),
            ("statefulset.kubernetes.io/pod-name".to_owned(), name),
        ]);
        ensure!(pod.metadata.labels == Some(expected), "labels {:?}", pod.metadata.labels);
    }
    for pair in pods.windows(2) {
        let ready = |pod: &Pod| -> Option<_> {
            let conditions = pod.status.as_ref()?.conditions.clone()?;
            conditions.into_iter().find(|condition| condition.type_ == "Ready")?.last_transition_time
        };
        ensure!(
            pair[1].metadata.creation_timestamp >= ready(&pair[0]),
            "a pod was created before its predecessor was ready"
        );
    }
    eventually("an event for each pod", || async {
        let events = space.events("web").await?;
        let of = |at| (format!("Normal SuccessfulCreate Create Pod web-{at} in StatefulSet web successful"), 1);
        ensure!(events == (0..3).map(of).collect(), "events {events:?}");
        Ok(())
    })
    .await?;
    let lone = pods.first().context("no pod")?;
    space.delete::<Pod>("web-0").await?;
    settled(&space, "web", 3, 1).await?;
    ensure!(!uids(&space.pods("web").await?).contains(&lone.metadata.uid.clone().unwrap_or_default()));
    // At most one status write for the set itself, one for each creation and readiness of four pods, and two for one
    // deletion. Most are combined, unless the machine is slow.
    let statuses = faults.count(|call| call.resource == "statefulsets/status");
    ensure!(statuses <= 1 + 2 * 4 + 2, "{statuses} writes of the status");
    until_quiet(&faults).await
}

pub async fn statefulset_is_scaled_by_kubectl(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let parallel = json!({"spec": {"podManagementPolicy": "Parallel"}});
    space.create::<StatefulSet>(with(stateful_set("web", 2), parallel)).await?;
    settled(&space, "web", 2, 1).await?;
    for replicas in [6, 1, 0] {
        space.kubectl(&["scale", "statefulset/web", &format!("--replicas={replicas}")]).await?;
        settled(&space, "web", replicas, 1).await?;
    }
    ensure!(history(&space, "web").await?.len() == 1, "scaling created a revision");
    Ok(())
}

pub async fn update_history_undo_and_restart_work(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<StatefulSet>(with(stateful_set("web", 3), json!({"spec": {"revisionHistoryLimit": 2}}))).await?;
    let first = settled(&space, "web", 3, 1).await?.status.and_then(|status| status.update_revision);
    set_image(&space, "web", 2).await?;
    settled(&space, "web", 3, 2).await?;
    let output = space.kubectl(&["rollout", "status", "statefulset/web", "--timeout=180s"]).await?;
    ensure!(output.contains("roll out complete: 3 new pods have been updated"), "{output}");
    let output = space.kubectl(&["rollout", "history", "statefulset/web"]).await?;
    ensure!(output.lines().filter(|line| line.starts_with(['1', '2'])).count() == 2, "{output}");
    let second = space.kubectl(&["rollout", "history", "statefulset/web", "--revision=2"]).await?;
    ensure!(second.contains("example.com/image:2"), "{second}");

    space.kubectl(&["rollout", "undo", "statefulset/web"]).await?;
    let set = settled(&space, "web", 3, 1).await?;
    ensure!(set.status.and_then(|status| status.update_revision) == first, "the first revision is not used again");
    let numbers: Vec<i64> = history(&space, "web").await?.iter().map(|(number, _)| *number).collect();
    ensure!(numbers == [2, 3], "numbers {numbers:?}");

    let before = uids(&space.pods("web").await?);
    space.kubectl(&["rollout", "restart", "statefulset/web"]).await?;
    eventually("all pods are replaced", || async {
        let after = space.pods("web").await?;
        ensure!(after.len() == 3 && after.iter().all(is_ready) && uids(&after).iter().all(|uid| !before.contains(uid)));
        Ok(())
    })
    .await?;
    for version in 3..=6 {
        set_image(&space, "web", version).await?;
        settled(&space, "web", 3, version).await?;
    }
    eventually("two old revisions and the newest are kept", || async {
        let history = history(&space, "web").await?;
        ensure!(history.len() == 3, "history {history:?}");
        Ok(())
    })
    .await?;
    let oldest = history(&space, "web").await?[0].0;
    space.kubectl(&["rollout", "undo", "statefulset/web", &format!("--to-revision={oldest}")]).await?;
    settled(&space, "web", 3, 4).await?;
    space.kubectl(&["wait", "statefulset/web", "--for=jsonpath={.status.readyReplicas}=3", "--timeout=180s"]).await?;
    Ok(())
}

pub async fn partition_keeps_pods_at_the_old_revision(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let partition = |at: i32| json!({"spec": {"updateStrategy": {"rollingUpdate": {"partition": at}}}});
    space.create::<StatefulSet>(with(stateful_set("web", 3), partition(2))).await?;
    settled(&space, "web", 3, 1).await?;
    set_image(&space, "web", 2).await?;
    let at = |versions: [u32; 3]| {
        let pods = versions.iter().enumerate().map(|(at, version)| (format!("web-{at}"), version.to_string()));
        pods.collect::<BTreeMap<_, _>>()
    };
    let reached = async |versions_wanted: [u32; 3]| {
        eventually(format!("versions {versions_wanted:?}"), || async {
            let pods = versions(&space, "web").await?;
            ensure!(pods == at(versions_wanted), "{pods:?}");
            ensure!(space.pods("web").await?.iter().all(is_ready));
            Ok(())
        })
        .await
    };
    reached([1, 1, 2]).await?;
    // A pod below the partition is recreated at its revision, from the template of that revision.
    let before = space.get::<Pod>("web-0").await?;
    space.delete::<Pod>("web-0").await?;
    eventually("another web-0 exists", || async {
        let pod = space.get::<Pod>("web-0").await?;
        ensure!(pod.metadata.uid != before.metadata.uid && is_ready(&pod));
        Ok(())
    })
    .await?;
    reached([1, 1, 2]).await?;
    let after = space.get::<Pod>("web-0").await?;
    let (old, new) = (before.spec.context("no spec")?, after.spec.context("no spec")?);
    ensure!(
        old.hostname == new.hostname
            && old.subdomain == new.subdomain
            && before.metadata.labels == after.metadata.labels
    );
    ensure!(
        after.metadata.generate_name.as_deref() == Some("web-") && old.containers[0].image == new.containers[0].image
    );
    space.patch::<StatefulSet>("web", partition(0)).await?;
    settled(&space, "web", 3, 2).await?;
    Ok(())
}

pub async fn deleted_pods_are_updated_with_on_delete(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let on_delete = json!({"spec": {"updateStrategy": {"type": "OnDelete"}}});
    space.create::<StatefulSet>(with(stateful_set("web", 2), on_delete)).await?;
    settled(&space, "web", 2, 1).await?;
    set_image(&space, "web", 2).await?;
    eventually("the new revision is known", || async {
        let status = space.get::<StatefulSet>("web").await?.status.unwrap_or_default();
        ensure!(
            status.current_revision != status.update_revision && status.updated_replicas.unwrap_or(0) == 0,
            "{status:?}"
        );
        Ok(())
    })
    .await?;
    for name in ["web-1", "web-0"] {
        space.delete::<Pod>(name).await?;
        eventually(format!("{name} is new"), || async {
            ensure!(versions(&space, "web").await?.get(name).is_some_and(|version| version == "2"));
            Ok(())
        })
        .await?;
    }
    settled(&space, "web", 2, 2).await?;
    Ok(())
}

/// Returns the name of a node: pods with claims are bound there by the test, because no controller binds claims here.
async fn node(space: &Space) -> Result<String> {
    let nodes = Api::<Node>::all(space.bed.client.clone()).list(&Default::default()).await?;
    names(&nodes.items).into_iter().next().context("no node")
}

/// Returns a StatefulSet whose pods each have a claim.
async fn with_claims(space: &Space, replicas: i32, deleted: &str, scaled: &str) -> Result<Value> {
    let claims = json!([{
        "metadata": {"name": "data", "labels": {"kind": "data"}},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }]);
    let policy = json!({"whenDeleted": deleted, "whenScaled": scaled});
    let fields = json!({"spec": {
        "volumeClaimTemplates": claims,
        "persistentVolumeClaimRetentionPolicy": policy,
        "template": {"spec": {"nodeName": node(space).await?}},
    }});
    Ok(with(stateful_set("web", replicas), fields))
}

/// Returns claims, with the kinds and names of their owners.
async fn claims(space: &Space) -> Result<BTreeMap<String, Vec<String>>> {
    let claims: Vec<PersistentVolumeClaim> = space.list("web").await?;
    let owners = |claim: &PersistentVolumeClaim| {
        let owners = claim.metadata.owner_references.clone().unwrap_or_default();
        owners.into_iter().map(|owner| format!("{} {}", owner.kind, owner.name)).collect()
    };
    Ok(claims.iter().map(|claim| (claim.metadata.name.clone().unwrap_or_default(), owners(claim))).collect())
}

pub async fn claims_are_created_and_retained(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<StatefulSet>(with_claims(&space, 2, "Retain", "Retain").await?).await?;
    settled(&space, "web", 2, 1).await?;
    let expected = BTreeMap::from([("data-web-0".to_owned(), vec![]), ("data-web-1".to_owned(), vec![])]);
    ensure!(claims(&space).await? == expected, "{:?}", claims(&space).await?);
    let claim: PersistentVolumeClaim = space.get("data-web-0").await?;
    let labels = claim.metadata.labels.unwrap_or_default();
    ensure!(labels == BTreeMap::from([("app", "web"), ("kind", "data")].map(|(k, v)| (k.to_owned(), v.to_owned()))));
    let pod: Pod = space.get("web-0").await?;
    let volumes = pod.spec.and_then(|spec| spec.volumes).unwrap_or_default();
    let mounted = volumes.iter().find(|volume| volume.name == "data").and_then(|v| v.persistent_volume_claim.clone());
    ensure!(mounted.is_some_and(|source| source.claim_name == "data-web-0"));
    eventually("an event for each claim", || async {
        let events = space.events("web").await?;
        let wanted = "Normal SuccessfulCreate Create Claim data-web-1 Pod web-1 in StatefulSet web success";
        ensure!(events.contains_key(wanted), "{events:?}");
        Ok(())
    })
    .await?;
    // The policy changes: claims get the StatefulSet as their owner, without a write to their pods.
    let before = space.get::<Pod>("web-0").await?.metadata.resource_version;
    let policy = |deleted: &str, scaled: &str| json!({"spec": {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted, "whenScaled": scaled}}});
    space.patch::<StatefulSet>("web", policy("Delete", "Delete")).await?;
    let owned = |owner: &str| vec![owner.to_owned()];
    let reached = async |expected: BTreeMap<String, Vec<String>>| {
        eventually(format!("claims {expected:?}"), || async {
            let claims = claims(&space).await?;
            ensure!(claims == expected, "{claims:?}");
            Ok(())
        })
        .await
    };
    let both = |last: &str| {
        BTreeMap::from([("data-web-0".to_owned(), owned("StatefulSet web")), ("data-web-1".to_owned(), owned(last))])
    };
    reached(both("StatefulSet web")).await?;
    ensure!(space.get::<Pod>("web-0").await?.metadata.resource_version == before);
    // Scaling down deletes a pod; the garbage collector, which does not run here, would delete its claim. Until the
    // claim is deleted, no pod with this ordinal is created.
    space.scale::<StatefulSet>("web", 1).await?;
    reached(both("Pod web-1")).await?;
    settled(&space, "web", 1, 1).await?;
    space.scale::<StatefulSet>("web", 2).await?;
    during(QUIET, "no pod gets a claim that is about to be deleted", || async {
        let pods = space.list::<Pod>("web").await?;
        ensure!(pods.len() == 1, "{:?}", names(&pods));
        Ok(())
    })
    .await?;
    space.patch::<PersistentVolumeClaim>("data-web-1", json!({"metadata": {"finalizers": null}})).await?;
    space.delete::<PersistentVolumeClaim>("data-web-1").await?;
    settled(&space, "web", 2, 1).await?;
    reached(both("StatefulSet web")).await?;
    space.patch::<StatefulSet>("web", policy("Retain", "Retain")).await?;
    reached(expected).await
}

pub async fn failed_pods_are_replaced(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<StatefulSet>(stateful_set("web", 2)).await?;
    settled(&space, "web", 2, 1).await?;
    for phase in ["Failed", "Succeeded"] {
        let before = uids(&space.pods("web").await?);
        space.patch_status::<Pod>("web-1", json!({"status": {"phase": phase}})).await?;
        eventually("another web-1 exists", || async {
            let after = space.pods("web").await?;
            ensure!(after.len() == 2 && uids(&after) != before, "{:?}", names(&after));
            Ok(())
        })
        .await?;
        settled(&space, "web", 2, 1).await?;
    }
    Ok(())
}

pub async fn orphans_are_adopted_by_name(space: Space) -> Result<()> {
    let manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<StatefulSet>(stateful_set("web", 2)).await?;
    settled(&space, "web", 2, 1).await?;
    manager.stop().await?;
    let (pods, before) = (uids(&space.pods("web").await?), history(&space, "web").await?);
    for (kind, name) in [("pod", "web-0"), ("controllerrevision", &*before[0].1)] {
        let patch = r#"{"metadata":{"ownerReferences":null}}"#;
        space.kubectl(&["patch", kind, name, "--type=merge", "-p", patch]).await?;
    }
    let mut stranger = cluster_tests::objects::pod("stranger-0", "web");
    stranger["metadata"]["labels"]["app"] = "web".into();
    space.create::<Pod>(stranger).await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    eventually("the orphans are adopted", || async {
        ensure!(owner(&space.get::<Pod>("web-0").await?) == "web");
        ensure!(owner(&space.get::<ControllerRevision>(&before[0].1).await?) == "web");
        Ok(())
    })
    .await?;
    ensure!(owner(&space.get::<Pod>("stranger-0").await?).is_empty(), "a pod with another name was adopted");
    ensure!(history(&space, "web").await? == before);
    space.patch::<Pod>("web-1", json!({"metadata": {"labels": {"app": "other"}}})).await?;
    eventually("the pod that no longer matches is released", || async {
        ensure!(owner(&space.get::<Pod>("web-1").await?).is_empty());
        Ok(())
    })
    .await?;
    let kept = uids(&space.list::<Pod>("").await?);
    ensure!(pods.iter().all(|uid| kept.contains(uid)), "a pod was deleted");
    Ok(())
}

pub async fn taken_revision_name_counts_as_a_collision(space: Space) -> Result<()> {
    let manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<StatefulSet>(stateful_set("web", 1)).await?;
    settled(&space, "web", 1, 1).await?;
    let name = history(&space, "web").await?[0].1.clone();
    manager.stop().await?;
    // The same StatefulSet is created again, while a revision of another owner has the name that its own would get.
    space.delete::<ControllerRevision>(&name).await?;
    space.delete::<StatefulSet>("web").await?;
    space.delete::<Pod>("web-0").await?;
    space
        .create::<ControllerRevision>(json!({"metadata": {"name": name}, "revision": 1, "data": {"other": 1}}))
        .await?;
    eventually("the StatefulSet's pods are deleted", || async {
        ensure!(space.list::<Pod>("web").await?.is_empty());
        Ok(())
    })
    .await?;
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<StatefulSet>(stateful_set("web", 1)).await?;
    let set = settled(&space, "web", 1, 1).await?;
    let status = set.status.unwrap_or_default();
    ensure!(status.collision_count == Some(1), "{status:?}");
    ensure!(status.update_revision.is_some_and(|revision| revision != name));
    Ok(())
}

/// Returns the template of a version whose pods never become ready.
fn broken(version: u32) -> Value {
    json!({"spec": {"template": {
        "metadata": {"annotations": {BEHAVIOUR: UNREADY}},
        "spec": {"containers": [{"name": "main", "image": format!("example.com/image:{version}")}]},
    }}})
}

/// An ordered update waits for a broken pod of a previous revision: a condition and an event name the fix.
pub async fn stuck_update_is_reported_with_the_fix(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    space.create::<StatefulSet>(stateful_set("web", 2)).await?;
    settled(&space, "web", 2, 1).await?;
    space.patch::<StatefulSet>("web", broken(2)).await?;
    eventually("web-1 is broken", || async {
        let pod: Pod = space.get("web-1").await?;
        ensure!(phase(&pod) == "Running" && !is_ready(&pod), "{:?}", pod.status);
        ensure!(versions(&space, "web").await?.get("web-1").is_some_and(|version| version == "2"));
        Ok(())
    })
    .await?;
    let fixed = json!({"spec": {"template": {"metadata": {"annotations": {BEHAVIOUR: null}}}}});
    space.patch::<StatefulSet>("web", fixed).await?;
    set_image(&space, "web", 3).await?;
    let fix = format!("kubectl delete pod web-1 -n {}", space.namespace);
    let message = eventually("the condition reports the stuck update", || async {
        let status = space.get::<StatefulSet>("web").await?.status.unwrap_or_default();
        let blocked = status.conditions.iter().flatten().find(|one| one.type_.as_deref() == Some("RolloutBlocked"));
        let blocked = blocked.context("no condition")?;
        ensure!(blocked.status.as_deref() == Some("True"), "{blocked:?}");
        ensure!(blocked.reason.as_deref() == Some("OldPodNotReady"), "{blocked:?}");
        blocked.message.clone().context("no message")
    })
    .await?;
    ensure!(message.contains(&fix), "{message}");
    eventually("an event has the same message", || async {
        let events = space.events("web").await?;
        ensure!(events.contains_key(&format!("Warning RolloutBlocked {message}")), "{events:?}");
        Ok(())
    })
    .await?;
    ensure!(versions(&space, "web").await?.into_values().eq(["1", "2"]), "a pod was replaced before web-1 was deleted");
    space.kubectl(&["delete", "pod", "web-1"]).await?;
    settled(&space, "web", 2, 3).await?;
    Ok(())
}

/// The allowed number of pods are replaced concurrently, never more.
pub async fn update_stays_within_its_limits(space: Space) -> Result<()> {
    for (management, unavailable) in [("OrderedReady", 1), ("OrderedReady", 2), ("Parallel", 3)] {
        let space = space.bed.space("bounds").await?;
        let _manager = Manager::start(&space, &Faults::default()).await?;
        let bound = json!({"spec": {
            "podManagementPolicy": management, "updateStrategy": {"rollingUpdate": {"maxUnavailable": unavailable}},
        }});
        space.create::<StatefulSet>(with(stateful_set("web", 5), bound)).await?;
        settled(&space, "web", 5, 1).await?;
        let ready = |view: &View| view.pods.values().filter(|pod| is_active(pod) && is_ready(pod)).count();
        let observer = Observer::start(&space, move |view| {
            ensure!(ready(view) >= 5 - unavailable, "{} pods are ready", ready(view));
            Ok(())
        })
        .await?;
        set_image(&space, "web", 2).await?;
        settled(&space, "web", 5, 2).await?;
        observer.verdict().await.with_context(|| format!("{management}, {unavailable} may be missing"))?;
        let made = observer.view().pods_ever.len();
        ensure!(made == 10, "{made} pods were created instead of 10");
    }
    Ok(())
}

pub async fn ordinals_begin_at_the_configured_start(space: Space) -> Result<()> {
    let _manager = Manager::start(&space, &Faults::default()).await?;
    let start = |at: i32| json!({"spec": {"ordinals": {"start": at}}});
    space.create::<StatefulSet>(with(stateful_set("web", 2), start(3))).await?;
    for (at, expected) in [(3, ["web-3", "web-4"]), (4, ["web-4", "web-5"])] {
        space.patch::<StatefulSet>("web", start(at)).await?;
        eventually(format!("the pods are {expected:?}"), || async {
            let pods = space.list::<Pod>("web").await?;
            ensure!(names(&pods) == expected && pods.iter().all(is_ready), "{:?}", names(&pods));
            let index = |pod: &Pod| pod.labels().get("apps.kubernetes.io/pod-index").cloned();
            ensure!(pods.iter().all(|pod| index(pod).is_some_and(|index| pod.name_any().ends_with(&index))));
            let status = space.get::<StatefulSet>("web").await?.status.unwrap_or_default();
            ensure!(status.replicas == 2 && status.available_replicas == Some(2), "{status:?}");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Creates a StatefulSet, updates it, scales it up and down, and undoes the update.
async fn scenario(space: Space) -> Result<()> {
    space.create::<StatefulSet>(stateful_set("web", 2)).await?;
    settled(&space, "web", 2, 1).await?;
    set_image(&space, "web", 2).await?;
    settled(&space, "web", 2, 2).await?;
    space.scale::<StatefulSet>("web", 3).await?;
    settled(&space, "web", 3, 2).await?;
    space.scale::<StatefulSet>("web", 1).await?;
    settled(&space, "web", 1, 2).await?;
    set_image(&space, "web", 1).await?;
    settled(&space, "web", 1, 1).await?;
    let revisions = history(&space, "web").await?;
    ensure!(revisions.iter().map(|(number, _)| *number).eq([2, 3]), "{revisions:?}");
    Ok(())
}

/// Writes: two pods, two for the update, one for the scaling and one for the undo, of which five are deleted; two
/// revisions, whose order changes once; a status for each of five states.
pub const SCENARIO: Scenario = Scenario {
    name: "statefulset",
    flags: &["--controllers=statefulset-controller"],
    kind: "statefulsets",
    run: |space| Box::pin(scenario(space)),
    pods: 6,
    writes: 6 + 5 + 3 + 5,
    fails: &[
        ("create controllerrevisions ", 2),
        ("update controllerrevisions ", 1),
        ("create pods ", 3),
        ("delete pods ", 2),
        ("update statefulsets/status ", 3),
    ],
    ..Scenario::EMPTY
};
