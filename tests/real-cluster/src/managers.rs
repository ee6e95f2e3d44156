//! The controller managers of a cluster: kcm, or any manager with upstream's flags, and ccm with the mock cloud.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use control_plane::{ControlPlane, Identity};
use serde_json::json;

use crate::address::{Addresses, CLOUD_PORT, PODS, node_name};

/// The controller manager's process and log.
pub const MANAGER: &str = "manager";

/// The cloud controller manager's process and log.
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
