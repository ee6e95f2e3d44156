//! The threads of a process: one for control, two for the controllers.
//!
//! A controller may compute for seconds if a tenant creates objects for that purpose. The Lease has to be renewed and
//! probes need a response during that time. Otherwise the process loses the Lease, and so does each next leader,
//! because it reconciles the same objects. The control thread is the main thread, so that no additional thread is
//! needed.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::time::Duration;

use tokio::runtime::{Builder, Handle, Runtime};

/// Number of worker threads. The process waits for the API server most of the time, so more threads would only cost
/// memory.
const WORKER_THREADS: usize = 2;

/// The stack size of each thread that the runtimes start. Only the used part is in memory. Calls of the AWS SDK need
/// deep stacks, in debug builds deeper than the default of two MiB.
const STACK_BYTES: usize = 8 << 20;

/// Idle time after which a thread for blocking calls ends. The control thread needs one every ten seconds, to read
/// certificates; a thread that is kept in between would only cost memory.
const BLOCKING_THREAD_IDLE_TIME: Duration = Duration::from_secs(1);

/// Number of steps of tasks on the control thread between two checks of its timers and sockets: while many clients
/// connect, steps may take milliseconds.
const CONTROL_EVENT_INTERVAL: u32 = 8;

/// The threads of a process.
pub(crate) struct Threads {
    /// The runtime of the control thread, which is the caller of [`Threads::block_on`].
    control: Runtime,
    workers: Runtime,
}

impl Threads {
    /// Starts the worker threads.
    ///
    /// # Errors
    /// When the operating system refuses threads or descriptors.
    pub(crate) fn start() -> io::Result<Self> {
        let mut control = Builder::new_current_thread();
        let control = control.thread_stack_size(STACK_BYTES).thread_keep_alive(BLOCKING_THREAD_IDLE_TIME);
        let control = control.event_interval(CONTROL_EVENT_INTERVAL).enable_all().build()?;
        let mut workers = Builder::new_multi_thread();
        let workers = workers.worker_threads(WORKER_THREADS).thread_stack_size(STACK_BYTES).enable_all().build()?;
        Ok(Self { control, workers })
    }

    /// Returns the runtime of the controllers.
    pub(crate) fn workers(&self) -> &Handle {
        self.workers.handle()
    }

    /// Runs `work` on this thread, which becomes the control thread.
    pub(crate) fn block_on<F: Future>(&self, work: F) -> F::Output {
        self.control.block_on(work)
    }

    /// Shuts down both runtimes without waiting for tasks that block their thread.
    pub(crate) fn shutdown_background(self) {
        self.control.shutdown_background();
        self.workers.shutdown_background();
    }
}

/// Runs `work` so that its tasks, timers and sockets belong to `runtime`, although another one polls it.
pub(crate) async fn in_runtime<F: Future>(runtime: &Handle, work: F) -> F::Output {
    let mut work = pin!(work);
    poll_fn(|context| {
        let _entered = runtime.enter();
        work.as_mut().poll(context)
    })
    .await
}

#[cfg(test)]
mod tests;
