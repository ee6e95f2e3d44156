//! Observable behaviour of the allocation of nodes' pod address ranges, also with lost responses.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cluster_tests::{Bed, Effect, Faults, Manager, QUIET, Rule, Space, Verb, during, eventually, write_failures};
use control_plane::Options;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{Api, DeleteParams, PostParams};
use serde_json::json;

use crate::robustness::invariants::only_declared;

const FLAGS: [&str; 4] = [
    "--controllers=nodeipam",
    "--allocate-node-cidrs",
    "--cluster-cidr=10.200.0.0/22,fd00:1::/63",
    "--service-cluster-ip-range=10.200.3.0/24",
];

/// Creates a control plane without kubelets.
async fn space() -> Result<Space> {
    let options = Options { kwok: false, scheduler: false, ..Options::default() };
    Arc::new(Bed::without_accounts(options).await?).space("ranges").await
}

fn nodes(space: &Space) -> Api<Node> {
    Api::all(space.bed.client.clone())
}

/// Creates a node without a kubelet.
pub async fn create_node(space: &Space, name: &str, ranges: &[&str]) -> Result<()> {
    let spec = if ranges.is_empty() { json!({}) } else { json!({"podCIDR": ranges[0], "podCIDRs": ranges}) };
    let node: Node = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec}))?;
    nodes(space).create(&PostParams::default(), &node).await?;
    Ok(())
}

/// Returns the ranges of a node.
pub async fn ranges(space: &Space, name: &str) -> Result<Vec<String>> {
    let spec = nodes(space).get(name).await?.spec.unwrap_or_default();
    let ranges = spec.pod_cidrs.unwrap_or_default();
    ensure!(spec.pod_cidr.as_ref() == ranges.first(), "{:?} and {ranges:?}", spec.pod_cidr);
    Ok(ranges)
}

async fn until_ranges(space: &Space, name: &str, expected: &[&str]) -> Result<()> {
    eventually(format!("{name} has {expected:?}"), || async {
        let ranges = ranges(space, name).await?;
        ensure!(ranges == expected, "{ranges:?}");
        Ok(())
    })
    .await
}

pub async fn nodes_get_ranges_of_both_families(_: Space) -> Result<()> {
    let space = space().await?;
    create_node(&space, "old", &["10.200.0.0/24", "fd00:1::/64"]).await?;
    let faults = Faults::default();
    let manager = Manager::start_cluster_wide(&space, &faults, &FLAGS).await?;
    create_node(&space, "new", &[]).await?;
    until_ranges(&space, "new", &["10.200.1.0/24", "fd00:1:0:1::/64"]).await?;

    create_node(&space, "late", &[]).await?;
    let events: Api<Event> = Api::namespaced(space.bed.client.clone(), "default");
    eventually("an event reports that no range is free", || async {
        let found = events.list(&Default::default()).await?.items;
        let message = "Node late status is now: CIDRNotAvailable";
        ensure!(found.iter().any(|event| event.message.as_deref() == Some(message)), "{found:?}");
        Ok(())
    })
    .await?;
    ensure!(ranges(&space, "late").await?.is_empty());
    nodes(&space).delete("old", &DeleteParams::default()).await?;
    // The failed attempts leaked no range of the other family.
    until_ranges(&space, "late", &["10.200.2.0/24", "fd00:1::/64"]).await?;
    only_declared(&faults, &["node-ipam-controller"])?;

    manager.crash().await;
    let restarted = Faults::default();
    let _manager = Manager::start_cluster_wide(&space, &restarted, &FLAGS).await?;
    restarted.until_watching(&["nodes"]).await?;
    during(QUIET, "a restart changes nothing", || async {
        ensure!(restarted.writes() == 0, "{:?}", restarted.requests());
        Ok(())
    })
    .await
}

pub async fn lost_response_leaks_no_range(_: Space) -> Result<()> {
    let space = space().await?;
    let faults = Faults::default();
    let flags = ["--controllers=nodeipam", "--allocate-node-cidrs", "--cluster-cidr=10.200.0.0/21"];
    let _manager = Manager::start_cluster_wide(&space, &faults, &flags).await?;
    let failures: [(&str, Effect); 6] = write_failures();
    for (index, (_, effect)) in failures.into_iter().enumerate() {
        faults.add(Rule::on(Verb::Patch, "nodes", effect));
        create_node(&space, &format!("node-{index}"), &[]).await?;
        eventually(format!("node-{index} has a range"), || async {
            ensure!(ranges(&space, &format!("node-{index}")).await?.len() == 1);
            Ok(())
        })
        .await?;
    }
    let mut all = Vec::new();
    for index in 0..6 {
        all.extend(ranges(&space, &format!("node-{index}")).await?);
    }
    all.sort();
    all.dedup();
    ensure!(all.len() == 6, "{all:?}");
    // The network has eight ranges: leaked ones would be missing now.
    for name in ["seventh", "eighth"] {
        create_node(&space, name, &[]).await?;
        eventually(format!("{name} has a range"), || async {
            ensure!(ranges(&space, name).await?.len() == 1);
            Ok(())
        })
        .await?;
    }
    ensure!(faults.unmet() == 0);
    Ok(())
}
