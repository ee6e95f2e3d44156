//! The controller managers of a cluster: kcm, or any manager with upstream's flags, and ccm with the mock cloud.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use control_plane::{ControlPlane, Identity};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::address::{Addresses, CLOUD_PORT, PODS, node_name};

/// The name of the controller manager's process and log.
pub const MANAGER: &str = "manager";

/// The name of the Lease of the leading controller manager.
const LEASE: &str = "kube-controller-manager";

/// Maximum time until a manager is leader. The Lease of one that was killed expires after 15 s.
const LEADER_DEADLINE: Duration = Duration::from_secs(60);

/// Interval at which the Lease is read.
const PERIOD: Duration = Duration::from_millis(200);

/// The name of the cloud controller manager's process and log.
pub const CLOUD_MANAGER: &str = "ccm";

/// The user that the cloud controller manager runs as, with the rights of its manifest.
const CLOUD_USER: &str = "system:cloud-controller-manager";
const CLOUD_RIGHTS: &str = include_str!("../../../deploy/ccm-rbac.yaml");

/// Starts a controller manager with kubeadm's flags.
///
/// # Errors
/// When it cannot be started.
pub fn start_manager(cluster: &ControlPlane, program: &Path) -> Result<()> {
    let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?;
    let flags: [(&str, PathBuf); 18] = [
        ("allocate-node-cidrs", "true".into()),
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig.clone()),
        ("bind-address", "127.0.0.1".into()),
        ("client-ca-file", cluster.ca_certificate()),
        ("cloud-provider", "external".into()),
        ("cluster-cidr", PODS.into()),
        ("cluster-name", "kubernetes".into()),
        ("cluster-signing-cert-file", cluster.ca_certificate()),
        ("cluster-signing-key-file", cluster.ca_key()),
        ("controllers", "*,bootstrapsigner,tokencleaner".into()),
        ("kubeconfig", kubeconfig),
        ("leader-elect", "true".into()),
        ("requestheader-client-ca-file", cluster.front_proxy_ca()),
        ("root-ca-file", cluster.ca_certificate()),
        ("service-account-private-key-file", cluster.service_account_key()),
        ("service-cluster-ip-range", "10.96.0.0/16".into()),
        ("use-service-account-credentials", "true".into()),
    ];
    let flags: Vec<String> = flags.iter().map(|(name, value)| format!("--{name}={}", value.display())).collect();
    cluster.run(MANAGER, program, &flags)?;
    Ok(())
}

/// Returns the identity of the leading manager, or `None`.
///
/// # Errors
/// When the Lease cannot be read.
pub async fn leader(cluster: &ControlPlane) -> Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(cluster.client(Identity::Admin).await?, "kube-system");
    let lease = leases.get_opt(LEASE).await.context("get the manager's Lease")?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity).filter(|holder| !holder.is_empty()))
}

/// Waits until a manager other than `previous` is the leader.
///
/// # Errors
/// When a process of the cluster exits first, or no other manager becomes the leader in time.
pub async fn wait_for_other_leader(cluster: &ControlPlane, previous: Option<&str>) -> Result<()> {
    let deadline = Instant::now() + LEADER_DEADLINE;
    loop {
        cluster.check()?;
        let leader = leader(cluster).await?;
        if leader.is_some() && leader.as_deref() != previous {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "no other manager became the leader in {} s", LEADER_DEADLINE.as_secs());
        sleep(PERIOD).await;
    }
}

/// Starts the cloud controller manager. The instances of its cloud are the cluster's nodes.
///
/// # Errors
/// When it cannot be started, or not be given its rights.
pub fn start_cloud_manager(cluster: &ControlPlane, program: &Path, addresses: Addresses, nodes: u8) -> Result<()> {
    let config = cluster.folder().join("cloud.json");
    let instances: Vec<_> = (1..=nodes)
        .map(|number| {
            json!({
                "name": node_name(number),
                "addresses": [
                    { "kind": "InternalIP", "address": addresses.node(number) },
                    { "kind": "Hostname", "address": node_name(number) },
                ],
            })
        })
        .collect();
    let content = json!({
        "instances": instances,
        "balancer_network": addresses.balancers(),
        "listen": format!("{}:{CLOUD_PORT}", addresses.gateway()),
    });
    fs::write(&config, content.to_string()).with_context(|| format!("write {}", config.display()))?;
    cluster.kubectl_with_input(&["apply", "--filename=-"], CLOUD_RIGHTS)?;
    let kubeconfig = cluster.kubeconfig(Identity::User { name: CLOUD_USER.into(), groups: Vec::new() })?;
    let flags = [
        format!("--kubeconfig={}", kubeconfig.display()),
        "--cloud-provider=mock".into(),
        format!("--cloud-config={}", config.display()),
        format!("--cluster-cidr={PODS}"),
        "--secure-port=0".into(),
        "--use-service-account-credentials=true".into(),
    ];
    cluster.run(CLOUD_MANAGER, program, &flags)?;
    Ok(())
}
