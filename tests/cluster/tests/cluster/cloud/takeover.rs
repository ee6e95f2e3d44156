//! Takeovers of nodes and Services between upstream's cloud manager and ours: nothing is initialized again, no second
//! load balancer or route is created, and the finalizers and status of Services do not change.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use cluster_tests::{Call, CloudBed, Faults, Manager, QUIET, Space, during, eventually};
use control_plane::Identity;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams};
use provider_mock::{LoadBalancerView, Operation, RouteView};
use serde_json::json;
use tokio::net::TcpListener;

use crate::cloud::node::until_initialized;
use crate::cloud::node_lifecycle::{until_node_deleted, until_shutdown_taint};
use crate::cloud::service::{create, edit, services, until_balanced, until_service_deleted};

const UPSTREAM: &str = "cloud-controller-manager";

/// Flags of both managers: the names of controllers and of the Lease are the same.
const FLAGS: [&str; 10] = [
    "--controllers=cloud-node-controller,cloud-node-lifecycle-controller,service-lb-controller,node-route-controller",
    "--allocate-node-cidrs=true",
    "--configure-cloud-routes=true",
    "--cluster-cidr=10.244.0.0/16",
    "--route-reconciliation-period=1s",
    "--leader-elect=true",
    "--leader-elect-lease-duration=4s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
    "--node-monitor-period=1s",
];

/// Runs upstream's cloud manager with the mock cloud, which is served at `url`.
fn start_upstream(cloud: &CloudBed, url: &str) -> Result<()> {
    let cluster = &cloud.bed.cluster;
    let config = cluster.folder().join("cloud-config");
    fs::write(&config, url).context("write the cloud config")?;
    // Upstream's manager also reads with the accounts of its informers, which our manifest does not contain.
    let user = Identity::User { name: "upstream".into(), groups: vec!["system:masters".into()] };
    let own = [
        format!("--kubeconfig={}", cluster.kubeconfig(user)?.display()),
        "--cloud-provider=mock".to_owned(),
        format!("--cloud-config={}", config.display()),
        "--secure-port=0".to_owned(),
    ];
    let flags: Vec<String> = own.into_iter().chain(FLAGS.map(ToOwned::to_owned)).collect();
    cluster.run(UPSTREAM, &cluster.assets().upstream_cloud_manager()?, &flags)?;
    Ok(())
}

/// The state that a takeover must not change.
#[derive(Debug, PartialEq)]
struct ClusterState {
    /// Uid and version of Nodes and Services, by name. The version covers labels, taints, finalizers and status.
    objects: BTreeMap<String, (Option<String>, Option<String>)>,
    balancers: Vec<LoadBalancerView>,
    routes: Vec<RouteView>,
    /// The numbers of load balancers, addresses and routes that were ever created.
    created: [u64; 3],
}

async fn cluster_state(cloud: &CloudBed) -> Result<ClusterState> {
    let nodes = cloud.nodes().list(&ListParams::default()).await?.items;
    let services = services(cloud).list(&ListParams::default()).await?.items;
    let node = |node: &Node| (format!("node {}", node.name_any()), (node.uid(), node.resource_version()));
    let service = |service: &Service| (service.name_any(), (service.uid(), service.resource_version()));
    let calls = |operation| cloud.cloud.calls(operation).calls;
    Ok(ClusterState {
        objects: nodes.iter().map(node).chain(services.iter().map(service)).collect(),
        balancers: cloud.cloud.snapshot().balancers,
        routes: cloud.cloud.snapshot().routes,
        created: [Operation::CreateBalancer, Operation::AllocateAddress, Operation::SetRoute].map(calls),
    })
}

/// Returns the holder of the Lease that both managers use.
async fn holder(cloud: &CloudBed) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(cloud.bed.client.clone(), "kube-system");
    let lease = leases.get(UPSTREAM).await?;
    lease
        .spec
        .and_then(|spec| spec.holder_identity)
        .filter(|holder| !holder.is_empty())
        .context("the Lease has no holder")
}

/// Waits until a process other than `before` leads; returns its identity.
async fn until_led_by_another(cloud: &CloudBed, before: &str) -> Result<String> {
    eventually("another process leads", || async {
        let now = holder(cloud).await?;
        ensure!(now != before, "{now} still leads");
        Ok(now)
    })
    .await
}

/// Checks that the manager works: a new node is initialized, and its network is routed.
async fn check_node_and_route(cloud: &CloudBed, node: &str, network: &str) -> Result<()> {
    cloud.register_instance(node).await?;
    until_initialized(cloud, node).await?;
    cloud.edit(node, json!({"spec": {"podCIDR": network, "podCIDRs": [network]}})).await?;
    eventually(format!("{network} is routed"), || async {
        let routes = cloud.cloud.snapshot().routes;
        ensure!(routes.iter().any(|route| route.destination.to_string() == network), "{routes:?}");
        let status = cloud.nodes().get(node).await?.status.unwrap_or_default();
        let reasons = status.conditions.unwrap_or_default().into_iter().filter_map(|condition| condition.reason);
        ensure!(reasons.collect::<Vec<_>>().contains(&"RouteCreated".to_owned()), "{node} has no condition");
        Ok(())
    })
    .await?;
    cloud.set_ready_condition(node, "True").await
}

