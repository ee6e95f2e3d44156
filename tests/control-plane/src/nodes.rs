//! Nodes that exist on paper only: kwok plays their kubelets.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

/// How many nodes are made at once.
const AT_ONCE: usize = 16;

/// Makes the nodes `{prefix}-0` to `{prefix}-{n-1}` and waits for all of them
/// to be Ready.
pub(crate) async fn add(client: &kube::Client, n: u32, prefix: &str) -> Result<Vec<String>> {
    let api: Api<Node> = Api::all(client.clone());
    let names: Vec<String> = (0..n).map(|index| format!("{prefix}-{index}")).collect();
    stream::iter(&names)
        .map(Ok::<_, anyhow::Error>)
        .try_for_each_concurrent(AT_ONCE, |name| {
            let api = &api;
            async move {
                let node = node(name)?;
                api.create(&PostParams::default(), &node).await.with_context(|| format!("create the node {name}"))?;
                Ok(())
            }
        })
        .await?;

    let deadline = Instant::now() + Duration::from_secs(30) + Duration::from_millis(50) * n;
    let mut waiting: BTreeSet<&String> = names.iter().collect();
    while !waiting.is_empty() {
        if Instant::now() > deadline {
            bail!("{} of {n} nodes are not Ready, for instance {:?}", waiting.len(), waiting.first());
        }
        let nodes = api.list(&ListParams::default()).await.context("list nodes")?;
        for node in nodes.iter().filter(|node| is_ready(node)) {
            if let Some(name) = &node.metadata.name {
                waiting.remove(name);
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
    Ok(names)
}

/// A node as a kubelet with room for thousands of pods registers it.
fn node(name: &str) -> Result<Node> {
    let room = json!({ "cpu": "128", "memory": "1Ti", "ephemeral-storage": "1Ti", "pods": "10000" });
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
        "status": { "capacity": room, "allocatable": room },
    }))?)
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
