//! Commands to a running cluster: a line on a socket, with a line as response.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;

use crate::RealCluster;
use crate::bed;

/// The response to a command that was executed.
const DONE: &str = "done";

/// The first word of the command that replaces the controller manager.
const SWAP: &str = "swap";

/// Maximum length of a command: a word and a path.
const MAX_COMMAND_BYTES: u64 = 8192;

/// Time in which a client has to send its command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

/// Delay after a connection could not be accepted.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Serves commands for a cluster until the future is dropped. `report` gets a line for each that succeeds.
///
/// # Errors
/// When the socket cannot be made.
pub async fn serve(cluster: &RealCluster, report: impl Fn(&str)) -> Result<()> {
    let path = cluster.control();
    let listener = UnixListener::bind(&path).with_context(|| format!("listen on {}", path.display()))?;
    loop {
        // A client that disconnects before it is served needs no response.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        let (reader, mut writer) = stream.into_split();
        let mut line = String::new();
        let mut reader = tokio::io::BufReader::new(reader.take(MAX_COMMAND_BYTES));
        // Clients are served one after the other: without a timeout, one that sends nothing would block the others.
        if !matches!(tokio::time::timeout(COMMAND_TIMEOUT, reader.read_line(&mut line)).await, Ok(Ok(_))) {
            continue;
        }
        let response = match execute(cluster, line.trim(), &report).await {
            Ok(()) => DONE.to_owned(),
            Err(error) => format!("{error:#}").replace('\n', " "),
        };
        let _ = writer.write_all(format!("{response}\n").as_bytes()).await;
    }
}

async fn execute(cluster: &RealCluster, command: &str, report: &impl Fn(&str)) -> Result<()> {
    match command.split_once(' ') {
        Some((SWAP, program)) => {
            cluster.swap_manager(Path::new(program)).await?;
            report(&format!("the controller manager is now {program}"));
            Ok(())
        }
        _ => bail!("unknown command {command:?}: use \"{SWAP} PATH\""),
    }
}

/// Returns the cluster that a command is for: the chosen one, or the only one.
///
/// # Errors
/// When the chosen one does not run; without a choice, when none or several run.
pub fn find(cluster: Option<u8>) -> Result<u8> {
    choose(cluster, &bed::running())
}

/// Replaces the controller manager of a running cluster.
///
/// # Errors
/// When [`find`] fails, the program does not exist, or the cluster cannot be reached or refuses.
pub fn swap(cluster: Option<u8>, program: &Path) -> Result<()> {
    let index = find(cluster)?;
    let program: PathBuf = program.canonicalize().with_context(|| format!("find {}", program.display()))?;
    let path = bed::control(index);
    let mut stream = UnixStream::connect(&path).with_context(|| format!("connect to {}", path.display()))?;
    writeln!(stream, "{SWAP} {}", program.display()).context("write the command")?;
    let mut response = String::new();
    BufReader::new(stream).read_line(&mut response).context("read the response")?;
    check(response.trim()).with_context(|| format!("cluster {index}"))
}

/// Fails unless a response reports success.
fn check(response: &str) -> Result<()> {
    ensure!(!response.is_empty(), "it ended before it responded");
    ensure!(response == DONE, "{response}");
    Ok(())
}

fn choose(wanted: Option<u8>, running: &[u8]) -> Result<u8> {
    match (wanted, running) {
        (Some(index), _) if running.contains(&index) => Ok(index),
        (Some(index), _) => bail!("cluster {index} does not run; running clusters: {running:?}"),
        (None, [index]) => Ok(*index),
        (None, []) => bail!("no cluster runs on this machine: start one with cargo xtask cluster"),
        (None, _) => bail!("several clusters run on this machine: choose one of {running:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_the_cluster_and_refusals_are_errors_with_a_reason() {
        assert!(check(DONE).is_ok());
        assert_eq!(check("the program ended").unwrap_err().to_string(), "the program ended");
        assert_eq!(check("").unwrap_err().to_string(), "it ended before it responded");
    }

    #[test]
    fn only_cluster_is_chosen_when_none_is_named() {
        assert_eq!(choose(None, &[3]).unwrap(), 3);
        assert_eq!(choose(Some(1), &[1, 3]).unwrap(), 1);
        for (wanted, running, reason) in
            [(None, &[][..], "no cluster runs"), (None, &[1, 2], "several"), (Some(4), &[1], "does not run")]
        {
            assert!(choose(wanted, running).unwrap_err().to_string().contains(reason), "{reason}");
        }
    }
}
