//! The garbage collector: dependents that are deleted with their owner, that wait, and that are kept, also across
//! restarts and crashes.

use anyhow::{Context, Result, ensure};
use cluster_tests::objects::{deployment, names, with};
use cluster_tests::{Call, Faults, Manager, QUIET, Space, Verb, during, eventually};
use control_plane::CustomKind;
use futures::future::try_join_all;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::robustness::invariants::until_constant;
use crate::robustness::scenario::Scenario;

const ON: &[&str] = &["--enable-garbage-collector=true"];

/// Flags for only this controller.
const ALONE: &[&str] = &["--enable-garbage-collector=true", "--controllers=garbage-collector-controller"];

fn reference(owner: &ConfigMap) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner.name_any(), "uid": owner.uid()})
}

async fn config_map(space: &Space, name: &str, owners: Vec<Value>) -> Result<ConfigMap> {
    space.create(json!({"metadata": {"name": name, "ownerReferences": owners}})).await
}

/// Waits until exactly these ConfigMaps exist (except for the root CA's).
async fn until_left(space: &Space, expected: &[&str]) -> Result<()> {
    eventually(format!("{expected:?} are left"), || async {
        let mut found = names(&space.list::<ConfigMap>("").await?);
        found.retain(|name| name != "kube-root-ca.crt");
        ensure!(found == expected, "there are {found:?}");
        Ok(())
    })
    .await
}

async fn rolled_out(space: &Space, name: &str) -> Result<()> {
    space.create::<Deployment>(deployment(name, 2)).await?;
    space.kubectl(&["rollout", "status", "deployment", name, "--timeout=180s"]).await?;
    Ok(())
}

pub async fn dependents_are_deleted_with_their_deployment(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), ON).await?;
    for (name, cascade) in [("back", "background"), ("fore", "foreground"), ("orphans", "orphan")] {
        rolled_out(&space, name).await?;
        space.kubectl(&["delete", "deployment", name, &format!("--cascade={cascade}"), "--timeout=180s"]).await?;
        let sets = || async { anyhow::Ok(space.list::<ReplicaSet>(name).await?) };
        if cascade == "orphan" {
            let sets = sets().await?;
            ensure!(sets.len() == 1 && sets[0].owner_references().is_empty(), "sets {sets:?}");
            during(QUIET, "set and pods stay", || async {
                ensure!(space.pods(name).await?.len() == 2 && space.list::<ReplicaSet>(name).await?.len() == 1);
                Ok(())
            })
            .await?;
            let again: Deployment = space.create(deployment(name, 2)).await?;
            eventually("a new deployment adopts the set", || async {
                let sets = space.list::<ReplicaSet>(name).await?;
                let owner = sets.first().and_then(|set| set.owner_references().first().map(|owner| owner.uid.clone()));
                ensure!(sets.len() == 1 && owner == again.uid(), "sets {}", sets.len());
                Ok(())
            })
            .await?;
            continue;
        }
        if cascade == "foreground" {
            ensure!(sets().await?.is_empty(), "the deployment was deleted before its sets");
        }
        eventually(format!("nothing of {name} is left"), || async {
            let (sets, pods) = (sets().await?, space.list::<Pod>(name).await?);
            ensure!(sets.is_empty() && pods.is_empty(), "{} sets, {} pods", sets.len(), pods.len());
            Ok(())
        })
        .await?;
    }
    Ok(())
}

pub async fn recreated_owner_does_not_keep_old_dependents(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    let first = config_map(&space, "owner", vec![]).await?;
    config_map(&space, "old", vec![reference(&first)]).await?;
    space.delete::<ConfigMap>("owner").await?;
    let second = config_map(&space, "owner", vec![]).await?;
    config_map(&space, "new", vec![reference(&second)]).await?;
    until_left(&space, &["new", "owner"]).await?;
    // A dependent of the first owner, created after that owner was deleted.
    config_map(&space, "late", vec![reference(&first)]).await?;
    until_left(&space, &["new", "owner"]).await
}

pub async fn existing_owners_are_kept_and_dangling_references_removed(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    let (one, two) = (config_map(&space, "one", vec![]).await?, config_map(&space, "two", vec![]).await?);
    config_map(&space, "both", vec![reference(&one), reference(&two)]).await?;
    let wrong_name = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": one.uid()});
    config_map(&space, "wrong", vec![wrong_name]).await?;
    space.delete::<ConfigMap>("two").await?;
    until_left(&space, &["both", "one"]).await?;
    eventually("only the reference to the existing owner is left", || async {
        let both: ConfigMap = space.get("both").await?;
        let owners: Vec<_> = both.owner_references().iter().map(|owner| owner.name.clone()).collect();
        ensure!(owners == ["one"], "owners {owners:?}");
        Ok(())
    })
    .await?;
    space.delete::<ConfigMap>("one").await?;
    until_left(&space, &[]).await
}

