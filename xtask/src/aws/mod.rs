//! A mock of AWS: a cluster to try ccm on (`cargo xtask aws`), a comparison with upstream's cloud controller manager
//! for AWS (`cargo xtask differential aws`), and a benchmark of both (`cargo xtask bench aws`). moto simulates AWS.

mod bed;
mod bench;
mod cases;
mod compare;
mod intended;
mod inventory;
mod scenario;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use control_plane::Identity;
use control_plane::assets::{Program, upstream_aws_manager};

use crate::cargo;
use crate::console::Console;
use crate::interrupt::Interrupted;
use bed::{Bed, Manager};

pub use bench::bench;
pub use compare::differential;

const OURS: &str = "ours";
const UPSTREAM: &str = "upstream";

/// Run ccm for the nodes, routes and load balancers of a cluster on a mock of AWS, and try it by hand.
///
/// The control plane is stock Kubernetes 1.37; moto simulates AWS, with an instance for each node. ccm is started with
/// the permissions of its manifest; nodes are initialized, routes are created, and a Service gets a Network Load
/// Balancer and is deleted. Then everything keeps running until Ctrl-C; the kubeconfig and AWS's endpoint are printed.
///
/// Requirements: Python 3.10 or later for moto, which is installed into ~/.cache/kcm-moto the first time, and those of
/// `cargo xtask control-plane`. The first build of ccm takes some minutes because of the AWS SDK.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask aws                  # run the scenario, then keep running
  cargo xtask aws --once           # run the scenario; the exit status is its result
  cargo xtask aws --nodes 100")]
pub struct Arguments {
    /// Number of instances and nodes
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    nodes: u8,

    /// Exit after the scenario, with a non-zero status if something failed
    #[arg(long)]
    once: bool,

    /// Our manager's binary, instead of building it
    #[arg(long, value_name = "PATH")]
    ccm: Option<PathBuf>,
}

/// A cloud whose managers can be compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Cloud {
    /// AWS, simulated by moto
    Aws,
}

/// Runs the scenario, prints instructions, and waits for Ctrl-C.
pub fn run(arguments: &Arguments) -> Result<()> {
    let manager = ours(arguments.ccm.as_deref(), false)?;
    let runtime = tokio::runtime::Runtime::new().context("start threads")?;
    runtime.block_on(show(arguments, &manager))
}

async fn show(arguments: &Arguments, manager: &Manager) -> Result<()> {
    let mut interrupted = Interrupted::listen()?;
    let console = Console::output();
    let played = tokio::select! {
        played = scenario::run_scenario(console, manager, arguments.nodes.into()) => played,
        _ = interrupted.wait() => anyhow::bail!("interrupted before the end of the scenario"),
    };
    let bed = played?;
    if !arguments.once {
        console.line(&instructions(&bed, manager)?);
        tokio::select! {
            ended = watch_processes(&bed) => ended?,
            _ = interrupted.wait() => console.line("ending"),
        }
    }
    Ok(())
}

/// Returns only if a process has exited on its own.
async fn watch_processes(bed: &Bed) -> Result<()> {
    loop {
        bed.cluster.check()?;
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
}

fn instructions(bed: &Bed, manager: &Manager) -> Result<String> {
    Ok(format!(
        "
The cluster keeps running; try it in another terminal:

  export KUBECONFIG={}
  alias kubectl={}
  kubectl create service loadbalancer web --tcp=80:8080
  kubectl get services,nodes --output=wide

The simulated AWS is at {}: use `aws --endpoint-url` with it, region {} and any credentials.
The manager's log: {}
Ctrl-C ends it and leaves nothing behind.",
        bed.cluster.kubeconfig(Identity::Admin)?.display(),
        bed.cluster.assets().path(Program::Kubectl)?.display(),
        bed.moto.proxy.url(),
        moto::REGION,
        bed.cluster.log(manager.name).display(),
    ))
}

/// Returns upstream's manager, built with Go the first time.
fn upstream() -> Result<Manager> {
    Ok(Manager { name: UPSTREAM, program: upstream_aws_manager()?, own_rights: false })
}

/// Returns ccm with its AWS provider: the given one, or a build.
fn ours(given: Option<&Path>, release: bool) -> Result<Manager> {
    let program = match given {
        Some(path) => path.canonicalize().with_context(|| format!("--ccm {}", path.display()))?,
        None => {
            eprintln!("building ccm; the AWS SDK takes some minutes the first time");
            let more = ["--features=aws", "--release"];
            cargo::build("ccm", if release { &more } else { &more[..1] })?
        }
    };
    Ok(Manager { name: OURS, program, own_rights: true })
}
