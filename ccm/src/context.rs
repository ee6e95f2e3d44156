//! The context that controllers receive when they start.

use std::sync::Arc;

pub use component::descriptor::{Finalizer, QueueKeys, Start, Verb, Write};
use jiff::Timestamp;

use crate::cloud::Cloud;
use crate::flags::Options;

/// The source of the current time.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The process's configuration and its cloud.
pub struct Context {
    /// The command line.
    pub options: Options,
    /// The cloud.
    pub cloud: Arc<Cloud>,
    /// The current time.
    pub clock: Clock,
}

/// A cloud controller.
pub type Descriptor = component::descriptor::Descriptor<Context>;

/// Returns [`Start::Run`] if the provider supports instances; a controller that needs them is skipped otherwise.
pub fn needs_instances(context: &Context) -> Start {
    match context.cloud.provider().instances() {
        Some(_) => Start::Run,
        None => Start::Skip("the cloud provider does not support instances"),
    }
}
