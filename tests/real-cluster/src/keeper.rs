//! The keeper of a cluster: a process that is the cluster's router and that cleans up when the owner exits.
//!
//! Its network namespace is the router. Its standard input is a pipe that only the owner can write to: when the owner
//! exits, for any reason, the kernel closes the pipe, and the keeper removes the resources that outlive processes.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::address::Addresses;
use crate::command::INSIDE;
use crate::{bed, network};

/// The line that the keeper prints when the router works.
const READY: &str = "ready";

/// The owner's end of a keeper. Dropping it waits until the keeper has cleaned up.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
}

impl Keeper {
    /// Starts the keeper of a cluster, and connects this machine with it.
    ///
    /// # Errors
    /// When a process cannot be started, or the kernel refuses to make the network.
    pub fn start(program: &Path, addresses: Addresses) -> Result<Self> {
        let child = Command::new("unshare")
            .args(["--net", "--"])
            .arg(program)
            .args([INSIDE, "keeper", &addresses.index.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A signal of the terminal is for the owner only; see `ignore_signals` for others.
            .process_group(0)
            .spawn()
            .context("run unshare")?;
        let mut keeper = Self { child };
        let output = keeper.child.stdout.take().context("a keeper without output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line).context("read the keeper's output")?;
        ensure!(line.trim() == READY, "the cluster's router could not be set up; the reason is above");
        network::connect_machine(addresses, &keeper.router(), keeper.child.id())
            .context("connect this machine with the cluster")?;
        Ok(keeper)
    }

    /// Returns the file of the router's network namespace.
    pub fn router(&self) -> PathBuf {
        network::namespace(self.child.id())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        match self.child.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => eprintln!("cluster: resources were left behind ({status}); the next cluster removes them"),
            Err(error) => eprintln!("cluster: cannot wait for the keeper: {error}"),
        }
    }
}

/// Runs the keeper: sets up the router, waits until the owner exits, cleans up.
///
/// # Errors
/// When the router cannot be set up, or something cannot be removed.
pub fn run(index: u8) -> Result<()> {
    let _lock = bed::keep(index)?;
    let _signals = ignore_signals()?;
    if let Err(error) = network::set_up_router(Addresses { index }).context("set up the cluster's router") {
        clean_up(index)?;
        return Err(error);
    }
    println!("{READY}");
    std::io::stdout().flush().context("report to the owner")?;
    let mut ignored = [0; 64];
    let mut input = std::io::stdin();
    while input.read(&mut ignored).is_ok_and(|count| count > 0) {}
    // Connections to nodes that were killed can keep the namespace for minutes; the machine's device must not wait for
    // it.
    network::disconnect_machine();
    clean_up(index)
}

fn clean_up(index: u8) -> Result<()> {
    bed::remove_leaked(index)?;
    bed::forget(index)
}

/// Ignores signals that end other programs: the keeper ends with its owner, after it has cleaned up. The signals are
/// ignored as long as the result exists.
fn ignore_signals() -> Result<(Runtime, [Signal; 3])> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().context("listen to signals")?;
    let guard = runtime.enter();
    let listen = |kind| signal(kind).context("listen to signals");
    let signals = [listen(SignalKind::hangup())?, listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?];
    drop(guard);
    Ok((runtime, signals))
}
