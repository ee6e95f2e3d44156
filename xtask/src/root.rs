//! Root rights for commands that need them: a user's command builds as the user, and continues as root with sudo.
//!
//! sudo resets the environment and PATH on most distributions: cargo and Go are not found. Besides, files that root
//! builds belong to root. Therefore everything is built first; then this program starts itself again, with the
//! variables that it needs and the paths of the binaries.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::lchown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use real_cluster::inside::{INSIDE, TRIAL};
use real_cluster::requirements::{self, ADMINISTRATOR};

/// The prefix of variables with the path of a package's binary that was built before the start as root.
const BUILT: &str = "XTASK_BUILT_";

/// Variables, and prefixes of variables, that programs of a cluster and their downloads read.
const KEPT: [&str; 6] =
    ["KEEP_CONTROL_PLANE", "KUBEBUILDER_ASSETS", "TMPDIR", "XDG_CACHE_HOME", "NO_PROXY", "no_proxy"];
const KEPT_PREFIXES: [&str; 4] = ["CARGO", "GO", "KCM_", "RUST"];

pub use real_cluster::requirements::is_root;

/// Returns the binary of a package that was built before the start as root.
pub fn built(package: &str) -> Option<PathBuf> {
    env::var_os(format!("{BUILT}{}", package.to_uppercase())).map(PathBuf::from)
}

/// Starts this command again with root rights, in place of this process. `binaries` are packages and their binaries.
///
/// # Errors
/// When this program is not found, or sudo cannot be started. Does not return otherwise.
pub fn restart(binaries: &[(&str, &Path)]) -> Result<()> {
    let arguments = this_program(binaries, env::args_os().skip(1))?;
    eprintln!("a cluster needs root rights: continuing with sudo");
    let error = Command::new("sudo").args(arguments).exec();
    Err(error).context("root rights are needed, and sudo cannot be started: start this command as root")
}

/// Warns a user who has started cargo itself with sudo.
pub fn warn_of_builds() {
    if user().is_some() && built("ccm").is_none() {
        eprintln!(
            "started with sudo: what is built belongs to root. Started as your user, this command builds as you, and continues \
             with sudo"
        );
    }
}

/// Returns the requirement of [`restart`] that this machine does not meet, as a sentence, or `None`.
pub fn obstacle() -> Option<String> {
    (!is_root() && !requirements::tools(&[("sudo", "sudo")]).is_empty())
        .then(|| "root rights: install sudo, or start this command as root".to_owned())
}

/// Checks everything for which a cluster with this number of nodes needs root rights, before anything is built. sudo
/// may ask for the password, unless `is_silent`. Returns a sentence for each failure.
///
/// # Errors
/// When sudo cannot be started, or refuses.
pub fn try_out(nodes: u8, is_silent: bool) -> Result<Vec<String>> {
    let arguments = this_program(&[], [INSIDE, TRIAL, &nodes.to_string()].map(OsString::from).into_iter())?;
    let mut sudo = Command::new("sudo");
    if is_silent {
        sudo.arg("--non-interactive");
    } else {
        eprintln!("a cluster needs root rights: trying the steps that need them with sudo");
    }
    let output = sudo.args(arguments).stdin(Stdio::inherit()).stderr(Stdio::inherit()).output();
    let output = output.context("root rights are needed, and sudo cannot be started: start this command as root")?;
    ensure!(output.status.success(), "root rights are needed, and sudo ended with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(String::from).collect())
}

/// Returns true if sudo gives root rights without a password.
pub fn is_available_silently() -> bool {
    let sudo = Command::new("sudo").args(["--non-interactive", "true"]).stderr(Stdio::null()).status();
    sudo.is_ok_and(|status| status.success())
}

/// Returns the arguments of sudo that start this program with these arguments.
fn this_program(binaries: &[(&str, &Path)], arguments: impl Iterator<Item = OsString>) -> Result<Vec<OsString>> {
    let program = env::current_exe().context("find this program")?;
    let variables: Vec<(OsString, OsString)> = env::vars_os().collect();
    Ok(sudo_arguments(&variables, binaries).into_iter().chain([program.into()]).chain(arguments).collect())
}

/// Returns the arguments of sudo before the program. Variables go through sudo's own list, so that other users do not
/// read their values in the list of processes; PATH and HOME, which sudo replaces in any case, go through `env`.
fn sudo_arguments(variables: &[(OsString, OsString)], binaries: &[(&str, &Path)]) -> Vec<OsString> {
    let value = |name: &str| variables.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_os_str());
    let kept = variables.iter().filter_map(|(name, _)| name.to_str()).filter(|name| is_kept(name));
    let kept: Vec<&str> = kept.collect();
    let mut arguments = Vec::new();
    if !kept.is_empty() {
        arguments.push(format!("--preserve-env={}", kept.join(",")).into());
    }
    arguments.extend(["--", "env"].map(OsString::from));
    arguments.push(assignment("PATH", &search_path(value("PATH").unwrap_or_default())));
    arguments.extend(value("HOME").map(|home| assignment("HOME", home)));
    for (package, path) in binaries {
        arguments.push(assignment(&format!("{BUILT}{}", package.to_uppercase()), path.as_os_str()));
    }
    arguments
}

