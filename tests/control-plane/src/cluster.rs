//! One control plane: started on a free port in a temporary folder, used, and removed when dropped.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use crate::assets::{Assets, Program};
use crate::command::output_with_input;
use crate::identity::Identity;
use crate::options::{Network, Options, keeps_folder};
use crate::pki::{self, Pki};
use crate::processes::Processes;
use crate::{audit, flags, kubelet_policy, nodes, proxy};

/// Maximum time for a start on a busy host.
const START_DEADLINE: Duration = Duration::from_secs(90);

/// Maximum time of a process between SIGTERM and its exit.
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// Interval between checks for the exit of a process.
const WAIT_PERIOD: Duration = Duration::from_millis(100);

/// Number of attempts with another port if another process took the first.
const PORT_ATTEMPTS: u32 = 5;

/// The script of the fake kubelets.
const STAGES: &str = include_str!("../data/stages.yaml");

/// One of the bootstrap roles for managers, which the API server creates at its start.
const BOOTSTRAP_ROLE: &str = "system:controller:deployment-controller";

/// A running control plane. Dropping this value kills the control plane's processes and removes its folder; so does any
/// exit of the process that owns it.
///
/// With `KEEP_CONTROL_PLANE=1` in the environment the folder stays (see [`keeps_folder`]), with the log of each process
/// as `<name>.log`.
pub struct ControlPlane {
    processes: Arc<Processes>,
    pki: Pki,
    address: Ipv4Addr,
    port: u16,
    assets: Assets,
    audit: bool,
    /// The API server's flags, for a restart.
    apiserver_flags: OnceLock<Vec<String>>,
}

impl ControlPlane {
    /// Starts a control plane, and waits until it responds, has its bootstrap roles, and its nodes are Ready.
    ///
    /// The first call on a machine may build the programs, for minutes (see [`crate::assets`]); later ones take
    /// seconds.
    ///
    /// # Errors
    /// When it does not start. The error contains the last lines of the log of the process that failed, and the folder
    /// of the logs if it is kept.
    pub async fn start(options: Options) -> Result<Self> {
        if options.nodes > 0 && !options.kwok {
            bail!("nodes is {}, but kwok is false: fake nodes become Ready only with kwok: true", options.nodes);
        }
        let mut programs = vec![Program::Etcd, Program::KubeApiserver, Program::Kubectl];
        programs.extend(options.scheduler.then_some(Program::KubeScheduler));
        programs.extend(options.kwok.then_some(Program::Kwok));
        let assets = spawn_blocking(move || Assets::of(&programs)).await??;

        let mut attempt = 1;
        loop {
            match Self::launch(assets.clone(), &options).await {
                Err(error) if attempt < PORT_ATTEMPTS && is_port_in_use(&error) => attempt += 1,
                other => return other,
            }
        }
    }

    async fn launch(assets: Assets, options: &Options) -> Result<Self> {
        let network = options.network.as_ref();
        let namespace = network.map(|network| network.namespace.clone());
        let mut processes = Processes::new(keeps_folder(), namespace, options.cgroup.clone())?;
        processes.when_kept = options.when_kept;
        let certificates = processes.folder().join("pki");
        fs::create_dir(&certificates).with_context(|| format!("make the folder {}", certificates.display()))?;
        let cluster = Self {
            pki: Pki::create(certificates, network.map(|network| network.address))?,
            address: network.map_or(Ipv4Addr::LOCALHOST, |network| network.address),
            port: network.map_or_else(free_port, |_| Ok(Network::PORT))?,
            audit: options.audit,
            processes: Arc::new(processes),
            assets,
            apiserver_flags: OnceLock::new(),
        };
        let started = cluster.start_programs(options).await;
        started.with_context(|| format!("the control plane did not start; {}", cluster.processes.place_of_logs()))?;
        Ok(cluster)
    }

    /// Starts all programs, and adds the nodes.
    async fn start_programs(&self, options: &Options) -> Result<()> {
        let folder = self.folder();
        let audit = if options.audit {
            Some((pki::write(folder, "audit-policy.yaml", audit::POLICY)?, self.audit_log()))
        } else {
            None
        };
        let audit = audit.as_ref().map(|(policy, log)| (policy.as_path(), log.as_path()));

        self.start_program(Program::Etcd, &flags::etcd(folder))?;
        let flags = flags::apiserver(folder, &self.pki, self.port, audit, options);
        self.start_program(Program::KubeApiserver, self.apiserver_flags.get_or_init(|| flags))?;
        self.until_ready().await?;
        if options.scheduler {
            let kubeconfig = self.kubeconfig(Identity::Scheduler)?;
            let flags = flags::scheduler(&kubeconfig, options);
            self.start_program(Program::KubeScheduler, &flags)?;
        }
        if options.kwok {
            let restricted = kubelet_policy::restrict_deletions(&self.client(Identity::Admin).await?).await;
            restricted.with_context(|| self.processes.last_lines())?;
            let kubelets =
                Identity::User { name: kubelet_policy::KUBELETS.into(), groups: vec!["system:masters".into()] };
            let kubeconfig = self.kubeconfig(kubelets)?;
            let stages = pki::write(folder, "stages.yaml", STAGES)?;
            self.start_program(Program::Kwok, &flags::kwok(&kubeconfig, &stages, options.node_lease_seconds))?;
        }
        if options.nodes > 0 {
            self.add_nodes(options.nodes, "node").await?;
        }
        Ok(())
    }

