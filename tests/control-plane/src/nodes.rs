//! Fake nodes: kwok simulates their kubelets.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

/// Number of concurrent creations of nodes.
const CONCURRENT_CREATIONS: usize = 16;

/// The taint that admission adds to every new node. A node-lifecycle controller removes it when the node is Ready.
const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// The namespace of the kubelets' leases.
const LEASES: &str = "kube-node-lease";

/// Creates the nodes `{prefix}-0` to `{prefix}-{count-1}`, waits for all of them to be Ready, and removes their taints,
/// because most control planes here run no controller that removes them.
pub(crate) async fn add(client: &kube::Client, count: u32, prefix: &str) -> Result<Vec<String>> {
    let api: Api<Node> = Api::all(client.clone());
    let names: Vec<String> = (0..count).map(|index| format!("{prefix}-{index}")).collect();
    stream::iter(&names)
        .map(Ok::<_, anyhow::Error>)
        .try_for_each_concurrent(CONCURRENT_CREATIONS, |name| {
            let api = &api;
            async move {
                let node = node(name)?;
                api.create(&PostParams::default(), &node).await.with_context(|| format!("create the node {name}"))?;
                Ok(())
            }
        })
        .await?;

    let deadline = Instant::now() + Duration::from_secs(120) + Duration::from_millis(50) * count;
    let mut pending: BTreeSet<&String> = names.iter().collect();
    while !pending.is_empty() {
        if Instant::now() > deadline {
            bail!("{} of {count} nodes are not Ready, for instance {:?}", pending.len(), pending.first());
        }
        let nodes = api.list(&ListParams::default()).await.context("list nodes")?;
        for node in nodes.iter().filter(|node| is_ready(node)) {
            if let Some(name) = node.metadata.name.as_ref().filter(|name| pending.contains(name))
                && remove_taint(&api, node).await?
            {
                pending.remove(name);
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(names)
}

/// Removes admission's taint from a Ready node. Returns false if the node has changed since it was read, which is
/// common for a new node.
async fn remove_taint(api: &Api<Node>, node: &Node) -> Result<bool> {
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    let (not_ready, other_taints): (Vec<_>, Vec<_>) = taints.partition(|taint| taint.key == NOT_READY);
    if not_ready.is_empty() {
        return Ok(true);
    }
    let (name, version) = (node.metadata.name.as_deref().unwrap_or_default(), &node.metadata.resource_version);
    let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": other_taints } });
    match api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(refusal)) if refusal.code == 409 => Ok(false),
        Err(error) => Err(error).with_context(|| format!("remove the taint {NOT_READY} from the node {name}")),
    }
}

/// Assigns a node's lease to another holder, for a day: fake kubelets serve only nodes whose lease they hold. The
/// renewal time is set too, so that a manager's grace period begins now, and not at the last renewal by the fake
/// kubelet.
pub(crate) async fn stop(client: &kube::Client, name: &str) -> Result<()> {
    let now = MicroTime(jiff::Timestamp::now());
    let spec = json!({ "holderIdentity": "nobody", "leaseDurationSeconds": 24 * 60 * 60, "renewTime": now });
    patch_lease(client, name, spec).await
}

/// Releases a node's lease.
pub(crate) async fn resume(client: &kube::Client, name: &str) -> Result<()> {
    patch_lease(client, name, json!({ "holderIdentity": null })).await
}

async fn patch_lease(client: &kube::Client, name: &str, spec: serde_json::Value) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), LEASES);
    let patch = Patch::Merge(json!({ "spec": spec }));
    leases.patch(name, &PatchParams::default(), &patch).await.with_context(|| format!("patch the lease of {name}"))?;
    Ok(())
}

/// Returns a node that registers with capacity for thousands of pods.
fn node(name: &str) -> Result<Node> {
    let resources = json!({ "cpu": "128", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "10000" });
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "annotations": { "kwok.x-k8s.io/node": "fake" },
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
            },
        },
        "status": { "capacity": resources, "allocatable": resources },
    }))?)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
