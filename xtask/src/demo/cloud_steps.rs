//! The part of the scenario with ccm: a mock cloud and its instances.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use control_plane::behaviour::{BEHAVIOUR, UNREADY};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::Api;
use serde_json::Value;
use tokio::time::sleep;

use super::environment::DemoEnvironment;
use super::scenario::Step;

const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Instances that join the cluster. No pods are scheduled to them, because such pods would be deleted with them.
const INSTANCES: [&str; 2] = ["instance-a", "instance-b"];

/// The pod ranges of the instances.
const POD_RANGES: [&str; 2] = ["10.244.7.0/24", "10.244.8.0/24"];

const SERVICE: &str = "web";

/// Instances join the cluster.
pub const JOIN: Step = Step {
    title: "Two instances of a cloud join the cluster",
    deadline: Duration::from_secs(60),
    run: |environment| join(environment).boxed(),
};

/// A Service gets a load balancer and is deleted.
pub const BALANCE: Step = Step {
    title: "A Service of type LoadBalancer gets an address, and its deletion leaves nothing in the cloud",
    deadline: Duration::from_secs(60),
    run: |environment| balance(environment).boxed(),
};

/// An instance is stopped, another one is deleted.
pub const LEAVE: Step = Step {
    title: "One instance is stopped in the cloud, the other one deleted",
    deadline: Duration::from_secs(120),
    run: |environment| leave(environment).boxed(),
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

async fn node(environment: &DemoEnvironment, name: &str) -> Result<Option<Node>> {
    Api::<Node>::all(environment.client.clone()).get_opt(name).await.with_context(|| format!("get the node {name}"))
}

fn has_taint(node: &Node, key: &str) -> bool {
    node.spec.iter().flat_map(|spec| &spec.taints).flatten().any(|taint| taint.key == key)
}

/// Polls a node until `wanted` returns true; `None` is an absent node.
async fn until(
    environment: &DemoEnvironment,
    name: &str,
    wanted: impl Fn(Option<&Node>) -> bool,
) -> Result<Option<Node>> {
    loop {
        let node = node(environment, name).await?;
        if wanted(node.as_ref()) {
            return Ok(node);
        }
        sleep(Duration::from_millis(100)).await;
    }
}

async fn join(environment: &DemoEnvironment) -> Result<String> {
    environment.console.line(&environment.cloud.introduction());
    let registrations: Vec<String> =
        INSTANCES.iter().zip(POD_RANGES).map(|(name, range)| registration(name, range)).collect();
    environment.kubectl_with_input(&["apply", "--filename=-"], &registrations.join("---\n")).await?;
    let mut zones = Vec::new();
    for name in INSTANCES {
        let node = until(environment, name, |node| node.is_some_and(|node| !has_taint(node, UNINITIALIZED))).await?;
        let node = node.context("the node was deleted")?;
        let label = |key: &str| node.metadata.labels.iter().flatten().find(|(known, _)| *known == key);
        let zone = label("topology.kubernetes.io/zone").map(|(_, zone)| zone.clone());
        let zone = zone.with_context(|| format!("{name} has no zone"))?;
        let id = node.spec.and_then(|spec| spec.provider_id);
        let id = id.with_context(|| format!("{name} has no provider ID"))?;
        let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
        ensure!(!addresses.is_empty(), "{name} has no addresses");
        environment.report_event(&format!("{name} is {id} in {zone}, at {}", addresses[0].address));
        zones.push(zone);
    }
    environment.kubectl(&["get", "nodes", "--label-columns=topology.kubernetes.io/zone"]).await?;
    until_cloud(environment, |cloud| POD_RANGES.iter().all(|range| cloud["routes"].to_string().contains(range)))
        .await?;
    environment.report_event(&format!("the cloud routes {} to the instances", POD_RANGES.join(" and ")));
    Ok(format!("both have their provider IDs, addresses and labels, and are schedulable, in {}", zones.join(" and ")))
}

/// Polls the cloud until `wanted` returns true.
async fn until_cloud(environment: &DemoEnvironment, wanted: impl Fn(&Value) -> bool) -> Result<()> {
    while !wanted(&environment.cloud.state().await?) {
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

async fn balance(environment: &DemoEnvironment) -> Result<String> {
    environment.kubectl(&["expose", "deployment/web", "--port=80", "--type=LoadBalancer"]).await?;
    let services: Api<Service> = Api::default_namespaced(environment.client.clone());
    let address = loop {
        let status =
            services.get(SERVICE).await.context("get the Service")?.status.and_then(|status| status.load_balancer);
        let ingress = status.and_then(|balancer| balancer.ingress).unwrap_or_default();
        if let Some(address) = ingress.into_iter().find_map(|ingress| ingress.ip) {
            break address;
        }
        sleep(Duration::from_millis(100)).await;
    };
    environment.report_event(&format!("the Service has the address {address}"));
    environment.kubectl(&["delete", "service", SERVICE]).await?;
    let balancers = |cloud: &Value| cloud["balancers"].as_array().map_or(usize::MAX, Vec::len);
    until_cloud(environment, |cloud| balancers(cloud) == 0).await?;
    Ok(format!("the Service had {address}; it is deleted, and the cloud has no load balancer"))
}

async fn leave(environment: &DemoEnvironment) -> Result<String> {
    let [stopped, deleted] = INSTANCES;
    environment.cloud.call(&environment.console, "POST", &format!("/instances/{stopped}/stop")).await?;
    environment.cloud.call(&environment.console, "DELETE", &format!("/instances/{deleted}")).await?;
    // The simulated kubelets do not detect that their instances stopped: make the nodes unready.
    environment.kubectl(&["annotate", "nodes", stopped, deleted, &format!("{BEHAVIOUR}={UNREADY}")]).await?;
    until(environment, stopped, |node| node.is_some_and(|node| has_taint(node, SHUTDOWN))).await?;
    environment.report_event(&format!("{stopped} has the taint {SHUTDOWN}"));
    until(environment, deleted, |node| node.is_none()).await?;
    environment
        .report_event(&format!("{deleted} is deleted: the cloud has reported twice that its instance does not exist"));
    match node(environment, stopped).await? {
        Some(_) => Ok("a stopped instance keeps its node, a deleted one does not".into()),
        None => bail!("{stopped} was deleted, too, although its instance still exists"),
    }
}