    fn start_program(&self, program: Program, arguments: &[String]) -> Result<()> {
        self.processes.start(program.file_name(), self.assets.path(program)?, arguments)?;
        Ok(())
    }

    /// Kills the API server and starts it again with the same flags, so that it reads its files again. Waits until it
    /// responds.
    ///
    /// # Errors
    /// If it does not respond in time.
    pub async fn restart_apiserver(&self) -> Result<()> {
        self.kill(Program::KubeApiserver.file_name())?;
        let arguments = self.apiserver_flags.get().context("the API server was never started")?;
        self.start_program(Program::KubeApiserver, arguments)?;
        self.until_ready().await
    }

    async fn until_ready(&self) -> Result<()> {
        let client = self.client(Identity::Admin).await?;
        let roles: Api<ClusterRole> = Api::all(client.clone());
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            self.processes.check()?;
            let ready = client.request_text(readyz()?).await.is_ok()
                && matches!(roles.get_opt(BOOTSTRAP_ROLE).await, Ok(Some(_)));
            if ready {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the control plane was not ready after {} s\n{}",
                    START_DEADLINE.as_secs(),
                    self.processes.last_lines()
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the API server's URL.
    pub fn server(&self) -> String {
        format!("https://{}:{}", self.address, self.port)
    }

    /// Returns the temporary folder: logs, kubeconfigs, `pki`, etcd's data.
    pub fn folder(&self) -> &Path {
        self.processes.folder()
    }

    /// Returns the programs that the control plane was started from.
    pub fn assets(&self) -> &Assets {
        &self.assets
    }

    /// Returns the certificate of the authority that signed the API server's and all client certificates
    /// (`--root-ca-file`, `--cluster-signing-cert-file`).
    pub fn ca_certificate(&self) -> PathBuf {
        self.pki.path("ca.crt")
    }

    /// Returns that authority's private key (`--cluster-signing-key-file`).
    pub fn ca_key(&self) -> PathBuf {
        self.pki.path("ca.key")
    }

    /// Returns the certificate of the authority for aggregated API servers (`--requestheader-client-ca-file`).
    pub fn front_proxy_ca(&self) -> PathBuf {
        self.pki.path("front-proxy-ca.crt")
    }

    /// Returns the private key that signs service account tokens (`--service-account-private-key-file`).
    pub fn service_account_key(&self) -> PathBuf {
        self.pki.path("sa.key")
    }

    /// Returns the kubeconfig of an identity, with its client certificate inline; created the first time. Fails if a
    /// user has more than two groups.
    pub fn kubeconfig(&self, identity: Identity) -> Result<PathBuf> {
        let path = self.folder().join(identity.file_name());
        if path.exists() {
            return Ok(path);
        }
        let text = self.pki.kubeconfig(&self.server(), &identity)?;
        // A rename, so that a concurrent reader never reads an incomplete file.
        let mut file = tempfile::NamedTempFile::new_in(self.folder()).context("make a kubeconfig")?;
        file.write_all(text.as_bytes()).context("write a kubeconfig")?;
        file.persist(&path).with_context(|| format!("write {}", path.display()))?;
        Ok(path)
    }

    /// Returns a client of an identity. It never retries a request.
    ///
    /// It works only in the async runtime that it was created in: tests that share a control plane need one client
    /// each.
    pub async fn client(&self, identity: Identity) -> Result<Client> {
        let path = self.kubeconfig(identity)?;
        let kubeconfig = Kubeconfig::read_from(&path)?;
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        config.default_retry = false;
        // The kube crate may have taken a proxy from the environment.
        config.proxy_url = None;
        Ok(Client::try_from(config)?)
    }

    /// Creates the fake nodes `{prefix}-0` to `{prefix}-{count-1}`, waits for them to be Ready and returns their names.
    /// Fails if one exists already, or if the control plane has no fake kubelets.
    pub async fn add_nodes(&self, count: u32, prefix: &str) -> Result<Vec<String>> {
        let client = self.client(Identity::Admin).await?;
        let added = nodes::add(&client, count, prefix).await;
        added.map_err(|error| error.context(self.processes.last_lines()))
    }

    /// Stops a fake kubelet as if its host had lost power: it no longer renews its lease and does nothing for its node
    /// and its pods.
    pub async fn stop_node(&self, name: &str) -> Result<()> {
        nodes::stop(&self.client(Identity::Admin).await?, name).await
    }

    /// Resumes a stopped fake kubelet; this takes as long as the interval of renewals.
    pub async fn resume_node(&self, name: &str) -> Result<()> {
        nodes::resume(&self.client(Identity::Admin).await?, name).await
    }

    /// Runs kubectl of the API server's version as the admin; returns its output, or fails with its error. Blocks.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with_input(arguments, "")
    }

    /// Like [`ControlPlane::kubectl`], with a text to read, as in `kubectl apply -f -`.
    pub fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let line = format!("kubectl {}", arguments.join(" "));
        let mut kubectl = Command::new(self.assets.path(Program::Kubectl)?);
        proxy::remove(&mut kubectl)
            .arg("--kubeconfig")
            .arg(self.kubeconfig(Identity::Admin)?)
            .arg("--cache-dir")
            .arg(self.folder().join("kubectl"))
            .args(arguments);
        String::from_utf8(output_with_input(&mut kubectl, &line, input)?).context(line)
    }

