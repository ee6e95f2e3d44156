//! The wish of whoever runs a command that it end.

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C or SIGTERM.
pub struct Interrupted {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupted {
    /// From now on neither ends the process by itself.
    pub fn listen() -> Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Ends when one of them comes.
    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
