//! The user's request to end a command.

use std::fs;
use std::future::Future;

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
    /// Starts listening: from now on the first signal does not end the process. A second
    /// signal ends the process and the programs that it has started, even if the process hangs.
    pub fn listen() -> Result<Self> {
        let mut others = Self::streams()?;
        tokio::spawn(async move {
            others.wait().await;
            exit(others.wait().await)
        });
        Self::streams()
    }

    fn streams() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for Ctrl-C or SIGTERM.
    pub async fn wait(&mut self) -> ExitCode {
        tokio::select! {
            _ = self.interrupt.recv() => ExitCode::INTERRUPT,
            _ = self.terminate.recv() => ExitCode::TERMINATE,
        }
    }
}

/// Runs a future until it ends, or until the user ends the command: then the future is dropped, with everything that it
/// has started, and the exit code is returned.
pub fn run<T>(work: impl Future<Output = Result<T>>) -> Result<Result<T, ExitCode>> {
    let runtime = tokio::runtime::Runtime::new()?;
    let ended = runtime.block_on(async {
        let mut interrupted = Interrupted::listen()?;
        tokio::select! {
            result = work => result.map(Ok),
            code = interrupted.wait() => {
                eprintln!("ending; press Ctrl-C again to exit immediately");
                Ok(Err(code))
            }
        }
    });
    // Does not wait for threads that still build programs.
    runtime.shutdown_background();
    ended
}

/// Ends this process, and programs that it has started, with the exit code of a signal.
pub fn exit(code: ExitCode) -> ! {
    terminate_children();
    std::process::exit(code.0)
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

    /// Sends a signal to this process, which listens for it.
    fn terminate() -> rustix::io::Result<()> {
        kill_process(rustix::process::getpid(), rustix::process::Signal::TERM)
    }

    /// One test, because all threads of the process receive its signals. Each runtime ends this process at the second
    /// signal. The first runtime has ended when its statement has; the one of [`run`] ends in the background, so no
    /// signal may follow it.
    #[test]
    fn signal_is_an_exit_code_and_drops_work_whose_effects_stay() {
        let ended = tokio::runtime::Runtime::new().unwrap().block_on(async {
            let mut interrupted = Interrupted::listen().unwrap();
            terminate().unwrap();
            interrupted.wait().await
        });
        assert_eq!(ended, ExitCode::TERMINATE);

        let mut done = Vec::new();
        let ended = run(async {
            done.push("first");
            terminate()?;
            std::future::pending::<()>().await;
            done.push("second");
            Ok(())
        });
        assert_eq!(ended.unwrap(), Err(ExitCode::TERMINATE));
        assert_eq!(done, ["first"]);
        assert_eq!(run(async { Ok(1) }).unwrap(), Ok(1));
    }
}
