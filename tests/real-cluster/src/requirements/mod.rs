//! The requirements of a cluster on the machine, checked before anything is started.

mod building;
mod disk;
mod kernel;
mod trial;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::programs::Programs;

/// Programs of the operating system, and the Debian packages that have them.
const TOOLS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("mount", "mount"),
    ("sh", "dash"),
];

/// Whether this process has the rights that a cluster needs.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Fails with a line for each thing that this machine lacks, and for each of `more`.
///
/// # Errors
/// When it lacks anything.
pub fn check(programs: &Programs, more: Vec<String>) -> Result<()> {
    fail_with([missing(programs), more].concat())
}

/// Same as [`check`] without root rights and without what only root can try.
///
/// # Errors
/// When the machine lacks anything.
pub fn check_as_user(programs: &Programs, more: Vec<String>) -> Result<()> {
    fail_with([missing_for_all(programs), more].concat())
}

fn fail_with(missing: Vec<String>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let lines: String = missing.iter().map(|one| format!("\n- {one}")).collect();
    bail!("this machine cannot run a real cluster:{lines}")
}

/// Returns the missing requirements of this machine, one sentence each, with the way to install them.
pub fn missing(programs: &Programs) -> Vec<String> {
    let mut missing = Vec::new();
    if !is_root() {
        missing.push("root rights: start it as root".to_owned());
    }
    missing.extend(missing_for_all(programs));
    if missing.is_empty() {
        missing.extend(trial::failures());
    }
    missing
}

fn missing_for_all(programs: &Programs) -> Vec<String> {
    [tools(&TOOLS), kernel::missing(), disk::missing(programs), building::missing(programs)].concat()
}

/// Returns what this machine lacks to build the programs of the conformance suite, one sentence each.
pub fn building_for_conformance(programs: &Programs) -> Vec<String> {
    // Building the nodes' programs has the same requirement.
    let is_new = programs.are_built() && !programs.are_built_for_conformance();
    if is_new { building::go().into_iter().collect() } else { Vec::new() }
}

/// The programs in a list that this machine lacks, each with the Debian package that has it.
pub(crate) fn tools(tools: &[(&str, &str)]) -> Vec<String> {
    let lacking = tools.iter().filter(|(name, _)| find(name).is_none());
    lacking
        .map(|(name, package)| format!("the program {name}: install the Debian package {package}, or its equivalent"))
        .collect()
}

/// Folders with programs of administrators, which are not in the PATH of all users.
pub const ADMINISTRATOR: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Looks a program up as root's shell does.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(ADMINISTRATOR.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| is_program(file))
}

/// Whether a file exists and may be executed.
pub(crate) fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}
