//! `cargo xtask cluster`: a real cluster on this machine, managed by kcm and ccm.

mod programs;
mod served;
pub mod smoke;
pub mod user_effects;
mod volumes;
pub mod web;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use control_plane::assets::Program;
use real_cluster::{Addresses, RealCluster, control};
use tokio::time::sleep;

use crate::interrupt::{self, ExitCode, Interrupted};
use crate::{cargo, root};

pub use programs::{Manager, Order, cloud_program, setup};

/// Interval at which processes are checked.
const CHECK_PERIOD: Duration = Duration::from_millis(500);

/// Start a real Kubernetes cluster on this machine, managed by kcm and ccm, until Ctrl-C.
///
/// Each node is a set of namespaces with a stock kubelet, kube-proxy, containerd and runc; pods are real containers.
/// ccm runs with the mock cloud, whose routes and load balancers work: this machine can reach the address of a Service
/// of type LoadBalancer. The kubeconfig that is printed works from this machine too. A CSI driver provides volumes that
/// move between nodes, by the default StorageClass.
///
/// Requirements: Linux and root rights; the command lists other requirements that this machine does not meet. Start it
/// as your user: it builds everything and then continues with sudo; or start it as root. The nodes' programs are built
/// once with Go, for about fifteen minutes, and cached outside the checkout. Nothing of the cluster is left when this
/// command ends, even if it is killed.
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask cluster                               # two nodes, managed by kcm
  cargo xtask cluster --nodes 3 --manager upstream
  cargo xtask cluster --manager ./my-manager        # any manager with upstream's flags
  cargo xtask cluster swap upstream                 # replace the manager of the running cluster
  KEEP_CONTROL_PLANE=1 cargo xtask cluster          # keep folder and logs at the end")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,

    /// Number of nodes
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=i64::from(Addresses::NODES)))]
    nodes: u8,

    /// The controller manager: ours, upstream, or the path of a program with upstream's flags
    #[arg(long, default_value = "ours", value_name = "MANAGER")]
    manager: Manager,

    /// The binary of ccm, instead of building it
    #[arg(long, value_name = "PATH")]
    cloud_manager: Option<PathBuf>,

    /// Test that a cluster starts and serves real traffic, and end the cluster
    #[arg(long)]
    smoke: bool,

    /// Build our managers for release: slower to build, faster to run
    #[arg(long)]
    release: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Replace the controller manager of a running cluster
    Swap {
        /// The new manager: ours, upstream, or the path of a program with upstream's flags
        manager: Manager,

        /// The cluster's index, if there are several
        #[arg(long, value_name = "INDEX")]
        cluster: Option<u8>,

        /// Build ours for release
        #[arg(long)]
        release: bool,
    },
}

/// Starts a cluster and serves it until it is interrupted, or replaces the manager of a running one.
pub fn run(arguments: Arguments) -> Result<()> {
    if let Some(Command::Swap { manager, cluster, release }) = arguments.command {
        return swap(&manager, cluster, release);
    }
    let managers = [arguments.manager];
    let order = Order {
        nodes: arguments.nodes,
        managers: &managers,
        cloud_manager: arguments.cloud_manager.as_deref(),
        profile: profile(arguments.release),
        has_volumes: true,
        has_suite: false,
        has_metrics: false,
    };
    order.prepare()?;
    let setup = setup(&order)?;
    if !root::is_root() {
        return programs::continue_as_root(&setup, &managers[0]);
    }
    if arguments.smoke {
        return smoke::run(setup);
    }
    let runtime = tokio::runtime::Runtime::new()?;
    let ended = runtime.block_on(serve(setup));
    // Does not wait for threads that still build programs.
    runtime.shutdown_background();
    match ended? {
        Some(code) => interrupt::exit(code),
        None => Ok(()),
    }
}

fn profile(release: bool) -> &'static str {
    if release { cargo::RELEASE } else { cargo::DEBUG }
}

fn swap(manager: &Manager, cluster: Option<u8>, release: bool) -> Result<()> {
    control::find(cluster)?;
    let program = manager.program(profile(release))?;
    if !root::is_root() {
        let ours = (*manager == Manager::Ours).then_some(("kcm", program.as_path()));
        return root::restart(ours.as_slice());
    }
    control::swap(cluster, &program)?;
    println!("the controller manager is now {}", program.display());
    Ok(())
}

/// Serves a cluster until it ends. Returns the exit code if a signal has ended it.
async fn serve(setup: real_cluster::Setup) -> Result<Option<ExitCode>> {
    let mut interrupted = Interrupted::listen()?;
    let start = Instant::now();
    let report = |step: &str| println!("{:6.1} s  {step}", start.elapsed().as_secs_f64());
    let nodes = setup.nodes;
    let cluster = tokio::select! {
        cluster = RealCluster::start(setup, report) => cluster?,
        code = interrupted.wait() => {
            println!("interrupted before the cluster was up; ending");
            return Ok(Some(code));
        }
    };
    print_introduction(&cluster, nodes)?;
    serve_until_ended(&cluster, &mut interrupted, report).await
}

