//! Processes inside a cluster: its keeper, and the first process of each node. To start them, the owner executes its
//! own program with [`INSIDE`].

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{keeper, node};

/// The first argument of the owner's program for one of these processes.
pub const INSIDE: &str = "cluster-process";

/// Runs such a process with the arguments after [`INSIDE`].
///
/// # Errors
/// When there is no such process, or it fails.
pub fn run(arguments: &[String]) -> Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["keeper", index] => keeper::run(index.parse().context("read the cluster's index")?),
        ["node", config] => node::run(Path::new(config)),
        ["node-inside", config] => node::run_inside(Path::new(config)),
        _ => bail!("{INSIDE} {}: unknown; only a test cluster runs this command", arguments.join(" ")),
    }
}
