//! The part of the scenario with ccm: a mock cloud and its instances.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use control_plane::behaviour::{BEHAVIOUR, UNREADY};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::Api;
use serde_json::Value;
use tokio::time::sleep;

use super::scenario::Step;
use super::stage::Stage;

const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Instances that join the cluster. No pods are scheduled to them, because these would be deleted with them.
const INSTANCES: [&str; 2] = ["machine-a", "machine-b"];

/// The pod ranges of the instances.
const POD_RANGES: [&str; 2] = ["10.244.7.0/24", "10.244.8.0/24"];

const SERVICE: &str = "web";

/// Instances join the cluster.
pub const JOIN: Step = Step {
    title: "Two instances of a cloud join the cluster",
    deadline: Duration::from_secs(60),
    run: |stage| join(stage).boxed(),
};

/// A Service gets a load balancer and is deleted.
pub const BALANCE: Step = Step {
    title: "A Service of type LoadBalancer gets an address, and its deletion leaves nothing in the cloud",
    deadline: Duration::from_secs(60),
    run: |stage| balance(stage).boxed(),
};

/// An instance is stopped, another one is deleted.
pub const LEAVE: Step = Step {
    title: "One instance is stopped in the cloud, the other one deleted",
    deadline: Duration::from_secs(120),
    run: |stage| leave(stage).boxed(),
};

/// Returns a node as a kubelet with an external cloud provider registers it.
fn registration(name: &str, range: &str) -> String {
    format!(
        "apiVersion: v1
kind: Node
metadata: {{ name: {name} }}
spec: {{ unschedulable: true, podCIDR: {range}, podCIDRs: [{range}], taints: [{{ key: {UNINITIALIZED}, value: 'true', effect: NoSchedule }}] }}
"
    )
}

async fn node(stage: &Stage, name: &str) -> Result<Option<Node>> {
    Api::<Node>::all(stage.client.clone()).get_opt(name).await.with_context(|| format!("get the node {name}"))
}

fn has_taint(node: &Node, key: &str) -> bool {
    node.spec.iter().flat_map(|spec| &spec.taints).flatten().any(|taint| taint.key == key)
}

/// Polls a node until `wanted` returns true; `None` is an absent node.
async fn until(stage: &Stage, name: &str, wanted: impl Fn(Option<&Node>) -> bool) -> Result<Option<Node>> {
    loop {
        let node = node(stage, name).await?;
        if wanted(node.as_ref()) {
            return Ok(node);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn join(stage: &Stage) -> Result<String> {
    stage.page.line(&stage.cloud.introduction());
    let registrations: Vec<String> =
        INSTANCES.iter().zip(POD_RANGES).map(|(name, range)| registration(name, range)).collect();
    stage.kubectl_with_input(&["apply", "--filename=-"], &registrations.join("---\n")).await?;
    let mut zones = Vec::new();
    for name in INSTANCES {
        let node = until(stage, name, |node| node.is_some_and(|node| !has_taint(node, UNINITIALIZED))).await?;
        let node = node.context("the node was deleted")?;
        let label = |key: &str| node.metadata.labels.iter().flatten().find(|(known, _)| *known == key);
        let zone = label("topology.kubernetes.io/zone").map(|(_, zone)| zone.clone());
        let zone = zone.with_context(|| format!("{name} has no zone"))?;
        let id = node.spec.and_then(|spec| spec.provider_id);
        let id = id.with_context(|| format!("{name} has no provider ID"))?;
        let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
        ensure!(!addresses.is_empty(), "{name} has no addresses");
        stage.report_event(&format!("{name} is {id} in {zone}, at {}", addresses[0].address));
        zones.push(zone);
    }
    stage.kubectl(&["get", "nodes", "--label-columns=topology.kubernetes.io/zone"]).await?;
    until_cloud(stage, |cloud| POD_RANGES.iter().all(|range| cloud["routes"].to_string().contains(range))).await?;
    stage.report_event(&format!("the cloud routes {} to them", POD_RANGES.join(" and ")));
    Ok(format!("both have their provider IDs, addresses and labels, and are schedulable, in {}", zones.join(" and ")))
}

/// Polls the cloud until `wanted` returns true.
async fn until_cloud(stage: &Stage, wanted: impl Fn(&Value) -> bool) -> Result<()> {
    while !wanted(&stage.cloud.state().await?) {
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn balance(stage: &Stage) -> Result<String> {
    stage.kubectl(&["expose", "deployment/web", "--port=80", "--type=LoadBalancer"]).await?;
    let services: Api<Service> = Api::default_namespaced(stage.client.clone());
    let address = loop {
        let status =
            services.get(SERVICE).await.context("get the Service")?.status.and_then(|status| status.load_balancer);
        let ingress = status.and_then(|balancer| balancer.ingress).unwrap_or_default();
        if let Some(address) = ingress.into_iter().find_map(|ingress| ingress.ip) {
            break address;
        }
        sleep(Duration::from_millis(100)).await;
    };
    stage.report_event(&format!("the Service has the address {address}"));
    stage.kubectl(&["delete", "service", SERVICE]).await?;
    let balancers = |cloud: &Value| cloud["balancers"].as_array().map_or(usize::MAX, Vec::len);
    until_cloud(stage, |cloud| balancers(cloud) == 0).await?;
    Ok(format!("the Service had {address}; it is deleted, and the cloud has no load balancer"))
}

async fn leave(stage: &Stage) -> Result<String> {
    let [stopped, deleted] = INSTANCES;
    stage.cloud.call(&stage.page, "POST", &format!("/instances/{stopped}/stop")).await?;
    stage.cloud.call(&stage.page, "DELETE", &format!("/instances/{deleted}")).await?;
    // The simulated kubelets do not detect that their instances stopped: make the nodes unready.
    stage.kubectl(&["annotate", "nodes", stopped, deleted, &format!("{BEHAVIOUR}={UNREADY}")]).await?;
    until(stage, stopped, |node| node.is_some_and(|node| has_taint(node, SHUTDOWN))).await?;
    stage.report_event(&format!("{stopped} has the taint {SHUTDOWN}"));
    until(stage, deleted, |node| node.is_none()).await?;
    stage.report_event(&format!("{deleted} is deleted: the cloud has reported twice that its instance does not exist"));
    match node(stage, stopped).await? {
        Some(_) => Ok("a stopped instance keeps its node, a deleted one does not".into()),
        None => bail!("{stopped} was deleted, too, although its instance still exists"),
    }
}
