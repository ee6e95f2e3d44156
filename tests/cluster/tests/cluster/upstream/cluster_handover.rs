//! Takeovers of a cluster between upstream's manager and ours: nodes, certificates, accounts, quotas, namespaces and
//! garbage. Each manager completes tasks that the other one began, and neither writes to objects that need no change.

use anyhow::{Context, Result, ensure};
use cluster_tests::handover::{Task, TaskInSpace, begin, end, versions_everywhere};
use cluster_tests::objects::names;
use cluster_tests::{Call, Faults, Manager, Space, eventually};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota, Secret, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use crate::auth::serviceaccount::{token_of, token_secret};
use crate::network::node_ipam::{create_node, ranges};
use crate::nodes::lifecycle::{nodes, patch_node};
use crate::robustness::cluster_crashes::{bed, distinct_ranges, kubelet_gets_certificate, signing};
use crate::upstream::manager::{UPSTREAM, start_upstream_with};

const CONTROLLERS: &str = "--controllers=namespace-controller,garbage-collector-controller,resourcequota-controller,\
                           serviceaccount-controller,serviceaccount-token-controller,\
                           root-ca-certificate-publisher-controller,\
                           certificatesigningrequest-approving-controller,\
                           certificatesigningrequest-signing-controller,certificatesigningrequest-cleaner-controller,\
                           ttl-controller,node-ipam-controller";

/// A finalizer that keeps an object until the test removes it.
const HOLD: &str = "example.com/hold";

static TASKS: [Task; 6] = [
    Task {
        name: "namespace",
        begin: |space| Box::pin(async move { delete_namespace_with_held_object(&space).await }),
        end: |space| Box::pin(async move { remove_hold(&space).await }),
        pods: 0,
    },
    Task {
        name: "garbage",
        begin: |space| Box::pin(async move { delete_owners(&space).await }),
        end: |space| Box::pin(async move { release_dependents(&space).await }),
        pods: 0,
    },
    Task {
        name: "quota",
        begin: |space| Box::pin(async move { create_quota(&space).await }),
        end: |space| Box::pin(async move { replace_secret(&space).await }),
        pods: 0,
    },
    Task {
        name: "accounts",
        begin: |space| Box::pin(async move { create_account_with_token(&space).await }),
        end: |space| Box::pin(async move { delete_accounts(&space).await }),
        pods: 0,
    },
    Task {
        name: "certificates",
        begin: |space| {
            Box::pin(async move { kubelet_gets_certificate(&space, &format!("{}-first", space.namespace)).await })
        },
        end: |space| {
            Box::pin(async move { kubelet_gets_certificate(&space, &format!("{}-second", space.namespace)).await })
        },
        pods: 0,
    },
    Task {
        name: "nodes",
        begin: |space| Box::pin(async move { add_node(&space, "first").await }),
        end: |space| Box::pin(async move { add_second_node(&space).await }),
        pods: 0,
    },
];

/// Returns the namespace that the task deletes.
fn inner(space: &Space) -> Space {
    Space { bed: space.bed.clone(), namespace: format!("{}-inner", space.namespace) }
}

fn namespaces(space: &Space) -> Api<Namespace> {
    Api::all(space.bed.client.clone())
}

/// Deletes a namespace; waits until only the held object remains in it, and its conditions report that.
async fn delete_namespace_with_held_object(space: &Space) -> Result<()> {
    let inner = inner(space);
    let namespace = serde_json::from_value(json!({"metadata": {"name": inner.namespace}}))?;
    namespaces(space).create(&PostParams::default(), &namespace).await?;
    inner.create::<ConfigMap>(json!({"metadata": {"name": "held", "finalizers": [HOLD]}})).await?;
    inner.create::<ConfigMap>(json!({"metadata": {"name": "free"}})).await?;
    namespaces(space).delete(&inner.namespace, &DeleteParams::default()).await?;
    eventually("the namespace reports the remaining object", || async {
        let status = namespaces(space).get(&inner.namespace).await?.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let held = conditions.iter().find(|condition| condition.type_ == "NamespaceFinalizersRemaining");
        ensure!(held.is_some_and(|held| held.status == "True"), "{conditions:?}");
        ensure!(names(&inner.list::<ConfigMap>("").await?).contains(&"held".to_owned()));
        Ok(())
    })
    .await
}

