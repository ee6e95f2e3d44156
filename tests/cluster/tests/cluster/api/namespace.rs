//! The namespace controller: a namespace is deleted with all its objects, in order, and its conditions name the objects
//! that delay the deletion.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{pod, with};
use cluster_tests::{Bed, Call, Effect, Faults, Manager, Rule, Space, Verb, eventually};
use control_plane::Options;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use crate::robustness::scenario::Scenario;

/// Flags for only this controller.
const ALONE: &[&str] = &["--controllers=namespace-controller"];

/// Flags for this controller and the garbage collector, which watches every kind.
const WATCHING: &[&str] =
    &["--enable-garbage-collector=true", "--controllers=namespace-controller,garbage-collector-controller"];

fn namespaces(space: &Space) -> Api<Namespace> {
    Api::all(space.bed.client.clone())
}

async fn delete(space: &Space) -> Result<()> {
    namespaces(space).delete(&space.namespace, &DeleteParams::default()).await?;
    Ok(())
}

async fn until_namespace_deleted(space: &Space) -> Result<()> {
    eventually("the namespace is deleted", || async {
        let found = namespaces(space).get_opt(&space.namespace).await?;
        ensure!(found.is_none(), "{:?}", found.and_then(|namespace| namespace.status));
        Ok(())
    })
    .await
}

/// Returns the conditions as `<status> <reason>: <message>` by type, and the types in their order.
async fn conditions(space: &Space) -> Result<(BTreeMap<String, String>, Vec<String>)> {
    let namespace = namespaces(space).get(&space.namespace).await?;
    let status = namespace.status.context("no status")?;
    ensure!(status.phase.as_deref() == Some("Terminating"), "phase {:?}", status.phase);
    let conditions = status.conditions.unwrap_or_default();
    let order = conditions.iter().map(|condition| condition.type_.clone()).collect();
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let texts = conditions.iter().map(|condition| {
        let reported = format!("{} {}: {}", condition.status, text(&condition.reason), text(&condition.message));
        (condition.type_.clone(), reported)
    });
    Ok((texts.collect(), order))
}

