//! Processes and a folder that are removed with their owner, even if it is killed.
//!
//! All processes join one process group. A shell outside that group, the reaper, reads from a pipe that only the owner
//! can write to. When the owner drops the pipe, panics, exits or is killed, the kernel closes it. The reaper then kills
//! the group and removes the folder, unless it has to be kept. An orderly shutdown uses the same path, so that every
//! test exercises it.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::abandoned;
use crate::file_lock::FileLock;
use crate::last_lines::last_lines;
use crate::lock::lock;
use crate::options::KEEP;
use crate::proxy;

/// The shell program of the reaper. Arguments: the process group, the folder, `keep` or `remove`.
const REAPER: &str = r#"
trap '' HUP INT TERM
while read -r _; do :; done
kill -s KILL -- "-$1"
[ "$3" = keep ] && exit
attempt=0
until rm -rf -- "$2" || [ "$attempt" -eq 50 ]; do
    attempt=$((attempt + 1))
    sleep 0.1
done
"#;

/// The shell program of the first process of the group. It exits some time after the owner, so that the group's number
/// is not reused before the reaper kills the group.
const ANCHOR: &str = "trap '' HUP INT TERM; while read -r _; do :; done; sleep 30";

/// The running processes of one control plane and the folder they work in.
pub(crate) struct Processes {
    folder: PathBuf,
    /// The file of the network namespace that programs run in; `None`: the owner's namespace.
    network: Option<PathBuf>,
    /// The file of a cgroup that programs are moved into, which lists its processes.
    cgroup: Option<PathBuf>,
    keep: bool,
    /// Called with a folder that is kept, after the end of all processes.
    pub(crate) when_kept: Option<fn(&Path)>,
    /// The lock of a folder that is not kept.
    _mark: Option<FileLock>,
    anchor: Child,
    reaper: Child,
    running: Mutex<Vec<(String, Child)>>,
}

impl Processes {
    /// Creates a temporary folder, which is kept at the end if `keep`. Programs run in the network namespace of the
    /// file `network`, or in the owner's, and in the cgroup of the file `cgroup`.
    pub(crate) fn new(keep: bool, network: Option<PathBuf>, cgroup: Option<PathBuf>) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(abandoned::PREFIX)
            .tempdir()
            .context("make a temporary folder for a control plane")?;
        let mark = if keep { None } else { Some(abandoned::mark(folder.path())?) };
        let shell = |script: &str, arguments: &[&str]| {
            Command::new("sh")
                .args(["-c", script, "control-plane"])
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .process_group(0)
                .spawn()
                .context("run sh, which guards a control plane's processes")
        };
        let path = folder.path().to_str().context("the temporary folder's name is not UTF-8")?;
        let mut anchor = shell(ANCHOR, &[path])?;
        let group = anchor.id().to_string();
        let reaper = shell(REAPER, &[&group, path, if keep { "keep" } else { "remove" }]);
        if reaper.is_err() {
            let _ = anchor.kill();
            let _ = anchor.wait();
        }
        Ok(Self {
            reaper: reaper?,
            anchor,
            folder: folder.keep(),
            network,
            cgroup,
            keep,
            when_kept: None,
            _mark: mark,
            running: Mutex::default(),
        })
    }

    /// Returns the folder that the processes work in.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the log file of a process.
    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.log"))
    }

    /// Starts a program under a `name` that no running process has, with both
    /// outputs appended to its log. Returns the process id.
    pub(crate) fn start(&self, name: &str, program: &Path, arguments: &[String]) -> Result<u32> {
        let mut running = lock(&self.running);
        if running.iter().any(|(other, _)| other == name) {
            bail!("a process called {name:?} runs already: stop it first, or choose another name");
        }
        let log = File::options().create(true).append(true).open(self.log(name))?;
        let mut command = in_network(self.network.as_deref(), program);
        let mut child = proxy::remove(&mut command)
            .args(arguments)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(self.anchor.id().try_into()?)
            .spawn()
            .with_context(|| format!("start {name} ({})", program.display()))?;
        let id = child.id();
        if let Some(cgroup) = &self.cgroup
            && let Err(error) = fs::write(cgroup, id.to_string())
        {
            child.kill().and_then(|()| child.wait()).with_context(|| format!("kill {name}"))?;
            return Err(error).with_context(|| format!("move {name} into the cgroup {}", cgroup.display()));
        }
        running.push((name.to_owned(), child));
        Ok(id)
    }

    /// Kills the process called `name` and waits for its exit.
    pub(crate) fn kill(&self, name: &str) -> Result<()> {
        let mut child = self.release(name)?;
        child.kill().and_then(|()| child.wait()).with_context(|| format!("kill {name}"))?;
        Ok(())
    }

    /// Removes the process called `name` from the list: the caller waits for its end. The name can then be used again.
    pub(crate) fn release(&self, name: &str) -> Result<Child> {
        let mut running = lock(&self.running);
        let index = running
            .iter()
            .position(|(other, _)| other == name)
            .ok_or_else(|| anyhow!("no process called {name:?} was started"))?;
        Ok(running.swap_remove(index).1)
    }

    /// Sends SIGTERM to the process called `name`, and releases it.
    pub(crate) fn terminate(&self, name: &str) -> Result<Child> {
        let child = self.release(name)?;
        let process = Pid::from_raw(child.id().try_into()?).context("the process ID is 0")?;
        kill_process(process, Signal::TERM).with_context(|| format!("terminate {name}"))?;
        Ok(child)
    }

    /// Fails if a process has exited, with the last lines of its log.
    pub(crate) fn check(&self) -> Result<()> {
        let mut running = lock(&self.running);
        for (name, child) in running.iter_mut() {
            if let Some(status) = child.try_wait().with_context(|| format!("check whether {name} has exited"))? {
                return Err(ended(name, status, &self.log(name)));
            }
        }
        Ok(())
    }

    /// Returns the place of the logs after a failed start, or the way to keep them.
    pub(crate) fn place_of_logs(&self) -> String {
        if self.keep {
            format!("its logs are kept in {}", self.folder.display())
        } else {
            format!("set {KEEP}=1 to keep its logs")
        }
    }

    /// Returns the last lines of the log of each process that was not released, for an error without a single cause.
    pub(crate) fn last_lines(&self) -> String {
        let running = lock(&self.running);
        running.iter().map(|(name, _)| format!("last lines of {name}:\n{}\n", last_lines(&self.log(name)))).collect()
    }

    fn shut_down(&mut self) -> io::Result<()> {
        drop(self.reaper.stdin.take());
        self.reaper.wait()?;
        for (_, child) in lock(&self.running).iter_mut() {
            child.kill()?;
            child.wait()?;
        }
        self.anchor.kill()?;
        self.anchor.wait()?;
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            eprintln!("control-plane: cannot end the processes of {}: {error}", self.folder.display());
        }
        if self.keep {
            if let Some(when_kept) = self.when_kept {
                when_kept(&self.folder);
            }
            eprintln!("control-plane: data and logs are kept in {}", self.folder.display());
        }
    }
}