pub async fn custom_resources_can_be_owners_and_dependents(space: Space) -> Result<()> {
    // The collector is started before the kind exists.
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    let kind = CustomKind::new(space.api_group(), "Widget");
    let widgets = &space.define(kind.clone()).await?;
    let create = async |name: &str, owners: Vec<Value>| {
        widgets.create(json!({"metadata": {"name": name, "ownerReferences": owners}})).await
    };
    let widget = |owner: &DynamicObject| with(widgets.reference(owner), json!({"blockOwnerDeletion": true}));
    let (root, other) = (create("root", vec![]).await?, create("other", vec![]).await?);
    config_map(&space, "core", vec![widget(&root)]).await?;
    let child = create("child", vec![widget(&root), widget(&other)]).await?;
    create("grandchild", vec![widget(&child)]).await?;

    let resource = kind.name();
    space.kubectl(&["delete", &resource, "root", "--cascade=foreground", "--timeout=180s"]).await?;
    until_left(&space, &[]).await?;
    let held = widgets.api.get("child").await?;
    ensure!(held.owner_references().len() == 1, "expected the other owner only: {:?}", held.owner_references());
    space.kubectl(&["delete", &resource, "other", "--cascade=background"]).await?;
    eventually("no widget is left", || async {
        let left = widgets.api.list(&Default::default()).await?.items;
        ensure!(left.is_empty(), "widgets {:?}", left.iter().map(DynamicObject::name_any).collect::<Vec<_>>());
        Ok(())
    })
    .await?;

    let owner = create("owner", vec![]).await?;
    let kept = create("kept", vec![widget(&owner)]).await?;
    space.kubectl(&["delete", &resource, "owner", "--cascade=orphan", "--timeout=180s"]).await?;
    let kept = widgets.api.get(&kept.name_any()).await?;
    ensure!(kept.owner_references().is_empty(), "{:?}", kept.owner_references());
    space.undefine(&kind).await
}

pub async fn dependents_of_owners_deleted_without_a_manager_are_deleted(space: Space) -> Result<()> {
    let owner = config_map(&space, "owner", vec![]).await?;
    let child = config_map(&space, "child", vec![reference(&owner)]).await?;
    config_map(&space, "grandchild", vec![reference(&child)]).await?;
    config_map(&space, "free", vec![]).await?;
    space.delete::<ConfigMap>("owner").await?;
    // No manager ran while the owner was deleted.
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    until_left(&space, &["free"]).await
}

pub async fn owner_references_to_another_namespace_are_reported(space: Space) -> Result<()> {
    let _manager = Manager::start_with(&space, &Faults::default(), ALONE).await?;
    let client: Client = space.bed.client.clone();
    let account: Api<k8s_openapi::api::core::v1::ServiceAccount> = Api::namespaced(client.clone(), &space.namespace);
    let owner: k8s_openapi::api::core::v1::ServiceAccount = account
        .create(&PostParams::default(), &serde_json::from_value(json!({"metadata": {"name": "owner"}}))?)
        .await?;
    // A namespaced object cannot own a cluster-wide one.
    let role = json!({"metadata": {"name": format!("role-{}", space.namespace), "ownerReferences": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "name": "owner", "uid": owner.uid()},
    ]}});
    let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(client.clone());
    let role = roles.create(&PostParams::default(), &serde_json::from_value(role)?).await?;
    let events: Api<k8s_openapi::api::core::v1::Event> = Api::namespaced(client, "default");
    eventually("an event reports the reference", || async {
        let all = events.list(&Default::default()).await?.items;
        let of_role = all.iter().filter(|event| event.involved_object.name == Some(role.name_any()));
        let messages: Vec<_> = of_role
            .map(|event| (event.reason.clone().unwrap_or_default(), event.message.clone().unwrap_or_default()))
            .collect();
        let uid = owner.uid().context("no uid")?;
        let expected = format!(
            "ownerRef [v1/ServiceAccount, namespace: , name: owner, uid: {uid}] does not exist in namespace \"\""
        );
        // The role has no namespace: the managers of other tests may report it too.
        let expected = ("OwnerRefInvalidNamespace".to_owned(), expected);
        ensure!(!messages.is_empty() && messages.iter().all(|message| *message == expected), "events {messages:?}");
        Ok(())
    })
    .await?;
    ensure!(roles.get_opt(&role.name_any()).await?.is_some(), "the role was deleted");
    roles.delete(&role.name_any(), &Default::default()).await?;
    Ok(())
}

