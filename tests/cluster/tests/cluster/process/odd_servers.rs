//! API servers that are set up differently from kubeadm's, and that upstream's manager starts with.

use anyhow::Result;
use cluster_tests::Space;
use cluster_tests::programs::{KCM, Process, command};
use control_plane::{ControlPlane, Identity, Options};

/// Without a CA for front proxies, `extension-apiserver-authentication` has a client CA only.
pub async fn manager_starts_without_a_request_header_ca(_: Space) -> Result<()> {
    let cluster = ControlPlane::start(Options {
        kwok: false,
        scheduler: false,
        extra_apiserver_flags: vec!["--requestheader-client-ca-file=".to_owned()],
        ..Options::default()
    })
    .await?;
    let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?;
    let kubeconfig = kubeconfig.display();
    let flags = [
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--controllers=serviceaccount-controller".to_owned(),
    ];
    let manager = Process::start(&cluster, "kcm-without-front-proxy", &command(&cluster, KCM)?, &flags)?;
    manager.until_healthy(&cluster, "/readyz").await?;
    manager.stop(&cluster).await
}
