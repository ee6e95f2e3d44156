//! A running cluster: control plane, managers and nodes.

use std::fs;
use std::iter;
use std::net::{IpAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use control_plane::lock::lock;
use control_plane::{ControlPlane, Identity, Network, Options, keeps_folder};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, api::ListParams};
use rustix::fs::Mode;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::address::{Addresses, CLOUD_PORT, node_name};
use crate::bed::{self, Bed, Footprint};
use crate::cgroups::Layout;
use crate::command::INSIDE;
use crate::copies::{Copies, ManagerProgram};
use crate::fabric::Fabric;
use crate::images::registry::{PORT, Registry};
use crate::keeper::Keeper;
use crate::managers::{self, MANAGER};
use crate::node::NodeConfig;
use crate::programs::Programs;
use crate::requirements::Demand;
use crate::storage::Storage;
use crate::{images, requirements};

/// Maximum time until nodes have joined, on a machine that is busy with other programs.
const JOIN_DEADLINE: Duration = Duration::from_secs(180);

const BOOTSTRAP: &str = include_str!("../manifests/bootstrap.yaml");
const DNS: &str = include_str!("../manifests/dns.yaml");

/// The token with which kubelets join. It is not secret: the cluster is reachable from this machine only.
const TOKEN: (&str, &str) = ("bedbed", "0123456789abcdef");

/// The programs under test, and the number of nodes.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The number of nodes.
    pub nodes: u8,
    /// The controller manager: kcm, or any other with upstream's flags.
    pub manager: PathBuf,
    /// ccm.
    pub cloud_manager: PathBuf,
    /// The program that calls [`crate::inside::run`] when its first argument is [`INSIDE`].
    pub inside: PathBuf,
    /// Additional image files in the folder of programs, for each node.
    pub images: Vec<String>,
    /// Run a CSI driver, and create a default StorageClass for it.
    pub has_volumes: bool,
    /// Called with the folder of data and logs after the end of the cluster, if it is kept: even if the start failed or
    /// was cancelled.
    pub when_kept: Option<fn(&Path)>,
}

/// A cluster. Dropping it removes all its resources; so does any exit of the process that owns it.
pub struct RealCluster {
    // Dropped in this order: the network after the processes that use it, the claim of the machine's resources last.
    _fabric: Fabric,
    _registry: Registry,
    control_plane: ControlPlane,
    keeper: Keeper,
    bed: Bed,
    setup: Setup,
    programs: Programs,
    storage: Option<Storage>,
    manager: Mutex<CurrentManager>,
}

/// The running controller manager.
struct CurrentManager {
    program: ManagerProgram,
    /// The manager is being replaced: its end is not a failure of the cluster.
    is_replaced: bool,
    copies: Copies,
}

impl CurrentManager {
    /// Starts a copy of a manager.
    fn start(control_plane: &ControlPlane, program: &Path) -> Result<Self> {
        let mut copies = Copies::new(control_plane.folder().join("managers"));
        let program = copies.add(program)?;
        managers::start_manager(control_plane, &program.copy)?;
        Ok(Self { program, is_replaced: false, copies })
    }
}

/// Marks the controller manager as being replaced until this value is dropped, even if the replacement is cancelled.
struct Replacement<'a>(&'a Mutex<CurrentManager>);

impl<'a> Replacement<'a> {
    fn begin(manager: &'a Mutex<CurrentManager>) -> Self {
        lock(manager).is_replaced = true;
        Self(manager)
    }
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        lock(self.0).is_replaced = false;
    }
}