/// Returns objects of twenty kinds, for kubectl.
fn twenty_kinds(space: &Space) -> Vec<Value> {
    let selector = json!({"matchLabels": {"app": "none"}});
    let template =
        json!({"metadata": {"labels": {"app": "none"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let job = json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}});
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let objects = [
        ("v1", "ConfigMap", json!({})),
        ("v1", "Secret", json!({})),
        ("v1", "ServiceAccount", json!({})),
        ("v1", "Service", json!({"spec": {"clusterIP": "None", "selector": {"app": "none"}}})),
        ("v1", "Endpoints", json!({"subsets": []})),
        (
            "v1",
            "ReplicationController",
            json!({"spec": {"replicas": 0, "selector": {"app": "none"}, "template": template}}),
        ),
        ("v1", "LimitRange", json!({"spec": {"limits": []}})),
        ("v1", "ResourceQuota", json!({"spec": {"hard": {"count/widgets.example.com": "1"}}})),
        ("v1", "PodTemplate", json!({"template": template})),
        ("v1", "PersistentVolumeClaim", json!({"spec": claim})),
        ("apps/v1", "Deployment", json!({"spec": {"replicas": 0, "selector": selector, "template": template}})),
        ("apps/v1", "ReplicaSet", json!({"spec": {"replicas": 0, "selector": selector, "template": template}})),
        (
            "apps/v1",
            "StatefulSet",
            json!({"spec": {"replicas": 0, "serviceName": "x", "selector": selector, "template": template}}),
        ),
        ("apps/v1", "DaemonSet", json!({"spec": {"selector": selector, "template": template}})),
        ("apps/v1", "ControllerRevision", json!({"revision": 1, "data": {}})),
        ("batch/v1", "CronJob", json!({"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job}}})),
        ("networking.k8s.io/v1", "NetworkPolicy", json!({"spec": {"podSelector": {}}})),
        ("policy/v1", "PodDisruptionBudget", json!({"spec": {"minAvailable": 0, "selector": selector}})),
        ("rbac.authorization.k8s.io/v1", "Role", json!({"rules": []})),
        (
            "rbac.authorization.k8s.io/v1",
            "RoleBinding",
            json!({
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "x"}, "subjects": [],
            }),
        ),
    ];
    let whole = |(api_version, kind, rest): (&str, &str, Value)| {
        with(
            json!({"apiVersion": api_version, "kind": kind,
            "metadata": {"name": "x", "namespace": space.namespace}}),
            rest,
        )
    };
    objects.into_iter().map(whole).collect()
}

async fn fill(space: &Space) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": twenty_kinds(space)}).to_string();
    let bed = space.bed.clone();
    tokio::task::spawn_blocking(move || bed.cluster.kubectl_with_input(&["create", "-f", "-"], &list)).await??;
    // The controller that removes the claims' finalizers does not run here.
    let claims: Api<k8s_openapi::api::core::v1::PersistentVolumeClaim> = space.api();
    let patch = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    claims.patch("x", &PatchParams::default(), &patch).await?;
    Ok(())
}

pub async fn twenty_kinds_are_deleted_with_their_namespace(space: Space) -> Result<()> {
    fill(&space).await?;
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, ALONE).await?;
    delete(&space).await?;
    until_namespace_deleted(&space).await?;
    let collections = faults.count(|call| call.verb == Verb::Delete && call.name.is_empty());
    ensure!(collections >= 20, "{collections} collections deleted");
    let refused: Vec<_> =
        faults.requests().into_iter().filter(|request| matches!(request.status, Some(401 | 403))).collect();
    ensure!(refused.is_empty(), "{refused:?}");
    Ok(())
}

/// Deletes a namespace with objects of many kinds while all of them are watched. Returns the controller's requests.
async fn delete_watched_namespace(space: &Space) -> Result<Vec<Call>> {
    fill(space).await?;
    let faults = Faults::default();
    let _manager = Manager::start_with(space, &faults, WATCHING).await?;
    delete(space).await?;
    until_namespace_deleted(space).await?;
    let all = faults.requests().into_iter().map(|request| request.call);
    Ok(all.filter(|call| call.account == "namespace-controller").collect())
}

pub async fn deletions_that_watches_deliver_need_no_list(space: Space) -> Result<()> {
    let is_list = |call: &&Call| call.verb == Verb::List;
    let mut ours = Vec::new();
    // A collection whose watch is a second late is listed. At least one of several namespaces must need no list.
    for _ in 0..3 {
        ours = delete_watched_namespace(&space.bed.space("watched").await?).await?;
        if !ours.iter().any(|call| is_list(&call)) {
            break;
        }
    }
    let ours = || ours.iter();
    let lists: Vec<_> = ours().filter(is_list).collect();
    ensure!(lists.is_empty(), "{lists:?}");
    let mut deletions = BTreeMap::<(&str, &str), usize>::new();
    for call in ours().filter(|call| call.verb == Verb::Delete) {
        *deletions.entry((&call.group, &call.resource)).or_default() += 1;
    }
    ensure!(deletions.len() >= 25, "{deletions:?}");
    ensure!(!deletions.contains_key(&("events.k8s.io", "events")), "the same events were deleted in two API groups");
    // A broken group of another test may delay the deletion.
    let updates: Vec<_> = ours().filter(|call| call.verb == Verb::Update).map(|call| &*call.resource).collect();
    if !updates.contains(&"namespaces/status") {
        ensure!(deletions.values().all(|times| *times == 1), "collections were deleted more than once: {deletions:?}");
        ensure!(updates == ["namespaces/finalize"], "{updates:?}");
    }
    Ok(())
}

/// Waits until ConfigMaps are watched.
async fn until_config_maps_watched(faults: &Faults) -> Result<()> {
    eventually("ConfigMaps are watched", || async {
        ensure!(faults.count(|call| call.verb == Verb::Watch && call.resource == "configmaps") > 0);
        Ok(())
    })
    .await
}

pub async fn stalled_watch_does_not_prove_a_deletion(space: Space) -> Result<()> {
    let held = json!({"metadata": {"name": "held"}});
    space.create::<ConfigMap>(held).await?;
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, WATCHING).await?;
    until_config_maps_watched(&faults).await?;
    faults.freeze("configmaps");
    delete(&space).await?;
    until_namespace_deleted(&space).await?;
    let lists = faults.count(|call| {
        call.verb == Verb::List && call.resource == "configmaps" && call.account == "namespace-controller"
    });
    ensure!(lists > 0, "the ConfigMaps were not listed");
    Ok(())
}

