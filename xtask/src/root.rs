//! Root rights for commands that need them: a user's command builds as the user, and continues as root with sudo.
//!
//! sudo resets the environment and PATH on most distributions, so that cargo and Go are not found, and what root builds
//! belongs to root. Therefore everything is built first; then this program starts itself again, with the variables that
//! it needs and the paths of the binaries.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::lchown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use real_cluster::requirements::ADMINISTRATOR;

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
/// When sudo cannot be started. Does not return otherwise.
pub fn restart(binaries: &[(&str, &Path)]) -> Result<()> {
    let program = env::current_exe().context("find this program")?;
    let variables: Vec<(OsString, OsString)> = env::vars_os().collect();
    let mut arguments = sudo_arguments(&variables, binaries);
    arguments.push(program.into());
    arguments.extend(env::args_os().skip(1));
    eprintln!("a cluster needs root rights: continuing with sudo");
    let error = Command::new("sudo").args(arguments).exec();
    Err(error).context("root rights are needed, and sudo cannot be started: start this command as root")
}

/// The arguments of sudo before the program. Variables go through sudo's own list, so that other users do not read their
/// values in the list of processes; PATH and HOME, which sudo replaces in any case, go through `env`.
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

/// The user's PATH, followed by folders of administrators that are not in it.
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

/// Gives a folder and everything in it to the user who started the command with sudo, if one did.
///
/// # Errors
/// When the kernel refuses.
pub fn give_to_user(folder: &Path) -> Result<()> {
    let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
    match (number("SUDO_UID"), number("SUDO_GID")) {
        (Some(user), Some(group)) if is_root() => give(folder, user, group),
        _ => Ok(()),
    }
}

fn give(path: &Path, user: u32, group: u32) -> Result<()> {
    lchown(path, Some(user), Some(group)).with_context(|| format!("give {} to its user", path.display()))?;
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
}