impl RealCluster {
    /// Starts a cluster and waits until its nodes are Ready. The first call on a machine builds programs, for about
    /// fifteen minutes; later ones take less than a minute. `report` gets a line for each step.
    ///
    /// # Errors
    /// When this machine lacks something (all of it is listed), or a program fails (with the last lines of its log).
    pub async fn start(setup: Setup, report: impl Fn(&str)) -> Result<Self> {
        ensure!(
            (1..=Addresses::NODES).contains(&setup.nodes),
            "{} nodes: choose 1 to {}",
            setup.nodes,
            Addresses::NODES
        );
        let demand = Demand::of_cluster(setup.nodes, setup.has_volumes);
        let programs = spawn_blocking(move || prepare(&demand)).await??;
        use_common_umask();
        let bed = spawn_blocking(Bed::claim).await??;
        let addresses = Addresses { index: bed.index };
        if let Some(hidden) = &bed.hides {
            report(hidden);
        }
        let keeper = Keeper::start(&setup.inside, addresses)?;
        report("network is up");
        let control_plane = start_control_plane(&bed, &keeper, setup.when_kept).await?;
        report("control plane is up");
        let manager = Mutex::new(CurrentManager::start(&control_plane, &setup.manager)?);
        managers::start_cloud_manager(&control_plane, &setup.cloud_manager, addresses, setup.nodes)?;
        let log = control_plane.folder().join("router.log");
        let fabric = Fabric::start((addresses.gateway(), CLOUD_PORT).into(), keeper.router(), log);
        let files = image_files(&setup, &programs);
        let registry = Registry::start(keeper.router(), registry(addresses).into(), files).await?;
        let storage = if setup.has_volumes { Some(Storage::start(&control_plane).await?) } else { None };
        let cluster = Self {
            _fabric: fabric,
            _registry: registry,
            control_plane,
            keeper,
            bed,
            setup,
            programs,
            storage,
            manager,
        };
        let bootstrap = BOOTSTRAP.replace("TOKEN_ID", TOKEN.0).replace("TOKEN_SECRET", TOKEN.1);
        cluster.control_plane.kubectl_with_input(&["apply", "--filename=-"], &bootstrap)?;
        for number in 1..=cluster.setup.nodes {
            cluster.start_node(number)?;
        }
        report("managers and nodes are started");
        cluster.control_plane.kubectl_with_input(&["apply", "--filename=-"], DNS)?;
        cluster.wait_for_nodes().await?;
        report("nodes are Ready");
        if let Some(storage) = &cluster.storage {
            storage.wait_for_nodes(&cluster.control_plane, cluster.setup.nodes).await?;
            report("the CSI driver runs on all nodes");
        }
        cluster.wait_for_dns().await?;
        report("cluster DNS is available");
        Ok(cluster)
    }

    /// Returns the control plane, whose kubeconfigs and clients work from this machine.
    pub fn control_plane(&self) -> &ControlPlane {
        &self.control_plane
    }

    /// Returns the cluster's addresses.
    pub fn addresses(&self) -> Addresses {
        Addresses { index: self.bed.index }
    }

    /// Returns the socket for commands to the cluster.
    pub fn control(&self) -> PathBuf {
        self.bed.control()
    }

    /// Writes a kubeconfig of an administrator into a folder that all users can traverse. The file belongs to this
    /// process' user, and is removed with the cluster.
    ///
    /// # Errors
    /// When it exists already, or cannot be written.
    pub fn write_kubeconfig(&self) -> Result<PathBuf> {
        let path = self.control_plane.kubeconfig(Identity::Admin)?;
        let content = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        self.bed.write_kubeconfig(&content)
    }

    /// Returns the file of the router's network namespace, where the control plane runs.
    pub fn router(&self) -> PathBuf {
        self.keeper.router()
    }

    /// Returns the CSI driver, if the cluster has one.
    pub fn storage(&self) -> Option<&Storage> {
        self.storage.as_ref()
    }

    /// Returns the programs of the nodes.
    pub fn programs(&self) -> &Programs {
        &self.programs
    }

    /// Returns the program of the running controller manager.
    pub fn current_manager(&self) -> ManagerProgram {
        lock(&self.manager).program.clone()
    }

    /// Copies the program of a controller manager, which can be started later. A change of the file has no effect on
    /// the copy.
    ///
    /// # Errors
    /// When it is not an executable file, or cannot be copied.
    pub fn add_manager(&self, program: &Path) -> Result<ManagerProgram> {
        lock(&self.manager).copies.add(program)
    }

    /// Stops the controller manager with SIGTERM, as in an upgrade, and starts another one.
    ///
    /// # Errors
    /// When it cannot be stopped, or the other one cannot be started.
    pub async fn replace_manager(&self, program: &ManagerProgram) -> Result<()> {
        self.control_plane.stop(MANAGER).await?;
        self.start_manager(program)
    }

    /// Replaces the controller manager by a program as it is now, and waits until the new manager is leader. If the new
    /// manager does not become leader, the previous manager is started again, from its own copy.
    ///
    /// # Errors
    /// When the program cannot be executed, ends, or does not become leader in time.
    pub async fn swap_manager(&self, program: &Path) -> Result<()> {
        let next = self.add_manager(program)?;
        let previous = self.current_manager();
        let swapped = {
            let _replacement = Replacement::begin(&self.manager);
            self.try_swap(&next, &previous).await
        };
        // Copies are large; only the one that runs is needed.
        Copies::remove(if swapped.is_ok() { &previous } else { &next });
        swapped
    }

    async fn try_swap(&self, next: &ManagerProgram, previous: &ManagerProgram) -> Result<()> {
        let leader = managers::leader(&self.control_plane).await?;
        self.control_plane.stop(MANAGER).await?;
        let started = self.start_manager(next);
        let leads = match started {
            Ok(()) => managers::wait_for_other_leader(&self.control_plane, leader.as_deref()).await,
            Err(error) => Err(error),
        };
        let Err(error) = leads else { return Ok(()) };
        // A manager that could not be started is not in the list of processes.
        let _ = self.control_plane.kill(MANAGER);
        self.start_manager(previous).context("start the previous manager again")?;
        Err(error.context(format!("the previous manager ({}) was started again", previous.original.display())))
    }

