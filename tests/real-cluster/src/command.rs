//! Runs commands of the operating system and waits for them.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use control_plane::proxy;

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
    let command_line = || {
        let words = arguments.iter().map(|argument| argument.as_ref().to_string_lossy().into_owned());
        [program.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
    };
    let mut child = proxy::remove(&mut Command::new(program))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {}", command_line()))?;
    let mut stdin = child.stdin.take().context("take the standard input of the command")?;
    // The command may write output before it has read all of its input.
    let (written, output) = thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output();
        (writer.join(), output)
    });
    let output = output.with_context(|| format!("wait for {}", command_line()))?;
    if !output.status.success() {
        bail!("{} ({}): {}", command_line(), output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let written = written.map_err(|_| anyhow!("writing the input of {} panicked", command_line()))?;
    written.with_context(|| format!("write the input of {}", command_line()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
