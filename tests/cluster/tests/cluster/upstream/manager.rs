//! Upstream's manager as a process of a test.

use anyhow::Result;
use cluster_tests::all_gates;
use control_plane::{ControlPlane, Identity};

/// Name of its process.
pub const UPSTREAM: &str = "kube-controller-manager";

/// The controllers of Deployments.
pub const ROLLOUTS: &str = "deployment-controller,replicaset-controller";

/// Runs upstream's manager with these controllers and these additional flags.
pub fn start_upstream(cluster: &ControlPlane, controllers: &str, more: &[&str]) -> Result<()> {
    let controllers = format!("--controllers={controllers}");
    let flags: Vec<&str> = more.iter().copied().chain([&*controllers]).collect();
    start_upstream_with(cluster, &flags)
}

/// Runs upstream's manager with these flags.
pub fn start_upstream_with(cluster: &ControlPlane, flags: &[&str]) -> Result<()> {
    let program = cluster.assets().upstream_manager()?;
    let mut all = vec![
        format!("--kubeconfig={}", cluster.kubeconfig(Identity::ControllerManager)?.display()),
        "--use-service-account-credentials=true".into(),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
    ];
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    all.extend(all_gates::of_process(&flags));
    all.extend(flags);
    cluster.run(UPSTREAM, &program, &all)?;
    Ok(())
}