    fn start_manager(&self, program: &ManagerProgram) -> Result<()> {
        managers::start_manager(&self.control_plane, &program.copy)?;
        program.clone_into(&mut lock(&self.manager).program);
        Ok(())
    }

    /// Fails if a process of the cluster has exited on its own. While the controller manager is being replaced, that is
    /// reported to the caller of [`RealCluster::swap_manager`] instead.
    ///
    /// # Errors
    /// With the last lines of the process' log.
    pub fn check(&self) -> Result<()> {
        if lock(&self.manager).is_replaced { Ok(()) } else { self.control_plane.check() }
    }

    /// Kills the controller manager without an orderly shutdown, and starts another one.
    ///
    /// # Errors
    /// As [`RealCluster::replace_manager`].
    pub fn kill_manager(&self, successor: &ManagerProgram) -> Result<()> {
        self.control_plane.kill(MANAGER)?;
        self.start_manager(successor)
    }

    /// Records the resources of the cluster, which are compared with the machine after it has ended.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn footprint(&self) -> Result<Footprint> {
        Footprint::record(self.bed.index, self.control_plane.folder(), keeps_folder(), &self.keeper.router())
    }

    /// Fails if this machine does not send packets for a load balancer to the cluster's router, which spreads them over
    /// healthy nodes.
    ///
    /// # Errors
    /// In that case, or when the route cannot be read.
    pub fn check_route_to_balancer(&self, balancer: IpAddr) -> Result<()> {
        crate::network::check_route_to_balancer(self.addresses(), balancer)
    }

    /// Kills a node and all its processes, like a loss of power.
    ///
    /// # Errors
    /// When there is no such node.
    pub fn kill_node(&self, number: u8) -> Result<()> {
        let name = node_name(number);
        crate::network::disconnect_node(&self.keeper.router(), &name).with_context(|| format!("disconnect {name}"))?;
        self.control_plane.kill(&name)
    }

    /// Starts a node. One that was killed before starts with an empty disk.
    ///
    /// # Errors
    /// When the kernel refuses, or a file cannot be written.
    pub fn start_node(&self, number: u8) -> Result<()> {
        let name = node_name(number);
        let addresses = self.addresses();
        let folder = self.control_plane.folder().join(&name);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        let node = NodeConfig {
            name: name.clone(),
            address: addresses.node(number),
            gateway: addresses.gateway(),
            branch: bed::branch(self.bed.index),
            folder: folder.clone(),
            programs: self.programs.folder.clone(),
            registry: registry(addresses),
            images: image_names(&self.setup),
            volumes: self.storage.as_ref().map(|storage| storage.folder().to_owned()),
        };
        self.write_credentials(&folder)?;
        if let Some(storage) = &self.storage {
            storage.copy_driver(&folder)?;
        }
        let config = folder.join("node.json");
        fs::write(&config, serde_json::to_vec(&node)?).with_context(|| format!("write {}", config.display()))?;
        let flags = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--propagation=private"];
        let command =
            [self.setup.inside.display().to_string(), INSIDE.into(), "node".into(), config.display().to_string()];
        let arguments: Vec<String> = flags.map(String::from).into_iter().chain(["--".into()]).chain(command).collect();
        let process = self.control_plane.run(&name, Path::new("unshare"), &arguments)?;
        crate::network::connect_node(&self.keeper.router(), &name, process)
            .with_context(|| format!("connect {name} with the router"))
    }

    fn write_credentials(&self, folder: &Path) -> Result<()> {
        let cluster = &self.control_plane;
        let copy = |from: &Path, name: &str| {
            fs::copy(from, folder.join(name)).with_context(|| format!("copy {}", from.display())).map(drop)
        };
        copy(&cluster.ca_certificate(), NodeConfig::AUTHORITY)?;
        let proxy = Identity::User { name: "system:kube-proxy".into(), groups: Vec::new() };
        copy(&cluster.kubeconfig(proxy)?, NodeConfig::PROXY)?;
        let bootstrap = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "bootstrap",
            "clusters": [{
                "name": "bootstrap",
                "cluster": { "server": cluster.server(), "certificate-authority": format!("{}/{}", crate::node::OWN, NodeConfig::AUTHORITY) },
            }],
            "users": [{ "name": "bootstrap", "user": { "token": format!("{}.{}", TOKEN.0, TOKEN.1) } }],
            "contexts": [{ "name": "bootstrap", "context": { "cluster": "bootstrap", "user": "bootstrap" } }],
        });
        fs::write(folder.join(NodeConfig::BOOTSTRAP), bootstrap.to_string()).context("write the bootstrap kubeconfig")
    }

    /// Waits until all nodes are Ready and accept pods.
    ///
    /// # Errors
    /// When a process of the cluster ends, or nodes are not Ready in time.
    pub async fn wait_for_nodes(&self) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.control_plane.client(Identity::Admin).await?);
        let deadline = Instant::now() + JOIN_DEADLINE;
        loop {
            self.control_plane.check()?;
            let list = nodes.list(&ListParams::default()).await.context("list nodes")?;
            let obstacles: Vec<String> = list.iter().filter_map(obstacle).collect();
            if list.items.len() == usize::from(self.setup.nodes) && obstacles.is_empty() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let joined = format!(
                    "{} of {} nodes joined in {} s",
                    list.items.len(),
                    self.setup.nodes,
                    JOIN_DEADLINE.as_secs()
                );
                let folder = self.control_plane.folder().display();
                let logs = format!("logs are in {folder} (KEEP_CONTROL_PLANE=1 keeps them)");
                bail!("{}", [vec![joined], obstacles, vec![logs]].concat().join("; "));
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn wait_for_dns(&self) -> Result<()> {
        self.kubectl(&["--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s"]).await
    }

    /// Runs kubectl as the administrator, on a separate thread, because kubectl may block.
    pub(crate) async fn kubectl(&self, arguments: &[&str]) -> Result<()> {
        let kubectl = self.control_plane.assets().path(control_plane::assets::Program::Kubectl)?.to_owned();
        let kubeconfig = format!("--kubeconfig={}", self.control_plane.kubeconfig(Identity::Admin)?.display());
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        spawn_blocking(move || {
            let arguments: Vec<&str> = iter::once(&kubeconfig).chain(&arguments).map(String::as_str).collect();
            crate::command::run(&kubectl.to_string_lossy(), &arguments).map(drop)
        })
        .await?
    }
}

