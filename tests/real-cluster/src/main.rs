//! Processes inside a cluster: its keeper, and the first process of each node. `cargo xtask cluster` starts them.

use std::path::Path;

use anyhow::{Context, Result, bail};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["keeper", index] => real_cluster::keeper::run(index.parse().context("read the cluster's index")?),
        ["node", config] => real_cluster::node::run(Path::new(config)),
        ["node-inside", config] => real_cluster::node::run_inside(Path::new(config)),
        _ => bail!("this program is started by `cargo xtask cluster`"),
    }
}
