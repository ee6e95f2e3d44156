//! Two ccm processes with one mock cloud, which outlives both: the leader is killed, the other process continues.

use std::fs;

use anyhow::{Context, Result, ensure};
use cluster_tests::programs::{CCM, Process, command};
use cluster_tests::{CloudBed, QUIET, Space, during, eventually};
use control_plane::Identity;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, DeleteParams};
use provider_mock::{Effect, Fault, InstanceConfig, Operation, Pattern};
use serde_json::json;
use tokio::net::TcpListener;

use crate::cloud::service::{create, services, until_balanced, until_service_deleted};

/// Serves the cloud over HTTP; returns the `--cloud-config` for processes that use it.
async fn serve(cloud: &CloudBed) -> Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(cloud.cloud.clone().serve(listener));
    Ok(json!({"url": url}).to_string())
}

fn start(cloud: &CloudBed, name: &str, config: &str) -> Result<Process> {
    let cluster = &cloud.bed.cluster;
    let file = cluster.folder().join("cloud-config");
    fs::write(&file, config)?;
    let arguments = [
        format!("--kubeconfig={}", cluster.kubeconfig(Identity::Admin)?.display()),
        "--cloud-provider=mock".to_owned(),
        format!("--cloud-config={}", file.display()),
        "--controllers=service".to_owned(),
        "--leader-elect-lease-duration=12s".to_owned(),
        "--leader-elect-renew-deadline=10s".to_owned(),
        "--leader-elect-retry-period=500ms".to_owned(),
    ];
    Process::start(cluster, name, &command(cluster, CCM)?, &arguments)
}

/// Waits until the Lease has a holder other than `former`; returns it.
async fn leader(cloud: &CloudBed, former: &str) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(cloud.bed.client.clone(), "kube-system");
    eventually("a process leads", || async {
        let lease = leases.get("cloud-controller-manager").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity).context("no holder")?;
        ensure!(!holder.is_empty() && holder != former, "the holder is {holder:?}");
        Ok(holder)
    })
    .await
}

pub async fn standby_continues_over_the_same_cloud_after_the_leader_is_killed(_: Space) -> Result<()> {
    let cloud = CloudBed::start().await?;
    let config = serve(&cloud).await?;
    let id = cloud.cloud.add_instance(&InstanceConfig::named("node-1"));
    cloud.register("node-1", json!({"spec": {"providerID": id}})).await?;

    start(&cloud, "first", &config)?;
    let first = leader(&cloud, "").await?;
    start(&cloud, "second", &config)?;
    create(&cloud, "before").await?;
    until_balanced(&cloud, "before", 1, 1).await?;

    // The leader is killed during the call that creates a load balancer, which the cloud executes.
    let unanswered = Fault::at(Pattern::One(Operation::CreateBalancer), 1, Effect::Unanswered);
    let fault = cloud.cloud.add_fault(unanswered.about("default/during"))?;
    create(&cloud, "during").await?;
    eventually("the leader's call is in progress", || async {
        let faults = cloud.cloud.snapshot().faults;
        ensure!(faults.iter().any(|armed| armed.id == fault && armed.fired > 0), "{faults:?}");
        Ok(())
    })
    .await?;
    cloud.bed.cluster.kill("first")?;
    cloud.cloud.remove_fault(fault);

    leader(&cloud, &first).await?;
    create(&cloud, "after").await?;
    for name in ["before", "during", "after"] {
        until_balanced(&cloud, name, 1, 1).await?;
    }
    let balancers = cloud.cloud.snapshot().balancers;
    ensure!(balancers.len() == 3, "one load balancer for each Service: {balancers:?}");
    let changes = cloud.cloud.changing_calls();
    during(QUIET, "no work remains", || async {
        ensure!(cloud.cloud.changing_calls() == changes, "{:?}", cloud.cloud.snapshot().calls);
        Ok(())
    })
    .await?;

    for name in ["before", "during", "after"] {
        services(&cloud).delete(name, &DeleteParams::default()).await?;
        until_service_deleted(&cloud, name).await?;
    }
    let balancers = cloud.cloud.snapshot().balancers;
    ensure!(balancers.is_empty(), "load balancers are left: {balancers:?}");
    Ok(())
}