/// Starts the control plane in the router's network and in the cluster's cgroup.
async fn start_control_plane(bed: &Bed, keeper: &Keeper, when_kept: Option<fn(&Path)>) -> Result<ControlPlane> {
    let address = Addresses { index: bed.index }.gateway();
    let options = Options {
        kwok: false,
        network: Some(Network { namespace: keeper.router(), address }),
        cgroup: Some(Layout::of_machine()?.make_programs_branch(&bed::branch(bed.index))?),
        when_kept,
        ..Options::default()
    };
    let control_plane = ControlPlane::start(options).await?;
    if !keeps_folder() {
        bed.record_data(control_plane.folder())?;
    }
    Ok(control_plane)
}

/// Returns the names of the image files, in the order in which nodes import them.
fn image_names(setup: &Setup) -> Vec<String> {
    [images::FILE.to_owned()].into_iter().chain(setup.images.clone()).collect()
}

fn image_files(setup: &Setup, programs: &Programs) -> Vec<PathBuf> {
    image_names(setup).iter().map(|name| programs.path(name)).collect()
}

/// Returns the address of the image registry, which this process serves in the router's network.
fn registry(addresses: Addresses) -> SocketAddrV4 {
    SocketAddrV4::new(addresses.gateway(), PORT)
}

/// Checks the machine, and builds the programs and images of nodes.
fn prepare(demand: &Demand) -> Result<Programs> {
    let programs = Programs::locate()?;
    requirements::check(&programs, demand, Vec::new())?;
    images::suite::remove_unfinished(&programs);
    demand.build(&programs)?;
    Ok(programs)
}

/// Sets the usual umask of services. Nodes' programs create files for pods, whose users are not root: with an
/// administrator's umask, such as 077, these users could not read the files.
fn use_common_umask() {
    rustix::process::umask(Mode::from_raw_mode(0o022));
}

/// Returns the reason for which pods are not scheduled to a node, or `None`.
fn obstacle(node: &Node) -> Option<String> {
    let name = node.metadata.name.clone().unwrap_or_default();
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let ready = conditions.into_iter().find(|condition| condition.type_ == "Ready");
    match ready {
        Some(condition) if condition.status == "True" => {}
        Some(condition) => return Some(format!("{name}: {}", condition.message.clone().unwrap_or_default())),
        None => return Some(format!("{name} has not reported")),
    }
    let taints = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten());
    taints.into_iter().next().map(|taint| format!("{name} has the taint {}", taint.key))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn programs_of_a_cluster_have_the_umask_of_services() {
        let own = rustix::process::umask(Mode::from_raw_mode(0o077));
        use_common_umask();
        let shown = Command::new("sh").args(["-c", "umask"]).output().unwrap();
        rustix::process::umask(own);
        assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), "0022");
    }
}
