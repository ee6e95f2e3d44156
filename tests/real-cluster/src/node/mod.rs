//! A node: the first process of its namespaces, which sets them up, starts stock programs and collects ended processes.

mod config;
mod files;
mod mounts;
mod programs;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

pub use config::{NodeConfig, OWN};

use crate::cgroups::Layout;
use crate::command::INSIDE;
use crate::network;

/// Joins the node's cgroups and continues as [`run_inside`] in a separate cgroup namespace.
///
/// # Errors
/// When the kernel refuses. Does not return otherwise.
pub fn run(config: &Path) -> Result<()> {
    let node = NodeConfig::read(config)?;
    Layout::of_machine()?.join(&node.branch, &node.name).context("join the node's cgroups")?;
    let error = Command::new("unshare")
        .args(["--cgroup", "--"])
        .arg(std::env::current_exe().context("find this program")?)
        .args([INSIDE, "node-inside"])
        .arg(config)
        .exec();
    Err(error).context("run unshare")
}

/// Sets the node up and runs its programs until one of them ends.
///
/// # Errors
/// When the kernel refuses something, or a program ends.
pub fn run_inside(config: &Path) -> Result<()> {
    let node = NodeConfig::read(config)?;
    rustix::system::sethostname(node.name.as_bytes()).context("set the host name")?;
    mounts::set_up(&node).context("mount the node's file systems")?;
    files::write(&node).context("write the node's files")?;
    network::set_up_node(node.address, node.gateway).context("set up the node's network")?;
    programs::run(&node)
}
