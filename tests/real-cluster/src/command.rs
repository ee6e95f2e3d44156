//! Runs commands of the operating system and waits for them.

use std::ffi::OsStr;
use std::process::Command;

use anyhow::Result;
use control_plane::command::output_with_input;
use control_plane::proxy;

/// The first argument of the owner's program for a process inside a cluster.
pub const INSIDE: &str = "cluster-process";

/// Runs a command; returns its output.
///
/// # Errors
/// If it cannot be started or fails; the error contains its standard error.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String> {
    run_with_input(program, arguments, "")
}

/// Same as [`run`], with a text on its standard input.
///
/// # Errors
/// Same as [`run`].
pub fn run_with_input<S: AsRef<OsStr>>(program: &str, arguments: &[S], input: &str) -> Result<String> {
    let words = arguments.iter().map(|argument| argument.as_ref().to_string_lossy().into_owned());
    let line = [program.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ");
    let mut command = Command::new(program);
    proxy::remove(&mut command).args(arguments);
    Ok(String::from_utf8_lossy(&output_with_input(&mut command, &line, input)?).into_owned())
}
