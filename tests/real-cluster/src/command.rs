//! Commands of the operating system, run to their end.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use control_plane::proxy;

/// Runs a command; returns its output.
///
/// # Errors
/// When it cannot be started or fails; the error has its complaint.
pub fn run<S: AsRef<OsStr>>(program: &str, arguments: &[S]) -> Result<String> {
    run_with_input(program, arguments, "")
}

/// Same as [`run`], with a text on its standard input.
///
/// # Errors
/// Same as [`run`].
pub fn run_with_input<S: AsRef<OsStr>>(program: &str, arguments: &[S], input: &str) -> Result<String> {
    let shown = || {
        let words = arguments.iter().map(|argument| argument.as_ref().to_string_lossy().into_owned());
        [program.to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ")
    };
    let mut child = proxy::remove(&mut Command::new(program))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("run {}", shown()))?;
    let mut stdin = child.stdin.take().context("a command without input")?;
    let written = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().with_context(|| format!("wait for {}", shown()))?;
    if !output.status.success() {
        bail!("{} ({}): {}", shown(), output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    written.with_context(|| format!("write the input of {}", shown()))?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
