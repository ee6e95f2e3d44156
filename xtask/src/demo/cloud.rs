//! The cloud half of the story: ccm over a mock cloud, and the machines of that cloud.

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

use super::stage::Stage;
use super::story::Step;

/// The name of the cloud manager's package, process and log.
pub const CLOUD_MANAGER: &str = "ccm";

/// The user that it runs as, with the rights of the manifest that comes with it.
const USER: &str = "system:cloud-controller-manager";
const RIGHTS: &str = include_str!("../../../deploy/ccm-rbac.yaml");

const UNINITIALIZED: &str = "node.cloudprovider.kubernetes.io/uninitialized";
const SHUTDOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// Machines that join the cluster; they take no pods, for these would go with them.
const MACHINES: [&str; 2] = ["machine-a", "machine-b"];

/// The addresses of all pods, and those of the machines' own.
const PODS: &str = "10.244.0.0/16";
const RANGES: [&str; 2] = ["10.244.7.0/24", "10.244.8.0/24"];

const SERVICE: &str = "web";

/// Machines join.
pub const JOIN: Step = Step {
    title: "Two machines of a cloud join the cluster",
    deadline: Duration::from_secs(60),
    play: |stage| join(stage).boxed(),
};

/// A Service gets a balancer, and gives it back.
pub const BALANCE: Step = Step {
    title: "A Service of type LoadBalancer gets an address, and leaves nothing in the cloud",
    deadline: Duration::from_secs(60),
    play: |stage| balance(stage).boxed(),
};

/// A machine is stopped, another one is deleted.
pub const LEAVE: Step = Step {
    title: "One machine is stopped in the cloud, the other one deleted",
    deadline: Duration::from_secs(120),
    play: |stage| leave(stage).boxed(),
};

/// The cloud manager and the cloud that it has.
pub struct Cloud {
    binary: PathBuf,
    address: SocketAddr,
}

impl Cloud {
    /// Gives the cloud manager its rights and starts it; the mock cloud lives in its process.
    pub fn start(cluster: &ControlPlane, binary: PathBuf) -> Result<Self> {
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|port| port.local_addr());
        let address = address.context("find a free port")?;
        let config = cluster.folder().join("mock.json");
        let content = json!({"auto_instances": true, "listen": address.to_string()});
        fs::write(&config, content.to_string()).with_context(|| format!("write {}", config.display()))?;
        cluster.kubectl_with_input(&["apply", "--filename=-"], RIGHTS)?;
        let kubeconfig = cluster.kubeconfig(Identity::User { name: USER.into(), groups: Vec::new() })?;
        let flags = [
            format!("--kubeconfig={}", kubeconfig.display()),
            "--cloud-provider=mock".into(),
            format!("--cloud-config={}", config.display()),
            format!("--cluster-cidr={PODS}"),
            "--secure-port=0".into(),
            "--use-service-account-credentials=true".into(),
        ];
        cluster.run(CLOUD_MANAGER, &binary, &flags)?;
        Ok(Self { binary, address })
    }

    /// What there is to say of it.
    pub fn introduction(&self) -> String {
        format!(
            "The cloud controller manager is {}; its cloud answers at http://{}",
            self.binary.display(),
            self.address
        )
    }

    /// Does something to the cloud, by its own API.
    async fn call(&self, stage: &Stage, method: &str, path: &str) -> Result<()> {
        stage.page.command(&format!("curl --request {method} http://{}{path}", self.address));
        self.ask(method, path).await?;
        Ok(())
    }

    /// Everything that there is in the cloud.
    async fn state(&self) -> Result<Value> {
        self.ask("GET", "/state").await
    }

    async fn ask(&self, method: &str, path: &str) -> Result<Value> {
        let mut connection = TcpStream::connect(self.address).await.context("connect to the mock cloud")?;
        let request =
            format!("{method} {path} HTTP/1.1\r\nHost: cloud\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        connection.write_all(request.as_bytes()).await.context("ask the mock cloud")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).await.context("read the mock cloud's answer")?;
        let status = answer.lines().next().unwrap_or_default();
        ensure!(status.contains(" 200 "), "{method} {path}: the mock cloud says {status:?}");
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).with_context(|| format!("read what the mock cloud says to {method} {path}"))
    }
}

/// A node as a kubelet registers it that leaves it to the cloud to say what it is.
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

/// Polls a node until it is as wanted, or absent as wanted.
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
        MACHINES.iter().zip(RANGES).map(|(name, range)| registration(name, range)).collect();
    stage.kubectl_with_input(&["apply", "--filename=-"], &registrations.join("---\n")).await?;
    let mut zones = Vec::new();
    for name in MACHINES {
        let node = until(stage, name, |node| node.is_some_and(|node| !has_taint(node, UNINITIALIZED))).await?;
        let node = node.context("it was there")?;
        let label = |key: &str| node.metadata.labels.iter().flatten().find(|(known, _)| *known == key);
        let zone = label("topology.kubernetes.io/zone").map(|(_, zone)| zone.clone()).context("it has no zone")?;
        let id = node.spec.and_then(|spec| spec.provider_id).context("it has no provider id")?;
        let addresses = node.status.and_then(|status| status.addresses).unwrap_or_default();
        ensure!(!addresses.is_empty(), "{name} has no addresses");
        stage.saw(&format!("{name} is {id} in {zone}, at {}", addresses[0].address));
        zones.push(zone);
    }
    stage.kubectl(&["get", "nodes", "--label-columns=topology.kubernetes.io/zone"]).await?;
    until_cloud(stage, |cloud| RANGES.iter().all(|range| cloud["routes"].to_string().contains(range))).await?;
    stage.saw(&format!("the cloud routes {} to them", RANGES.join(" and ")));
    Ok(format!("both have their provider ids, addresses and labels, and may be used, in {}", zones.join(" and ")))
}

/// Polls the cloud until it is as wanted.
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
    stage.saw(&format!("the Service has the address {address}"));
    stage.kubectl(&["delete", "service", SERVICE]).await?;
    let balancers = |cloud: &Value| cloud["balancers"].as_array().map_or(usize::MAX, Vec::len);
    until_cloud(stage, |cloud| balancers(cloud) == 0).await?;
    Ok(format!("the Service had {address}; it is deleted, and the cloud holds no balancer any more"))
}

async fn leave(stage: &Stage) -> Result<String> {
    let [stopped, deleted] = MACHINES;
    stage.cloud.call(stage, "POST", &format!("/instances/{stopped}/stop")).await?;
    stage.cloud.call(stage, "DELETE", &format!("/instances/{deleted}")).await?;
    // What their kubelets, which are played, would not say.
    stage.kubectl(&["annotate", "nodes", stopped, deleted, &format!("{BEHAVIOUR}={UNREADY}")]).await?;
    until(stage, stopped, |node| node.is_some_and(|node| has_taint(node, SHUTDOWN))).await?;
    stage.saw(&format!("{stopped} has the taint {SHUTDOWN}"));
    until(stage, deleted, |node| node.is_none()).await?;
    stage.saw(&format!("{deleted} is deleted: the cloud has said twice that its machine is gone"));
    match node(stage, stopped).await? {
        Some(_) => Ok("a stopped machine keeps its node, a deleted one does not".into()),
        None => bail!("{stopped} was deleted too, and its machine is still there"),
    }
}