    /// Runs another program, such as a manager, and returns its process ID. The program is killed together with the
    /// control plane's own ones. `name` must be unique; the output goes to `<name>.log`. The working folder is
    /// [`folder`](Self::folder), which contains the kubeconfigs.
    pub fn run(&self, name: &str, program: &Path, arguments: &[String]) -> Result<u32> {
        self.processes.start(name, program, arguments)
    }

    /// Kills (SIGKILL) a process by its name and waits for its exit: one that
    /// was [`run`](Self::run), or `kube-scheduler`, `kwok`, `kube-apiserver`,
    /// `etcd`. The name can then be used again.
    pub fn kill(&self, name: &str) -> Result<()> {
        self.processes.kill(name)
    }

    /// Returns the processes of the control plane for as long as it runs.
    pub(crate) fn processes(&self) -> Weak<Processes> {
        Arc::downgrade(&self.processes)
    }

    /// Terminates (SIGTERM) a process by its name, and waits for its exit. It is killed if it takes longer than half a
    /// minute.
    pub async fn stop(&self, name: &str) -> Result<()> {
        let mut child = self.processes.terminate(name)?;
        let deadline = Instant::now() + STOP_DEADLINE;
        while child.try_wait().with_context(|| format!("wait for {name}"))?.is_none() {
            if Instant::now() > deadline {
                return child.kill().and_then(|()| child.wait().map(drop)).with_context(|| format!("kill {name}"));
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Waits until a process that was [`run`](Self::run) exits. The name can then be used again.
    ///
    /// Fails if another process exits first, or if this one does not exit within `time`: then this one is killed, and
    /// its children are killed with the control plane.
    pub async fn wait(&self, name: &str, time: Duration) -> Result<ExitStatus> {
        let mut child = self.processes.release(name)?;
        let deadline = Instant::now() + time;
        loop {
            if let Some(status) = child.try_wait().with_context(|| format!("wait for {name}"))? {
                return Ok(status);
            }
            let failure = match self.check() {
                Ok(()) if Instant::now() <= deadline => {
                    sleep(WAIT_PERIOD).await;
                    continue;
                }
                Ok(()) => anyhow!("{name} did not end in {} s", time.as_secs()),
                Err(error) => error,
            };
            child.kill().and_then(|()| child.wait()).with_context(|| format!("kill {name}"))?;
            return Err(failure);
        }
    }

    /// Fails if a process has exited, with the last lines of its log.
    pub fn check(&self) -> Result<()> {
        self.processes.check()
    }

    /// Returns the log file of a process.
    pub fn log(&self, name: &str) -> PathBuf {
        self.processes.log(name)
    }

    fn audit_log(&self) -> PathBuf {
        self.folder().join("audit.log")
    }

    /// Returns the size of the audit log in bytes: a position for [`ControlPlane::audit_counts`]. Fails unless the
    /// control plane was started with `audit`.
    pub fn audit_position(&self) -> Result<u64> {
        if !self.audit {
            bail!("the control plane keeps no audit log: start it with Options {{ audit: true, .. }}");
        }
        match fs::metadata(self.audit_log()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
            metadata => Ok(metadata.context("read the size of the audit log")?.len()),
        }
    }

    /// Returns the managers' requests since a position (0: since the start).
    ///
    /// A request is in the log before its response ends. Fails unless the control plane was started with `audit`.
    pub fn audit_counts(&self, since: u64) -> Result<audit::Counts> {
        if self.audit_position()? == 0 {
            return Ok(audit::Counts::new());
        }
        let log = fs::read(self.audit_log()).context("read the audit log")?;
        let start = usize::try_from(since)?;
        let rest = log
            .get(start..)
            .ok_or_else(|| anyhow!("the audit log has {} bytes: {since} is not a position in it", log.len()))?;
        audit::count(std::str::from_utf8(rest).context("read the audit log")?)
    }
}

fn is_port_in_use(error: &anyhow::Error) -> bool {
    format!("{error:#}").contains("address already in use")
}

/// Returns a port that is free now. Ports below the range that the kernel gives to outgoing connections are less likely
/// to be taken a moment later.
fn free_port() -> Result<u16> {
    let attempts = 0..1000;
    attempts
        .map(|_| 20_000 + rand::random::<u16>() % 10_000)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .context("no free port between 20000 and 29999: stop programs that listen there")
}

fn readyz() -> Result<http::Request<Vec<u8>>> {
    Ok(http::Request::get("/readyz").body(Vec::new())?)
}
