//! `cargo xtask differential`: runs upstream's manager and ours with the same work, and compares the results.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use crate::aws::Cloud;
use crate::cargo::cargo;
use crate::test::one_program;

/// Tests that run upstream's manager, by parts of their names among the cluster tests.
pub const TESTS: [&str; 6] =
    ["as_in_upstream", "cloud::takeover::", "devices::", "endpoints::", "nodes::failure::", "upstream::"];

/// Compare with upstream's manager: final states, and takeovers in both directions.
///
/// Each scenario runs under upstream's manager and under ours on the same real API server; objects, events and owners
/// of fields are compared one by one, without names, uids and times. Intended differences are listed with their
/// reasons. Both also run the same scenario of failing nodes. Then each manager takes a rollout over from the other one
/// half-way, and no pod may be created twice.
///
/// Builds upstream's manager with Go the first time (about ten minutes).
#[derive(clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask differential
  cargo xtask differential --only takeover
  cargo xtask differential aws         # ccm and upstream's AWS manager, on moto")]
pub struct Arguments {
    /// Compare the cloud controller managers of this cloud instead: nodes, routes and Services, and leaked resources
    #[arg(value_enum, conflicts_with = "only")]
    cloud: Option<Cloud>,

    /// Our cloud controller manager's binary, instead of building it
    #[arg(long, value_name = "PATH", requires = "cloud")]
    ccm: Option<PathBuf>,

    /// Run only tests with this text in their names
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
}

/// Runs the tests; fails if a test fails.
pub fn run(arguments: Arguments) -> Result<()> {
    if let Some(Cloud::Aws) = arguments.cloud {
        return crate::aws::differential(arguments.ccm.as_deref());
    }
    let chosen: Vec<String> = match arguments.only {
        Some(text) => vec![text],
        None => TESTS.map(String::from).into(),
    };
    let status = cargo().args(one_program("cluster")).arg("--ignored").args(&chosen).status().context("run cargo")?;
    if !status.success() {
        bail!("upstream's manager and ours differ, or could not be compared; see above");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_filter_matches_a_cluster_test() {
        let listed = include_str!("../../tests/cluster/tests/cluster/main.rs");
        for filter in TESTS {
            assert!(listed.contains(filter), "{filter} matches no test");
        }
    }
}
