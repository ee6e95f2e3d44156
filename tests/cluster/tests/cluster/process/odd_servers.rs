//! API servers whose configuration differs from kubeadm's, and with which upstream's manager starts.

use anyhow::Result;
use cluster_tests::programs::{KCM, Process, command};
use cluster_tests::{Space, all_gates};
use control_plane::{Identity, Options};

/// Without a CA for front proxies, `extension-apiserver-authentication` has a client CA only.
pub async fn manager_starts_without_a_request_header_ca(_: Space) -> Result<()> {
    let cluster = all_gates::control_plane(Options {
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
