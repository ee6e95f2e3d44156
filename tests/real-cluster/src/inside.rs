//! Processes inside a cluster: its keeper, and the first process of each node; and trials of the operations that need
//! root rights. The owner starts them by executing its own program with [`INSIDE`].

use std::path::Path;

use anyhow::{Context, Result, bail};

pub use crate::command::INSIDE;
use crate::{keeper, node, requirements};

/// The second argument for the trials that need root rights; the number of nodes follows. Each failure is a line on
/// standard output.
pub const TRIAL: &str = "trial";

/// Runs the process that the arguments after [`INSIDE`] name.
///
/// # Errors
/// When the arguments name no process, or it fails.
pub fn run(arguments: &[String]) -> Result<()> {
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["keeper", index] => keeper::run(index.parse().context("read the cluster's index")?),
        ["node", config] => node::run(Path::new(config)),
        // The user's command runs this with sudo before it builds anything.
        [TRIAL, nodes] => {
            let nodes = nodes.parse().context("read the number of nodes")?;
            requirements::trial_failures(nodes).iter().for_each(|failure| println!("{failure}"));
            Ok(())
        }
        ["node-inside", config] => node::run_inside(Path::new(config)),
        _ => bail!("{INSIDE} {}: unknown; only a test cluster runs this command", arguments.join(" ")),
    }
}