/// Deletes a namespace with enough objects to be emptied during its grace period, and checks that the period lasts
/// nevertheless. Returns the number of requests that deleted its ConfigMaps as a collection.
async fn delete_large_namespace(space: &Space, faults: &Faults) -> Result<usize> {
    let many = (0..1100).map(|number| json!({"metadata": {"name": format!("c{number}")}}));
    stream::iter(many).map(|map| space.create::<ConfigMap>(map)).buffer_unordered(32).try_collect::<Vec<_>>().await?;
    let missing = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "missing", "uid": "7f0c"});
    space.create::<ConfigMap>(json!({"metadata": {"name": "witness", "ownerReferences": [missing]}})).await?;
    let _manager = Manager::start_with(space, faults, WATCHING).await?;
    eventually("all ConfigMaps are in the cache: the one whose owner does not exist is deleted", || async {
        ensure!(space.api::<ConfigMap>().get_opt("witness").await?.is_none());
        Ok(())
    })
    .await?;
    let of_maps = |call: &Call| call.verb == Verb::Delete && call.resource == "configmaps" && call.name.is_empty();
    let begun = Instant::now();
    delete(space).await?;
    eventually("the namespace is being emptied", || async {
        ensure!(faults.count(of_maps) > 0);
        Ok(())
    })
    .await?;
    until_namespace_deleted(space).await?;
    ensure!(begun.elapsed() > Duration::from_millis(4900), "deleted after {:?}", begun.elapsed());
    let ours: Vec<Call> = faults.requests().into_iter().map(|request| request.call).collect();
    let emptied = ours.iter().position(of_maps);
    // At the end of the grace period, a list of namespaces returns the server's resourceVersion.
    let checked = ours.iter().position(|call| {
        (call.verb, &*call.resource, &*call.account) == (Verb::List, "namespaces", "namespace-controller")
    });
    ensure!(emptied < checked, "it was emptied by request {emptied:?}, and the grace period ended at {checked:?}");
    Ok(faults.count(of_maps))
}

pub async fn large_namespace_is_emptied_during_the_grace_period(space: Space) -> Result<()> {
    let faults = Faults::default();
    delete_large_namespace(&space, &faults).await?;
    // One request at the beginning and one at the end of the grace period.
    let requests = |verb: Verb| {
        faults
            .count(|call| (call.verb, &*call.resource, &*call.account) == (verb, "namespaces", "namespace-controller"))
    };
    ensure!(
        [requests(Verb::Get), requests(Verb::List)] == [1, 1],
        "{} and {}",
        requests(Verb::Get),
        requests(Verb::List)
    );
    Ok(())
}

pub async fn kinds_emptied_during_the_grace_period_are_checked_again(space: Space) -> Result<()> {
    let faults = Faults::default();
    // At the end of the grace period, the list that returns the server's resourceVersion fails.
    let versions = |call: &Call| {
        call.verb == Verb::List && call.resource == "namespaces" && call.account == "namespace-controller"
    };
    faults.add(Rule::new(versions, Effect::Refuse(500, None)).times(100));
    let times = delete_large_namespace(&space, &faults).await?;
    ensure!(times >= 2, "the ConfigMaps were deleted {times} times");
    Ok(())
}

pub async fn deletion_of_the_last_pod_requeues_the_namespace(space: Space) -> Result<()> {
    // Without the pod's deletion event, the namespace would be reconciled again only after five minutes, because of the
    // pod's grace period.
    let slow = with(
        pod("slow", "web"),
        json!({"metadata": {"finalizers": ["example.com/hold"]},
            "spec": {"nodeName": "missing", "terminationGracePeriodSeconds": 600}}),
    );
    space.create::<Pod>(slow).await?;
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, WATCHING).await?;
    delete(&space).await?;
    // One reconcile for the deletion, one for the conditions that it writes itself.
    eventually("the namespace has been reconciled twice and waits", || async {
        let reconciles = faults.count(|call| call.verb == Verb::Delete && call.resource == "pods");
        ensure!(reconciles >= 2, "{reconciles}");
        Ok(())
    })
    .await?;
    space.patch::<Pod>("slow", json!({"metadata": {"finalizers": null}})).await?;
    space.api::<Pod>().delete("slow", &DeleteParams::default().grace_period(0)).await?;
    until_namespace_deleted(&space).await
}

pub async fn reasons_for_a_terminating_namespace_are_reported(space: Space) -> Result<()> {
    let held = json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}});
    let held: ConfigMap = space.create(held).await?;
    space.create::<ConfigMap>(json!({"metadata": {"name": "free"}})).await?;
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    delete(&space).await?;
    eventually("the conditions report the finalizer", || async {
        let (reported, order) = conditions(&space).await?;
        let of = |kind: &str| reported.get(kind).cloned().unwrap_or_default();
        ensure!(
            of("NamespaceContentRemaining")
                == "True SomeResourcesRemain: Some resources are remaining: configmaps. has 1 resource instances",
            "{reported:?}"
        );
        ensure!(
            of("NamespaceFinalizersRemaining")
                == "True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: \
                    example.com/hold in 1 resource instances",
            "{reported:?}"
        );
        ensure!(of("NamespaceDeletionContentFailure").starts_with("False ContentDeleted"), "{reported:?}");
        ensure!(
            order
                == [
                    "NamespaceDeletionDiscoveryFailure",
                    "NamespaceDeletionGroupVersionParsingFailure",
                    "NamespaceDeletionContentFailure",
                    "NamespaceContentRemaining",
                    "NamespaceFinalizersRemaining",
                ],
            "order {order:?}"
        );
        Ok(())
    })
    .await?;
    let name = held.metadata.name.context("no name")?;
    space.patch::<ConfigMap>(&name, json!({"metadata": {"finalizers": null}})).await?;
    until_namespace_deleted(&space).await
}

