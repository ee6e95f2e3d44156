//! The requirements of a cluster on the machine, checked before anything is started.

use std::env;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

use crate::cgroups::Layout;
use crate::programs::Programs;

/// Programs of the operating system, and the Debian packages that have them.
const TOOLS: [(&str, &str); 4] =
    [("ip", "iproute2"), ("nft", "nftables"), ("nsenter", "util-linux"), ("unshare", "util-linux")];

/// The tools and libraries for a C program that uses libseccomp.
const C_TOOLS: [(&str, &str); 2] = [("gcc", "gcc libc6-dev"), ("pkg-config", "pkg-config")];

/// Fails if this machine lacks a requirement, with a line for each.
///
/// # Errors
/// If a requirement is missing.
pub fn check(programs: &Programs) -> Result<()> {
    let missing = missing(programs);
    if missing.is_empty() {
        return Ok(());
    }
    let lines: String = missing.iter().map(|one| format!("\n- {one}")).collect();
    bail!("this machine cannot run a real cluster:{lines}")
}

/// Returns the missing requirements of this machine, one sentence each, with the way to install them.
pub fn missing(programs: &Programs) -> Vec<String> {
    let mut missing = Vec::new();
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        missing.push("root rights: start it as root, for instance with sudo -E".to_owned());
    }
    missing.extend(tools(&TOOLS));
    missing.extend(controllers());
    if is_root && find("unshare").is_some() {
        missing.extend(namespaces());
    }
    if !programs.are_built() {
        if find("go").is_none() {
            missing.push("Go 1.26 or later, which builds the nodes' programs once: see https://go.dev/dl".to_owned());
        }
        if programs.need_c() {
            missing.extend(tools(&C_TOOLS));
            missing.extend(seccomp());
        }
    }
    missing
}

/// Returns the programs in a list that this machine lacks, each with the Debian package that has it.
pub(crate) fn tools(tools: &[(&str, &str)]) -> Vec<String> {
    let lacking = tools.iter().filter(|(name, _)| find(name).is_none());
    lacking
        .map(|(name, package)| format!("the program {name}: install the Debian package {package}, or its like"))
        .collect()
}

fn controllers() -> Option<String> {
    let layout = match Layout::of_machine() {
        Ok(layout) => layout,
        Err(error) => return Some(format!("a list of mounts: {error:#}")),
    };
    let missing = layout.missing();
    (!missing.is_empty()).then(|| {
        format!(
            "the cgroup controllers {}: in a container, start it with cgroups of its own; else see cgroups(7)",
            missing.join(", ")
        )
    })
}

/// Tries the mounts that nodes need, in temporary namespaces. Returns the missing right, if any.
fn namespaces() -> Option<String> {
    const SCRIPT: &str = "mount -t proc proc /proc && cd \"$(mktemp -d)\" && mount -t tmpfs tmpfs . \
        && mkdir lower upper work all && mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work all";
    let flags = ["--net", "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--propagation", "private"];
    let output = Command::new("unshare").args(flags).args(["--", "sh", "-c", SCRIPT]).output();
    match output {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let complaint = String::from_utf8_lossy(&output.stderr);
            Some(format!(
                "the right to make namespaces, or the overlay file system (modprobe overlay): {}",
                complaint.trim_end()
            ))
        }
        Err(error) => Some(format!("the program unshare: {error}")),
    }
}

fn seccomp() -> Option<String> {
    let found = Command::new("pkg-config").args(["--exists", "libseccomp"]).stderr(Stdio::null()).status();
    let exists = found.is_ok_and(|status| status.success());
    (!exists).then(|| "the library libseccomp: install the Debian package libseccomp-dev, or its like".to_owned())
}

/// Finds a program in the folders of `PATH`.
fn find(name: &str) -> Option<std::path::PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
