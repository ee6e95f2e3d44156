//! Processes of kcm and ccm: this test program behaves like kcm or ccm if it is started under the name of upstream's
//! command.
//!
//! Processes are for tests of command line, log, signals, port and exit code.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};
use control_plane::ControlPlane;
use kube::{Client, Config};

use crate::all_gates;
use crate::port::ReservedPort;
use crate::wait::eventually;

/// The command of kcm.
pub const KCM: &str = "kube-controller-manager";

/// The command of ccm, with KubeVirt and the mock cloud.
pub const CCM: &str = "cloud-controller-manager";

/// kubeadm's folder for the files of a control plane. A test's control plane has the same files in its own folder.
pub const KUBERNETES: &str = "/etc/kubernetes";

/// Runs kcm or ccm if this program was started under the name of [`KCM`] or [`CCM`]; otherwise returns `None`.
pub fn as_called() -> Option<ExitCode> {
    let mut arguments = std::env::args();
    let program = PathBuf::from(arguments.next()?);
    match program.file_name()?.to_str()? {
        KCM => Some(kcm::app::main(arguments)),
        CCM => Some(ccm::app::main(arguments, &[provider_kubevirt::factory(), provider_mock::factory()])),
        _ => None,
    }
}

/// Returns the path of a program that is the command `name`: a link to this test program.
///
/// # Errors
/// When the control plane's folder cannot be written.
pub fn command(cluster: &ControlPlane, name: &str) -> Result<PathBuf> {
    let folder = cluster.folder().join("commands");
    fs::create_dir_all(&folder)?;
    let path = folder.join(name);
    if !path.exists() {
        symlink(std::env::current_exe()?, &path).with_context(|| format!("link {}", path.display()))?;
    }
    Ok(path)
}

/// A running process of a manager.
#[derive(Debug)]
pub struct Process {
    /// The name of the process and of its log.
    pub name: String,
    /// The port that the process serves on.
    port: ReservedPort,
    id: u32,
}

impl Process {
    /// Starts a program with `arguments` and a free port. Replaces [`KUBERNETES`] in the arguments by the control
    /// plane's folder. Adds the flags of [`all_gates::of_process`] if the program is a kube-controller-manager.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(cluster: &ControlPlane, name: &str, program: &Path, arguments: &[String]) -> Result<Self> {
        let folder = cluster.folder().display().to_string();
        let port = ReservedPort::new()?;
        let is_kcm = program.file_name().is_some_and(|file| file == KCM);
        let mut arguments: Vec<String> =
            arguments.iter().map(|argument| argument.replace(KUBERNETES, &folder)).collect();
        if is_kcm {
            arguments.splice(0..0, all_gates::of_process(&arguments));
        }
        // Of repeated flags, the last one applies.
        arguments.extend(port.flags());
        let id = cluster.run(name, program, &arguments)?;
        Ok(Self { name: name.to_owned(), port, id })
    }

    /// Stops the process, as the kubelet does, and waits until it has ended.
    ///
    /// # Errors
    /// When it does not end.
    pub async fn stop(self, cluster: &ControlPlane) -> Result<()> {
        self.terminate()?;
        eventually(format!("{} ends", self.name), || async {
            ensure!(!self.is_running(), "it is running");
            Ok(())
        })
        .await?;
        cluster.kill(&self.name)
    }

    /// Sends SIGTERM.
    ///
    /// # Errors
    /// When the process has ended and was waited for.
    pub fn terminate(&self) -> Result<()> {
        let id = self.id.to_string();
        let sent = Command::new("sh").args(["-c", "kill -TERM \"$0\"", &id]).status()?;
        ensure!(sent.success(), "SIGTERM could not be sent to {} ({sent})", self.name);
        Ok(())
    }

    /// Returns true until the process has ended.
    pub fn is_running(&self) -> bool {
        // A process that has ended and was not waited for is still listed, with state Z.
        let Ok(status) = fs::read_to_string(format!("/proc/{}/stat", self.id)) else { return false };
        status.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) != Some('Z')
    }

    /// Returns the process's response to a path, with a token or without credentials.
    ///
    /// # Errors
    /// If it does not respond, or not with success.
    pub async fn get(&self, path: &str, token: Option<&str>) -> Result<String> {
        let mut config = Config::new(format!("https://{}", self.port.address()).parse()?);
        config.accept_invalid_certs = true;
        config.auth_info.token = token.map(|token| token.to_owned().into());
        let client = Client::try_from(config)?;
        let request = http::Request::get(path).body(Vec::new())?;
        client.request_text(request).await.with_context(|| format!("get {path} of {}", self.name))
    }

    /// Waits until the process responds to a path, as a probe does, without credentials.
    ///
    /// # Errors
    /// If it does not respond in time; with the last lines of its log.
    pub async fn until_healthy(&self, cluster: &ControlPlane, path: &str) -> Result<()> {
        let healthy = eventually(format!("{} is healthy", self.name), || self.get(path, None)).await;
        if let Err(error) = healthy {
            let log = self.log(cluster).unwrap_or_default();
            let mut last: Vec<&str> = log.lines().rev().take(15).collect();
            last.reverse();
            bail!("{error:#}; the end of its log:\n{}", last.join("\n"));
        }
        Ok(())
    }

    /// Returns the resident memory of the process, in KiB.
    ///
    /// # Errors
    /// When it has ended.
    pub fn resident_kib(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
        Ok(line.trim().trim_end_matches("kB").trim().parse()?)
    }

    /// Returns the number of established TCP connections over IPv4 from the process to a port, on any host.
    ///
    /// # Errors
    /// When it has ended.
    pub fn connections_to(&self, port: u16) -> Result<usize> {
        let sockets = fs::read_dir(format!("/proc/{}/fd", self.id))?;
        let links = sockets.filter_map(|socket| fs::read_link(socket.ok()?.path()).ok());
        let links: HashSet<String> = links.map(|link| link.display().to_string()).collect();
        let table = fs::read_to_string(format!("/proc/{}/net/tcp", self.id))?;
        // Fields: number, local address, remote address, state (1: established), ..., inode as the tenth.
        let is_own = |line: &&str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let is_to = |remote: &&str| remote.ends_with(&format!(":{port:04X}"));
            let has_inode = |inode: &&str| links.contains(&format!("socket:[{inode}]"));
            fields.get(2).is_some_and(is_to) && fields.get(3) == Some(&"01") && fields.get(9).is_some_and(has_inode)
        };
        Ok(table.lines().filter(is_own).count())
    }

    /// Returns its log.
    ///
    /// # Errors
    /// When its log cannot be read.
    pub fn log(&self, cluster: &ControlPlane) -> Result<String> {
        let bytes = fs::read(cluster.log(&self.name)).with_context(|| format!("read the log of {}", self.name))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}
