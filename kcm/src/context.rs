//! The context that controllers receive when they start.

use std::sync::Arc;

pub use component::descriptor::{Finalizer, QueueKeys, Start, Verb, Write};
use jiff::Timestamp;

use crate::credentials::Credentials;
use crate::flags::Options;

/// The source of the current time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The process's configuration.
pub struct Context {
    /// The parsed command line.
    pub options: Options,
    /// Keys and certificates that the command line names.
    pub credentials: Credentials,
    /// The current time.
    pub clock: Clock,
}

impl Context {
    /// Returns the number of workers that a flag sets; less than one counts as one.
    pub fn workers(&self, flag: &str) -> usize {
        self.options.workers(flag)
    }
}

/// A controller of the manager.
pub type Descriptor = component::descriptor::Descriptor<Context>;
