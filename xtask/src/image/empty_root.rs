//! Runs of an image's program in a root that contains only the image's files, as in a container.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result};

use super::oci::Image;

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
pub enum RunResult {
    /// The binary succeeded with this output.
    Succeeded(String),
    /// The binary failed with this message.
    Failed(String),
    /// The binary cannot be run here, for this reason.
    Unsupported(String),
}

/// Runs a command, which is searched for on the image's own path.
pub fn run(image: &Image, command: &[&str]) -> Result<RunResult> {
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    if image.architecture != here {
        return Ok(RunResult::Unsupported(format!("this machine is {here}")));
    }
    let root = tempfile::tempdir().context("make a folder")?;
    tar::Archive::new(&*image.layer).unpack(root.path()).context("unpack the layer")?;
    let environment = image.config["config"]["Env"].as_array().context("an image without an environment")?;
    let environment = environment.iter().filter_map(|variable| variable.as_str()?.split_once('='));
    let mut inside = isolated(root.path());
    let output = match inside.args(command).env_clear().envs(environment).output() {
        Ok(output) => output,
        Err(error) => return Ok(RunResult::Unsupported(format!("unshare, of util-linux, cannot be run: {error}"))),
    };
    if output.status.success() {
        return Ok(RunResult::Succeeded(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    // If `true` fails, too, the host does not permit unshare, and the image is not the cause of the failure.
    let (message, trial) = (error_text(&output), isolated(Path::new("/")).arg("true").output());
    Ok(match trial {
        Ok(trial) if trial.status.success() => RunResult::Failed(message),
        Ok(trial) => RunResult::Unsupported(error_text(&trial)),
        Err(error) => RunResult::Unsupported(error.to_string()),
    })
}

/// Returns a command in another root, in a user namespace, which needs no permissions.
fn isolated(root: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--root"]).arg(root);
    command
}

fn error_text(output: &Output) -> String {
    format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end())
}
