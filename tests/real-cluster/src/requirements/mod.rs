//! The requirements of a cluster on the machine, checked before anything is started.

mod building;
mod demand;
mod disk;
mod kernel;
mod memory;
mod trial;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use crate::bed;
use crate::programs::Programs;
use demand::BuiltGroups;

pub use demand::Demand;
#[cfg(test)]
pub(crate) use disk::smallest_cluster_bytes;

/// Programs of the operating system, and the Debian packages that have them.
const TOOLS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("nsenter", "util-linux"),
    ("unshare", "util-linux"),
    ("mount", "mount"),
    ("sh", "dash"),
];

/// Returns true if this process has the rights that a cluster needs.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Fails with a line for each thing that this machine lacks for a command, and for each of `more`.
///
/// # Errors
/// When it lacks anything.
pub fn check(programs: &Programs, demand: &Demand, more: Vec<String>) -> Result<()> {
    fail_with([missing(programs, demand)?, more].concat())
}

/// Fails with these sentences about missing requirements; succeeds without any.
///
/// # Errors
/// When there are any.
pub fn fail_with(missing: Vec<String>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let lines: String = missing.iter().map(|one| format!("\n- {one}")).collect();
    bail!("this machine cannot run a real cluster:{lines}")
}

/// Returns the missing requirements of a command, one sentence each, with the way to meet them.
///
/// # Errors
/// When the environment names no place for programs.
pub fn missing(programs: &Programs, demand: &Demand) -> Result<Vec<String>> {
    let found = missing_for_all(programs, demand)?;
    Ok(if is_root() {
        [found, trial_failures(demand.nodes)].concat()
    } else {
        [vec!["root rights: start it as root".to_owned()], found].concat()
    })
}

/// Returns the missing requirements that are found without root rights; see [`missing`].
///
/// # Errors
/// Same as [`missing`].
pub fn missing_for_all(programs: &Programs, demand: &Demand) -> Result<Vec<String>> {
    let built = BuiltGroups::now(programs)?;
    let needs = disk::needs(programs, demand, building::space(demand, built));
    let files_in_memory = disk::in_memory(&needs, disk::file_system);
    let mut missing = [
        tools(&TOOLS),
        kernel::missing(),
        memory::missing(demand.nodes, &files_in_memory).into_iter().collect(),
        disk::missing(&needs, programs, disk::file_system),
        building::missing(programs, demand, built),
    ]
    .concat();
    missing.extend(addresses(bed::address_conflicts(), find("ip").is_some()));
    Ok(missing)
}

/// Returns a sentence about addresses that a cluster cannot have. If `ip` fails, returns its error, because some
/// implementations of `ip` cannot write JSON. If `ip` is missing, returns `None`: [`tools`] reports that.
fn addresses(conflicts: Result<Option<String>>, has_ip: bool) -> Option<String> {
    match conflicts {
        Ok(conflicts) => conflicts.map(|conflicts| format!("addresses for a cluster: {conflicts}")),
        // Only the first line is the reason; the usage of `ip` follows.
        Err(error) => has_ip.then(|| {
            format!("the program ip of iproute2: {}", format!("{error:#}").lines().next().unwrap_or_default())
        }),
    }
}

/// Returns a sentence for each unmet requirement of a cluster with this number of nodes, among the requirements that
/// only root can check.
pub fn trial_failures(nodes: u8) -> Vec<String> {
    trial::failures(|tool| find(tool).is_some()).into_iter().chain(memory::missing_instances(nodes)).collect()
}

/// Returns the programs in a list that this machine lacks, each with the Debian package that has it.
pub fn tools(tools: &[(&str, &str)]) -> Vec<String> {
    let lacking = tools.iter().filter(|(name, _)| find(name).is_none());
    lacking
        .map(|(name, package)| format!("the program {name}: install the Debian package {package}, or its equivalent"))
        .collect()
}

/// Folders with programs of administrators, which are not in the PATH of all users.
pub const ADMINISTRATOR: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Finds a program in the folders in which root's shell finds it.
fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(ADMINISTRATOR.map(PathBuf::from));
    folders.map(|folder| folder.join(name)).find(|file| is_program(file))
}

/// Returns true if a file exists and may be executed.
pub fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn program_ip_that_cannot_list_addresses_is_reported() {
        assert_eq!(addresses(Ok(None), true), None);
        assert!(
            addresses(Ok(Some("172.30.0.0/16 of eth0".into())), true).unwrap().contains("addresses for a cluster: 172")
        );
        let unusable = || Err(anyhow!("ip -json: unrecognized option\n\nUsage: ip"));
        assert_eq!(addresses(unusable(), true).unwrap(), "the program ip of iproute2: ip -json: unrecognized option");
        assert_eq!(addresses(unusable(), false), None);
    }
}