fn is_kept(name: &str) -> bool {
    KEPT.contains(&name)
        || control_plane::proxy::VARIABLES.contains(&name)
        || KEPT_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the user's PATH, followed by folders of administrators that are not in it.
fn search_path(own: &OsStr) -> OsString {
    let mut folders: Vec<PathBuf> = env::split_paths(own).collect();
    for folder in ADMINISTRATOR.map(PathBuf::from) {
        if !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    env::join_paths(folders).unwrap_or_else(|_| own.to_owned())
}

fn assignment(name: &str, value: &OsStr) -> OsString {
    let mut text = OsString::from(format!("{name}="));
    text.push(value);
    text
}

/// Gives a file, or a folder and everything in it, to the user who started the command with sudo, if there is one.
///
/// # Errors
/// When the kernel refuses.
pub fn give_to_user(folder: &Path) -> Result<()> {
    user().map_or(Ok(()), |(user, group)| give(folder, user, group))
}

/// Same as [`give_to_user`], without the content of a folder.
///
/// # Errors
/// Same as [`give_to_user`].
pub fn give_one_to_user(path: &Path) -> Result<()> {
    user().map_or(Ok(()), |(user, group)| give_one(path, user, group))
}

/// Gives the logs of an ended cluster and of its nodes to the user who started the command with sudo; `folder` is the
/// cluster's. Keys and data stay with root. A failure is printed: it must not hide the reason for the end of the
/// cluster.
pub fn give_kept_logs_to_user(folder: &Path) {
    if let Some((user, group)) = user()
        && let Err(error) = give_logs(folder, user, group)
    {
        eprintln!("cluster: the logs can be read by root only: {error:#}");
    }
}

/// Returns the IDs of the user who started the command with sudo, and of that user's group; `None` without sudo.
pub fn user() -> Option<(u32, u32)> {
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    if is_root() { number("SUDO_UID").zip(number("SUDO_GID")) } else { None }
}

fn give_one(path: &Path, user: u32, group: u32) -> Result<()> {
    lchown(path, Some(user), Some(group)).with_context(|| format!("give {} to its user", path.display()))
}

/// Gives the logs in a folder to a user, and then the folder: before that, the user cannot replace its contents.
fn give_logs(folder: &Path, user: u32, group: u32) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if kind.is_dir() && name.starts_with("node-") {
            give_logs(&path, user, group)?;
        } else if kind.is_file() && name.ends_with(".log") {
            give_one(&path, user, group)?;
        }
    }
    give_one(folder, user, group)
}

fn give(path: &Path, user: u32, group: u32) -> Result<()> {
    give_one(path, user, group)?;
    if path.symlink_metadata().is_ok_and(|data| data.is_dir()) {
        for entry in fs::read_dir(path).with_context(|| format!("list {}", path.display()))? {
            give(&entry?.path(), user, group)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sudo_keeps_needed_variables_and_no_others() {
        let variables = [
            ("PATH", "/home/ann/.cargo/bin:/usr/bin"),
            ("HOME", "/home/ann"),
            ("CARGO_HOME", "/home/ann/.cargo"),
            ("GOPROXY", "off"),
            ("https_proxy", "http://ann:secret@proxy.invalid"),
            ("LD_PRELOAD", "/home/ann/lib.so"),
            ("KCM_TEST_ASSETS", "/home/ann/a b"),
        ]
        .map(|(name, value)| (name.into(), value.into()));
        let arguments = sudo_arguments(&variables, &[("kcm", Path::new("/target/a b/kcm"))]);
        let expected = [
            "--preserve-env=CARGO_HOME,GOPROXY,https_proxy,KCM_TEST_ASSETS",
            "--",
            "env",
            "PATH=/home/ann/.cargo/bin:/usr/bin:/usr/local/sbin:/usr/sbin:/sbin",
            "HOME=/home/ann",
            "XTASK_BUILT_KCM=/target/a b/kcm",
        ];
        assert_eq!(arguments, expected);
    }

    #[test]
    fn sudo_has_no_empty_list_of_variables() {
        assert_eq!(sudo_arguments(&[], &[])[0], "--");
    }

    #[test]
    fn folders_of_administrators_are_added_to_the_path_once() {
        assert_eq!(search_path(OsStr::new("/usr/sbin:/bin")), "/usr/sbin:/bin:/usr/local/sbin:/sbin");
    }

    #[test]
    fn report_is_given_to_the_user_with_everything_in_it() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ours/report.json");
        fs::create_dir(folder.path().join("ours")).unwrap();
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("/nonexistent", folder.path().join("link")).unwrap();
        let (user, group) =
            if is_root() { (1234, 1235) } else { file.metadata().map(|own| (own.uid(), own.gid())).unwrap() };
        give(folder.path(), user, group).unwrap();
        assert_eq!(file.metadata().map(|own| (own.uid(), own.gid())).unwrap(), (user, group));
    }

    #[test]
    fn logs_are_given_to_the_user_and_keys_are_not() {
        use std::os::unix::fs::MetadataExt;
        if !is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in ["pki", "node-1/lib", "etcd"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        for name in
            ["manager.log", "pki/ca.key", "admin.conf", "node-1/kubelet.log", "node-1/kubelet.conf", "etcd/1.log"]
        {
            fs::write(path(name), "").unwrap();
        }
        std::os::unix::fs::symlink("/etc/hostname", path("link.log")).unwrap();
        give_logs(folder.path(), 1234, 1235).unwrap();
        let owner = |name: &str| fs::symlink_metadata(path(name)).unwrap().uid();
        for name in ["", "manager.log", "node-1", "node-1/kubelet.log"] {
            assert_eq!(owner(name), 1234, "{name}");
        }
        for name in ["pki", "pki/ca.key", "admin.conf", "node-1/kubelet.conf", "etcd", "etcd/1.log", "link.log"] {
            assert_eq!(owner(name), 0, "{name}");
        }
    }
}
