//! `cargo xtask demo`: a story of a Deployment's life and of a cloud's machines, told by our managers on a real API
//! server.

mod cloud;
mod pods;
mod stage;
mod steps;
mod story;
mod volumes;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use control_plane::assets::{Assets, Program};
use control_plane::{ControlPlane, Identity, Options};
use tokio::time::{Duration, sleep};

use crate::cargo;
use crate::interrupt::Interrupted;
use crate::page::Page;
use cloud::CLOUD_MANAGER;
use stage::{MANAGER, Stage};

/// Watch kcm run a Deployment, and ccm the machines of a mock cloud, on a real Kubernetes API server.
///
/// etcd, API server and scheduler are stock Kubernetes 1.37; kubelets are played by kwok, so pods become Ready without
/// running anything. kcm runs with the flags and the rights that kubeadm gives to a kube-controller-manager. Everything
/// lies in a temporary folder and ends with this command. ccm has a cloud in memory, which is its own process's.
///
/// What is missing is built first: kcm and ccm by cargo, the programs of the control plane once with Go, which takes some ten
/// minutes (`cargo xtask control-plane --help` says where they are kept).
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask demo                     # tell the story, then stay for your own kubectl
  cargo xtask demo --once              # tell the story; the exit status is its result
  cargo xtask demo --nodes 10 --keep-logs")]
pub struct Arguments {
    /// End after the story, with an exit status other than 0 if a step failed
    #[arg(long)]
    once: bool,

    /// How many fake nodes to make
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,

    /// Keep the processes' logs in a folder of their own (they are kept anyway when a step fails)
    #[arg(long)]
    keep_logs: bool,

    /// Another controller manager than ours, upstream's for instance, to see it do the same
    #[arg(long, value_name = "PATH")]
    manager: Option<PathBuf>,
}

/// Tells the story. A failure ends the process, after one sentence and when everything is cleaned up.
pub fn run(arguments: Arguments) -> Result<()> {
    if let Err(error) = prepare_and_show(&arguments) {
        Page::error().failed(&format!("{error:#}"));
        std::process::exit(1);
    }
    Ok(())
}

fn prepare_and_show(arguments: &Arguments) -> Result<()> {
    let page = Page::output();
    page.title("Getting ready");
    Assets::base()?;
    let manager = match &arguments.manager {
        Some(path) if path.is_file() => path.canonicalize().with_context(|| format!("resolve {}", path.display()))?,
        Some(path) => bail!("--manager is {}, which is no file: give the path of a binary", path.display()),
        None => cargo::build(MANAGER, &[])?,
    };
    let cloud_manager = cargo::build(CLOUD_MANAGER, &["--no-default-features"])?;
    let runtime = tokio::runtime::Runtime::new().context("start threads")?;
    runtime.block_on(show(arguments, page, Binaries { manager, cloud_manager }))
}

/// What is shown.
struct Binaries {
    manager: PathBuf,
    cloud_manager: PathBuf,
}

async fn show(arguments: &Arguments, page: Page, binaries: Binaries) -> Result<()> {
    let mut interrupted = Interrupted::listen()?;
    let options = Options { nodes: arguments.nodes, ..Options::default() };
    let stage = tokio::select! {
        stage = set(options, page, binaries) => stage?,
        () = interrupted.wait() => bail!("interrupted while the control plane was starting"),
    };
    let told = tokio::select! {
        told = story::tell(&stage, steps::STORY) => told,
        () = interrupted.wait() => bail!("interrupted before the story's end"),
    };
    if told.is_err() || arguments.keep_logs {
        match stage.keep_logs().await {
            Ok(folder) => page.line(&format!("The logs are in {}", folder.display())),
            Err(error) => page.line(&format!("The logs could not be kept: {error:#}")),
        }
    }
    told?;
    if !arguments.once {
        page.line(&invitation(&stage)?);
        tokio::select! {
            ended = watch_over(&stage.cluster) => ended?,
            () = interrupted.wait() => page.line("ending"),
        }
        if arguments.keep_logs {
            stage.keep_logs().await?;
        }
    }
    Ok(())
}

/// Starts the control plane and the managers.
async fn set(options: Options, page: Page, binaries: Binaries) -> Result<Stage> {
    let nodes = options.nodes;
    let start = std::time::Instant::now();
    let cluster = ControlPlane::start(options).await?;
    page.line(&format!(
        "Kubernetes 1.37 answers at {} with {nodes} fake nodes ({:.1} s).",
        cluster.server(),
        start.elapsed().as_secs_f64()
    ));
    let stage = Stage::new(cluster, page, binaries.manager, binaries.cloud_manager).await?;
    stage.start_manager()?;
    Ok(stage)
}

fn invitation(stage: &Stage) -> Result<String> {
    Ok(format!(
        "
It keeps running; try it in another terminal:

  export KUBECONFIG={}
  alias kubectl={}
  kubectl scale deployment/{} --replicas=20
  kubectl get deployments,replicasets,pods

The managers' logs: {} and {}
Ctrl-C ends it and leaves nothing behind.",
        stage.cluster.kubeconfig(Identity::Admin)?.display(),
        stage.cluster.assets().path(Program::Kubectl)?.display(),
        steps::DEPLOYMENT,
        stage.cluster.log(MANAGER).display(),
        stage.cluster.log(CLOUD_MANAGER).display(),
    ))
}

/// Ends only when a process has ended by itself.
async fn watch_over(cluster: &ControlPlane) -> Result<()> {
    loop {
        cluster.check()?;
        sleep(Duration::from_millis(500)).await;
    }
}