async fn serve_until_ended(
    cluster: &RealCluster,
    interrupted: &mut Interrupted,
    report: impl Fn(&str),
) -> Result<Option<ExitCode>> {
    tokio::select! {
        ended = watch(cluster) => ended.map(|()| None),
        served = control::serve(cluster, report) => served.map(|()| None),
        code = interrupted.wait() => {
            println!("ending; press Ctrl-C again to exit immediately");
            Ok(Some(code))
        }
    }
}

fn print_introduction(cluster: &RealCluster, nodes: u8) -> Result<()> {
    let control_plane = cluster.control_plane();
    let kubeconfig = cluster.write_kubeconfig()?;
    root::give_to_user(&kubeconfig)?;
    println!(
        "
Kubernetes 1.37 at {} with {nodes} {}. Folder with the logs{}: {}

  export KUBECONFIG={}
{}  {} get pods --all-namespaces

Load balancers get addresses in {}, which this machine can reach. Claims get volumes of the default StorageClass.
Images that need no registry:
  {}  (an HTTP server: command /agnhost, arguments netexec --http-port=8080)
The manager can be replaced: cargo xtask cluster swap upstream
Ctrl-C ends the cluster and removes everything.",
        control_plane.server(),
        if nodes == 1 { "node" } else { "nodes" },
        if root::user().is_some() { ", which root can read" } else { "" },
        control_plane.folder().display(),
        shell_word(&kubeconfig),
        no_proxy(|name| std::env::var(name).ok(), cluster.addresses()),
        shell_word(control_plane.assets().path(Program::Kubectl)?),
        cluster.addresses().balancers(),
        real_cluster::images::AGNHOST,
    );
    Ok(())
}

/// Returns the shell command that exempts the cluster's addresses from the proxy; empty if the environment, which
/// `variable` reads, has no proxy.
fn no_proxy(variable: impl Fn(&str) -> Option<String>, addresses: Addresses) -> String {
    let is_set = |name: &&str| variable(name).is_some_and(|value| !value.is_empty());
    if !control_plane::proxy::VARIABLES.iter().any(is_set) {
        return String::new();
    }
    // Programs prefer one or the other name.
    let own = ["NO_PROXY", "no_proxy"].into_iter().filter_map(&variable).find(|value| !value.is_empty());
    let [nodes, balancers] = addresses.ranges();
    let all: Vec<String> = own.into_iter().chain([nodes.to_string(), balancers.to_string()]).collect();
    let list = shell_word(Path::new(&all.join(",")));
    format!("  export NO_PROXY={list} no_proxy={list}\n")
}

/// Returns a path as a word of a shell command, quoted if necessary.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+:@%,".contains(letter);
    if text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

/// Fails when a process of the cluster exits.
async fn watch(cluster: &RealCluster) -> Result<()> {
    loop {
        cluster.check()?;
        sleep(CHECK_PERIOD).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_quoted_when_a_shell_would_change_it() {
        for (path, word) in [
            ("/tmp/control-plane-a1/admin.conf", "/tmp/control-plane-a1/admin.conf"),
            ("/home/ann/my files/kubectl", "'/home/ann/my files/kubectl'"),
            ("/home/$HOME/it's", r"'/home/$HOME/it'\''s'"),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }

    #[test]
    fn proxy_is_bypassed_when_the_shell_has_one() {
        let addresses = Addresses { index: 3 };
        let line = |variables: &[(&str, &str)]| {
            let find =
                |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).into());
            no_proxy(find, addresses)
        };
        assert_eq!(line(&[("NO_PROXY", "localhost"), ("HTTPS_PROXY", "")]), "");
        assert_eq!(
            line(&[("https_proxy", "http://proxy.invalid:3128")]),
            "  export NO_PROXY=172.30.3.0/24,198.18.3.0/24 no_proxy=172.30.3.0/24,198.18.3.0/24\n"
        );
        let with_own = line(&[("HTTPS_PROXY", "http://proxy.invalid"), ("no_proxy", "localhost,.example.com")]);
        assert!(with_own.starts_with("  export NO_PROXY=localhost,.example.com,172.30.3.0/24,198.18.3.0/24 no_proxy="));
    }

    #[test]
    fn number_of_nodes_is_checked_with_the_command_line() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            arguments: Arguments,
        }
        let parse = |nodes: &str| <Line as clap::Parser>::try_parse_from(["cluster", "--nodes", nodes]);
        assert_eq!(parse("50").ok().map(|line| line.arguments.nodes), Some(50));
        assert!(parse("0").is_err() && parse("51").is_err());
    }
}
