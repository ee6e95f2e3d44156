//! The environment of the scenario: the cluster, the managers, and kubectl.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use control_plane::assets::Program;
use control_plane::lock::lock;
use control_plane::{ControlPlane, Identity, proxy};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::cloud::Cloud;
use crate::console::Console;

/// The name of the manager's package, process and log.
pub const MANAGER: &str = "kcm";

/// The environment of the steps.
pub struct DemoEnvironment {
    /// The control plane.
    pub cluster: ControlPlane,
    /// A client with all permissions.
    pub client: kube::Client,
    /// The output.
    pub console: Console,
    /// The running cloud manager, with its cloud.
    pub cloud: Cloud,
    manager: PathBuf,
    step: Mutex<(Instant, String)>,
}

impl DemoEnvironment {
    /// Creates the environment: the cloud manager is started, the manager is not.
    pub async fn new(
        cluster: ControlPlane,
        console: Console,
        manager: PathBuf,
        cloud_manager: PathBuf,
    ) -> Result<Self> {
        let client = cluster.client(Identity::Admin).await?;
        let cloud = Cloud::start(&cluster, cloud_manager)?;
        Ok(Self { cluster, client, console, cloud, manager, step: Mutex::new((Instant::now(), String::new())) })
    }

    /// Starts the manager with kubeadm's flags; returns its process ID.
    pub fn start_manager(&self) -> Result<u32> {
        let arguments = kubeadm_flags(&self.cluster)?;
        let id = self.cluster.run(MANAGER, &self.manager, &arguments)?;
        self.console.line(&format!("The controller manager runs as process {id}: {}", self.manager.display()));
        Ok(id)
    }

    /// Kills the manager: it cannot finish its work or release its Lease.
    pub fn kill_manager(&self) -> Result<()> {
        self.cluster.kill(MANAGER)
    }

    /// Restarts the step's clock.
    pub fn begin_step(&self) {
        *lock(&self.step) = (Instant::now(), "nothing".into());
    }

    /// Returns the time since the step began.
    pub fn since_step(&self) -> Duration {
        lock(&self.step).0.elapsed()
    }

    /// Returns the last text given to [`DemoEnvironment::report_event`] in this step.
    pub fn last_event(&self) -> String {
        lock(&self.step).1.clone()
    }

    /// Prints an event, and keeps it for the error of an exceeded deadline.
    pub fn report_event(&self, text: &str) {
        self.console.happened(self.since_step(), text);
        text.clone_into(&mut lock(&self.step).1);
    }

    /// Prints a kubectl command and runs it as the admin; returns its output.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with_input(arguments, "").await
    }

    /// Same as [`DemoEnvironment::kubectl`], with an input.
    pub async fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let command_line = command_line(arguments);
        self.console.command(&command_line);
        self.run_kubectl(arguments, input).await.with_context(|| command_line)
    }

    async fn run_kubectl(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut kubectl = Command::new(self.cluster.assets().path(Program::Kubectl)?);
        proxy::remove(kubectl.as_std_mut());
        let mut kubectl = kubectl
            .arg("--kubeconfig")
            .arg(self.cluster.kubeconfig(Identity::Admin)?)
            .arg("--cache-dir")
            .arg(self.cluster.folder().join("kubectl"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("run kubectl")?;
        let mut stdin = kubectl.stdin.take().context("kubectl has no input")?;
        stdin.write_all(input.as_bytes()).await.context("write kubectl's input")?;
        drop(stdin);
        let output = kubectl.wait_with_output().await.context("wait for kubectl")?;
        if !output.status.success() {
            bail!("{} ({})", String::from_utf8_lossy(&output.stderr).trim_end(), output.status);
        }
        String::from_utf8(output.stdout).context("read kubectl's output")
    }

    /// Copies the processes' logs and a table of the objects to a folder that is kept; returns its path.
    pub async fn keep_logs(&self) -> Result<PathBuf> {
        let folder = tempfile::Builder::new().prefix("kcm-demo-logs-").tempdir().context("make a folder for logs")?;
        for entry in fs::read_dir(self.cluster.folder()).context("list the logs")? {
            let path = entry?.path();
            if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|end| end == "log")) {
                fs::copy(&path, folder.path().join(name)).with_context(|| format!("copy {}", path.display()))?;
            }
        }
        let objects = ["get", "nodes,deployments,replicasets,pods,events,leases", "--all-namespaces", "--output=wide"];
        if let Ok(objects) = self.run_kubectl(&objects, "").await {
            fs::write(folder.path().join("objects.txt"), objects).context("write objects.txt")?;
        }
        Ok(folder.keep())
    }
}

/// Returns the flags that kubeadm gives to its kube-controller-manager, without a port: several demos may run at the
/// same time.
fn kubeadm_flags(cluster: &ControlPlane) -> Result<Vec<String>> {
    let kubeconfig = cluster.kubeconfig(Identity::ControllerManager)?;
    let flags = [
        ("authentication-kubeconfig", kubeconfig.clone()),
        ("authorization-kubeconfig", kubeconfig.clone()),
        ("bind-address", "127.0.0.1".into()),
        ("client-ca-file", cluster.ca_certificate()),
        ("cluster-name", "kubernetes".into()),
        ("cluster-signing-cert-file", cluster.ca_certificate()),
        ("cluster-signing-key-file", cluster.ca_key()),
        ("controllers", "*,bootstrapsigner,tokencleaner".into()),
        ("kubeconfig", kubeconfig),
        ("leader-elect", "true".into()),
        ("requestheader-client-ca-file", cluster.front_proxy_ca()),
        ("root-ca-file", cluster.ca_certificate()),
        ("secure-port", "0".into()),
        ("service-account-private-key-file", cluster.service_account_key()),
        ("use-service-account-credentials", "true".into()),
    ];
    Ok(flags.into_iter().map(|(name, value): (&str, PathBuf)| format!("--{name}={}", value.display())).collect())
}

/// Returns a command as a user would type it.
fn command_line(arguments: &[&str]) -> String {
    let plain = |argument: &str| !argument.is_empty() && !argument.contains([' ', '"', '{', '*', '$']);
    let quoted =
        arguments.iter().map(|argument| if plain(argument) { (*argument).to_owned() } else { format!("'{argument}'") });
    ["kubectl".to_owned()].into_iter().chain(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_quoted_as_a_user_would_type_it() {
        assert_eq!(command_line(&["get", "pods", "--selector=app=web"]), "kubectl get pods --selector=app=web");
        assert_eq!(command_line(&["patch", "x", r#"--patch={"a":1}"#]), r#"kubectl patch x '--patch={"a":1}'"#);
    }
}
