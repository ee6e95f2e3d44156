//! The user's request to end a command.

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C or SIGTERM.
pub struct Interrupted {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupted {
    /// Starts listening: from now on neither signal ends the process by itself.
    pub fn listen() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for one of them.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