/// Returns a command that runs a program in a network namespace; `None`: the owner's. `nsenter` replaces itself by the
/// program, so that the process id is the program's.
fn in_network(namespace: Option<&Path>, program: &Path) -> Command {
    let Some(namespace) = namespace else { return Command::new(program) };
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", namespace.display())).arg("--").arg(program);
    command
}

fn ended(name: &str, status: ExitStatus, log: &Path) -> anyhow::Error {
    anyhow!("{name} exited unexpectedly ({status}); its last lines:\n{}", last_lines(log))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Vec<String> {
        vec!["-c".into(), script.into()]
    }

    #[test]
    fn processes_and_folder_are_removed_with_the_owner() {
        let processes = Processes::new(false, None, None).unwrap();
        let folder = processes.folder().to_owned();
        let id = processes.start("sleeper", Path::new("sh"), &sh("sleep 600")).unwrap();
        let id = rustix::process::Pid::from_raw(id.try_into().unwrap()).unwrap();
        assert!(rustix::process::test_kill_process(id).is_ok());
        drop(processes);
        assert!(rustix::process::test_kill_process(id).is_err());
        assert!(!folder.exists());
    }

    #[test]
    fn kept_folder_is_handed_over_after_the_end_of_its_processes() {
        fn copy_log(folder: &Path) {
            let log = folder.join("sleeper.log");
            fs::write(log.with_extension("copy"), fs::read(log).unwrap()).unwrap();
        }
        let mut processes = Processes::new(true, None, None).unwrap();
        processes.when_kept = Some(copy_log);
        let folder = processes.folder().to_owned();
        assert!(processes.place_of_logs().contains(folder.to_str().unwrap()));
        processes.start("sleeper", Path::new("sh"), &sh("sleep 600")).unwrap();
        drop(processes);
        assert!(folder.join("sleeper.copy").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn ended_process_is_reported_with_its_last_output() {
        let processes = Processes::new(false, None, None).unwrap();
        processes.start("talker", Path::new("sh"), &sh("echo goodbye; exit 3")).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        let error = loop {
            match processes.check() {
                Err(error) => break error.to_string(),
                Ok(()) => assert!(std::time::Instant::now() < deadline, "the exit was not reported"),
            }
            std::thread::yield_now();
        };
        assert!(error.contains("talker exited unexpectedly (exit status: 3)"), "{error}");
        assert!(error.contains("goodbye"), "{error}");
    }

    #[test]
    fn released_process_may_exit_and_its_name_is_free() {
        let processes = Processes::new(false, None, None).unwrap();
        processes.start("worker", Path::new("sh"), &sh("exit 3")).unwrap();
        let mut child = processes.release("worker").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(3));
        processes.check().unwrap();
        processes.start("worker", Path::new("sh"), &sh("sleep 600")).unwrap();
        assert!(processes.release("another").is_err());
    }

    #[test]
    fn program_is_moved_into_the_cgroup() {
        let folder = tempfile::tempdir().unwrap();
        let members = folder.path().join("cgroup.procs");
        let processes = Processes::new(false, None, Some(members.clone())).unwrap();
        let id = processes.start("sleeper", Path::new("sh"), &sh("sleep 600")).unwrap();
        assert_eq!(fs::read_to_string(&members).unwrap(), id.to_string());
        drop(processes);

        let missing = folder.path().join("missing/cgroup.procs");
        let processes = Processes::new(false, None, Some(missing)).unwrap();
        let error = processes.start("sleeper", Path::new("sh"), &sh("sleep 600")).unwrap_err().to_string();
        assert!(error.contains("move sleeper into the cgroup"), "{error}");
        assert!(processes.release("sleeper").is_err(), "a program outside the cgroup would survive the cluster");
    }

    #[test]
    fn name_is_free_after_a_kill() {
        let processes = Processes::new(false, None, None).unwrap();
        let sleeper = || processes.start("sleeper", Path::new("sh"), &sh("sleep 600"));
        sleeper().unwrap();
        assert!(sleeper().is_err());
        processes.kill("sleeper").unwrap();
        assert!(processes.check().is_ok(), "a killed process did not exit unexpectedly");
        sleeper().unwrap();
        assert!(processes.kill("unknown").is_err());
    }
}