/// Creates a tree of three levels, which is deleted with its root.
async fn tree(space: &Space) -> Result<()> {
    let root = config_map(space, "root", vec![]).await?;
    let children = try_join_all((0..5).map(|n| {
        let owners = vec![reference(&root)];
        async move { config_map(space, &format!("child-{n}"), owners).await }
    }));
    for child in children.await? {
        let object = json!({"metadata": {"name": child.name_any(), "ownerReferences": [reference(&child)]}});
        space.create::<Secret>(object).await?;
    }
    Ok(())
}

async fn until_tree_deleted(space: &Space) -> Result<()> {
    until_left(space, &[]).await?;
    eventually("no secret is left", || async {
        let secrets = names(&space.list::<Secret>("").await?);
        ensure!(secrets.is_empty(), "secrets {secrets:?}");
        Ok(())
    })
    .await
}

/// Deletes an owner before its dependents, another one after them, and a third one without them.
async fn delete_in_three_ways(space: Space) -> Result<()> {
    tree(&space).await?;
    space.delete::<ConfigMap>("root").await?;
    until_tree_deleted(&space).await?;
    for cascade in ["foreground", "orphan"] {
        let owner = config_map(&space, "owner", vec![]).await?;
        let blocks = cluster_tests::objects::with(reference(&owner), json!({"blockOwnerDeletion": true}));
        config_map(&space, "owned", vec![blocks]).await?;
        let cascade_flag = format!("--cascade={cascade}");
        space.kubectl(&["delete", "configmap", "owner", &cascade_flag, "--timeout=180s"]).await?;
        until_left(&space, if cascade == "orphan" { &["owned"] } else { &[] }).await?;
    }
    let orphan: ConfigMap = space.get("owned").await?;
    ensure!(orphan.owner_references().is_empty(), "{:?}", orphan.owner_references());
    Ok(())
}

/// Writes: ten deletions; the deletion of a dependent, then the removal of its owner's finalizer; the patch of an
/// orphan, then the removal of its owner's finalizer.
pub const SCENARIO: Scenario = Scenario {
    name: "garbagecollector",
    flags: ALONE,
    kind: "configmaps",
    run: |space| Box::pin(delete_in_three_ways(space)),
    writes: 14,
    fails: &[
        ("delete secrets ", 1),
        ("delete configmaps owned ", 1),
        ("patch configmaps ", 1),
        ("patch configmaps ", 3),
    ],
    ..Scenario::EMPTY
};

pub async fn no_kind_is_watched_twice(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, ON).await?;
    faults.until_watching(&["pods", "replicasets", "limitranges", "leases"]).await?;
    rolled_out(&space, "web").await?;
    let twice: Vec<_> = faults.max_watches().into_iter().filter(|(_, open)| *open != 1).collect();
    ensure!(twice.is_empty(), "concurrent watches: {twice:?}");
    ensure!(!faults.max_watches().contains_key("events"));
    Ok(())
}

pub async fn garbage_needs_one_request_per_deletion(space: Space) -> Result<()> {
    let faults = Faults::default();
    let _manager = Manager::start_with(&space, &faults, ALONE).await?;
    faults.until_watching(&["configmaps", "secrets"]).await?;
    tree(&space).await?;
    let of_ours = |call: &Call| call.namespace == space.namespace && !call.name.is_empty();
    let others =
        || faults.count(|call| of_ours(call) && call.verb != Verb::Delete && call.resource != "serviceaccounts/token");
    // An owner is read if its event arrives later than its dependent's, because their kinds have separate watches.
    until_constant("reading", others).await?;
    let before = others();
    space.delete::<ConfigMap>("root").await?;
    until_tree_deleted(&space).await?;
    let deleted = faults.count(|call| of_ours(call) && call.verb == Verb::Delete);
    let other = others() - before;
    ensure!(deleted == 10, "{deleted} deletions of 10 objects");
    ensure!(other <= 2, "{other} requests other than deletions");
    Ok(())
}
