//! The user's request to end a command.

use std::fs;

use anyhow::Result;
use rustix::process::{Pid, kill_process};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C or SIGTERM.
pub struct Interrupted {
    interrupt: Signal,
    terminate: Signal,
}

/// The exit code for a command that a signal has ended, as shells report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExitCode(pub i32);

impl ExitCode {
    const INTERRUPT: Self = Self(130);
    const TERMINATE: Self = Self(143);
}

impl Interrupted {
    /// Starts listening: from now on neither signal ends the process by itself. A second one does, even if the process
    /// hangs: what it has started ends with it.
    pub fn listen() -> Result<Self> {
        let mut others = Self::streams()?;
        tokio::spawn(async move {
            others.wait().await;
            let code = others.wait().await;
            terminate_children();
            std::process::exit(code.0);
        });
        Self::streams()
    }

    fn streams() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for one of them.
    pub async fn wait(&mut self) -> ExitCode {
        tokio::select! {
            _ = self.interrupt.recv() => ExitCode::INTERRUPT,
            _ = self.terminate.recv() => ExitCode::TERMINATE,
        }
    }
}

/// Ends programs that this process has started and that do not end with it, such as Go during a build.
pub fn terminate_children() {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for task in tasks {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)) {
            let _ = kill_process(child, rustix::process::Signal::TERM);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn wait_returns_the_exit_code_of_the_signal() {
        let mut interrupted = Interrupted::listen().unwrap();
        kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
        assert_eq!(interrupted.wait().await, ExitCode::TERMINATE);
    }
}
