//! Clusters with many custom kinds, on an API server with its default flags: 100 streams on each connection.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use cluster_tests::programs::{KCM, Process, command};
use cluster_tests::{Space, during, eventually};
use control_plane::{ControlPlane, Identity};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::serving::bare;

const GROUP: &str = "many.example.com";

/// Maximum time between renewals: the leader ends its term after ten seconds without one.
const LATE_RENEWAL: Duration = Duration::from_secs(6);

/// Time for which the Lease is observed.
const OBSERVED: Duration = Duration::from_secs(30);

/// Streams that the API server allows on a connection by default. Built-in kinds are watched on about as many.
const STREAMS: usize = 100;

/// Maximum number of connections for other purposes: short requests of each identity, the Lease, and long lists.
const OTHER_CONNECTIONS: usize = 6;

fn definitions(count: usize) -> String {
    (0..count).fold(String::new(), |mut all, number| {
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("kind{number}s.{GROUP}")},
            "spec": {
                "group": GROUP, "scope": "Namespaced",
                "names": {"plural": format!("kind{number}s"), "kind": format!("Kind{number}")},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true,
                }}}],
            },
        });
        let _ = writeln!(all, "---\n{definition}");
        all
    })
}

async fn until_served(client: &Client, count: usize) -> Result<()> {
    eventually(format!("{count} kinds are served"), || async {
        let list: Value = client.request(http::Request::get(format!("/apis/{GROUP}/v1")).body(Vec::new())?).await?;
        let served = list["resources"].as_array().map_or(0, Vec::len);
        ensure!(served == count, "{served} are served");
        Ok(())
    })
    .await
}

fn start(cluster: &ControlPlane) -> Result<Process> {
    let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?;
    let flags = [
        format!("--kubeconfig={}", kubeconfig.display()),
        "--use-service-account-credentials".to_owned(),
        format!("--service-account-private-key-file={}", cluster.service_account_key().display()),
    ];
    Process::start(cluster, "kcm-many-kinds", &command(cluster, KCM)?, &flags)
}

async fn deployment_gets_its_pods(cluster: &ControlPlane, client: &Client) -> Result<()> {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "c"}]},
        }},
    });
    cluster.kubectl_with_input(&["apply", "-f", "-"], &deployment.to_string())?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    eventually("the Deployment has its pods", || async {
        let count = pods.list(&ListParams::default().labels("app=web")).await?.items.len();
        ensure!(count == 3, "it has {count}");
        Ok(())
    })
    .await
}

async fn lease_is_renewed_in_time(client: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-system");
    let holder = || async {
        let spec = leases.get("kube-controller-manager").await?.spec.context("no spec")?;
        let renewed = spec.renew_time.context("never renewed")?.0;
        anyhow::Ok((spec.holder_identity.context("no holder")?, renewed))
    };
    let (first, _) = eventually("the manager leads", holder).await?;
    during(OBSERVED, "the Lease is renewed in time", || async {
        let (now, renewed) = holder().await?;
        ensure!(now == first, "the leader changed from {first} to {now}");
        let age = Timestamp::now().duration_since(renewed);
        ensure!(age.unsigned_abs() < LATE_RENEWAL, "renewed {age:#} ago");
        Ok(())
    })
    .await
}

/// Checks that the watches use several connections, each of which carries many of them.
fn watches_share_few_connections(cluster: &ControlPlane, manager: &Process, kinds: usize) -> Result<()> {
    let port = cluster.server().rsplit_once(':').context("no port")?.1.parse()?;
    let connections = manager.connections_to(port)?;
    let least = kinds.div_ceil(STREAMS) + 1;
    let most = (kinds + STREAMS).div_ceil(STREAMS) + OTHER_CONNECTIONS;
    ensure!((least..=most).contains(&connections), "{connections} connections instead of {least} to {most}");
    println!("{kinds} custom kinds: {connections} connections");
    Ok(())
}

async fn works_with_kinds(count: usize) -> Result<()> {
    let cluster = bare().await?;
    let client = cluster.client(Identity::Admin).await?;
    cluster.kubectl_with_input(&["create", "-f", "-"], &definitions(count))?;
    until_served(&client, count).await?;
    let manager = start(&cluster)?;
    let works = async {
        deployment_gets_its_pods(&cluster, &client).await?;
        lease_is_renewed_in_time(&client).await?;
        watches_share_few_connections(&cluster, &manager, count)
    };
    works.await.with_context(|| {
        let log = manager.log(&cluster).unwrap_or_default();
        let mut last: Vec<&str> = log.lines().rev().take(30).collect();
        last.reverse();
        last.join("\n")
    })?;
    println!("{count} custom kinds: {} KiB resident", manager.resident_kib()?);
    manager.stop(&cluster).await
}

/// More kinds than streams on one connection.
pub async fn leader_works_with_150_custom_kinds(_: Space) -> Result<()> {
    works_with_kinds(150).await
}

/// The number of kinds of large platforms; prints the memory.
pub async fn leader_works_with_500_custom_kinds(_: Space) -> Result<()> {
    works_with_kinds(500).await
}
