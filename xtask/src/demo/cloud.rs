//! The part of the scenario with ccm: a mock cloud and its instances.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use control_plane::behaviour::{BEHAVIOUR, UNREADY};
use control_plane::{ControlPlane, Identity};
use futures::FutureExt;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::Api;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::sleep;

use super::scenario::Step;
use super::stage::Stage;

/// The name of the cloud manager's package, process and log.
pub const CLOUD_MANAGER: &str = "ccm";

/// The user that it runs as, with the permissions of its manifest.
const USER: &str = "system:cloud-controller-manager";
const RBAC: &str = include_str!("../../../deploy/ccm-rbac.yaml");

const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Instances that join the cluster. No pods are scheduled to them, because these would be deleted with them.
const INSTANCES: [&str; 2] = ["machine-a", "machine-b"];

/// The range of all pods, and those of the instances.
const ALL_POD_RANGES: &str = "10.244.0.0/16";
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

/// The cloud manager, with its cloud.
pub struct Cloud {
    binary: PathBuf,
    address: SocketAddr,
}

impl Cloud {
    /// Grants the cloud manager its permissions and starts it; the mock cloud is in its process.
    pub fn start(cluster: &ControlPlane, binary: PathBuf) -> Result<Self> {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|port| port.local_addr());
        let address = address.context("find a free port")?;
        let config = cluster.folder().join("mock.json");
        let content = json!({"auto_instances": true, "listen": address.to_string()});
        fs::write(&config, content.to_string()).with_context(|| format!("write {}", config.display()))?;
        cluster.kubectl_with_input(&["apply", "--filename=-"], RBAC)?;
        let kubeconfig = cluster.kubeconfig(Identity::User { name: USER.into(), groups: Vec::new() })?;
        let flags = [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--cloud-provider=mock".into(),
            format!("--cloud-config={}", config.display()),
            format!("--cluster-cidr={ALL_POD_RANGES}"),
            "--secure-port=0".into(),
            "--use-service-account-credentials=true".into(),
        ];
        cluster.run(CLOUD_MANAGER, &binary, &flags)?;
        Ok(Self { binary, address })
    }

    /// Returns a sentence about the process and its cloud.
    pub fn introduction(&self) -> String {
        format!(
            "The cloud controller manager is {}; its cloud is served at http://{}",
            self.binary.display(),
            self.address
        )
    }

    /// Changes the cloud, by its API.
    async fn call(&self, stage: &Stage, method: &str, path: &str) -> Result<()> {
        stage.page.command(&format!("curl --request {method} http://{}{path}", self.address));
        self.request(method, path).await?;
        Ok(())
    }

    /// Returns the state of the cloud.
    async fn state(&self) -> Result<Value> {
        self.request("GET", "/state").await
    }

    async fn request(&self, method: &str, path: &str) -> Result<Value> {
        let mut connection = TcpStream::connect(self.address).await.context("connect to the mock cloud")?;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: cloud\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        connection.write_all(request.as_bytes()).await.context("send a request to the mock cloud")?;
        let mut response = String::new();
        connection.read_to_string(&mut response).await.context("read the mock cloud's response")?;
        let status = response.lines().next().unwrap_or_default();
        ensure!(status.contains(" 200 "), "{method} {path}: the mock cloud returned {status:?}");
        let body = response.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).with_context(|| format!("read the mock cloud's response to {method} {path}"))
    }
}

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
    stage.cloud.call(stage, "POST", &format!("/instances/{stopped}/stop")).await?;
    stage.cloud.call(stage, "DELETE", &format!("/instances/{deleted}")).await?;
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
