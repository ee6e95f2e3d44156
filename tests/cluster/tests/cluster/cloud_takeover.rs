//! Upstream's cloud manager and ours take nodes and Services over from each other: nothing is initialised again, no
//! second balancer is made, and what holds a Service and what it says stay.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Call, CloudBed, Faults, Manager, QUIET, Space, during, eventually};
use control_plane::Identity;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams};
use provider_mock::{BalancerView, Operation};
use serde_json::json;
use tokio::net::TcpListener;

use crate::cloud::initialised;
use crate::cloud_lifecycle::{gone as node_gone, shut_down};
use crate::cloud_service::{balanced, create, edit, gone, services};

const UPSTREAM: &str = "cloud-controller-manager";

/// What both are given: names of controllers and of the Lease are the same.
const FLAGS: [&str; 6] = [
    "--controllers=cloud-node-controller,cloud-node-lifecycle-controller,service-lb-controller",
    "--leader-elect=true",
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
    "--node-monitor-period=1s",
];

/// Runs upstream's cloud manager over the mock, which is served at `url`.
fn start_upstream(cloud: &CloudBed, url: &str) -> Result<()> {
    let cluster = &cloud.bed.cluster;
    let config = cluster.folder().join("cloud-config");
    fs::write(&config, url).context("write the cloud config")?;
    // Upstream's also reads through accounts of its informers', which our manifest does not know.
    let user = Identity::User { name: "upstream".into(), groups: vec!["system:masters".into()] };
    let own = [
        format!("--kubeconfig={}", cluster.kubeconfig(user)?.display()),
        "--cloud-provider=mock".to_owned(),
        format!("--cloud-config={}", config.display()),
        "--configure-cloud-routes=false".to_owned(),
        "--secure-port=0".to_owned(),
    ];
    let flags: Vec<String> = own.into_iter().chain(FLAGS.map(ToOwned::to_owned)).collect();
    cluster.run(UPSTREAM, &cluster.assets().upstream_cloud_manager()?, &flags)?;
    Ok(())
}

/// Everything that a takeover must leave as it is.
#[derive(Debug, PartialEq)]
struct Held {
    /// Nodes and Services by name: uid and version, and with them labels, taints, finalizers and status.
    objects: BTreeMap<String, (Option<String>, Option<String>)>,
    balancers: Vec<BalancerView>,
    /// Balancers and addresses that were ever made.
    made: [u64; 2],
}

async fn held(cloud: &CloudBed) -> Result<Held> {
    let nodes = cloud.nodes().list(&ListParams::default()).await?.items;
    let services = services(cloud).list(&ListParams::default()).await?.items;
    let node = |node: &Node| (format!("node {}", node.name_any()), (node.uid(), node.resource_version()));
    let service = |service: &Service| (service.name_any(), (service.uid(), service.resource_version()));
    let calls = |operation| cloud.cloud.calls(operation).calls;
    Ok(Held {
        objects: nodes.iter().map(node).chain(services.iter().map(service)).collect(),
        balancers: cloud.cloud.snapshot().balancers,
        made: [calls(Operation::CreateBalancer), calls(Operation::AllocateAddress)],
    })
}

/// Who leads, in the Lease that both use.
async fn holder(cloud: &CloudBed) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(cloud.bed.client.clone(), "kube-system");
    let lease = leases.get(UPSTREAM).await?;
    lease.spec.and_then(|spec| spec.holder_identity).filter(|holder| !holder.is_empty()).context("nobody leads")
}

/// Waits until another one than `before` leads.
async fn led_by_another(cloud: &CloudBed, before: &str) -> Result<String> {
    eventually("another one leads", || async {
        let now = holder(cloud).await?;
        ensure!(now != before, "{now} does");
        Ok(now)
    })
    .await
}

/// Whether it does its work: a new node is initialised.
async fn works(cloud: &CloudBed, node: &str) -> Result<()> {
    cloud.register_machine(node).await?;
    initialised(cloud, node).await?;
    cloud.says_ready(node, "True").await
}

async fn unchanged(cloud: &CloudBed, before: &Held) -> Result<()> {
    during(QUIET, "nothing is touched", || async {
        let now = held(cloud).await?;
        ensure!(now == *before, "{now:?} instead of {before:?}");
        Ok(())
    })
    .await
}

/// There and back again. Each has a node to initialise, a Service to balance, and one of the other's to change.
pub async fn nodes_and_services_stay_under_the_other(_: Space) -> Result<()> {
    let cloud = CloudBed::start().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = tokio::spawn(cloud.cloud.clone().serve(listener));

    start_upstream(&cloud, &url)?;
    works(&cloud, "theirs-1").await.context("under upstream's")?;
    works(&cloud, "theirs-2").await?;
    create(&cloud, "web").await?;
    balanced(&cloud, "web", 1, 2).await?;
    // One that stops before the handover and starts after it.
    cloud.cloud.stop_instance("theirs-2");
    cloud.says_ready("theirs-2", "Unknown").await?;
    shut_down(&cloud, "theirs-2", true).await?;
    let theirs = holder(&cloud).await?;
    cloud.bed.cluster.kill(UPSTREAM)?;
    let before = held(&cloud).await?;

    let faults = Faults::default();
    let manager: Manager = cloud.ccm(&faults, &FLAGS).await?;
    let ours = led_by_another(&cloud, &theirs).await?;
    unchanged(&cloud, &before).await.context("from upstream's to ours")?;
    ensure!(faults.count(Call::is_deed) == 0, "{:?}", faults.seen());
    cloud.cloud.start_instance("theirs-2");
    cloud.says_ready("theirs-2", "True").await?;
    shut_down(&cloud, "theirs-2", false).await?;
    works(&cloud, "ours-1").await.context("under ours")?;
    balanced(&cloud, "web", 1, 3).await?;
    let ports = json!([{"name": "http", "port": 80}, {"name": "more", "port": 81}]);
    edit(&cloud, "web", json!({"spec": {"ports": ports}})).await?;
    balanced(&cloud, "web", 2, 3).await?;
    create(&cloud, "own").await?;
    balanced(&cloud, "own", 1, 3).await?;
    manager.crash().await;
    let before = held(&cloud).await?;
    ensure!(before.made == [2, 2], "made {:?} balancers and addresses", before.made);

    start_upstream(&cloud, &url)?;
    let theirs = led_by_another(&cloud, &ours).await?;
    unchanged(&cloud, &before).await.context("from ours to upstream's")?;
    services(&cloud).delete("own", &DeleteParams::default()).await?;
    gone(&cloud, "own").await.context("upstream's deletes what ours made")?;
    cloud.cloud.remove_instance("ours-1");
    cloud.says_ready("ours-1", "False").await?;
    node_gone(&cloud, "ours-1").await.context("upstream's deletes a node of ours")?;
    balanced(&cloud, "web", 2, 2).await?;
    cloud.bed.cluster.kill(UPSTREAM)?;

    let _manager = cloud.ccm(&Faults::default(), &FLAGS).await?;
    led_by_another(&cloud, &theirs).await?;
    services(&cloud).delete("web", &DeleteParams::default()).await?;
    gone(&cloud, "web").await.context("ours deletes what upstream's made")?;
    ensure!(cloud.cloud.snapshot().balancers.is_empty());
    serving.abort();
    Ok(())
}