async fn remove_hold(space: &Space) -> Result<()> {
    let inner = inner(space);
    inner.patch::<ConfigMap>("held", json!({"metadata": {"finalizers": null}})).await?;
    eventually("the namespace is deleted", || async {
        ensure!(namespaces(space).get_opt(&inner.namespace).await?.is_none());
        Ok(())
    })
    .await
}

/// Deletes two owners. Waits until one of them waits for its dependent, which has another client's finalizer, and until
/// the dependent of the other owner is an orphan.
async fn delete_owners(space: &Space) -> Result<()> {
    for (owner, cascade) in [("waits", "foreground"), ("leaves", "orphan")] {
        let made: ConfigMap = space.create(json!({"metadata": {"name": owner}})).await?;
        let reference = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": made.uid(), "blockOwnerDeletion": true,
        });
        let dependent = json!({"metadata": {
            "name": format!("{owner}-dependent"), "finalizers": [HOLD], "ownerReferences": [reference],
        }});
        space.create::<ConfigMap>(dependent).await?;
        space.kubectl(&["delete", "configmap", owner, &format!("--cascade={cascade}"), "--wait=false"]).await?;
    }
    eventually("one dependent is being deleted and one is an orphan", || async {
        let waiting: ConfigMap = space.get("waits-dependent").await?;
        ensure!(waiting.metadata.deletion_timestamp.is_some());
        let orphan: ConfigMap = space.get("leaves-dependent").await?;
        ensure!(orphan.owner_references().is_empty(), "{:?}", orphan.owner_references());
        ensure!(space.api::<ConfigMap>().get_opt("leaves").await?.is_none());
        Ok(())
    })
    .await
}

async fn release_dependents(space: &Space) -> Result<()> {
    ensure!(space.get::<ConfigMap>("waits").await.is_ok(), "the owner was deleted before its dependent");
    space.patch::<ConfigMap>("waits-dependent", json!({"metadata": {"finalizers": null}})).await?;
    eventually("the owner is deleted", || async {
        let left = names(&space.list::<ConfigMap>("").await?);
        ensure!(left == ["kube-root-ca.crt", "leaves-dependent"], "{left:?}");
        Ok(())
    })
    .await
}

async fn until_counted(space: &Space, secrets: usize) -> Result<()> {
    eventually(format!("{secrets} secrets are counted"), || async {
        let status = space.get::<ResourceQuota>("quota").await?.status.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let counted = used.get("count/secrets").map(|count| count.0.as_str());
        ensure!(counted == Some(&*secrets.to_string()), "{used:?}");
        Ok(())
    })
    .await
}

async fn create_secret(space: &Space, name: &str) -> Result<()> {
    space.create::<Secret>(json!({"metadata": {"name": name}})).await?;
    Ok(())
}

async fn create_quota(space: &Space) -> Result<()> {
    space
        .create::<ResourceQuota>(json!({
            "metadata": {"name": "quota"}, "spec": {"hard": {"count/secrets": "9"}},
        }))
        .await?;
    until_counted(space, 0).await?;
    create_secret(space, "one").await?;
    until_counted(space, 1).await
}

async fn replace_secret(space: &Space) -> Result<()> {
    create_secret(space, "two").await?;
    until_counted(space, 2).await?;
    space.delete::<Secret>("one").await?;
    until_counted(space, 1).await
}

/// Creates a service account with a token Secret; waits for the token, the namespace's default account and the root
/// certificates.
async fn create_account_with_token(space: &Space) -> Result<()> {
    space.create::<ServiceAccount>(json!({"metadata": {"name": "robot"}})).await?;
    space.create::<Secret>(token_secret("first", "robot", json!({}))).await?;
    token_of(space, "first").await?;
    eventually("the default account exists", || space.get::<ServiceAccount>("default")).await?;
    eventually("the root certificates are published", || space.get::<ConfigMap>("kube-root-ca.crt")).await?;
    Ok(())
}

async fn delete_accounts(space: &Space) -> Result<()> {
    let (token, _) = token_of(space, "first").await?;
    space.create::<Secret>(token_secret("second", "robot", json!({}))).await?;
    token_of(space, "second").await?;
    ensure!(token_of(space, "first").await?.0 == token, "an existing token was replaced");
    space.delete::<ServiceAccount>("robot").await?;
    space.delete::<ServiceAccount>("default").await?;
    eventually("tokens are deleted with their account, and the default account is recreated", || async {
        let left = names(&space.list::<Secret>("").await?);
        ensure!(left.is_empty(), "{left:?}");
        space.get::<ServiceAccount>("default").await.map(drop)
    })
    .await
}