async fn until_routes_left(cloud: &CloudBed, count: usize) -> Result<()> {
    eventually(format!("{count} routes are left"), || async {
        let routes = cloud.cloud.snapshot().routes;
        ensure!(routes.len() == count, "{routes:?}");
        Ok(())
    })
    .await
}

async fn check_unchanged(cloud: &CloudBed, before: &ClusterState) -> Result<()> {
    during(QUIET, "nothing is changed", || async {
        let now = cluster_state(cloud).await?;
        ensure!(now == *before, "{now:?} instead of {before:?}");
        Ok(())
    })
    .await
}

/// Three takeovers: to our manager, to upstream's, and to ours again. Each manager initializes a node, creates a load
/// balancer, and changes objects of the other one.
pub async fn nodes_and_services_are_unchanged_by_a_takeover(_: Space) -> Result<()> {
    let cloud = CloudBed::start().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let serving = tokio::spawn(cloud.cloud.clone().serve(listener));

    start_upstream(&cloud, &url)?;
    check_node_and_route(&cloud, "theirs-1", "10.244.1.0/24").await.context("under upstream's")?;
    check_node_and_route(&cloud, "theirs-2", "10.244.2.0/24").await?;
    create(&cloud, "web").await?;
    until_balanced(&cloud, "web", 1, 2).await?;
    // An instance that is stopped before the takeover and started after it.
    cloud.cloud.stop_instance("theirs-2");
    cloud.set_ready_condition("theirs-2", "Unknown").await?;
    until_shutdown_taint(&cloud, "theirs-2", true).await?;
    let theirs = holder(&cloud).await?;
    cloud.bed.cluster.kill(UPSTREAM)?;
    let before = cluster_state(&cloud).await?;

    let faults = Faults::default();
    let manager: Manager = cloud.start_ccm(&faults, &FLAGS).await?;
    let ours = until_led_by_another(&cloud, &theirs).await?;
    check_unchanged(&cloud, &before).await.context("from upstream's to ours")?;
    ensure!(faults.count(Call::is_object_write) == 0, "{:?}", faults.requests());
    cloud.cloud.start_instance("theirs-2");
    cloud.set_ready_condition("theirs-2", "True").await?;
    until_shutdown_taint(&cloud, "theirs-2", false).await?;
    check_node_and_route(&cloud, "ours-1", "10.244.3.0/24").await.context("under ours")?;
    until_balanced(&cloud, "web", 1, 3).await?;
    let ports = json!([{"name": "http", "port": 80}, {"name": "more", "port": 81}]);
    edit(&cloud, "web", json!({"spec": {"ports": ports}})).await?;
    until_balanced(&cloud, "web", 2, 3).await?;
    create(&cloud, "own").await?;
    until_balanced(&cloud, "own", 1, 3).await?;
    manager.crash().await;
    let before = cluster_state(&cloud).await?;
    ensure!(before.created == [2, 2, 3], "created {:?} load balancers, addresses and routes", before.created);

    start_upstream(&cloud, &url)?;
    let theirs = until_led_by_another(&cloud, &ours).await?;
    check_unchanged(&cloud, &before).await.context("from ours to upstream's")?;
    services(&cloud).delete("own", &DeleteParams::default()).await?;
    until_service_deleted(&cloud, "own").await.context("upstream's manager did not delete a load balancer of ours")?;
    cloud.cloud.remove_instance("ours-1");
    cloud.set_ready_condition("ours-1", "False").await?;
    until_node_deleted(&cloud, "ours-1").await.context("upstream's manager did not delete a node of ours")?;
    until_routes_left(&cloud, 2).await.context("upstream's manager did not delete a route of ours")?;
    until_balanced(&cloud, "web", 2, 2).await?;
    cloud.bed.cluster.kill(UPSTREAM)?;

    let _manager = cloud.start_ccm(&Faults::default(), &FLAGS).await?;
    until_led_by_another(&cloud, &theirs).await?;
    cloud.nodes().delete("theirs-1", &DeleteParams::default()).await?;
    until_routes_left(&cloud, 1).await.context("our manager did not delete a route of upstream's")?;
    services(&cloud).delete("web", &DeleteParams::default()).await?;
    until_service_deleted(&cloud, "web").await.context("our manager did not delete a load balancer of upstream's")?;
    ensure!(cloud.cloud.snapshot().balancers.is_empty());
    serving.abort();
    Ok(())
}