/// A custom kind may be removed while the namespace is deleted: its collection is not found.
pub async fn missing_kind_does_not_delay_the_deletion(space: Space) -> Result<()> {
    let is_collection = |call: &Call| {
        let verb = matches!(call.verb, Verb::Delete | Verb::List) && call.name.is_empty();
        verb && call.resource == "configmaps"
    };
    let faults = Faults::script([Rule::new(is_collection, Effect::Refuse(404, None)).times(2)]);
    space.create::<ConfigMap>(json!({"metadata": {"name": "map"}})).await?;
    let _manager = Manager::start_with(&space, &faults, ALONE).await?;
    delete(&space).await?;
    until_namespace_deleted(&space).await?;
    ensure!(faults.unmet() == 0, "a refusal did not occur: {:?}", faults.requests());
    Ok(())
}

pub async fn pods_are_deleted_before_other_kinds(space: Space) -> Result<()> {
    let held = with(pod("held", "web"), json!({"metadata": {"finalizers": ["example.com/hold"]}}));
    space.create::<Pod>(held).await?;
    space.create::<ConfigMap>(json!({"metadata": {"name": "needed"}})).await?;
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    delete(&space).await?;
    eventually("the pod is being deleted and the conditions are written", || async {
        let held: Pod = space.get("held").await?;
        ensure!(held.metadata.deletion_timestamp.is_some());
        let (reported, _) = conditions(&space).await?;
        ensure!(
            reported.get("NamespaceContentRemaining").is_some_and(|reported| reported.starts_with("False")),
            "{reported:?}"
        );
        Ok(())
    })
    .await?;
    ensure!(space.get::<ConfigMap>("needed").await.is_ok(), "a ConfigMap was deleted before the pod that may need it");
    space.patch::<Pod>("held", json!({"metadata": {"finalizers": null}})).await?;
    until_namespace_deleted(&space).await
}

pub async fn broken_api_group_is_reported_and_delays_no_other_group(_: Space) -> Result<()> {
    // This needs a separate control plane: failing discovery delays the deletion of all tests' namespaces.
    let options = Options { kwok: false, scheduler: false, ..Options::default() };
    let space = Arc::new(Bed::without_accounts(options).await?).space("broken").await?;
    let group = format!("broken-{}.example.com", space.namespace);
    let service = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": format!("v1.{group}")},
        "spec": {"group": group, "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "missing"}},
    });
    space.create::<ConfigMap>(json!({"metadata": {"name": "free"}})).await?;
    let bed = space.bed.clone();
    let text = service.to_string();
    tokio::task::spawn_blocking(move || bed.cluster.kubectl_with_input(&["create", "-f", "-"], &text)).await??;
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    delete(&space).await?;
    let result = eventually("the condition names the group", || async {
        let (reported, _) = conditions(&space).await?;
        let discovery = reported.get("NamespaceDeletionDiscoveryFailure").cloned().unwrap_or_default();
        ensure!(discovery.starts_with("True DiscoveryFailed: Discovery failed for some groups, "), "{reported:?}");
        ensure!(discovery.contains(&format!("{group}/v1: stale GroupVersion discovery: {group}/v1")), "{reported:?}");
        let left = space.list::<ConfigMap>("").await?;
        ensure!(left.is_empty(), "objects of other groups are left: {left:?}");
        Ok(())
    })
    .await;
    let bed = space.bed.clone();
    let name = format!("v1.{group}");
    tokio::task::spawn_blocking(move || bed.cluster.kubectl(&["delete", "apiservice", &name])).await??;
    result?;
    until_namespace_deleted(&space).await
}

/// Deletes a namespace with objects of many kinds.
async fn delete_full_namespace(space: Space) -> Result<()> {
    fill(&space).await?;
    delete(&space).await?;
    until_namespace_deleted(&space).await
}

pub const SCENARIO: Scenario = Scenario {
    name: "namespace",
    flags: ALONE,
    kind: "namespaces",
    run: |space| Box::pin(delete_full_namespace(space)),
    writes: 28,
    fails: &[("delete configmaps ", 1), ("update namespaces/finalize ", 1)],
    ..Scenario::EMPTY
};
