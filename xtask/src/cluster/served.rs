//! The part of the smoke test that starts this command as a user does: the printed kubeconfig works, `swap` replaces the
//! manager, and nothing is left behind after Ctrl-C, nor after the command was killed.

use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use control_plane::assets::{Assets, Program};
use control_plane::proxy;
use real_cluster::{Footprint, Setup};
use rustix::process::{Pid, Signal, kill_process};

/// The beginning of the line with the kubeconfig.
const KUBECONFIG: &str = "  export KUBECONFIG=";

/// The beginning of the last line of the introduction.
const READY: &str = "Ctrl-C ends";

/// Maximum time until the command accepts a swap, and until it has ended after a signal.
const DEADLINE: Duration = Duration::from_secs(60);

/// Interval at which the end of the command is checked.
const PERIOD: Duration = Duration::from_millis(50);

/// Runs the test with the managers of a setup.
pub fn run(setup: &Setup, report: impl Fn(&str)) -> Result<()> {
    let mut served = Served::start(setup)?;
    served.check_kubeconfig()?;
    served.swap(&setup.manager)?;
    report("another cluster by the command itself: the kubeconfig works, and swap replaces the manager");
    served.end(Signal::INT, |status| status.code() == Some(130)).context("end the command with Ctrl-C")?;
    report("it left nothing behind after Ctrl-C");
    let served = Served::start(setup)?;
    served.check_kubeconfig()?;
    served.end(Signal::KILL, |status| status.signal() == Some(9)).context("kill the command")?;
    report("another one left nothing behind after kill -9");
    Ok(())
}

/// The running command. It ends with this process.
struct Served {
    program: PathBuf,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    kubeconfig: PathBuf,
}

impl Served {
    /// Starts the command with one node, and waits until its cluster is up.
    fn start(setup: &Setup) -> Result<Self> {
        // With the parent's death as a signal: otherwise the cluster would outlive a smoke test that is killed.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "--"])
            .arg(&setup.inside)
            .args(["cluster", "--nodes", "1"])
            .args([Path::new("--manager"), &setup.manager, Path::new("--cloud-manager"), &setup.cloud_manager])
            .env_remove("KEEP_CONTROL_PLANE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("run setpriv")?;
        let output = child.stdout.take().context("a command without output")?;
        let mut lines = BufReader::new(output).lines();
        let kubeconfig = line_after(&mut lines, KUBECONFIG)?.into();
        line_after(&mut lines, READY)?;
        Ok(Self { program: setup.inside.clone(), child, lines, kubeconfig })
    }

    /// Fails unless kubectl lists the node with the printed kubeconfig.
    fn check_kubeconfig(&self) -> Result<()> {
        let mut kubectl = Command::new(Assets::of(&[Program::Kubectl])?.path(Program::Kubectl)?);
        let kubectl = proxy::remove(&mut kubectl).env("KUBECONFIG", &self.kubeconfig);
        let output = kubectl.args(["get", "nodes", "--output=name"]).output().context("run kubectl")?;
        let nodes = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(nodes.trim() == "node/node-1", "kubectl lists {nodes:?} with the printed kubeconfig; {error}");
        Ok(())
    }

    /// Replaces the manager with the command `swap`, once the cluster accepts commands.
    fn swap(&mut self, manager: &Path) -> Result<()> {
        let socket = self.kubeconfig.with_file_name("control");
        wait_until("no socket for commands", || Ok(socket.exists().then_some(())))?;
        let index = index(&self.kubeconfig)?.to_string();
        let mut swap = Command::new(&self.program);
        let status = swap.args(["cluster", "swap", "--cluster", &index]).arg(manager).status().context("run swap")?;
        ensure!(status.success(), "cluster swap ended with {status}");
        let reported = line_after(&mut self.lines, "")?;
        ensure!(reported.contains("the controller manager is now"), "{reported:?} was printed after swap");
        Ok(())
    }

    /// Ends the command with a signal. Fails if its exit status is another one than expected, or if anything is left.
    fn end(mut self, signal: Signal, is_expected: impl Fn(ExitStatus) -> bool) -> Result<()> {
        let footprint = Footprint::of_running(index(&self.kubeconfig)?)?;
        self.send(signal)?;
        let status = wait_until("it was still running", || self.child.try_wait().context("wait for the command"))?;
        ensure!(is_expected(status), "it ended with {status}");
        let leaks = footprint.leaks();
        ensure!(leaks.is_empty(), "the cluster left behind: {}", leaks.join(", "));
        Ok(())
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let process = Pid::from_raw(self.child.id().try_into()?).context("a process without a number")?;
        kill_process(process, signal).context("send a signal")
    }
}

impl Drop for Served {
    /// Ends the command after a failure; one that has ended already is not waited for again.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) && self.send(Signal::TERM).is_ok() {
            let _ = self.child.wait();
        }
    }
}

/// Returns the first result of a condition that is not `None`. Fails with the state in which it is still `None`.
fn wait_until<T>(state: &str, mut condition: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(result) = condition()? {
            return Ok(result);
        }
        ensure!(Instant::now() < end, "{state} after {} s", DEADLINE.as_secs());
        sleep(PERIOD);
    }
}

/// Returns the rest of the next line with this beginning.
fn line_after(lines: &mut impl Iterator<Item = std::io::Result<String>>, beginning: &str) -> Result<String> {
    for line in lines {
        let line = line.context("read the command's output")?;
        if let Some(rest) = line.strip_prefix(beginning) {
            return Ok(rest.to_owned());
        }
    }
    bail!("the command ended before it printed {beginning:?}; its error is above")
}

/// Returns a cluster's index from the path of its kubeconfig.
fn index(kubeconfig: &Path) -> Result<u8> {
    let folder = kubeconfig.parent().and_then(Path::file_name).and_then(|name| name.to_str());
    let index = folder.and_then(|name| name.parse().ok());
    index.with_context(|| format!("no index of a cluster in {}", kubeconfig.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubeconfig_and_index_are_read_from_the_introduction() {
        let text =
            ["   1.0 s  network is up", "", "  export KUBECONFIG=/run/kcm-cluster/7/kubeconfig", "Ctrl-C ends the"];
        let mut lines = text.into_iter().map(|line| Ok(line.to_owned()));
        let kubeconfig = line_after(&mut lines, KUBECONFIG).unwrap();
        assert_eq!(index(Path::new(&kubeconfig)).unwrap(), 7);
        assert_eq!(line_after(&mut lines, READY).unwrap(), " the");
        assert!(line_after(&mut lines, READY).unwrap_err().to_string().contains("ended before"));
        assert!(index(Path::new("/root/kubeconfig")).is_err());
    }
}
