//! `cargo xtask demo`: a scenario with a Deployment and with instances of a mock cloud, run by our managers on a real
//! API server.

mod cloud;
mod cloud_steps;
mod environment;
mod pods;
mod scenario;
mod steps;
mod volumes;

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use control_plane::assets::{Assets, Program};
use control_plane::{ControlPlane, Identity, Options};
use tokio::time::{Duration, sleep};

use crate::cargo;
use crate::console::Console;
use crate::interrupt::Interrupted;
use cloud::CLOUD_MANAGER;
use environment::{DemoEnvironment, MANAGER};

/// Watch kcm manage a Deployment, and ccm the instances of a mock cloud, on a real Kubernetes API server.
///
/// etcd, API server and scheduler are stock Kubernetes 1.37; kwok simulates kubelets, so that pods become Ready without
/// running anything. kcm runs with the flags and the permissions that kubeadm gives to a kube-controller-manager. ccm
/// has a mock cloud in the memory of its process. All files are in a temporary folder, which is removed when this
/// command ends.
///
/// Missing programs are built first: kcm and ccm by cargo, the programs of the control plane once with Go, which takes
/// about ten minutes (`cargo xtask control-plane --help` names their folder).
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask demo                     # run the scenario, then keep running for your own kubectl
  cargo xtask demo --once              # run the scenario; the exit status is its result
  cargo xtask demo --nodes 10 --keep-logs")]
pub struct Arguments {
    /// Exit after the scenario, with an exit status other than 0 if a step failed
    #[arg(long)]
    once: bool,

    /// Number of fake nodes
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,

    /// Keep the processes' logs in a new folder (if a step fails, they are always kept)
    #[arg(long)]
    keep_logs: bool,

    /// The controller manager's binary instead of kcm, for example upstream's, for a comparison
    #[arg(long, value_name = "PATH")]
    manager: Option<PathBuf>,
}

/// Runs the scenario. A failure ends the process, after one sentence and the cleanup.
pub fn run(arguments: Arguments) -> Result<()> {
    if let Err(error) = prepare_and_show(&arguments) {
        Console::error().failed(&format!("{error:#}"));
        std::process::exit(1);
    }
    Ok(())
}

fn prepare_and_show(arguments: &Arguments) -> Result<()> {
    let console = Console::output();
    console.title("Preparing");
    Assets::base()?;
    let manager = match &arguments.manager {
        Some(path) if path.is_file() => path.canonicalize().with_context(|| format!("resolve {}", path.display()))?,
        Some(path) => bail!("--manager is {}, which is not a file: use the path of a binary", path.display()),
        None => cargo::build(MANAGER, &[])?,
    };
    let cloud_manager = cargo::build(CLOUD_MANAGER, &["--no-default-features"])?;
    let runtime = tokio::runtime::Runtime::new().context("start threads")?;
    runtime.block_on(show(arguments, console, Binaries { manager, cloud_manager }))
}

/// The managers' binaries.
struct Binaries {
    manager: PathBuf,
    cloud_manager: PathBuf,
}

async fn show(arguments: &Arguments, console: Console, binaries: Binaries) -> Result<()> {
    let mut interrupted = Interrupted::listen()?;
    let options = Options { nodes: arguments.nodes, ..Options::default() };
    let environment = tokio::select! {
        environment = start(options, console, binaries) => environment?,
        _ = interrupted.wait() => bail!("interrupted while the control plane was starting"),
    };
    let played = tokio::select! {
        played = scenario::run(&environment, steps::SCENARIO) => played,
        _ = interrupted.wait() => bail!("interrupted before the end of the scenario"),
    };
    if played.is_err() || arguments.keep_logs {
        match environment.keep_logs().await {
            Ok(folder) => console.line(&format!("The logs are in {}", folder.display())),
            Err(error) => console.line(&format!("The logs could not be kept: {error:#}")),
        }
    }
    played?;
    if !arguments.once {
        console.line(&invitation(&environment)?);
        tokio::select! {
            ended = watch_over(&environment.cluster) => ended?,
            _ = interrupted.wait() => console.line("ending"),
        }
        if arguments.keep_logs {
            environment.keep_logs().await?;
        }
    }
    Ok(())
}

/// Starts the control plane and the managers.
async fn start(options: Options, console: Console, binaries: Binaries) -> Result<DemoEnvironment> {
    let nodes = options.nodes;
    let start = std::time::Instant::now();
    let cluster = ControlPlane::start(options).await?;
    console.line(&format!(
        "Kubernetes 1.37 runs at {} with {nodes} fake nodes ({:.1} s).",
        cluster.server(),
        start.elapsed().as_secs_f64()
    ));
    let environment = DemoEnvironment::new(cluster, console, binaries.manager, binaries.cloud_manager).await?;
    environment.start_manager()?;
    Ok(environment)
}

fn invitation(environment: &DemoEnvironment) -> Result<String> {
    Ok(format!(
        "
The cluster keeps running; try it in another terminal:

  export KUBECONFIG={}
  alias kubectl={}
  kubectl scale deployment/{} --replicas=20
  kubectl get deployments,replicasets,pods

The managers' logs: {} and {}
Ctrl-C ends it and leaves nothing behind.",
        environment.cluster.kubeconfig(Identity::Admin)?.display(),
        environment.cluster.assets().path(Program::Kubectl)?.display(),
        steps::DEPLOYMENT,
        environment.cluster.log(MANAGER).display(),
        environment.cluster.log(CLOUD_MANAGER).display(),
    ))
}

/// Returns only if a process has exited on its own.
async fn watch_over(cluster: &ControlPlane) -> Result<()> {
    loop {
        cluster.check()?;
        sleep(Duration::from_millis(500)).await;
    }
}