/// Creates a node; waits until it has a pod address range, and the annotation of the TTL controller.
async fn add_node(space: &Space, name: &str) -> Result<()> {
    let name = format!("{}-{name}", space.namespace);
    create_node(space, &name, &[]).await?;
    eventually(format!("{name} has a range and an annotation"), || async {
        ensure!(ranges(space, &name).await?.len() == 1);
        let node = nodes(space).get(&name).await?;
        let annotations = node.metadata.annotations.unwrap_or_default();
        ensure!(
            annotations.get(crate::robustness::cluster_crashes::TTL).is_some_and(|value| value == "0"),
            "{annotations:?}"
        );
        Ok(())
    })
    .await?;
    distinct_ranges(space).await.map(drop)
}

async fn add_second_node(space: &Space) -> Result<()> {
    let first = format!("{}-first", space.namespace);
    let before = ranges(space, &first).await?;
    add_node(space, "second").await?;
    let annotation = json!({"metadata": {"annotations": {crate::robustness::cluster_crashes::TTL: null}}});
    patch_node(space, &first, annotation).await?;
    eventually("the annotation is restored", || async {
        let annotations = nodes(space).get(&first).await?.metadata.annotations.unwrap_or_default();
        ensure!(annotations.contains_key(crate::robustness::cluster_crashes::TTL));
        Ok(())
    })
    .await?;
    ensure!(ranges(space, &first).await? == before, "the range of a node changed");
    Ok(())
}

/// The kinds that the controllers write.
const KINDS: &str = "nodes,certificatesigningrequests,namespaces,configmaps,secrets,serviceaccounts,resourcequotas";

/// Tests both directions, for all tasks concurrently.
pub async fn cluster_continues_under_the_other_manager(_: Space) -> Result<()> {
    let bed = bed().await?;
    let home = bed.space("home").await?;
    let (from_upstream, from_ours) =
        (TaskInSpace::create_all(&bed, &TASKS).await?, TaskInSpace::create_all(&bed, &TASKS).await?);
    let mut flags = signing(&home);
    flags.extend([
        CONTROLLERS.to_owned(),
        "--enable-garbage-collector=true".to_owned(),
        "--allocate-node-cidrs=true".to_owned(),
        "--cluster-cidr=10.200.0.0/20".to_owned(),
        format!("--root-ca-file={}", bed.cluster.ca_certificate().display()),
        format!("--service-account-private-key-file={}", bed.cluster.service_account_key().display()),
    ]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();

    start_upstream_with(&bed.cluster, &flags)?;
    begin(&from_upstream).await.context("under upstream's")?;
    bed.cluster.kill(UPSTREAM)?;
    let manager = Manager::start_cluster_wide(&home, &Faults::default(), &flags).await?;
    end(&from_upstream).await.context("from upstream's to ours")?;
    begin(&from_ours).await.context("under ours")?;
    manager.crash().await;

    start_upstream_with(&bed.cluster, &flags)?;
    end(&from_ours).await.context("from ours to upstream's")?;
    bed.cluster.kill(UPSTREAM)?;

    let before = versions_everywhere(&home, KINDS).await?;
    let faults = Faults::default();
    let manager = Manager::start_cluster_wide(&home, &faults, &flags).await?;
    faults.until_watching(&["nodes", "secrets", "resourcequotas", "leases"]).await?;
    faults.none_while_quiet(Call::is_object_write).await?;
    manager.stop().await?;
    start_upstream_with(&bed.cluster, &flags)?;
    // Once upstream's manager has processed these new objects, it has processed those that existed at its start.
    create_account_with_token(&bed.space("last").await?).await?;
    create_quota(&bed.space("last").await?).await?;
    bed.cluster.kill(UPSTREAM)?;
    let mut after = versions_everywhere(&home, KINDS).await?;
    after.retain(|name, _| before.contains_key(name));
    ensure!(after == before, "upstream's manager changed objects that need no change: {before:?} -> {after:?}");
    Ok(())
}
