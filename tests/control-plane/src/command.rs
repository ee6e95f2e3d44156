//! Commands with a text on their standard input.

use std::io::Write;
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result, anyhow, bail};

/// Runs a command with a text on its standard input; returns its output. `line` names the command in errors.
///
/// # Errors
/// If it cannot be started or fails; the error contains its standard error.
pub fn output_with_input(command: &mut Command, line: &str, input: &str) -> Result<Vec<u8>> {
    let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().with_context(|| format!("run {line}"))?;
    let mut stdin = child.stdin.take().context("take the standard input of the command")?;
    // The command may write output before it has read all of its input.
    let (written, output) = thread::scope(|scope| {
        let writer = scope.spawn(move || stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output();
        (writer.join(), output)
    });
    let output = output.with_context(|| format!("wait for {line}"))?;
    if !output.status.success() {
        bail!("{line} ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let written = written.map_err(|_| anyhow!("writing the input of {line} panicked"))?;
    written.with_context(|| format!("write the input of {line}"))?;
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_may_begin_before_the_input_has_ended() {
        // More than the buffers of both pipes.
        let input = "a line\n".repeat(100_000);
        let output = output_with_input(&mut Command::new("cat"), "cat", &input).expect("its output");
        assert_eq!(output, input.as_bytes());
    }
}
