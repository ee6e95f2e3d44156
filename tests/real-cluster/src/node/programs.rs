//! The node's programs: containerd, kubelet, kube-proxy and a CSI driver, started in this order and watched.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{WaitOptions, wait};

use super::config::{NodeConfig, OWN, PROGRAMS, VOLUMES};
use super::files::{CONTAINERD, CONTAINERD_SOCKET, KUBE_PROXY, KUBELET};
use crate::command;

/// Maximum time until containerd is ready.
const CONTAINERD_DEADLINE: Duration = Duration::from_secs(60);

/// The socket of the CSI driver, in a folder of the kubelet's plugins.
const DRIVER_SOCKET: &str = "/var/lib/kubelet/plugins/csi-folder/csi.sock";

/// Runs the programs until one of them exits.
pub(super) fn run(node: &NodeConfig) -> Result<()> {
    let containerd = start("containerd", &["--config".into(), format!("{OWN}/{CONTAINERD}")])?;
    wait_for_containerd()?;
    for image in &node.images {
        let file = format!("{PROGRAMS}/{image}");
        let ctr = format!("{PROGRAMS}/ctr");
        command::run(&ctr, &["--namespace", "k8s.io", "images", "import", "--local", &file])
            .with_context(|| format!("import {image}"))?;
    }
    let kubelet = start("kubelet", &kubelet_flags(node))?;
    let kube_proxy = start("kube-proxy", &[format!("--config={OWN}/{KUBE_PROXY}")])?;
    let mut own = vec![(containerd, "containerd"), (kubelet, "kubelet"), (kube_proxy, "kube-proxy")];
    if node.volumes.is_some() {
        own.push((start_from(OWN, NodeConfig::DRIVER, &driver_flags(node))?, NodeConfig::DRIVER));
    }
    loop {
        // This is the first process of a pid namespace: orphans are its children too.
        match wait(WaitOptions::empty()) {
            Ok(Some((process, _))) => {
                if let Some((_, name)) =
                    own.iter().find(|(id, _)| u32::try_from(process.as_raw_nonzero().get()) == Ok(*id))
                {
                    bail!("{name} ended; the last lines of {name}.log:\n{}", last_lines(name));
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(anyhow!(error)).context("wait for processes"),
        }
    }
}

fn kubelet_flags(node: &NodeConfig) -> Vec<String> {
    [
        ("config", format!("{OWN}/{KUBELET}")),
        ("bootstrap-kubeconfig", format!("{OWN}/{}", NodeConfig::BOOTSTRAP)),
        ("kubeconfig", format!("{OWN}/kubelet.conf")),
        ("cert-dir", "/var/lib/kubelet/pki".into()),
        ("hostname-override", node.name.clone()),
        ("node-ip", node.address.to_string()),
        ("cloud-provider", "external".into()),
    ]
    .map(|(name, value)| format!("--{name}={value}"))
    .into()
}

/// Returns the flags of the CSI driver's node service, which registers itself with the kubelet.
fn driver_flags(node: &NodeConfig) -> [String; 3] {
    [format!("--socket={DRIVER_SOCKET}"), format!("--volumes={VOLUMES}"), format!("--node={}", node.name)]
}

fn start(name: &str, arguments: &[String]) -> Result<u32> {
    start_from(PROGRAMS, name, arguments)
}

/// Returns the folders in which a node's programs search for other programs: their own folder, the usual ones, and
/// those in which the machine's programs were found when its requirements were checked.
fn search_path(own: &OsStr) -> Result<OsString> {
    let usual = [PROGRAMS, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];
    let mut folders: Vec<PathBuf> = usual.map(PathBuf::from).into();
    for folder in env::split_paths(own).filter(|folder| folder.is_absolute()) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    env::join_paths(folders).context("join the folders of programs")
}

/// Starts a program of a folder with its output in a file with its name; returns its process id.
fn start_from(folder: &str, name: &str, arguments: &[String]) -> Result<u32> {
    let log = File::create(log(name)).with_context(|| format!("make the log of {name}"))?;
    let path = search_path(&env::var_os("PATH").unwrap_or_default())?;
    let child = Command::new(format!("{folder}/{name}"))
        .args(arguments)
        .env("PATH", path)
        .current_dir(OWN)
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("start {name}"))?;
    Ok(child.id())
}

fn wait_for_containerd() -> Result<()> {
    let ctr = format!("{PROGRAMS}/ctr");
    let deadline = Instant::now() + CONTAINERD_DEADLINE;
    loop {
        let result = if Path::new(CONTAINERD_SOCKET).exists() {
            command::run(&ctr, &["version"])
        } else {
            Err(anyhow!("it has no socket"))
        };
        match result {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                let last = last_lines("containerd");
                return Err(error.context(format!("containerd was not ready; the last lines of its log:\n{last}")));
            }
            Err(_) => sleep(Duration::from_millis(50)),
        }
    }
}

fn log(name: &str) -> String {
    format!("{OWN}/{name}.log")
}

fn last_lines(name: &str) -> String {
    let text = std::fs::read_to_string(log(name)).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_path_ends_with_other_folders_of_the_machine() {
        let path = search_path(OsStr::new("/run/current-system/sw/bin:/usr/bin::bin")).unwrap();
        let text = path.to_str().unwrap();
        assert!(text.starts_with("/run/bed/programs:/usr/local/sbin:"), "{text}");
        assert!(text.ends_with(":/bin:/run/current-system/sw/bin"), "{text}");
        assert_eq!(text.matches("/usr/bin").count(), 1);
    }
}
