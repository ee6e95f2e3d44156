//! `cargo xtask control-plane`: a real API server for manual tests.

use std::time::Instant;

use anyhow::Result;
use control_plane::assets::Program;
use control_plane::{ControlPlane, Identity, Options};

/// Start a private Kubernetes control plane with fake nodes, until Ctrl-C.
///
/// etcd, API server and scheduler are stock Kubernetes 1.37; kwok simulates kubelets, so that pods become Ready without
/// running anything. No controller manager runs: start one with the printed kubeconfig. All files are in a temporary
/// folder, which is removed when this command ends.
///
/// The programs come from KUBEBUILDER_ASSETS (a folder in envtest's layout), else from the cache (KCM_TEST_ASSETS, else
/// ~/.cache/kcm-control-plane). Otherwise they are built once with Go, which takes about ten minutes.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask control-plane --nodes 10
  cargo xtask control-plane --audit --apiserver-flag=--feature-gates=AllAlpha=true
  KEEP_CONTROL_PLANE=1 cargo xtask control-plane    # keep folder and logs at the end")]
pub struct Arguments {
    /// Number of fake nodes
    #[arg(long, default_value_t = 3, value_name = "N")]
    nodes: u32,

    /// Log the controller managers' requests to audit.log in the folder
    #[arg(long)]
    audit: bool,

    /// An additional flag for the API server, as --name=value; may be repeated
    #[arg(long, value_name = "FLAG", allow_hyphen_values = true)]
    apiserver_flag: Vec<String>,
}

/// Starts the control plane, prints instructions, and waits for Ctrl-C.
pub fn run(arguments: Arguments) -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(serve(arguments))
}

async fn serve(arguments: Arguments) -> Result<()> {
    let options = Options {
        nodes: arguments.nodes,
        audit: arguments.audit,
        extra_apiserver_flags: arguments.apiserver_flag,
        ..Options::default()
    };
    let start = Instant::now();
    let cluster = ControlPlane::start(options).await?;
    println!(
        "Kubernetes 1.37 at {} with {} fake nodes, started in {:.1} s. Its folder: {}

  export KUBECONFIG={}
  {} get nodes

A controller manager's kubeconfig, with the rights of its role only:
  {}
Ctrl-C stops the control plane and removes the folder.",
        cluster.server(),
        arguments.nodes,
        start.elapsed().as_secs_f64(),
        cluster.folder().display(),
        cluster.kubeconfig(Identity::Admin)?.display(),
        cluster.assets().path(Program::Kubectl)?.display(),
        cluster.kubeconfig(Identity::ControllerManager)?.display(),
    );
    tokio::signal::ctrl_c().await?;
    println!("stopping the control plane");
    Ok(())
}
